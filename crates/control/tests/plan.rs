//! What a plan contains, and why there is none.
#![allow(clippy::unwrap_used)]

mod common;

use common::{DEFAULT, at, cpus, host, observe_again, task, vm};
use proptest::prelude::*;
use std::collections::BTreeMap;
use teiji_control::plan::plan;
use teiji_model::host::{DataPlane, Nic, Vcpu};
use teiji_model::observed::{Manager, Observed, ObservedLink};
use teiji_model::plan::{Held, Hold, Plan, own_group};
use teiji_model::policy::{DirectSetting, LinkPolicy, Policy, Source, Subject, VfPolicy, VmClass, VmPolicy};
use teiji_model::qdisc::Device;
use teiji_model::resource::{Latency, Quota, Resource, ResourceError, ResourceKind, Scheduling, Value};

const FIFO: Scheduling = Scheduling::Fifo { priority: 10 };

fn section(name: &str) -> VmPolicy {
    VmPolicy {
        name: at(name.to_owned(), 1),
        class: None,
        vcpu_cpus: None,
        worker_cpus: None,
        weight: None,
        quota: None,
    }
}

fn vms(vms: Vec<VmPolicy>) -> Policy {
    Policy { vms, ..Policy::default() }
}

/// Four CPUs, and `sip1` (pid 100; vCPUs 101, 102; worker 103) in its own control group.
fn one() -> Observed {
    let link = common::nic("eth0", vec![30, 31]);
    host("0-3", vec![vm("sip1", 100, 2, 1, Some("/machine.slice/sip1.scope"), false)], vec![link])
}

fn hold(original: Value, value: Value) -> Hold {
    Hold { whose: "x".into(), original, value, since: 1, reason: "vm.sip1.class".into() }
}

fn held(holds: impl IntoIterator<Item = (Resource, Hold)>) -> Held {
    Held { settings: holds.into_iter().collect() }
}

fn ok(policy: &Policy, observed: &Observed, held: &Held) -> Plan {
    plan(policy, observed, held).unwrap()
}

/// The problems as they are printed.
fn problems(policy: &Policy, observed: &Observed) -> String {
    let problems = plan(policy, observed, &Held::default()).expect_err("should have been refused");
    problems.iter().map(|p| format!("{p}\n")).collect()
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    assert!(!text.replace('\n', "").chars().any(char::is_control), "{text:?}");
}

fn settings(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(|s| format!("{}: {} -> {}", s.setting, s.present, s.wanted)).collect()
}

#[test]
fn everything_at_once_in_the_right_order() {
    let observed = host(
        "0-3",
        vec![vm("sip1", 100, 2, 1, Some("/user.slice"), true)],
        vec![common::nic("eth0", vec![30])],
    );
    let mut policy = vms(vec![VmPolicy {
        class: Some(at(VmClass::Threads(FIFO), 2)),
        vcpu_cpus: Some(at(cpus("2-3"), 3)),
        worker_cpus: Some(at(cpus("1"), 4)),
        weight: Some(at(500, 5)),
        quota: Some(at(Some(1500), 6)),
        ..section("sip1")
    }]);
    policy.host.halt_poll = Some(at(50_000, 7));
    policy.host.cpu_latency = Some(at(Latency::None, 8));
    policy.host.cpu_latency_cpus = Some(at(cpus("2"), 9));
    policy.links = vec![LinkPolicy { irq_cpus: Some(at(cpus("0"), 11)), ..common::link("eth0", 10) }];
    let plan = ok(&policy, &observed, &Held::default());
    assert_eq!(
        settings(&plan),
        [
            "CPUs of interrupt 30: 0-3 -> 0",
            "wake-up latency of CPU 2: any -> none (spins)",
            "kvm.halt_poll_ns: 200 µs -> 50.0 µs",
            "control group of process 100: /user.slice -> /teiji/vm-100",
            "cpu.weight of /teiji/vm-100: 100 -> 500",
            "cpu.max of /teiji/vm-100: no limit -> 150 ms of every 100 ms",
            "CPUs of thread 101: 0-3 -> 2-3",
            "CPUs of thread 102: 0-3 -> 2-3",
            "CPUs of thread 103: 0-3 -> 1",
            "scheduling of thread 103: default -> FIFO 11",
            "scheduling of thread 101: default -> FIFO 10",
            "scheduling of thread 102: default -> FIFO 10",
        ]
    );
    let steps: Vec<_> =
        plan.steps.iter().map(|s| (s.whose.as_str(), s.reason.as_str(), s.cost.as_str())).collect();
    assert_eq!(steps[2].1, "host.halt_poll");
    assert!(steps[2].2.contains("up to 50.0 µs of CPU time per idle vCPU"), "{}", steps[2].2);
    assert!(steps[1].2.contains("power"));
    assert!(steps[5].2.contains("throttled"), "{}", steps[5].2);
    assert_eq!((steps[6].0, steps[6].1), ("vCPU 0 of sip1", "vm.sip1.vcpu_cpus"));
    assert_eq!((steps[9].0, steps[9].1), ("vhost worker of sip1", "vm.sip1.class"));
    assert!(steps[9].2.contains("wait while it runs"));
}

