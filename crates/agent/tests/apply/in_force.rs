//! The policy in force: committed with its changes, kept over a boot, and gone with a rollback, wherever a process is killed.

use crate::common::{cpus, task};
use crate::sim::{Disk, Settings, Sim, plan, with};
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
        vms: [("sip1".into(), VmId { uid: Some(uid), ..VmId::default() })].into(),
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
    let written = || sim.engine().to_keep().unwrap().written;
    assert!(!written());
    sim.0.settings.borrow_mut().remove(&threads());
    assert!(written());
    assert_eq!((sim.engine().policy().unwrap(), sim.held().settings.len()), (Some(policy("p")), 1));
    assert!(!written());
}

/// What the policies of these tests ask for.
fn asked(policy: &KeptPolicy) -> Vec<(Resource, Value)> {
    match policy.sources[0].text.as_str() {
        "p" => wanted().into(),
        _ => vec![(Resource::HaltPoll, Value::Nanoseconds(3)), (threads(), Value::Cpus(cpus("0-3")))],
    }
}

/// What an agent does when it looks at the host; somebody else does `meanwhile`, before it changes anything.
fn look(sim: &Sim, meanwhile: impl FnOnce()) -> Result<(), Error> {
    let keep = sim.engine().to_keep()?;
    let Some(kept) = keep.policy else { return Ok(()) };
    let now = sim.settings();
    let steps: Vec<_> = asked(&kept).into_iter().filter(|(s, v)| now[s] != *v).collect();
    meanwhile();
    let options = Options { only_while: Some(kept), ..Options::default() };
    sim.engine().apply(&plan(&now, &steps), &options, &mut |_| {}, &AtomicBool::new(false)).map(drop)
}

/// A rollback that was interrupted is completed, and ends the policy, before the agent knows what to keep.
#[test]
fn an_agent_does_not_bring_back_what_is_rolled_back_wherever_that_is_killed() {
    let mut ended_policy = 0;
    for k in 1.. {
        let sim = Sim::new(before());
        apply(&sim, &plan(&before(), &wanted()), Some(policy("p"))).unwrap();
        let ended = sim.killed_at(k, |sim| sim.engine().rollback(&Rollback::default()).map(drop));
        for _ in 0..2 {
            look(&sim, || ()).unwrap();
            match sim.engine().policy().unwrap() {
                Some(_) => assert_eq!(sim.settings(), with(&before(), &wanted()), "killed at {k}"),
                None => {
                    assert_eq!((sim.settings(), sim.held().settings.len()), (before(), 0), "killed at {k}")
                }
            }
        }
        ended_policy += usize::from(sim.engine().policy().unwrap().is_none());
        if ended.is_some() {
            break;
        }
    }
    assert!(ended_policy > 5, "{ended_policy}");
}

/// Between what the agent reads and what it changes there may be any other command, wherever that is killed.
#[test]
fn an_agent_changes_nothing_for_a_policy_that_is_not_in_force_any_more() {
    let commands: [(&str, Command); 2] = [
        ("rollback", &|sim| drop(sim.engine().rollback(&Rollback::default()))),
        ("apply", &|sim| {
            let now = sim.settings();
            let steps: Vec<_> = asked(&policy("q")).into_iter().filter(|(s, v)| now[s] != *v).collect();
            drop(apply(sim, &plan(&now, &steps), Some(policy("q"))));
        }),
    ];
    for (name, command) in commands {
        let mut refused = false;
        for k in 1.. {
            let sim = Sim::new(before());
            apply(&sim, &plan(&before(), &wanted()), Some(policy("p"))).unwrap();
            // Something that the agent sets again.
            sim.set(Resource::HaltPoll, Value::Nanoseconds(1));
            let mut ended = false;
            let looked = look(&sim, || ended = sim.killed_at(k, |sim| command(sim)).is_some());
            refused |= matches!(looked, Err(Error::OtherPolicy));
            sim.engine().recover(Duration::ZERO).unwrap();
            let settings = sim.settings();
            let what = format!("{name} killed at {k}: {looked:?}: {settings:?}");
            match sim.engine().policy().unwrap() {
                None => assert_eq!((settings, sim.held().settings.len()), (before(), 0), "{what}"),
                Some(kept) if kept == policy("q") => {
                    assert_eq!(settings, with(&before(), &asked(&kept)), "{what}");
                }
                Some(_) => {}
            }
            if ended {
                break;
            }
        }
        assert!(refused, "{name}");
    }
}

/// What another process does.
type Command<'a> = &'a dyn Fn(&Sim);

