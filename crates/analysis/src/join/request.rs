//! Requests and their responses.
//!
//! ```text
//!           request at TapEnqueue         response at TapSend          response is quiet
//!  (nothing) ──────────────────► [open] ────────────────────► [answered] ───────────────► complete
//!      ▲                           │ a request of the same key     │ a point is missing ──► incomplete
//!      │ all of them answered      ▼                               │ another like it ─────► ambiguous
//!      └─────────────────── [ambiguous]                            ▼
//!         open or ambiguous for the time allowed: unanswered, or ambiguous
//! ```
//!
//! The key is looked up within one VM. Requests that the guest itself sends, and the responses to them, are ignored.
//!
//! Where a request cannot be told from a response ([`Role::Either`]), the first packet of a key decides which
//! direction its requests have. That holds until no packet of the key was seen for the time allowed, so that a lost
//! event does not swap the two. A trace that begins between a guest's own request and its response may decide wrongly;
//! a filter with `dst port` prevents that.
//!
//! In SIP a key identifies a transaction: a further copy of a request is a retransmission (RFC 3261, 17.1), and the
//! response to any copy answers all. A query of DNS is repeated in the same way, with its id. The first
//! copy is followed, up to the first response; if it does not reach the guest, the request is incomplete. Which segments of
//! TCP are requests, copies and responses, [`Connections`] says. An answered key is remembered for the time allowed, so that a later
//! retransmission is not taken for a new request.

mod drops;
mod segments;

use super::connections::Connections;
use super::delivery::InboundPacket;
use super::group::Groups;
use super::inside::{Division, InsideTable, Stay};
use super::outbound::OutboundPacket;
use super::{Common, Exclusion, STUCK, Sink, Validity, waterfall};
use crate::expiring::{EntryId, ExpiringSlab};
use crate::hash::{Map, Seeded};
use std::hash::BuildHasher;
use teiji_model::event::{Kick, Match, Packet, Role, VcpuState};
use teiji_model::report::{Joined, Outcome, Reason};
use teiji_model::stage::Split;

/// Requests open at once.
const MAX_OPEN: usize = 1 << 16;
/// Keys remembered after they were answered; a power of two.
const MAX_RECENT: usize = 1 << 16;

/// A request.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) vm: u32,
    pub(super) matching: Match,
    pub(super) validity: Validity,
    start: u64,
    /// When its packet was last seen, and why it is incomplete or unanswered if nothing more is seen.
    last: u64,
    reason_if_last: Exclusion,
    /// It was sent again.
    sent_again: bool,
    /// How many requests, and how many responses, of this key were seen.
    copies: u32,
    answers: u32,
    /// Whether it is still found by its key.
    indexed: bool,
    /// Whether its group counts it.
    pub(super) grouped: bool,
    /// Its packet, once that is no longer followed.
    pub(super) inbound: Option<InboundPacket>,
    pub(super) answered_by: Role,
    /// The kick of its response, if it has one of its own.
    pub(super) kick: Option<(u64, Kick)>,
    /// The worker's clock when the response was sent.
    pub(super) worker: Option<Split>,
    pub(super) preempted_by: u32,
    /// Of its response.
    response: u64,
}

/// What is remembered of a key.
#[derive(Clone, Copy, Default)]
struct Recent {
    tag: u64,
    until: u64,
    /// True: its requests come from outside; false: the guest sends them.
    from_outside: bool,
}

/// See the module.
#[derive(Clone)]
pub(super) struct RequestTable {
    hasher: Seeded,
    ttl: u64,
    /// [`Matching::repeats`](teiji_model::flow::Matching::repeats).
    repeats: bool,
    index: Map<(u32, u64), EntryId>,
    open: ExpiringSlab<Open>,
    /// Indexed by hash; a later key overwrites an earlier one. Empty until there is a first one.
    recent: Vec<Recent>,
    groups: Groups,
    connections: Connections,
    pub(super) inside: InsideTable,
    /// Reused for each complete request.
    joined: Joined,
}

