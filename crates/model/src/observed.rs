//! The state of a host, as far as a plan needs it: VMs, links, resources, other programs that change the same settings.

use crate::cpus::CpuSet;
use crate::host::{Identity, Vm};
use crate::qdisc::Device;
use crate::resource::{ResourceKind, Resources, Task};
use serde::{Deserialize, Serialize};

/// The state of a host, as far as a plan needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// CPUs that are online.
    pub cpus: CpuSet,
    /// The VMs with their tasks.
    pub vms: Vec<ObservedVm>,
    /// Ethernet devices, including those of guests.
    pub links: Vec<ObservedLink>,
    /// The resources of all these, each with its value or the reason why it has none.
    #[serde(flatten)]
    pub settings: Resources,
    /// What prevents a real-time thread that never sleeps from starving the other threads of its CPU; `None` if nothing
    /// does.
    pub realtime_guard: Option<String>,
    /// Other programs that change the same settings.
    pub managers: Vec<Manager>,
    /// Whether packets can have deadlines here.
    #[serde(rename = "deadlines")]
    pub deadline_support: DeadlineSupport,
    /// Whether threads of VMs can go by the deadlines of packets here.
    #[serde(default)]
    pub sched_ext: SchedExt,
}

/// Whether teiji's scheduler for the threads of VMs can be used on a host: sched_ext has one scheduler at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedExt {
    /// It can, or is in use.
    Usable,
    /// It could if an agent ran, which loads it. The text says what to do.
    NoAgent(String),
    /// Another scheduler is in use. Untrusted text: its name.
    Taken(String),
    /// It cannot. The text says why: what the kernel lacks, or that it is not known.
    None(String),
}

impl Default for SchedExt {
    fn default() -> Self {
        SchedExt::None("whether the kernel can is not known".to_owned())
    }
}

/// Whether packets can have deadlines on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadlineSupport {
    /// teiji's qdisc is registered, and an agent keeps it alive by its heartbeat.
    Edf,
    /// teiji's qdisc would keep them, but no agent is running, or it is not known whether one is. The text says what
    /// has to be done first.
    NoAgent(String),
    /// This kernel has HFSC but no BPF qdiscs. The text says what is missing.
    Hfsc(String),
    /// Not now. The text says why, and what to do about it.
    None(String),
}

impl Default for DeadlineSupport {
    fn default() -> Self {
        DeadlineSupport::None("nobody has looked".to_owned())
    }
}

/// A VM and its tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedVm {
    /// As discovery found it.
    pub vm: Vm,
    /// The user of its process, and the origin of its name.
    pub identity: Identity,
    /// The VMM's process.
    pub process: Task,
    /// vCPU threads, in the order of `vm.vcpus`.
    pub vcpus: Vec<Task>,
    /// vhost workers.
    pub workers: Vec<Task>,
    /// Its control group below the cgroup v2 mount; `None` if the host has no cgroup v2.
    pub group: Option<String>,
    /// Whether processes other than this VMM are in that group.
    pub group_shared: bool,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedLink {
    /// When it was observed; a device may get another name, but not another index. Untrusted text.
    pub name: String,
    /// Its interface index.
    pub index: u32,
    /// Decides whether channels can leave by it, and what a plan warns of.
    pub kind: LinkKind,
    /// Its interrupts.
    pub irqs: Vec<u32>,
    /// The rate that the device reports, bit/s; `None` if it reports none, as virtual devices do.
    pub speed: Option<u64>,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Whether guests' packets leave by it: it is a VM's tap, or a port of a bridge that has a tap as a port.
    pub guests: bool,
}

impl ObservedLink {
    /// The device as resources name it.
    pub fn device(&self) -> Device {
        Device { name: self.name.clone(), index: self.index }
    }
}

/// The kind of a network device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// A device with hardware (physical or emulated) behind it.
    #[default]
    Nic,
    /// A bridge: packets that it forwards do not pass its own queue.
    Bridge,
    /// A bond or team of others.
    Bond,
    /// The host's end of a VM's NIC.
    Tap,
    /// Another virtual device: VLAN, veth, tunnel.
    Virtual,
}

/// Another program that changes settings that teiji changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Its name: `irqbalance`, `tuned`, `libvirt`, `systemd`, `cpuset`.
    pub name: String,
    /// Which settings it may change back, and what to do about it; one sentence.
    pub advice: String,
    /// The kinds of resources that it changes.
    pub touches: Vec<ResourceKind>,
    /// The process of the VM whose settings it changes; `None` if it changes those of all VMs.
    #[serde(default)]
    pub vm: Option<Task>,
}
