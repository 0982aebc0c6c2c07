//! Experiment `edf-delay`: every packet of a channel is sent within its deadline. See README.md beside this file.

pub mod net;
pub mod product;
pub mod rivals;
pub mod table;
pub mod traffic;

/// Rate of the emulated link, bit/s: the most that virtual time can handle with a flood at twice the rate.
pub const LINK: u64 = 50_000_000;
/// Payload of every datagram, bytes, as in the paper.
pub const SIZE: u64 = 1470;
/// Bytes of such a datagram on the wire.
pub const WIRE: u64 = SIZE + 66;
/// Depth of a channel's token bucket beyond its burst, bytes: a sender's call may take a little longer than the one
/// before.
pub const MARGIN: u64 = 164;

/// A channel of the experiment. The sender stays within it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TestChannel {
    /// Deadline, µs.
    pub deadline_us: u64,
    /// Bit/s on the wire.
    pub rate: u64,
    /// Datagrams sent at once.
    pub burst: u64,
}

/// What is sent, and for how long.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name of the case.
    pub name: &'static str,
    /// Channels.
    pub channels: Vec<TestChannel>,
    /// The link's slack, µs; `None`: teiji chooses it.
    pub slack_us: Option<u64>,
    /// Seconds of the lab's time.
    pub seconds: u64,
}

/// The paper's six flows.
pub fn six(seconds: u64) -> Workload {
    let channel = |ms: u64| TestChannel { deadline_us: ms * 1000, rate: 2_000_000, burst: 1 };
    Workload {
        name: "six flows",
        channels: [3, 5, 8, 10, 15, 20].map(channel).to_vec(),
        slack_us: Some(2000),
        seconds,
    }
}

/// 32 channels with deadlines from 1 to 20 ms that reserve 90 % of the link; eight of them send two at once.
pub fn many(seconds: u64) -> Workload {
    let channel = |i: u64| TestChannel {
        deadline_us: 1000 + 19_000 * i / 31,
        rate: LINK * 9 / 10 / 32,
        burst: if i >= 24 { 2 } else { 1 },
    };
    Workload { name: "32 channels", channels: (0..32).map(channel).collect(), slack_us: None, seconds }
}

/// The largest share of the link that the channels can demand up to any deadline, including one best-effort packet sent
/// before them. If it is at most 1, EDF meets all deadlines (demand bound of token buckets; the rates are below the
/// link's, so it is enough to look at each deadline once).
pub fn demand(channels: &[TestChannel]) -> f64 {
    let wire_us = |bytes: u64| bytes as f64 * 8e6 / LINK as f64;
    let up_to = |t: u64| {
        let of = |c: &TestChannel| {
            wire_us(c.burst * WIRE + MARGIN) + (t - c.deadline_us) as f64 * c.rate as f64 / LINK as f64
        };
        let all: f64 = channels.iter().filter(|c| c.deadline_us <= t).map(of).sum();
        (all + wire_us(WIRE)) / t as f64
    };
    channels.iter().map(|c| up_to(c.deadline_us)).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channels_can_be_kept_and_reserve_what_is_claimed() {
        let many = many(1);
        let reserved: u64 = many.channels.iter().map(|c| c.rate).sum();
        assert_eq!((many.channels.len(), reserved), (32, LINK * 9 / 10));
        let deadlines = many.channels.iter().map(|c| c.deadline_us);
        assert_eq!((deadlines.clone().min(), deadlines.max()), (Some(1000), Some(20_000)));
        assert!(demand(&many.channels) <= 1.0, "{}", demand(&many.channels));
        assert!(demand(&six(1).channels) < 0.3);
        // Bursts of two on all channels would be too much.
        let more: Vec<_> = many.channels.iter().map(|c| TestChannel { burst: 2, ..*c }).collect();
        assert!(demand(&more) > 1.0);
    }
}
