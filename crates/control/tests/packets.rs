//! VMs whose threads go by the deadlines of their packets: what a plan asks for, and what it refuses.
#![allow(clippy::unwrap_used)]

mod common;

use common::{at, cpus, host, task, vm};
use teiji_control::plan::plan;
use teiji_model::observed::{DeadlineSupport, Observed, SchedExt};
use teiji_model::plan::{Held, Hold, PacketVm, Plan};
use teiji_model::policy::{PacketClass, Policy, Problem, VmClass, VmPolicy};
use teiji_model::resource::{Resource, Scheduling, Value};

const MS: u64 = 1_000_000;

fn section(name: &str, runtime: u64, period: u64, pinned: Option<&str>) -> VmPolicy {
    let class = VmClass::Packets(PacketClass { runtime, deadline: period, period });
    VmPolicy {
        name: at(name.to_owned(), 1),
        class: Some(at(class, 2)),
        vcpu_cpus: pinned.map(|list| at(cpus(list), 3)),
        worker_cpus: pinned.map(|list| at(cpus(list), 4)),
        weight: None,
        quota: None,
    }
}

/// `a` (pid 100; vCPUs 101, 102; worker 103) and `b` (pid 200; vCPU 201, worker 202) on CPUs 0 to 3 of a host with an agent.
fn two(sched_ext: SchedExt) -> Observed {
    let vms = vec![vm("a", 100, 2, 1, None, false), vm("b", 200, 1, 1, None, false)];
    Observed { sched_ext, ..host("0-3", vms, Vec::new()) }
}

fn planned(sections: Vec<VmPolicy>, on: &Observed) -> Result<Plan, Vec<Problem>> {
    plan(&Policy { vms: sections, ..Policy::default() }, on, &Held::default())
}

fn classes(plan: &Plan) -> Vec<(u32, Scheduling)> {
    let of = |(setting, value): (&Resource, &Value)| match (setting, value) {
        (Resource::ThreadScheduling(task), Value::Scheduling(class)) => Some((task.id, *class)),
        _ => None,
    };
    let mut all: Vec<_> = plan.steps.iter().filter_map(|step| of((&step.setting, &step.wanted))).collect();
    all.sort_by_key(|(id, _)| *id);
    all
}

#[test]
fn its_threads_are_given_to_the_scheduler_of_the_agent() {
    let plan = planned(vec![section("a", 2 * MS, 10 * MS, None)], &two(SchedExt::Usable)).unwrap();
    let ext = Scheduling::Ext { nice: 0 };
    assert_eq!(classes(&plan), [(101, ext), (102, ext), (103, ext)]);
    let class = PacketClass { runtime: 2 * MS, deadline: 10 * MS, period: 10 * MS };
    assert_eq!(plan.packet_vms, [PacketVm { name: "a".into(), process: task(100), class }]);
    assert!(plan.first.is_empty() && plan.warnings.is_empty(), "{plan:?}");
    assert!(plan.steps[0].cost.contains("up to 2.00 ms of every 10.0 ms"), "{}", plan.steps[0].cost);
}

#[test]
fn without_an_agent_it_says_to_start_one() {
    // Whatever keeps the deadlines of links.
    for deadline_support in [DeadlineSupport::Edf, DeadlineSupport::Hfsc("no BPF qdiscs".into())] {
        let on = Observed { deadline_support, ..two(SchedExt::NoAgent("start the agent".into())) };
        let sections = vec![section("a", MS, 10 * MS, None), section("b", MS, 10 * MS, None)];
        let plan = planned(sections, &on).unwrap();
        assert_eq!((&plan.first[..], plan.packet_vms.len()), (&["start the agent".to_owned()][..], 2));
    }
}

#[test]
fn another_scheduler_of_sched_ext_is_not_replaced() {
    let taken = two(SchedExt::Taken("lavd\u{1b}".into()));
    let problems = planned(vec![section("a", MS, 10 * MS, None)], &taken).unwrap_err();
    let text = problems[0].to_string();
    assert!(text.starts_with("p.toml:2:1: ") && text.contains("`lavd\\u{1b}` is in use"), "{text}");
}

#[test]
fn where_the_kernel_cannot_another_class_takes_its_place() {
    let old = two(SchedExt::None("sched_ext as of Linux 6.19 is missing".into()));
    let plan = planned(vec![section("a", 3 * MS, 10 * MS, None)], &old).unwrap();
    // A third of the runtime for each thread.
    let deadline = Scheduling::Deadline { runtime: MS, deadline: 10 * MS, period: 10 * MS };
    assert_eq!(classes(&plan), [(101, deadline), (102, deadline), (103, deadline)]);
    assert!(plan.packet_vms.is_empty());
    let [warning] = &plan.warnings[..] else { panic!("{:?}", plan.warnings) };
    assert!(warning.contains("(sched_ext as of Linux 6.19 is missing): deadline: 1.00 ms"), "{warning}");
    // Linux does not pin threads of SCHED_DEADLINE.
    let pinned = planned(vec![section("a", 3 * MS, 10 * MS, Some("1-2"))], &old).unwrap();
    let fifo = |priority| Scheduling::Fifo { priority };
    assert_eq!(classes(&pinned), [(101, fifo(10)), (102, fifo(10)), (103, fifo(11))]);
    // The guard of real-time classes counts as well.
    let unguarded = Observed { realtime_guard: None, ..old };
    let problems = planned(vec![section("a", 3 * MS, 10 * MS, Some("1-2"))], &unguarded).unwrap_err();
    assert!(problems[0].message.contains("would starve the host"), "{problems:?}");
}

