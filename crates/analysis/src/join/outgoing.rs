//! Requests that a guest itself sends, as a client, and their answers.
//!
//! ```text
//!           request at TapSend          answer at TapEnqueue             the guest enters with it,
//!  (nothing) ─────────────────► [open] ─────────────────────► [answered] ─────────────────────────► complete
//!      ▲                          │ a request of the same key     │      and the request has left
//!      │ all of them answered     ▼                               │ a point of either packet is missing ─► incomplete
//!      └──────────────────── [ambiguous]                          │ another like it ─────────────────────► ambiguous
//!         open or ambiguous for the time allowed: unanswered, or ambiguous
//! ```
//!
//! Both packets are followed by others: the request by [`outbound`](super::outbound), its answer by
//! [`inbound`](super::inbound) and [`delivery`](super::delivery). Either may come to its end first: that a packet has left
//! is known only when nothing more of it was seen for the quiet time, and by then the answer may be in the guest.
//!
//! A packet of the guest is a request if the protocol says so. Where it does not ([`Role::Either`]), the direction that
//! [`RequestTable`] has learnt for the key decides. A SIP proxy forwards a request with its key, so one key may be that of
//! a request to the guest and of one from it at once: the two tables share nothing but that direction.
//!
//! Time begins with the guest's kick, or, if no kick is the packet's own, when it is handed to the host stack. A request that is
//! sent again (SIP, DNS, TCP) is timed from its first copy, as the guest has waited since then; the first answer ends it. An answered
//! key is remembered for the time allowed, so that a later copy is no request. If the host has dropped the first copy, or the
//! first answer, the request is incomplete: what another copy spent outside would hide that.
//!
//! Which segments of TCP begin a request or its answer is known from [`Connections`](super::connections::Connections); each request
//! has a key of its own then. On taps whose VMM is not followed, requests are not either.

use super::connections::NoAnswer;
use super::delivery::InboundPacket;
use super::outbound::OutboundPacket;
use super::recent::{MAX_RECENT, RecentKeys};
use super::request::RequestTable;
use super::{Common, Exclusion, STUCK, Validity};
use crate::expiring::{EntryId, ExpiringSlab};
use crate::hash::{Map, Seeded, make_room};
use crate::outgoing_stats::CompleteOutgoing;
use teiji_model::event::{Match, Role};
use teiji_model::report::{Outcome, OutgoingStage, Reason};

/// Requests open at once.
const MAX_OPEN: usize = 1 << 16;

/// A request.
#[derive(Clone)]
struct Outgoing {
    vm: u32,
    key: u64,
    validity: Validity,
    /// The guest's kick, or when the host stack got the packet.
    start: u64,
    /// When it or its answer was last seen, and why it is unanswered or incomplete if nothing more is seen.
    last: u64,
    reason_if_last: Exclusion,
    /// How many requests, and how many answers, of this key were seen.
    copies: u32,
    answers: u32,
    /// Of a protocol that repeats requests: it was sent again.
    sent_again: bool,
    /// Its answer is known: it is no longer found by its key.
    answered: bool,
    left: Option<Left>,
    came: Option<Came>,
}

/// How its packet has left the host, or reached another VM's tap.
#[derive(Clone, Copy)]
struct Left {
    /// `vhost_tx` to `wire_out`, ns.
    stages: [u64; 4],
    end: u64,
    to_other_vm: bool,
}

/// How the packet of its answer has come: the times at which its stages begin and end, ns.
#[derive(Clone, Copy)]
struct Came([u64; 6]);

impl Came {
    fn entered(&self) -> u64 {
        self.0[5]
    }
}

/// The time of each stage, ns; `None` if the points are out of order.
fn stages(start: u64, left: &Left, came: &Came) -> Option<[u64; OutgoingStage::COUNT]> {
    let mut ns = [0; OutgoingStage::COUNT];
    ns[..4].copy_from_slice(&left.stages);
    ns[OutgoingStage::Outside as usize] = came.0[0].checked_sub(left.end)?;
    for (i, t) in came.0.windows(2).enumerate() {
        ns[OutgoingStage::SwitchIn as usize + i] = t[1].checked_sub(t[0])?;
    }
    let total = came.entered().checked_sub(start)?;
    ns[OutgoingStage::Unattributed as usize] = total.checked_sub(ns.iter().sum())?;
    Some(ns)
}

