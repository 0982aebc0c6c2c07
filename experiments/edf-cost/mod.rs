//! Experiment `edf-cost`: what a packet costs in the qdisc, and whether the cost depends on the number of channels. See
//! README.md beside this file.
//!
//! | module | does |
//! | --- | --- |
//! | [`queues`] | the qdiscs that are compared, as an operator would set them up |
//! | [`bench`](mod@bench) | creates a device for each, sends through each in turn, and measures the times |
//! | [`table`] | tables and pictures |

pub mod bench;
pub mod queues;
pub mod table;

/// Payload of every datagram, bytes.
pub const SIZE: u64 = 100;
/// Bytes of such a datagram on the wire.
pub const WIRE: u64 = SIZE + 66;
/// Numbers of channels that are compared.
pub const CHANNELS: [u64; 3] = [1, 100, 1000];
/// The deadline of every channel, µs: HFSC and teiji_edf have one for each channel, etf has one for each packet.
pub const DEADLINE_US: u64 = 50_000;

/// One of the two measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Name.
    pub name: &'static str,
    /// Rate of the links, bit/s.
    pub link: u64,
    /// Datagrams in a window.
    pub burst: u64,
    /// Turns of an empty loop, during which the queue empties.
    pub turns: u64,
}

impl Case {
    /// A channel's rate, bit/s: all of them together reserve 90 % of the link.
    pub fn rate(&self, channels: u64) -> u64 {
        self.link * 9 / 10 / channels
    }

    /// What a channel may send at once, bytes: its part of a window, and two packets more.
    pub fn bucket(&self, channels: u64) -> u64 {
        (self.burst / 2).div_ceil(channels) * WIRE + 2 * WIRE
    }
}

/// The link is faster than the sender: a packet is queued and dequeued at once. HFSC allows no rate above 34 Gbit/s.
pub const FREE: Case = Case { name: "free link", link: 30_000_000_000, burst: 2000, turns: 0 };

/// The sender is faster than the link: packets wait until a timer dequeues them.
pub const BACKLOGGED: Case =
    Case { name: "backlogged link", link: 30_000_000, burst: 1000, turns: 10_000_000 };
