//! The policy: what the operator wants, with the place of each value in its file. `teiji-policy` parses it from TOML.

use crate::cpus::CpuSet;
use crate::host::VmId;
use crate::resource::{self, Latency, Scheduling};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

/// Longest policy file, bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Longest `halt_poll`, ns. Polling for 10 ms at each halt already uses up a CPU; a longer time is probably a wrong
/// unit.
pub const MAX_HALT_POLL: u64 = 10_000_000;
/// The greatest process id that a policy can name: `PID_MAX_LIMIT` (include/linux/threads.h).
pub const MAX_PID: u32 = 1 << 22;

/// A policy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name, for messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// A policy that was applied, as an agent keeps it: the files, because what they mean depends on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPolicy {
    /// The files, in the order in which they were named.
    pub sources: Vec<Source>,
    /// When it was applied, seconds since 1970.
    pub since: u64,
    /// The VMs that its sections meant then, by name. A VM that has the name later, but is another one, is not meant.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vms: BTreeMap<String, VmId>,
}

impl KeptPolicy {
    /// The names of its files.
    pub fn files(&self) -> Vec<String> {
        self.sources.iter().map(|source| source.name.clone()).collect()
    }
}

/// A place in a policy file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLocation {
    /// The file's name.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// The place.
    pub location: SourceLocation,
}

/// A problem of a policy, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct Problem {
    /// Where it is.
    pub location: SourceLocation,
    /// What is wrong and what to write instead; without a full stop. Printable.
    pub message: String,
}

/// What the operator wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// `[host]`.
    pub host: HostPolicy,
    /// `[link.NAME]`, in the order of their first mention.
    pub links: Vec<LinkPolicy>,
    /// `[vm.NAME]`, in the order of their first mention.
    pub vms: Vec<VmPolicy>,
    /// `[channel.NAME]`, in the order of their first mention.
    pub channels: Vec<ChannelPolicy>,
    /// `[vf.LINK.N]`: virtual functions.
    pub vfs: Vec<VfPolicy>,
    /// Keys of any section that set resources to the value written, in the order of the sections.
    pub direct: Vec<DirectSetting>,
    /// Lines that a later file overrides, in the order of the sections.
    pub overridden: Vec<Overridden>,
    /// Lines whose values other lines complete, in the order of the sections.
    pub completed: Vec<Completed>,
}

/// A key that sets all resources of one kind that its section covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectSetting {
    /// The section.
    pub subject: Subject,
    /// The key.
    pub key: &'static str,
    /// The kind of the resources.
    pub kind: resource::ResourceKind,
    /// The value that each of them gets.
    pub value: Located<resource::Value>,
    /// What it costs, for people; empty if there is nothing worth mentioning.
    pub cost: &'static str,
}

/// What a section covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// `[host]`: the resources of the host as a whole.
    Host,
    /// `[link.NAME]`: the resources of the device.
    Link(Located<String>),
    /// `[vm.NAME]`: the resources of the VM's threads and taps.
    Vm(Located<String>),
}

/// A line of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The text, such as `weight = 200`; truncated if it is long, printable.
    pub text: String,
    /// The place of its value.
    #[serde(rename = "place")]
    pub location: SourceLocation,
}

/// A line whose value other lines complete, as `priority` completes `class`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The place of its value.
    pub location: SourceLocation,
    /// The other lines that apply; never empty.
    pub with: Vec<KeyLocation>,
}

/// A key and the place of its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyLocation {
    /// The key, such as `priority`.
    pub key: String,
    /// The place of its value.
    #[serde(flatten)]
    pub location: SourceLocation,
}

/// A line that applies, and the lines of earlier files that it overrides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overridden {
    /// The section, such as `vm.sip1`; printable.
    pub section: String,
    /// The line that applies.
    pub holds: Line,
    /// The overridden lines, in the order of the files; never empty.
    pub over: Vec<Line>,
}

/// `[host]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicy {
    /// `halt_poll`: how long KVM polls before a halted vCPU sleeps, ns; `"off"` is 0. At most 10 ms.
    pub halt_poll: Option<Located<u64>>,
    /// `cpu_latency`: longest wake-up of the CPUs' idle states: `"any"`, `"none"` or a time in whole µs.
    pub cpu_latency: Option<Located<Latency>>,
    /// `cpu_latency_cpus`: the CPUs that it applies to; all if absent.
    pub cpu_latency_cpus: Option<Located<CpuSet>>,
    /// `vm_users`: the users whose VMs may name themselves; [`VM_USERS`](crate::host::VM_USERS) if absent.
    pub vm_users: Option<Located<Vec<String>>>,
}

