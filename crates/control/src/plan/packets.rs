//! VMs whose threads go by the deadlines of their packets (`class = "packets"`): what that needs of the host, what takes its place
//! where the kernel lacks that, and whether the promises fit.
//!
//! ```text
//!  the kernel has it ──► SCHED_EXT; the agent's scheduler does the rest
//!  another scheduler of sched_ext is in use ──► a problem
//!  it lacks it ──► may run on every CPU ──► SCHED_DEADLINE, its runtime divided among the threads
//!                  pinned ──► SCHED_FIFO, as with class = "realtime", and with the same guard
//! ```

use super::checks::Thread;
use super::names::shown;
use super::{Draft, HostAndHeld, steps};
use crate::housekeeping;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::cpus::CpuSet;
use teiji_model::observed::{Observed, ObservedVm, SchedExt};
use teiji_model::plan::PacketVm;
use teiji_model::policy::{DEFAULT_PRIORITY, PacketClass, SourceLocation};
use teiji_model::resource::{Resource, Scheduling, Task, Value};
use teiji_model::text::{duration, printable};

/// The share of a CPU that threads which go before others may have, thousandths: scx_vcpu leaves a tenth to others
/// (`EDF_PER_OTHERS`).
const SHARE: u128 = 900;
/// Shorter runtimes are not kept, ns: scx_vcpu divides them no further (`MIN_SLICE`), and keeps half for packets.
const MIN_RUNTIME: u64 = 100_000;
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
        let vm = PacketVm { name, process: vm.process, class: *class };
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

/// Reports promises that cannot be kept: too short ones, more than the scheduler has place for, and CPUs of which more is promised than
/// there is. That all others are kept does not follow: their deadlines are not compared.
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
    for cpus in with_unions(by_cpus.keys()) {
        let within = by_cpus.iter().filter(|(of, _)| of.without(&cpus).is_empty());
        let within: Vec<&Promise> = within.flat_map(|(_, promises)| promises.iter().copied()).collect();
        let of = |promise: &&Promise| {
            (u128::from(promise.vm.class.runtime) * 1000).div_ceil(u128::from(promise.vm.class.period).max(1))
        };
        let (asked, most) = (within.iter().map(of).sum::<u128>(), SHARE * cpus.len() as u128);
        // The one that came last is left out by an agent: the others keep what they had.
        let newest = within.iter().max_by_key(|promise| promise.vm.process.started);
        let Some(newest) = newest.filter(|_| asked > most) else { continue };
        let names: Vec<&str> = within.iter().map(|promise| promise.vm.name.as_str()).collect();
        let [asked, most] = [asked, most].map(|thousandths| thousandths as f64 / 1e3);
        problems.push((
            newest.location.clone(),
            format!(
                "{} may run on {} {cpus} only and ask for {asked:.2} CPUs together (runtime / period), but {most:.2} can be \
                 promised, 90 % of {}: shorten runtime, lengthen period, or allow them on more CPUs",
                names.join(", "),
                if cpus.len() == 1 { "CPU" } else { "CPUs" },
                cpus.len()
            ),
        ));
    }
    for (location, message) in problems {
        draft.problem(&location, message);
    }
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