#[test]
fn a_group_of_its_own_is_used_as_it_is() {
    let policy = vms(vec![VmPolicy { quota: Some(at(None, 2)), weight: Some(at(7, 3)), ..section("sip1") }]);
    let plan = ok(&policy, &one(), &Held::default());
    assert_eq!(settings(&plan), ["cpu.weight of /machine.slice/sip1.scope: 100 -> 7"]);
    // Once it has been moved, it stays there, held or not.
    let mut moved = host("0-3", vec![vm("sip1", 100, 2, 1, Some("/teiji/vm-100"), false)], Vec::new());
    moved.settings.insert(Resource::GroupWeight(own_group(100)), Value::Weight(7));
    let move_hold = hold(Value::Group("/user.slice".into()), Value::Group(own_group(100)));
    let held = held([(Resource::Group(task(100)), move_hold)]);
    assert_eq!(ok(&policy, &moved, &held), Plan::default());
}

#[test]
fn what_nothing_wants_any_more_goes_back_first_but_into_real_time() {
    let mut observed = one();
    let own = own_group(100);
    let changes = [
        (Resource::ThreadCpus(task(101)), Value::Cpus(cpus("2"))),
        (Resource::ThreadScheduling(task(101)), Value::Scheduling(FIFO)),
        (Resource::ThreadScheduling(task(102)), Value::Scheduling(Scheduling::Idle)),
        (Resource::Group(task(100)), Value::Group(own.clone())),
        (Resource::GroupWeight(own.clone()), Value::Weight(9)),
    ];
    let mut holds = Vec::new();
    for (setting, value) in changes {
        let original = observed.settings.insert(setting.clone(), value.clone()).unwrap();
        holds.push((setting, hold(original, value)));
    }
    // It was FIFO before teiji set the default: it returns last of all.
    holds[2].1.original = Value::Scheduling(FIFO);
    // Its task has ended.
    holds.push((Resource::ThreadCpus(task(9)), hold(Value::Cpus(cpus("0")), Value::Cpus(cpus("1")))));
    let policy = Policy {
        host: teiji_model::policy::HostPolicy { halt_poll: Some(at(0, 2)), ..Default::default() },
        ..Policy::default()
    };
    let plan = ok(&policy, &observed, &held(holds));
    assert_eq!(
        settings(&plan),
        [
            "scheduling of thread 101: FIFO 10 -> default",
            "cpu.weight of /teiji/vm-100: 9 -> 100",
            "control group of process 100: /teiji/vm-100 -> /machine.slice/sip1.scope",
            "CPUs of thread 101: 2 -> 0-3",
            "kvm.halt_poll_ns: 200 µs -> 0 ns",
            "scheduling of thread 102: idle -> FIFO 10",
        ]
    );
    assert_eq!(plan.steps[0].reason, "no longer in the policy");
    assert_eq!(plan.warnings, Vec::<String>::new());
}

