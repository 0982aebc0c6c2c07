//! Keys of requests that were seen not long ago, and who sends their requests.

use crate::hash::Seeded;
use std::hash::BuildHasher;

/// Keys of all VMs remembered at once.
pub(super) const MAX_RECENT: usize = 1 << 16;

/// What is remembered of a key.
#[derive(Clone, Copy, Default)]
pub(super) struct Recent {
    tag: u64,
    until: u64,
    /// True: its requests come from outside; false: the guest sends them.
    pub(super) from_outside: bool,
}

/// Indexed by hash; a later key overwrites an earlier one. Empty until there is a first one.
#[derive(Clone)]
pub(super) struct RecentKeys {
    hasher: Seeded,
    /// How long a key is remembered, ns.
    ttl: u64,
    /// How many are remembered at once; a power of two.
    cap: usize,
    all: Vec<Recent>,
}

impl RecentKeys {
    pub(super) fn new(hasher: Seeded, ttl: u64, cap: usize) -> Self {
        RecentKeys { hasher, ttl, cap, all: Vec::new() }
    }

    pub(super) fn recall(&self, now: u64, vm: u32, key: u64) -> Option<Recent> {
        let tag = self.hasher.hash_one((vm, key));
        let recent = *self.all.get(tag as usize % self.cap)?;
        (recent.tag == tag && recent.until > now).then_some(recent)
    }

    pub(super) fn remember(&mut self, now: u64, vm: u32, key: u64, from_outside: bool) {
        let tag = self.hasher.hash_one((vm, key));
        self.all.resize(self.cap, Recent::default());
        self.all[tag as usize % self.cap] = Recent { tag, until: now.saturating_add(self.ttl), from_outside };
    }
}
