//! Where events come from, and what changes while they come.
//!
//! ```text
//!  host    ─ Event, Event, …            ─┐
//!  guest 1 ─ Event, Event, … ─ its clock ┼─► one order, on the host's clock ─► joined
//!  guest 2 ─ Event, Event, … ─ its clock ┘
//!  changes ─ a VM comes, changes, ends; a guest's clock is measured again
//! ```
//! Every event belongs to a [`StreamId`]. The events of the host are on the host's `CLOCK_MONOTONIC`; those of a guest are
//! on the guest's, and a [`ClockMapping`] says what time of the host that is, and how wrong it may be.

use crate::event::Event;
use crate::host::{GivenNic, Vm};
use crate::usage::{ObservedVms, Sample};
use serde::{Deserialize, Serialize};

/// A stream of events: the host's, or that of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamId(pub u16);

impl StreamId {
    /// The host's own events.
    pub const HOST: StreamId = StreamId(0);
    /// The greatest number of streams of a trace, the host's included.
    pub const MOST: usize = 65;

    /// Whether these are the host's own events.
    pub fn is_host(self) -> bool {
        self == StreamId::HOST
    }
}

/// How the clock of a stream relates to the host's `CLOCK_MONOTONIC`.
///
/// The instant `own` of the stream's clock is the instant `host` of the host's, and from there on the host's clock advances
/// by `rate` / 2^32 ns for each ns of the stream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockMapping {
    /// An instant of the stream's clock, ns.
    pub own: u64,
    /// The same instant of the host's clock, ns.
    pub host: u64,
    /// ns of the host's clock for each ns of the stream's, in units of 2^-32: [`ClockMapping::EQUAL`] if both run
    /// equally fast.
    pub rate: u64,
    /// By how much a time may be wrong, ns.
    pub error: u64,
}

impl ClockMapping {
    /// The rate of two clocks that run equally fast.
    pub const EQUAL: u64 = 1 << 32;

    /// The host's own clock.
    pub const IDENTITY: ClockMapping = ClockMapping { own: 0, host: 0, rate: ClockMapping::EQUAL, error: 0 };

    /// The time of the host at an instant of the stream's clock, ns. Saturates.
    pub fn to_host(&self, own: u64) -> u64 {
        let scale =
            |ns: u64| u64::try_from((u128::from(ns) * u128::from(self.rate)) >> 32).unwrap_or(u64::MAX);
        match own.checked_sub(self.own) {
            Some(later) => self.host.saturating_add(scale(later)),
            None => self.host.saturating_sub(scale(self.own - own)),
        }
    }
}

/// Something that changes while a trace runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When, ns of the host's `CLOCK_MONOTONIC`: events from this instant on are to be understood with it.
    pub ts: u64,
    /// What.
    pub what: Changed,
}

/// What changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// A VM as it is now: it has come, or it has other taps or vCPUs than before. A VM is known by its process id, from
    /// when it comes until it ends.
    Vm(Box<Vm>),
    /// The process of a VM has ended. Its id, and the numbers of its taps, may be those of others from now on.
    Ended {
        /// The VMM's process id.
        pid: u32,
    },
    /// The clock of a guest's stream, measured: its events from now on are mapped so. The first one begins the stream.
    Clock {
        /// The stream.
        stream: StreamId,
        /// The process id of the guest's VMM.
        vm: u32,
        /// The clock.
        mapping: ClockMapping,
    },
    /// A VM has been given these NICs of the host, and no others: [`Vm::given`], which is not part of `Vm` here.
    Given {
        /// The VMM's process id.
        pid: u32,
        /// The NICs.
        nics: Vec<GivenNic>,
    },
}

/// What a trace or an observation is made of: a recording holds these, in the order in which they came. A trace has no samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An event.
    Event(Event),
    /// A change.
    Change(Change),
    /// Whose counters the following samples have.
    Observed(ObservedVms),
    /// Counters at an instant.
    Sample(Box<Sample>),
}

impl Item {
    /// The event, if it is one.
    pub fn event(&self) -> Option<&Event> {
        match self {
            Item::Event(event) => Some(event),
            Item::Change(_) | Item::Observed(_) | Item::Sample(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_mapped_in_both_directions_and_saturate() {
        let rate = ClockMapping::EQUAL + (ClockMapping::EQUAL / 1_000_000) * 50; // 50 ppm faster
        let map = ClockMapping { own: 1_000, host: 5_000_000_000, rate, error: 7 };
        assert_eq!(map.to_host(1_000), 5_000_000_000);
        assert!(map.to_host(1_000_001_000).abs_diff(6_000_050_000) <= 1_000);
        assert_eq!(map.to_host(0), 4_999_999_000);
        assert_eq!(map.to_host(u64::MAX), u64::MAX);
        let early = ClockMapping { own: u64::MAX, host: 5, rate, error: 0 };
        assert_eq!((early.to_host(0), early.to_host(u64::MAX)), (0, 5));
        assert_eq!(ClockMapping::IDENTITY.to_host(u64::MAX), u64::MAX);
    }
}
