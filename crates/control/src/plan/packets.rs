//! VMs whose threads go by the deadlines of their packets (`class = "packets"`): what that needs of the host, what takes its place
//! where the kernel lacks that, and whether the promises fit (`bounds`: whether deadlines are kept).
//!
//! ```text
//!  the kernel has it ──► SCHED_EXT; the agent's scheduler does the rest
//!  another scheduler of sched_ext is in use ──► a problem
//!  it lacks it ──► may run on every CPU ──► SCHED_DEADLINE, its runtime divided among the threads
//!                  pinned ──► SCHED_FIFO, as with class = "realtime", and with the same guard
//! ```

mod bounds;

use super::checks::Thread;
use super::names::{self, shown};
use super::{Draft, HostAndHeld, steps};
use crate::admission::cpu;
use crate::housekeeping;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::cpus::CpuSet;
use teiji_model::observed::{Observed, ObservedVm, SchedExt};
use teiji_model::plan::{ChannelGuarantee, HandedOver, KickGuarantee, PacketVm};
use teiji_model::policy::{DEFAULT_PRIORITY, PacketClass, Policy, SourceLocation};
use teiji_model::qdisc::{MIN_FRAME, OVERHEAD};
use teiji_model::resource::{Resource, Scheduling, Task, Value};
use teiji_model::text::{duration, printable};
use teiji_model::units::SIZE;

/// The share of a CPU that threads which go before others may have, thousandths.
const SHARE: u128 = (1000 * cpu::PER_OTHERS / (cpu::PER_OTHERS + 1)) as u128;
/// Shorter runtimes are not kept, ns: half is kept for packets, and less than this is not used.
const MIN_RUNTIME: u64 = 2 * cpu::MIN_SLICE;
/// Most VMs and threads of them that scx_vcpu has place for (`MAX_VMS`, `MAX_THREADS`).
pub const MAX_VMS: usize = 64;
/// See [`MAX_VMS`].
pub const MAX_THREADS: usize = 256;

/// A promise that a plan has to check.
pub(super) struct Promise {
    pub vm: PacketVm,
    /// Of the class.
    location: SourceLocation,
}

/// How the vCPU threads of such a VM are scheduled; `location`: of the class.
pub(super) fn scheduling(
    class: &PacketClass,
    location: &SourceLocation,
    vm: &ObservedVm,
    host: HostAndHeld<'_>,
    draft: &mut Draft,
) -> Scheduling {
    let name = shown(&vm.vm.name);
    let ext = Scheduling::Ext { nice: 0 };
    let missing = match &host.observed.sched_ext {
        SchedExt::Usable => None,
        SchedExt::NoAgent(start) => {
            let start = printable(start);
            if !draft.first.contains(&start) {
                draft.first.push(start);
            }
            None
        }
        SchedExt::Taken(other) => {
            draft.problem(
                location,
                format!(
                    "the kernel has one scheduler of sched_ext at a time, and `{}` is in use: end it, or choose \
                     another class",
                    shown(other)
                ),
            );
            return ext;
        }
        SchedExt::None(missing) => Some(printable(missing)),
    };
    let Some(missing) = missing else {
        let vm = PacketVm { name, process: vm.process, class: *class, deadlines: None, handed_over: None };
        draft.promises.push(Promise { vm, location: location.clone() });
        return ext;
    };
    let threads = (vm.vcpus.len() + vm.workers.len()).max(1) as u64;
    let instead = if is_pinned(vm, host, draft) {
        Scheduling::Fifo { priority: DEFAULT_PRIORITY }
    } else {
        let runtime = (class.runtime / threads).max(1024);
        Scheduling::Deadline { runtime, deadline: class.deadline, period: class.period }
    };
    draft.warnings.push(format!(
        "threads of {name} cannot go by the deadlines of packets ({missing}): {instead} takes the place, for each thread"
    ));
    instead
}

/// Whether some thread of the VM may not run on every CPU once the plan is carried out. What its section says of CPUs is in the draft.
fn is_pinned(vm: &ObservedVm, host: HostAndHeld<'_>, draft: &Draft) -> bool {
    let narrow = |task: &Task| {
        let setting = Resource::ThreadCpus(*task);
        match draft.wanted(&setting).or_else(|| steps::unwanted(&setting, host)) {
            Some(Value::Cpus(cpus)) => !host.observed.cpus.without(cpus).is_empty(),
            _ => false,
        }
    };
    vm.vcpus.iter().chain(&vm.workers).any(narrow)
}

pub(super) fn cost(class: &PacketClass) -> String {
    let [runtime, period] = [class.runtime, class.period].map(|ns| duration(ns as f64));
    format!(
        "other threads of its CPUs wait for its threads, up to {runtime} of every {period}; teiji schedules all threads of the host, \
         without regard to `weight` and `quota`"
    )
}

