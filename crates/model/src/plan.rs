//! What a host is like, and the ordered changes that would make it what a policy asks for.
//!
//! ```text
//! (Policy, Observed) ── control::plan ──► Plan ── agent::apply ──► the host, journalled step by step
//! ```

use crate::cpus::CpuSet;
use crate::host::{Identity, Vm};
use crate::policy::{Overridden, Place};
use crate::queue::{Device, Scheduler};
use crate::resource::dependency::{self, Change};
use crate::resource::{Kind, Resource, Resources, Task, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A host as far as a plan has to know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// CPUs that are online.
    pub cpus: CpuSet,
    /// The VMs with the tasks that they consist of.
    pub vms: Vec<ObservedVm>,
    /// Ethernet devices, those of guests too.
    pub links: Vec<ObservedLink>,
    /// The resources of all these, each with its value or why it has none.
    #[serde(flatten)]
    pub settings: Resources,
    /// What keeps a real-time thread that never sleeps from starving the others of its CPU; `None`: nothing.
    pub realtime_guard: Option<String>,
    /// Others that change the same settings.
    pub managers: Vec<Manager>,
    /// Whether packets can have deadlines here.
    pub deadlines: DeadlineSupport,
}

/// Whether packets can have deadlines on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeadlineSupport {
    /// teiji's qdisc is registered, and an agent keeps it going.
    Edf,
    /// teiji's qdisc would keep them, but no agent keeps it going, or whether one does is not known; says what has to be
    /// done first.
    NoAgent(String),
    /// This kernel has no BPF qdiscs, but HFSC; says what is missing.
    Hfsc(String),
    /// Not now; says why, and what to do about it.
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
    /// Whose it is, and who says that it is called so.
    pub identity: Identity,
    /// The VMM's process.
    pub process: Task,
    /// vCPU threads by index.
    pub vcpus: Vec<Task>,
    /// vhost workers.
    pub workers: Vec<Task>,
    /// Its control group below the cgroup v2 mount; `None` where there is no cgroup v2.
    pub group: Option<String>,
    /// Whether other processes than this VMM's are in that group.
    pub group_shared: bool,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedLink {
    /// Its name.
    pub name: String,
    /// Its interface index.
    pub index: u32,
    /// What it is.
    pub kind: LinkKind,
    /// Its interrupts.
    pub irqs: Vec<u32>,
    /// What it says it sends, bit/s; `None` if it says nothing, as virtual devices do.
    pub speed: Option<u64>,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Whether guests' packets leave by it: it is a VM's tap, or a port of a bridge that has one.
    pub guests: bool,
}

impl ObservedLink {
    /// What settings of it are named by.
    pub fn device(&self) -> Device {
        Device { name: self.name.clone(), index: self.index }
    }
}

/// What a network device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// A device with hardware (physical or emulated) behind it.
    #[default]
    Nic,
    /// A bridge: what it forwards does not pass its own queue.
    Bridge,
    /// A bond or team of others.
    Bond,
    /// The host's end of a VM's NIC.
    Tap,
    /// Another virtual device: VLAN, veth, tunnel.
    Virtual,
}

/// Another program that changes what teiji changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Which: `irqbalance`, `tuned`, `libvirt`, `systemd`, `cpuset`.
    pub name: String,
    /// Settings that it may change back, and what to do about it; one sentence.
    pub advice: String,
    /// Which kinds of resources.
    pub touches: Vec<Kind>,
    /// The process of the VM that it does so to; `None`: to all.
    #[serde(default)]
    pub vm: Option<Task>,
}

/// One reversible change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is changed.
    pub setting: Resource,
    /// Whose it is, for people: `vCPU 0 of sip1`. Escaped, safe to print.
    pub whose: String,
    /// What it is now.
    pub present: Value,
    /// What it shall be.
    pub wanted: Value,
    /// Why: the line of the policy that asks for it, as `vm.sip1.class`, or that nothing asks for it any more.
    pub reason: String,
    /// What it costs, for people; empty if nothing worth saying.
    pub cost: String,
}

impl Step {
    /// The change that it makes.
    pub fn change(&self) -> Change<'_> {
        Change { resource: &self.setting, from: &self.present, to: &self.wanted }
    }

    /// The change that takes it back.
    pub fn undoing(&self) -> Change<'_> {
        Change { resource: &self.setting, from: &self.wanted, to: &self.present }
    }
}

/// Puts `steps` into an order that obeys all dependencies of the changes that they make. Those that do not depend on one
/// another come by `preference`, and then as they are; into real-time classes last.
pub fn ordered<P: Ord + Copy>(steps: Vec<Step>, preference: impl Fn(&Step) -> P) -> Vec<Step> {
    let changes: Vec<Change<'_>> = steps.iter().map(Step::change).collect();
    let key = |i: usize| (dependency::is_into_real_time(&changes[i]), preference(&steps[i]));
    let order = dependency::order(&changes, key);
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    order.into_iter().filter_map(|i| steps[i].take()).collect()
}

/// Ordered steps; empty if the host is as the policy asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What somebody has to do before the steps can be taken, in this order: sentences for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<String>,
    /// In this order.
    pub steps: Vec<Step>,
    /// What the operator should know first: other managers, what has no effect here.
    pub warnings: Vec<String>,
    /// What is guaranteed on each link that has channels, once the plan is carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkGuarantee>,
    /// Where the policy asks for what: each [`Step::reason`] that is a line of it, with its place.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asked: BTreeMap<String, Place>,
    /// Lines of the policy that do not hold, since a later file has others in their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overridden: Vec<Overridden>,
}

/// What a link's channels are guaranteed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkGuarantee {
    /// The link's name.
    pub link: String,
    /// What keeps the deadlines.
    pub scheduler: Scheduler,
    /// What it sends, bit/s on the wire.
    pub rate: u64,
    /// Its slack, ns.
    pub slack: u64,
    /// The largest frame that the guarantees allow for, bytes.
    pub largest: u32,
    /// Sum of the channels' rates, bit/s.
    pub reserved: u64,
    /// Its channels, by name.
    pub channels: Vec<ChannelGuarantee>,
}

/// What a channel is guaranteed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelGuarantee {
    /// Its name; untrusted text.
    pub name: String,
    /// Its rate, bit/s on the wire.
    pub rate: u64,
    /// What may come at once, bytes on the wire.
    pub burst: u64,
    /// What was asked for, ns.
    pub deadline: u64,
    /// The longest delay of its packets within rate and burst, ns.
    pub bound: u64,
}

/// What teiji changed and holds, setting by setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// By setting.
    #[serde(with = "pairs")]
    pub settings: BTreeMap<Resource, Hold>,
}

/// One setting that teiji holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Whose it is, for people.
    pub whose: String,
    /// What it was before teiji changed it for the first time.
    pub original: Value,
    /// What teiji made it.
    pub value: Value,
    /// When, seconds since 1970.
    pub since: u64,
    /// Why.
    pub reason: String,
}

/// The control group that teiji makes for a VM that shares its group with others; below the cgroup v2 mount.
///
/// Named by the process id, not by the VM's name, which is untrusted text.
pub fn own_group(pid: u32) -> String {
    format!("/teiji/vm-{pid}")
}

/// Maps whose keys are not text, as JSON lists of pairs.
mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(from: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(from)?.into_iter().collect())
    }
}
