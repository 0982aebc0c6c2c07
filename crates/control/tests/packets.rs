//! VMs whose threads go by the deadlines of their packets: what a plan asks for, and what it refuses.
#![allow(clippy::unwrap_used)]

mod common;

use common::{at, cpus, host, task, vm};
use teiji_control::plan::plan;
use teiji_model::host::{DataPlane, Nic};
use teiji_model::observed::{DeadlineSupport, Observed, SchedExt};
use teiji_model::plan::{HandedOver, Held, Hold, KickGuarantee, PacketDeadlines, PacketVm, Plan};
use teiji_model::policy::{ChannelPolicy, PacketClass, Policy, Problem, VmClass, VmPolicy};
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
    let mut vms = vec![vm("a", 100, 2, 1, None, false), vm("b", 200, 1, 1, None, false)];
    vms.iter_mut().for_each(|vm| vm.vm.nics = vec![nic("t0", DataPlane::VhostNet)]);
    Observed { sched_ext, ..host("0-3", vms, Vec::new()) }
}

fn nic(tap: &str, data_plane: DataPlane) -> Nic {
    Nic { tap: tap.into(), ifindex: 3, mac: None, bridge: None, data_plane, queues: 1 }
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
    let why = "vhost worker of a may run on CPUs 0-3: pin it to one (vcpu_cpus, worker_cpus)".to_owned();
    let first = why.replace("vhost worker", "vCPU 0");
    let known = (Some(PacketDeadlines::NotGuaranteed(first)), Some(HandedOver::Unknown(why)));
    let vm =
        PacketVm { name: "a".into(), process: task(100), class, deadlines: known.0, handed_over: known.1 };
    assert_eq!(plan.packet_vms, [vm]);
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
    assert!(asked(&[(8, "1"), (8, "2")]).is_ok() && asked(&[(9, "0-1"), (9, "0-1")]).is_ok());
    for (of, what) in [
        // Each of them fits, and all of them do not fit where they all may run.
        (&[(8, "1"), (10, "1-2"), (1, "1-2")][..], "a, b, c may run on CPUs 1-2 only and ask for 1.90"),
        // Each pair fits, too.
        (&[(10, "0-1"), (10, "1-2"), (10, "0,2")], "may run on CPUs 0-2 only and ask for 3.00"),
    ] {
        let problems = asked(of).unwrap_err();
        assert!(problems.iter().any(|problem| problem.message.contains(what)), "{what}: {problems:?}");
    }
    let short = planned(vec![section("a", 99_999, 10 * MS, None)], &on).unwrap_err();
    assert!(short[0].message.contains("a runtime below 100 µs cannot be kept"), "{short:?}");
}

/// Of `a`, `b` with these (runtime, deadline, period, CPUs) in ms. All threads of each are on the same CPUs, so the same is known of
/// deadlines and of how soon frames are handed over.
fn deadlines(of: [(u64, u64, u64, &str); 2]) -> Result<Vec<Option<HandedOver>>, Vec<Problem>> {
    let sections = of.into_iter().zip(["a", "b"]).map(|((runtime, deadline, period, cpus), name)| {
        let class = PacketClass { runtime: runtime * MS, deadline: deadline * MS, period: period * MS };
        VmPolicy {
            class: Some(at(VmClass::Packets(class), 2)),
            ..section(name, MS, MS, (!cpus.is_empty()).then_some(cpus))
        }
    });
    let plan = planned(sections.collect(), &two(SchedExt::Usable))?;
    for (vm, (.., cpu)) in plan.packet_vms.iter().zip(of) {
        let guaranteed = cpu.parse().ok().map(|cpu| PacketDeadlines::Guaranteed { cpu });
        match &vm.handed_over {
            Some(HandedOver::Within(_)) => assert_eq!(vm.deadlines, guaranteed),
            _ => assert!(matches!(vm.deadlines, Some(PacketDeadlines::NotGuaranteed(_))), "{vm:?}"),
        }
    }
    Ok(plan.packet_vms.into_iter().map(|vm| vm.handed_over).collect())
}

