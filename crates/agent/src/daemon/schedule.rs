//! When the host is looked at again: soon after something has changed, but not for each of many changes.
//!
//! ```text
//!  hint ──► look when it has been quiet for SETTLE, at the latest LATEST after the first hint
//!  a VM is created ──► and again AGAIN later: its threads and devices follow, some of them without an event
//!  nothing ──► look every `idle`
//!  a look failed ──► again after RETRY, which doubles up to RETRY_MOST
//! ```
//! After a look that took *t*, the next one waits for 4 *t*, but for 1 s at most, or for *t* if that is longer. So looking takes at
//! most a fifth of a CPU while *t* is at most 0.25 s, and half of one however long a look takes. `idle` is 5 minutes, but 250 times
//! the CPU time of a look if that is longer, up to 10 minutes: at rest, looking takes at most 0.4 % of a CPU while a look takes at
//! most 2.4 s of one. If a source of hints is missing, it is 1.5 s, whatever a look costs.
//!
//! Times are since any fixed instant. Nothing here reads a clock.

use std::collections::BTreeSet;
use std::time::Duration;
use teiji_host::watch::Hint;

/// Without a further hint for this long, what was changed is complete.
pub(super) const SETTLE: Duration = Duration::from_millis(100);
/// A change is looked at after this time at the latest, however many follow it.
pub(super) const LATEST: Duration = Duration::from_millis(400);
/// How long after the creation of a VM the host is looked at again.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1200)];
/// The shortest time between two looks at rest, if the kernel tells of everything.
const IDLE_MIN: Duration = Duration::from_secs(300);
/// At rest, the time between looks is this many times the CPU time of the last look, within [`IDLE_MIN`] to [`IDLE_MAX`].
const IDLE_PER_LOOK: u32 = 250;
const IDLE_MAX: Duration = Duration::from_secs(600);
/// The time between two looks at rest if a source of hints is missing, whatever they cost.
const IDLE_BLIND: Duration = Duration::from_millis(1500);
/// The first pause after a failure, and the longest.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(60);
/// The longest pause after a look that took less than this.
const PAUSE_MOST: Duration = Duration::from_secs(1);
/// Most processes that are remembered because they have just created a VM.
const MOST_NEW: usize = 4096;

/// When to look.
pub(super) struct Schedule {
    /// Whether a source of hints is missing.
    blind: bool,
    /// Processes of VMs at the last look, and those that have created a VM since.
    processes: BTreeSet<u32>,
    /// The first and the last hint since the last look.
    hinted: Option<(Duration, Duration)>,
    /// Further looks, ascending.
    again: Vec<Duration>,
    /// Not before this time.
    earliest: Duration,
    /// In any case at this time.
    latest: Duration,
    retry: Duration,
}

impl Schedule {
    /// The first look is due at once. `blind`: a source of hints is missing.
    pub(super) fn new(blind: bool) -> Schedule {
        Schedule {
            blind,
            processes: BTreeSet::new(),
            hinted: None,
            again: Vec::new(),
            earliest: Duration::ZERO,
            latest: Duration::ZERO,
            retry: RETRY,
        }
    }

    /// Something has happened. Whether a hint about threads is one about threads of a VM that a plan names, `concerns` tells: a
    /// guest may have QEMU start and end others as often as it likes.
    pub(super) fn hint(&mut self, now: Duration, hint: Hint, concerns: &dyn Fn(Hint) -> bool) {
        let matters = match hint {
            Hint::Device | Hint::Group | Hint::File | Hint::Lost => true,
            Hint::Machine { pid } => {
                if self.processes.len() < MOST_NEW {
                    self.processes.insert(pid);
                }
                self.again.extend(AGAIN.map(|later| now + later));
                true
            }
            Hint::Ended { pid } => self.processes.contains(&pid),
            Hint::Threads { pid } => self.processes.contains(&pid) && concerns(hint),
            Hint::KernelThread { .. } => concerns(hint),
        };
        if matters {
            self.now(now);
        }
    }

    /// The host is to be looked at soon, whatever the reason.
    pub(super) fn now(&mut self, now: Duration) {
        let first = self.hinted.map_or(now, |(first, _)| first);
        self.hinted = Some((first, now));
    }

    /// The host is to be looked at then as well.
    pub(super) fn at(&mut self, when: Duration) {
        self.again.push(when);
    }

    /// When the next look is due.
    pub(super) fn due(&self) -> Duration {
        let hinted = self.hinted.map(|(first, last)| (last + SETTLE).min(first + LATEST));
        let again = self.again.iter().copied().min();
        [hinted, again].into_iter().flatten().fold(self.latest, Duration::min).max(self.earliest)
    }

