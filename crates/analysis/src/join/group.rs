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
//! followed. Of each message of a call ([`CallMessage`]) the first copy gives the time; further ones are counted.

use super::Common;
use super::request::Open;
use crate::expiring::ExpiringMap;
use crate::hash::Seeded;
use teiji_model::event::{GroupRole, Match, Role};
use teiji_model::report::{Call, CallMessage, CallStep};

/// Groups followed at once.
const MAX_GROUPS: usize = 1 << 16;

#[derive(Clone)]
struct Group {
    /// When its first request was received.
    start: u64,
    /// The key of that request.
    key: u64,
    /// When its last response left.
    last: u64,
    /// Time outside the host so far.
    outside: u64,
    /// Requests that have no response yet.
    open: u32,
    broken: bool,
    /// By [`CallMessage`]: when it passed, ns after `start`, and how many copies did.
    at: [u64; CallMessage::COUNT],
    copies: [u8; CallMessage::COUNT],
}

impl Group {
    /// A message of the group passes.
    fn message(&mut self, now: u64, m: &Match) {
        let of_invite = m.key == self.key;
        let message = match (m.role, m.group_role) {
            (Role::Request, _) if of_invite => CallMessage::Invite,
            (Role::Trying, _) if of_invite => CallMessage::Trying,
            (Role::Provisional, _) if of_invite => CallMessage::Provisional,
            (Role::Final, _) if of_invite => CallMessage::Final,
            (Role::OneWay, _) if of_invite => CallMessage::Ack,
            (Role::Request, GroupRole::Ends) => CallMessage::Bye,
            (Role::Final, GroupRole::Ends) => CallMessage::ByeFinal,
            // Of another request within the call.
            _ => return,
        } as usize;
        if self.copies[message] == 0 {
            self.at[message] = now.saturating_sub(self.start);
        }
        self.copies[message] = self.copies[message].saturating_add(1);
    }

    /// The group as a call that has ended.
    fn call(&self, group: u64) -> Call {
        let steps = CallMessage::ALL.into_iter().zip(self.at).zip(self.copies);
        let step = |((message, at), copies)| (copies > 0).then_some(CallStep { message, at, copies });
        Call {
            group,
            start: self.start,
            total: self.last.saturating_sub(self.start),
            outside: self.outside,
            messages: steps.filter_map(step).collect(),
        }
    }
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
            group.message(start, m);
            self.table.touch(&key, now);
            return true;
        }
        if m.group_role != GroupRole::Begins {
            return false;
        }
        let mut group = Group {
            start,
            key: m.key,
            last: 0,
            outside: 0,
            open: 1,
            broken: false,
            at: [0; CallMessage::COUNT],
            copies: [0; CallMessage::COUNT],
        };
        group.message(start, m);
        if let Some(((vm, _), _)) = self.table.insert(key, group, now) {
            c.evicted += 1;
            c.vm_stats[vm as usize].calls.broken();
        }
        true
    }

    /// A message passes that opens no request: a response, an ACK, a further copy. `now`: see [`teiji_model::call`].
    pub(super) fn message(&mut self, now: u64, vm: u32, m: &Match) {
        if m.group != 0
            && m.segment().is_none()
            && let Some(group) = self.table.get_mut(&(vm, m.group))
        {
            group.message(now, m);
        }
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
                stats.calls.broken();
            } else {
                stats.calls.complete(group.call(key.1));
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
            c.vm_stats[open.vm as usize].calls.broken();
            self.table.remove(&key);
        }
    }

    pub(super) fn finish(&mut self, c: &mut Common) {
        while let Some(((vm, _), _)) = self.table.pop_oldest() {
            c.vm_stats[vm as usize].calls.broken();
        }
    }
}
