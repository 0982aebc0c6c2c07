//! The policy in force: committed with its changes, kept over a boot, and gone with a rollback, wherever a process is killed.

use crate::common::{cpus, task};
use crate::sim::{Settings, Sim, plan, with};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use teiji_agent::apply::{Applied, Error, Message, Options, Rollback};
use teiji_model::plan::Plan;
use teiji_model::policy::{KeptPolicy, Source};
use teiji_model::resource::{Resource, Value};

fn threads() -> Resource {
    Resource::ThreadCpus(task(1))
}

fn before() -> Settings {
    BTreeMap::from([(threads(), Value::Cpus(cpus("0-3"))), (Resource::HaltPoll, Value::Nanoseconds(1))])
}

fn wanted() -> [(Resource, Value); 2] {
    [(Resource::HaltPoll, Value::Nanoseconds(2)), (threads(), Value::Cpus(cpus("2")))]
}

fn policy(text: &str) -> KeptPolicy {
    KeptPolicy {
        sources: vec![Source { name: "p".into(), text: text.into() }],
        since: 7,
        ..KeptPolicy::default()
    }
}

fn apply(sim: &Sim, plan: &Plan, policy: Option<KeptPolicy>) -> Result<Applied, Error> {
    let options = Options { policy, ..Options::default() };
    sim.engine().apply(plan, &options, &mut |_| {}, &AtomicBool::new(false))
}

#[test]
fn it_is_in_force_exactly_when_its_changes_are_committed() {
    let mut seen = [false; 2];
    for k in 1.. {
        let sim = Sim::new(before());
        apply(&sim, &Plan::default(), Some(policy("old"))).unwrap();
        let ended = sim.killed_at(k, |sim| apply(sim, &plan(&before(), &wanted()), Some(policy("new"))));
        sim.engine().recover(Duration::ZERO).unwrap();
        let (new, applied) = (sim.engine().policy().unwrap(), sim.settings() == with(&before(), &wanted()));
        assert_eq!(new, Some(policy(if applied { "new" } else { "old" })), "killed at {k}");
        seen[usize::from(applied)] = true;
        if ended.is_some() {
            break;
        }
    }
    assert_eq!(seen, [true, true]);
}

#[test]
fn a_rollback_ends_it_wherever_it_is_killed() {
    for k in 1.. {
        let sim = Sim::new(before());
        apply(&sim, &plan(&before(), &wanted()), Some(policy("p"))).unwrap();
        let ended = sim.killed_at(k, |sim| sim.engine().rollback(&Rollback::default()).map(drop));
        sim.engine().recover(Duration::ZERO).unwrap();
        assert_eq!(sim.engine().policy().unwrap().is_some(), sim.settings() != before(), "killed at {k}");
        if let Some(result) = ended {
            result.unwrap();
            break;
        }
    }
    // Also if there is nothing to restore.
    let sim = Sim::new(before());
    apply(&sim, &Plan::default(), Some(policy("p"))).unwrap();
    assert_eq!(sim.engine().policy().unwrap(), Some(policy("p")));
    assert_eq!(sim.engine().rollback(&Rollback::default()).unwrap().restored, 0);
    assert_eq!(sim.engine().policy().unwrap(), None);
}

#[test]
fn it_stays_in_force_over_a_boot() {
    let sim = Sim::new(before());
    apply(&sim, &plan(&before(), &wanted()), Some(policy("p"))).unwrap();
    *sim.0.boot.borrow_mut() = "the next boot".into();
    *sim.0.settings.borrow_mut() = before();
    assert_eq!(sim.engine().policy().unwrap(), Some(policy("p")), "before anything is cleaned up");
    assert_eq!(sim.engine().recover(Duration::ZERO).unwrap(), [Message::OtherBoot]);
    assert_eq!(sim.engine().recover(Duration::ZERO).unwrap(), []);
    assert_eq!((sim.engine().policy().unwrap(), sim.held().settings.len()), (Some(policy("p")), 0));
    // An agent applies it again; that changes nothing of what is in force.
    apply(&sim, &plan(&before(), &wanted()), None).unwrap();
    assert_eq!((sim.engine().policy().unwrap(), sim.held().settings.len()), (Some(policy("p")), 2));
}

/// A VM was replaced by another one of the same name: `teiji apply` of the same files means the new one, although it may have
/// nothing to change.
#[test]
fn the_same_files_applied_again_mean_the_vms_of_now() {
    use teiji_model::host::VmId;
    let sim = Sim::new(before());
    let of = |uid| KeptPolicy {
        vms: [("sip1".into(), VmId { uuid: None, uid: Some(uid) })].into(),
        ..policy("p")
    };
    for uid in [1, 2] {
        apply(&sim, &Plan::default(), Some(of(uid))).unwrap();
        assert_eq!(sim.engine().policy().unwrap(), Some(of(uid)));
    }
}

#[test]
fn what_is_gone_is_forgotten() {
    let sim = Sim::new(before());
    apply(&sim, &plan(&before(), &wanted()), Some(policy("p"))).unwrap();
    assert!(!sim.engine().forget_gone().unwrap());
    sim.0.settings.borrow_mut().remove(&threads());
    assert!(sim.engine().forget_gone().unwrap());
    assert_eq!((sim.engine().policy().unwrap(), sim.held().settings.len()), (Some(policy("p")), 1));
    assert!(!sim.engine().forget_gone().unwrap());
}
