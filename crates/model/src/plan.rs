//! What a host is like, and the ordered changes that would make it what a policy asks for.
//!
//! ```text
//! (Policy, Observed) ── control::plan ──► Plan ── agent::apply ──► the host, journalled step by step
//! ```

use crate::cpus::CpuSet;
use crate::host::Vm;
use crate::setting::{Setting, Task, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A host as far as a plan has to know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// CPUs that are online.
    pub cpus: CpuSet,
    /// The VMs with the tasks that they consist of.
    pub vms: Vec<ObservedVm>,
    /// Network devices, those of guests left out.
    pub links: Vec<ObservedLink>,
    /// What each setting is now. What is not in here cannot be changed.
    #[serde(with = "pairs")]
    pub settings: BTreeMap<Setting, Value>,
    /// Why settings of a kind are not in `settings`, for people: missing privilege, kernel feature, file.
    pub unreadable: Vec<String>,
    /// What keeps a real-time thread that never sleeps from starving the others of its CPU; `None`: nothing.
    pub realtime_guard: Option<String>,
    /// Others that change the same settings.
    pub managers: Vec<Manager>,
}

/// A VM and its tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedVm {
    /// As discovery found it.
    pub vm: Vm,
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
    /// Its interrupts.
    pub irqs: Vec<u32>,
}

/// Another program that changes what teiji changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manager {
    /// Which: `irqbalance`, `tuned`, `libvirt`, `systemd`, `cpuset`.
    pub name: String,
    /// Settings that it may change back, and what to do about it; one sentence.
    pub advice: String,
    /// Which kinds of settings.
    pub touches: Vec<Kind>,
}

/// A kind of setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// [`Setting::ThreadCpus`].
    ThreadCpus,
    /// [`Setting::ThreadScheduling`].
    ThreadScheduling,
    /// [`Setting::IrqCpus`].
    IrqCpus,
    /// [`Setting::Group`], [`Setting::GroupWeight`], [`Setting::GroupQuota`].
    Group,
    /// [`Setting::HaltPoll`].
    HaltPoll,
    /// [`Setting::CpuLatency`].
    CpuLatency,
}

impl Setting {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Setting::ThreadCpus(_) => Kind::ThreadCpus,
            Setting::ThreadScheduling(_) => Kind::ThreadScheduling,
            Setting::IrqCpus(_) => Kind::IrqCpus,
            Setting::Group(_) | Setting::GroupWeight(_) | Setting::GroupQuota(_) => Kind::Group,
            Setting::HaltPoll => Kind::HaltPoll,
            Setting::CpuLatency(_) => Kind::CpuLatency,
        }
    }
}

/// One reversible change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is changed.
    pub setting: Setting,
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

/// Ordered steps; empty if the host is as the policy asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// In this order.
    pub steps: Vec<Step>,
    /// What the operator should know first: other managers, what has no effect here.
    pub warnings: Vec<String>,
}

/// What teiji changed and holds, setting by setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// By setting.
    #[serde(with = "pairs")]
    pub settings: BTreeMap<Setting, Hold>,
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