#[test]
fn deadlines_on_one_cpu_are_compared_exactly() {
    let within = |ms| Some(HandedOver::Within(ms * MS));
    assert_eq!(deadlines([(2, 3, 20, "1"), (2, 5, 20, "1")]).unwrap(), [within(6), within(10)]);
    // 4 ms, and 0.1 ms until a CPU gives way, do not fit into 4 ms.
    let problems = deadlines([(2, 3, 20, "1"), (2, 4, 20, "1")]).unwrap_err();
    let what = "a, b on CPU 1 may need 4.20 ms of it within 4.00 ms, as each may begin or end 100 µs late, but it gives 4.00 ms";
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].message.starts_with(what), "{problems:?}");
    let problems = deadlines([(5, 10, 10, "1"), (5, 10, 10, "1")]).unwrap_err();
    let what = "may need 106.7 % of it (runtime in 15 of 16 parts of the period), but less than 90 % can be promised";
    assert!(problems.len() == 1 && problems[0].message.contains(what), "{problems:?}");
    // Each on a CPU of its own.
    assert_eq!(deadlines([(2, 3, 20, "1"), (2, 4, 20, "2")]).unwrap(), [within(6), within(8)]);
}

#[test]
fn without_a_cpu_for_its_threads_alone_nothing_is_known_of_deadlines() {
    let unknown = |of: &Option<HandedOver>, what: &str| match of {
        Some(HandedOver::Unknown(why)) => assert!(why.contains(what), "{why}"),
        other => panic!("{other:?}"),
    };
    // Also of the one that is pinned: the other may come there.
    let known = deadlines([(2, 3, 20, "1"), (2, 5, 20, "")]).unwrap();
    unknown(&known[0], "vCPU 0 of b may run on CPUs 0-3");
    unknown(&known[1], "vhost worker of b may run on CPUs 0-3");
    // Real-time threads of another VM.
    let mut sections = vec![section("a", 2 * MS, 10 * MS, Some("1")), section("b", MS, MS, Some("1-2"))];
    sections[1].class = Some(at(VmClass::Threads(Scheduling::Fifo { priority: 10 }), 9));
    let plan = planned(sections, &two(SchedExt::Usable)).unwrap();
    unknown(&plan.packet_vms[0].handed_over, "vCPU 0 of b is a real-time thread");
    // One that shares its CPU with a VM that has another one, too: not refused, as it is not known to be too much.
    let mut sections =
        vec![section("a", 3 * MS, 10 * MS, Some("1")), section("b", 5 * MS, 10 * MS, Some("1"))];
    sections[0].worker_cpus = Some(at(cpus("2"), 4));
    let plan = planned(sections, &two(SchedExt::Usable)).unwrap();
    assert_eq!(plan.packet_vms[0].handed_over, Some(HandedOver::Within(20 * MS)));
    // Its worker's deadlines are kept, but it may wake the vCPU on the other CPU late.
    assert!(matches!(&plan.packet_vms[0].deadlines, Some(PacketDeadlines::NotGuaranteed(_))), "{plan:?}");
    unknown(&plan.packet_vms[1].handed_over, "a, b on CPU 1 may need");
    // Without a worker.
    let on = Observed { vms: vec![vm("a", 100, 1, 0, None, false)], ..two(SchedExt::Usable) };
    let plan = planned(vec![section("a", 2 * MS, 10 * MS, Some("1"))], &on).unwrap();
    unknown(&plan.packet_vms[0].handed_over, "it has no vhost worker");
    assert!(matches!(&plan.packet_vms[0].deadlines, Some(PacketDeadlines::NotGuaranteed(_))), "{plan:?}");
}