#[test]
fn a_thread_leaves_the_deadline_class_before_it_is_pinned() {
    let mut observed = one();
    let deadline = Scheduling::Deadline { runtime: 1, deadline: 10, period: 10 };
    observed.settings.insert(Resource::ThreadScheduling(task(101)), Value::Scheduling(deadline));
    let policy = vms(vec![VmPolicy {
        class: Some(at(VmClass::Threads(FIFO), 2)),
        vcpu_cpus: Some(at(cpus("2-3"), 3)),
        ..section("sip1")
    }]);
    let order: Vec<Resource> =
        ok(&policy, &observed, &Held::default()).steps.into_iter().map(|s| s.setting).collect();
    let location = |setting| order.iter().position(|s| *s == setting).unwrap();
    assert!(location(Resource::ThreadScheduling(task(101))) < location(Resource::ThreadCpus(task(101))));
    assert!(location(Resource::ThreadScheduling(task(102))) > location(Resource::ThreadCpus(task(102))));
}

#[test]
fn changes_of_others_are_told() {
    let mut observed = one();
    let setting = Resource::HaltPoll;
    observed.settings.insert(setting.clone(), Value::Nanoseconds(7));
    let held = held([(setting, hold(Value::Nanoseconds(200_000), Value::Nanoseconds(50_000)))]);
    let mut policy = Policy::default();
    // No longer wanted: left alone.
    let plan = ok(&policy, &observed, &held);
    assert!(plan.steps.is_empty());
    assert!(plan.warnings[0].contains("was changed by someone else from 50.0 µs to 7 ns"), "{plan:?}");
    // Still wanted: set again.
    policy.host.halt_poll = Some(at(50_000, 2));
    let plan = ok(&policy, &observed, &held);
    assert_eq!(settings(&plan), ["kvm.halt_poll_ns: 7 ns -> 50.0 µs"]);
    assert!(plan.warnings[0].contains("was changed by someone else from 50.0 µs to 7 ns"), "{plan:?}");
    // A setting that somebody else has restored does not matter.
    observed.settings.insert(Resource::HaltPoll, Value::Nanoseconds(200_000));
    assert_eq!(ok(&Policy::default(), &observed, &held), Plan::default());
}

#[test]
fn managers_are_named_if_they_touch_a_step() {
    let mut observed = one();
    for (name, kind) in [("irqbalance", ResourceKind::IrqCpus), ("tu\x1bned", ResourceKind::HaltPoll)] {
        observed.managers.push(Manager {
            name: name.into(),
            advice: "stop it".into(),
            touches: vec![kind],
            vm: None,
        });
    }
    let mut policy = Policy::default();
    policy.host.halt_poll = Some(at(0, 2));
    assert_eq!(ok(&policy, &observed, &Held::default()).warnings, ["tu\\u{1b}ned: stop it"]);
    policy.host.halt_poll = Some(at(200_000, 2));
    assert_eq!(ok(&policy, &observed, &Held::default()), Plan::default());
}

#[test]
fn names_that_mean_no_vm_or_several() {
    let named = |name: &str, pid| vm(name, pid, 1, 0, None, false);
    let observed = host(
        "0-3",
        vec![named("web", 1), named("sip1", 2), named("twin", 3), named("twin", 4), named("e\x1b[2J", 5)],
        Vec::new(),
    );
    let text = problems(&vms(vec![section("sipl")]), &observed);
    says(&text, &["p.toml:1:1: there is no VM `sipl`; there is `sip1`, ", "`e\\u{1b}[2J`"]);
    let text = problems(&vms(vec![section("twin")]), &observed);
    says(&text, &["2 VMs are named `twin`", "[vm.\"pid:3\"] or [vm.\"pid:4\"]"]);
    let text = problems(&vms(vec![section("sip1"), section("pid:2")]), &observed);
    says(&text, &["`pid:2` and `sip1` (p.toml:1:1) are the same VM (pid 2)"]);
    let text = problems(&vms(vec![section("x\n")]), &host("0", Vec::new(), Vec::new()));
    says(&text, &["`x\\n`; this host has no VM"]);
    // A VM may choose any name.
    let liar = host("0-3", vec![named("pid:2", 1), named("sip1", 2)], Vec::new());
    let pin = VmPolicy { vcpu_cpus: Some(at(cpus("0"), 2)), ..section("pid:2") };
    assert_eq!(settings(&ok(&vms(vec![pin]), &liar, &Held::default())), ["CPUs of thread 3: 0-3 -> 0"]);
}

