//! How packets wait for a link: its root qdisc, as far as teiji puts one there or puts one back.
//!
//! Bytes are counted on the wire: a frame, padded to [`MIN_FRAME`], and [`OVERHEAD`]. The kernel half charges the
//! token buckets so, and admission counts so.

pub mod frame;

use crate::policy::Endpoint;
use crate::text::duration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes that an Ethernet frame takes on the wire beside those that the kernel counts: check sequence, preamble, gap.
pub const OVERHEAD: u32 = 24;
/// The shortest Ethernet frame, as the kernel counts it, bytes.
pub const MIN_FRAME: u32 = 60;
/// How much later than asked a link's timer may fire, and so how much lost time is made up for, ns.
pub const TIMER_ERROR: u64 = 100_000;
/// Longest name of a channel, bytes.
pub const MAX_NAME: usize = 63;
/// Most distinct sets of fields that the channels of a link look at: lengths of prefixes, ports, protocol.
pub const MAX_SHAPES: usize = 16;
/// Most channels of a host.
pub const MAX_CHANNELS: usize = 4096;
/// Most links of a host that have channels.
pub const MAX_LINKS: usize = 64;
/// Longest deadline, ns.
pub const MAX_DEADLINE: u64 = 60_000_000_000;
/// Highest rate, bit/s: above it a frame takes less than can be counted in ns.
pub const MAX_RATE: u64 = 1_000_000_000_000;
/// Rates are kept in whole bytes a second: bit/s are multiples of this.
pub const RATE_STEP: u64 = 8;

/// A service curve, as `struct tc_service_curve` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Curve {
    /// Rate of the first piece, bytes a second.
    pub m1: u32,
    /// Length of the first piece, µs.
    pub d: u32,
    /// Rate of the second piece, bytes a second; at most `m1`.
    pub m2: u32,
}

/// A network device that is not mistaken for a later one of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Device {
    /// Its name when it was looked at.
    pub name: String,
    /// Its interface index.
    pub index: u32,
}

/// The root qdisc of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// One that is not teiji's.
    Stock(Box<Stock>),
    /// teiji's: channels with deadlines, and fair best effort.
    Deadlines(Box<Deadlines>),
}

/// A root qdisc that is not teiji's, as rtnetlink describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stock {
    /// Its kind, such as `fq_codel`. Untrusted: a module's text.
    pub kind: String,
    /// Whether somebody chose it; otherwise it is the kernel's default, which comes back by itself.
    pub chosen: bool,
    /// Its options (`TCA_OPTIONS`), as they go into a message that makes such a one.
    pub options: Vec<u8>,
}

/// What keeps the deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Earliest deadline first: teiji's BPF qdisc, Linux 6.16.
    Edf,
    /// The kernel's own HFSC, on older kernels: weaker bounds.
    Hfsc,
}

/// Channels with deadlines on a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Deadlines {
    /// What keeps them.
    pub scheduler: Scheduler,
    /// What the link sends, bit/s on the wire; a multiple of [`RATE_STEP`].
    pub rate: u64,
    /// Best effort goes first while the earliest deadline is further away than this, ns; 0 with HFSC, which has no such
    /// rule.
    pub slack: u64,
    /// Most bit/s of all channels together, a multiple of [`RATE_STEP`]; 0: no bound but their own, as always with HFSC.
    pub realtime_max: u64,
    /// By name, of at most [`MAX_NAME`] bytes.
    pub channels: BTreeMap<String, Channel>,
}

/// A one-way flow with a deadline.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Channel {
    /// Sender; `None`: anyone.
    pub from: Option<Endpoint>,
    /// Receiver; `None`: anyone.
    pub to: Option<Endpoint>,
    /// IP protocol: 6 TCP, 17 UDP; `None`: any.
    pub proto: Option<u8>,
    /// From a packet's arrival in the queue until its last bit is on the wire, ns. With HFSC what its [`Curve`] has to keep, whole µs:
    /// what the link itself adds is taken off.
    pub deadline: u64,
    /// Guaranteed rate, bit/s; a multiple of [`RATE_STEP`].
    pub rate: u64,
    /// How much may come at once, bytes.
    pub burst: u64,
}

impl Channel {
    /// The same, as it is read back from the kernel: an end that leaves everything open is none.
    pub fn normal(mut self) -> Channel {
        for end in [&mut self.from, &mut self.to] {
            if end.as_ref().is_some_and(|e| e.prefix == 0 && e.port.is_none()) {
                *end = None;
            }
        }
        self
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheduler::Edf => "EDF",
            Scheduler::Hfsc => "HFSC",
        })
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Queue::Stock(stock) => f.write_str(&stock.kind),
            Queue::Deadlines(d) => {
                let noun = if d.channels.len() == 1 { "channel" } else { "channels" };
                let rate = crate::units::RATE.write(d.rate);
                write!(f, "{}, {} {noun}, {rate}", d.scheduler, d.channels.len())?;
                match d.scheduler {
                    Scheduler::Edf => write!(f, ", slack {}", duration(d.slack as f64)),
                    Scheduler::Hfsc => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_is_written_as_people_write_times() {
        let (scheduler, channels) = (Scheduler::Edf, BTreeMap::new());
        let edf = Deadlines { scheduler, rate: 999_000_000, slack: 3_730_400, realtime_max: 0, channels };
        let text = Queue::Deadlines(Box::new(edf)).to_string();
        assert_eq!(text, "EDF, 0 channels, 999mbit, slack 3.73 ms");
    }

    #[test]
    fn an_end_that_leaves_everything_open_is_none() {
        let end = |prefix, port| Some(Endpoint { address: [0, 0, 0, 0].into(), prefix, port });
        let c = Channel {
            from: end(0, None),
            to: end(0, Some(5060)),
            proto: None,
            deadline: 1,
            rate: 8,
            burst: 64,
        };
        let normal = c.clone().normal();
        assert_eq!((normal.from, normal.to), (None, c.to));
    }
}
