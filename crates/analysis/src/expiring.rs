//! Bounded stores that remove the oldest entries.
//!
//! [`ExpiringSlab`] is a slab whose entries are also in a list, ordered by the time when they were last touched. Inserting,
//! touching, removing and taking the oldest are O(1) and allocate only while the slab grows. [`ExpiringMap`] adds an index by
//! key. An [`EntryId`] of a removed entry finds nothing: each slot counts its generations.

use crate::hash::{Map, Seeded, make_room};
use std::hash::Hash;

const NONE: u32 = u32::MAX;

/// Identifies an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId {
    slot: u32,
    generation: u32,
}

#[derive(Clone)]
struct Slot<V> {
    generation: u32,
    prev: u32,
    next: u32,
    touched: u64,
    value: Option<V>,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct ExpiringSlab<V> {
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    len: usize,
    cap: usize,
}

impl<V> ExpiringSlab<V> {
    /// A store of up to `cap` entries.
    pub(crate) fn new(cap: usize) -> Self {
        ExpiringSlab { slots: Vec::new(), free: Vec::new(), oldest: NONE, newest: NONE, len: 0, cap }
    }

    /// Whether [`ExpiringSlab::pop_oldest`] must be called before the next insertion.
    pub(crate) fn full(&self) -> bool {
        self.len >= self.cap
    }

    /// Adds an entry. The caller has made room for it.
    pub(crate) fn insert(&mut self, value: V, now: u64) -> EntryId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, prev: NONE, next: NONE, touched: 0, value: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        slot.touched = now;
        let id = EntryId { slot: index, generation: slot.generation };
        self.link_newest(index);
        self.len += 1;
        id
    }

    pub(crate) fn get(&self, id: EntryId) -> Option<&V> {
        self.slots.get(id.slot as usize).filter(|s| s.generation == id.generation)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: EntryId) -> Option<&mut V> {
        self.slots.get_mut(id.slot as usize).filter(|s| s.generation == id.generation)?.value.as_mut()
    }

    /// Makes an entry the newest.
    pub(crate) fn touch(&mut self, id: EntryId, now: u64) {
        if self.get(id).is_some() {
            self.unlink(id.slot);
            self.slots[id.slot as usize].touched = now;
            self.link_newest(id.slot);
        }
    }

    pub(crate) fn remove(&mut self, id: EntryId) -> Option<V> {
        self.get(id)?;
        self.unlink(id.slot);
        self.len -= 1;
        self.free.push(id.slot);
        let slot = &mut self.slots[id.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value.take()
    }

    /// Removes the entry that has not been touched for the longest time.
    pub(crate) fn pop_oldest(&mut self) -> Option<V> {
        let slot = self.slots.get(self.oldest as usize)?;
        self.remove(EntryId { slot: self.oldest, generation: slot.generation })
    }

    /// Removes an entry that was last touched at or before `then`, oldest first; `None` if there is none.
    pub(crate) fn pop_until(&mut self, then: u64) -> Option<V> {
        let slot = self.slots.get(self.oldest as usize)?;
        if slot.touched <= then { self.pop_oldest() } else { None }
    }

    fn link_newest(&mut self, index: u32) {
        let before = self.newest;
        self.slots[index as usize].prev = before;
        self.slots[index as usize].next = NONE;
        match self.slots.get_mut(before as usize) {
            Some(s) => s.next = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }

    fn unlink(&mut self, index: u32) {
        let Slot { prev, next, .. } = self.slots[index as usize];
        match self.slots.get_mut(prev as usize) {
            Some(s) => s.next = next,
            None => self.oldest = next,
        }
        match self.slots.get_mut(next as usize) {
            Some(s) => s.prev = prev,
            None => self.newest = prev,
        }
    }
}

/// An [`ExpiringSlab`] store with an index by key.
#[derive(Clone)]
pub(crate) struct ExpiringMap<K, V> {
    index: Map<K, EntryId>,
    store: ExpiringSlab<(K, V)>,
}

impl<K: Hash + Eq + Copy, V> ExpiringMap<K, V> {
    pub(crate) fn new(cap: usize, hasher: Seeded) -> Self {
        ExpiringMap { index: Map::with_hasher(hasher), store: ExpiringSlab::new(cap) }
    }

    /// Adds an entry; returns the entry that was removed for it: the previous one with the same key, or the oldest.
    pub(crate) fn insert(&mut self, key: K, value: V, now: u64) -> Option<(K, V)> {
        let mut gone = self.remove(&key).map(|v| (key, v));
        if self.store.full() {
            gone = self.pop_oldest();
        }
        make_room(&mut self.index, self.store.cap);
        let id = self.store.insert((key, value), now);
        self.index.insert(key, id);
        gone
    }

    pub(crate) fn id(&self, key: &K) -> Option<EntryId> {
        self.index.get(key).copied()
    }

    pub(crate) fn by_id(&mut self, id: EntryId) -> Option<&mut (K, V)> {
        self.store.get_mut(id)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let id = *self.index.get(key)?;
        self.store.get(id).map(|(_, v)| v)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let id = *self.index.get(key)?;
        self.store.get_mut(id).map(|(_, v)| v)
    }

    pub(crate) fn touch(&mut self, key: &K, now: u64) {
        if let Some(id) = self.index.get(key) {
            self.store.touch(*id, now);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let id = self.index.remove(key)?;
        self.store.remove(id).map(|(_, v)| v)
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<(K, V)> {
        let (k, v) = self.store.pop_oldest()?;
        self.index.remove(&k);
        Some((k, v))
    }

    pub(crate) fn pop_until(&mut self, then: u64) -> Option<(K, V)> {
        let (k, v) = self.store.pop_until(then)?;
        self.index.remove(&k);
        Some((k, v))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_do_not_find_successors() {
        let mut a = ExpiringSlab::new(4);
        let one = a.insert(1, 0);
        assert_eq!(a.remove(one), Some(1));
        let two = a.insert(2, 0);
        assert_eq!(a.get(one), None);
        assert_eq!(a.get(two), Some(&2));
    }

    /// However many entries come and go, the index needs no more room than when it was full for the first time.
    #[test]
    fn a_full_index_does_not_grow() {
        const CAP: u64 = 1 << 10;
        let mut t = ExpiringMap::new(CAP as usize, Seeded::new(1));
        let mut full = 0;
        for k in 0..CAP * 1000 {
            t.insert(k, (), k);
            if k == CAP {
                full = t.index.capacity();
            }
            assert!(
                k <= CAP || t.index.capacity() <= full,
                "{full} after {CAP}, {} after {k}",
                t.index.capacity()
            );
        }
        assert!(t.index.capacity() >= CAP as usize && t.get(&(CAP * 999)).is_some());
    }

    #[test]
    fn the_untouched_go_first() {
        let mut t = ExpiringMap::new(3, Seeded::new(1));
        for k in 0..3u64 {
            assert!(t.insert(k, k * 10, k).is_none());
        }
        t.touch(&0, 5);
        assert_eq!(t.insert(3, 30, 6), Some((1, 10)));
        assert_eq!(t.pop_until(1), None);
        assert_eq!(t.pop_until(2), Some((2, 20)));
        assert_eq!(t.remove(&3), Some(30));
        assert_eq!(t.pop_oldest(), Some((0, 0)));
        assert_eq!(t.pop_oldest(), None);
        assert!(t.get_mut(&0).is_none());
    }
}