#[test]
fn what_the_host_does_not_have() {
    let mut observed = one();
    observed.settings.remove(&Resource::HaltPoll);
    let why = ResourceError::Unsupported("kvm is not loaded: modprobe kvm".into());
    observed.settings.record(Resource::HaltPoll, Err(why));
    let mut policy = vms(vec![VmPolicy {
        vcpu_cpus: Some(at(cpus("3-5"), 2)),
        worker_cpus: Some(at(cpus(""), 3)),
        ..section("sip1")
    }]);
    policy.host.halt_poll = Some(at(5, 5));
    policy.links = vec![LinkPolicy { irq_cpus: Some(at(cpus("0"), 7)), ..common::link("eth1", 6) }];
    policy.vfs = vec![VfPolicy { link: at("eth0".into(), 14), index: at(3, 14), hard: None, weight: None }];
    let text = problems(&policy, &observed);
    says(
        &text,
        &[
            "p.toml:2:1: CPUs 4-5 are not online; online are 0-3",
            "p.toml:3:1: no CPU is named",
            "p.toml:5:1: kvm.halt_poll_ns (the host) cannot be read, so it could not be restored: kvm is not loaded",
            "p.toml:6:1: there is no link `eth1`; there is `eth0`",
            "p.toml:14:1: `vf.eth0.3` is not supported by this version yet",
        ],
    );
    assert_eq!(text.lines().count(), 5, "{text}");
    let weight = vms(vec![VmPolicy { weight: Some(at(5, 2)), ..section("a") }]);
    let text = problems(&weight, &host("0", vec![vm("a", 1, 1, 0, None, false)], Vec::new()));
    says(&text, &["p.toml:2:1: weight and quota need control groups of version 2"]);
}

#[test]
fn packets_of_links_and_taps_are_steered() {
    let index = |name: &str| if name == "eth0" { 2 } else { 3 };
    let queue = |name: &str, n| Resource::ReceiveCpus(Device { name: name.into(), index: index(name) }, n);
    let mut sip1 = vm("sip1", 100, 1, 0, None, false);
    sip1.vm.nics = vec![Nic {
        tap: "tap0".into(),
        ifindex: 3,
        mac: None,
        bridge: None,
        data_plane: DataPlane::VhostNet,
        queues: 1,
    }];
    let tap = ObservedLink { index: 3, ..common::nic("tap0", vec![]) };
    let mut observed = host("0-3", vec![sip1], vec![common::nic("eth0", vec![]), tap]);
    for resource in [queue("eth0", 0), queue("eth0", 1), queue("tap0", 0)] {
        observed.settings.insert(resource, Value::Cpus(cpus("")));
    }
    let text = "[link.eth0]\nrps_cpus = \"2-3\"\n[vm.sip1]\nrps_cpus = \"1\"\n";
    let plan = ok(&parsed(text), &observed, &Held::default());
    assert_eq!(
        settings(&plan),
        [
            "rps_cpus of eth0 queue 0: none -> 2-3",
            "rps_cpus of eth0 queue 1: none -> 2-3",
            "rps_cpus of tap0 queue 0: none -> 1",
        ]
    );
    let steps: Vec<_> = plan.steps.iter().map(|s| (s.whose.as_str(), s.reason.as_str())).collect();
    assert_eq!((steps[0], steps[2]), (("eth0", "link.eth0.rps_cpus"), ("sip1", "vm.sip1.rps_cpus")));
    assert!(plan.steps[0].cost.contains("interrupt between CPUs"));
    // Back to the original value, once no line asks for it.
    let (mut now, mut held) = (observed.settings.values(), Held::default());
    carried_out(&plan, &mut now, &mut held);
    let back = ok(&Policy::default(), &observe_again(&observed, &now), &held);
    assert_eq!(settings(&back)[0], "rps_cpus of eth0 queue 0: 2-3 -> none");

    // A tap of that name here is another one if the VM's is in another network namespace.
    let mut elsewhere = observed.clone();
    elsewhere.vms[0].vm.nics[0].ifindex = 0;
    let plan = ok(&parsed("[vm.sip1]\nrps_cpus = \"1\"\n"), &elsewhere, &Held::default());
    assert_eq!((plan.steps.len(), plan.warnings.len()), (0, 1), "{plan:?}");

    let text = "[link.eth0]\nrps_cpus = \"9\"\n[link.eth1]\nrps_cpus = \"1\"\n[vm.b]\nrps_cpus = \"1\"\n";
    let text = problems(&parsed(text), &observed);
    says(
        &text,
        &["p.toml:2:12: CPU 9 is not online", "p.toml:3:7: there is no link `eth1`", "there is no VM `b`"],
    );
    let why = ResourceError::NotPermitted("that needs root".into());
    observed.settings.record(queue("eth0", 1), Err(why));
    let text = problems(&parsed("[link.eth0]\nrps_cpus = \"2-3\"\n"), &observed);
    says(&text, &["rps_cpus of eth0 queue 1 (eth0) cannot be read", "that needs root"]);
    let mut none = host("0-3", Vec::new(), vec![common::nic("eth0", vec![])]);
    none.settings.remove(&queue("eth0", 0));
    let plan = ok(&parsed("[link.eth0]\nrps_cpus = \"2-3\"\n"), &none, &Held::default());
    assert_eq!(plan.warnings, ["`link.eth0.rps_cpus` has no effect: eth0 has nothing that it sets"]);
}

