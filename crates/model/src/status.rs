//! What teiji holds and does at one instant, and the packet statistics of links with channels.

use crate::plan::{Hold, Step};
use crate::policy::PacketClass;
use crate::qdisc::DeadlineQdisc;
use crate::resource::{Resource, ResourceError, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What teiji holds and does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The settings that it holds, in the order of the resources.
    pub held: Vec<HeldStatus>,
    /// A transaction that is in progress, or whose process has ended.
    pub transaction: Option<Unfinished>,
    /// Whether a teiji is changing settings now.
    pub busy: bool,
    /// The process id of that teiji, if known.
    pub pid: Option<u32>,
    /// Whether there is state from another boot, which the next command that changes settings removes.
    pub other_boot: bool,
    /// What the caller may not see, for people.
    pub hidden: Option<String>,
    /// Why it is not known what teiji holds, and what to do about it: its files are damaged or cannot be read.
    pub damaged: Option<String>,
}

/// A setting that teiji holds, and its present value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStatus {
    /// The setting.
    pub setting: Resource,
    /// What teiji has stored about it.
    pub hold: Hold,
    /// The present value.
    pub present: Result<Value, ResourceError>,
    /// Whether someone else has changed it.
    pub changed: bool,
}

/// A transaction that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// The process id of the teiji that began it.
    pub pid: u32,
    /// When it began, seconds since 1970.
    pub time: u64,
    /// Whether it is a rollback.
    pub rollback: bool,
    /// Its steps.
    pub steps: Vec<Step>,
    /// How many of an apply's steps have begun.
    pub begun: usize,
    /// Whether all of an apply's steps are done.
    pub applied: bool,
    /// How much time is left to confirm it, ms; 0 means too late. `None` if it does not wait for a confirmation.
    pub confirm_left: Option<u64>,
}

impl Unfinished {
    /// Whether `teiji confirm` still keeps its changes if its process has ended: it is an apply whose steps are all done,
    /// and there is time left.
    pub fn can_be_confirmed(&self) -> bool {
        self.applied && self.confirm_left.is_some_and(|ms| ms > 0)
    }
}

/// A link with channels, and its packet statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The link's name. Untrusted text.
    pub link: String,
    /// Its interface index.
    pub index: u32,
    /// Its settings and channels.
    pub settings: DeadlineQdisc,
    /// The statistics of all packets.
    pub stats: LinkStats,
    /// The statistics of each channel, by name. Names are untrusted text.
    pub channels: BTreeMap<String, ChannelStats>,
}

/// Links with channels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinksStatus {
    /// By index.
    pub links: Vec<LinkStatus>,
    /// Why the deadlines of links are not kept, or are not known to be; `None` if all is well, or there are no links.
    #[serde(rename = "trouble")]
    pub problem: Option<String>,
    /// What the caller may not see, for people.
    pub hidden: Option<String>,
}

/// The packet statistics of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelStats {
    /// Sent in the order of deadlines.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// The longest delay of a packet, from its arrival to its last bit at the link's rate, ns.
    pub delay_max: u64,
    /// The sum of all delays, ns.
    pub delay_sum: u64,
    /// How many packets had their last bit sent, at the link's rate, after their deadline.
    pub misses: u64,
    /// Packets above the channel's rate, which were sent as best effort.
    pub excess: u64,
    /// Their bytes on the wire.
    pub excess_bytes: u64,
    /// Packets that did not fit into the queue.
    pub drops: u64,
    /// How many packets had a delay from 2^i up to 2^(i+1) ns, by i.
    pub delay: Vec<u64>,
}

impl ChannelStats {
    /// The delay that a share of the packets did not exceed, ns, from the histogram. Its buckets double, so the result
    /// is up to twice the true delay, but never above the longest. `None` if there was no packet.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        quantile(&self.delay, share).map(|bound| bound.min(self.delay_max))
    }
}

/// The packet statistics of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// Real-time packets that were sent.
    pub rt_packets: u64,
    /// Their bytes on the wire.
    pub rt_bytes: u64,
    /// Best-effort packets that were sent.
    pub be_packets: u64,
    /// Their bytes on the wire.
    pub be_bytes: u64,
    /// Real-time packets that did not fit into the queue.
    pub rt_drops: u64,
    /// Best-effort packets that did not fit into the queue.
    pub be_drops: u64,
    /// Packets above the common bound of all channels (`realtime_max`), which were sent as best effort.
    pub capped: u64,
    /// Packets that were sent without deadlines, because the agent's heartbeat was missing.
    pub fallback_packets: u64,
    /// How many times the link fell back to that.
    pub fallbacks: u64,
    /// Largest best-effort packet, bytes on the wire: a packet with a deadline may have to wait for one of that size.
    pub largest: u64,
    /// Real-time packets that are in the queue now.
    pub rt_queued: u32,
    /// Best-effort packets that are in the queue now.
    pub be_queued: u32,
}