#[test]
fn channels_have_a_bound_from_the_kick_of_their_vm() {
    let mut nic = common::nic("eth0", Vec::new());
    nic.guests = true;
    let vms = vec![vm("a", 100, 1, 1, None, false), vm("b", 200, 1, 1, None, false)];
    let on = Observed { sched_ext: SchedExt::Usable, ..host("0-3", vms, vec![nic]) };
    // 1 Mbit/s are 2,500 bytes in 20 ms.
    let of = |name: &str, line, port, vm: Option<&str>, burst| ChannelPolicy {
        vm: vm.map(|vm| at(vm.to_owned(), line)),
        burst: Some(at(burst, line)),
        ..common::channel(name, line, port, 20 * MS, 1_000_000)
    };
    let channels = vec![
        of("pid", 20, 1, Some("pid:100"), 2584),
        of("small", 30, 2, Some("a"), 2583),
        of("other", 40, 3, Some("b"), 4000),
        of("none", 50, 4, Some("c"), 4000),
        of("unsaid", 60, 5, None, 4000),
    ];
    let mut link = common::link("eth0", 10);
    link.max_packet = Some(at(1514, 11));
    let policy = Policy {
        vms: vec![section("a", 2 * MS, 10 * MS, Some("1"))],
        links: vec![link],
        channels,
        ..Policy::default()
    };
    let plan = plan(&policy, &on, &Held::default()).unwrap();
    let of = |name: &str| plan.links[0].channels.iter().find(|channel| channel.name == name).unwrap();
    let known = KickGuarantee { vm: "pid:100".into(), within: 20 * MS + of("pid").bound, burst: 84 };
    assert_eq!(of("pid").from_kick, Some(known));
    assert!(
        ["small", "other", "none", "unsaid"].into_iter().all(|name| of(name).from_kick.is_none()),
        "{plan:?}"
    );
    for (name, what) in [
        ("small", "in 20.0 ms, until frames are handed over, 2500 bytes may pile up, and its burst is 2583b"),
        ("other", "it does not have class = \"packets\""),
        ("none", "there is no VM `c`"),
    ] {
        let start = format!("`channel.{name}.vm`: ");
        let warned =
            plan.warnings.iter().any(|warning| warning.starts_with(&start) && warning.contains(what));
        assert!(warned, "{name}: {:?}", plan.warnings);
    }
    assert!(!plan.warnings.iter().any(|warning| warning.contains("unsaid")), "{:?}", plan.warnings);
}

#[test]
fn only_packets_on_taps_that_workers_serve_have_deadlines() {
    let on = |nics: Vec<Nic>| {
        let mut one = vm("a", 100, 1, 1, None, false);
        one.vm.nics = nics;
        let on = Observed { vms: vec![one], ..two(SchedExt::Usable) };
        let plan = planned(vec![section("a", 2 * MS, 10 * MS, Some("1"))], &on).unwrap();
        let PacketVm { deadlines, handed_over, .. } = plan.packet_vms.into_iter().next().unwrap();
        (deadlines.unwrap(), handed_over.unwrap())
    };
    let beside = |data_plane| on(vec![nic("t0", DataPlane::VhostNet), nic("t1", data_plane)]);
    let none = |what: &str| PacketDeadlines::NotGuaranteed(what.to_owned());
    let of_t1 = none(
        "packets of its NIC t1 have no deadlines: it is no tap of this network namespace that a vhost worker serves",
    );
    let within = HandedOver::Within(20 * MS);
    assert_eq!(beside(DataPlane::VhostNet), (PacketDeadlines::Guaranteed { cpu: 1 }, within.clone()));
    assert_eq!(beside(DataPlane::VhostMacvtap), (of_t1.clone(), within.clone()));
    for other in [DataPlane::Userspace, DataPlane::Passthrough] {
        let why = "its NIC t1 is not served by a vhost worker (vhost=on)".to_owned();
        assert_eq!(beside(other), (of_t1.clone(), HandedOver::Unknown(why)));
    }
    // In another network namespace, and without any.
    assert_eq!(on(vec![Nic { ifindex: 0, ..nic("t1", DataPlane::VhostNet) }]).0, of_t1);
    assert_eq!(on(Vec::new()).0, none("it has no NIC that a vhost worker serves"));
}
