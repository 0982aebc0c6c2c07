//! What the vCPUs of a guest were doing, so that a time in the guest can be divided by it.
//!
//! ```text
//!           Guest        Asleep              Ready      Guest        Guest
//!  readings ──┬────────────┬───────────────────┬──────────┬────────────┬──► time
//!             └─ a span ───┘
//! ```
//! The host reports each change of a vCPU's state ([`VcpuState`]), with the vCPU's clock at that instant; guest entries,
//! kicks, and interrupts for a vCPU that runs have readings of the same clock. So what a request did in the guest lies between
//! two readings, as in the host's own split of that time. A *span* lies between two readings in a row. It is known if its clock
//! agrees: all of the time in between was in the state that the first reading tells. If a report is missing, it was not, and nothing is
//! said about the span; nothing is said either about what follows the last reading.
//!
//! Guest mode and exits follow each other too fast to be reported. A span in which the vCPU ran has the sum of its exits, from
//! its clock; a part of such a span gets its share of them, as if they were spread evenly. An exit of more than 1 ms is reported with
//! its beginning (`tell_long_exit` in `clock.bpf.h`), so it is a span of its own.
//!
//! A guest says on which of its CPUs something happened. That number is the index of the vCPU in the VM (a VMM describes
//! its vCPUs to the guest in this order), unless the guest numbers its CPUs otherwise. So it is a claim, which is checked:
//! the host must have seen that vCPU run at that instant.

use crate::hash::{Map, Seeded};
use std::collections::VecDeque;
use teiji_model::event::VcpuState;
use teiji_model::stage::{Split, ThreadState};

/// Readings of all vCPUs of a guest: 600 kB.
const MAX_READINGS: usize = 1 << 13;
/// vCPUs of a guest that are told apart.
const MAX_VCPUS: usize = 1024;
/// How much of a span its clock may show in another state, ns: clocks are not read at the instant of the time stamp exactly.
const SLACK: u64 = 2000;

#[derive(Clone, Copy)]
struct Reading {
    ts: u64,
    state: ThreadState,
    clock: Split,
    /// The number of a thread that had the CPU before, while this one waited.
    preempted_by: u32,
    /// Whether the span that ends here is known.
    known: bool,
}

/// Whether a vCPU in this state has its CPU, for itself or for its exits.
fn runs(state: ThreadState) -> bool {
    matches!(state, ThreadState::Guest | ThreadState::Run)
}

#[derive(Clone, Default)]
struct History {
    index: Option<u16>,
    readings: VecDeque<Reading>,
}

/// A wait for a CPU within a time that was divided: the number of the thread that had it, and how long, ns.
pub(super) type Wait = (u32, u64);

/// See the module.
#[derive(Clone)]
pub(super) struct Vcpus {
    /// By KVM's number.
    all: Map<u32, History>,
    readings: usize,
}

impl Vcpus {
    pub(super) fn new(hasher: Seeded) -> Self {
        Vcpus { all: Map::with_hasher(hasher), readings: 0 }
    }

    /// Adds a reading; they come in order of time. One that is no `change` of the vCPU's state was made by another CPU, perhaps
    /// while it changed: it counts only if the vCPU ran before and after, or waited for its CPU, and its clock agrees. Of its vCPU, what was before `then` is
    /// forgotten: so the cost of a reading does not depend on the number of vCPUs, and one that reports nothing keeps little.
    pub(super) fn add(&mut self, ts: u64, s: &VcpuState, then: u64, change: bool) {
        if self.all.len() >= MAX_VCPUS && !self.all.contains_key(&s.vcpu) {
            return;
        }
        if self.readings >= MAX_READINGS {
            // The vCPU with the most readings loses the oldest.
            if let Some(most) = self.all.values_mut().max_by_key(|of| of.readings.len()) {
                most.readings.pop_front();
                self.readings -= 1;
            }
        }
        let of = self.all.entry(s.vcpu).or_default();
        of.index = s.index.or(of.index);
        // The span that `then` is in stays.
        while of.readings.get(1).is_some_and(|second| second.ts < then) {
            of.readings.pop_front();
            self.readings -= 1;
        }
        if of.readings.len() < of.readings.capacity() / 4 {
            of.readings.shrink_to(of.readings.capacity() / 2);
        }
        let known = of.readings.back().is_some_and(|last| {
            let spent = s.clock.checked_since(&last.clock);
            let total = ts.saturating_sub(last.ts);
            spent.is_some_and(|spent| {
                let of_state = if runs(last.state) {
                    spent.get(ThreadState::Guest).saturating_add(spent.get(ThreadState::Run))
                } else {
                    spent.get(last.state)
                };
                spent.total().abs_diff(total) <= SLACK && spent.total() - of_state.min(spent.total()) <= SLACK
            })
        });
        let agrees = known
            && of.readings.back().is_some_and(|last| {
                runs(last.state) && runs(s.state) || [last.state, s.state] == [ThreadState::Ready; 2]
            });
        if !change && !agrees {
            return;
        }
        let reading = Reading { ts, state: s.state, clock: s.clock, preempted_by: s.preempted_by, known };
        of.readings.push_back(reading);
        self.readings += 1;
    }

