//! Whether packets and requests can be used for figures, and if not, why.

use crate::hash::{Map, Seeded};
use teiji_model::event::Dropped;
use teiji_model::report::Reason;

/// How many combinations of place, reason and device of drops are told apart.
const MAX_DROPS: usize = 1024;
/// The number that all further combinations share.
pub(crate) const MANY: u16 = 1;

/// Why a packet or request cannot be used for figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cause {
    pub(crate) reason: Reason,
    /// Number of the drop in [`Drops`], 0 if there is none.
    pub(crate) drop: u16,
}

impl From<Reason> for Cause {
    fn from(reason: Reason) -> Cause {
        Cause { reason, drop: 0 }
    }
}

/// Whether a packet or request can be used for figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It can: nothing is wrong with it.
    #[default]
    Sound,
    /// A point is missing.
    Hole(Cause),
    /// An identical one was in flight at the same time.
    Ambiguous(Cause),
}

impl Fate {
    pub(crate) fn hole(reason: Reason) -> Fate {
        Fate::Hole(reason.into())
    }

    pub(crate) fn ambiguous(reason: Reason) -> Fate {
        Fate::Ambiguous(reason.into())
    }

    pub(crate) fn sound(self) -> bool {
        self == Fate::Sound
    }

    fn gravity(self) -> u8 {
        match self {
            Fate::Sound => 0,
            Fate::Hole(_) => 1,
            Fate::Ambiguous(_) => 2,
        }
    }

    /// The worse of two; if they are equally bad `self`, which happened first.
    pub(crate) fn or(self, other: Fate) -> Fate {
        if other.gravity() > self.gravity() { other } else { self }
    }
}

/// Where and why the kernel dropped packets. Each combination has a number, so that a packet stores only the number.
pub(crate) struct Drops {
    numbers: Map<([u8; 32], u32, u32), u16>,
    /// Place, reason, device. Number 0 stands for no drop, number 1 ([`MANY`]) for those that are not told apart.
    all: Vec<([u8; 32], u32, u32)>,
}

impl Drops {
    pub(crate) fn new(hasher: Seeded) -> Drops {
        Drops { numbers: Map::with_hasher(hasher), all: vec![([0; 32], 0, 0); 2] }
    }

    pub(crate) fn number(&mut self, d: &Dropped) -> u16 {
        let key = (d.place, d.why, d.ifindex);
        if let Some(n) = self.numbers.get(&key) {
            return *n;
        }
        if self.all.len() >= MAX_DROPS {
            return MANY;
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