/// `[link.NAME]`: a host NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPolicy {
    /// The device.
    pub name: Located<String>,
    /// `irq_cpus`: the CPUs for its interrupts.
    pub irq_cpus: Option<Located<CpuSet>>,
    /// `rate`, bit/s.
    pub rate: Option<Located<u64>>,
    /// `slack`: a time in ns; `"auto"` is `Auto::Auto`.
    pub slack: Option<Located<Auto>>,
    /// `max_packet`: the largest Ethernet frame that enters its queue, bytes.
    pub max_packet: Option<Located<u32>>,
    /// `realtime_max`: the highest rate of all its channels together, bit/s.
    pub realtime_max: Option<Located<u64>>,
}

/// A time, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto {
    /// teiji chooses.
    Auto,
    /// In ns.
    Nanoseconds(u64),
}

/// The `SCHED_FIFO` priority of vCPU threads if none is written: above 1, so that other threads can have a lower one, and below the
/// kernel's own interrupt threads at 50.
pub const DEFAULT_PRIORITY: u8 = 10;

/// How the vCPU threads and vhost workers of a VM are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmClass {
    /// Each by a class of the kernel: `"fair"` is the default scheduler, `"realtime"` is `SCHED_FIFO` with `priority` (default 10;
    /// workers one higher), `"deadline"` is `SCHED_DEADLINE` with `runtime` and `period` (`deadline` defaults to `period`).
    Threads(Scheduling),
    /// `"packets"`: together, by the deadlines of the VM's packets.
    Packets(PacketClass),
}

/// What a VM is promised whose threads go by the deadlines of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PacketClass {
    /// CPU time of all its threads together in each period for which they go before those of others, ns.
    pub runtime: u64,
    /// From a packet's arrival at the VM's tap until its threads are to have handled it, ns.
    pub deadline: u64,
    /// Period, ns.
    pub period: u64,
}

/// `[vm.NAME]`: NAME is libvirt's or QEMU's name, or `pid:N` in quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmPolicy {
    /// The VM.
    pub name: Located<String>,
    /// `class`, with `priority` or `runtime`, `deadline` and `period`: how its vCPU threads and vhost workers are
    /// scheduled.
    pub class: Option<Located<VmClass>>,
    /// `vcpu_cpus`: the CPUs for its vCPU threads.
    pub vcpu_cpus: Option<Located<CpuSet>>,
    /// `worker_cpus`: the CPUs for its vhost workers.
    pub worker_cpus: Option<Located<CpuSet>>,
    /// `weight`: its share of CPU time relative to other groups, 1 to 10,000; the default is 100.
    pub weight: Option<Located<u32>>,
    /// `quota`: the greatest CPU time, in thousandths of a CPU: `"150%"` is 1500; `"none"` is an inner `None`.
    pub quota: Option<Located<Option<u32>>>,
}

/// `[channel.NAME]`: a one-way flow with a deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelPolicy {
    /// NAME of its section.
    pub name: Located<String>,
    /// `link`: the device that its packets leave by; if absent, the device of the only `[link.NAME]`.
    pub link: Option<Located<String>>,
    /// `from`: the sender.
    pub from: Option<Located<Endpoint>>,
    /// `to`: the receiver.
    pub to: Option<Located<Endpoint>>,
    /// `proto`: `"udp"` is 17, `"tcp"` 6.
    pub proto: Option<Located<u8>>,
    /// `deadline`, ns; required.
    pub deadline: Located<u64>,
    /// `min_rate`, bit/s; required.
    pub min_rate: Located<u64>,
    /// `burst`, bytes.
    pub burst: Option<Located<u64>>,
    /// `vm`: the VM that sends it.
    pub vm: Option<Located<String>>,
}

/// An address or prefix, with or without a port.
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
    pub link: Located<String>,
    /// The number of the function.
    pub index: Located<u32>,
    /// `hard`: the highest rate at which it may send, bit/s.
    pub hard: Option<Located<u64>>,
    /// `weight`: its share relative to other functions, 1 to 100.
    pub weight: Option<Located<u32>>,
}
