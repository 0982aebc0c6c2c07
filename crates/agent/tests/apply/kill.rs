//! Killed at every point, and again while that is being recovered from; and the disk failing at every operation.

use crate::common::{cpus, task};
use crate::sim::{Disk, Settings, Sim, plan, timeless, with};
use std::collections::BTreeMap;
use std::time::Duration;
use teiji_agent::apply::{Applied, Error, Progress, Rollback};
use teiji_model::plan::Plan;
use teiji_model::resource::{Resource, Scheduling, Value};

type Holds = BTreeMap<Resource, (Value, Value)>;

fn original() -> Settings {
    BTreeMap::from([
        (Resource::ThreadCpus(task(1)), Value::Cpus(cpus("0-3"))),
        (Resource::ThreadScheduling(task(1)), Value::Scheduling(Scheduling::Other { nice: 0 })),
        (Resource::Group(task(1)), Value::Group("/a".into())),
        (Resource::GroupWeight("/teiji/vm-1".into()), Value::Weight(100)),
        (Resource::HaltPoll, Value::Nanoseconds(200_000)),
    ])
}

/// A host on which teiji holds some settings already, and a plan that changes one of these again, gives one back
/// and changes others for the first time.
struct Case {
    sim: Sim,
    plan: Plan,
    before: (Settings, Holds),
    after: (Settings, Holds),
}

fn case() -> Case {
    let sim = Sim::new(original());
    let first = [
        (Resource::HaltPoll, Value::Nanoseconds(0)),
        (Resource::GroupWeight("/teiji/vm-1".into()), Value::Weight(7)),
    ];
    sim.apply(&plan(&original(), &first)).unwrap();
    let before = (sim.settings(), timeless(&sim.held()));
    let second = [
        (Resource::GroupWeight("/teiji/vm-1".into()), Value::Weight(100)),
        (Resource::HaltPoll, Value::Nanoseconds(50_000)),
        (Resource::ThreadCpus(task(1)), Value::Cpus(cpus("2-3"))),
        (Resource::ThreadScheduling(task(1)), Value::Scheduling(Scheduling::Fifo { priority: 1 })),
    ];
    let mut holds: Holds =
        second[1..].iter().map(|(s, v)| (s.clone(), (original()[s].clone(), v.clone()))).collect();
    holds.retain(|_, (original, value)| original != value);
    let after = (with(&sim.settings(), &second), holds);
    let plan = plan(&sim.settings(), &second);
    Case { sim, plan, before, after }
}

fn state(sim: &Sim) -> (Settings, Holds) {
    (sim.settings(), timeless(&sim.held()))
}

/// Recovers from what `sim` is like, killed at every point of that and at every point of recovering from *that*;
/// all ways have to end the same.
fn recovered(sim: &Sim) -> (Settings, Holds) {
    let end = |sim: &Sim| {
        // An apply that could still be confirmed is left alone.
        sim.wait(60);
        sim.engine().recover(Duration::ZERO).unwrap();
        assert!(sim.is_clean(), "{:?}", sim.0.files.borrow());
        assert_eq!(sim.empty_groups(), [].into(), "left behind");
        assert_eq!(sim.engine().recover(Duration::ZERO).unwrap(), []);
        state(sim)
    };
    let straight = end(&sim.copy());
    for k in 1.. {
        let copy = sim.copy();
        copy.wait(60);
        if let Some(result) = copy.killed_at(k, |s| s.engine().recover(Duration::ZERO).map(drop)) {
            result.unwrap();
            break;
        }
        for j in 1.. {
            let twice = copy.copy();
            let ended = twice.killed_at(j, |s| s.engine().recover(Duration::ZERO).map(drop));
            assert_eq!(end(&twice), straight, "killed at {k}, then at {j} of recovery");
            if ended.is_some() {
                break;
            }
        }
    }
    straight
}

#[test]
fn killed_anywhere_in_apply() {
    let mut committed_from = None;
    for k in 1.. {
        let Case { sim, plan, before, after } = case();
        if let Some(result) = sim.killed_at(k, |s| s.apply(&plan)) {
            assert_eq!(result.unwrap(), Applied { changed: 4, messages: Vec::new() });
            assert_eq!(state(&sim), after);
            // Header, 4 × (line, write), applied, held.json.next, commit, rename, remove: before and after each.
            assert_eq!(k - 1, 2 * (1 + 4 * 2 + 5));
            break;
        }
        let found = recovered(&sim);
        if found == after {
            committed_from.get_or_insert(k);
        } else {
            assert_eq!(found, before, "killed at {k}");
            assert_eq!(committed_from, None, "killed at {k}");
        }
        // Any other operation does the same first.
        sim.engine().rollback(&Rollback::default()).unwrap();
        assert_eq!(state(&sim), (original(), Holds::new()), "killed at {k}, then rolled back");
    }
    assert!(committed_from.is_some());
}