    /// A look has begun at `begun`, ended at `now`, taken this much CPU time, and found VMs with these processes. `failed`: some of
    /// what was to be done could not be done.
    pub(super) fn looked(
        &mut self,
        begun: Duration,
        now: Duration,
        cpu: Duration,
        vms: BTreeSet<u32>,
        failed: bool,
    ) {
        self.processes = vms;
        // What was told during the look may have come too late for it.
        self.hinted = self.hinted.filter(|(_, last)| *last >= begun).map(|(_, last)| (last, last));
        self.again.retain(|at| *at > begun);
        let took = now.saturating_sub(begun);
        self.earliest = now + (took * 4).min(PAUSE_MOST.max(took));
        let idle = if self.blind { IDLE_BLIND } else { (cpu * IDLE_PER_LOOK).clamp(IDLE_MIN, IDLE_MAX) };
        self.latest = now + if failed { self.retry.min(idle) } else { idle };
        self.retry = if failed { (self.retry * 2).min(RETRY_MOST) } else { RETRY };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn looked(schedule: &mut Schedule, begun: u64, now: u64) {
        schedule.looked(ms(begun), ms(now), ms(0), BTreeSet::from([100]), false);
    }

    fn hint(schedule: &mut Schedule, at: u64, hint: Hint) {
        schedule.hint(ms(at), hint, &|hint| hint != Hint::KernelThread { pid: 5 });
    }

    #[test]
    fn a_change_is_looked_at_when_it_is_complete() {
        let mut s = Schedule::new(false);
        assert_eq!(s.due(), ms(0));
        looked(&mut s, 0, 10);
        assert_eq!(s.due(), ms(300_010));
        hint(&mut s, 1000, Hint::Device);
        assert_eq!(s.due(), ms(1100));
        hint(&mut s, 1090, Hint::Device);
        assert_eq!(s.due(), ms(1190));
        for at in (1100..5000).step_by(10) {
            hint(&mut s, at, Hint::Group);
        }
        assert_eq!(s.due(), ms(1400), "at the latest");
        looked(&mut s, 1400, 1410);
        // Those that came after the look has begun.
        assert_eq!(s.due(), ms(5090));
        looked(&mut s, 5090, 5100);
        assert_eq!(s.due(), ms(305_100));
    }

    #[test]
    fn only_threads_of_vms_matter() {
        let mut s = Schedule::new(false);
        looked(&mut s, 0, 0);
        for other in [Hint::Threads { pid: 5 }, Hint::Ended { pid: 5 }, Hint::KernelThread { pid: 5 }] {
            hint(&mut s, 1000, other);
            assert_eq!(s.due(), ms(300_000), "{other:?}");
        }
        for own in [Hint::Threads { pid: 100 }, Hint::Ended { pid: 100 }, Hint::KernelThread { pid: 7 }] {
            hint(&mut s, 1000, own);
            assert_eq!(s.due(), ms(1100), "{own:?}");
            looked(&mut s, 1100, 1100);
        }
        // A VM that has been created since the last look.
        hint(&mut s, 2000, Hint::Machine { pid: 5 });
        looked(&mut s, 1999, 1999);
        hint(&mut s, 3000, Hint::Threads { pid: 5 });
        assert_eq!(s.due(), ms(2100), "the process had no VM yet");
    }

    /// A guest that has QEMU start and end threads of its pool keeps nobody busy.
    #[test]
    fn threads_that_no_plan_names_do_not_matter() {
        let mut s = Schedule::new(false);
        looked(&mut s, 0, 0);
        for at in 1000..9000 {
            s.hint(ms(at), Hint::Threads { pid: 100 }, &|_| false);
        }
        assert_eq!(s.due(), ms(300_000));
    }

    #[test]
    fn a_new_vm_is_looked_at_again() {
        let mut s = Schedule::new(false);
        looked(&mut s, 0, 0);
        hint(&mut s, 1000, Hint::Machine { pid: 5 });
        let mut at = Vec::new();
        for _ in 0..3 {
            let due = s.due();
            at.push(due);
            s.looked(due, due, ms(0), BTreeSet::new(), false);
        }
        assert_eq!(at, [ms(1100), ms(1500), ms(2200)]);
        assert_eq!(s.due(), ms(302_200));
    }

    #[test]
    fn looking_takes_a_fifth_of_a_cpu_at_most() {
        let mut s = Schedule::new(false);
        for (took, due) in [(100, 500), (300, 1300), (2000, 4000)] {
            looked(&mut s, 0, took);
            hint(&mut s, took + 10, Hint::Lost);
            assert_eq!(s.due(), ms(due));
            looked(&mut s, 0, 0);
        }
    }

    #[test]
    fn at_rest_costly_looks_are_less_frequent() {
        let mut s = Schedule::new(false);
        for (cpu, idle) in [(0, 300), (100, 300), (1200, 300), (2000, 500), (2400, 600), (60_000, 600)] {
            s.looked(ms(0), ms(3000), ms(cpu), BTreeSet::new(), false);
            assert_eq!(s.due(), ms(3000 + idle * 1000), "{cpu}");
        }
    }

    #[test]
    fn failures_are_tried_again_more_and_more_seldom() {
        let mut s = Schedule::new(false);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            s.looked(ms(0), ms(0), ms(0), BTreeSet::new(), true);
            pauses.push(s.due().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        s.looked(ms(0), ms(0), ms(0), BTreeSet::new(), false);
        s.looked(ms(0), ms(0), ms(0), BTreeSet::new(), true);
        assert_eq!(s.due(), ms(1000));
    }

    #[test]
    fn without_all_hints_it_looks_more_often() {
        let mut s = Schedule::new(true);
        looked(&mut s, 0, 10);
        assert_eq!(s.due(), ms(1510));
    }
}
