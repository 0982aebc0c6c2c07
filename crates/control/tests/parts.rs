//! What a daemon keeps of a policy while VMs and links come and go: the sections that mean something, and the parts of a
//! plan that can be carried out without each other.
#![allow(clippy::unwrap_used)]

mod common;

use common::{at, channel, host, link, nic, task, vm};
use std::collections::BTreeMap;
use teiji_control::plan::{Known, Of, meant, parts, plan, possible, present};
use teiji_model::cpus::CpuSet;
use teiji_model::host::VmId;
use teiji_model::observed::{DeadlineSupport, Observed};
use teiji_model::plan::{Held, Hold};
use teiji_model::policy::{DirectSetting, HostPolicy, Policy, Subject, VmClass, VmPolicy};
use teiji_model::resource::{Resource, ResourceKind, Scheduling, Value};

fn fifo(name: &str, line: usize) -> VmPolicy {
    VmPolicy {
        name: at(name.to_owned(), line),
        class: Some(at(VmClass::Threads(Scheduling::Fifo { priority: 10 }), line + 1)),
        vcpu_cpus: None,
        worker_cpus: None,
        weight: None,
        quota: None,
    }
}

fn direct(subject: Subject, kind: ResourceKind, value: Value) -> DirectSetting {
    DirectSetting { subject, key: "key", kind, value: at(value, 90), cost: "" }
}

static NO_VMS: BTreeMap<String, VmId> = BTreeMap::new();

/// An agent whose policy was applied while no VM was there.
fn nothing_known() -> Option<Known<'static>> {
    Some(Known { vms: &NO_VMS, boot: "b" })
}

fn whole() -> Policy {
    let cpus = Value::Cpus("1".parse::<CpuSet>().unwrap());
    let on = |name: &str| Subject::Link(at(name.to_owned(), 20));
    let mut other = channel("b", 60, 2, 10_000_000, 1_000_000);
    other.link = Some(at("eth1".into(), 61));
    Policy {
        host: HostPolicy { halt_poll: Some(at(0, 1)), ..HostPolicy::default() },
        links: vec![link("eth0", 10), link("eth1", 20)],
        vms: vec![fifo("sip1", 30), fifo("sip2", 40)],
        channels: vec![
            {
                let mut a = channel("a", 50, 1, 10_000_000, 1_000_000);
                a.link = Some(at("eth0".into(), 51));
                a
            },
            other,
        ],
        direct: vec![
            direct(on("eth1"), ResourceKind::ReceiveCpus, cpus.clone()),
            direct(Subject::Vm(at("sip2".into(), 40)), ResourceKind::ReceiveCpus, cpus),
        ],
        ..Policy::default()
    }
}

fn with(vms: &[(&str, u32)], links: &[&str]) -> Observed {
    let vms = vms.iter().map(|(name, pid)| vm(name, *pid, 2, 1, None, false)).collect();
    let links = links.iter().zip(2..).map(|(name, index)| {
        let mut nic = nic(name, vec![]);
        nic.index = index;
        nic
    });
    let mut observed = host("0-15", vms, links.collect());
    observed.deadline_support = DeadlineSupport::Edf;
    observed.realtime_guard = Some("the test".into());
    observed
}

#[test]
fn what_is_not_there_is_left_out_and_said() {
    let policy = whole();
    let all = present(&policy, &with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]), nothing_known());
    assert_eq!((all.policy, all.absent), (policy.clone(), vec![]));

    let some = present(&policy, &with(&[("sip2", 200)], &["eth0"]), nothing_known());
    let names: Vec<&str> = some.policy.vms.iter().map(|vm| vm.name.value.as_str()).collect();
    assert_eq!(names, ["sip2"]);
    assert_eq!((some.policy.links.len(), some.policy.channels.len(), some.policy.direct.len()), (1, 1, 1));
    let starts: Vec<&str> = some.absent.iter().map(|text| text.split(' ').next().unwrap()).collect();
    assert_eq!(starts, ["vm.sip1", "link.eth1", "channel.b"]);
    assert!(some.absent[0].contains("there is no VM `sip1`"), "{:?}", some.absent);
    // What is left can be planned, and so can nothing at all.
    assert!(plan(&some.policy, &with(&[("sip2", 200)], &["eth0"]), &Held::default()).is_ok());
    let none = present(&policy, &with(&[], &[]), nothing_known());
    assert!(plan(&none.policy, &with(&[], &[]), &Held::default()).is_ok());
    assert!(none.policy.vms.is_empty() && none.policy.host.halt_poll.is_some());
}