#[test]
fn killed_anywhere_while_the_kernel_makes_something_else_of_a_value() {
    for k in 1.. {
        let Case { sim, plan, before, .. } = case();
        sim.0.normalised.borrow_mut().push((Value::Cpus(cpus("2-3")), Value::Cpus(cpus("2"))));
        match sim.killed_at(k, |s| s.apply(&plan)) {
            None => assert_eq!(recovered(&sim), before, "killed at {k}"),
            Some(result) => {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Undone { .. }), "{error:?}");
                assert!(
                    error
                        .to_string()
                        .contains("should be 2-3, but the kernel made it 2; what was done has been undone")
                );
                assert_eq!(state(&sim), before);
                break;
            }
        }
    }
}

#[test]
fn killed_anywhere_while_a_failed_step_is_undone() {
    for k in 1.. {
        let Case { sim, plan, before, .. } = case();
        sim.0.refused.borrow_mut().push(Value::Scheduling(Scheduling::Fifo { priority: 1 }));
        match sim.killed_at(k, |s| s.apply(&plan)) {
            None => assert_eq!(recovered(&sim), before, "killed at {k}"),
            Some(result) => {
                let text = result.unwrap_err().to_string();
                assert!(
                    text.starts_with("cannot change scheduling of thread 1 (sip1) to FIFO 1: EINVAL: no"),
                    "{text}"
                );
                assert_eq!(state(&sim), before);
                assert!(sim.is_clean());
                break;
            }
        }
    }
}

#[test]
fn killed_anywhere_in_rollback() {
    let mut begun = false;
    for k in 1.. {
        let Case { sim, plan, after, .. } = case();
        sim.apply(&plan).unwrap();
        if let Some(result) = sim.killed_at(k, |s| s.engine().rollback(&Rollback::default())) {
            assert_eq!(result.unwrap().restored, 3);
            assert_eq!(state(&sim), (original(), Holds::new()));
            // Header, 3 writes, held.json.next, commit, rename, remove.
            assert_eq!(k - 1, 2 * (1 + 3 + 4));
            break;
        }
        let found = recovered(&sim);
        begun |= found != after;
        // Once begun it is completed.
        assert_eq!(found, if begun { (original(), Holds::new()) } else { after }, "killed at {k}");
    }
    assert!(begun);
}

/// A group is made before a process is moved into it, and removed after it has left: two changes each.
#[test]
fn killed_anywhere_around_a_move_no_empty_group_is_left() {
    let (group, own) = (Resource::Group(task(1)), Value::Group("/teiji/vm-1".into()));
    // A thread that the plan does not name is pinned.
    let original = with(&original(), &[(Resource::ThreadCpus(task(2)), Value::Cpus(cpus("1")))]);
    let after = with(&original, &[(group.clone(), own.clone())]);
    let moves = plan(&original, &[(group, own)]);
    for resets in [false, true] {
        let new = || {
            let sim = Sim::new(original.clone());
            *sim.0.online.borrow_mut() = cpus("0-3");
            sim.0.resets_cpus.set(resets);
            sim
        };
        let mut met = [false; 2];
        for k in 1.. {
            let sim = new();
            let ended = sim.killed_at(k, |s| s.apply(&moves).map(drop));
            met[0] |= !sim.empty_groups().is_empty();
            assert!([&original, &after].contains(&&recovered(&sim).0), "killed at {k}");
            if ended.is_some() {
                break;
            }
        }
        for k in 1.. {
            let sim = new();
            sim.apply(&moves).unwrap();
            let ended = sim.killed_at(k, |s| s.engine().rollback(&Rollback::default()).map(drop));
            met[1] |= !sim.empty_groups().is_empty();
            assert!([&original, &after].contains(&&recovered(&sim).0), "killed at {k}");
            if ended.is_some() {
                break;
            }
        }
        assert_eq!(met, [true, true]);
    }
}

/// Nothing is left to be put back then, but the group is there.
#[test]
fn the_group_of_a_vm_that_ended_is_removed() {
    let group = Resource::Group(task(1));
    let wanted =
        [(group.clone(), Value::Group("/teiji/vm-1".into())), (Resource::HaltPoll, Value::Nanoseconds(0))];
    let moves = plan(&original(), &wanted);
    // While it is applied to.
    let sim = Sim::new(original());
    let error = sim.apply_within(&moves, 1, &mut |progress| {
        if let Progress::Waiting { .. } = progress {
            sim.0.settings.borrow_mut().remove(&group);
        }
    });
    assert!(matches!(error, Err(Error::Undone { .. })), "{error:?}");
    assert_eq!(sim.empty_groups(), [].into());
    // Later.
    let sim = Sim::new(original());
    sim.apply(&moves).unwrap();
    sim.0.settings.borrow_mut().remove(&group);
    assert_eq!(sim.empty_groups().len(), 1);
    sim.apply(&Plan::default()).unwrap();
    assert_eq!(sim.empty_groups(), [].into());
}