/// See the module.
#[derive(Clone)]
pub(super) struct OutgoingTable {
    ttl: u64,
    /// [`Matching::repeats`](teiji_model::flow::Matching::repeats).
    repeats: bool,
    /// Packets of both directions are reported.
    both_ways: bool,
    index: Map<(u32, u64), EntryId>,
    open: ExpiringSlab<Outgoing>,
    /// Keys that were answered, of a protocol that repeats requests.
    answered: RecentKeys,
}

impl OutgoingTable {
    pub(super) fn new(hasher: Seeded, ttl: u64, repeats: bool, both_ways: bool) -> Self {
        OutgoingTable {
            ttl,
            repeats,
            both_ways,
            index: Map::with_hasher(hasher),
            open: ExpiringSlab::new(MAX_OPEN),
            answered: RecentKeys::new(hasher, ttl, MAX_RECENT),
        }
    }

    fn begin(&mut self, now: u64, vm: u32, key: u64, start: u64, c: &mut Common) -> Option<EntryId> {
        let at = (vm, key);
        let known = self.index.get(&at).copied();
        let stats = &mut c.vm_stats[vm as usize].outgoing;
        if self.repeats && (known.is_some() || self.answered.recall(now, vm, key).is_some()) {
            stats.counts.retransmitted += 1;
            if let Some(open) = known.and_then(|id| self.open.get_mut(id))
                && !std::mem::replace(&mut open.sent_again, true)
            {
                stats.counts.sent_again.requests += 1;
            }
            return None;
        }
        stats.counts.seen += 1;
        if let Some(id) = known {
            stats.leave_out(Outcome::Ambiguous, Reason::SameKey.into());
            if let Some(open) = self.open.get_mut(id) {
                open.validity = open.validity.worse(Validity::ambiguous(Reason::SameKey));
                open.copies = open.copies.saturating_add(1);
            }
            self.open.touch(id, now);
            return None;
        }
        if self.open.full()
            && let Some(mut open) = self.open.pop_oldest()
        {
            c.evicted += 1;
            open.reason_if_last = Reason::Evicted.into();
            self.ended(&open, c);
        }
        let open = Outgoing {
            vm,
            key,
            validity: Validity::Valid,
            start,
            last: now,
            reason_if_last: Reason::NotForwarded.into(),
            copies: 1,
            answers: 0,
            sent_again: false,
            answered: false,
            left: None,
            came: None,
        };
        let id = self.open.insert(open, now);
        make_room(&mut self.index, MAX_OPEN);
        self.index.insert(at, id);
        Some(id)
    }

    /// A request's packet has left the host, or reached another VM.
    pub(super) fn left(&mut self, sent: &OutboundPacket, c: &mut Common) {
        let Some(open) = sent.outgoing.and_then(|id| self.open.get_mut(id)) else { return };
        let Some((switch_out, rest)) = sent.stages() else { return };
        let (qdisc, wire_out) = rest.unwrap_or_default();
        let stages = [sent.vhost_tx.unwrap_or(0), switch_out, qdisc, wire_out];
        open.left = Some(Left { stages, end: sent.end(), to_other_vm: sent.xmit == 0 });
        if !open.answered {
            (open.last, open.reason_if_last) = (sent.end(), Reason::NoAnswer.into());
        }
        self.complete(sent.outgoing, c);
    }

    /// A request's packet cannot be followed until it has left. That is the end of it if it was the only one and was
    /// dropped; otherwise its answer may come all the same.
    pub(super) fn not_left(&mut self, request: Option<EntryId>, validity: Validity, c: &mut Common) {
        let Some(open) = request.and_then(|id| self.open.get_mut(id)) else { return };
        open.validity = open.validity.worse(validity);
        let dropped = match validity {
            Validity::Incomplete(exclusion) if !open.answered => {
                open.reason_if_last = exclusion;
                exclusion.drop > 0
            }
            _ => false,
        };
        if open.came.is_some() || dropped && !self.repeats && open.copies == 1 {
            self.end(request, c);
        }
    }

