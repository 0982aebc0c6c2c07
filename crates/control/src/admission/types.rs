//! The arguments and results of admission control.

use std::fmt;
use teiji_model::policy::Auto;
use teiji_model::qdisc::{MAX_BURST, MAX_SLACK};
use teiji_model::text::{duration, printable};

/// The longest time in an admission, ns. The longest that a policy may name is a slack.
pub(super) const LONGEST: u64 = MAX_SLACK;
/// The fastest link, bit/s: up to here the arithmetic does not overflow. A policy's links are slower
/// ([`teiji_model::qdisc::MAX_RATE`]).
pub(super) const FASTEST: u64 = 10_000_000_000_000;
/// The largest burst or ring, bytes.
pub(super) const LARGEST: u64 = MAX_BURST;
/// The greatest number of channels of a link.
pub(super) const MOST: usize = 1 << 20;

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Its rate, bit/s on the wire, 1 to 10 Tbit/s; with a rate limiter before it, the limiter's rate.
    pub rate: u64,
    /// The largest frame that best effort or a channel hands over, bytes: MTU, 14 for the Ethernet header, 4 per VLAN
    /// tag. If the stack hands over segments that the NIC splits (TSO, `gso_max_size`), the largest of these.
    pub max_frame: u32,
    /// What a frame takes on the wire in addition to its own bytes: 24 on Ethernet (preamble, FCS, gap).
    pub overhead: u32,
    /// A packet is handed to the NIC while at most this many bytes, counted on the wire, are there and not sent: the
    /// driver's ring, or the limit of byte queue limits (`queues/tx-*/byte_queue_limits/limit`;
    /// lib/dynamic_queue_limits.c). 0 if the rate limiter hands over one packet at a time.
    pub ring_bytes: u64,
    /// How late the limiter's timer may fire, ns. The limiter has to make up for that time.
    pub timer_error: u64,
    /// Best effort goes first while the earliest deadline is further away than this, ns.
    pub slack: Auto,
}

/// A real-time channel. Bytes are counted on the wire, including the link's overhead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Its name, for messages; untrusted text.
    pub name: String,
    /// The time from a packet's arrival in the link's queue to its last bit on the wire, ns, 1 ns to one hour.
    pub deadline: u64,
    /// The token bucket's rate, bit/s, at least 1.
    pub rate: u64,
    /// The token bucket's depth, bytes: at least the largest packet with its overhead, at most 1 GiB.
    pub burst: u64,
    /// The largest packet, bytes of the frame without the link's overhead; at most the link's `max_frame`.
    pub max_packet: u32,
}

/// The channels fit: every packet within its token bucket leaves by its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The slack that the link has to use, ns: the one that was set, or the smallest sufficient one.
    pub slack: u64,
    /// The guarantee of each channel, in the order of the channels.
    pub guarantees: Vec<Guarantee>,
    /// Sum of the channels' rates, bit/s.
    pub reserved_rate: u64,
    /// The part of the link's rate that is not reserved, bit/s.
    pub free_rate: u64,
    /// By how many bytes the burst of any one channel could grow with every deadline still kept (the slack, if it is
    /// automatic, grows, too). `None` without channels.
    pub free_burst: Option<u64>,
}

/// The guarantee of one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarantee {
    /// The channel's name.
    pub name: String,
    /// The longest delay of its packets, ns, at most its deadline; see the module `bound`.
    pub delay: u64,
}

/// Why there is no admission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A value is out of range, so nothing was decided. Printable.
    #[error("{0}")]
    Malformed(String),
    /// The channels do not fit.
    #[error(transparent)]
    Refused(Box<Refusal>),
}

/// The channels do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// What does not fit.
    pub misfit: Misfit,
    /// The time after a moment when every burst comes at once, ns, at which demand exceeds the link most. The longest
    /// time for [`Misfit::Rate`] and [`Misfit::Curves`].
    pub at: u64,
    /// By how many bytes, rounded up; per second for [`Misfit::Rate`] and [`Misfit::Curves`].
    pub excess: u128,
    /// The channels whose packets make up that demand, by deadline; for [`Misfit::Curves`] by what they reserve.
    pub offending: Vec<String>,
    /// Single changes, each of which makes the set fit: the smallest of each kind, and the smallest relative change
    /// first. Each is exact: one step less is not sufficient (the text has four digits, rounded so that they are
    /// sufficient). Empty if no single change is sufficient.
    pub fixes: Vec<Fix>,
}

/// What does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The channels' rates together exceed the link's rate.
    Rate,
    /// A deadline is too early for what has to be sent by then.
    Deadline,
    /// What HFSC reserves for bursts and deadlines exceeds the link's rate.
    Curves,
    /// Best effort goes first for too long.
    Slack {
        /// The smallest sufficient slack, ns.
        least: u64,
    },
}

