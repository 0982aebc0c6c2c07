//! Resources that are not changed by one write, and what one change disturbs of another.

use crate::common::{cpus, task};
use crate::sim::{Settings, Sim, plan};
use std::collections::BTreeMap;
use teiji_agent::apply::{Error, Message, Progress, Rollback};
use teiji_model::plan::Held;
use teiji_model::resource::{Class, Resource, ResourceKind, Value};

const POLL: Resource = Resource::HaltPoll;

fn ns(ns: u64) -> Value {
    Value::Nanoseconds(ns)
}

/// A host whose halt polling is of this class, and was applied.
fn applied(class: Class) -> (Settings, Sim) {
    let before = BTreeMap::from([(POLL, ns(1)), (Resource::CpuLatency(0), Value::Bytes(1))]);
    let sim = Sim::new(before.clone());
    sim.0.classes.borrow_mut().insert(ResourceKind::HaltPoll, class);
    sim.apply(&plan(&before, &[(POLL, ns(2)), (Resource::CpuLatency(0), Value::Bytes(2))])).unwrap();
    (before, sim)
}

#[test]
fn what_a_controller_wrote_is_nobody_elses_change() {
    let (before, sim) = applied(Class::Controlled);
    sim.set(POLL, ns(77));
    assert!(sim.engine().status().unwrap().held.iter().all(|held| !held.changed));
    let done = sim.engine().rollback(&Rollback::default()).unwrap();
    assert_eq!((done.restored, done.messages), (2, Vec::new()));
    assert_eq!((sim.settings(), sim.held()), (before, Held::default()));

    let (_, atomic) = applied(Class::Atomic);
    atomic.set(POLL, ns(77));
    let done = atomic.engine().rollback(&Rollback::default()).unwrap();
    assert!(matches!(done.messages[..], [Message::Foreign { .. }]), "{:?}", done.messages);
    assert_eq!(atomic.settings()[&POLL], ns(77));
}

#[test]
fn an_operation_goes_back_or_stays_where_it_has_stopped() {
    let (before, sim) = applied(Class::Operation);
    sim.set(POLL, ns(77)); // halfway
    sim.engine().rollback(&Rollback::default()).unwrap();
    assert_eq!(sim.settings(), before);

    let (_, sim) = applied(Class::Operation);
    sim.set(POLL, ns(77));
    sim.0.refused.borrow_mut().push(ns(1));
    let done = sim.engine().rollback(&Rollback::default()).unwrap();
    assert!(matches!(done.messages[..], [Message::Stopped { .. }]), "{:?}", done.messages);
    assert_eq!((sim.settings()[&POLL].clone(), sim.held()), (ns(77), Held::default()));

    let (_, atomic) = applied(Class::Atomic);
    atomic.0.refused.borrow_mut().push(ns(1));
    assert!(matches!(atomic.engine().rollback(&Rollback::default()), Err(Error::Unrestored { .. })));
}

/// Before Linux 6.2 a move into another group lets threads run on all CPUs.
#[test]
fn affinity_that_a_move_resets_is_put_back_after_it() {
    let group = |path: &str| Value::Group(path.into());
    let (moved, pinned) = (Resource::Group(task(1)), Resource::ThreadCpus(task(2)));
    let before = BTreeMap::from([
        (moved.clone(), group("/user.slice")),
        (pinned.clone(), Value::Cpus(cpus("1"))),
        (POLL, ns(1)),
    ]);
    let changes = [(moved, group("/teiji/vm-1")), (pinned.clone(), Value::Cpus(cpus("2")))];
    let new = || {
        let sim = Sim::new(before.clone());
        *sim.0.online.borrow_mut() = cpus("0-3");
        sim.0.resets_cpus.set(true);
        sim
    };
    let sim = new();
    sim.apply(&plan(&before, &changes)).unwrap();
    assert_eq!(sim.settings()[&pinned], Value::Cpus(cpus("2")));
    let done = sim.engine().rollback(&Rollback::default()).unwrap();
    assert_eq!((done.restored, done.messages), (2, Vec::new()));
    assert_eq!(sim.settings(), before);

    let sim = new();
    sim.0.refused.borrow_mut().push(ns(2));
    let all: Vec<_> = changes.into_iter().chain([(POLL, ns(2))]).collect();
    let failed = sim.apply(&plan(&before, &all)).unwrap_err();
    assert!(matches!(&failed, Error::Undone { messages, .. } if messages.is_empty()), "{failed}");
    assert_eq!(sim.settings(), before);

    // Somebody else's change is still told from that.
    let sim = new();
    sim.apply(&plan(&before, &all[..2])).unwrap();
    sim.set(pinned.clone(), Value::Cpus(cpus("3")));
    let done = sim.engine().rollback(&Rollback::default()).unwrap();
    assert!(matches!(done.messages[..], [Message::Foreign { .. }]), "{:?}", done.messages);
}

/// That the controller happens to be at the original for an instant means nothing.
#[test]
fn a_controlled_resource_stays_held_whatever_its_value() {
    let (before, sim) = applied(Class::Controlled);
    sim.set(POLL, ns(1));
    sim.apply(&plan(&sim.settings(), &[(Resource::CpuLatency(0), Value::Bytes(3))])).unwrap();
    sim.set(POLL, ns(77));
    assert_eq!(sim.engine().rollback(&Rollback::default()).unwrap().messages, []);
    assert_eq!((sim.settings(), sim.held()), (before, Held::default()));
}

/// A controller may begin where the resource is.
#[test]
fn a_controlled_resource_that_begins_at_the_original_is_held() {
    let before = BTreeMap::from([(POLL, ns(1))]);
    for class in [Class::Controlled, Class::Operation] {
        let sim = Sim::new(before.clone());
        sim.0.classes.borrow_mut().insert(ResourceKind::HaltPoll, class);
        sim.apply(&plan(&before, &[(POLL, ns(1))])).unwrap();
        sim.set(POLL, ns(77));
        sim.engine().rollback(&Rollback::default()).unwrap();
        assert_eq!((sim.settings(), sim.held()), (before.clone(), Held::default()));
    }
}

#[test]
fn a_controller_may_write_between_plan_and_apply_and_before_the_confirmation() {
    let before = BTreeMap::from([(POLL, ns(1))]);
    let new = || {
        let sim = Sim::new(before.clone());
        sim.0.classes.borrow_mut().insert(ResourceKind::HaltPoll, Class::Controlled);
        sim.set(POLL, ns(77));
        sim
    };
    new().apply(&plan(&before, &[(POLL, ns(2))])).unwrap();

    let changes = plan(&before, &[(POLL, ns(2))]);
    let confirmed = (1..).find_map(|k| {
        let sim = new();
        let mut waits = false;
        let killed = sim.killed_at(k, |s| {
            s.apply_within(&changes, 60, &mut |p| waits |= matches!(p, Progress::Waiting { .. }))
        });
        assert!(killed.is_none(), "it never waited");
        waits.then(|| {
            sim.set(POLL, ns(78));
            sim.engine().confirm().map(drop)
        })
    });
    assert!(matches!(confirmed, Some(Ok(()))), "{confirmed:?}");
}