    /// KVM's number of the vCPU with this index.
    pub(super) fn number(&self, index: u16) -> Option<u32> {
        self.all.iter().find(|(_, of)| of.index == Some(index)).map(|(number, _)| *number)
    }

    /// The index of the vCPU with KVM's number.
    pub(super) fn index(&self, vcpu: u32) -> Option<u16> {
        self.all.get(&vcpu).and_then(|of| of.index)
    }

    /// Calls `each` with what the vCPU did between two times: from when until when, and its state, if that is known. Guest mode
    /// stands for its exits, too.
    pub(super) fn spans(
        &self,
        vcpu: u32,
        from: u64,
        to: u64,
        each: &mut dyn FnMut(u64, u64, Option<ThreadState>),
    ) {
        let Some(readings) = self.all.get(&vcpu).map(|of| &of.readings) else { return };
        let first = readings.partition_point(|r| r.ts <= from).saturating_sub(1);
        for (a, b) in readings.range(first..).zip(readings.range((first + 1).min(readings.len())..)) {
            if a.ts >= to {
                break;
            }
            let state = if runs(a.state) { ThreadState::Guest } else { a.state };
            if b.ts > from {
                each(a.ts.max(from), b.ts.min(to), b.known.then_some(state));
            }
        }
    }

    /// Whether the vCPU had a CPU at this time, which may be wrong by `error` ns; `None` if it is not known.
    pub(super) fn ran(&self, vcpu: u32, ts: u64, error: u64) -> Option<bool> {
        let readings = &self.all.get(&vcpu)?.readings;
        let (from, to) = (ts.saturating_sub(error), ts.saturating_add(error));
        let first = readings.partition_point(|r| r.ts <= from).checked_sub(1)?;
        let mut known = true;
        for (a, b) in readings.range(first..).zip(readings.range(first + 1..)) {
            if a.ts > to {
                break;
            }
            known &= b.known;
            if b.known && runs(a.state) {
                return Some(true);
            }
        }
        let last_ends = readings.back().is_some_and(|last| last.ts > to);
        (known && last_ends).then_some(false)
    }

    /// How the vCPU spent the time from `from` to `to`; adds up to it. `None` if not all of it is known. The waits for a CPU are
    /// added to `waits`.
    pub(super) fn split(&self, vcpu: u32, from: u64, to: u64, waits: &mut Vec<Wait>) -> Option<Split> {
        let mut split = Split::default();
        if from >= to {
            return Some(split);
        }
        let readings = &self.all.get(&vcpu)?.readings;
        let first = readings.partition_point(|r| r.ts <= from).checked_sub(1)?;
        let (before, mut at) = (waits.len(), from);
        for (a, b) in readings.range(first..).zip(readings.range(first + 1..)) {
            if b.ts <= at {
                continue;
            }
            let ns = b.ts.min(to) - at;
            if !b.known {
                break;
            }
            if runs(a.state) {
                let [all, exits] =
                    [b.ts - a.ts, b.clock.since(&a.clock).get(ThreadState::Run)].map(u128::from);
                let exits = u64::try_from(exits * u128::from(ns) / all.max(1)).unwrap_or(ns).min(ns);
                split.0[ThreadState::Run as usize] += exits;
                split.0[ThreadState::Guest as usize] += ns - exits;
            } else {
                split.0[a.state as usize] += ns;
                if a.state == ThreadState::Ready {
                    waits.push((b.preempted_by, ns));
                }
            }
            at += ns;
            if at == to {
                return Some(split);
            }
        }
        waits.truncate(before);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ThreadState::*;
    use proptest::prelude::*;

    fn state(clock: Split, state: ThreadState) -> VcpuState {
        VcpuState { vm: 7, vcpu: 4, index: Some(3), state, clock, preempted_by: 9 }
    }

    /// A vCPU that is in these states one after the other, from the time 1,000,000 on.
    fn history(states: &[(ThreadState, u64)]) -> (Vec<(u64, VcpuState)>, u64) {
        let (mut now, mut clock, mut all) = (1_000_000, Split::default(), Vec::new());
        for (s, ns) in states {
            all.push((now, state(clock, *s)));
            now += ns;
            clock.0[*s as usize] += ns;
        }
        all.push((now, state(clock, Guest)));
        (all, now)
    }

    fn vcpus<'a>(readings: impl IntoIterator<Item = &'a (u64, VcpuState)>) -> Vcpus {
        let mut vcpus = Vcpus::new(Seeded::new(1));
        readings.into_iter().for_each(|(ts, s)| vcpus.add(*ts, s, 0, true));
        vcpus
    }