/// A single change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// A longer deadline for a channel, ns.
    Deadline {
        /// The channel's name.
        channel: String,
        /// The new value.
        to: u64,
    },
    /// A smaller burst of a channel, bytes.
    Burst {
        /// The channel's name.
        channel: String,
        /// The new value.
        to: u64,
    },
    /// A smaller rate of a channel, bit/s.
    Rate {
        /// The channel's name.
        channel: String,
        /// The new value.
        to: u64,
    },
    /// A faster link, bit/s.
    LinkRate {
        /// The new value.
        to: u64,
    },
    /// A longer slack, ns.
    Slack {
        /// The new value.
        to: u64,
    },
}

/// A time in the form of a policy.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        teiji_model::units::DURATION.write(self.0).fmt(f)
    }
}

/// A rate in the form of a policy.
struct Rate(u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        teiji_model::units::RATE.write(self.0).fmt(f)
    }
}

/// Rounds up to four digits, which are enough to read: a later deadline, a longer slack and a faster link are
/// sufficient, too.
fn up(value: u64) -> u64 {
    value.next_multiple_of(step(value))
}

/// Rounds down to four digits: a lower rate is sufficient, too.
fn down(value: u64) -> u64 {
    value - value % step(value)
}

fn step(value: u64) -> u64 {
    10_u64.pow(value.checked_ilog10().unwrap_or(0).saturating_sub(3))
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fix::Deadline { channel, to } => {
                write!(f, "a deadline of {} for channel `{}`", Time(up(*to)), printable(channel))
            }
            Fix::Burst { channel, to } => {
                write!(f, "a burst of {to}b for channel `{}`", printable(channel))
            }
            Fix::Rate { channel, to } => {
                write!(f, "a rate of {} for channel `{}`", Rate(down(*to)), printable(channel))
            }
            Fix::LinkRate { to } => write!(f, "a link of {}", Rate(up(*to))),
            Fix::Slack { to } => write!(f, "a slack of {}", Time(up(*to))),
        }
    }
}

/// The number of channels, and the last of them.
struct Last<'a>(&'a [String]);

impl fmt::Display for Last<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0.len();
        write!(f, "{n} {}", if n == 1 { "channel" } else { "channels" })?;
        for (i, name) in self.0.iter().rev().take(5).enumerate() {
            write!(f, "{} `{}`", if i == 0 { ":" } else { "," }, printable(name))?;
        }
        f.write_str(if n > 5 { ", …" } else { "" })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = duration(self.at as f64);
        let excess = format!("{} byte{}", self.excess, if self.excess == 1 { "" } else { "s" });
        match self.misfit {
            Misfit::Rate => write!(f, "the channels' rates exceed the link's, by {excess} in each second")?,
            Misfit::Deadline => {
                write!(
                    f,
                    "the deadlines cannot all be kept: within {at} the link would have to send {excess} more than it can"
                )?;
                // The latest deadlines are nearest to the instant.
                write!(f, " ({})", Last(&self.offending))?;
            }
            Misfit::Curves => write!(
                f,
                "HFSC reserves each channel's burst within its deadline all the time, and that is {} more than the \
                 link sends ({})",
                Rate(u64::try_from(self.excess * 8).unwrap_or(u64::MAX)),
                Last(&self.offending)
            )?,
            Misfit::Slack { .. } => write!(
                f,
                // Exactly, in the form of the policy: a sufficient slack may be close to it.
                "with a slack of {} best effort goes first for too long: {excess} could not be sent in time",
                Time(self.at)
            )?,
        }
        for (i, fix) in self.fixes.iter().enumerate() {
            write!(f, "{} {fix}", if i == 0 { "; the channels would fit with" } else { ", or" })?;
        }
        if self.fixes.is_empty() {
            f.write_str("; no single change is enough: remove a channel")?;
        }
        Ok(())
    }
}

/// Refuses values out of range, so that no sum can overflow.
pub(super) fn check(link: &LinkSpec, channels: &[ChannelSpec]) -> Result<(), Denied> {
    let range = |what: &str, value: u64, from: u64, to: u64| {
        if (from..=to).contains(&value) {
            return Ok(());
        }
        let what = printable(what);
        Err(Denied::Malformed(format!(
            "{what} is {value}; nothing can be guaranteed unless it is {from} to {to}"
        )))
    };
    if channels.len() > MOST {
        return Err(Denied::Malformed(format!(
            "{} channels are more than {MOST}, the limit of a link",
            channels.len()
        )));
    }
    range("the link's rate in bit/s", link.rate, 1, FASTEST)?;
    range("the link's largest frame in bytes", link.max_frame.into(), 1, LARGEST)?;
    range("the link's overhead per frame in bytes", link.overhead.into(), 0, LARGEST)?;
    range("the link's ring in bytes", link.ring_bytes, 0, LARGEST)?;
    range("the timer's error in ns", link.timer_error, 0, LONGEST)?;
    for c in channels {
        let of = |what: &str| format!("the {what} of channel `{}`", c.name);
        range(&of("deadline in ns"), c.deadline, 1, LONGEST)?;
        range(&of("rate in bit/s"), c.rate, 1, FASTEST)?;
        range(&of("largest packet in bytes"), c.max_packet.into(), 1, link.max_frame.into())?;
        let one = u64::from(c.max_packet) + u64::from(link.overhead);
        range(&of("burst in bytes"), c.burst, one, LARGEST)?;
    }
    Ok(())
}
