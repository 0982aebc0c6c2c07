//! The ordered changes that give a host the state that a policy asks for, and the settings that teiji holds.
//!
//! ```text
//! (Policy, Observed) ── control::plan ──► Plan ── agent::apply ──► the host, journalled step by step
//! ```

use crate::policy::{KeyLocation, Overridden, PacketClass, SourceLocation};
use crate::qdisc::Scheduler;
use crate::resource::dependency::{self, Change};
use crate::resource::{Resource, Task, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One reversible change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is changed.
    pub setting: Resource,
    /// What the setting belongs to, for people: `vCPU 0 of sip1`. Escaped, safe to print.
    pub whose: String,
    /// The value now.
    pub present: Value,
    /// The value after the step.
    pub wanted: Value,
    /// Why: the line of the policy that asks for it, such as `vm.sip1.class`, or that no line asks for it any more.
    pub reason: String,
    /// What it costs, for people; empty if there is nothing worth mentioning.
    pub cost: String,
}

/// The reason of a step that returns a resource to its original value, because no line of the policy asks for another
/// one any more. No line has such a name.
pub const NO_LONGER_IN_POLICY: &str = "no longer in the policy";

impl Step {
    /// Whether it returns a resource to its original value, after which teiji does not hold it any more. The values
    /// alone do not tell that of a controlled resource: a policy may ask for the original value as well.
    pub fn returns(&self) -> bool {
        self.reason == NO_LONGER_IN_POLICY
    }

    /// The change that it makes.
    pub fn change(&self) -> Change<'_> {
        Change { resource: &self.setting, from: &self.present, to: &self.wanted }
    }

    /// The change that undoes it.
    pub fn undoing(&self) -> Change<'_> {
        Change { resource: &self.setting, from: &self.wanted, to: &self.present }
    }
}

/// Puts `steps` into an order that obeys all dependencies between their changes. Steps that do not depend on one
/// another are sorted by `preference`, then by their present order; changes into real-time classes come last.
pub fn ordered<P: Ord + Copy>(steps: Vec<Step>, preference: impl Fn(&Step) -> P) -> Vec<Step> {
    let changes: Vec<Change<'_>> = steps.iter().map(Step::change).collect();
    let key = |i: usize| (dependency::is_into_real_time(&changes[i]), preference(&steps[i]));
    let order = dependency::order(&changes, key);
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    order.into_iter().filter_map(|i| steps[i].take()).collect()
}

/// Ordered steps; empty if the host has the state that the policy asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What somebody has to do before the steps can be taken, in order: sentences for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<String>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What the operator should know first: other managers, settings that have no effect here.
    pub warnings: Vec<String>,
    /// What each link with channels guarantees once the plan is carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkGuarantee>,
    /// The VMs whose threads go by the deadlines of their packets once the plan is carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packet_vms: Vec<PacketVm>,
    /// The lines of the policy for each [`Step::reason`] that is one of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub asked: BTreeMap<String, Asked>,
    /// Policy lines that are overridden by a later file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overridden: Vec<Overridden>,
}

/// The lines of a policy that decide the value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The line that asks for the setting.
    #[serde(flatten)]
    pub location: SourceLocation,
    /// The lines that complete its value, as `priority` completes `class`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<KeyLocation>,
}

/// A VM whose threads go by the deadlines of its packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketVm {
    /// Its name; printable.
    pub name: String,
    /// Its process.
    pub process: Task,
    /// What it is promised.
    pub class: PacketClass,
    /// Whether its deadlines are guaranteed; `None` if it has no threads yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<PacketDeadlines>,
    /// How soon frames that its guest sends are handed to the host; `None` if it has no threads yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_over: Option<HandedOver>,
}

/// Whether a VM's packets are handled by their deadlines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketDeadlines {
    /// They are, on this CPU, under the assumptions in docs/policy.md.
    Guaranteed {
        /// All its threads are pinned to it.
        cpu: u32,
    },
    /// They may not be, for this reason; untrusted text.
    NotGuaranteed(String),
}