/// A process that calls itself like a running VM takes nothing from it: which one is meant is a problem, and what is held stays.
#[test]
fn what_is_held_for_a_vm_stays_while_another_one_has_its_name() {
    let policy = whole();
    let links = ["eth0", "eth1"];
    let thread = Resource::ThreadScheduling(task(101));
    let ours = Value::Scheduling(Scheduling::Fifo { priority: 10 });
    let hold = Hold {
        whose: "x".into(),
        original: Value::Scheduling(common::DEFAULT),
        value: ours.clone(),
        since: 0,
        reason: "y".into(),
    };
    let held = Held { settings: BTreeMap::from([(thread.clone(), hold)]) };
    for known in [nothing_known(), None] {
        let mut both = with(&[("sip1", 100), ("sip1", 300), ("sip2", 200)], &links);
        both.settings.insert(thread.clone(), ours.clone());
        let two = present(&policy, &both, known);
        let made = possible(&two.policy, &both, &held);
        assert!(made.plan.steps.iter().all(|step| step.setting != thread), "{:?}", made.plan.steps);
        let problems: Vec<String> = made.problems.iter().map(ToString::to_string).collect();
        assert!(problems.iter().any(|text| text.contains("say which")), "{problems:?}");
        assert!(two.newcomers.values().all(|(name, _)| name == "sip2"), "{:?}", two.newcomers);
        // The other sections are kept all the same.
        assert!(made.plan.steps.iter().any(|step| step.whose.contains("sip2")), "{:?}", made.plan.steps);
        // Once only the other one is left, the first one's setting goes with its thread.
        let gone = present(&policy, &with(&[("sip2", 200)], &links), known);
        assert!(!possible(&gone.policy, &with(&[("sip2", 200)], &links), &held).plan.steps.is_empty());
    }
}

/// A channel without a link leaves by the only one of the policy, and is not moved to another when that one is gone.
#[test]
fn a_channel_goes_with_its_link() {
    let policy = Policy {
        links: vec![link("eth0", 10)],
        channels: vec![channel("a", 50, 1, 10_000_000, 1_000_000)],
        ..Policy::default()
    };
    let gone = present(&policy, &with(&[], &["eth9"]), nothing_known());
    assert!(gone.policy.channels.is_empty() && gone.policy.links.is_empty());
    assert_eq!(present(&policy, &with(&[], &["eth0"]), nothing_known()).policy.channels.len(), 1);
}

#[test]
fn a_plan_is_divided_by_what_it_is_about() {
    let observed = with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]);
    let whole_plan = plan(&whole(), &observed, &Held::default()).unwrap();
    let divided = parts(&whole_plan, &observed, &Held::default());
    let of: Vec<(&Of, &str)> = divided.iter().map(|part| (&part.of, part.name.as_str())).collect();
    let expected = [
        (&Of::Host, "the host"),
        (&Of::Link(2), "eth0"),
        (&Of::Link(3), "eth1"),
        (&Of::Vm(100), "sip1"),
        (&Of::Vm(200), "sip2"),
    ];
    assert_eq!(of, expected);
    // Every step is in exactly one part, in the order of the plan.
    let count: usize = divided.iter().map(|part| part.steps.len()).sum();
    assert_eq!(count, whole_plan.steps.len());
    for part in &divided {
        let order = whole_plan.steps.iter().filter(|step| part.steps.contains(step));
        assert!(order.eq(part.steps.iter()), "{}", part.name);
        assert!(part.foreign.is_empty());
    }
}

#[test]
fn what_somebody_else_has_changed_is_foreign() {
    let mut observed = with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]);
    let thread = Resource::ThreadScheduling(task(101));
    let hold = |value| Hold {
        whose: "x".into(),
        original: Value::Scheduling(common::DEFAULT),
        value,
        since: 0,
        reason: "y".into(),
    };
    let ours = Value::Scheduling(Scheduling::Fifo { priority: 10 });
    let held = Held { settings: BTreeMap::from([(thread.clone(), hold(ours.clone()))]) };
    // Somebody has set it back to what it was before teiji changed it.
    let plan_now = |observed: &Observed| plan(&whole(), observed, &held).unwrap();
    let divided = parts(&plan_now(&observed), &observed, &held);
    let foreign: Vec<(&str, usize)> = divided
        .iter()
        .filter(|p| !p.foreign.is_empty())
        .map(|p| (p.name.as_str(), p.foreign.len()))
        .collect();
    assert_eq!(foreign, [("sip1", 1)]);
    observed.settings.insert(thread, ours);
    let divided = parts(&plan_now(&observed), &observed, &held);
    assert!(divided.iter().all(|part| part.foreign.is_empty()));
}

