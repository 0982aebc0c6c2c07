//! Real-time threads that could starve each other: what is refused, what is warned of, and what is accepted.
#![allow(clippy::unwrap_used)]

mod common;

use common::{at, cpus, host, task, vm};
use teiji_control::plan::plan;
use teiji_model::observed::Observed;
use teiji_model::plan::{Held, Plan};
use teiji_model::policy::{Policy, Problem, VmClass, VmPolicy};
use teiji_model::resource::{Resource, Scheduling, Value};

fn section(name: &str, priority: u8, vcpus: &str, workers: &str) -> VmPolicy {
    VmPolicy {
        name: at(name.to_owned(), 1),
        class: Some(at(VmClass::Threads(Scheduling::Fifo { priority }), 2)),
        vcpu_cpus: Some(at(cpus(vcpus), 3)),
        worker_cpus: Some(at(cpus(workers), 4)),
        weight: None,
        quota: None,
    }
}

/// `a` (pid 100; vCPUs 101, 102; worker 103) and `b` (pid 200; vCPU 201, worker 202) on CPUs 0 to 5.
fn two() -> Observed {
    host("0-5", vec![vm("a", 100, 2, 1, None, false), vm("b", 200, 1, 1, None, false)], Vec::new())
}

fn planned(sections: Vec<VmPolicy>) -> Result<Plan, Vec<Problem>> {
    plan(&Policy { vms: sections, ..Policy::default() }, &two(), &Held::default())
}

#[test]
fn workers_go_above_vcpus() {
    let plan = planned(vec![section("a", 10, "1-2", "1-2")]).unwrap();
    let class = |id: u32| {
        let step = plan.steps.iter().position(|s| s.setting == Resource::ThreadScheduling(task(id)));
        let step = step.unwrap();
        (step, plan.steps[step].wanted.clone())
    };
    let fifo = |priority| Value::Scheduling(Scheduling::Fifo { priority });
    let ([a, b], (worker, above)) = ([101, 102].map(class), class(103));
    assert_eq!((a.1, b.1, above), (fifo(10), fifo(10), fifo(11)));
    assert!(worker < a.0.min(b.0), "no vCPU may hold the worker's CPU before it has its priority");
    // The higher priority is there so that a worker can share CPUs with its own vCPUs.
    assert_eq!(plan.warnings, Vec::<String>::new());
    // The greatest possible priority is that of the workers.
    let most = planned(vec![section("a", 98, "1-2", "1-2")]).unwrap();
    assert!(most.steps.iter().any(|s| s.wanted == fifo(99)));
}

