//! An apply that waits for its confirmation holds no lock: whatever others do meanwhile, and wherever they are killed, the
//! host is in the end as before or as wanted, and the process that waits says which.

use crate::common::{cpus, task};
use crate::sim::{Disk, Settings, Sim, plan, with};
use std::collections::BTreeMap;
use std::time::Duration;
use teiji_agent::apply::{Error, Message, Progress, Rollback};
use teiji_model::resource::{Resource, Scheduling, Value};

fn before() -> Settings {
    BTreeMap::from([
        (Resource::ThreadCpus(task(1)), Value::Cpus(cpus("0-3"))),
        (Resource::ThreadScheduling(task(1)), Value::Scheduling(Scheduling::Other { nice: 0 })),
        (Resource::HaltPoll, Value::Nanoseconds(1)),
    ])
}

fn wanted() -> [(Resource, Value); 2] {
    [(Resource::HaltPoll, Value::Nanoseconds(2)), (Resource::ThreadCpus(task(1)), Value::Cpus(cpus("2")))]
}

fn after() -> Settings {
    with(&before(), &wanted())
}

/// What another process does while one waits.
type Other = fn(&Sim) -> Result<(), Error>;

const OTHERS: [(&str, Other); 5] = [
    ("confirm", |sim| sim.engine().confirm().map(drop)),
    ("rollback", |sim| sim.engine().rollback(&Rollback::default()).map(drop)),
    ("apply", |sim| sim.apply(&plan(&after(), &[(Resource::HaltPoll, Value::Nanoseconds(3))])).map(drop)),
    ("recover", |sim| sim.engine().recover(Duration::ZERO).map(drop)),
    ("expired", |sim| {
        sim.wait(61);
        sim.engine().recover(Duration::ZERO).map(drop)
    }),
];

/// Applies, and lets `others` act one after the other while it waits, each killed at a point (0: at none). Returns the
/// result of the apply, and whether none was killed.
fn wait_while(sim: &Sim, others: &[(Other, u64)]) -> (Result<(), Error>, bool) {
    let (mut left, mut ended) = (others.iter(), true);
    let result = sim.apply_within(&plan(&before(), &wanted()), 60, &mut |progress| {
        let Progress::Waiting { .. } = progress else { return };
        if let Some((other, at)) = left.next() {
            match at {
                0 => drop(other(sim)),
                at => ended &= sim.killed_at(*at, other).is_some(),
            }
        }
    });
    (result.map(drop), ended)
}

/// The host and the answer agree.
fn is_whole(sim: &Sim, result: &Result<(), Error>, what: &str) {
    // What a killed process has left is put in order by the next command.
    sim.wait(60);
    sim.engine().recover(Duration::ZERO).unwrap();
    let held = sim.held().settings.len();
    match result {
        Ok(()) => assert_eq!((sim.settings(), held), (after(), 2), "{what}"),
        Err(error) => assert_eq!((sim.settings(), held), (before(), 0), "{what}: {error}"),
    }
    assert!(sim.is_clean(), "{what}");
}

#[test]
fn the_one_that_waits_learns_what_became_of_it() {
    let run = |name: &str| {
        let sim = Sim::new(before());
        let other = OTHERS.iter().find(|(n, _)| *n == name).unwrap().1;
        let (result, _) = wait_while(&sim, &[(other, 0)]);
        is_whole(&sim, &result, name);
        result.map_err(|e| e.to_string())
    };
    assert_eq!(run("confirm"), Ok(()));
    assert!(run("rollback").unwrap_err().contains("undone by another teiji"));
    assert!(run("expired").unwrap_err().contains("undone by another teiji"));
    for other in ["apply", "recover"] {
        assert!(run(other).unwrap_err().starts_with("nobody confirmed within 60s"), "{other}");
    }
}

/// The journal is damaged while it waits: the steps are done, which the error does not deny.
#[test]
fn a_journal_that_cannot_be_read_any_more_does_not_mean_that_nothing_was_changed() {
    let sim = Sim::new(before());
    let damage: Other = |sim| {
        sim.0.files.borrow_mut().insert("transaction".into(), b"nonsense\n".to_vec());
        Ok(())
    };
    let error = wait_while(&sim, &[(damage, 0)]).0.unwrap_err();
    // With all that the command line prints: the sources.
    let source = std::error::Error::source(&error).map(|e| e.to_string()).unwrap_or_default();
    let printed = format!("{error}: {source}");
    assert!(matches!(error, Error::FateUnknown(_)) && !printed.contains("nothing"), "{printed}");
    assert!(printed.contains("is damaged at line 1"), "{printed}");
    assert_eq!(sim.settings(), after());
}

/// It is confirmed, and another apply is committed before the one that waited looks again.
#[test]
fn a_confirmation_is_known_however_late_it_is_looked_for() {
    let sim = Sim::new(before());
    let confirm_and_go_on: Other = |sim| {
        sim.engine().confirm().unwrap();
        sim.apply(&plan(&after(), &[(Resource::ThreadCpus(task(1)), Value::Cpus(cpus("3")))])).map(drop)
    };
    assert!(wait_while(&sim, &[(confirm_and_go_on, 0)]).0.is_ok());
    assert_eq!(sim.settings()[&Resource::ThreadCpus(task(1))], Value::Cpus(cpus("3")));
}

