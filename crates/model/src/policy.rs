//! What the operator wants: the policy, with the place of each value in its file. `teiji-policy` reads it from TOML.

use crate::cpus::CpuSet;
use crate::resource::{self, Latency, Scheduling};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// Longest policy file, bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Longest `halt_poll`, ns: 10 ms of polling at each halt is a CPU given away; more is a slip of the unit.
pub const MAX_HALT_POLL: u64 = 10_000_000;
/// Greatest process id that a policy can name: `PID_MAX_LIMIT` (include/linux/threads.h).
pub const MAX_PID: u32 = 1 << 22;

/// A policy file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, for messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Where something is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A value and where it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub place: Place,
}

/// What is wrong with a policy, and the cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// What is wrong and what to write instead; ends without a full stop. Printable.
    pub message: String,
}

/// What the operator wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Of the host as a whole.
    pub host: HostPolicy,
    /// By device name, in the order written.
    pub links: Vec<LinkPolicy>,
    /// By name.
    pub vms: Vec<VmPolicy>,
    /// By name.
    pub channels: Vec<ChannelPolicy>,
    /// Virtual functions.
    pub vfs: Vec<VfPolicy>,
    /// Keys of any section that set resources as they are, in the order written.
    pub direct: Vec<Direct>,
    /// Lines that do not hold, since a later file has others in their place; in the order of the sections.
    pub overridden: Vec<Overridden>,
}

/// A key whose value is that of every resource of a kind that its section speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direct {
    /// What its section speaks of.
    pub subject: Subject,
    /// The key.
    pub key: &'static str,
    /// The kind of resource.
    pub kind: resource::Kind,
    /// What each shall be.
    pub value: At<resource::Value>,
    /// What that costs, for people; empty if nothing worth saying.
    pub cost: &'static str,
}

/// What a section speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// `[host]`: all that the host has.
    Host,
    /// `[link.NAME]`: what the device has.
    Link(At<String>),
    /// `[vm.NAME]`: what the VM's threads and taps have.
    Vm(At<String>),
}

/// A line of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What it says, as `weight = 200`; cut if it is long, printable.
    pub text: String,
    /// Where its value is.
    pub place: Place,
}

/// A line that holds, and those of earlier files that do not hold because of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overridden {
    /// The section, as `vm.sip1`; printable.
    pub section: String,
    /// What holds.
    pub holds: Line,
    /// What does not, in the order of the files; never empty.
    pub over: Vec<Line>,
}

/// `[host]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicy {
    /// `halt_poll`: how long KVM polls before a halted vCPU sleeps, ns; `"off"` is 0. At most 10 ms.
    pub halt_poll: Option<At<u64>>,
    /// `cpu_latency`: longest wake-up of the CPUs' idle states: `"any"`, `"none"` or a time in whole µs.
    pub cpu_latency: Option<At<Latency>>,
    /// `cpu_latency_cpus`: which CPUs; all if absent.
    pub cpu_latency_cpus: Option<At<CpuSet>>,
    /// `vm_users`: users whose VMs may name themselves; [`VM_USERS`](crate::host::VM_USERS) if absent.
    pub vm_users: Option<At<Vec<String>>>,
}

/// `[link.NAME]`: a host NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPolicy {
    /// The device.
    pub name: At<String>,
    /// `irq_cpus`: CPUs for its interrupts.
    pub irq_cpus: Option<At<CpuSet>>,
    /// `rate`: bit/s.
    pub rate: Option<At<u64>>,
    /// `slack`: `"auto"` is `Auto::Auto`, else a time in ns.
    pub slack: Option<At<Auto>>,
    /// `max_packet`: largest Ethernet frame that comes to its queue, bytes.
    pub max_packet: Option<At<u32>>,
    /// `realtime_max`: most that its channels may have together, bit/s.
    pub realtime_max: Option<At<u64>>,
}

/// A time, or for teiji to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto {
    /// teiji chooses.
    Auto,
    /// ns.
    Nanoseconds(u64),
}

/// `[vm.NAME]`: NAME is libvirt's or QEMU's name, or `pid:N` in quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmPolicy {
    /// The VM.
    pub name: At<String>,
    /// `class`, with `priority` or `runtime`, `deadline` and `period`: how its vCPU threads and vhost workers are
    /// scheduled. `"fair"` is the default scheduler, `"realtime"` is `SCHED_FIFO` with `priority` (default 10; workers one more),
    /// `"deadline"` is `SCHED_DEADLINE` with `runtime` and `period` (`deadline` defaults to `period`).
    pub class: Option<At<Scheduling>>,
    /// `vcpu_cpus`: CPUs for its vCPU threads.
    pub vcpu_cpus: Option<At<CpuSet>>,
    /// `worker_cpus`: CPUs for its vhost workers.
    pub worker_cpus: Option<At<CpuSet>>,
    /// `weight`: share of the CPU against other groups, 1 to 10,000, the default being 100.
    pub weight: Option<At<u32>>,
    /// `quota`: most CPU time, in thousandths of a CPU: `"150%"` is 1500; `"none"` is `None` inside.
    pub quota: Option<At<Option<u32>>>,
}

/// `[channel.NAME]`: a one-way flow with a deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelPolicy {
    /// Its name.
    pub name: At<String>,
    /// `link`: the device that its packets leave by; if absent that of the only `[link.NAME]`.
    pub link: Option<At<String>>,
    /// `from`.
    pub from: Option<At<Endpoint>>,
    /// `to`.
    pub to: Option<At<Endpoint>>,
    /// `proto`: `"udp"` is 17, `"tcp"` 6.
    pub proto: Option<At<u8>>,
    /// `deadline`, ns; required.
    pub deadline: At<u64>,
    /// `min_rate`, bit/s; required.
    pub min_rate: At<u64>,
    /// `burst`, bytes.
    pub burst: Option<At<u64>>,
}

/// An address or prefix with a port or without.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// Address; the bits beyond the prefix are 0.
    pub address: IpAddr,
    /// Length of the prefix, bits.
    pub prefix: u8,
    /// Port.
    pub port: Option<u16>,
}

/// `[vf.LINK.N]`: a virtual function of an SR-IOV NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfPolicy {
    /// The NIC.
    pub link: At<String>,
    /// Which function.
    pub index: At<u32>,
    /// `hard`: most that it may send, bit/s.
    pub hard: Option<At<u64>>,
    /// `weight`: share against other functions, 1 to 100.
    pub weight: Option<At<u32>>,
}