impl RequestTable {
    pub(super) fn new(hasher: Seeded, ttl: u64, repeats: bool) -> Self {
        RequestTable {
            hasher,
            ttl,
            repeats,
            index: Map::with_hasher(hasher),
            open: ExpiringSlab::new(MAX_OPEN),
            recent: Vec::new(),
            groups: Groups::new(hasher),
            connections: Connections::new(hasher),
            inside: InsideTable::new(hasher),
            joined: waterfall::empty(),
        }
    }

    fn recall(&self, now: u64, vm: u32, key: u64) -> Option<Recent> {
        let tag = self.hasher.hash_one((vm, key));
        let recent = *self.recent.get(tag as usize % MAX_RECENT)?;
        (recent.tag == tag && recent.until > now).then_some(recent)
    }

    fn remember(&mut self, now: u64, vm: u32, key: u64, from_outside: bool) {
        let tag = self.hasher.hash_one((vm, key));
        self.recent.resize(MAX_RECENT, Recent::default());
        self.recent[tag as usize % MAX_RECENT] =
            Recent { tag, until: now.saturating_add(self.ttl), from_outside };
    }

    /// A packet that was received at `start` has reached a tap. Returns the request that it opens.
    pub(super) fn open(
        &mut self,
        now: u64,
        vm: u32,
        matching: Option<&Match>,
        start: u64,
        validity: Validity,
        c: &mut Common,
    ) -> Option<EntryId> {
        let (m, validity) = self.of_client(now, vm, matching?, validity, c)?;
        let recent = self.recall(now, vm, m.key);
        if m.role == Role::Either && recent.is_some_and(|r| !r.from_outside) {
            return None; // The response to a request that the guest itself sent.
        }
        let counts = &mut c.vm_stats[vm as usize].requests;
        if self.repeats && (recent.is_some() || self.index.contains_key(&(vm, m.key))) {
            counts.retransmitted += 1;
            if let Some(open) = self.index.get(&(vm, m.key)).and_then(|id| self.open.get_mut(*id)) {
                open.sent_again = true;
            }
            return None;
        }
        counts.seen += 1;
        if let Some(id) = self.index.get(&(vm, m.key)).copied() {
            c.vm_stats[vm as usize].leave_out(Outcome::Ambiguous, Reason::SameKey.into());
            if let Some(open) = self.open.get_mut(id) {
                open.validity = open.validity.worse(Validity::ambiguous(Reason::SameKey));
                open.copies = open.copies.saturating_add(1);
            }
            self.open.touch(id, now);
            return None;
        }
        if self.open.full()
            && let Some(open) = self.open.pop_oldest()
        {
            c.evicted += 1;
            self.unanswered(open, Some(Reason::Evicted.into()), c);
        }
        let grouped = self.groups.begin(now, vm, &m, start, c);
        let open = Open {
            vm,
            matching: m,
            validity,
            start,
            last: now,
            reason_if_last: Reason::NotTaken.into(),
            sent_again: false,
            copies: 1,
            answers: 0,
            indexed: true,
            grouped,
            inbound: None,
            answered_by: Role::Final,
            kick: None,
            worker: None,
            preempted_by: 0,
            response: 0,
        };
        let id = self.open.insert(open, now);
        self.index.insert((vm, m.key), id);
        Some(id)
    }

    /// Makes a request's validity at least as bad as `validity`.
    pub(super) fn mark(&mut self, request: Option<EntryId>, validity: Validity) {
        if let Some(open) = request.and_then(|id| self.open.get_mut(id)) {
            open.validity = open.validity.worse(validity);
        }
    }

    /// A request's packet was seen at a point; `next` is the reason if it is not seen at the next point.
    pub(super) fn progress(&mut self, request: Option<EntryId>, now: u64, next: Reason) {
        if let Some(open) = request.and_then(|id| self.open.get_mut(id)) {
            (open.last, open.reason_if_last) = (now, next.into());
        }
    }

    /// A packet to the guest is no longer followed.
    pub(super) fn arrived(&mut self, packet: InboundPacket) {
        if let Some(open) = packet.request.and_then(|id| self.open.get_mut(id)) {
            open.validity = open.validity.worse(packet.validity);
            open.reason_if_last = packet.stop.unwrap_or(Reason::NoAnswer.into());
            open.last = open.last.max(packet.entered);
            open.inbound = Some(packet);
        }
    }

