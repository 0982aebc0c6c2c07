//! When the vCPU threads and vhost workers of a VM got a CPU, as the host reports it ([`Start`]).
//!
//! Starts of a thread are numbered: if one is missing, nothing is said of a time that it may have been in.

use crate::hash::{Map, Seeded};
use std::collections::VecDeque;
use teiji_model::event::{Start, Waker};

/// Starts of all threads of a VM: 300 kB.
const MAX_STARTS: usize = 1 << 12;
/// Threads of a VM that are told apart.
const MAX_THREADS: usize = 2048;

/// A start. The waker is the number of a thread, not its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) left: u64,
    pub(crate) slept: bool,
    pub(crate) woken: Option<u64>,
    pub(crate) running: u64,
    pub(crate) waker: Waker,
    /// The start before this one was not reported.
    gap: bool,
}

impl Started {
    /// A thread of the guest was woken.
    pub(super) fn of_guest(woken: u64, running: u64, waker: Waker) -> Started {
        Started { left: woken, slept: true, woken: Some(woken), running, waker, gap: false }
    }
}

#[derive(Clone, Default)]
struct OfThread {
    vcpu: Option<u32>,
    last: u32,
    starts: VecDeque<Started>,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Starts {
    /// By thread id.
    all: Map<u32, OfThread>,
    kept: usize,
}

impl Starts {
    pub(super) fn new(hasher: Seeded) -> Self {
        Starts { all: Map::with_hasher(hasher), kept: 0 }
    }

    /// Whether any was reported at all: without, that a thread was not started means nothing.
    pub(super) fn any(&self) -> bool {
        !self.all.is_empty()
    }

    /// Adds a start at `ts`; they come in order of time. Of its thread, what was before `then` is forgotten, except for the last one.
    pub(super) fn add(&mut self, ts: u64, s: &Start, then: u64) {
        if self.all.len() >= MAX_THREADS && !self.all.contains_key(&s.tid) {
            return;
        }
        if self.kept >= MAX_STARTS
            && let Some(most) = self.all.values_mut().max_by_key(|of| of.starts.len())
        {
            most.starts.pop_front();
            if let Some(first) = most.starts.front_mut() {
                first.gap = true;
            }
            self.kept -= 1;
        }
        let of = self.all.entry(s.tid).or_default();
        while of.starts.get(1).is_some_and(|second| second.running < then) {
            of.starts.pop_front();
            self.kept -= 1;
        }
        // Times that contradict each other are those of a damaged recording.
        let before = of.starts.back().map_or(0, |last| last.running);
        let in_order = before <= s.left && s.left <= ts && s.woken.is_none_or(|w| s.left <= w && w <= ts);
        let gap = of.starts.is_empty() || !in_order || s.nth != of.last.wrapping_add(1);
        (of.vcpu, of.last) = (s.vcpu, s.nth);
        let woken = s.woken.filter(|_| in_order && s.slept);
        let waker = if woken.is_some() { s.waker } else { Waker::Unknown };
        let left = s.left.clamp(before.min(ts), ts);
        of.starts.push_back(Started { left, slept: s.slept, woken, running: ts, waker, gap });
        self.kept += 1;
    }

    /// The thread of a vCPU, by KVM's number.
    pub(super) fn vcpu(&self, vcpu: u32) -> Option<u32> {
        self.all.iter().find(|(_, of)| of.vcpu == Some(vcpu)).map(|(tid, _)| *tid)
    }

    /// The starts of a thread within a time (its beginning not included); `None` if one may be missing. A thread without any
    /// start has run all the time, or slept.
    pub(super) fn within(
        &self,
        tid: u32,
        from: u64,
        to: u64,
    ) -> Option<impl Iterator<Item = &Started> + Clone> {
        static NONE: VecDeque<Started> = VecDeque::new();
        let starts = self.all.get(&tid).map_or(&NONE, |of| &of.starts);
        let first = starts.partition_point(|s| s.running <= from);
        let behind = starts.partition_point(|s| s.running <= to).max(first);
        // The one after the time tells whether the last one within it was reported. What is missing came before the thread
        // lost the CPU that it had before.
        let mut seen = starts.range(first..starts.len().min(behind + 1));
        (!seen.any(|s| s.gap && s.left > from)).then(|| starts.range(first..behind))
    }

