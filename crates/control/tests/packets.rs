//! VMs whose threads go by the deadlines of their packets: what a plan asks for, and what it refuses.
#![allow(clippy::unwrap_used)]

mod common;

use common::{at, cpus, host, task, vm};
use teiji_control::plan::plan;
use teiji_model::observed::{DeadlineSupport, Observed, SchedExt};
use teiji_model::plan::{Held, PacketVm, Plan};
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
    Observed { sched_ext, deadline_support: DeadlineSupport::Edf, ..host("0-3", vms, Vec::new()) }
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
    let no_agent = DeadlineSupport::NoAgent("start the agent".into());
    let on = Observed { deadline_support: no_agent, ..two(SchedExt::Usable) };
    let sections = vec![section("a", MS, 10 * MS, None), section("b", MS, 10 * MS, None)];
    assert_eq!(planned(sections, &on).unwrap().first, ["start the agent"]);
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

#[test]
fn more_than_nine_tenths_of_the_cpus_cannot_be_promised() {
    let on = two(SchedExt::Usable);
    let both = |a: u64, b: u64, cpus: [Option<&str>; 2]| {
        planned(vec![section("a", a * MS, 10 * MS, cpus[0]), section("b", b * MS, 10 * MS, cpus[1])], &on)
    };
    assert!(both(9, 9, [Some("1"), Some("2")]).is_ok());
    assert!(both(18, 18, [None, None]).is_ok());
    for (a, b, on, what) in [
        (5, 5, [Some("1"), Some("1")], "a, b may run on CPU 1 only and ask for 1.00 CPUs"),
        (10, 1, [Some("1"), Some("2")], "a may run on CPU 1 only"),
        // Each of them fits, and all of them do not fit where they all may run.
        (9, 10, [Some("1"), Some("1-2")], "a, b may run on CPUs 1-2 only and ask for 1.90"),
        (20, 20, [None, None], "CPUs 0-3"),
    ] {
        let problems = both(a, b, on).unwrap_err();
        assert!(problems.iter().any(|problem| problem.message.contains(what)), "{what}: {problems:?}");
    }
    let short = planned(vec![section("a", 99_999, 10 * MS, None)], &on).unwrap_err();
    assert!(short[0].message.contains("a runtime below 100 µs cannot be kept"), "{short:?}");
}