    /// Whether the guest waits for the answer to a request with this key.
    pub(super) fn is_open(&self, vm: u32, key: u64) -> bool {
        self.index.contains_key(&(vm, key))
    }

    fn answer(&mut self, now: u64, vm: u32, key: u64, validity: Validity, c: &mut Common) -> Option<EntryId> {
        let id = *self.index.get(&(vm, key))?;
        let open = self.open.get_mut(id)?;
        open.answers = open.answers.saturating_add(1);
        open.validity = open.validity.worse(validity);
        self.open.touch(id, now);
        let open = self.open.get_mut(id)?;
        if open.answers < open.copies {
            return None;
        }
        open.answered = true;
        (open.last, open.reason_if_last) = (now, Reason::NotTaken.into());
        let several = open.copies > 1;
        self.index.remove(&(vm, key));
        if self.repeats {
            self.answered.remember(now, vm, key, false);
        }
        if several {
            self.end(Some(id), c);
            return None;
        }
        Some(id)
    }

    /// A further segment of a request of TCP, or something else that has become known of it.
    pub(super) fn continues(&mut self, vm: u32, key: u64, validity: Validity) {
        let id = self.index.get(&(vm, key)).copied();
        self.mark(id, validity);
    }

    /// The guest has sent a segment again; that of an open request if there is a key.
    pub(super) fn segment_again(&mut self, vm: u32, key: Option<u64>, c: &mut Common) {
        let counts = &mut c.vm_stats[vm as usize].outgoing.counts;
        counts.retransmitted += 1;
        if let Some(id) = key.and_then(|key| self.index.get(&(vm, key)))
            && let Some(open) = self.open.get_mut(*id)
            && !std::mem::replace(&mut open.sent_again, true)
        {
            counts.sent_again.requests += 1;
        }
    }

    /// A request of TCP that is open gets no answer any more, or has got one that was not seen.
    pub(super) fn ends_unanswered(&mut self, vm: u32, key: u64, why: NoAnswer, c: &mut Common) {
        let Some(id) = self.index.get(&(vm, key)).copied() else { return };
        let Some(open) = self.open.get_mut(id) else { return };
        match why {
            NoAnswer::Closed => open.reason_if_last = Reason::Closed.into(),
            NoAnswer::Missed => {
                open.validity = open.validity.worse(Validity::incomplete(Reason::SegmentMissing));
                open.answered = true;
                self.index.remove(&(vm, key));
            }
            NoAnswer::Evicted => {
                c.evicted += 1;
                open.reason_if_last = Reason::Evicted.into();
            }
        }
        self.end(Some(id), c);
    }

    /// Makes the validity of a request at least as bad as `validity`.
    pub(super) fn mark(&mut self, request: Option<EntryId>, validity: Validity) {
        if let Some(open) = request.and_then(|id| self.open.get_mut(id)) {
            open.validity = open.validity.worse(validity);
        }
    }

    /// The packet of an answer is no longer followed.
    pub(super) fn came(&mut self, packet: &InboundPacket, c: &mut Common) {
        let Some(open) = packet.answers.and_then(|id| self.open.get_mut(id)) else { return };
        open.validity = open.validity.worse(packet.validity);
        if !open.validity.is_valid() {
            return self.end(packet.answers, c);
        }
        open.last = packet.entered;
        open.reason_if_last = Reason::NotHandedOver.into();
        open.came = Some(Came([
            packet.start,
            packet.enqueued,
            packet.dequeued,
            packet.signalled,
            packet.accepted,
            packet.entered,
        ]));
        self.complete(packet.answers, c);
    }