/// How soon after the guest's kick its frames are handed to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandedOver {
    /// Within this time, ns, as long as the VM does not need more than its runtime.
    Within(u64),
    /// Nothing is known of it, for this reason; untrusted text.
    Unknown(String),
}

/// What a link guarantees to its channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkGuarantee {
    /// The link's name.
    pub link: String,
    /// What keeps the deadlines.
    pub scheduler: Scheduler,
    /// The rate of the link, bit/s on the wire.
    pub rate: u64,
    /// The slack, ns.
    pub slack: u64,
    /// The largest frame that the guarantees are calculated with, bytes.
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
    /// The burst: how much may come at once, bytes on the wire.
    pub burst: u64,
    /// The deadline that the policy asks for, ns.
    pub deadline: u64,
    /// The longest delay of a packet within the rate and burst, ns.
    pub bound: u64,
    /// From the kick of the VM on that sends it; `None` if nothing is known of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_kick: Option<KickGuarantee>,
}

/// What a channel is guaranteed from the kick of the guest that sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KickGuarantee {
    /// The VM, as the policy names it; printable.
    pub vm: String,
    /// The longest time until the last bit of a packet is on the wire, ns.
    pub within: u64,
    /// How much the guest may send at once, bytes on the wire; besides, at the channel's rate.
    pub burst: u64,
}

/// The settings that teiji has changed and holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// By resource.
    #[serde(with = "pairs")]
    pub settings: BTreeMap<Resource, Hold>,
}

/// One setting that teiji holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// What the setting belongs to, for people.
    pub whose: String,
    /// The value before teiji changed it for the first time.
    pub original: Value,
    /// The value that teiji has set.
    pub value: Value,
    /// When it was set, seconds since 1970.
    pub since: u64,
    /// Why it was set.
    pub reason: String,
}

/// The control group that teiji makes for a VM that shares its group with others, below the cgroup v2 mount.
///
/// Named after the process id, as the VM's name is untrusted text.
pub fn own_group(pid: u32) -> String {
    format!("/teiji/vm-{pid}")
}

/// Serializes a map whose keys are not text as a list of pairs.
mod pairs {
    use super::Hold;
    use crate::resource::Resource;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<Resource, Hold>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    /// Before devices were compared by their indices, one that was renamed could be in the list under both names. Then
    /// the first change has the original value, and the last one has the value that teiji has set.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Resource, Hold>, D::Error> {
        let mut list = Vec::<(Resource, Hold)>::deserialize(from)?;
        list.sort_by_key(|(_, hold)| hold.since);
        let mut map: BTreeMap<Resource, Hold> = BTreeMap::new();
        for (resource, mut hold) in list {
            if let Some(earlier) = map.remove(&resource) {
                hold.original = earlier.original;
            }
            map.insert(resource, hold);
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qdisc::Device;

    #[test]
    fn a_device_that_was_held_under_two_names_is_held_once() {
        let pair = |name: &str, since, original, value| {
            let device = Device { name: name.into(), index: 2 };
            let (original, value) = (Value::Bytes(original), Value::Bytes(value));
            let reason = "link".to_owned();
            (Resource::SegmentSize(device), Hold { whose: name.into(), original, value, since, reason })
        };
        // Sorted by name, as they were written.
        let list = [pair("a", 20, 2, 3), pair("b", 10, 1, 2)];
        let text = serde_json::to_string(&serde_json::json!({ "settings": list })).unwrap();
        let held: Held = serde_json::from_str(&text).unwrap();
        let [(resource, hold)] = &held.settings.iter().collect::<Vec<_>>()[..] else { panic!("{held:?}") };
        assert_eq!(resource.to_string(), "gso_max_size of a");
        assert_eq!((&hold.original, &hold.value), (&Value::Bytes(1), &Value::Bytes(3)));
        let again = serde_json::to_string(&held).unwrap();
        assert_eq!(serde_json::from_str::<Held>(&again).unwrap(), held);
    }
}
