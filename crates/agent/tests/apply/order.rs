//! Each setting goes back before those that need it: after a failure, and in a rollback.

use crate::common::{cpus, existing, task};
use crate::sim::{Settings, Sim, plan};
use std::collections::BTreeMap;
use std::time::Duration;
use teiji_agent::apply::{Error, Rollback};
use teiji_model::plan::Held;
use teiji_model::qdisc::{DeadlineQdisc, Device, RootQdisc, Scheduler};
use teiji_model::resource::{Resource, Scheduling, Value};

const SCHED_DEADLINE: Value =
    Value::Scheduling(Scheduling::Deadline { runtime: 1_000_000, deadline: 10_000_000, period: 10_000_000 });
const FIFO: Value = Value::Scheduling(Scheduling::Fifo { priority: 10 });
const DEFAULT: Value = Value::Scheduling(Scheduling::Other { nice: 0 });

fn may_run() -> Resource {
    Resource::ThreadCpus(task(1))
}

fn scheduling() -> Resource {
    Resource::ThreadScheduling(task(1))
}

fn device() -> Device {
    Device { name: "eth0".into(), index: 2 }
}

fn deadlines() -> Value {
    let channels = BTreeMap::new();
    let deadlines =
        DeadlineQdisc { scheduler: Scheduler::Edf, rate: 1_000_000_000, slack: 0, realtime_max: 0, channels };
    Value::RootQdisc(RootQdisc::Deadline(Box::new(deadlines)))
}

/// Applies the changes one by one, seconds apart if asked to, and takes them back by a rollback and by a failure.
fn there_and_back(before: &Settings, changes: &[(Resource, Value)]) {
    let new = || {
        let sim = Sim::new(before.clone());
        *sim.0.online.borrow_mut() = cpus("0-3");
        sim.count_on(&device(), &deadlines(), 4096);
        sim
    };
    for apart in [false, true] {
        let sim = new();
        let parts = if apart { 1 } else { changes.len() };
        for part in changes.chunks(parts) {
            sim.apply(&plan(&sim.settings(), part)).unwrap();
            sim.0.now.set(sim.0.now.get() + Duration::from_secs(5));
        }
        let done = sim.engine().rollback(&Rollback::default()).unwrap();
        assert_eq!((done.restored, done.messages), (changes.len(), Vec::new()));
        assert_eq!((&sim.settings(), sim.held()), (before, Held::default()));
    }

    let sim = new();
    let last = (Resource::HaltPoll, Value::Nanoseconds(2));
    sim.0.refused.borrow_mut().push(last.1.clone());
    let all: Vec<(Resource, Value)> = changes.iter().cloned().chain([last]).collect();
    let error = sim.apply(&plan(before, &all)).unwrap_err();
    assert!(matches!(error, Error::Undone { .. }), "{error:?}");
    assert_eq!(sim.settings(), *before);
}

fn thread(scheduling_is: Value, cpus_are: &str) -> Settings {
    BTreeMap::from([
        (Resource::HaltPoll, Value::Nanoseconds(1)),
        (scheduling(), scheduling_is),
        (may_run(), Value::Cpus(cpus(cpus_are))),
    ])
}

#[test]
fn a_thread_is_let_onto_all_cpus_before_it_has_a_deadline_again() {
    let changes = [(scheduling(), FIFO), (may_run(), Value::Cpus(cpus("2")))];
    there_and_back(&thread(SCHED_DEADLINE, "0-3"), &changes);
}

#[test]
fn a_thread_loses_its_deadline_before_it_is_pinned_again() {
    for before in [DEFAULT, FIFO] {
        let changes = [(may_run(), Value::Cpus(cpus("0-3"))), (scheduling(), SCHED_DEADLINE)];
        there_and_back(&thread(before, "1"), &changes);
    }
}

#[test]
fn segments_grow_when_the_queue_that_counts_on_them_is_gone() {
    let before = BTreeMap::from([
        (Resource::HaltPoll, Value::Nanoseconds(1)),
        (Resource::RootQdisc(device()), Value::RootQdisc(existing())),
        (Resource::SegmentSize(device()), Value::Bytes(65_536)),
    ]);
    let changes =
        [(Resource::SegmentSize(device()), Value::Bytes(4096)), (Resource::RootQdisc(device()), deadlines())];
    there_and_back(&before, &changes);
}

/// The queue that teiji has set stays, so it still counts on small segments.
#[test]
fn segments_stay_small_while_the_former_queue_cannot_be_restored() {
    let segments = Resource::SegmentSize(device());
    let before: Settings = BTreeMap::from([
        (Resource::RootQdisc(device()), Value::RootQdisc(existing())),
        (segments.clone(), Value::Bytes(65_536)),
    ]);
    let sim = Sim::new(before.clone());
    sim.count_on(&device(), &deadlines(), 4096);
    let changes = [(segments.clone(), Value::Bytes(4096)), (Resource::RootQdisc(device()), deadlines())];
    sim.apply(&plan(&before, &changes)).unwrap();
    sim.0.refused.borrow_mut().push(Value::RootQdisc(existing()));
    let error = sim.engine().rollback(&Rollback::default()).unwrap_err();
    assert!(
        error.to_string().contains("gso_max_size of eth0 (sip1): it waits for root qdisc of eth0 (sip1)"),
        "{error}"
    );
    assert_eq!(sim.settings()[&segments], Value::Bytes(4096));
    sim.0.refused.borrow_mut().clear();
    assert_eq!(sim.engine().rollback(&Rollback::default()).unwrap().messages.len(), 1);
    assert_eq!((sim.settings(), sim.held()), (before, Held::default()));
}

/// A worker below its busy vCPU would never run.
#[test]
fn a_worker_stays_above_its_vcpu_while_that_cannot_be_lowered() {
    let (vcpu, worker) = (Resource::ThreadScheduling(task(1)), Resource::ThreadScheduling(task(2)));
    let before: Settings = BTreeMap::from([(vcpu.clone(), DEFAULT), (worker.clone(), DEFAULT)]);
    let above = Value::Scheduling(Scheduling::Fifo { priority: 11 });
    let sim = Sim::new(before.clone());
    sim.apply(&plan(&before, &[(worker.clone(), above.clone()), (vcpu.clone(), FIFO)])).unwrap();
    *sim.0.fails.borrow_mut() = Some(vcpu.clone());
    let error = sim.engine().rollback(&Rollback::default()).unwrap_err();
    assert!(matches!(&error, Error::Unrestored { failed, .. } if failed.len() == 2), "{error}");
    assert_eq!((&sim.settings()[&vcpu], &sim.settings()[&worker]), (&FIFO, &above));
    sim.engine().rollback(&Rollback::default()).unwrap();
    assert_eq!((sim.settings(), sim.held()), (before, Held::default()));
}
