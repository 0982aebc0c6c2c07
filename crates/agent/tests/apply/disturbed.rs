//! Before Linux 6.2 a move into another control group lets threads run on all CPUs, also those that the plan does not
//! name: they keep their affinity, and are never left with that of the move.

use crate::common::{cpus, task};
use crate::sim::{Settings, Sim, plan};
use std::collections::BTreeMap;
use std::time::Duration;
use teiji_agent::apply::{Error, Message, Rollback};
use teiji_model::resource::{Resource, Value};

const POLL: Resource = Resource::HaltPoll;

fn moved() -> (Resource, Value) {
    (Resource::Group(task(1)), Value::Group("/teiji/vm-1".into()))
}

fn pinned() -> Resource {
    Resource::ThreadCpus(task(2))
}

fn to(list: &str) -> (Resource, Value) {
    (pinned(), Value::Cpus(cpus(list)))
}

fn before() -> Settings {
    BTreeMap::from([(moved().0, Value::Group("/user.slice".into())), to("1"), (POLL, Value::Nanoseconds(1))])
}

fn old_kernel() -> Sim {
    let sim = Sim::new(before());
    *sim.0.online.borrow_mut() = cpus("0-3");
    sim.0.resets_cpus.set(true);
    sim
}

#[test]
fn a_failure_between_the_move_and_the_pinning_leaves_the_affinity() {
    let polls = (POLL, Value::Nanoseconds(2));
    let changes = [moved(), polls, to("2")];
    for fails in [POLL, pinned()] {
        let sim = old_kernel();
        *sim.0.fails.borrow_mut() = Some(fails);
        let error = sim.apply(&plan(&before(), &changes)).unwrap_err();
        assert!(matches!(&error, Error::Undone { messages, .. } if messages.is_empty()), "{error}");
        assert_eq!(sim.settings(), before());
        assert!(sim.is_clean());
    }
}

#[test]
fn affinity_that_is_not_in_the_plan_stays() {
    let sim = old_kernel();
    sim.apply(&plan(&before(), &[moved()])).unwrap();
    assert_eq!(sim.settings()[&pinned()], to("1").1);
    assert_eq!(sim.held().settings.len(), 1);
    let done = sim.engine().rollback(&Rollback::default()).unwrap();
    assert_eq!((done.restored, done.messages), (1, Vec::new()));
    assert_eq!(sim.settings(), before());
}

#[test]
fn killed_anywhere_the_affinity_is_put_back() {
    for changes in [vec![moved(), to("2")], vec![moved()]] {
        for k in 1.. {
            let sim = old_kernel();
            if sim.killed_at(k, |s| s.apply(&plan(&before(), &changes)).unwrap()).is_some() {
                break;
            }
            // Killed while that is undone, too.
            for j in 1.. {
                let copy = sim.copy();
                let ended = copy.killed_at(j, |s| s.engine().recover(Duration::ZERO).map(drop));
                let messages = copy.engine().recover(Duration::ZERO).unwrap();
                assert!(
                    !messages.iter().any(|message| matches!(message, Message::Foreign { .. })),
                    "{k}, {j}: {messages:?}"
                );
                copy.engine().rollback(&Rollback::default()).unwrap();
                assert_eq!(copy.settings(), before(), "killed at {k}, then at {j}");
                if ended.is_some() {
                    break;
                }
            }
        }
        for k in 1.. {
            let sim = old_kernel();
            sim.apply(&plan(&before(), &changes)).unwrap();
            let ended = sim.killed_at(k, |s| s.engine().rollback(&Rollback::default()).map(drop));
            sim.engine().rollback(&Rollback::default()).unwrap();
            assert_eq!(sim.settings(), before(), "killed at {k} of the rollback");
            if ended.is_some() {
                break;
            }
        }
    }
}

/// What somebody else has chosen meanwhile survives the move back.
#[test]
fn affinity_that_somebody_else_has_chosen_stays() {
    for changes in [vec![moved(), to("2")], vec![moved()]] {
        let sim = old_kernel();
        sim.apply(&plan(&before(), &changes)).unwrap();
        sim.set(pinned(), to("3").1);
        let done = sim.engine().rollback(&Rollback::default()).unwrap();
        assert_eq!(done.messages.len(), changes.len() - 1, "{:?}", done.messages);
        assert_eq!(sim.settings()[&pinned()], to("3").1);
    }
}
