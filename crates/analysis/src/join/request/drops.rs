//! Requests and responses that the kernel drops.

use super::{CopyId, RequestTable};
use crate::expiring::EntryId;
use crate::join::{Common, Exclusion, Validity};
use teiji_model::event::{Match, Role};
use teiji_model::report::Outcome;

impl RequestTable {
    /// A request's packet was dropped on its way to the guest. A request that may be retransmitted stays open, so that
    /// the response to another copy is recognised.
    pub(in crate::join) fn dropped(
        &mut self,
        now: u64,
        copy: Option<CopyId>,
        exclusion: Exclusion,
        c: &mut Common,
    ) {
        let Some(copy) = copy else { return };
        if !copy.is_first() {
            return self.copy_dropped(copy, exclusion);
        }
        if let Some(open) = self.open.get_mut(copy.request) {
            open.first_dropped = true;
        }
        self.one_dropped(now, copy.request, exclusion, c);
    }

    /// A request's first copy, or its response, was dropped.
    fn one_dropped(&mut self, now: u64, id: EntryId, exclusion: Exclusion, c: &mut Common) {
        let Some(open) = self.open.get_mut(id) else { return };
        (open.last, open.reason_if_last) = (now, exclusion);
        if self.repeats || open.copies > 1 {
            open.validity = open.validity.worse(Validity::Incomplete(exclusion));
            return;
        }
        let key = (open.vm, open.matching.key);
        if open.indexed {
            self.index.remove(&key);
        }
        if open.matching.role == Role::Either {
            self.recent.remember(now, key.0, key.1, true);
        }
        self.close(Some(id), Validity::Incomplete(exclusion), c);
    }

    /// A packet for `vm`, received at `start`, was dropped before it came to a tap.
    pub(in crate::join) fn dropped_before(
        &mut self,
        now: u64,
        vm: u32,
        matching: Option<&Match>,
        start: u64,
        exclusion: Exclusion,
        c: &mut Common,
    ) {
        let part = self.part_of_packet(now, vm, matching, true, Validity::Incomplete(exclusion), c);
        let matching = part.as_ref().map(|(m, _)| m);
        let answered = self.answer_outgoing(now, vm, matching, Validity::Incomplete(exclusion), c);
        if answered.is_some() {
            return self.outgoing.end(answered, c);
        }
        if self.repeats {
            let id = self.open(now, vm, matching, start, Validity::Incomplete(exclusion), c);
            return self.dropped(now, id, exclusion, c);
        }
        let Some(m) = matching.filter(|m| matches!(m.role, Role::Request | Role::Either)) else { return };
        let recent = self.recent.recall(now, vm, m.key);
        if m.role == Role::Either {
            if recent.is_some_and(|r| !r.from_outside) {
                return; // The response to a request of the guest's own.
            }
            self.recent.remember(now, vm, m.key, true);
        }
        let stats = &mut c.vm_stats[vm as usize];
        stats.requests.seen += 1;
        stats.leave_out(Outcome::Incomplete, exclusion);
    }

    /// A packet was dropped before the host stack received it. Returns whether it was a response.
    pub(in crate::join) fn answer_dropped(
        &mut self,
        now: u64,
        vm: u32,
        matching: Option<&Match>,
        exclusion: Exclusion,
        c: &mut Common,
    ) -> bool {
        let part = self.part_of_packet(now, vm, matching, false, Validity::Valid, c);
        let Some((m, _)) = part.filter(|(m, _)| matches!(m.role, Role::Final | Role::Either)) else {
            return false;
        };
        let Some(id) = self.index.get(&(vm, m.key)).copied() else { return false };
        if let Some(open) = self.open.get_mut(id) {
            open.response_dropped = true;
        }
        self.one_dropped(now, id, exclusion, c);
        true
    }
}