/// The disk takes what it says it has not taken, at each operation of the confirmation: the commit is withdrawn, or it is not.
#[test]
fn a_commit_that_is_withdrawn_is_not_told_as_confirmed() {
    let mut seen = [0; 2];
    for n in 1..12 {
        let sim = Sim::new(before());
        let mut confirmed = false;
        let result = sim.apply_within(&plan(&before(), &wanted()), 60, &mut |progress| {
            if matches!(progress, Progress::Waiting { .. }) && !std::mem::replace(&mut confirmed, true) {
                sim.0.disk.set(Disk::Lies(sim.operations() + n));
                drop(sim.engine().confirm());
                sim.0.disk.set(Disk::Fine);
            }
        });
        seen[usize::from(result.is_ok())] += 1;
        is_whole(&sim, &result.map(drop), &format!("the disk lies at {n}"));
    }
    assert!(seen.iter().all(|n| *n > 1), "{seen:?}");
}

#[test]
fn another_apply_says_what_to_do_first() {
    let sim = Sim::new(before());
    let mut said = String::new();
    sim.apply_within(&plan(&before(), &wanted()), 60, &mut |progress| {
        if matches!(progress, Progress::Waiting { .. }) && said.is_empty() {
            let files = sim.0.files.borrow().clone();
            said = OTHERS[2].1(&sim).unwrap_err().to_string();
            assert_eq!(*sim.0.files.borrow(), files);
            let left = sim.engine().to_keep().unwrap().lease_left;
            assert!(left.is_some_and(|left| left > Duration::from_secs(50)));
            let status = sim.engine().status().unwrap();
            assert!(!status.busy && status.transaction.unwrap().can_be_confirmed());
        }
    })
    .unwrap_err();
    assert!(
        said.contains("waits for its confirmation for 60 s more") && said.contains("teiji rollback"),
        "{said}"
    );
    assert_eq!(sim.engine().to_keep().unwrap().lease_left, None);
}

#[test]
fn a_rollback_says_what_it_undid() {
    let sim = Sim::new(before());
    let mut messages = Vec::new();
    sim.apply_within(&plan(&before(), &wanted()), 60, &mut |progress| {
        if matches!(progress, Progress::Waiting { .. }) {
            messages = sim.engine().rollback(&Rollback::default()).unwrap().messages;
        }
    })
    .unwrap_err();
    let pid = std::process::id();
    assert_eq!(messages, [Message::UndoneBeforeConfirmation { pid }]);
    let text = format!("the apply (pid {pid}) that waited for its confirmation was undone");
    assert_eq!(messages[0].to_string(), text);
}

/// Whether its process was killed while it waited does not matter.
#[test]
fn an_apply_that_nobody_has_confirmed_is_not_called_interrupted() {
    let sim = Sim::new(before());
    let mut messages = Vec::new();
    sim.apply_within(&plan(&before(), &wanted()), 60, &mut |progress| {
        if matches!(progress, Progress::Waiting { .. }) && messages.is_empty() {
            sim.wait(61);
            messages = sim.engine().recover(Duration::ZERO).unwrap();
        }
    })
    .unwrap_err();
    let pid = std::process::id();
    assert_eq!(messages, [Message::NotConfirmed { pid }]);
    let text = format!("nobody confirmed the apply (pid {pid}) in time: its changes were undone");
    assert_eq!(messages[0].to_string(), text);
}

/// The process that confirms is killed once its commit is in the journal, and its `held.json.next` is lost: nothing is known
/// of a time that was over.
#[test]
fn an_apply_whose_confirmation_was_interrupted_is_called_so() {
    let sim = Sim::new(before());
    let mut messages = Vec::new();
    sim.apply_within(&plan(&before(), &wanted()), 60, &mut |progress| {
        if matches!(progress, Progress::Waiting { .. }) && messages.is_empty() {
            let mut files = sim.0.files.borrow_mut();
            files.get_mut("transaction").unwrap().extend(b"{\"commit\":true}\n");
            drop(files);
            messages = sim.engine().recover(Duration::ZERO).unwrap();
        }
    })
    .unwrap_err();
    let pid = std::process::id();
    assert_eq!(messages, [Message::Undone { pid }]);
    let text = format!("teiji (pid {pid}) was interrupted: its changes were undone");
    assert_eq!(messages[0].to_string(), text);
}

/// Every other process, killed at each of its points, followed by each other one.
#[test]
fn whoever_is_killed_wherever_the_outcome_is_whole() {
    let mut seen = [0, 0];
    for (first, other) in OTHERS {
        for at in 1.. {
            let mut ended = false;
            for (second, then) in OTHERS {
                let sim = Sim::new(before());
                let what = format!("{first} killed at {at}, then {second}");
                let (result, all) = wait_while(&sim, &[(other, at), (then, 0)]);
                ended = all;
                seen[usize::from(result.is_ok())] += 1;
                is_whole(&sim, &result, &what);
            }
            if ended || at > 40 {
                assert!(at <= 40);
                break;
            }
        }
    }
    assert!(seen.iter().all(|n| *n > 10), "{seen:?}");
}
