//! The part of a policy that can be planned on a host as it is now: a daemon keeps a policy while VMs and links come and
//! go, so a section that means none of them at present is no mistake.

use super::{HostAndHeld, Rest, names};
use std::collections::BTreeMap;
use teiji_model::host::VmId;
use teiji_model::observed::Observed;
use teiji_model::plan::Held;
use teiji_model::policy::{ChannelPolicy, LinkPolicy, Located, Policy, Subject};
use teiji_model::resource::Resource;
use teiji_model::text::printable;

/// The part of a policy that a host can keep at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The sections that mean something on this host, and those about the host as a whole.
    pub policy: Policy,
    /// Why each other section is left out, in the order of the policy; printable.
    pub absent: Vec<String>,
}

/// The VMs that the sections of a policy mean, by name.
pub fn meant(policy: &Policy, observed: &Observed) -> BTreeMap<String, VmId> {
    let (trusted, untrusted) = names::by_trust(policy, observed);
    let held = Held::default();
    let class = |resource: &Resource| resource.kind().class();
    let host = HostAndHeld {
        observed: &trusted,
        held: &held,
        rest: Rest::Returns,
        untrusted: &untrusted,
        class: &class,
    };
    let of = |name: &String| Some((name.clone(), names::vm(name, host).ok()?.identity.id()));
    policy.vms.iter().filter_map(|section| of(&section.name.value)).collect()
}

/// Leaves out the sections of VMs and links that are not there or cannot be told apart, and the channels of such links.
/// `known` are the VMs that were meant by a name before: another VM with that name is not meant.
pub fn present(policy: &Policy, observed: &Observed, known: &BTreeMap<String, VmId>) -> Present {
    let (trusted, untrusted) = names::by_trust(policy, observed);
    let held = Held::default();
    let class = |resource: &Resource| resource.kind().class();
    let host = HostAndHeld {
        observed: &trusted,
        held: &held,
        rest: Rest::Returns,
        untrusted: &untrusted,
        class: &class,
    };
    let mut absent = Vec::new();
    let mut kept = policy.clone();
    let has_vm = |name: &Located<String>| -> Result<(), String> {
        let found = names::vm(&name.value, host)?;
        match known.get(&name.value) {
            Some(before) if !before.may_be(&found.identity.id()) => Err(format!(
                "the VM of that name (pid {}) is another one than the policy was applied to, as its UUID or user shows: \
                 `teiji apply` makes it the one that is meant",
                found.vm.pid
            )),
            _ => Ok(()),
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
    Present { policy: kept, absent }
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
