//! Processes that use the name of a VM: a section does not mean them, and they change nothing for the real VM.
#![allow(clippy::unwrap_used)]

mod common;

use common::{any_channels, any_host, any_policy, at, cpus, host, of_user, vm};
use proptest::prelude::*;
use teiji_control::plan::plan;
use teiji_model::host::{Identity, NamedBy};
use teiji_model::observed::{Manager, Observed, ObservedVm};
use teiji_model::plan::Held;
use teiji_model::policy::{HostPolicy, Policy, VmPolicy};
use teiji_model::resource::{Resource, ResourceKind, Scheduling, Value};

fn policy(name: &str) -> Policy {
    let vm = VmPolicy {
        name: at(name.to_owned(), 1),
        class: None,
        vcpu_cpus: Some(at(cpus("1"), 2)),
        worker_cpus: None,
        weight: None,
        quota: None,
    };
    Policy { vms: vec![vm], ..Policy::default() }
}

fn untrusted(name: &str, pid: u32) -> ObservedVm {
    ObservedVm { identity: of_user("eve", 1000), ..vm(name, pid, 1, 0, None, false) }
}

fn with(others: Vec<ObservedVm>) -> Observed {
    let mut all = vec![vm("sip1", 100, 1, 0, None, false)];
    all.extend(others);
    host("0-3", all, Vec::new())
}

fn refusal(policy: &Policy, observed: &Observed) -> String {
    plan(policy, observed, &Held::default()).unwrap_err()[0].to_string()
}

#[test]
fn an_untrusted_name_is_ignored_and_told() {
    let made = plan(&policy("sip1"), &with(vec![untrusted("sip1", 200)]), &Held::default()).unwrap();
    assert_eq!(made.steps, plan(&policy("sip1"), &with(Vec::new()), &Held::default()).unwrap().steps);
    assert_eq!(made.warnings, ["another process calls itself sip1: pid 200, user eve; ignored"]);
}

