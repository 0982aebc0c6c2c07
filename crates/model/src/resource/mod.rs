//! Resources: what teiji can change on a host.
//!
//! A [`Resource`] identifies one thing so that it cannot be mistaken for another: a thread by its id *and* the time
//! when it started, so a change for a VM that has ended never affects another process. A [`Value`] is a value that a
//! resource can have. A change can be undone by whoever knows the resource's value before it, so the plan, the journal
//! and the rollback consist of resources and values only.
//! Messages, the journal and fields call a resource a *setting*, the operators' word.
//!
//! | module | holds |
//! | --- | --- |
//! | here | identity, [`ResourceKind`], [`Class`] and [`Value`]: a new kind of resource is added here |
//! | [`dependency`] | which change comes before which, and the resulting order |
//! | `resources` | the resources of a host, each with its value or the reason why it has none |
//! | `value` | the types of values |
//!
//! `teiji-host` reads and writes resources, each kind in its own file.

pub mod dependency;
mod resources;
mod value;

pub use resources::Resources;
pub use value::{Latency, Quota, Scheduling};

use crate::cpus::CpuSet;
use crate::qdisc::{Device, RootQdisc};
use crate::text::duration;
use serde::{Deserialize, Serialize};
use std::fmt;
use value::micros;

/// A thread or process, identified so that it is not mistaken for a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/<id>/stat`.
    pub started: u64,
}

/// One thing that can be changed. Names of variants are part of the journal's format.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
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
    /// The longest wake-up latency that a CPU's idle states may have: `power/pm_qos_resume_latency_us` of the CPU
    /// ([`Value::Latency`]).
    CpuLatency(u32),
    /// A device's root qdisc ([`Value::RootQdisc`]).
    #[serde(rename = "queue")]
    RootQdisc(Device),
    /// The largest packet that the host's own stack hands to a device, which splits it: `gso_max_size`, bytes of the IP
    /// packet ([`Value::Bytes`]).
    SegmentSize(Device),
    /// CPUs that process the packets of a device's receive queue, given by its number: `rps_cpus` ([`Value::Cpus`]; if
    /// empty, the CPU that receives a packet processes it).
    ReceiveCpus(Device, u32),
    /// The frequency governor of a group of CPUs, given by the number of its cpufreq policy: `scaling_governor`
    /// ([`Value::Word`]).
    Governor(u32),
}

/// A kind of resource. Names of variants are part of an observation's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResourceKind {
    /// [`Resource::IrqCpus`].
    IrqCpus,
    /// [`Resource::ReceiveCpus`].
    ReceiveCpus,
    /// [`Resource::CpuLatency`].
    CpuLatency,
    /// [`Resource::Governor`].
    Governor,
    /// [`Resource::HaltPoll`].
    HaltPoll,
    /// [`Resource::SegmentSize`].
    SegmentSize,
    /// [`Resource::Group`].
    Group,
    /// [`Resource::GroupWeight`].
    GroupWeight,
    /// [`Resource::GroupQuota`].
    GroupQuota,
    /// [`Resource::ThreadCpus`].
    ThreadCpus,
    /// [`Resource::ThreadScheduling`].
    ThreadScheduling,
    /// [`Resource::RootQdisc`].
    #[serde(rename = "queue")]
    RootQdisc,
}

/// Every kind, in the order in which a plan shows changes that do not depend on one another.
pub const RESOURCE_KINDS: [ResourceKind; 12] = [
    ResourceKind::IrqCpus,
    ResourceKind::ReceiveCpus,
    ResourceKind::CpuLatency,
    ResourceKind::Governor,
    ResourceKind::HaltPoll,
    ResourceKind::SegmentSize,
    ResourceKind::Group,
    ResourceKind::GroupWeight,
    ResourceKind::GroupQuota,
    ResourceKind::ThreadCpus,
    ResourceKind::ThreadScheduling,
    ResourceKind::RootQdisc,
];

/// How a resource is changed, journalled and undone.
///
/// [`Class`] is not the scheduling class that the key `class` sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// One write, which is carried out completely or not at all. Each write is journalled before it; it is undone by
    /// writing the former value, unless somebody else has changed the value since.
    Atomic,
    /// A controller writes values within its bounds whenever it needs to. Only the original value is journalled; any
    /// later value counts as the controller's, and is undone by writing the original value.
    Controlled,
    /// A change that takes time, and can stop halfway in a consistent state. Any value between the two ends counts as
    /// part of this change. It is undone by going back or, if that is impossible, left where it has stopped.
    Operation,
}

/// What a resource belongs to: what a section of a policy covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner<'a> {
    /// The host as a whole.
    Host,
    /// A CPU, or a group of CPUs with a common frequency, by its first CPU.
    Cpu(u32),
    /// An interrupt, by its number.
    Interrupt(u32),
    /// A thread or process.
    Task(Task),
    /// A control group.
    Group(&'a str),
    /// A network device.
    Device(&'a Device),
}

impl Resource {
    /// Its kind.
    pub fn kind(&self) -> ResourceKind {
        match self {
            Resource::ThreadCpus(_) => ResourceKind::ThreadCpus,
            Resource::ThreadScheduling(_) => ResourceKind::ThreadScheduling,
            Resource::IrqCpus(_) => ResourceKind::IrqCpus,
            Resource::Group(_) => ResourceKind::Group,
            Resource::GroupWeight(_) => ResourceKind::GroupWeight,
            Resource::GroupQuota(_) => ResourceKind::GroupQuota,
            Resource::HaltPoll => ResourceKind::HaltPoll,
            Resource::CpuLatency(_) => ResourceKind::CpuLatency,
            Resource::RootQdisc(_) => ResourceKind::RootQdisc,
            Resource::SegmentSize(_) => ResourceKind::SegmentSize,
            Resource::ReceiveCpus(..) => ResourceKind::ReceiveCpus,
            Resource::Governor(_) => ResourceKind::Governor,
        }
    }

    /// What it belongs to.
    pub fn owner(&self) -> Owner<'_> {
        match self {
            Resource::ThreadCpus(task) | Resource::ThreadScheduling(task) | Resource::Group(task) => {
                Owner::Task(*task)
            }
            Resource::IrqCpus(irq) => Owner::Interrupt(*irq),
            Resource::GroupWeight(path) | Resource::GroupQuota(path) => Owner::Group(path),
            Resource::HaltPoll => Owner::Host,
            Resource::CpuLatency(cpu) | Resource::Governor(cpu) => Owner::Cpu(*cpu),
            Resource::RootQdisc(device)
            | Resource::SegmentSize(device)
            | Resource::ReceiveCpus(device, _) => Owner::Device(device),
        }
    }
}

