//! Whether real-time threads leave the host a CPU: the one rule that a plan refuses by and a suggestion pins by.
//!
//! `SCHED_FIFO` and `SCHED_RR` threads run as long as they like (sched(7)). Each can hold one CPU, and only one that it
//! may run on: `n` of them take at most `n` CPUs, out of those that any of them may run on.

use teiji_model::cpus::CpuSet;
use teiji_model::setting::Scheduling;

/// Whether such a thread runs as long as it likes.
pub(crate) fn unbounded(scheduling: &Scheduling) -> bool {
    matches!(scheduling, Scheduling::Fifo { .. } | Scheduling::RoundRobin { .. })
}

/// The online CPUs that any of these threads, given by the CPUs they may run on, may take.
pub(crate) fn reach<'a>(threads: impl IntoIterator<Item = &'a CpuSet>, online: &CpuSet) -> CpuSet {
    let all: CpuSet = threads.into_iter().flat_map(CpuSet::iter).collect();
    all.iter().filter(|cpu| online.contains(*cpu)).collect()
}

/// Whether unbounded threads, given by the CPUs they may run on, could take every online CPU at once.
pub(crate) fn none_left(threads: &[&CpuSet], online: &CpuSet) -> bool {
    threads.len().min(reach(threads.iter().copied(), online).len()) >= online.len()
}