    /// A guest's frame reaches the host stack. Returns the request that it answers; the caller has to close or complete
    /// it.
    pub(super) fn answer(
        &mut self,
        now: u64,
        vm: u32,
        p: &Packet,
        kick: Option<(u64, Kick)>,
        c: &mut Common,
    ) -> Option<EntryId> {
        let (m, validity) = self.of_guest(now, vm, p.matching.as_ref()?, c)?;
        let Some(id) = self.index.get(&(vm, m.key)).copied() else {
            // A request that the guest itself sends, a repeated response, or one to a request that was not seen.
            let recent = self.recall(now, vm, m.key);
            let from_outside = m.role == Role::Final || recent.is_some_and(|r| r.from_outside);
            if m.role == Role::Either || self.repeats {
                self.remember(now, vm, m.key, from_outside);
            }
            return None;
        };
        let open = self.open.get_mut(id)?;
        open.validity = open.validity.worse(validity);
        open.answers = open.answers.saturating_add(1);
        let all = open.answers >= open.copies;
        if open.copies > 1 && !all {
            self.open.touch(id, now);
            return None;
        }
        open.indexed = false;
        open.last = now;
        open.answered_by = m.role;
        open.worker = p.worker;
        open.preempted_by = p.preempted_by;
        open.response = p.fingerprint;
        let entered = open.inbound.as_ref().map_or(u64::MAX, |packet| packet.entered);
        open.kick = kick.filter(|(ts, _)| *ts >= entered);
        let ambiguous = open.copies > 1;
        self.index.remove(&(vm, m.key));
        // It must not expire before its response has left.
        self.open.touch(id, now);
        if m.role == Role::Either || self.repeats {
            self.remember(now, vm, m.key, true);
        }
        if ambiguous {
            self.close(Some(id), Validity::ambiguous(Reason::SameKey), c);
            return None;
        }
        Some(id)
    }

    /// Closes a request that has a response but cannot be completed.
    pub(super) fn close(&mut self, request: Option<EntryId>, validity: Validity, c: &mut Common) {
        let Some(open) = request.and_then(|id| self.open.remove(id)) else { return };
        let (outcome, exclusion) = match open.validity.worse(validity) {
            Validity::Ambiguous(exclusion) => (Outcome::Ambiguous, exclusion),
            Validity::Incomplete(exclusion) => (Outcome::Incomplete, lost_or(exclusion, &open, STUCK, c)),
            // A request is closed for a reason.
            Validity::Valid => (Outcome::Incomplete, open.reason_if_last),
        };
        c.vm_stats[open.vm as usize].leave_out(outcome, exclusion);
        self.groups.broken(&open, c);
    }

    /// The response has left: completes its request.
    pub(super) fn complete(&mut self, sent: &OutboundPacket, c: &mut Common, sink: Sink) {
        let Some(id) = sent.request() else { return };
        let Some(open) = self.open.get_mut(id) else { return };
        if let Some((at, _)) = open.kick
            && self.inside.sent_after(c.pids[open.vm as usize], open.response, at)
        {
            open.kick = None;
        }
        let open = &*open;
        let start = open.inbound.as_ref().map_or(0, |packet| packet.start);
        let validity = if !open.validity.is_valid() {
            open.validity
        } else if c.lost.touches(start, sent.end()) {
            Validity::incomplete(Reason::EventsLost)
        } else if open.inbound.is_none() {
            Validity::Incomplete(if open.sent_again { Reason::OtherCopy.into() } else { open.reason_if_last })
        } else if waterfall::fill_stages(open, sent, &mut self.joined, &mut c.splits_dropped).is_none() {
            Validity::incomplete(Reason::OutOfOrder)
        } else {
            Validity::Valid
        };
        if !validity.is_valid() {
            self.close(Some(id), validity, c);
            return;
        }
        let Some(open) = self.open.remove(id) else { return };
        let division = open.inbound.as_ref().map_or(Division::NotReported, |packet| {
            self.inside.divide(&Stay {
                pid: c.pids[open.vm as usize],
                fingerprints: [packet.fingerprint, open.response],
                entered: packet.entered,
                entered_on: packet.vcpu,
                left: open.kick.map_or(sent.sent, |(ts, _)| ts),
                left_on: open.kick.map(|(_, kick)| kick.vcpu),
            })
        });
        let stats = &mut c.vm_stats[open.vm as usize];
        stats.requests.complete += 1;
        let divided = stats.inside.add(&division);
        self.joined.request.inside = divided.map(|divided| divided.request);
        stats.request(&self.joined, divided, &c.threads);
        for (_, thread) in &mut self.joined.preempted_by {
            *thread = c.threads.thread(*thread).tid;
        }
        self.groups.completed(&open, start, sent.end(), c);
        sink(&self.joined);
    }