impl fmt::Display for Resource {
    /// In the form that a plan shows; the plan names the thread's VM next to it. Names of devices and groups are
    /// untrusted text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::ThreadCpus(t) => write!(f, "CPUs of thread {}", t.id),
            Resource::ThreadScheduling(t) => write!(f, "scheduling of thread {}", t.id),
            Resource::IrqCpus(n) => write!(f, "CPUs of interrupt {n}"),
            Resource::Group(t) => write!(f, "control group of process {}", t.id),
            Resource::GroupWeight(path) => write!(f, "cpu.weight of {path}"),
            Resource::GroupQuota(path) => write!(f, "cpu.max of {path}"),
            Resource::HaltPoll => f.write_str("kvm.halt_poll_ns"),
            Resource::CpuLatency(cpu) => write!(f, "wake-up latency of CPU {cpu}"),
            Resource::RootQdisc(device) => write!(f, "root qdisc of {device}"),
            Resource::SegmentSize(device) => write!(f, "gso_max_size of {device}"),
            Resource::Governor(policy) => write!(f, "governor of cpufreq policy {policy}"),
            Resource::ReceiveCpus(device, queue) => write!(f, "rps_cpus of {device} queue {queue}"),
        }
    }
}

impl ResourceKind {
    /// How resources of this kind are changed.
    pub fn class(self) -> Class {
        match self {
            ResourceKind::IrqCpus
            | ResourceKind::ReceiveCpus
            | ResourceKind::CpuLatency
            | ResourceKind::Governor
            | ResourceKind::HaltPoll
            | ResourceKind::SegmentSize
            | ResourceKind::Group
            | ResourceKind::GroupWeight
            | ResourceKind::GroupQuota
            | ResourceKind::ThreadCpus
            | ResourceKind::ThreadScheduling
            | ResourceKind::RootQdisc => Class::Atomic,
        }
    }

    /// Its place in [`RESOURCE_KINDS`].
    pub fn rank(self) -> usize {
        RESOURCE_KINDS.iter().position(|kind| *kind == self).unwrap_or(RESOURCE_KINDS.len())
    }
}

/// A value of a resource. Names of variants are part of the journal's format.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// CPUs.
    Cpus(CpuSet),
    /// Scheduling class and its parameters.
    Scheduling(Scheduling),
    /// A control group's path.
    Group(String),
    /// 1 to 10,000; the kernel's default is 100.
    Weight(u32),
    /// CPU time in each period; `None` means no limit.
    Quota(Option<Quota>),
    /// A time, ns.
    Nanoseconds(u64),
    /// Wake-up latency of a CPU.
    Latency(Latency),
    /// A root qdisc.
    #[serde(rename = "queue")]
    RootQdisc(RootQdisc),
    /// A size, bytes.
    Bytes(u32),
    /// A word that the kernel defines.
    Word(String),
}

impl fmt::Display for Value {
    /// Paths of groups and kinds of qdiscs are untrusted text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Cpus(cpus) if cpus.is_empty() => f.write_str("none"),
            Value::Cpus(cpus) => write!(f, "{cpus}"),
            Value::Scheduling(s) => write!(f, "{s}"),
            Value::Group(text) | Value::Word(text) => f.write_str(text),
            Value::Weight(weight) => write!(f, "{weight}"),
            Value::Quota(None) => f.write_str("no limit"),
            Value::Quota(Some(q)) => write!(f, "{} of every {}", micros(q.quota_us), micros(q.period_us)),
            Value::Nanoseconds(ns) => f.write_str(&duration(*ns as f64)),
            Value::Latency(latency) => write!(f, "{latency}"),
            Value::RootQdisc(queue) => write!(f, "{queue}"),
            Value::Bytes(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}

/// Why a resource has no value or was not changed. It is the reason only: the caller knows the resource and what was
/// tried. May contain untrusted text, which is made printable where it is printed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResourceError {
    /// The thread, interrupt, group or device does not exist any more.
    #[error("{0} is gone")]
    Gone(String),
    /// It is switched off, and has no value until it is on again; the kernel then gives it the value that it had.
    #[error("{0}")]
    Offline(String),
    /// This kernel or host does not have it.
    #[error("{0}")]
    Unsupported(String),
    /// A privilege is missing; the text says which.
    #[error("{0}")]
    NotPermitted(String),
    /// The kernel refused the value; the text says why in the operator's words, with the name of the error number.
    #[error("{0}")]
    Refused(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_place() {
        let ranks: Vec<usize> = RESOURCE_KINDS.iter().map(|kind| kind.rank()).collect();
        assert_eq!(ranks, (0..RESOURCE_KINDS.len()).collect::<Vec<_>>());
    }
}