#[test]
fn vcpus_of_one_vm_that_share_a_cpu_are_refused() {
    let problems = planned(vec![section("a", 10, "2", "3")]).unwrap_err();
    let text = problems[0].to_string();
    for part in ["p.toml:3:1: ", "2 real-time vCPUs of a", "fewer CPUs (2)", "vcpu_cpus"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(problems.len(), 1);
    // A single vCPU has no other to wait for.
    assert_eq!(planned(vec![section("b", 10, "2", "2")]).unwrap().warnings, Vec::<String>::new());
    // Ordinary threads do not starve each other.
    let mut fair = section("a", 10, "2", "3");
    fair.class = None;
    assert!(planned(vec![fair]).is_ok());
}

#[test]
fn vms_that_may_starve_each_other_are_warned_of() {
    let warned = |a: VmPolicy, b: VmPolicy| planned(vec![a, b]).unwrap().warnings;
    // b's vCPU shares CPU 1 with one of a's vCPUs and has the same priority: each of the three may starve.
    let same = warned(section("a", 10, "1-2", "3"), section("b", 10, "1", "4"));
    assert_eq!(
        same,
        [
            "on CPU 1 vCPU 0 of b (FIFO 10) may get no CPU time at all while these are busy: vCPU 0 of a (FIFO 10), \
             vCPU 1 of a (FIFO 10); give them CPUs of their own with vcpu_cpus and worker_cpus",
            "on CPUs 1-2 vCPU 0 of a (FIFO 10), vCPU 1 of a (FIFO 10) may get no CPU time at all while these are \
             busy: vCPU 1 of a (FIFO 10), vCPU 0 of b (FIFO 10), vCPU 0 of a (FIFO 10); give them CPUs of their own \
             with vcpu_cpus and worker_cpus",
        ]
    );
    // A worker with a lower priority than another VM's vCPU on the same CPU: its packets may wait for ever.
    let below = warned(section("a", 20, "1-2", "3"), section("b", 10, "4", "1"));
    assert!(below.len() == 1 && below[0].contains("on CPU 1 vhost worker of b (FIFO 11)"), "{below:?}");
    // If VMs have the same priority, all workers are above all vCPUs: the vCPUs starve if another VM's worker never
    // sleeps.
    let above = warned(section("a", 10, "1-2", "3"), section("b", 10, "4", "1"));
    assert!(above.len() == 1 && above[0].starts_with("on CPUs 1-2 vCPU 0 of a"), "{above:?}");
    // One CPU that is left to a is enough.
    assert_eq!(warned(section("a", 10, "1-3", "5"), section("b", 10, "4", "1")), Vec::<String>::new());
    let apart = warned(section("a", 10, "1-2", "1-2"), section("b", 20, "3", "3"));
    assert_eq!(apart, Vec::<String>::new());
}

/// libvirt's `vcpusched` makes vCPUs real-time threads and leaves the workers ordinary ones.
#[test]
fn an_ordinary_worker_below_its_own_vcpus_is_warned_of() {
    let warned = |vcpus: &str, workers: &str, vms: &[(u32, Scheduling)]| {
        let mut observed = two();
        for (id, scheduling) in vms {
            observed.settings.insert(Resource::ThreadScheduling(task(*id)), Value::Scheduling(*scheduling));
        }
        let ordinary = VmPolicy { class: None, ..section("a", 0, vcpus, workers) };
        plan(&Policy { vms: vec![ordinary], ..Policy::default() }, &observed, &Held::default())
            .unwrap()
            .warnings
    };
    let (fifo, round_robin) = (Scheduling::Fifo { priority: 1 }, Scheduling::RoundRobin { priority: 1 });
    assert_eq!(
        warned("1-2", "2", &[(101, fifo), (102, round_robin)]),
        [
            "on CPU 2 vhost worker of a is ordinary and gets hardly any CPU time while these are busy: vCPU 0 of a (FIFO 1), \
          vCPU 1 of a (round robin 1); give it a CPU of its own with worker_cpus, or give the VM a class, which puts its workers \
          above its vCPUs"
        ]
    );
    assert_eq!(warned("1-2", "1-2", &[(101, fifo), (102, fifo)]).len(), 1);
    // One CPU that is left to the worker is enough, and ordinary vCPUs share theirs.
    let nothing = Vec::<String>::new();
    assert_eq!(warned("1-2", "1-3", &[(101, fifo), (102, fifo)]), nothing);
    assert_eq!(warned("1-2", "1-2", &[(101, fifo)]), nothing);
    assert_eq!(warned("2", "2", &[]), nothing);
    // So does a worker that preempts them.
    assert_eq!(
        warned("1-2", "2", &[(101, fifo), (102, fifo), (103, Scheduling::Fifo { priority: 2 })]),
        nothing
    );
    // Others' real-time threads are no part of this: every ordinary thread waits for them.
    assert_eq!(warned("1-2", "3", &[(201, fifo)]), nothing);
}

#[test]
fn workers_count_among_those_that_could_take_every_cpu() {
    let policy = |workers: &str| Policy { vms: vec![section("b", 10, "0", workers)], ..Policy::default() };
    let observed = host("0-1", vec![vm("b", 200, 1, 1, None, false)], Vec::new());
    let text = plan(&policy("1"), &observed, &Held::default()).unwrap_err()[0].to_string();
    assert!(text.contains("2 real-time threads could take every online CPU (0-1)"), "{text}");
    assert!(plan(&policy("0"), &observed, &Held::default()).is_ok());
}
