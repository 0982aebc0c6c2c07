//! Who had a thread's CPU while that thread waited for it.
//!
//! ```text
//!  named readings      A            B                   C
//!                ──────┬────────────┬───────────────────┬──► how long the thread has waited in all
//!                          ├── a wait of a request ──┤
//!                                        ▲ a point in it, chosen by chance: its wait was behind C
//! ```
//! Some events have a reading of a thread's clock and name one thread that had its CPU since the reading before that named one: of all
//! that had it, with a probability in proportion to their times (`clock_waited` in `clock.bpf.h`). A request may wait for longer than
//! from one reading to the next, as the clock is read for other requests too. Whoever is named by the last reading would then be taken
//! for all of the wait, however briefly it had the CPU. So a point in the wait is chosen by chance, and the reading that it belongs to
//! tells. The point depends on the request alone, so a replay of a recording says the same.
//!
//! If a thread waits already when a request comes to it, an event of its own ([`Wait`]) is the reading before, unless it had waited for
//! less than 65.5 µs (`TELL_WAIT` in `clock.bpf.h`), or the buffer was more than half full.

use crate::hash::{Map, Seeded};
use std::collections::VecDeque;
use teiji_model::event::{EventKind, Packet, Point, Wait};
use teiji_model::stage::{Split, ThreadState};

/// Readings kept of a thread. Only readings before which it had waited are kept. A wait is named when its request is complete; if its
/// readings have been forgotten by then, nobody is named.
const MAX_READINGS: usize = 256;
/// Threads that are told apart: as many as have a clock in the kernel (`MAX_CLOCKS` in `intf.h`). With all readings: 33 MB.
const MAX_THREADS: usize = 8192;

/// A thread that may wait for a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Waiter {
    /// What serves a tap: its thread id.
    Worker(u32),
    /// A vCPU: its VMM's process id, and KVM's number.
    Vcpu(u32, u32),
}

impl Waiter {
    fn of(w: &Wait) -> Waiter {
        w.vcpu.map_or(Waiter::Worker(w.tid), |vcpu| Waiter::Vcpu(w.vm, vcpu))
    }
}

/// A reading that names a thread: how long its own one had waited until then, ns, and that thread's number.
type Reading = (u64, u32);

/// The readings of a thread.
#[derive(Clone, Default)]
struct Readings {
    /// Until where they have been forgotten: how long the thread had waited then, ns.
    forgotten: u64,
    kept: VecDeque<Reading>,
}

