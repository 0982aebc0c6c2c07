//! Groups of requests: SIP calls.
//!
//! ```text
//!         request with GroupRole::Begins        request with GroupRole::Ends is complete
//!  (nothing) ────────────────────────► [going on] ─────────────────────────────────────► complete
//!                                       │    ▲ │ one of its requests is not complete
//!                                       └────┘ └───────────────────────────────────────► incomplete
//!                            request complete: the pause before it was spent outside
//! ```
//!
//! A group whose beginning was not seen does not count. A group may last for any time; at most [`MAX_GROUPS`] are
//! followed.

use super::Common;
use super::request::Open;
use crate::expiring::ExpiringMap;
use crate::hash::Seeded;
use teiji_model::event::{GroupRole, Match};

/// Groups followed at once.
const MAX_GROUPS: usize = 1 << 16;

#[derive(Clone)]
struct Group {
    /// When its first request was received.
    start: u64,
    /// When its last response left.
    last: u64,
    /// Time outside the host so far.
    outside: u64,
    /// Requests that have no response yet.
    open: u32,
    broken: bool,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Groups {
    table: ExpiringMap<(u32, u64), Group>,
}

impl Groups {
    pub(super) fn new(hasher: Seeded) -> Self {
        Groups { table: ExpiringMap::new(MAX_GROUPS, hasher) }
    }

    /// A request has come, received at `start`. Returns whether it belongs to a group that is followed.
    pub(super) fn begin(&mut self, now: u64, vm: u32, m: &Match, start: u64, c: &mut Common) -> bool {
        if m.group == 0 {
            return false;
        }
        let key = (vm, m.group);
        if let Some(group) = self.table.get_mut(&key) {
            group.open += 1;
            self.table.touch(&key, now);
            return true;
        }
        if m.group_role != GroupRole::Begins {
            return false;
        }
        let group = Group { start, last: 0, outside: 0, open: 1, broken: false };
        if let Some(((vm, _), _)) = self.table.insert(key, group, now) {
            c.evicted += 1;
            c.vm_stats[vm as usize].groups_broken += 1;
        }
        true
    }

    /// A request of a group is complete.
    pub(super) fn completed(&mut self, open: &Open, start: u64, end: u64, c: &mut Common) {
        if !open.grouped {
            return;
        }
        let key = (open.vm, open.matching.group);
        let Some(group) = self.table.get_mut(&key) else { return };
        group.open = group.open.saturating_sub(1);
        if group.last != 0 {
            group.outside += start.saturating_sub(group.last);
        }
        group.last = group.last.max(end);
        if open.matching.group_role == GroupRole::Ends {
            let stats = &mut c.vm_stats[open.vm as usize];
            if group.broken || group.open > 0 {
                stats.groups_broken += 1;
            } else {
                stats.group(group.last.saturating_sub(group.start), group.outside);
            }
            self.table.remove(&key);
        }
    }

    /// A request of a group has ended and is not complete.
    pub(super) fn broken(&mut self, open: &Open, c: &mut Common) {
        if !open.grouped {
            return;
        }
        let key = (open.vm, open.matching.group);
        let Some(group) = self.table.get_mut(&key) else { return };
        group.open = group.open.saturating_sub(1);
        group.broken = true;
        if open.matching.group_role == GroupRole::Ends {
            c.vm_stats[open.vm as usize].groups_broken += 1;
            self.table.remove(&key);
        }
    }

    pub(super) fn finish(&mut self, c: &mut Common) {
        while let Some(((vm, _), _)) = self.table.pop_oldest() {
            c.vm_stats[vm as usize].groups_broken += 1;
        }
    }
}
