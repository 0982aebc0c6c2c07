//! Packet statistics, as the kernel half counts them.
use super::types;
use teiji_model::status::{ChannelStats, LinkStats};

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