    /// A request ends without a response. `exclusion` is the reason, unless a drop is known; without it
    /// `open.reason_if_last` is.
    fn unanswered(&mut self, open: Open, exclusion: Option<Exclusion>, c: &mut Common) {
        if open.indexed {
            self.index.remove(&(open.vm, open.matching.key));
        }
        let known = exclusion
            .filter(|_| open.reason_if_last.drop == 0)
            .unwrap_or(c.unless_ended(open.reason_if_last, open.last));
        let (outcome, exclusion) = match (open.validity, open.indexed) {
            (Validity::Ambiguous(exclusion), _) => (Outcome::Ambiguous, exclusion),
            (_, true) if known.drop > 0 => (Outcome::Incomplete, known),
            (_, true) => (Outcome::Unanswered, lost_or(known, &open, self.ttl, c)),
            (Validity::Incomplete(exclusion), false) => {
                (Outcome::Incomplete, lost_or(exclusion, &open, STUCK, c))
            }
            (Validity::Valid, false) => (Outcome::Incomplete, known),
        };
        c.vm_stats[open.vm as usize].leave_out(outcome, exclusion);
        self.groups.broken(&open, c);
    }

    pub(super) fn expire(&mut self, now: u64, c: &mut Common) {
        let Some(then) = now.checked_sub(self.ttl) else { return };
        while let Some(open) = self.open.pop_until(then) {
            self.unanswered(open, None, c);
        }
    }

    /// What a vCPU does from now on.
    pub(super) fn vcpu(&mut self, now: u64, state: &VcpuState) {
        self.inside.vcpu(now, state, self.ttl);
    }

    pub(super) fn expire_inside(&mut self, now: u64) {
        self.inside.expire(now, self.ttl);
    }

    pub(super) fn finish(&mut self, c: &mut Common) {
        while let Some(open) = self.open.pop_oldest() {
            self.unanswered(open, None, c);
        }
        self.groups.finish(c);
    }
}

/// `exclusion`, unless events that were lost until `within` ns after the request's last point explain what was not seen.
fn lost_or(exclusion: Exclusion, open: &Open, within: u64, c: &Common) -> Exclusion {
    let unseen = match exclusion.reason {
        Reason::NotTaken
        | Reason::NotSignalled
        | Reason::NoInterrupt
        | Reason::NotEntered
        | Reason::NoAnswer
        | Reason::NotForwarded
        | Reason::NotHandedOver
        | Reason::NotReceived
        | Reason::FewerReports
        | Reason::OtherCopy
        | Reason::SegmentMissing
        | Reason::OutOfOrder => true,
        // These were seen, or are due to lack of room.
        Reason::DroppedIn
        | Reason::DroppedOut
        | Reason::NotLearnt
        | Reason::Alike
        | Reason::SameKey
        | Reason::Interleaved
        | Reason::Closed
        | Reason::TooManyTaps
        | Reason::EventsLost
        | Reason::Evicted
        | Reason::TraceEnded => false,
    };
    if unseen && c.lost.touches(open.start, open.last.saturating_add(within)) {
        Reason::EventsLost.into()
    } else {
        exclusion
    }
}
