//! Devices that are renamed, and devices of the same name in different network namespaces.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cpus, existing, host, nic, vm};
use teiji_control::plan::plan;
use teiji_model::host::{DataPlane, Nic};
use teiji_model::observed::{LinkKind, Observed, ObservedLink};
use teiji_model::plan::{Held, Hold};
use teiji_model::policy::{Policy, Source};
use teiji_model::qdisc::{ExistingQdisc, RootQdisc};
use teiji_model::resource::{Resource, Value};

fn parsed(text: &str) -> Policy {
    teiji_policy::parse(&[Source { name: "p.toml".into(), text: text.into() }]).unwrap()
}

/// A host whose device 2 has this name, and has what teiji held there when it was `eth0`.
fn renamed(name: &str) -> (Observed, Held) {
    let mut observed = host("0-3", Vec::new(), vec![nic(name, vec![])]);
    let mut held = Held::default();
    let former = nic("eth0", vec![]).device();
    let pfifo = ExistingQdisc { kind: "pfifo".into(), chosen: true, options: Vec::new() };
    for (resource, original, value) in [
        (Resource::ReceiveCpus(former.clone(), 0), Value::Cpus(cpus("")), Value::Cpus(cpus("1"))),
        (Resource::SegmentSize(former.clone()), Value::Bytes(65_536), Value::Bytes(4096)),
        (
            Resource::RootQdisc(former),
            Value::RootQdisc(existing()),
            Value::RootQdisc(RootQdisc::Existing(Box::new(pfifo))),
        ),
    ] {
        for (observed, present) in observed.settings.iter_mut() {
            if observed.kind() == resource.kind() {
                *present = value.clone();
            }
        }
        let hold = Hold { whose: "eth0".into(), original, value, since: 1, reason: "link.eth0".into() };
        held.settings.insert(resource, hold);
    }
    (observed, held)
}

#[test]
fn what_is_held_returns_although_its_device_was_renamed() {
    let (observed, held) = renamed("lan0");
    let plan = plan(&Policy::default(), &observed, &held).unwrap();
    assert_eq!(plan.warnings, Vec::<String>::new());
    let steps: Vec<String> =
        plan.steps.iter().map(|s| format!("{}: {} -> {}", s.setting, s.present, s.wanted)).collect();
    assert_eq!(
        steps,
        [
            "root qdisc of lan0: pfifo -> fq_codel",
            "gso_max_size of lan0: 4096 bytes -> 65536 bytes",
            "rps_cpus of lan0 queue 0: 1 -> none",
        ],
        "the name is the present one"
    );
}

#[test]
fn what_is_held_and_asked_for_under_the_new_name_stays() {
    let (observed, held) = renamed("lan0");
    let found = plan(&parsed("[link.lan0]\nrps_cpus = \"1\"\n"), &observed, &held).unwrap();
    assert!(found.steps.iter().all(|step| !matches!(step.setting, Resource::ReceiveCpus(..))), "{found:?}");
    // Somebody else has changed it since.
    let mut changed = observed.clone();
    changed.settings.insert(Resource::ReceiveCpus(nic("lan0", vec![]).device(), 0), Value::Cpus(cpus("3")));
    let found = plan(&parsed("[link.lan0]\nrps_cpus = \"1\"\n"), &changed, &held).unwrap();
    assert!(found.warnings[0].contains("changed by someone else from 1 to 3"), "{:?}", found.warnings);
}

/// The tap of a VM in another network namespace is known by its name only, and a device of the same name here is a
/// different one.
#[test]
fn a_tap_of_another_namespace_is_not_one_of_the_same_name_here() {
    let tap = |index| Nic {
        tap: "tap0".into(),
        ifindex: index,
        mac: None,
        bridge: None,
        data_plane: DataPlane::VhostNet,
        queues: 1,
    };
    let (mut here, mut elsewhere) =
        (vm("here", 100, 1, 1, None, false), vm("elsewhere", 200, 1, 1, None, false));
    (here.vm.nics, elsewhere.vm.nics) = (vec![tap(2)], vec![tap(0)]);
    let link = ObservedLink { kind: LinkKind::Tap, ..nic("tap0", vec![]) };
    let observed = host("0-3", vec![here, elsewhere], vec![link]);
    let plan_of = |name: &str| {
        plan(&parsed(&format!("[vm.{name}]\nrps_cpus = \"1\"\n")), &observed, &Held::default()).unwrap()
    };
    assert_eq!(plan_of("here").steps.len(), 1);
    let plan = plan_of("elsewhere");
    assert_eq!(plan.steps, [], "another VM's tap is changed");
    assert!(plan.warnings[0].contains("`vm.elsewhere.rps_cpus` has no effect"), "{:?}", plan.warnings);
}