#[test]
fn the_governor_is_that_of_every_frequency_policy() {
    let mut observed = one();
    for (policy, word) in [(0, "schedutil"), (2, "performance")] {
        observed.settings.insert(Resource::Governor(policy), Value::Word(word.into()));
    }
    let policy = parsed("[host]\ngovernor = \"performance\"\n");
    let plan = ok(&policy, &observed, &Held::default());
    assert_eq!(settings(&plan), ["governor of cpufreq policy 0: schedutil -> performance"]);
    assert_eq!((plan.steps[0].whose.as_str(), plan.steps[0].reason.as_str()), ("the host", "host.governor"));
    // A policy without an online CPU keeps what it has; the others are changed.
    let why = ResourceError::Offline("all CPUs of the policy are offline (EBUSY)".into());
    observed.settings.record(Resource::Governor(2), Err(why));
    let plan = ok(&policy, &observed, &Held::default());
    assert_eq!(plan.steps.len(), 1);
    assert!(plan.steps[0].cost.contains("rollback"), "{:?}", plan.steps);
    assert!(
        plan.warnings[0].starts_with("`host.governor` leaves the governor of cpufreq policy 2 as it is: all")
    );
    observed.settings.remove(&Resource::Governor(2));
    let tuned = Manager {
        name: "tuned".into(),
        advice: "tuned is running".into(),
        touches: vec![ResourceKind::Governor],
        vm: None,
    };
    let plan = ok(&policy, &Observed { managers: vec![tuned], ..observed }, &Held::default());
    assert_eq!(plan.warnings, ["tuned: tuned is running"]);
    let mut none = one();
    none.settings.remove(&Resource::Governor(0));
    let plan = ok(&policy, &none, &Held::default());
    assert_eq!(plan.warnings, ["`host.governor` has no effect: the host has nothing that it sets"]);
}

/// A policy, parsed from its text.
fn parsed(text: &str) -> Policy {
    let source = Source { name: "p.toml".into(), text: text.into() };
    teiji_policy::parse(&[source]).unwrap()
}

