//! What the kernel's own counters say of VMs at an instant, and, if asked for, what probes have counted of their threads: the input of a diagnosis
//! (`analysis::diagnose`). Unless said otherwise, counters only grow; two [`Sample`]s give what happened in between.
//!
//! ```text
//!  ObservedVms ─ Sample, ends ─ Sample ─ Sample ─ … ─ Sample, ends ─ Sample ─ … ─ Sample, ends
//!               └──────────── an observation ────────────────────┘
//!                                                    └────────── the next one ──────────────┘
//! ```
//! Other VMs begin with an observation of their own.

use crate::census::Census;
use crate::host::Vm;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The counters of some VMs and of the host at an instant. Times are in ns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// `CLOCK_MONOTONIC`.
    pub at: u64,
    /// Whether it is the first or the last one of an observation, or both: the next one begins with the last one.
    pub ends: bool,
    /// By process id; VMs that have ended are left out.
    pub vms: BTreeMap<u32, VmUsage>,
    /// By number; empty within an observation.
    pub cpus: BTreeMap<u32, CpuUsage>,
    /// The threads of the host, by id; empty if they were not looked at, as is usual within an observation.
    pub threads: BTreeMap<u32, HostThread>,
    /// Qdiscs that have limited the rate of packets on VMs' taps, by the VMs' process ids; an empty list if there are none on the VM's taps, and nothing
    /// if they could not be read, or within an observation. Not part of the encoding of a sample, which so stays that of format version 8:
    /// a recording has them in a frame of their own.
    #[serde(skip)]
    pub rate_limits: BTreeMap<u32, Vec<RateLimit>>,
    /// The names of threads that copy a VM's memory for a migration or a snapshot, by the VM's process id; encoded as `rate_limits` are. Untrusted
    /// text.
    #[serde(skip)]
    pub migrations: BTreeMap<u32, Vec<String>>,
}

/// A qdisc that limits the rate of packets on a tap, and has done so since it was added. Its counters wrap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// The tap.
    pub device: String,
    /// The index of the tap.
    pub ifindex: u32,
    /// Its kind, such as `tbf`.
    pub kind: String,
    /// Its handle on the tap.
    pub handle: u32,
    /// How often the rate was used up. Whether packets wait then, the kinds count differently.
    pub overlimits: u32,
    /// Packets that it dropped.
    pub drops: u32,
    /// Packets in it now: no counter.
    pub queued: u32,
}

impl RateLimit {
    /// The most for a VM.
    pub const MOST: usize = 16;
}

/// The most threads that copy a VM's memory of which there are names.
pub const MOST_COPY_THREADS: usize = 8;

/// The VMs that are observed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedVms {
    /// All of the host, as any of them may be in the way.
    pub vms: Vec<Vm>,
    /// The process ids of those that were asked for, in this order.
    pub selected: Vec<u32>,
    /// What probes could not count, for people; empty also if there are none.
    pub uncounted: Vec<String>,
}

/// A VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmUsage {
    /// When its threads were read: later than [`Sample::at`], as other VMs come before it.
    pub at: u64,
    /// Its vCPU threads and vhost workers, by thread id.
    pub threads: BTreeMap<u32, ThreadUsage>,
    /// The control groups of its threads and those above, without the root, by path; empty without cgroup v2.
    pub groups: Vec<GroupUsage>,
    /// Whether CPU quotas can be seen: the groups of version 2 have the CPU controller.
    pub quotas_seen: bool,
    /// Time that KVM polled before it let vCPUs sleep, summed over them; `None` if debugfs does not tell, and within an observation.
    pub polled: Option<u64>,
    /// Page faults of the VMM that had to read from a device; `None` within an observation.
    pub major_faults: Option<u64>,
    /// Packets for the guest, by tap.
    pub taps: BTreeMap<String, TapUsage>,
    /// Qdiscs that delay packets on purpose, on its taps and on the NICs of their bridges: device and kind. Not within an observation.
    pub delaying: Vec<(String, String)>,
}

/// Packets for the guest on a tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapUsage {
    /// Those that were taken off it.
    pub taken: u64,
    /// Those that found it full, or its other side gone.
    pub dropped: u64,
}

/// What a thread of a VM does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// A vCPU, by its index.
    Vcpu(u16),
    /// A vhost worker.
    Worker,
}

/// A thread of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadUsage {
    /// What it does.
    pub role: Role,
    /// When it was started, in clock ticks since boot.
    pub started: u64,
    /// Time on a CPU.
    pub ran: u64,
    /// Of it, in guest mode; the kernel counts it by ticks, so that a short time is a rough one.
    pub guest: u64,
    /// Time that it was runnable and waited for a CPU, up to when it last began to run.
    pub waited: u64,
    /// How often it began to run.
    pub starts: u64,
    /// What it does now.
    pub state: RunState,
    /// The CPU that it runs on, or ran on last.
    pub cpu: u32,
    /// Its control group; empty if not known.
    pub group: String,
    /// What probes have counted of it, if they do.
    pub census: Option<Box<Census>>,
}

/// What a thread does at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunState {
    /// It runs, or could.
    Runnable,
    /// It sleeps; of a vCPU: as the guest has halted it. Within an observation also in the VMM, if it has begun to run since the last look.
    Asleep,
    /// A vCPU that sleeps in the VMM, not in KVM: as that of a VM that is paused.
    InVmm,
    /// It waits for a device (`D`).
    Disk,
    /// By a signal, or by a debugger.
    Stopped,
}

/// A control group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupUsage {
    /// Its path, such as `/machine.slice`.
    pub path: String,
    /// Time that its CPU quota kept threads from running, summed over CPUs. While that lasts, by whole periods of one CPU.
    pub throttled: u64,
    /// Whether it is frozen, or one above it is. Within an observation only if no vCPU thread in it has begun to run since the last look.
    pub frozen: bool,
    /// Its CPU quota, percent of a CPU; `None` if there is none.
    pub quota: Option<u64>,
}

impl GroupUsage {
    /// Whether a group is this one, or below it.
    pub fn contains(&self, group: &str) -> bool {
        group.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// A CPU of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuUsage {
    /// All time.
    pub total: u64,
    /// Hard interrupts and softirqs.
    pub interrupts: u64,
    /// Taken by a hypervisor below this host.
    pub stolen: u64,
}

/// A thread of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostThread {
    /// Its process.
    pub pid: u32,
    /// When it was started, in clock ticks since boot.
    pub started: u64,
    /// Its name. Untrusted text.
    pub name: String,
    /// The unit or container that it belongs to, if any. Untrusted text.
    pub unit: Option<String>,
    /// Time on a CPU, ns.
    pub ran: u64,
    /// The CPU that it runs on, or ran on last.
    pub cpu: u32,
}