#[test]
fn killed_anywhere_while_waiting_then_confirmed() {
    let mut seen = [false; 2];
    for k in 1.. {
        let Case { sim, plan, before, after } = case();
        if let Some(result) = sim.killed_at(k, |s| s.apply_within(&plan, 1, &mut |_| {})) {
            let text = result.unwrap_err().to_string();
            assert_eq!(text, "nobody confirmed within 1s; what was done has been undone");
            assert_eq!(state(&sim), before);
            assert!(sim.is_clean());
            break;
        }
        assert!([&before, &after].contains(&&recovered(&sim)));
        for j in 1.. {
            let copy = sim.copy();
            let confirmed = copy.killed_at(j, |s| s.engine().confirm());
            let found = recovered(&copy);
            match confirmed {
                None => assert!([&before, &after].contains(&&found), "killed at {k}, then at {j} of confirm"),
                Some(Ok(_)) => assert_eq!(found, after, "killed at {k}"),
                Some(Err(_)) => assert_eq!(found, before, "killed at {k}"),
            }
            if let Some(result) = confirmed {
                seen[usize::from(result.is_ok())] = true;
                break;
            }
        }
    }
    assert_eq!(seen, [true, true]);
}

/// Which operations of a run fail, by each way to fail.
fn failures(operations: u64) -> impl Iterator<Item = Disk> {
    (1..=operations).flat_map(|n| [Disk::Full(n), Disk::Fails(n), Disk::Lies(n)])
}

/// Counts from here on.
fn operations_of(run: impl FnOnce(&Sim)) -> u64 {
    let sim = case().sim;
    let before = sim.operations();
    run(&sim);
    sim.operations() - before
}

#[test]
fn the_disk_fails_at_every_operation_of_apply() {
    let count = operations_of(|sim| drop(sim.apply(&case().plan).unwrap()));
    assert!(count >= 9, "{count}");
    for disk in failures(count) {
        let at = |sim: &Sim| match disk {
            Disk::Full(n) => Disk::Full(n + sim.operations()),
            Disk::Fails(n) => Disk::Fails(n + sim.operations()),
            Disk::Lies(n) => Disk::Lies(n + sim.operations()),
            Disk::Fine => Disk::Fine,
        };
        let Case { sim, plan, before, after } = case();
        sim.0.disk.set(at(&sim));
        let result = sim.apply(&plan);
        match (&result, disk) {
            // Undone without room on the disk, and nothing left behind.
            (Err(Error::Undone { .. } | Error::State { .. }), Disk::Full(_)) => {
                assert!(sim.is_clean(), "{disk:?}");
                assert_eq!(state(&sim), before, "{disk:?}");
            }
            (Err(Error::Undone { .. } | Error::State { .. } | Error::Unfinished { .. }) | Ok(_), _) => {}
            (Err(error), _) => panic!("{disk:?}: {error}"),
        }
        sim.0.disk.set(Disk::Fine);
        let wanted = if matches!(result, Ok(_) | Err(Error::Unfinished { .. })) { &after } else { &before };
        assert_eq!(recovered(&sim), *wanted, "{disk:?}: {result:?}");

        // Killed while that failure is being dealt with: one or the other, never between.
        for k in 1.. {
            let Case { sim, plan, .. } = case();
            sim.0.disk.set(at(&sim));
            let ended = sim.killed_at(k, |s| s.apply(&plan).is_ok());
            sim.0.disk.set(Disk::Fine);
            let found = recovered(&sim);
            assert!([&before, &after].contains(&&found), "{disk:?}, killed at {k}: {found:?}");
            if ended.is_some() {
                break;
            }
        }
    }
}

#[test]
fn the_disk_fails_at_every_operation_of_rollback() {
    let count = operations_of(|sim| drop(sim.engine().rollback(&Rollback::default()).unwrap()));
    assert!(count >= 4, "{count}");
    for disk in failures(count) {
        let Case { sim, before, .. } = case();
        let past = sim.operations();
        sim.0.disk.set(match disk {
            Disk::Full(n) => Disk::Full(n + past),
            Disk::Fails(n) => Disk::Fails(n + past),
            Disk::Lies(n) => Disk::Lies(n + past),
            Disk::Fine => Disk::Fine,
        });
        let result = sim.engine().rollback(&Rollback::default()).map(drop);
        sim.0.disk.set(Disk::Fine);
        let wanted = match result {
            Ok(()) | Err(Error::Unfinished { .. }) => (original(), Holds::new()),
            Err(Error::State { .. }) => before,
            Err(error) => panic!("{disk:?}: {error}"),
        };
        assert_eq!(recovered(&sim), wanted, "{disk:?}");
    }
}
