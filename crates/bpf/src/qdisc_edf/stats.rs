//! What has become of packets, as the kernel half counts it.
use super::types;
use serde::Serialize;

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

impl From<&types::channel_stats> for ChannelStats {
    fn from(s: &types::channel_stats) -> Self {
        ChannelStats {
            packets: s.packets,
            bytes: s.bytes,
            delay_max: s.delay_max,
            delay_sum: s.delay_sum,
            misses: s.misses,
            excess: s.excess,
            excess_bytes: s.excess_bytes,
            drops: s.drops,
            delay: s.delay.to_vec(),
        }
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

impl From<&types::link_stats> for LinkStats {
    fn from(s: &types::link_stats) -> Self {
        LinkStats {
            rt_packets: s.rt_packets,
            rt_bytes: s.rt_bytes,
            be_packets: s.be_packets,
            be_bytes: s.be_bytes,
            rt_drops: s.rt_drops,
            be_drops: s.be_drops,
            capped: s.capped,
            fallback_packets: s.fallback_packets,
            fallbacks: s.fallbacks,
            largest: s.largest,
            rt_queued: s.rt_queued,
            be_queued: s.be_queued,
        }
    }
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