    /// Completes a request, if both packets have come to their end.
    fn complete(&mut self, request: Option<EntryId>, c: &mut Common) {
        let Some(open) = request.and_then(|id| self.open.get_mut(id)) else { return };
        let (Some(left), Some(came)) = (open.left, open.came) else { return };
        let divided = stages(open.start, &left, &came);
        if c.lost.touches(open.start, came.entered()) {
            open.validity = open.validity.worse(Validity::incomplete(Reason::EventsLost));
        } else if divided.is_none() {
            open.validity = open.validity.worse(Validity::incomplete(Reason::OutOfOrder));
        }
        match (open.validity, divided) {
            (Validity::Valid, Some(stages)) => {
                let complete =
                    CompleteOutgoing { stages, to_other_vm: left.to_other_vm, sent_again: open.sent_again };
                c.vm_stats[open.vm as usize].outgoing.complete(&complete);
                if let Some(id) = request {
                    self.open.remove(id);
                }
            }
            _ => self.end(request, c),
        }
    }

    /// Ends a request that is not complete.
    pub(super) fn end(&mut self, request: Option<EntryId>, c: &mut Common) {
        if let Some(open) = request.and_then(|id| self.open.remove(id)) {
            self.ended(&open, c);
        }
    }

    /// Counts a request that is not complete, and forgets its key.
    fn ended(&mut self, open: &Outgoing, c: &mut Common) {
        if !open.answered {
            self.index.remove(&(open.vm, open.key));
        }
        let unless_lost =
            |e: Exclusion, within| e.unless_lost(open.start, open.last.saturating_add(within), &c.lost);
        let known = c.unless_ended(open.reason_if_last, open.last);
        let (outcome, exclusion) = match (open.validity, open.answered) {
            (Validity::Ambiguous(exclusion), _) => (Outcome::Ambiguous, exclusion),
            (Validity::Incomplete(exclusion), _) if exclusion.drop > 0 => (Outcome::Incomplete, exclusion),
            (Validity::Incomplete(exclusion), true) => (Outcome::Incomplete, unless_lost(exclusion, STUCK)),
            (Validity::Valid, true) => (Outcome::Incomplete, unless_lost(known, STUCK)),
            (_, false) => (Outcome::Unanswered, unless_lost(known, self.ttl)),
        };
        c.vm_stats[open.vm as usize].outgoing.leave_out(outcome, exclusion);
    }

    pub(super) fn expire(&mut self, now: u64, c: &mut Common) {
        let Some(then) = now.checked_sub(self.ttl) else { return };
        while let Some(open) = self.open.pop_until(then) {
            self.ended(&open, c);
        }
    }

    pub(super) fn finish(&mut self, c: &mut Common) {
        while let Some(open) = self.open.pop_oldest() {
            self.ended(&open, c);
        }
    }
}

impl RequestTable {
    /// A guest's frame reaches the host stack that answers no request to the guest. Returns the request that it begins, if it
    /// is one of the guest's own; `start` is the time of its kick, or of now. To be called after [`RequestTable::answer`], which
    /// learns the direction of its key.
    pub(super) fn begin_outgoing(
        &mut self,
        now: u64,
        vm: u32,
        part: Option<(Match, Validity)>,
        start: u64,
        c: &mut Common,
    ) -> Option<EntryId> {
        let learnt =
            |m: &Match| self.recent.recall(now, vm, m.key).is_some_and(|recent| !recent.from_outside);
        let begins = |m: &Match| m.role == Role::Request || m.role == Role::Either && learnt(m);
        let (m, validity) = part.filter(|(m, _)| self.outgoing.both_ways && begins(m))?;
        let begun = self.outgoing.begin(now, vm, m.key, start, c);
        self.outgoing.mark(begun, validity);
        begun
    }

    /// A packet has reached a guest's tap. Returns the guest's own request that it answers.
    pub(super) fn answer_outgoing(
        &mut self,
        now: u64,
        vm: u32,
        matching: Option<&Match>,
        validity: Validity,
        c: &mut Common,
    ) -> Option<EntryId> {
        if self.outgoing.index.is_empty() {
            return None;
        }
        // If it is known who asks, it is by the request that is open.
        let m = matching.filter(|m| matches!(m.role, Role::Final | Role::Either))?;
        self.outgoing.answer(now, vm, m.key, validity, c)
    }
}
