//! Which VM or link a section means. The names in the policy and on the host are untrusted and are shown with escapes.
//!
//! A process may choose any name. If nothing confirms its name, `[vm.NAME]` does not mean that process, and its threads
//! do not count in what is planned for others. `[vm."pid:N"]` means it nevertheless.

use super::{Draft, HostAndHeld};
use teiji_model::host::Identity;
use teiji_model::observed::{Observed, ObservedLink, ObservedVm};
use teiji_model::policy::{Located, Policy, VmPolicy};
use teiji_model::text::printable;

/// How many names a message lists; further names are counted.
const LISTED: usize = 8;
/// How many characters of a name a message shows.
const SHOWN: usize = 60;

/// A name that may be printed: escaped, and truncated if it is long.
pub(crate) fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(SHOWN).collect();
    if text.len() < name.len() {
        text.push('…');
    }
    printable(&text)
}

/// The host without VMs whose names are untrusted, and those VMs.
pub(super) fn by_trust(policy: &Policy, observed: &Observed) -> (Observed, Vec<ObservedVm>) {
    let doubt = |identity: &Identity| match &policy.host.vm_users {
        Some(users) => identity.doubt(&users.value),
        None => identity.doubt_by_default(),
    };
    let named = |vm: &ObservedVm| {
        let name = format!("pid:{}", vm.vm.pid);
        policy.vms.iter().any(|section| section.name.value == name)
    };
    let is_trusted = |vm: &&ObservedVm| named(vm) || doubt(&vm.identity).is_none();
    let (vms, untrusted): (Vec<_>, Vec<_>) = observed.vms.iter().partition(is_trusted);
    let untrusted: Vec<ObservedVm> = untrusted.into_iter().cloned().collect();
    let mut trusted = Observed { vms: vms.into_iter().cloned().collect(), ..observed.clone() };
    trusted.managers.retain(|m| m.vm.is_none_or(|vm| untrusted.iter().all(|o| o.process != vm)));
    (trusted, untrusted)
}

/// The other processes with this name, for people.
fn others(name: &str, host: HostAndHeld<'_>) -> Vec<String> {
    let called_so = host.untrusted.iter().filter(|o| o.vm.name == name);
    called_so
        .map(|o| {
            // The names of processes listed here are untrusted, whichever users are trusted.
            let whose = o.identity.doubt::<&str>(&[]).unwrap_or_default();
            format!("pid {}, {}", o.vm.pid, shown(&whose))
        })
        .collect()
}

/// The policy's sections with the VM that each means, in the order of the policy. A section that means no VM, or a VM
/// that another section means, too, is a problem.
pub(super) fn vms<'a>(
    sections: &'a [VmPolicy],
    host: HostAndHeld<'a>,
    draft: &mut Draft,
) -> Vec<(&'a VmPolicy, &'a ObservedVm)> {
    let mut found: Vec<(&VmPolicy, &ObservedVm)> = Vec::new();
    for section in sections {
        let vm = match vm(&section.name.value, host) {
            Ok(vm) => {
                let others = others(&section.name.value, host);
                if !others.is_empty() {
                    let processes =
                        if others.len() == 1 { "another process calls" } else { "other processes call" };
                    let reflexive = if others.len() == 1 { "itself" } else { "themselves" };
                    draft.warnings.push(format!(
                        "{processes} {reflexive} {}: {}; ignored",
                        shown(&section.name.value),
                        others.join("; ")
                    ));
                }
                vm
            }
            Err(message) => {
                draft.problem(&section.name.location, message);
                continue;
            }
        };
        match found.iter().find(|(_, other)| other.process == vm.process) {
            Some((first, _)) => draft.problem(
                &section.name.location,
                format!(
                    "`{}` and `{}` ({}) are the same VM (pid {}): write one section for it",
                    shown(&section.name.value),
                    shown(&first.name.value),
                    first.name.location,
                    vm.vm.pid
                ),
            ),
            None => found.push((section, vm)),
        }
    }
    found
}

/// The process id that a section names its VM by.
pub(super) fn process_id(name: &str) -> Option<&str> {
    name.strip_prefix("pid:")
}

/// Why a name means no VM.
pub(super) enum NotMeant {
    /// There is none.
    Absent(String),
    /// There are several.
    Ambiguous(String),
}

impl From<NotMeant> for String {
    fn from(why: NotMeant) -> String {
        match why {
            NotMeant::Absent(why) | NotMeant::Ambiguous(why) => why,
        }
    }
}

/// The VM that a section means. `pid:N` is always a process id: otherwise a VM with such a name could be mistaken for
/// another.
pub(super) fn vm<'a>(name: &str, host: HostAndHeld<'a>) -> Result<&'a ObservedVm, NotMeant> {
    let observed = host.observed;
    let by_pid = process_id(name);
    let found: Vec<&ObservedVm> = observed
        .vms
        .iter()
        .filter(|o| match by_pid {
            Some(pid) => pid.parse() == Ok(o.vm.pid),
            None => o.vm.name == name,
        })
        .collect();
    match found[..] {
        [one] => Ok(one),
        [] if by_pid.is_none() && !others(name, host).is_empty() => Err(NotMeant::Absent(format!(
            "a process calls itself `{}`, but nothing confirms that name: {}; if that is the VM you mean, add its \
             user to `vm_users` of [host], or name it by its process id, as in [vm.\"pid:1234\"]",
            shown(name),
            others(name, host).join("; ")
        ))),
        [] => {
            let names = observed.vms.iter().map(|o| o.vm.name.as_str());
            Err(NotMeant::Absent(format!(
                "there is no VM `{}`; {}",
                shown(name),
                there_is("VM", name, names)
            )))
        }
        _ => {
            let mut pids: Vec<u32> = found.iter().map(|o| o.vm.pid).collect();
            pids.sort_unstable();
            let sections: Vec<String> = pids.iter().map(|pid| format!("[vm.\"pid:{pid}\"]")).collect();
            let (name, count) = (shown(name), found.len());
            let which = sections.join(" or ");
            Err(NotMeant::Ambiguous(format!("{count} VMs are named `{name}`; say which: {which}")))
        }
    }
}

/// The device with this name.
pub(super) fn link<'a>(name: &Located<String>, observed: &'a Observed) -> Result<&'a ObservedLink, String> {
    observed.links.iter().find(|l| l.name == name.value).ok_or_else(|| {
        let names = observed.links.iter().map(|l| l.name.as_str());
        let name = &name.value;
        format!("there is no link `{}`; {}", shown(name), there_is("link", name, names))
    })
}

/// The names that exist, the most similar first.
fn there_is<'a>(noun: &str, name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    names.sort_by_cached_key(|other| strsim::damerau_levenshtein(name, other));
    let more = names.len().saturating_sub(LISTED);
    let listed: Vec<String> = names.iter().take(LISTED).map(|n| format!("`{}`", shown(n))).collect();
    match (listed.is_empty(), more) {
        (true, _) => format!("this host has no {noun} at present"),
        (false, 0) => format!("there is {}", listed.join(", ")),
        (false, more) => format!("there is {} and {more} more", listed.join(", ")),
    }
}