/// The keys that decide each asked setting, with file and line: `class a:2, priority b:2`.
fn asked(plan: &Plan, reason: &str) -> String {
    let line = |key: &str, at: &teiji_model::policy::SourceLocation| format!("{key} {}:{}", at.file, at.line);
    let asked = &plan.asked[reason];
    let rest = asked.with.iter().map(|more| line(&more.key, &more.location));
    std::iter::once(line(reason, &asked.location)).chain(rest).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_step_names_every_line_that_decides_its_value() {
    let source = |name: &str, text: &str| Source { name: name.into(), text: text.into() };
    let plan = |files: &[Source]| ok(&teiji_policy::parse(files).unwrap(), &one(), &Held::default());
    let by_priority = plan(&[
        source("a", "[vm.sip1]\nclass = \"realtime\"\n"),
        source("b", "[vm.sip1]\npriority = 30\nweight = 5\n"),
    ]);
    assert!(settings(&by_priority)[2].ends_with("default -> FIFO 30"), "{:?}", settings(&by_priority));
    assert_eq!(asked(&by_priority, "vm.sip1.class"), "vm.sip1.class a:2, priority b:2");
    assert_eq!(asked(&by_priority, "vm.sip1.weight"), "vm.sip1.weight b:3");
    let by_period = plan(&[
        source("a", "[vm.sip1]\nclass = \"deadline\"\nruntime = \"1ms\"\nperiod = \"10ms\"\n"),
        source("b", "[vm.sip1]\nperiod = \"20ms\"\n"),
    ]);
    assert_eq!(asked(&by_period, "vm.sip1.class"), "vm.sip1.class a:2, runtime a:3, period b:2");
    let by_cpus = plan(&[
        source("a", "[host]\ncpu_latency = \"20us\"\n"),
        source("b", "[host]\ncpu_latency_cpus = \"2\"\n"),
    ]);
    assert_eq!(asked(&by_cpus, "host.cpu_latency"), "host.cpu_latency a:2, cpu_latency_cpus b:2");
    // A line that no longer holds decides nothing.
    let discarded = plan(&[
        source("a", "[vm.sip1]\nclass = \"realtime\"\npriority = 30\n"),
        source("b", "[vm.sip1]\nclass = \"realtime\"\n"),
    ]);
    assert_eq!(asked(&discarded, "vm.sip1.class"), "vm.sip1.class b:2");
}

#[test]
fn devices_that_share_an_interrupt_agree_or_are_refused() {
    let eth1 = ObservedLink { index: 3, ..common::nic("eth1", vec![30]) };
    let observed = host("0-3", Vec::new(), vec![common::nic("eth0", vec![30]), eth1]);
    let policy_of =
        |name: &str, list, line| LinkPolicy { irq_cpus: Some(at(cpus(list), line)), ..common::link(name, 1) };
    let mut policy =
        Policy { links: vec![policy_of("eth0", "1", 2), policy_of("eth1", "1", 3)], ..Policy::default() };
    assert_eq!(ok(&policy, &observed, &Held::default()).steps.len(), 1);
    policy.links[1] = policy_of("eth1", "2", 3);
    says(
        &problems(&policy, &observed),
        &["p.toml:3:1: `link.eth1.irq_cpus` asks for 2", "`link.eth0.irq_cpus` asks for 1"],
    );
}

#[test]
fn real_time_threads_leave_the_host_alive() {
    let policy_of = |class, vcpus: Option<&str>, workers: Option<&str>| {
        vms(vec![VmPolicy {
            class: Some(at(VmClass::Threads(class), 2)),
            vcpu_cpus: vcpus.map(|c| at(cpus(c), 3)),
            worker_cpus: workers.map(|c| at(cpus(c), 4)),
            ..section("sip1")
        }])
    };
    let mut observed = one();
    // Three threads on four CPUs leave one.
    assert_eq!(ok(&policy_of(FIFO, None, None), &observed, &Held::default()).steps.len(), 3);
    observed.realtime_guard = None;
    let text = problems(&policy_of(FIFO, None, None), &observed);
    says(&text, &["p.toml:2:1: a real-time thread that never sleeps would starve the host", "950000"]);
    assert!(plan(&policy_of(DEFAULT, None, None), &observed, &Held::default()).is_ok());

    let small = host("0-2", vec![vm("sip1", 100, 2, 1, None, false)], Vec::new());
    let text = problems(&policy_of(FIFO, None, None), &small);
    says(
        &text,
        &["p.toml:2:1: 3 real-time threads could take every online CPU (0-2)", "pin them with vcpu_cpus"],
    );
    assert!(plan(&policy_of(FIFO, Some("1-2"), None), &small, &Held::default()).is_err());
    assert!(plan(&policy_of(FIFO, Some("1-2"), Some("1")), &small, &Held::default()).is_ok());
    // Threads that are real-time already count, too.
    let mut two =
        host("0-2", vec![vm("sip1", 100, 2, 0, None, false), vm("b", 200, 1, 0, None, false)], Vec::new());
    assert!(plan(&policy_of(FIFO, None, None), &two, &Held::default()).is_ok());
    two.settings.insert(Resource::ThreadScheduling(task(201)), Value::Scheduling(FIFO));
    assert!(plan(&policy_of(FIFO, None, None), &two, &Held::default()).is_err());
}

#[test]
fn deadline_threads_fit_the_cpus() {
    let policy_of = |runtime| {
        let class = Scheduling::Deadline { runtime, deadline: 100, period: 100 };
        vms(vec![VmPolicy { class: Some(at(VmClass::Threads(class), 2)), ..section("sip1") }])
    };
    let mut observed = host("0-1", vec![vm("sip1", 100, 2, 0, None, false)], Vec::new());
    assert_eq!(ok(&policy_of(95), &observed, &Held::default()).steps.len(), 2);
    says(
        &problems(&policy_of(96), &observed),
        &["p.toml:2:1: the deadline threads ask for 1.92 CPUs", "1.90 at most"],
    );
    observed.settings.insert(Resource::ThreadCpus(task(102)), Value::Cpus(cpus("1")));
    let text = problems(&policy_of(10), &observed);
    says(
        &text,
        &[
            "p.toml:2:1: a deadline thread must be allowed to run on every CPU",
            "vCPU 1 of sip1 to 1",
            "allow them on 0-1",
        ],
    );
    // Pinned by a line that is removed in the same plan.
    let pinned =
        held([(Resource::ThreadCpus(task(102)), hold(Value::Cpus(cpus("0-1")), Value::Cpus(cpus("1"))))]);
    let plan = plan(&policy_of(10), &observed, &pinned).unwrap();
    assert_eq!(plan.steps[0].setting, Resource::ThreadCpus(task(102)));
}

#[test]
fn a_line_without_effect_is_told() {
    let observed = host("0-3", vec![vm("sip1", 100, 1, 0, None, false)], Vec::new());
    let policy = vms(vec![VmPolicy { worker_cpus: Some(at(cpus("1"), 2)), ..section("sip1") }]);
    let plan = ok(&policy, &observed, &Held::default());
    assert_eq!(plan.warnings, ["`vm.sip1.worker_cpus` has no effect: sip1 has no vhost worker"]);
}

#[test]
fn quotas_are_thousandths_of_a_cpu() {
    let policy = vms(vec![VmPolicy { quota: Some(at(Some(250), 2)), ..section("sip1") }]);
    let plan = ok(&policy, &one(), &Held::default());
    assert_eq!(plan.steps[0].wanted, Value::Quota(Some(Quota { quota_us: 25_000, period_us: 100_000 })));
}

/// The held settings and the state of the host once a plan has been carried out.
fn carried_out(plan: &Plan, settings: &mut BTreeMap<Resource, Value>, held: &mut Held) {
    for step in &plan.steps {
        assert_eq!(settings.insert(step.setting.clone(), step.wanted.clone()), Some(step.present.clone()));
        let original =
            held.settings.remove(&step.setting).map_or_else(|| step.present.clone(), |h| h.original);
        if original != step.wanted {
            held.settings.insert(step.setting.clone(), hold(original, step.wanted.clone()));
        }
    }
}

proptest! {
    /// Planning again after a plan was carried out finds nothing to do; dropping the policy restores everything.
    #[test]
    fn a_plan_is_enough(observed in common::any_host(), policies in proptest::collection::vec(prop_oneof![common::any_policy(), common::any_channels()], 1..4)) {
        let (mut settings, mut held) = (observed.settings.values(), Held::default());
        for policy in &policies {
            let now = observe_again(&observed, &settings);
            let Ok(first) = plan(policy, &now, &held) else { continue };
            prop_assert_eq!(&plan(policy, &now, &held).unwrap(), &first);
            carried_out(&first, &mut settings, &mut held);
            let again = plan(policy, &observe_again(&observed, &settings), &held);
            prop_assert_eq!(again.map(|p| p.steps), Ok(Vec::new()));
        }
        let none = plan(&Policy::default(), &observe_again(&observed, &settings), &held).unwrap();
        carried_out(&none, &mut settings, &mut held);
        prop_assert_eq!(&settings, &observed.settings.values());
        prop_assert_eq!(held, Held::default());
    }
}

/// Replaces one value in a JSON text by another.
fn mutated(value: &mut serde_json::Value, at: usize, with: &serde_json::Value) -> usize {
    use serde_json::Value as Json;
    if at == 0 {
        *value = with.clone();
        return usize::MAX;
    }
    let inner: Vec<&mut Json> = match value {
        Json::Array(all) => all.iter_mut().collect(),
        Json::Object(all) => all.values_mut().collect(),
        _ => Vec::new(),
    };
    let mut left = at - 1;
    for value in inner {
        left = mutated(value, left, with);
        if left == usize::MAX {
            break;
        }
    }
    left
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::json;
    let number = prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(u64::from(u32::MAX)), any::<u64>()];
    prop_oneof![
        4 => number.prop_map(|n| json!(n)),
        1 => Just(json!(null)),
        1 => Just(json!([])),
        1 => Just(json!(-1)),
        1 => prop_oneof![Just("8191"), Just("0-8191"), Just(""), Just("edf")].prop_map(|s| json!(s)),
    ]
}