impl Readings {
    /// How long the thread had waited at the last of them, ns.
    fn last(&self) -> Option<u64> {
        self.kept.back().map(|(until, _)| *until)
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct Waits(Map<Waiter, Readings>);

/// How long a thread has waited for a CPU, by its clock, ns.
fn waited(clock: &Split) -> u64 {
    clock.get(ThreadState::Ready)
}

impl Waits {
    pub(super) fn new(hasher: Seeded) -> Self {
        Waits(Map::with_hasher(hasher))
    }

    /// Takes the reading of a clock that the event has, if that names a thread by its number.
    pub(super) fn event(&mut self, event: &EventKind) {
        match event {
            &EventKind::Packet(Packet {
                point: Point::TapDequeue | Point::TapSend,
                tid,
                worker: Some(clock),
                preempted_by,
                ..
            }) => self.add(Waiter::Worker(tid), waited(&clock), preempted_by),
            EventKind::GuestEntry(e) => {
                self.add(Waiter::Vcpu(e.vm, e.vcpu), waited(&e.clock), e.preempted_by)
            }
            EventKind::Kick(k) => self.add(Waiter::Vcpu(k.vm, k.vcpu), waited(&k.clock), k.preempted_by),
            EventKind::Wait(w) => self.told(Waiter::of(w), &w.clock, w.preempted_by),
            EventKind::VcpuState(s) => self.told(Waiter::Vcpu(s.vm, s.vcpu), &s.clock, s.preempted_by),
            _ => {}
        }
    }

    /// A reading that may be another CPU's than the thread's own, and late: it ends nothing that is known already.
    fn told(&mut self, waiter: Waiter, clock: &Split, preempted_by: u32) {
        if self.0.get(&waiter).and_then(Readings::last) < Some(waited(clock)) {
            self.add(waiter, waited(clock), preempted_by);
        }
    }

    /// An event that comes too late for its place in the order. If it has a reading, the next one names who had the CPU since then;
    /// who had it until then is not known.
    pub(super) fn late(&mut self, event: &EventKind) {
        match event {
            EventKind::Wait(w) => self.told(Waiter::of(w), &w.clock, 0),
            EventKind::VcpuState(s) => self.told(Waiter::Vcpu(s.vm, s.vcpu), &s.clock, 0),
            _ => {}
        }
    }

    /// A reading of a thread's clock, by which it had waited for so many ns, and which names the thread with the number
    /// `preempted_by`.
    fn add(&mut self, waiter: Waiter, until: u64, preempted_by: u32) {
        if until == 0 {
            return;
        }
        if self.0.len() >= MAX_THREADS && !self.0.contains_key(&waiter) {
            // Most of them have ended.
            self.0.clear();
        }
        let readings = self.0.entry(waiter).or_default();
        match readings.kept.back_mut() {
            Some((last, _)) if *last == until => return,
            // Its id is that of another thread now.
            Some((last, _)) if *last > until => *readings = Readings::default(),
            // One reading with the time of both: so many packets that come to a thread while it waits take no room.
            Some((last, thread)) if *thread == preempted_by => {
                *last = until;
                return;
            }
            _ => {}
        }
        if readings.kept.len() >= MAX_READINGS
            && let Some((until, _)) = readings.kept.pop_front()
        {
            readings.forgotten = until;
        }
        readings.kept.push_back((until, preempted_by));
    }

    /// The number of the thread that a wait between two readings of a clock was behind; 0 if that is not known. `chance` is any number
    /// of its own for each wait.
    pub(super) fn preempted_by(&self, waiter: Waiter, from: &Split, to: &Split, chance: u64) -> u32 {
        let Some(readings) = self.0.get(&waiter) else { return 0 };
        let from = waited(from);
        let Some(length) = waited(to).checked_sub(from).filter(|ns| *ns > 0) else { return 0 };
        // The finalizer of splitmix64: numbers that are close to each other give points that are not.
        let mixed = (chance ^ chance >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let point = from + ((u128::from(mixed ^ mixed >> 31) * u128::from(length)) >> 64) as u64;
        if point < readings.forgotten {
            return 0;
        }
        let at = readings.kept.partition_point(|(until, _)| *until <= point);
        readings.kept.get(at).map_or(0, |(_, thread)| *thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: Waiter = Waiter::Worker(7);

    fn clock(waited: u64) -> Split {
        Split([0, 0, 0, waited, 0])
    }

    fn waits(readings: impl IntoIterator<Item = (u64, u32)>) -> Waits {
        let mut waits = Waits::new(Seeded::new(1));
        readings.into_iter().for_each(|(waited, by)| waits.add(WORKER, waited, by));
        waits
    }

    fn named(waits: &Waits, from: u64, to: u64, thread: u32) -> usize {
        let chances = (0..1000).map(|i| i * 1_000_000);
        chances.filter(|i| waits.preempted_by(WORKER, &clock(from), &clock(to), *i) == thread).count()
    }

    #[test]
    fn each_reading_counts_by_its_part_of_the_wait() {
        // A reading without a wait before it has no name.
        let waits = waits([(1000, 1), (1000, 9), (1100, 2), (2000, 3)]);
        assert_eq!(named(&waits, 0, 1000, 1), 1000);
        assert_eq!(named(&waits, 1000, 1100, 2), 1000);
        for (thread, deserved) in [(1, 500), (2, 100), (3, 400)] {
            let named = named(&waits, 500, 1500, thread);
            assert!(named.abs_diff(deserved) < 50, "{named}, not {deserved}");
        }
        // Not known: no wait, or one that no reading has ended yet, or of another thread.
        assert_eq!(named(&waits, 1500, 1500, 0), 1000);
        assert_eq!(named(&waits, 2000, 2100, 0), 1000);
        assert_eq!(waits.preempted_by(Waiter::Worker(8), &clock(0), &clock(1000), 5), 0);
    }

    #[test]
    fn a_thread_id_that_is_used_again_is_another_thread() {
        let waits = waits([(1000, 1), (2000, 1), (500, 2)]);
        assert_eq!(named(&waits, 0, 500, 2), 1000);
        assert_eq!(named(&waits, 500, 2000, 1), 0);
    }

    /// Another CPU may be late with a reading: nothing that is known is forgotten for that.
    #[test]
    fn a_wait_that_comes_late_ends_nothing() {
        let mut waits = waits([(1000, 1), (2000, 2)]);
        let wait = |waited| Wait {
            tid: 7,
            vm: 0,
            vcpu: None,
            state: ThreadState::Ready,
            clock: clock(waited),
            preempted_by: 3,
        };
        waits.event(&EventKind::Wait(wait(1500)));
        assert_eq!((named(&waits, 0, 1000, 1), named(&waits, 1000, 2000, 2)), (1000, 1000));
        waits.event(&EventKind::Wait(wait(3000)));
        assert_eq!(named(&waits, 2000, 3000, 3), 1000);
        waits.late(&EventKind::Wait(wait(4000)));
        assert_eq!(named(&waits, 3000, 4000, 0), 1000);
    }

    #[test]
    fn readings_in_a_row_that_name_one_thread_take_the_place_of_one() {
        let waits = waits((1..=1000).map(|i| (i * 10, 1)).chain([(10_010, 2), (10_020, 2)]));
        assert_eq!(waits.0[&WORKER].kept, [(10_000, 1), (10_020, 2)]);
        assert_eq!(named(&waits, 0, 10_000, 1), 1000);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut waits = waits((1..=1000).map(|i| (i * 10, i as u32)));
        assert_eq!(waits.0[&WORKER].kept.len(), MAX_READINGS);
        assert_eq!(named(&waits, 9990, 10_000, 1000), 1000);
        // Who was named by a reading that has been forgotten is not known.
        let oldest = 1000 - MAX_READINGS as u64 + 1;
        assert_eq!(named(&waits, 0, 10 * (oldest - 1), 0), 1000);
        assert_eq!(named(&waits, 10 * (oldest - 1), 10 * oldest, oldest as u32), 1000);
        for tid in 0..2 * MAX_THREADS as u32 {
            waits.add(Waiter::Worker(tid), 20_000, 6);
            assert!(waits.0.len() <= MAX_THREADS);
            assert_eq!(waits.preempted_by(Waiter::Worker(tid), &clock(19_999), &clock(20_000), 1), 6);
        }
    }
}
