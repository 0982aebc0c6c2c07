//! What teiji holds and does, and what has become of the packets of links with channels, at one instant.

use crate::plan::{Hold, Step};
use crate::queue::Deadlines;
use crate::resource::{Resource, ResourceError, Value};
use serde::Serialize;
use std::collections::BTreeMap;

/// What teiji holds and does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What it holds, in the order of the settings.
    pub held: Vec<HeldNow>,
    /// A transaction under way, or whose process ended.
    pub transaction: Option<Unfinished>,
    /// Whether a teiji is changing settings now.
    pub busy: bool,
    /// Its process id, if it is known.
    pub pid: Option<u32>,
    /// Whether there is state of another boot, which the next command that changes settings removes.
    pub other_boot: bool,
    /// What the caller may not see.
    pub hidden: Option<String>,
    /// Why it is not known what teiji holds, and what to do about it: its files are damaged or cannot be read.
    pub damaged: Option<String>,
}

/// A setting that teiji holds, and what it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldNow {
    /// The setting.
    pub setting: Resource,
    /// What teiji remembers of it.
    pub hold: Hold,
    /// What it is.
    pub present: Result<Value, ResourceError>,
    /// Whether someone else has changed it.
    pub changed: bool,
}

/// A transaction that is not at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// Who began it.
    pub pid: u32,
    /// When, seconds since 1970.
    pub time: u64,
    /// Whether it is a rollback.
    pub rollback: bool,
    /// Its steps.
    pub steps: Vec<Step>,
    /// How many of an apply's steps have begun.
    pub begun: usize,
    /// Whether all of an apply's steps are done.
    pub applied: bool,
    /// How much time is left to confirm it, ms; 0: too late. `None`: it does not wait for that.
    pub confirm_left: Option<u64>,
}

/// A link with channels, and what has become of its packets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkNow {
    /// The link's name. Untrusted text.
    pub link: String,
    /// Its interface index.
    pub index: u32,
    /// Its settings and channels.
    pub settings: Deadlines,
    /// What has become of all packets.
    pub stats: LinkStats,
    /// What has become of each channel's, by name. Untrusted text.
    pub channels: BTreeMap<String, ChannelStats>,
}

/// Links with channels.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinksNow {
    /// By index.
    pub links: Vec<LinkNow>,
    /// Why their deadlines are not kept, or not known; `None` if all is well, or there are none.
    pub trouble: Option<String>,
    /// What the caller may not see.
    pub hidden: Option<String>,
}

/// What has become of a channel's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChannelStats {
    /// Sent in the order of deadlines.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// The longest delay of one of them, from its arrival to its last bit at the link's rate, ns.
    pub delay_max: u64,
    /// All of them together, ns.
    pub delay_sum: u64,
    /// How many had their last bit sent, at the link's rate, after their deadline.
    pub misses: u64,
    /// Packets over the rate, which were sent as best effort.
    pub excess: u64,
    /// Their bytes on the wire.
    pub excess_bytes: u64,
    /// Packets that did not fit into the queue.
    pub drops: u64,
    /// How many had a delay of 2^i up to 2^(i+1) ns.
    pub delay: Vec<u64>,
}

impl ChannelStats {
    /// The delay that a share of the packets did not exceed, ns, from the histogram: its buckets double, so it is up
    /// to twice the true one, and never above the longest. `None` if there was no packet.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let all: u64 = self.delay.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        self.delay.iter().enumerate().find_map(|(i, n)| {
            seen += n;
            (seen >= wanted).then(|| 2u64.checked_shl(i as u32).unwrap_or(u64::MAX).min(self.delay_max))
        })
    }
}

/// What has become of a link's packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// Packets of channels that exceeded the bound of all of them.
    pub capped: u64,
    /// Packets that were sent without deadlines, since nobody had said that he lives.
    pub fallback_packets: u64,
    /// How often that began.
    pub fallbacks: u64,
    /// Largest best-effort packet, bytes on the wire: the packet with the earliest deadline may have to wait for it.
    pub largest: u64,
    /// Real-time packets that are queued.
    pub rt_queued: u32,
    /// Best-effort packets that are queued.
    pub be_queued: u32,
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
