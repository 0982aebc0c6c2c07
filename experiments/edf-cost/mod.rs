//! Experiment `edf-cost`: what a packet costs in the qdisc, and whether that depends on the number of channels. See
//! README.md beside this file.
//!
//! | module | does |
//! | --- | --- |
//! | [`queues`] | the qdiscs that are compared, as an operator would set them up |
//! | [`bench`](mod@bench) | lays out a device for each, sends by each in turn, and takes the times |
//! | [`table`] | tables and pictures |

pub mod bench;
pub mod queues;
pub mod table;

/// Payload of every datagram, bytes.
pub const SIZE: u64 = 100;
/// Its bytes on the wire.
pub const WIRE: u64 = SIZE + 66;
/// Numbers of channels that are compared.
pub const CHANNELS: [u64; 3] = [1, 100, 1000];
/// The deadline of every channel, µs: HFSC and teiji_edf know one for each, etf for each packet.
pub const DEADLINE_US: u64 = 50_000;

/// One of the two figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Rate of the links, bit/s.
    pub link: u64,
    /// Datagrams of a window.
    pub burst: u64,
    /// Turns of the empty loop in which the queue empties.
    pub turns: u64,
}

impl Case {
    /// A channel's rate, bit/s: all of them together reserve 90 % of the link.
    pub fn rate(&self, channels: u64) -> u64 {
        self.link * 9 / 10 / channels
    }

    /// What a channel may send at once, bytes: its part of a window, and a little more.
    pub fn bucket(&self, channels: u64) -> u64 {
        (self.burst / 2).div_ceil(channels) * WIRE + 2 * WIRE
    }
}

/// The link is faster than the sender: a packet is queued and taken out at once. HFSC knows no rate above 34 Gbit/s.
pub const FREE: Case = Case { name: "free link", link: 30_000_000_000, burst: 2000, turns: 0 };

/// The sender is faster than the link: packets wait, and a timer takes them out.
pub const BACKLOGGED: Case =
    Case { name: "backlogged link", link: 30_000_000, burst: 1000, turns: 10_000_000 };