/// The host goes down, wherever in a command, and everything is as the kernel makes it. Returns the policy in force then.
fn policy_after_boot(k: u64, command: Command) -> (Option<KeptPolicy>, bool, bool) {
    let sim = Sim::new(before());
    apply(&sim, &plan(&before(), &wanted()), Some(policy("p"))).unwrap();
    let ended = sim.killed_at(k, |sim| command(sim)).is_some();
    let text = sim.0.files.borrow().get("transaction").map(|t| String::from_utf8_lossy(t).into_owned());
    let committed = text.is_some_and(|text| text.contains("commit\":true}\n"));
    *sim.0.boot.borrow_mut() = "the next boot".into();
    *sim.0.settings.borrow_mut() = before();
    // What decides it is killed, too, and decides it again.
    let mut all = Vec::new();
    for j in 1.. {
        let copy = sim.copy();
        *copy.0.boot.borrow_mut() = "the next boot".into();
        let recovered = copy.killed_at(j, |sim| sim.engine().recover(Duration::ZERO).map(drop)).is_some();
        copy.engine().recover(Duration::ZERO).unwrap();
        assert!(copy.is_clean() && copy.held().settings.is_empty(), "killed at {k}, then at {j}");
        all.push(copy.engine().policy().unwrap());
        if recovered {
            break;
        }
    }
    assert!(all.windows(2).all(|two| two[0] == two[1]), "killed at {k}: {all:?}");
    (all.remove(0), committed, ended)
}

/// The policy may be what has brought the host down.
#[test]
fn a_rollback_that_a_boot_interrupts_has_ended_the_policy() {
    let mut kept = 0;
    for k in 1.. {
        let (found, _, ended) =
            policy_after_boot(k, &|sim| drop(sim.engine().rollback(&Rollback::default())));
        // Before there is a journal the rollback has not begun.
        kept += usize::from(found.is_some());
        if ended {
            break;
        }
    }
    assert_eq!(kept, 1);
}

#[test]
fn an_apply_that_a_boot_interrupts_has_put_its_policy_in_force_if_it_was_committed() {
    let mut seen = [0; 2];
    for k in 1.. {
        let command = |sim: &Sim| {
            let now = sim.settings();
            drop(apply(sim, &plan(&now, &asked(&policy("q"))), Some(policy("q"))));
        };
        let (found, committed, ended) = policy_after_boot(k, &command);
        if committed {
            assert_eq!(found, Some(policy("q")), "killed at {k}");
        }
        seen[usize::from(found == Some(policy("q")))] += 1;
        if ended {
            break;
        }
        assert!(committed || found == Some(policy("p")) || seen[1] > 4, "killed at {k}");
    }
    assert!(seen[0] > 5 && seen[1] > 4, "{seen:?}");
}

/// A commit whose line is on the disk although its write failed is withdrawn, and so it is after a boot.
#[test]
fn a_withdrawn_commit_puts_no_policy_in_force_after_a_boot() {
    let mut withdrawn = false;
    for n in 1..12 {
        let sim = Sim::new(before());
        apply(&sim, &Plan::default(), Some(policy("p"))).unwrap();
        sim.0.disk.set(Disk::Lies(sim.operations() + n));
        let result = apply(&sim, &plan(&before(), &wanted()), Some(policy("q")));
        sim.0.disk.set(Disk::Fine);
        *sim.0.boot.borrow_mut() = "the next boot".into();
        sim.engine().recover(Duration::ZERO).unwrap();
        let undone = matches!(result, Err(Error::Undone { .. }));
        if undone {
            assert_eq!(sim.engine().policy().unwrap(), Some(policy("p")), "{n}");
        }
        withdrawn |= undone;
    }
    assert!(withdrawn);
}

/// The host goes down while a line is written: the file may end in anything.
#[test]
fn a_journal_of_another_boot_may_end_in_anything() {
    let sim = Sim::new(before());
    apply(&sim, &plan(&before(), &wanted()), Some(policy("p"))).unwrap();
    sim.killed_at(8, |sim| {
        apply(sim, &plan(&with(&before(), &wanted()), &asked(&policy("q"))), Some(policy("q")))
    });
    sim.0.files.borrow_mut().get_mut("transaction").unwrap().extend(b"\0\0\0\n{\"do\":7}\n\0");
    assert!(matches!(sim.engine().recover(Duration::ZERO), Err(Error::Damaged { .. })));
    *sim.0.boot.borrow_mut() = "the next boot".into();
    sim.engine().recover(Duration::ZERO).unwrap();
    assert_eq!(sim.engine().policy().unwrap(), Some(policy("p")));
}
