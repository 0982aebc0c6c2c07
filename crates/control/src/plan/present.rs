//! The part of a policy that can be planned on a host as it is now: a daemon keeps a policy while VMs and links come and
//! go, so a section that means none of them at present is no mistake.

use super::names::NotMeant;
use super::{HostAndHeld, Rest, names};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::VmId;
use teiji_model::observed::{Observed, ObservedVm};
use teiji_model::plan::Held;
use teiji_model::policy::{ChannelPolicy, LinkPolicy, Located, Policy, Subject, VmPolicy};
use teiji_model::resource::{Class, Resource};
use teiji_model::text::printable;

/// The part of a policy that a host can keep at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The sections that mean something on this host, and those about the host as a whole.
    pub policy: Policy,
    /// Why each other section is left out, in the order of the policy; printable.
    pub absent: Vec<String>,
    /// The VMs of the sections that meant none before: by process id, the name and what tells the VM from others.
    pub newcomers: BTreeMap<u32, (String, VmId)>,
}

/// What is known of the VMs that a policy meant before.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// By the name of the section.
    pub vms: &'a BTreeMap<String, VmId>,
    /// The boot id of the host now.
    pub boot: &'a str,
}

/// The VMs that the sections of a policy mean, by name. `boot`: the boot id of the host.
pub fn meant(policy: &Policy, observed: &Observed, boot: &str) -> BTreeMap<String, VmId> {
    let (trusted, untrusted) = names::by_trust(policy, observed);
    let held = Held::default();
    let class = |resource: &Resource| resource.kind().class();
    let host = host(&trusted, &untrusted, &held, &class);
    let of = |name: &String| Some((name.clone(), id(name, names::vm(name, host).ok()?, boot)));
    policy.vms.iter().filter_map(|section| of(&section.name.value)).collect()
}

fn host<'a>(
    observed: &'a Observed,
    untrusted: &'a [ObservedVm],
    held: &'a Held,
    class: &'a dyn Fn(&Resource) -> Class,
) -> HostAndHeld<'a> {
    HostAndHeld { observed, held, rest: Rest::Returns, untrusted, class }
}

/// What tells the VM that a section of this name means from others.
fn id(name: &str, vm: &ObservedVm, boot: &str) -> VmId {
    match names::process_id(name) {
        Some(_) => vm.identity.id_of_process(boot),
        None => vm.identity.id(),
    }
}

/// Leaves out the sections of VMs and links that are not there, and the channels of such links. A section whose VM cannot be told
/// from another one of its name stays: that is a problem of the plan, so that what is held for it stays as it is.
/// With `known`, another VM of a name that a VM was meant by before is not meant, and a process id means only the process
/// that had it when the policy was applied. Without, it means whoever has it, who has to be there.
pub fn present(policy: &Policy, observed: &Observed, known: Option<Known<'_>>) -> Present {
    // Sections that name a process id make its VM count as trusted, so those that do not mean it go first.
    let mut kept = policy.clone();
    let not_meant =
        |section: &VmPolicy| known.is_some_and(|known| is_other_process(section, observed, known));
    let others: BTreeSet<&str> =
        policy.vms.iter().filter(|vm| not_meant(vm)).map(|vm| vm.name.value.as_str()).collect();
    kept.vms.retain(|section| !others.contains(section.name.value.as_str()));
    let (trusted, untrusted) = names::by_trust(&kept, observed);
    kept = policy.clone();
    let held = Held::default();
    let class = |resource: &Resource| resource.kind().class();
    let host = host(&trusted, &untrusted, &held, &class);
    let mut absent = Vec::new();
    let newcomers = RefCell::new(BTreeMap::new());
    let has_vm = |name: &Located<String>| -> Result<(), String> {
        let Some(known) = known else {
            let by_id = names::process_id(&name.value).is_some();
            return match names::vm(&name.value, host) {
                Err(NotMeant::Absent(why)) if !by_id => Err(why),
                _ => Ok(()),
            };
        };
        if others.contains(name.value.as_str()) {
            return Err(
                "a process id means only the process that had it when the policy was applied, and this is \
                        another one: `teiji apply` makes it the one that is meant"
                    .to_owned(),
            );
        }
        let found = match names::vm(&name.value, host) {
            Ok(found) => found,
            Err(NotMeant::Absent(why)) => return Err(why),
            Err(NotMeant::Ambiguous(_)) => return Ok(()),
        };
        let now = id(&name.value, found, known.boot);
        match known.vms.get(&name.value) {
            Some(before) if !before.may_be(&now) => Err(format!(
                "the VM of that name (pid {}) is another one than the policy was applied to, as its UUID or user shows: \
                 `teiji apply` makes it the one that is meant",
                found.vm.pid
            )),
            Some(_) => Ok(()),
            None => {
                newcomers.borrow_mut().insert(found.vm.pid, (name.value.clone(), now));
                Ok(())
            }
        }
    };
    let has_link = |name: &Located<String>| names::link(name, &trusted).map(|_| ());
    kept.vms.retain(|section| keep("vm", &section.name, has_vm(&section.name), &mut absent));
    kept.links.retain(|section| keep("link", &section.name, has_link(&section.name), &mut absent));
    // Before links are left out: a channel that names none means the only one of the policy.
    let only = only_link(&policy.links);
    kept.channels.retain_mut(|channel| {
        let Some(link) = link_of(channel, only) else { return true };
        let there = has_link(&link);
        channel.link = Some(link);
        keep("channel", &channel.name, there, &mut absent)
    });
    kept.vfs.retain(|section| has_link(&section.link).is_ok());
    kept.direct.retain(|setting| match &setting.subject {
        Subject::Host => true,
        Subject::Link(name) => keep("link", name, has_link(name), &mut absent),
        Subject::Vm(name) => has_vm(name).is_ok(),
    });
    Present { policy: kept, absent, newcomers: newcomers.into_inner() }
}

/// Whether a section names a process id that another process than the one meant has now.
fn is_other_process(section: &VmPolicy, observed: &Observed, known: Known<'_>) -> bool {
    let name = &section.name.value;
    let Some(pid) = names::process_id(name) else { return false };
    let Some(vm) = observed.vms.iter().find(|vm| pid.parse() == Ok(vm.vm.pid)) else { return false };
    let before = known.vms.get(name).filter(|before| before.process.is_some());
    before.is_none_or(|before| !before.may_be(&id(name, vm, known.boot)))
}

/// Whether a section is kept; if not, this is recorded.
fn keep(kind: &str, name: &Located<String>, there: Result<(), String>, absent: &mut Vec<String>) -> bool {
    if let Err(why) = &there {
        let text = printable(&format!("{kind}.{} ({}): {why}", names::shown(&name.value), name.location));
        if !absent.contains(&text) {
            absent.push(text);
        }
    }
    there.is_ok()
}

pub(super) fn only_link(links: &[LinkPolicy]) -> Option<&Located<String>> {
    match links {
        [one] => Some(&one.name),
        _ => None,
    }
}

/// The link that a channel leaves by; `None` if the policy does not say so, which is a problem of the policy.
pub(super) fn link_of(channel: &ChannelPolicy, only: Option<&Located<String>>) -> Option<Located<String>> {
    channel.link.as_ref().or(only).cloned()
}