/// A trace that an agent runs, or has run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStatus {
    /// Its number.
    pub number: u32,
    /// The VMs that were asked for; all if empty. Untrusted text.
    pub vms: Vec<String>,
    /// The filter. Untrusted text.
    pub flow: String,
    /// When it was started, seconds since 1970.
    pub started: u64,
    /// Whether it still runs.
    pub running: bool,
    /// Whether its recording is complete.
    pub complete: bool,
    /// What it said last, if it has ended without a complete recording; why what is known of it cannot be read, if that is `damaged`.
    /// Untrusted text.
    #[serde(default)]
    pub failed: Option<String>,
    /// Whether the file with what was asked for is damaged: VMs, filter and start are not known then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
}

/// What an agent is doing: the daemon that keeps deadlines and the policy in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its version of teiji.
    pub teiji: String,
    /// Its process id.
    pub pid: u32,
    /// When it was started, seconds since 1970.
    pub started: u64,
    /// The files of the policy in force; empty if there is none. Untrusted text.
    pub policy: Vec<String>,
    /// When that policy was applied, seconds since 1970.
    pub policy_since: Option<u64>,
    /// It could not read which policy is in force, when it looked last; the two above are what it knew before.
    #[serde(default)]
    pub policy_unknown: bool,
    /// How often it has compared the host with the policy.
    pub looks: u64,
    /// When it did so last, seconds since 1970.
    pub looked: Option<u64>,
    /// How long that took, ms.
    pub look_ms: u64,
    /// How many settings it has changed since it was started.
    pub changed: u64,
    /// Sections of the policy that mean nothing on the host at present; printable.
    pub absent: Vec<String>,
    /// What is not as the policy asks for, and why; printable. Empty if all is well.
    pub problems: Vec<String>,
    /// Kinds of changes for which this kernel sends no event; they are found by polling. Printable.
    pub blind: Vec<String>,
    /// The VMs whose threads it schedules by the deadlines of packets.
    #[serde(default)]
    pub packet_vms: Vec<PacketVmStatus>,
}

/// A VM whose threads an agent schedules by the deadlines of its packets. What it has got is since the scheduler was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketVmStatus {
    /// Its name. Untrusted text.
    pub name: String,
    /// What it is promised.
    pub class: PacketClass,
    /// How many of its threads are scheduled so.
    pub threads: usize,
    /// Packets that came for it.
    pub packets: u64,
    /// Packets that it left unanswered for eight times its deadline without sleeping.
    pub expired: u64,
    /// CPU time before others, ns.
    pub before_others: u64,
    /// CPU time by weight, ns.
    pub by_weight: u64,
    /// Times, at least a period apart, that a thread of it began to run and less than 50 µs of its runtime were left.
    pub exhausted: u64,
    /// Turns of its threads before others.
    pub turns: u64,
    /// Of these, the ones that took over 500 µs longer than was granted.
    pub overruns: u64,
    /// How often its threads waited for a CPU after a wake-up for 2^i up to 2^(i+1) ns, by i.
    pub waits: Vec<u64>,
}

impl PacketVmStatus {
    /// The wait that a share of the wake-ups did not exceed, ns, up to twice the true one.
    pub fn wait(&self, share: f64) -> Option<u64> {
        quantile(&self.waits, share)
    }
}

/// The value that a share of those in a histogram did not exceed, from one whose entry i counts values from 2^i up to 2^(i+1). The
/// result is up to twice the true value. `None` if there are none.
fn quantile(histogram: &[u64], share: f64) -> Option<u64> {
    let all: u64 = histogram.iter().sum();
    let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
    let mut seen = 0;
    histogram.iter().enumerate().find_map(|(i, n)| {
        seen += n;
        (seen >= wanted).then(|| 2u64.checked_shl(i as u32).unwrap_or(u64::MAX))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds_from_the_histogram() {
        let mut s = ChannelStats { delay: vec![0; 40], ..Default::default() };
        assert_eq!(s.quantile(0.5), None);
        s.delay[10] = 98; // 1,024 to 2,048 ns
        s.delay[20] = 2;
        s.delay_max = 1_100_000;
        assert_eq!((s.quantile(0.5), s.quantile(0.98)), (Some(2048), Some(2048)));
        assert_eq!((s.quantile(0.99), s.quantile(1.0)), (Some(1_100_000), Some(1_100_000)));
    }
}
