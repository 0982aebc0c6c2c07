//! Whether real-time threads leave a CPU to the host and to each other: the plan refuses by these rules, and
//! suggestions pin threads by them.
//!
//! `SCHED_FIFO` and `SCHED_RR` threads run as long as they like (sched(7)). Each uses at most one CPU, and only one
//! that it may run on: `n` of them use at most `n` CPUs, out of those that any of them may run on.

use std::collections::{BTreeMap, BTreeSet};
use teiji_model::cpus::CpuSet;
use teiji_model::resource::Scheduling;

/// Whether a thread with this scheduling may run as long as it likes.
pub(crate) fn unbounded(scheduling: &Scheduling) -> bool {
    matches!(scheduling, Scheduling::Fifo { .. } | Scheduling::RoundRobin { .. })
}

/// The online CPUs that any of these threads may use; each thread is given by the CPUs that it may run on.
pub(crate) fn reachable_cpus<'a>(threads: impl IntoIterator<Item = &'a CpuSet>, online: &CpuSet) -> CpuSet {
    let all: CpuSet = threads.into_iter().flat_map(CpuSet::iter).collect();
    all.iter().filter(|cpu| online.contains(*cpu)).collect()
}

/// Whether unbounded threads, given by the CPUs that they may run on, could use every online CPU at once.
pub(crate) fn leave_no_cpu(threads: &[&CpuSet], online: &CpuSet) -> bool {
    threads.len().min(reachable_cpus(threads.iter().copied(), online).len()) >= online.len()
}

/// Whether threads that may run on these CPUs can all run at once.
pub(crate) fn can_all_run(threads: &[CpuSet]) -> bool {
    most_at_once(threads) == threads.len()
}

/// Whether threads that may run on these CPUs can use all of `cpus` at once.
pub(crate) fn can_take_all(threads: &[CpuSet], cpus: &CpuSet) -> bool {
    threads.len() >= cpus.len() && most_at_once(threads) >= cpus.len()
}

/// How many of these threads can run at once, each on its own CPU out of those that it may run on: the size of the
/// maximum matching, found by augmenting paths.
fn most_at_once(threads: &[CpuSet]) -> usize {
    let mut runs: BTreeMap<u32, usize> = BTreeMap::new();
    (0..threads.len()).filter(|thread| find_cpu(*thread, threads, &mut runs, &mut BTreeSet::new())).count()
}

/// Finds a CPU for a thread; moves others if necessary.
fn find_cpu(
    thread: usize,
    threads: &[CpuSet],
    runs: &mut BTreeMap<u32, usize>,
    tried: &mut BTreeSet<u32>,
) -> bool {
    for cpu in threads[thread].iter() {
        if !tried.insert(cpu) {
            continue;
        }
        let free = match runs.get(&cpu) {
            None => true,
            Some(&other) => find_cpu(other, threads, runs, tried),
        };
        if free {
            runs.insert(cpu, thread);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_find_cpus_of_their_own_if_there_are() {
        let sets = |all: &[&[u32]]| -> Vec<CpuSet> {
            all.iter().map(|cpus| cpus.iter().copied().collect()).collect()
        };
        // The second has to move for the third, and the first for the second.
        assert!(can_all_run(&sets(&[&[0, 1], &[0, 2], &[0]])));
        assert!(
            !can_all_run(&sets(&[&[0, 1], &[0, 1], &[0]])) && !can_all_run(&sets(&[&[]])) && can_all_run(&[])
        );
        let two = CpuSet::from_iter([0, 1]);
        assert!(can_take_all(&sets(&[&[0], &[], &[0, 1]]), &two));
        assert!(!can_take_all(&sets(&[&[0], &[0]]), &two));
    }
}