/// The pins of a policy before are taken back by this one.
#[test]
fn where_the_kernel_cannot_the_cpus_after_the_plan_count() {
    let mut old = two(SchedExt::None("too old".into()));
    let mut held = Held::default();
    for id in [101, 102, 103] {
        let setting = Resource::ThreadCpus(task(id));
        let [original, value] = ["0-3", "1-2"].map(|list| Value::Cpus(cpus(list)));
        old.settings.insert(setting.clone(), value.clone());
        let hold = Hold { whose: "it".into(), original, value, since: 1, reason: "vm.a.vcpu_cpus".into() };
        held.settings.insert(setting, hold);
    }
    let policy = Policy { vms: vec![section("a", 3 * MS, 10 * MS, None)], ..Policy::default() };
    let plan = plan(&policy, &old, &held).unwrap();
    assert!(classes(&plan).iter().all(|(_, class)| matches!(class, Scheduling::Deadline { .. })), "{plan:?}");
}

#[test]
fn a_vm_whose_threads_are_not_there_yet_is_no_problem() {
    let vms = vec![vm("a", 100, 0, 0, None, false)];
    let on = Observed { vms, ..two(SchedExt::Usable) };
    assert!(planned(vec![section("a", 5 * MS, 10 * MS, None)], &on).is_ok());
}

/// An agent leaves out what a problem is about: not a VM that had its promise before the other one came.
#[test]
fn the_vm_that_came_last_does_not_fit() {
    let mut sections = ["b", "a"].map(|name| section(name, 5 * MS, 10 * MS, Some("1")));
    sections[0].class.as_mut().unwrap().location.line = 9;
    let problems = planned(sections.into(), &two(SchedExt::Usable)).unwrap_err();
    assert_eq!(problems.iter().map(|problem| problem.location.line).collect::<Vec<_>>(), [9]);
}

#[test]
fn there_is_place_for_so_many_vms_and_threads() {
    let many = |count: u32, vcpus: u32| {
        let names: Vec<String> = (0..count).map(|n| format!("v{n}")).collect();
        let vms = names.iter().zip(0..).map(|(name, n)| vm(name, 1000 * (n + 1), vcpus, 1, None, false));
        let on = Observed { sched_ext: SchedExt::Usable, ..host("0-63", vms.collect(), Vec::new()) };
        planned(names.iter().map(|name| section(name, MS, 100 * MS, None)).collect(), &on)
    };
    assert!(many(64, 3).is_ok());
    for (count, vcpus) in [(65, 1), (64, 4)] {
        let problems = many(count, vcpus).unwrap_err();
        assert!(problems[0].message.contains("64 VMs of this class with 256 threads"), "{problems:?}");
    }
}

#[test]
fn more_than_nine_tenths_of_the_cpus_cannot_be_promised() {
    let vms = [("a", 100), ("b", 200), ("c", 300)].map(|(name, pid)| vm(name, pid, 1, 1, None, false));
    let on = Observed { sched_ext: SchedExt::Usable, ..host("0-3", vms.into(), Vec::new()) };
    let asked = |of: &[(u64, &str)]| {
        let sections = of.iter().zip(["a", "b", "c"]);
        let sections =
            sections.map(|((runtime, cpus), name)| section(name, runtime * MS, 10 * MS, Some(cpus)));
        planned(sections.collect(), &on)
    };
    assert!(asked(&[(9, "1"), (9, "2")]).is_ok() && asked(&[(9, "0-1"), (9, "0-1")]).is_ok());
    for (of, what) in [
        (&[(5, "1"), (5, "1")][..], "a, b may run on CPU 1 only and ask for 1.00 CPUs"),
        (&[(10, "1"), (1, "2")], "a may run on CPU 1 only"),
        // Each of them fits, and all of them do not fit where they all may run.
        (&[(9, "1"), (10, "1-2")], "a, b may run on CPUs 1-2 only and ask for 1.90"),
        // Each pair fits, too.
        (&[(10, "0-1"), (10, "1-2"), (10, "0,2")], "may run on CPUs 0-2 only and ask for 3.00"),
    ] {
        let problems = asked(of).unwrap_err();
        assert!(problems.iter().any(|problem| problem.message.contains(what)), "{what}: {problems:?}");
    }
    let short = planned(vec![section("a", 99_999, 10 * MS, None)], &on).unwrap_err();
    assert!(short[0].message.contains("a runtime below 100 µs cannot be kept"), "{short:?}");
}