proptest! {
    /// A host's file may be changed by hand in any way, to plan for another state.
    #[test]
    fn no_observed_host_makes_a_plan_panic(
        observed in common::any_host(),
        policy in prop_oneof![common::any_policy(), common::any_channels()],
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any_json()), 1..4),
    ) {
        let mut json = serde_json::to_value(&observed).unwrap();
        for (at, with) in &changes {
            // There are fewer values than characters.
            let at = at.index(json.to_string().len() / 4 + 1);
            mutated(&mut json, at, with);
        }
        if let Ok(observed) = serde_json::from_value::<Observed>(json) {
            let _ = plan(&policy, &observed, &Held::default());
        }
    }
}

fn vcpu(index: u16) -> Vcpu {
    Vcpu { index, kvm_id: None, tid: 0, cpus: String::new(), last_cpu: 0 }
}

#[test]
fn vcpus_have_the_numbers_of_their_vmm() {
    let mut observed = one();
    // Of three, the one in the middle was unplugged.
    observed.vms[0].vm.vcpus = [0, 2].map(vcpu).to_vec();
    let policy = vms(vec![VmPolicy { vcpu_cpus: Some(at(cpus("1"), 2)), ..section("sip1") }]);
    let whose: Vec<String> =
        ok(&policy, &observed, &Held::default()).steps.into_iter().map(|step| step.whose).collect();
    assert_eq!(whose, ["vCPU 0 of sip1", "vCPU 2 of sip1"]);
}

