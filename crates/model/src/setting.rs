//! What teiji can change on a host, and to what.
//!
//! A [`Setting`] names one thing so exactly that it cannot be taken for another: a thread by its id *and* the
//! instant it started, so that a change meant for a VM that has ended never meets a stranger. A [`Value`] is
//! what it can be. Whoever knows a setting's value before a change can undo it: that is all that the plan, the
//! journal and the rollback are made of.

use crate::cpus::CpuSet;
use crate::queue::{Device, Queue};
use crate::text::duration;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A thread or process that is not mistaken for a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/<id>/stat`.
    pub started: u64,
}

/// One thing that can be changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// CPUs that a thread may run on ([`Value::Cpus`]).
    ThreadCpus(Task),
    /// How a thread is scheduled ([`Value::Scheduling`]).
    ThreadScheduling(Task),
    /// CPUs that an interrupt may be delivered to: `/proc/irq/<n>/smp_affinity_list` ([`Value::Cpus`]).
    IrqCpus(u32),
    /// The control group that a process is in, as a path below the cgroup v2 mount such as
    /// `/machine.slice/x.scope` ([`Value::Group`]).
    Group(Task),
    /// `cpu.weight` of a control group ([`Value::Weight`]).
    GroupWeight(String),
    /// `cpu.max` of a control group ([`Value::Quota`]).
    GroupQuota(String),
    /// How long KVM polls before it lets a halted vCPU sleep, host-wide: the module parameter
    /// `kvm.halt_poll_ns` ([`Value::Nanoseconds`]).
    HaltPoll,
    /// The longest wake-up that a CPU's idle states may have: `power/pm_qos_resume_latency_us` of the CPU
    /// ([`Value::Latency`]).
    CpuLatency(u32),
    /// A device's root qdisc ([`Value::Queue`]).
    Queue(Device),
    /// The largest packet that the host's own stack hands to a device for it to split: `gso_max_size`, bytes of IP
    /// packet ([`Value::Bytes`]).
    SegmentSize(Device),
}

/// What a setting is, or should be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// CPUs.
    Cpus(CpuSet),
    /// Scheduling class and its parameters.
    Scheduling(Scheduling),
    /// A control group's path.
    Group(String),
    /// 1 to 10,000; 100 is the kernel's default.
    Weight(u32),
    /// CPU time in each period, `None`: no limit.
    Quota(Option<Quota>),
    /// A time.
    Nanoseconds(u64),
    /// Wake-up latency of a CPU.
    Latency(Latency),
    /// A root qdisc.
    Queue(Queue),
    /// A size.
    Bytes(u32),
}

/// A limit on CPU time: `cpu.max` of cgroup v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quota {
    /// CPU time in a period, µs.
    pub quota_us: u64,
    /// Length of a period, µs; 1,000 to 1,000,000.
    pub period_us: u64,
}

/// A bound on the wake-up latency of a CPU's idle states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Latency {
    /// Whatever saves most power; the kernel's `0`.
    Any,
    /// At most so many µs.
    AtMost(u32),
    /// No idle state that has to be woken from (the CPU spins): the kernel's `n/a`.
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
        /// Within how long of the period's start, ns.
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
    /// Whether such a thread keeps ordinary ones from its CPU.
    pub fn is_real_time(&self) -> bool {
        self.priority() > 0
    }

    /// Whether it is `SCHED_DEADLINE`, whose threads Linux lets run on every CPU only.
    pub fn is_deadline(&self) -> bool {
        matches!(self, Scheduling::Deadline { .. })
    }

    /// Which of two real-time threads goes first: the one with the greater number. 0: not real-time; 100:
    /// `SCHED_DEADLINE`, which goes before every priority.
    pub fn priority(&self) -> u8 {
        match self {
            Scheduling::Fifo { priority } | Scheduling::RoundRobin { priority } => *priority,
            Scheduling::Deadline { .. } => 100,
            _ => 0,
        }
    }
}

impl fmt::Display for Setting {
    /// As a plan shows it; who the thread is, the plan says beside it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::ThreadCpus(t) => write!(f, "CPUs of thread {}", t.id),
            Setting::ThreadScheduling(t) => write!(f, "scheduling of thread {}", t.id),
            Setting::IrqCpus(n) => write!(f, "CPUs of interrupt {n}"),
            Setting::Group(t) => write!(f, "control group of process {}", t.id),
            Setting::GroupWeight(path) => write!(f, "cpu.weight of {path}"),
            Setting::GroupQuota(path) => write!(f, "cpu.max of {path}"),
            Setting::HaltPoll => f.write_str("kvm.halt_poll_ns"),
            Setting::CpuLatency(cpu) => write!(f, "wake-up latency of CPU {cpu}"),
            Setting::Queue(device) => write!(f, "root qdisc of {device}"),
            Setting::SegmentSize(device) => write!(f, "gso_max_size of {device}"),
        }
    }
}

/// A time with three digits: what is shown is for people, and need not be read back.
fn nanos(ns: u64) -> String {
    duration(ns as f64)
}

fn micros(us: u64) -> String {
    duration(us as f64 * 1e3)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Cpus(cpus) => write!(f, "{cpus}"),
            Value::Scheduling(s) => write!(f, "{s}"),
            Value::Group(path) => f.write_str(path),
            Value::Weight(weight) => write!(f, "{weight}"),
            Value::Quota(None) => f.write_str("no limit"),
            Value::Quota(Some(q)) => write!(f, "{} of every {}", micros(q.quota_us), micros(q.period_us)),
            Value::Nanoseconds(ns) => f.write_str(&nanos(*ns)),
            Value::Latency(Latency::Any) => f.write_str("any"),
            Value::Latency(Latency::AtMost(us)) => write!(f, "at most {}", micros((*us).into())),
            Value::Latency(Latency::None) => f.write_str("none (spins)"),
            Value::Queue(queue) => write!(f, "{queue}"),
            Value::Bytes(bytes) => write!(f, "{bytes} bytes"),
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
                let [runtime, deadline, period] = [runtime, deadline, period].map(|ns| nanos(*ns));
                write!(f, "deadline: {runtime} within {deadline} of every {period}")
            }
            Scheduling::Ext { nice } => write!(f, "sched_ext, nice {nice}"),
        }
    }
}

/// Why a setting cannot be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingError {
    /// The thread, interrupt, group or device is not there any more.
    #[error("{0} is gone")]
    Gone(String),
    /// This kernel or host does not have it.
    #[error("{0}")]
    Unsupported(String),
    /// A privilege is missing; says which.
    #[error("{0}")]
    NotPermitted(String),
    /// The kernel refused the value; says why in the operator's words, with the error number's name.
    #[error("{0}")]
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

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