    /// The last start of a thread up to this time, those after it, and whether one between two of these is missing.
    pub(super) fn around(&self, tid: u32, at: u64) -> impl Iterator<Item = (&Started, bool)> {
        let starts = self.all.get(&tid).map(|of| &of.starts);
        starts.into_iter().flat_map(move |starts| {
            let first = starts.partition_point(|s| s.running <= at).saturating_sub(1);
            starts.range(first..).map(|s| (s, s.gap))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn start(nth: u32, left: u64, woken: u64) -> Start {
        Start {
            tid: 5,
            vm: 7,
            vcpu: Some(4),
            left,
            slept: true,
            woken: Some(woken),
            waker: Waker::Interrupt,
            nth,
        }
    }

    fn count(starts: &Starts, from: u64, to: u64) -> Option<usize> {
        starts.within(5, from, to).map(Iterator::count)
    }

    #[test]
    fn a_start_that_is_missing_makes_its_time_unknown() {
        let mut starts = Starts::new(Seeded::new(1));
        for nth in [1, 2, 3, 5, 6] {
            let at = u64::from(nth) * 100;
            starts.add(at, &start(nth, at - 50, at - 20), 0);
        }
        assert_eq!(starts.vcpu(4), Some(5));
        // Before the first one there may have been others; not after the thread had left its CPU for the last time.
        assert_eq!((count(&starts, 0, 150), count(&starts, 60, 150)), (None, Some(1)));
        assert_eq!((count(&starts, 100, 200), count(&starts, 200, 250)), (Some(1), Some(0)));
        // The fourth may have been in these.
        assert_eq!(
            [(250, 350), (350, 400), (400, 449), (449, 500)].map(|(a, b)| count(&starts, a, b)),
            [None; 4]
        );
        assert_eq!(count(&starts, 450, 500), Some(1));
        assert_eq!((count(&starts, 500, 600), count(&starts, 600, 900)), (Some(1), Some(0)));
        assert_eq!(starts.within(6, 0, 900).map(Iterator::count), Some(0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut starts = Starts::new(Seeded::new(1));
        for nth in 0..100_000u32 {
            let at = u64::from(nth) * 100;
            starts.add(at, &Start { tid: 5 + nth % 3, ..start(nth / 3, at, at) }, 0);
        }
        assert_eq!(starts.kept, MAX_STARTS);
        assert_eq!(starts.all.values().map(|of| of.starts.len()).sum::<usize>(), MAX_STARTS);
        starts.add(u64::MAX, &start(0, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(starts.all.values().map(|of| of.starts.len()).sum::<usize>(), starts.kept);
    }

    proptest! {
        #[test]
        fn any_starts_do(
            all in prop::collection::vec((0u64..1000, 0u64..1000, 0u64..1000, 0u32..9, any::<bool>()), 0..30),
            from in 0u64..1000, to in 0u64..1000,
        ) {
            let mut all = all;
            all.sort();
            let mut starts = Starts::new(Seeded::new(1));
            for (ts, left, woken, nth, slept) in all {
                starts.add(ts, &Start { slept, ..start(nth, left, woken) }, 0);
            }
            for s in starts.within(5, from, to).into_iter().flatten() {
                prop_assert!(s.left <= s.woken.unwrap_or(s.left) && s.woken.unwrap_or(s.left) <= s.running);
                prop_assert!(s.running > from && s.running <= to);
            }
            starts.around(5, from).for_each(drop);
        }
    }
}
