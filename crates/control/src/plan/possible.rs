//! The part of a policy that can be planned although other parts of it have problems: a daemon keeps the other sections
//! while one asks for what the host cannot do at present, such as a CPU that was taken offline.
//!
//! ```text
//!  policy ──► plan ──► Ok
//!    ▲         │
//!    │         └──► problems ──► the sections that their places are in ──► left out, until nothing is
//!    └─────────────────────────────────────────────────────────────────────┘
//! ```
//! What belongs to a section that is left out stays as it is: while there is any, no step returns a setting to its original
//! value, although no line asks for it. The channels of a link are changed together, so they are left out together.

use super::{Rest, made};
use crate::plan::present::{link_of, only_link};
use std::collections::BTreeSet;
use teiji_model::observed::Observed;
use teiji_model::plan::{Held, Plan};
use teiji_model::policy::{
    ChannelPolicy, HostPolicy, LinkPolicy, Located, Policy, Problem, SourceLocation, Subject, VmPolicy,
};

/// What can be done of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Possible {
    /// The steps for the sections that have no problem.
    pub plan: Plan,
    /// Why others are left out.
    pub problems: Vec<Problem>,
}

/// The steps for as much of the policy as can be planned.
pub fn possible(policy: &Policy, observed: &Observed, held: &Held) -> Possible {
    let mut left = policy.clone();
    let mut problems: Vec<Problem> = Vec::new();
    loop {
        let rest = if problems.is_empty() { Rest::Returns } else { Rest::Stays };
        match made(&left, observed, held, rest, &|resource| resource.kind().class()) {
            Ok(plan) => return Possible { plan, problems },
            Err(found) => {
                let fewer = leave_out(&mut left, &found);
                problems.extend(found);
                if !fewer {
                    return Possible { plan: Plan::default(), problems };
                }
            }
        }
    }
}

/// Leaves out the sections that the problems are in. Returns whether there was any.
fn leave_out(policy: &mut Policy, problems: &[Problem]) -> bool {
    let before = policy.clone();
    let places: Vec<&SourceLocation> = problems.iter().map(|problem| &problem.location).collect();
    let is_at = |location: &SourceLocation| places.contains(&location);
    let mut vms: BTreeSet<String> =
        names(policy.vms.iter().filter(|vm| of_vm(vm).any(is_at)).map(|vm| &vm.name));
    let mut links: BTreeSet<String> =
        names(policy.links.iter().filter(|link| of_link(link).any(is_at)).map(|link| &link.name));
    for setting in &policy.direct {
        match &setting.subject {
            Subject::Vm(name) if is_at(&setting.value.location) => vms.insert(name.value.clone()),
            Subject::Link(name) if is_at(&setting.value.location) || is_at(&name.location) => {
                links.insert(name.value.clone())
            }
            _ => false,
        };
    }
    let only = only_link(&policy.links).cloned();
    let link = |channel: &ChannelPolicy| link_of(channel, only.as_ref()).map(|link| link.value);
    let bad_channels = policy.channels.iter().filter(|channel| of_channel(channel).any(is_at));
    links.extend(bad_channels.filter_map(link));

    without(&mut policy.host, is_at);
    policy.vms.retain(|vm| !vms.contains(&vm.name.value));
    policy.links.retain(|link| !links.contains(&link.name.value));
    policy.channels.retain(|channel| {
        !of_channel(channel).any(is_at) && link(channel).is_none_or(|name| !links.contains(&name))
    });
    policy.vfs.retain(|vf| !is_at(&vf.link.location) && !links.contains(&vf.link.value));
    policy.direct.retain(|setting| match &setting.subject {
        Subject::Host => !is_at(&setting.value.location),
        Subject::Link(name) => !links.contains(&name.value),
        Subject::Vm(name) => !vms.contains(&name.value),
    });
    *policy != before
}

fn names<'a>(all: impl Iterator<Item = &'a Located<String>>) -> BTreeSet<String> {
    all.map(|name| name.value.clone()).collect()
}

fn place<T>(of: &Option<Located<T>>) -> Option<&SourceLocation> {
    of.as_ref().map(|located| &located.location)
}

fn of_vm(vm: &VmPolicy) -> impl Iterator<Item = &SourceLocation> {
    let VmPolicy { name, class, vcpu_cpus, worker_cpus, weight, quota } = vm;
    let keys = [place(class), place(vcpu_cpus), place(worker_cpus), place(weight), place(quota)];
    keys.into_iter().flatten().chain([&name.location])
}

fn of_link(link: &LinkPolicy) -> impl Iterator<Item = &SourceLocation> {
    let LinkPolicy { name, irq_cpus, rate, slack, max_packet, realtime_max } = link;
    let keys = [place(irq_cpus), place(rate), place(slack), place(max_packet), place(realtime_max)];
    keys.into_iter().flatten().chain([&name.location])
}

fn of_channel(channel: &ChannelPolicy) -> impl Iterator<Item = &SourceLocation> {
    let ChannelPolicy { name, link, from, to, proto, deadline, min_rate, burst, vm } = channel;
    let keys = [place(link), place(from), place(to), place(proto), place(burst), place(vm)];
    keys.into_iter().flatten().chain([&name.location, &deadline.location, &min_rate.location])
}

/// Each key of `[host]` is one by itself, but for the CPUs of another.
fn without(host: &mut HostPolicy, is_at: impl Fn(&SourceLocation) -> bool) {
    let HostPolicy { halt_poll, cpu_latency, cpu_latency_cpus, vm_users: _ } = host;
    halt_poll.take_if(|key| is_at(&key.location));
    if place(cpu_latency).is_some_and(&is_at) || place(cpu_latency_cpus).is_some_and(&is_at) {
        (*cpu_latency, *cpu_latency_cpus) = (None, None);
    }
}