    #[test]
    fn a_time_is_divided_by_what_was_reported() {
        let (all, _) = history(&[(Guest, 50_000), (Poll, 20_000), (Asleep, 100_000), (Ready, 30_000)]);
        let vcpus = vcpus(&all);
        assert_eq!(vcpus.number(3), Some(4));
        let mut waits = Vec::new();
        assert_eq!(
            vcpus.split(4, 1_040_000, 1_200_000, &mut waits),
            Some(Split([10_000, 20_000, 100_000, 30_000, 0]))
        );
        assert_eq!(waits, [(9, 30_000)]);
        // Nothing is known of what was before the first reading and after the last.
        assert_eq!(vcpus.split(4, 999_999, 1_000_010, &mut waits), None);
        assert_eq!(vcpus.split(4, 1_199_000, 1_200_001, &mut waits), None);
        assert_eq!(vcpus.split(5, 1_000_000, 1_000_001, &mut waits), None);
        assert_eq!(waits.len(), 1, "a time that is not known has no waits");
        assert_eq!(vcpus.ran(4, 1_100_000, 100), Some(false));
        assert_eq!(vcpus.ran(4, 1_050_050, 100), Some(true));
        assert_eq!((vcpus.ran(4, 900_000, 100), vcpus.ran(4, 1_300_000, 100)), (None, None));
    }

    /// What a vCPU has waited is told when a packet comes for it; who had the CPU before is named for that part alone.
    #[test]
    fn a_wait_that_is_told_in_two_parts_has_two_names() {
        let (mut all, _) = history(&[(Guest, 50_000), (Ready, 90_000), (Ready, 10_000)]);
        (all[2].1.preempted_by, all[3].1.preempted_by) = (1, 2);
        let mut vcpus = Vcpus::new(Seeded::new(1));
        for (i, (ts, s)) in all.iter().enumerate() {
            vcpus.add(*ts, s, 0, i != 2);
        }
        let mut waits = Vec::new();
        let split = vcpus.split(4, 1_050_000, 1_150_000, &mut waits);
        assert_eq!((split, waits), (Some(Split([0, 0, 0, 100_000, 0])), vec![(1, 90_000), (2, 10_000)]));
    }

    /// A reading by another CPU that does not agree, as the vCPU changed its state meanwhile, makes nothing unknown.
    #[test]
    fn a_reading_that_is_no_change_counts_if_it_agrees() {
        let of = |at: u64, read: Split| {
            let mut vcpus = vcpus(&[(0, state(Split::default(), Guest))]);
            vcpus.add(at, &state(read, Guest), 0, false);
            vcpus.add(100_000, &state(Split([60_000, 0, 0, 0, 40_000]), Asleep), 0, true);
            vcpus.split(4, 50_000, 100_000, &mut Vec::new())
        };
        assert_eq!(of(50_000, Split([10_000, 0, 0, 0, 40_000])), Some(Split([50_000, 0, 0, 0, 0])));
        assert_eq!(of(50_000, Split([20_000, 0, 0, 0, 40_000])), Some(Split([30_000, 0, 0, 0, 20_000])));
    }