/// Reports promises that cannot be kept: too short ones, more than the scheduler has place for, CPUs that cannot keep the deadlines
/// of the VMs on them, and CPUs of which more is promised than there is. Of threads that may run on several CPUs only the latter is
/// known.
pub(super) fn check(observed: &Observed, threads: &[Thread], draft: &mut Draft) {
    let mut problems = Vec::new();
    let mut by_cpus: BTreeMap<CpuSet, Vec<&Promise>> = BTreeMap::new();
    let mut all = 0;
    for (n, promise) in draft.promises.iter().enumerate() {
        if promise.vm.class.runtime < MIN_RUNTIME {
            let least = duration(MIN_RUNTIME as f64);
            let message = format!("a runtime below {least} cannot be kept: lengthen runtime and period");
            problems.push((promise.location.clone(), message));
        }
        let own =
            || threads.iter().filter(|thread| thread.vm == promise.vm.process).map(|thread| &thread.cpus);
        all += own().count();
        if n >= MAX_VMS || all > MAX_THREADS {
            let message = format!(
                "the scheduler has place for {MAX_VMS} VMs of this class with {MAX_THREADS} threads (vCPUs and vhost workers) \
                 together: choose another class for some of them"
            );
            problems.push((promise.location.clone(), message));
        }
        let cpus = housekeeping::reachable_cpus(own(), &observed.cpus);
        // The threads of a VM that starts are not there yet.
        if !cpus.is_empty() {
            by_cpus.entry(cpus).or_default().push(promise);
        }
    }
    let deadlines = bounds::deadlines(observed, threads, &draft.promises);
    for cpus in with_unions(by_cpus.keys()) {
        if cpus.iter().all(|cpu| deadlines.refused.contains_key(&cpu)) {
            continue;
        }
        let within = by_cpus.iter().filter(|(of, _)| of.without(&cpus).is_empty());
        let within: Vec<&Promise> = within.flat_map(|(_, promises)| promises.iter().copied()).collect();
        let of = |promise: &&Promise| {
            (u128::from(promise.vm.class.runtime) * 1000).div_ceil(u128::from(promise.vm.class.period).max(1))
        };
        let (asked, most) = (within.iter().map(of).sum::<u128>(), SHARE * cpus.len() as u128);
        let Some(newest) = newest(&within).filter(|_| asked > most) else { continue };
        let [asked, most] = [asked, most].map(|thousandths| thousandths as f64 / 1e3);
        problems.push((
            newest.location.clone(),
            format!(
                "{} may run on {} {cpus} only and ask for {asked:.2} CPUs together (runtime / period), but {most:.2} can be \
                 promised, 90 % of {}: shorten runtime, lengthen period, or allow them on more CPUs",
                listed(&within),
                if cpus.len() == 1 { "CPU" } else { "CPUs" },
                cpus.len()
            ),
        ));
    }
    problems.extend(deadlines.refused.into_values());
    for (promise, known) in draft.promises.iter_mut().zip(deadlines.by_promise) {
        (promise.vm.deadlines, promise.vm.handed_over) = known.unzip();
    }
    for (location, message) in problems {
        draft.problem(&location, message);
    }
}

/// Adds to the guarantees of links the time from the kick of the VM that sends a channel.
pub(super) fn from_kick(policy: &Policy, host: HostAndHeld<'_>, draft: &mut Draft) {
    let mut warnings = Vec::new();
    for channel in draft.links.iter_mut().flat_map(|link| &mut link.channels) {
        let section = policy.channels.iter().find(|section| section.name.value == channel.name);
        let Some(vm) = section.and_then(|section| section.vm.as_ref()) else { continue };
        let promise = names::vm(&vm.value, host)
            .map(|vm| draft.promises.iter().find(|promise| promise.vm.process == vm.process));
        let known = match promise {
            Err(why) => Err(String::from(why)),
            Ok(None) => {
                Err("it does not have class = \"packets\", or the kernel lacks what that needs".to_owned())
            }
            Ok(Some(promise)) => match &promise.vm.handed_over {
                None => Err("its threads are not there yet".to_owned()),
                Some(HandedOver::Unknown(why)) => Err(why.clone()),
                Some(HandedOver::Within(within)) => at_kick(channel, *within),
            },
        };
        match known {
            Ok(guarantee) => channel.from_kick = Some(KickGuarantee { vm: shown(&vm.value), ..guarantee }),
            Err(why) => warnings.push(format!(
                "`channel.{}.vm`: how long packets take from the kick of {} on is not known: {why}",
                shown(&channel.name),
                shown(&vm.value)
            )),
        }
    }
    draft.warnings.extend(warnings);
}

/// What of a channel is guaranteed from the kick on, if its frames are handed over within this time, ns. What was sent at its rate
/// meanwhile may come at once, and what exceeds the burst at the link is best effort.
///
/// # Errors
/// The burst is too small for that.
fn at_kick(channel: &ChannelGuarantee, within: u64) -> Result<KickGuarantee, String> {
    // bit/s × ns = 10⁻⁹ bit
    let meanwhile = (u128::from(channel.rate) * u128::from(within)).div_ceil(8_000_000_000);
    let meanwhile = u64::try_from(meanwhile).unwrap_or(u64::MAX / 2);
    let least = u64::from(MIN_FRAME + OVERHEAD);
    match channel.burst.checked_sub(meanwhile).filter(|burst| *burst >= least) {
        Some(burst) => {
            Ok(KickGuarantee { vm: String::new(), within: within.saturating_add(channel.bound), burst })
        }
        None => Err(format!(
            "in {}, until frames are handed over, {meanwhile} bytes may pile up, and its burst is {}, so packets may be sent as best \
             effort: set burst to {}b at least, more for larger frames",
            duration(within as f64),
            SIZE.write(channel.burst),
            meanwhile + least
        )),
    }
}

/// The one that came last is left out by an agent: the others keep what they had.
fn newest<'a>(promises: &[&'a Promise]) -> Option<&'a Promise> {
    promises.iter().copied().max_by_key(|promise| promise.vm.process.started)
}

fn listed(promises: &[&Promise]) -> String {
    promises.iter().map(|promise| promise.vm.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// These sets, and the unions of those that overlap, directly or by others.
fn with_unions<'a>(sets: impl Iterator<Item = &'a CpuSet> + Clone) -> BTreeSet<CpuSet> {
    let mut groups: Vec<CpuSet> = Vec::new();
    for set in sets.clone() {
        let (overlap, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.iter().any(|cpu| set.contains(cpu)));
        groups = apart;
        groups.push(overlap.iter().fold(set.clone(), |all, group| all.union(group)));
    }
    sets.cloned().chain(groups).collect()
}
