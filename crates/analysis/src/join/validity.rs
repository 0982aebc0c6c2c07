//! Whether packets and requests can be used for figures, and if not, why.

use crate::hash::{Map, Seeded};
use crate::lost::LostWindows;
use teiji_model::event::Dropped;
use teiji_model::report::Reason;

/// How many combinations of place, reason and device of drops are told apart.
const MAX_DROPS: usize = 1024;
/// The number that all further combinations share.
pub(crate) const OTHER_DROPS: u16 = 1;

/// Why a packet or request cannot be used for figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Exclusion {
    pub(crate) reason: Reason,
    /// Number of the drop in [`DropSites`], 0 if there is none.
    pub(crate) drop: u16,
}

impl From<Reason> for Exclusion {
    fn from(reason: Reason) -> Exclusion {
        Exclusion { reason, drop: 0 }
    }
}

impl Exclusion {
    /// This, unless events that were lost between `from` and `until` explain what was not seen.
    pub(crate) fn unless_lost(self, from: u64, until: u64, lost: &LostWindows) -> Exclusion {
        let unseen = match self.reason {
            Reason::NotTaken
            | Reason::NotSignalled
            | Reason::NoInterrupt
            | Reason::NotEntered
            | Reason::NoAnswer
            | Reason::NotForwarded
            | Reason::NotHandedOver
            | Reason::LargePacket
            | Reason::NotReceived
            | Reason::FewerReports
            | Reason::OtherCopy
            | Reason::SegmentMissing
            | Reason::InterruptUnknown
            | Reason::OutOfOrder => true,
            // These were seen, are certain by themselves, or are due to lack of room.
            Reason::DroppedIn
            | Reason::DroppedOut
            | Reason::ArrivalUnknown
            | Reason::NotLearnt
            | Reason::Alike
            | Reason::SameKey
            | Reason::Interleaved
            | Reason::Closed
            | Reason::TooManyTaps
            | Reason::EventsLost
            | Reason::ReportMissing
            | Reason::Evicted
            | Reason::TraceEnded => false,
        };
        if unseen && lost.touches(from, until) { Reason::EventsLost.into() } else { self }
    }
}

/// Whether a packet or request can be used for figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Validity {
    /// It can: nothing is wrong with it.
    #[default]
    Valid,
    /// A point is missing.
    Incomplete(Exclusion),
    /// An identical one was in flight at the same time.
    Ambiguous(Exclusion),
}

impl Validity {
    pub(crate) fn incomplete(reason: Reason) -> Validity {
        Validity::Incomplete(reason.into())
    }

    pub(crate) fn ambiguous(reason: Reason) -> Validity {
        Validity::Ambiguous(reason.into())
    }

    pub(crate) fn is_valid(self) -> bool {
        self == Validity::Valid
    }

    fn severity(self) -> u8 {
        match self {
            Validity::Valid => 0,
            Validity::Incomplete(_) => 1,
            Validity::Ambiguous(_) => 2,
        }
    }

    /// The worse of two; if they are equally bad `self`, which happened first.
    pub(crate) fn worse(self, other: Validity) -> Validity {
        if other.severity() > self.severity() { other } else { self }
    }
}

/// Where and why the kernel dropped packets. Each combination has a number, so that a packet stores only the number.
#[derive(Clone)]
pub(crate) struct DropSites {
    numbers: Map<([u8; 32], u32, u32), u16>,
    /// Place, reason, device. Number 0 stands for no drop, number 1 ([`OTHER_DROPS`]) for those that are not told apart.
    all: Vec<([u8; 32], u32, u32)>,
}

impl DropSites {
    pub(crate) fn new(hasher: Seeded) -> DropSites {
        DropSites { numbers: Map::with_hasher(hasher), all: vec![([0; 32], 0, 0); 2] }
    }

    pub(crate) fn number(&mut self, d: &Dropped) -> u16 {
        let key = (d.location, d.why, d.ifindex);
        if let Some(n) = self.numbers.get(&key) {
            return *n;
        }
        if self.all.len() >= MAX_DROPS {
            return OTHER_DROPS;
        }
        let n = self.all.len() as u16;
        self.all.push(key);
        self.numbers.insert(key, n);
        n
    }

    /// Place, reason and device of a number.
    pub(crate) fn get(&self, number: u16) -> Option<&([u8; 32], u32, u32)> {
        self.all.get(usize::from(number)).filter(|_| number > 0)
    }
}