    #[test]
    fn exits_are_spread_over_the_time_that_the_vcpu_ran() {
        let begin = state(Split::default(), Guest);
        let vcpus = vcpus(&[(0, begin), (100_000, state(Split([75_000, 0, 0, 0, 25_000]), Asleep))]);
        assert_eq!(vcpus.split(4, 0, 100_000, &mut Vec::new()), Some(Split([75_000, 0, 0, 0, 25_000])));
        assert_eq!(vcpus.split(4, 50_000, 60_000, &mut Vec::new()), Some(Split([7_500, 0, 0, 0, 2_500])));
    }

    /// A guest that makes its vCPUs halt all the time has no more room than others, and the latest is kept.
    #[test]
    fn memory_is_bounded() {
        let mut vcpus = Vcpus::new(Seeded::new(1));
        for n in 0..100_000u64 {
            let s = if n % 2 == 0 { Asleep } else { Guest };
            let clock = Split([n / 2 * 5_000, 0, n.div_ceil(2) * 5_000, 0, 0]);
            vcpus.add(n * 5_000, &VcpuState { vcpu: (n % 3 == 0).into(), ..state(clock, s) }, 0, true);
        }
        assert_eq!(vcpus.readings, MAX_READINGS);
        assert_eq!(vcpus.all.values().map(|of| of.readings.len()).sum::<usize>(), MAX_READINGS);
        for vcpu in [0, 1] {
            vcpus.add(u64::MAX, &VcpuState { vcpu, ..state(Split::default(), Guest) }, u64::MAX, true);
        }
        assert_eq!(vcpus.readings, 4, "of each the last one before, and this one");
        let room: usize = vcpus.all.values().map(|of| of.readings.capacity()).sum();
        assert!(room <= MAX_READINGS + MAX_READINGS / 2, "{room}");
    }

    proptest! {
        /// Whichever reports are missing: what is said of a time is what happened in it, or nothing.
        #[test]
        fn nothing_is_said_of_what_was_not_seen(
            states in prop::collection::vec((0usize..5, 0u64..50_000), 1..40),
            missing in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            from in 0u64..1_000_000, ns in 0u64..300_000,
        ) {
            let states: Vec<_> = states.into_iter().map(|(s, ns)| (ThreadState::ALL[s], ns)).collect();
            let (mut all, end) = history(&states);
            let truth = |from: u64, to: u64| {
                let (mut at, mut split) = (1_000_000, Split::default());
                for (s, ns) in &states {
                    let of = (at + ns).min(to).saturating_sub(from.max(at));
                    // Guest mode and exits are not told apart within a span.
                    split.0[if *s == Run { Guest } else { *s } as usize] += of;
                    at += ns;
                }
                split
            };
            for index in missing {
                all.remove(index.index(all.len()));
                if all.is_empty() { break }
            }
            let vcpus = vcpus(&all);
            let (from, to) = (1_000_000 + from, 1_000_000 + from + ns);
            if let Some(mut split) = vcpus.split(4, from, to, &mut Vec::new()) {
                prop_assert!(to <= end || ns == 0);
                prop_assert_eq!(split.total(), ns);
                split.0[Guest as usize] += split.0[Run as usize];
                split.0[Run as usize] = 0;
                let off: u64 = split.0.iter().zip(truth(from, to).0).map(|(a, b)| a.abs_diff(b)).sum();
                // Each reading that is missing may hide that much.
                prop_assert!(off <= 2 * SLACK * 7, "{split:?} {:?}", truth(from, to));
            }
        }

        /// Whatever a recording claims, nothing panics and what is said adds up.
        #[test]
        fn any_readings_do(
            readings in prop::collection::vec((any::<u64>(), 0usize..5, any::<[u64; 5]>()), 0..30),
            from in any::<u64>(), to in any::<u64>(),
        ) {
            let mut all: Vec<_> = readings.into_iter().map(|(ts, s, c)| (ts, state(Split(c), ThreadState::ALL[s]))).collect();
            all.sort_by_key(|(ts, _)| *ts);
            let mut vcpus = vcpus(&all);
            vcpus.ran(4, from, to);
            if let Some(split) = vcpus.split(4, from, to, &mut Vec::new()) {
                prop_assert_eq!(split.total(), to.saturating_sub(from));
            }
            vcpus.add(u64::MAX, &state(Split::default(), Guest), from, true);
        }
    }
}
