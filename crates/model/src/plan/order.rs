//! In which order steps are taken, so that each finds what it needs.
//!
//! What depends on what:
//! - A thread of `SCHED_DEADLINE` may not be kept from any CPU (EBUSY, `dl_task_check_affinity()`), and one that is kept
//!   from some cannot become one (EPERM, `__sched_setscheduler()`): out of that class before the affinity changes, into
//!   it after that. So it is with the other real-time classes, which would hold the wrong CPUs otherwise.
//! - A VM's vhost worker has a higher priority than its vCPUs, which could keep it from running for good: the highest
//!   priority is given first and taken last. Priorities that become lower do so before others, the lowest first.
//! - What a link's queue guarantees counts on the size of segments: they become smaller before, and larger after.
//! - Weight and quota of a group are put back before the group is left, and set after it was entered.
//! - Before Linux 6.2 a thread that is moved into a group may run on all CPUs of that (`cpuset_attach()`): affinity after
//!   groups, both ways.
//!
//! What a line of the policy did that is no longer there goes back before anything new, which it may stand in the way
//! of; only real-time classes are all given last.

use super::Step;
use crate::setting::{Scheduling, Setting, Value};

/// First of the steps forward.
const FORWARD: u8 = 20;
/// Into a real-time class.
const INTO: u8 = 40;

impl Step {
    /// Its place among the steps of a plan or rollback: the least comes first. `back`: it puts back what was before
    /// teiji, rather than making what a policy asks for.
    pub fn turn(&self, back: bool) -> (u8, u8) {
        let (first, then) = match &self.setting {
            Setting::ThreadScheduling(_) => return self.scheduling_turn(back),
            Setting::SegmentSize(_) if larger(self) => (3, INTO + 2 - FORWARD),
            Setting::SegmentSize(_) => (1, 2),
            Setting::Queue(_) => (2, INTO + 1 - FORWARD),
            Setting::GroupQuota(_) => (5, 5),
            Setting::GroupWeight(_) => (6, 4),
            Setting::Group(_) => (7, 3),
            Setting::ThreadCpus(_) => (8, 7),
            Setting::HaltPoll => (9, 2),
            Setting::CpuLatency(_) => (10, 1),
            Setting::IrqCpus(_) => (11, 0),
        };
        (if back { first } else { FORWARD + then }, 0)
    }

    fn scheduling_turn(&self, back: bool) -> (u8, u8) {
        let of = |value: &Value| match value {
            Value::Scheduling(scheduling) => *scheduling,
            _ => Scheduling::Other { nice: 0 },
        };
        let (from, to) = (of(&self.present), of(&self.wanted));
        let lowest_first = from.priority();
        let highest_first = u8::MAX - to.priority();
        match (from.is_deadline() && !to.is_deadline(), to.is_real_time()) {
            (true, false) => (0, lowest_first),
            (true, true) => (0, highest_first),
            (false, true) if from.is_real_time() && to.priority() < from.priority() => {
                (INTO - 1, lowest_first)
            }
            (false, true) => (INTO, highest_first),
            (false, false) if back && from.is_real_time() => (0, lowest_first),
            (false, false) => (if back { 4 } else { FORWARD + 8 }, lowest_first),
        }
    }
}

fn larger(step: &Step) -> bool {
    matches!((&step.present, &step.wanted), (Value::Bytes(present), Value::Bytes(wanted)) if wanted > present)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Task;

    const THREAD: Task = Task { id: 1, started: 1 };

    fn step_of(setting: Setting, present: Value, wanted: Value) -> Step {
        let [whose, reason, cost] = [const { String::new() }; 3];
        Step { setting, whose, present, wanted, reason, cost }
    }

    fn fifo(from: u8, to: u8) -> Step {
        let of = |priority| match priority {
            0 => Value::Scheduling(Scheduling::Other { nice: 0 }),
            priority => Value::Scheduling(Scheduling::Fifo { priority }),
        };
        step_of(Setting::ThreadScheduling(THREAD), of(from), of(to))
    }

    /// A worker above a vCPU that is always busy has to stay above it at every instant.
    #[test]
    fn a_worker_is_above_its_vcpu_whatever_becomes_of_their_priorities() {
        for back in [false, true] {
            for (vcpu, worker, vcpu_first) in [
                (fifo(50, 10), fifo(51, 11), true),
                (fifo(10, 50), fifo(11, 51), false),
                (fifo(0, 10), fifo(0, 11), false),
                (fifo(10, 0), fifo(11, 0), true),
            ] {
                let first = vcpu.turn(back) < worker.turn(back);
                assert_eq!(first, vcpu_first, "{vcpu:?}, {worker:?}, back {back}");
            }
        }
    }

    #[test]
    fn affinity_comes_after_groups_both_ways() {
        let step = |setting| step_of(setting, Value::Bytes(0), Value::Bytes(0));
        for back in [false, true] {
            let cpus = step(Setting::ThreadCpus(THREAD)).turn(back);
            assert!(step(Setting::Group(THREAD)).turn(back) < cpus, "back {back}");
        }
    }
}
