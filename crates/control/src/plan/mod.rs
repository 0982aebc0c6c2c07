//! Finds the steps from the present state to the wanted one.
//!
//! ```text
//! policy ── names ──► wanted settings ── checks ──► compared with present and held values ── order ──► Plan
//! ```
//!
//! | module | decides |
//! | --- | --- |
//! | `names` | which VM and which link a section means |
//! | `wanted` | which settings a section asks for, and their values |
//! | `channels` | what the channels require of their links: queues, segments, and the guarantees |
//! | `packets` | what a VM needs whose threads go by the deadlines of packets |
//! | `checks` | whether they are acceptable on this host |
//! | `starvation` | whether real-time threads would starve each other |
//! | `steps` | which of them differ, and the order of the changes |
//! | `present` | which part of a policy can be planned on a host as it is now |
//! | `possible` | which part of a policy can be planned although the rest has problems |
//! | `parts` | which steps can be taken without each other |
//!
//! A setting that teiji does not hold and that already has the wanted value is left alone: somebody else has set it. A
//! setting that teiji holds and that no line of the policy asks for any more returns to its original value, unless
//! somebody else has changed it since.

mod channels;
mod checks;
mod names;
mod packets;
mod parts;
mod possible;
mod present;
mod starvation;
mod steps;
mod wanted;

pub(crate) use checks::reason;
pub(crate) use names::shown;
pub use packets::{MAX_THREADS, MAX_VMS};
pub use parts::{Of, Part, parts};
pub use possible::{Possible, possible};
pub use present::{Known, Present, meant, present};

use std::collections::BTreeSet;
use teiji_model::observed::{Observed, ObservedVm};
use teiji_model::plan::{Asked, Held, LinkGuarantee, Plan};
use teiji_model::policy::{Policy, Problem, SourceLocation};
use teiji_model::resource::{Class, Resource, Value};
use teiji_model::text::printable;

/// The steps that give the host the state that the policy asks for. The same arguments give the same steps.
///
/// # Errors
/// All problems of the policy on this host, each with its place and what to do about it; never empty.
pub fn plan(policy: &Policy, observed: &Observed, held: &Held) -> Result<Plan, Vec<Problem>> {
    plan_with_classes(policy, observed, held, &|resource| resource.kind().class())
}

/// The same if resources are changed in these ways.
///
/// # Errors
/// As [`plan`].
pub fn plan_with_classes(
    policy: &Policy,
    observed: &Observed,
    held: &Held,
    class: &dyn Fn(&Resource) -> Class,
) -> Result<Plan, Vec<Problem>> {
    made(policy, observed, held, Rest::Returns, class)
}

/// What becomes of the settings that teiji holds and that no line of the policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// They return to their original values.
    Returns,
    /// They stay as they are: they may belong to a section that is left out.
    Stays,
}

fn made(
    policy: &Policy,
    observed: &Observed,
    held: &Held,
    rest: Rest,
    class: &dyn Fn(&Resource) -> Class,
) -> Result<Plan, Vec<Problem>> {
    let mut draft = Draft::default();
    let (trusted, untrusted) = names::by_trust(policy, observed);
    let observed = &trusted;
    let host = HostAndHeld { observed, held, rest, untrusted: &untrusted, class };
    wanted::collect(policy, host, &mut draft);
    checks::check(host, &mut draft);
    if !draft.problems.is_empty() {
        // The problems are found kind by kind, but people read from the top.
        draft.problems.sort_by(|a, b| {
            let key = |p: &Problem| (p.location.file.clone(), p.location.line, p.location.column);
            key(a).cmp(&key(b))
        });
        draft.problems.dedup();
        return Err(draft.problems);
    }
    packets::from_kick(policy, host, &mut draft);
    let plan = steps::steps_to_take(&draft.wants, draft.warnings, host);
    let reasons: BTreeSet<&str> = plan.steps.iter().map(|step| step.reason.as_str()).collect();
    let asking = draft.wants.iter().filter(|want| reasons.contains(want.reason.as_str()));
    let asked = asking.map(|want| (want.reason.clone(), deciding_lines(policy, &want.location))).collect();
    let overridden = policy.overridden.clone();
    let packet_vms = draft.promises.into_iter().map(|promise| promise.vm).collect();
    Ok(Plan { links: draft.links, packet_vms, first: draft.first, asked, overridden, ..plan })
}

/// The line at this place, and those that complete its value.
fn deciding_lines(policy: &Policy, location: &SourceLocation) -> Asked {
    let completed = policy.completed.iter().find(|line| line.location == *location);
    let with = completed.map_or_else(Vec::new, |line| line.with.clone());
    Asked { location: location.clone(), with }
}

/// A host and what teiji holds on it.
#[derive(Clone, Copy)]
struct HostAndHeld<'a> {
    observed: &'a Observed,
    held: &'a Held,
    rest: Rest,
    /// VMs with untrusted names; they are not in `observed`.
    untrusted: &'a [ObservedVm],
    /// How each resource is changed.
    class: &'a dyn Fn(&Resource) -> Class,
}

/// Something is wrong, and has been recorded as a problem.
#[derive(Debug)]
struct ErrorReported;

/// A plan while it is being made.
#[derive(Default)]
struct Draft {
    /// In the order of the policy; each setting occurs once.
    wants: Vec<WantedSetting>,
    problems: Vec<Problem>,
    warnings: Vec<String>,
    /// What has to be done before the steps; printable.
    first: Vec<String>,
    links: Vec<LinkGuarantee>,
    /// To VMs whose threads go by the deadlines of packets.
    promises: Vec<packets::Promise>,
}

/// A setting that a line of the policy asks for.
struct WantedSetting {
    setting: Resource,
    wanted: Value,
    whose: String,
    /// The line, such as `vm.sip1.class`; printable.
    reason: String,
    location: SourceLocation,
    cost: String,
}

impl Draft {
    fn problem(&mut self, location: &SourceLocation, message: impl Into<String>) {
        self.problems.push(Problem { location: location.clone(), message: printable(&message.into()) });
    }

    /// The wanted value of a setting, if a line asks for one.
    fn wanted(&self, setting: &Resource) -> Option<&Value> {
        self.wants.iter().find(|w| w.setting == *setting).map(|w| &w.wanted)
    }
}
