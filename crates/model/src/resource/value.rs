//! The types of values of resources.

use crate::text::duration;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A limit on CPU time: `cpu.max` of cgroup v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quota {
    /// CPU time in a period, µs.
    pub quota_us: u64,
    /// Length of a period, µs; 1,000 to 1,000,000.
    pub period_us: u64,
}

impl Quota {
    /// The kernel's default period, µs (`default_cfs_period`); that of every quota that teiji sets.
    pub const PERIOD_US: u64 = 100_000;
}

/// A bound on the wake-up latency of a CPU's idle states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Latency {
    /// Any latency, which saves most power; the kernel's `0`.
    Any,
    /// At most this many µs.
    AtMost(u32),
    /// No idle state with a wake-up latency (the CPU spins): the kernel's `n/a`.
    None,
}

/// How a thread is scheduled: `sched_setattr(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduling {
    /// `SCHED_OTHER`.
    Other {
        /// -20 to 19.
        nice: i8,
    },
    /// `SCHED_BATCH`.
    Batch {
        /// -20 to 19.
        nice: i8,
    },
    /// `SCHED_IDLE`.
    Idle,
    /// `SCHED_FIFO`.
    Fifo {
        /// 1 to 99.
        priority: u8,
    },
    /// `SCHED_RR`.
    RoundRobin {
        /// 1 to 99.
        priority: u8,
    },
    /// `SCHED_DEADLINE`.
    Deadline {
        /// CPU time in each period, ns.
        runtime: u64,
        /// The time from the start of a period within which the thread gets its runtime, ns.
        deadline: u64,
        /// Period, ns.
        period: u64,
    },
    /// `SCHED_EXT`: a BPF scheduler decides.
    Ext {
        /// -20 to 19.
        nice: i8,
    },
}

impl Scheduling {
    /// Whether threads with this scheduling preempt ordinary threads.
    pub fn is_real_time(&self) -> bool {
        self.priority() > 0
    }

    /// Whether it is `SCHED_DEADLINE`; Linux requires that its threads may run on every CPU.
    pub fn is_sched_deadline(&self) -> bool {
        matches!(self, Scheduling::Deadline { .. })
    }

    /// The priority: of two real-time threads the one with the greater number runs first. 0 means not real-time; 100
    /// means `SCHED_DEADLINE`, which precedes every priority.
    pub fn priority(&self) -> u8 {
        match self {
            Scheduling::Fifo { priority } | Scheduling::RoundRobin { priority } => *priority,
            Scheduling::Deadline { .. } => 100,
            _ => 0,
        }
    }
}

/// A time in µs with three digits: it is for people, and is never parsed.
pub(super) fn micros(us: u64) -> String {
    duration(us as f64 * 1e3)
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Latency::Any => f.write_str("any"),
            Latency::AtMost(us) => write!(f, "at most {}", micros((*us).into())),
            Latency::None => f.write_str("none (spins)"),
        }
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheduling::Other { nice: 0 } => f.write_str("default"),
            Scheduling::Other { nice } => write!(f, "default, nice {nice}"),
            Scheduling::Batch { nice } => write!(f, "batch, nice {nice}"),
            Scheduling::Idle => f.write_str("idle"),
            Scheduling::Fifo { priority } => write!(f, "FIFO {priority}"),
            Scheduling::RoundRobin { priority } => write!(f, "round robin {priority}"),
            Scheduling::Deadline { runtime, deadline, period } => {
                let [runtime, deadline, period] = [runtime, deadline, period].map(|ns| duration(*ns as f64));
                write!(f, "deadline: {runtime} within {deadline} of every {period}")
            }
            Scheduling::Ext { nice } => write!(f, "sched_ext, nice {nice}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Value;

    #[test]
    fn times_are_written_as_people_write_them() {
        let texts = [0, 200_000, 1_500_000, 3_730_400, 999, 3_000_000_000]
            .map(|ns| Value::Nanoseconds(ns).to_string());
        assert_eq!(texts, ["0 ns", "200 µs", "1.50 ms", "3.73 ms", "999 ns", "3.00 s"]);
        let (ms, quota) = (1_000_000, Quota { quota_us: 150_000, period_us: 100_000 });
        let deadline = Scheduling::Deadline { runtime: 2 * ms, deadline: 5 * ms, period: 10 * ms };
        let texts =
            [Value::Quota(Some(quota)), Value::Latency(Latency::AtMost(20)), Value::Scheduling(deadline)]
                .map(|value| value.to_string());
        let wanted = [
            "150 ms of every 100 ms",
            "at most 20.0 µs",
            "deadline: 2.00 ms within 5.00 ms of every 10.0 ms",
        ];
        assert_eq!(texts, wanted);
    }
}