#[test]
fn a_name_that_nobody_vouches_for_is_refused_unless_its_user_is_allowed() {
    let observed = with(vec![untrusted("web", 200)]);
    let text = refusal(&policy("web"), &observed);
    for part in ["calls itself `web`", "pid 200, user eve", "vm_users", "[vm.\"pid:"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    // Its process id means it nevertheless.
    assert_eq!(plan(&policy("pid:200"), &observed, &Held::default()).unwrap().steps.len(), 1);
    for users in ["eve", "1000"] {
        let host = HostPolicy { vm_users: Some(at(vec![users.to_owned()], 9)), ..HostPolicy::default() };
        let allowed = Policy { host, ..policy("web") };
        assert_eq!(plan(&allowed, &observed, &Held::default()).unwrap().steps.len(), 1);
        // The list is complete: root's VM is then no longer trusted.
        assert!(refusal(&Policy { vms: policy("sip1").vms, ..allowed }, &observed).contains("user root"));
    }
    // The user of libvirt's VMs is trusted by default, but not where libvirt could have confirmed the name.
    let of = |unconfirmed| {
        let identity = Identity { unconfirmed, ..of_user("libvirt-qemu", 64055) };
        with(vec![ObservedVm { identity, ..untrusted("web", 200) }])
    };
    assert_eq!(plan(&policy("web"), &of(false), &Held::default()).unwrap().steps.len(), 1);
    assert!(refusal(&policy("web"), &of(true)).contains("user libvirt-qemu"));
    let host = HostPolicy { vm_users: Some(at(vec!["libvirt-qemu".into()], 9)), ..HostPolicy::default() };
    let allowed = Policy { host, ..policy("web") };
    assert_eq!(plan(&allowed, &of(true), &Held::default()).unwrap().steps.len(), 1);
    // libvirt's confirmation counts, whatever the user of the process.
    let mut known = untrusted("web", 200);
    known.identity.named_by = NamedBy::Libvirt;
    assert_eq!(plan(&policy("web"), &with(vec![known]), &Held::default()).unwrap().steps.len(), 1);
    // Nor is it listed among those that exist.
    let text = refusal(&policy("webb"), &observed);
    assert!(text.contains("there is `sip1`") && !text.contains("`web`"), "{text}");
}

#[test]
fn two_trusted_vms_of_a_name_are_refused_with_both_pids() {
    let text =
        refusal(&policy("sip1"), &with(vec![vm("sip1", 200, 1, 0, None, false), untrusted("sip1", 300)]));
    assert!(text.contains("2 VMs are named `sip1`"), "{text}");
    assert!(text.contains("pid:100") && text.contains("pid:200") && !text.contains("300"), "{text}");
}

#[test]
fn names_of_users_reach_no_terminal() {
    let mut evil = untrusted("sip1", 200);
    evil.identity.user = Some("e\x1b[2J".into());
    let made = plan(&policy("sip1"), &with(vec![evil]), &Held::default()).unwrap();
    assert!(made.warnings[0].contains("user e\\u{1b}[2J"), "{:?}", made.warnings);
}

prop_compose! {
    /// A process that may have the name of any VM of [`any_host`], with real-time threads on any CPUs, and a manager.
    fn any_untrusted()(
        name in prop::sample::select(vec!["vm0", "vm1", "vm2", "pid:300", "x"]),
        uid in prop::option::of(1000..1003u32),
        escaped in any::<bool>(),
        threads in (0..4u32, 0..3u32),
        priority in prop::option::of(1..=99u8),
        cpu in 0..6u32,
    ) -> (ObservedVm, Vec<(Resource, Value)>) {
        // Of any user; or of that of libvirt's VMs, where libvirt does not confirm the name.
        let identity = match escaped {
            true => Identity { unconfirmed: true, ..of_user("libvirt-qemu", 64055) },
            false => Identity { uid, user: uid.map(|uid| format!("u{uid}")), ..of_user("", 0) },
        };
        let made = ObservedVm { identity, ..vm(name, 5000, threads.0, threads.1, None, false) };
        let scheduling = priority.map_or(common::DEFAULT, |priority| Scheduling::Fifo { priority });
        let of = |task| [
            (Resource::ThreadScheduling(task), Value::Scheduling(scheduling)),
            (Resource::ThreadCpus(task), Value::Cpus([cpu].into_iter().collect())),
        ];
        let settings = made.vcpus.iter().chain(&made.workers).flat_map(|task| of(*task)).collect();
        (made, settings)
    }
}

proptest! {
    #[test]
    fn an_untrusted_name_never_changes_a_plan(
        observed in any_host(),
        wanted in prop_oneof![any_policy(), any_channels()],
        (untrusted, settings) in any_untrusted(),
        first in any::<bool>(),
    ) {
        let mut joined = observed.clone();
        joined.settings.extend(settings);
        let advice = "it does things".to_owned();
        let touches = vec![ResourceKind::ThreadCpus, ResourceKind::ThreadScheduling, ResourceKind::Group];
        joined.managers.push(Manager { name: "x".into(), advice, touches, vm: Some(untrusted.process) });
        joined.vms.insert(if first { 0 } else { observed.vms.len() }, untrusted);

        let (alone, beside) = (plan(&wanted, &observed, &Held::default()), plan(&wanted, &joined, &Held::default()));
        let unrelated = |w: &String| !w.starts_with("another process calls itself");
        match (alone, beside) {
            (Ok(alone), Ok(mut beside)) => {
                beside.warnings.retain(unrelated);
                prop_assert_eq!(alone, beside);
            }
            (Err(alone), Err(beside)) => {
                // The message may say that there is such a process, instead of that there is none.
                let places = |all: &[teiji_model::policy::Problem]| -> Vec<_> {
                    all.iter().map(|p| p.location.clone()).collect()
                };
                prop_assert_eq!(places(&alone), places(&beside));
            }
            (alone, beside) => prop_assert!(false, "{alone:?} became {beside:?}"),
        }
    }
}
