//! Requests that end without a response, and the reason for it.

use super::{Open, RequestTable};
use crate::join::{Common, Exclusion, STUCK, Validity};
use teiji_model::report::{Outcome, Reason};

impl RequestTable {
    /// A request ends without a response. `exclusion` is the reason, unless a drop is known; without it
    /// `open.reason_if_last` is.
    pub(super) fn unanswered(&mut self, open: Open, exclusion: Option<Exclusion>, c: &mut Common) {
        self.forget_copies(&open);
        if open.indexed {
            self.index.remove(&(open.vm, open.matching.key));
        }
        let known = exclusion
            .filter(|_| open.reason_if_last.drop == 0)
            .unwrap_or(c.unless_ended(open.reason_if_last, open.last));
        let (outcome, exclusion) = match (open.validity, open.indexed) {
            (Validity::Ambiguous(exclusion), _) => (Outcome::Ambiguous, exclusion),
            (_, true) if known.drop > 0 => (Outcome::Incomplete, known),
            (_, true) => {
                // The guest did receive it, at whatever time.
                let arrived = known.reason == Reason::ArrivalUnknown;
                let known = if arrived { Reason::NoAnswer.into() } else { known };
                (
                    Outcome::Unanswered,
                    known.unless_lost(open.start, open.last.saturating_add(self.ttl), &c.lost),
                )
            }
            (Validity::Incomplete(exclusion), false) => (
                Outcome::Incomplete,
                exclusion.unless_lost(open.start, open.last.saturating_add(STUCK), &c.lost),
            ),
            (Validity::Valid, false) => (Outcome::Incomplete, known),
        };
        c.vm_stats[open.vm as usize].leave_out(outcome, exclusion);
        self.groups.broken(&open, c);
    }

    pub(in crate::join) fn expire(&mut self, now: u64, c: &mut Common) {
        let Some(then) = now.checked_sub(self.ttl) else { return };
        while let Some(open) = self.open.pop_until(then) {
            self.unanswered(open, None, c);
        }
        self.outgoing.expire(now, c);
    }

    pub(in crate::join) fn finish(&mut self, c: &mut Common) {
        while let Some(open) = self.open.pop_oldest() {
            self.unanswered(open, None, c);
        }
        self.outgoing.finish(c);
        self.groups.finish(c);
    }
}