/// Of every section in turn one key asks for what the host cannot do: the others are planned as they are without it, and
/// what teiji holds for it stays.
#[test]
fn a_problem_of_one_section_keeps_no_other_from_being_planned() {
    let observed = with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]);
    let none = Held::default();
    let offline = || Some(at("99".parse::<CpuSet>().unwrap(), 91));
    type Change = fn(&mut Policy, Option<teiji_model::policy::Located<CpuSet>>);
    let cases: [(&str, &[&str], Change); 5] = [
        ("sip2", &["the host", "eth0", "eth1", "sip1"], |p, cpus| p.vms[1].vcpu_cpus = cpus),
        ("eth0", &["the host", "eth1", "sip1", "sip2"], |p, cpus| p.links[0].irq_cpus = cpus),
        ("a channel", &["the host", "eth0", "sip1", "sip2"], |p, _| {
            p.channels[1].min_rate.value = u64::MAX / 2
        }),
        ("a key of a link", &["the host", "eth0", "sip1", "sip2"], |p, cpus| {
            p.direct[0].value = cpus.map(|c| at(Value::Cpus(c.value), 91)).unwrap();
        }),
        ("a key of the host", &["the host", "eth0", "eth1", "sip1", "sip2"], |p, cpus| {
            p.host.cpu_latency = Some(at(teiji_model::resource::Latency::None, 92));
            p.host.cpu_latency_cpus = cpus;
        }),
    ];
    for (what, others, change) in cases {
        let mut policy = whole();
        change(&mut policy, offline());
        assert!(plan(&policy, &observed, &none).is_err(), "{what}");
        let made = possible(&policy, &observed, &none);
        assert!(!made.problems.is_empty(), "{what}");
        let found: Vec<String> =
            parts(&made.plan, &observed, &none).into_iter().map(|part| part.name).collect();
        assert_eq!(found, others, "{what}: {:?}", made.problems);
        let good = plan(&whole(), &observed, &none).unwrap();
        assert!(made.plan.steps.iter().all(|step| good.steps.contains(step)), "{what}");
    }
    let all = possible(&whole(), &observed, &none);
    assert_eq!((Ok(all.plan), all.problems), (plan(&whole(), &observed, &none), vec![]));
}

#[test]
fn what_belongs_to_a_section_with_a_problem_stays_as_it_is() {
    let mut observed = with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]);
    let thread = Resource::ThreadScheduling(task(201));
    let fifo = Value::Scheduling(Scheduling::Fifo { priority: 10 });
    let hold = Hold {
        whose: "x".into(),
        original: Value::Scheduling(common::DEFAULT),
        value: fifo.clone(),
        since: 0,
        reason: "vm.sip2.class".into(),
    };
    let held = Held { settings: BTreeMap::from([(thread.clone(), hold)]) };
    observed.settings.insert(thread.clone(), fifo);
    let mut policy = whole();
    policy.vms[1].vcpu_cpus = Some(at("99".parse::<CpuSet>().unwrap(), 91));
    let made = possible(&policy, &observed, &held);
    assert!(made.plan.steps.iter().all(|step| step.setting != thread) && made.problems.len() == 1);
    // A section that is not in the policy is another matter.
    policy.vms.remove(1);
    policy.direct.pop();
    let made = possible(&policy, &observed, &held);
    assert!(made.plan.steps.iter().any(|step| step.setting == thread && step.returns()));
}

/// If nothing can be left out, nothing is done.
#[test]
fn a_problem_of_the_whole_policy_leaves_everything_as_it_is() {
    let mut observed = with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]);
    observed.deadline_support = DeadlineSupport::None("the test".into());
    observed.realtime_guard = None;
    let made = possible(&whole(), &observed, &Held::default());
    let found: Vec<String> =
        parts(&made.plan, &observed, &Held::default()).into_iter().map(|part| part.name).collect();
    // What remains of the policy needs neither deadlines nor real-time classes.
    assert_eq!(found, ["the host"], "{:?}", made.problems);
}

