//! A fast keyed hash for tables whose keys come from guests' packets.
//!
//! Each word is multiplied and the product folded to 64 bits, with a secret from
//! [`Options::seed`](crate::Options::seed): someone who does not know it cannot choose colliding keys. Tables are also
//! bounded, so someone who does know it can only slow their own trace.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

/// A hash map with the secret of the run.
pub(crate) type Map<K, V> = HashMap<K, V, Seeded>;

/// Makes room for one more entry in a map that never has more than `cap`. To be called before each insertion.
///
/// The standard library's map would double its size where it is more than half full and has no place left that was
/// never used: some time, perhaps hours, after it is full for the first time, although it needs no more room. Instead this
/// makes a new map of the same size then.
pub(crate) fn make_room<K: Hash + Eq, V>(map: &mut Map<K, V>, cap: usize) {
    if map.len() < map.capacity() {
        return;
    }
    let wanted = (2 * map.len()).min(cap).max(map.len() + 1);
    let mut roomy = Map::with_capacity_and_hasher(wanted, *map.hasher());
    roomy.extend(map.drain());
    *map = roomy;
}

/// Makes hashers with the secret of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeded {
    a: u64,
    b: u64,
}

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        let a = fold(seed ^ 0x243f_6a88_85a3_08d3, 0x9e37_79b9_7f4a_7c15);
        Seeded { a, b: fold(a ^ 0x1319_8a2e_0370_7344, 0xbf58_476d_1ce4_e5b9) | 1 }
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mix;

    fn build_hasher(&self) -> Mix {
        Mix { state: self.a, b: self.b }
    }
}

/// See the module.
pub(crate) struct Mix {
    state: u64,
    b: u64,
}

fn fold(x: u64, y: u64) -> u64 {
    let wide = u128::from(x) * u128::from(y);
    wide as u64 ^ (wide >> 64) as u64
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ ((bytes.len() as u64) << 56));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.state = fold(self.state ^ word, self.b).wrapping_add(self.b);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
}

/// The 64-bit hash of some bytes under `key`. Not a cryptographic hash: it only keeps payload out of recordings and
/// distinguishes keys.
pub(crate) fn bytes(key: u64, parts: &[&[u8]]) -> u64 {
    let mut hasher = Seeded::new(key).build_hasher();
    for part in parts {
        hasher.write_u64(part.len() as u64);
        hasher.write(part);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_keys_matter() {
        assert_ne!(bytes(1, &[b"ab", b"c"]), bytes(1, &[b"a", b"bc"]));
        assert_ne!(bytes(1, &[b"ab"]), bytes(2, &[b"ab"]));
        assert_ne!(bytes(1, &[b"a"]), bytes(1, &[b"a\0"]));
        assert_eq!(bytes(1, &[b"ab"]), bytes(1, &[b"ab"]));
    }

    #[test]
    fn low_bits_spread() {
        let s = Seeded::new(3);
        let mut seen = std::collections::HashSet::new();
        for i in 0..4096u64 {
            seen.insert(s.hash_one(i << 40) & 0xffff);
        }
        assert!(seen.len() > 3800, "{}", seen.len());
    }
}