/// A key of `[vm.NAME]` that sets the resources of this kind to `value`.
fn direct(kind: ResourceKind, value: Value) -> Policy {
    let mut policy = vms(vec![section("sip1")]);
    policy.direct = vec![DirectSetting {
        subject: Subject::Vm(at("sip1".into(), 1)),
        key: "key",
        kind,
        value: at(value, 2),
        cost: "",
    }];
    policy
}

#[test]
fn a_key_that_sets_resources_of_a_vm_reaches_whatever_is_the_vms_own() {
    let mut observed = one();
    let threads = direct(ResourceKind::ThreadCpus, Value::Cpus(cpus("1")));
    assert_eq!(
        settings(&ok(&threads, &observed, &Held::default())),
        ["CPUs of thread 101: 0-3 -> 1", "CPUs of thread 102: 0-3 -> 1", "CPUs of thread 103: 0-3 -> 1"]
    );
    let process = direct(ResourceKind::Group, Value::Group("/x".into()));
    assert_eq!(settings(&ok(&process, &observed, &Held::default())).len(), 1);
    let group = direct(ResourceKind::GroupWeight, Value::Weight(7));
    assert_eq!(
        settings(&ok(&group, &observed, &Held::default())),
        ["cpu.weight of /machine.slice/sip1.scope: 100 -> 7"]
    );
    // A group with other processes in it is not the VM's own.
    observed.vms[0].group_shared = true;
    let plan = ok(&group, &observed, &Held::default());
    assert_eq!(plan.steps, []);
    assert_eq!(plan.warnings, ["`vm.sip1.key` has no effect: sip1 has nothing that it sets"]);
    // What belongs to nobody's VM is not reached either.
    let interrupts = direct(ResourceKind::IrqCpus, Value::Cpus(cpus("1")));
    assert_eq!(ok(&interrupts, &observed, &Held::default()).steps, []);
}