/// A name alone does not make another VM the one that a policy was applied to.
#[test]
fn another_vm_of_the_same_name_is_not_meant() {
    let uuid = |n: u128| Some(uuid::Uuid::from_u128(n));
    let host_with = |uuid, uid| {
        let mut observed = with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]);
        (observed.vms[0].identity.uuid, observed.vms[0].identity.uid) = (uuid, Some(uid));
        observed
    };
    let mut policy = whole();
    policy.host.vm_users = Some(at(vec!["root".to_owned(), "64055".to_owned()], 2));
    let vms = meant(&policy, &host_with(uuid(1), 0), "b");
    let known = Some(Known { vms: &vms, boot: "b" });
    assert_eq!(vms.len(), 2);
    let kept = |uuid, uid| present(&policy, &host_with(uuid, uid), known).policy.vms.len();
    assert_eq!(kept(uuid(1), 0), 2);
    assert_eq!((kept(uuid(2), 0), kept(None, 0), kept(uuid(1), 64055)), (1, 1, 1));
    let why = present(&policy, &host_with(uuid(2), 0), known).absent;
    assert!(why[0].contains("another one than the policy was applied to"), "{why:?}");
}

/// A process id is used again, by anybody: `[vm."pid:N"]` means the process that had it when the policy was applied.
#[test]
fn a_process_id_means_one_process() {
    let at_time = |started| {
        let mut observed = with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]);
        observed.vms[1].identity = common::of_user("eve", 1000);
        observed.vms[1].identity.started = started;
        observed
    };
    let policy = Policy { vms: vec![fifo("sip1", 30), fifo("pid:200", 40)], ..Policy::default() };
    let vms = meant(&policy, &at_time(Some(5)), "b");
    let kept = |vms: &BTreeMap<String, VmId>, started, boot| {
        present(&policy, &at_time(started), Some(Known { vms, boot })).policy.vms.len()
    };
    assert_eq!(kept(&vms, Some(5), "b"), 2);
    assert_eq!((kept(&vms, Some(6), "b"), kept(&vms, Some(5), "c"), kept(&vms, None, "b")), (1, 1, 1));
    let why = present(&policy, &at_time(Some(6)), Some(Known { vms: &vms, boot: "b" })).absent;
    assert!(why[0].contains("another one: `teiji apply`"), "{why:?}");
    // Nobody had it then; and what teiji kept before it knew this says nothing of the process.
    let mut former = vms.clone();
    former.get_mut("pid:200").unwrap().process = None;
    assert_eq!((kept(&NO_VMS, Some(5), "b"), kept(&former, Some(5), "b")), (1, 1));
    // A plan means whoever has it now, who has to be there.
    assert_eq!(present(&policy, &at_time(Some(6)), None).policy.vms.len(), 2);
    let gone = present(&policy, &with(&[("sip1", 100)], &[]), None);
    assert!(plan(&gone.policy, &with(&[("sip1", 100)], &[]), &Held::default()).is_err());
}

/// The section of a process that has ended does not let another process with its id take the name of a VM.
#[test]
fn the_section_of_an_ended_process_makes_no_other_one_trusted() {
    let mut observed = with(&[("sip1", 100), ("sip1", 200)], &[]);
    observed.vms[1].identity = common::of_user("eve", 1000);
    observed.vms[1].identity.started = Some(7);
    let policy = Policy { vms: vec![fifo("sip1", 30), fifo("pid:200", 40)], ..Policy::default() };
    let mut vms = BTreeMap::from([("pid:200".to_owned(), observed.vms[1].identity.id_of_process("b"))]);
    vms.get_mut("pid:200").unwrap().process.as_mut().unwrap().started = 6;
    let now = present(&policy, &observed, Some(Known { vms: &vms, boot: "b" }));
    let names: Vec<&str> = now.policy.vms.iter().map(|vm| vm.name.value.as_str()).collect();
    assert_eq!(names, ["sip1"], "{:?}", now.absent);
}

/// The first VM of a name that gets settings is the one that the policy means from then on.
#[test]
fn a_vm_that_comes_later_is_known_by_what_tells_it_from_others() {
    let policy = whole();
    let known = BTreeMap::from([("sip1".to_owned(), VmId { uid: Some(0), ..VmId::default() })]);
    let observed = with(&[("sip1", 100), ("sip2", 200)], &["eth0", "eth1"]);
    let now = present(&policy, &observed, Some(Known { vms: &known, boot: "b" }));
    let expected = (200, ("sip2".to_owned(), observed.vms[1].identity.id()));
    assert_eq!(now.newcomers.into_iter().collect::<Vec<_>>(), [expected]);
}

/// What teiji wrote before a process id was kept is read, and what needs none is written as before.
#[test]
fn what_is_known_of_vms_is_written_as_before() {
    let text = r#"{"uuid":null,"uid":5}"#;
    let id: VmId = serde_json::from_str(text).unwrap();
    assert_eq!((id.uid, id.process.clone()), (Some(5), None));
    assert_eq!(serde_json::to_string(&id).unwrap(), text);
}
