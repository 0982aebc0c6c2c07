//! What is usual for a device: how many times it reports one packet, and how many queues follow it.
//!
//! A probe cannot distinguish a packet that a device reports twice from two identical packets. But a device reports
//! each of its packets equally often. The usual number is the most frequent one so far (of equally frequent ones the
//! smallest). A packet with more reports than usual is two packets; one with fewer has lost some. The first packet of a
//! device defines what is usual.

use crate::hash::{Map, Seeded};
use crate::join::Validity;
use std::cmp::Ordering;
use teiji_model::report::Reason;

/// The greatest number of devices.
const MAX_DEVICES: usize = 4096;
/// All counts of a device are halved when one reaches this number, so that a change of the device is noticed.
const MAX_COUNT: u16 = 1024;

/// See the module.
#[derive(Clone)]
pub(crate) struct LearntCount {
    counts: Map<u64, [u16; 8]>,
}

impl LearntCount {
    pub(crate) fn new(hasher: Seeded) -> Self {
        LearntCount { counts: Map::with_hasher(hasher) }
    }

    /// Records that a packet of `device` had this number of reports or queues.
    pub(crate) fn learn(&mut self, device: u64, n: u16) {
        if self.counts.len() >= MAX_DEVICES && !self.counts.contains_key(&device) {
            return;
        }
        let counts = self.counts.entry(device).or_default();
        let count = &mut counts[usize::from(n.min(7))];
        *count += 1;
        if *count >= MAX_COUNT {
            counts.iter_mut().for_each(|c| *c /= 2);
        }
    }

    /// Compares a packet of `device` that has this number of reports or queues with the usual number.
    pub(crate) fn compare(&self, device: u64, n: u16) -> Validity {
        match self.get(device).map(|learnt| n.min(7).cmp(&learnt)) {
            Some(Ordering::Greater) => Validity::ambiguous(Reason::Alike),
            Some(Ordering::Less) => Validity::incomplete(Reason::FewerReports),
            Some(Ordering::Equal) | None => Validity::Valid,
        }
    }

    /// The usual number; `None` if no packet was recorded.
    pub(crate) fn get(&self, device: u64) -> Option<u16> {
        let counts = self.counts.get(&device)?;
        let mut best = 0;
        for (n, count) in counts.iter().enumerate() {
            if *count > counts[best] {
                best = n;
            }
        }
        Some(best as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commonest_is_usual_and_may_change() {
        let mut u = LearntCount::new(Seeded::new(0));
        assert_eq!(u.get(1), None);
        u.learn(1, 2);
        assert_eq!(u.get(1), Some(2));
        u.learn(1, 1);
        assert_eq!(u.get(1), Some(1));
        for _ in 0..10_000 {
            u.learn(1, 1);
        }
        for _ in 0..2000 {
            u.learn(1, 2);
        }
        assert_eq!(u.get(1), Some(2));
    }
}
