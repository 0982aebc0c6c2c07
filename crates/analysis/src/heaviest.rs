//! The keys with the largest sums, in bounded memory, whenever they come.
//!
//! At most [`ROOM`] keys have a sum of their own. When there is no room for another, the median of the sums is subtracted
//! from all of them, and keys with nothing left go (Misra and Gries, Finding repeated elements, 1982, for weights; the
//! median instead of the minimum makes room for half of them at once). So a sum is too small by at most 2 / [`ROOM`] of the
//! sum of all, and no key that has more than that is missing, however late it came.

use crate::hash::{Map, Seeded};
use std::hash::Hash;

/// How many keys have a sum.
pub(crate) const ROOM: usize = 4096;

/// See the module.
#[derive(Clone)]
pub(crate) struct Heaviest<K> {
    sums: Map<K, u64>,
}

impl<K: Copy + Eq + Hash> Heaviest<K> {
    pub(crate) fn new(hasher: Seeded) -> Self {
        Heaviest { sums: Map::with_hasher(hasher) }
    }

    /// Adds to the sum of a key.
    pub(crate) fn add(&mut self, key: K, weight: u64) {
        if let Some(sum) = self.sums.get_mut(&key) {
            *sum = sum.saturating_add(weight);
            return;
        }
        if self.sums.len() == ROOM {
            self.make_room();
        }
        self.sums.insert(key, weight);
    }

    fn make_room(&mut self) {
        let mut sums: Vec<u64> = self.sums.values().copied().collect();
        let (_, median, _) = sums.select_nth_unstable(ROOM / 2);
        let less = *median;
        self.sums.retain(|_, sum| {
            *sum = sum.saturating_sub(less);
            *sum > 0
        });
    }

    /// The keys and their sums, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, u64)> {
        self.sums.iter().map(|(key, sum)| (*key, *sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_key_that_comes_late_is_found_and_no_sum_is_too_large() {
        let mut heaviest = Heaviest::new(Seeded::new(1));
        let n = 40 * ROOM as u64;
        for key in 0..n {
            heaviest.add(key, 10);
        }
        for _ in 0..1000 {
            heaviest.add(u64::MAX, 50);
            heaviest.add(7, 0);
        }
        let all = 10 * n + 50_000;
        let sums: Vec<_> = heaviest.iter().collect();
        assert!(sums.len() <= ROOM);
        let found = sums.iter().find(|(key, _)| *key == u64::MAX).map(|(_, sum)| *sum);
        assert!(found.is_some_and(|sum| sum <= 50_000 && sum + 2 * all / ROOM as u64 >= 50_000), "{found:?}");
        assert!(sums.iter().all(|(key, sum)| *key == u64::MAX || *sum <= 10));
    }

    #[test]
    fn as_long_as_there_is_room_sums_are_exact() {
        let mut heaviest = Heaviest::new(Seeded::new(1));
        for round in 0..3 {
            for key in 0..ROOM as u64 {
                heaviest.add(key, key + round);
            }
        }
        assert!(heaviest.iter().all(|(key, sum)| sum == 3 * key + 3) && heaviest.iter().count() == ROOM);
    }
}
