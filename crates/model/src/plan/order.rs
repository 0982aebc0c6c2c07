//! In which order steps are taken, so that each finds what it needs.
//!
//! What depends on what:
//! - A thread of `SCHED_DEADLINE` may not be kept from any CPU (EBUSY, `dl_task_check_affinity()`), and one that is kept
//!   from some cannot become one (EPERM, `__sched_setscheduler()`): out of that class before the affinity changes, into
//!   it after that. So it is with the other real-time classes, which would hold the wrong CPUs otherwise.
//! - A VM's vhost worker has a higher priority than its vCPUs, which could keep it from running for good: the highest
//!   priority is given first and taken last.
//! - What a link's queue guarantees counts on the size of segments: they become smaller before, and larger after.
//! - Weight and quota of a group are put back before the group is left, and set after it was entered.
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
            Setting::ThreadCpus(_) => (5, 7),
            Setting::GroupQuota(_) => (6, 5),
            Setting::GroupWeight(_) => (7, 4),
            Setting::Group(_) => (8, 3),
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
            (false, true) => (INTO, highest_first),
            (false, false) if back && from.is_real_time() => (0, lowest_first),
            (false, false) => (if back { 4 } else { FORWARD + 8 }, lowest_first),
        }
    }
}

fn larger(step: &Step) -> bool {
    matches!((&step.present, &step.wanted), (Value::Bytes(present), Value::Bytes(wanted)) if wanted > present)
}
