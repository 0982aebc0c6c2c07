//! The root qdisc of a link, which decides how packets wait for it: the one that teiji sets, or the one that it
//! restores.
//!
//! Bytes are counted on the wire: a frame, padded to [`MIN_FRAME`], plus [`OVERHEAD`]. Admission control and the token
//! buckets of the BPF qdisc count in the same way.

pub mod frame;

use crate::policy::Endpoint;
use crate::text::duration;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

/// Bytes that an Ethernet frame takes on the wire in addition to those that the kernel counts: check sequence,
/// preamble, gap.
pub const OVERHEAD: u32 = 24;
/// The shortest Ethernet frame, as the kernel counts it, bytes.
pub const MIN_FRAME: u32 = 60;
/// How late a link's timer may fire, and therefore how much lost time the link makes up for, ns.
pub const TIMER_ERROR: u64 = 100_000;
/// Longest name of a channel, bytes.
pub const MAX_NAME: usize = 63;
/// The greatest number of distinct sets of fields that the channels of a link compare: lengths of prefixes, ports,
/// protocol.
pub const MAX_SHAPES: usize = 16;
/// The greatest number of channels of a host.
pub const MAX_CHANNELS: usize = 4096;
/// The greatest number of links of a host that have channels.
pub const MAX_LINKS: usize = 64;
/// Longest deadline, ns.
pub const MAX_DEADLINE: u64 = 60_000_000_000;
/// Longest slack, ns.
pub const MAX_SLACK: u64 = 3_600_000_000_000;
/// Greatest burst of a channel, bytes.
pub const MAX_BURST: u64 = 1 << 30;
/// Highest rate, bit/s: above it a frame takes less time than can be counted in ns.
pub const MAX_RATE: u64 = 1_000_000_000_000;
/// Rates are whole bytes per second: bit/s are multiples of this.
pub const RATE_STEP: u64 = 8;

/// A service curve, like `struct tc_service_curve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Curve {
    /// Rate of the first piece, bytes per second.
    pub m1: u32,
    /// Length of the first piece, µs.
    pub d: u32,
    /// Rate of the second piece, bytes per second; at most `m1`.
    pub m2: u32,
}

/// A network device of a network namespace. Its index identifies it: the name can be changed, and a later device may
/// have the same name. So two values are equal if their indices are, whatever the names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its name when it was observed.
    pub name: String,
    /// Its interface index.
    pub index: u32,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl Eq for Device {}

impl PartialOrd for Device {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Device {
    fn cmp(&self, other: &Self) -> Ordering {
        self.index.cmp(&other.index)
    }
}

impl Hash for Device {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.index.hash(state);
    }
}

/// The root qdisc of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootQdisc {
    /// One that is not teiji's.
    #[serde(rename = "stock")]
    Existing(Box<ExistingQdisc>),
    /// teiji's: channels with deadlines, and fair best effort.
    #[serde(rename = "deadlines")]
    Deadline(Box<DeadlineQdisc>),
}

/// A root qdisc that is not teiji's, as rtnetlink describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExistingQdisc {
    /// Its kind, such as `fq_codel`. Untrusted: a module's text.
    pub kind: String,
    /// Whether somebody chose it; otherwise it is the kernel's default, which the kernel sets by itself.
    pub chosen: bool,
    /// Its options (`TCA_OPTIONS`), in the format of a message that creates such a qdisc.
    pub options: Vec<u8>,
}

/// What keeps the deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// Earliest deadline first: teiji's BPF qdisc, from Linux 6.16 on.
    Edf,
    /// The kernel's own HFSC, on older kernels: weaker guarantees.
    Hfsc,
}

/// Channels with deadlines on a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeadlineQdisc {
    /// What keeps them.
    pub scheduler: Scheduler,
    /// The rate of the link, bit/s on the wire; a multiple of [`RATE_STEP`].
    pub rate: u64,
    /// Best effort goes first while the earliest deadline is further away than this, ns; 0 with HFSC, which has no such
    /// rule.
    pub slack: u64,
    /// The highest rate of all channels together, bit/s, a multiple of [`RATE_STEP`]; 0 means that only each channel's
    /// own rate limits it, as always with HFSC.
    pub realtime_max: u64,
    /// By name; a name has at most [`MAX_NAME`] bytes.
    pub channels: BTreeMap<String, Channel>,
}

/// A one-way flow with a deadline.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Channel {
    /// The sender; `None` for any.
    pub from: Option<Endpoint>,
    /// The receiver; `None` for any.
    pub to: Option<Endpoint>,
    /// IP protocol: 6 TCP, 17 UDP; `None` for any.
    pub proto: Option<u8>,
    /// The time from a packet's arrival in the queue until its last bit is on the wire, ns. With HFSC the time that its
    /// [`Curve`] has to keep, in whole µs: without the delay that the link itself adds.
    pub deadline: u64,
    /// Guaranteed rate, bit/s; a multiple of [`RATE_STEP`].
    pub rate: u64,
    /// How much may come at once, bytes.
    pub burst: u64,
}

impl Channel {
    /// The channel as it is read back from the kernel: an endpoint that matches everything becomes `None`.
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

impl fmt::Display for RootQdisc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RootQdisc::Existing(existing) => f.write_str(&existing.kind),
            RootQdisc::Deadline(d) => {
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
    use std::hash::{BuildHasher, DefaultHasher};

    #[test]
    fn a_device_is_the_same_under_another_name() {
        let device = |name: &str, index| Device { name: name.into(), index };
        assert_eq!(device("eth0", 2), device("lan0", 2));
        assert!(device("eth0", 2) < device("a", 3));
        let hash =
            |device: &Device| std::hash::BuildHasherDefault::<DefaultHasher>::default().hash_one(device);
        assert_eq!(hash(&device("eth0", 2)), hash(&device("lan0", 2)));
        assert_eq!(device("eth0", 2).to_string(), "eth0");
    }

    #[test]
    fn slack_is_written_as_people_write_times() {
        let (scheduler, channels) = (Scheduler::Edf, BTreeMap::new());
        let edf = DeadlineQdisc { scheduler, rate: 999_000_000, slack: 3_730_400, realtime_max: 0, channels };
        let text = RootQdisc::Deadline(Box::new(edf)).to_string();
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
