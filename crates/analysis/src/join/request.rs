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
//! The key is looked up within one VM. Requests that the guest itself sends, and the responses to them, are those of
//! [`OutgoingTable`].
//!
//! Where a request cannot be told from a response ([`Role::Either`]), the first packet of a key decides which
//! direction its requests have. That holds until no packet of the key was seen for the time allowed, so that a lost
//! event does not swap the two. A trace that begins between a guest's own request and its response may decide wrongly;
//! a filter with `dst port` prevents that.
//!
//! In SIP a key identifies a transaction: a further copy of a request is a retransmission (RFC 3261, 17.1), and the
//! response to any copy answers all. A query of DNS is repeated in the same way, with its id. The request ends with the
//! first response; [`copies`] says which copy has its times. An answered key is remembered for the time allowed, so that
//! a later retransmission is not taken for a new request. Which segments of TCP are requests, copies and responses,
//! [`Connections`] says.

mod copies;
mod drops;
mod segments;
mod unanswered;

use super::connections::Connections;
use super::delivery::InboundPacket;
use super::group::Groups;
use super::inside::{Division, InsideTable, Stay};
use super::outbound::OutboundPacket;
use super::outgoing::OutgoingTable;
use super::recent::{MAX_RECENT, RecentKeys};
use super::timeline::{RequestStarts, Way};
use super::{Common, Exclusion, STUCK, Sink, Validity, waterfall};
use crate::expiring::{EntryId, ExpiringSlab};
use crate::hash::{Map, Seeded, make_room};
pub(super) use copies::CopyId;
use copies::{Answered, Further};
use teiji_model::event::{Kick, Match, Packet, Role, Start, VcpuState};
use teiji_model::report::{Joined, Outcome, Reason};
use teiji_model::stage::{Split, ThreadState};

/// Requests open at once.
const MAX_OPEN: usize = 1 << 16;

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
    /// How many copies of it were seen, retransmissions included; the further ones that are followed; and whether there are
    /// others. It is counted as `copies` if requests of a key are not repeated.
    copies_seen: u16,
    further: Vec<Further>,
    unfollowed: bool,
    /// Of TCP: a segment of it was sent again. Copies of segments are not followed.
    segment_again: bool,
    /// The kernel dropped its first copy; or its response.
    first_dropped: bool,
    response_dropped: bool,
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
    /// The worker that sent the response, if it is known.
    pub(super) sender: Option<u32>,
    /// Of its response.
    response: u64,
}

/// How long a thread was asleep between two readings of its clock, ns; 0 if one is not known.
fn asleep(from: Option<Split>, to: Option<Split>) -> u64 {
    let spent = from.zip(to).and_then(|(from, to)| to.checked_since(&from));
    spent.map_or(0, |spent| spent.get(ThreadState::Asleep))
}

/// See the module.
#[derive(Clone)]
pub(super) struct RequestTable {
    ttl: u64,
    /// [`Matching::repeats`](teiji_model::flow::Matching::repeats).
    repeats: bool,
    index: Map<(u32, u64), EntryId>,
    open: ExpiringSlab<Open>,
    /// The further copies of all of them.
    followed_copies: usize,
    pub(super) recent: RecentKeys,
    pub(super) outgoing: OutgoingTable,
    groups: Groups,
    connections: Connections,
    pub(super) inside: InsideTable,
    /// Whether the threads of each request are described.
    timelines: bool,
    /// Reused for each complete request.
    joined: Joined,
    starts: RequestStarts,
}

impl RequestTable {
    pub(super) fn new(
        hasher: Seeded,
        ttl: u64,
        repeats: bool,
        timelines: bool,
        outgoing: OutgoingTable,
    ) -> Self {
        RequestTable {
            ttl,
            repeats,
            index: Map::with_hasher(hasher),
            open: ExpiringSlab::new(MAX_OPEN),
            followed_copies: 0,
            recent: RecentKeys::new(hasher, ttl, MAX_RECENT),
            outgoing,
            groups: Groups::new(hasher),
            connections: Connections::new(hasher),
            inside: InsideTable::new(hasher),
            timelines,
            joined: waterfall::empty(),
            starts: RequestStarts::default(),
        }
    }

    /// A packet that was received at `start` has reached a tap. Returns the request that it opens.
    pub(super) fn open(
        &mut self,
        now: u64,
        vm: u32,
        m: Option<&Match>,
        start: u64,
        validity: Validity,
        c: &mut Common,
    ) -> Option<CopyId> {
        let m = *m?;
        if m.role == Role::OneWay {
            self.groups.message(start, vm, &m);
        }
        if !matches!(m.role, Role::Request | Role::Either) {
            return None;
        }
        let recent = self.recent.recall(now, vm, m.key);
        let answers = self.outgoing.is_open(vm, m.key) || recent.is_some_and(|r| !r.from_outside);
        if m.role == Role::Either && answers {
            return None; // The response to a request that the guest itself sent.
        }
        let counts = &mut c.vm_stats[vm as usize].requests;
        if self.repeats && (recent.is_some() || self.index.contains_key(&(vm, m.key))) {
            counts.retransmitted += 1;
            self.groups.message(start, vm, &m);
            let id = *self.index.get(&(vm, m.key))?;
            counts.sent_again.requests +=
                u64::from(self.open.get(id).is_some_and(|open| open.copies_seen == 1));
            return self.again(id, validity);
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
            copies_seen: 1,
            further: Vec::new(),
            unfollowed: false,
            segment_again: false,
            first_dropped: false,
            response_dropped: false,
            copies: 1,
            answers: 0,
            indexed: true,
            grouped,
            inbound: None,
            answered_by: Role::Final,
            kick: None,
            worker: None,
            sender: None,
            response: 0,
        };
        let id = self.open.insert(open, now);
        make_room(&mut self.index, MAX_OPEN);
        self.index.insert((vm, m.key), id);
        Some(CopyId::first(id))
    }

    /// Makes the validity of a request's copy at least as bad as `validity`.
    pub(super) fn mark(&mut self, copy: Option<CopyId>, validity: Validity) {
        let Some(id) = copy else { return };
        if let Some(further) = self.further(id) {
            further.mark(validity);
        } else if let Some(open) = self.open.get_mut(id.request) {
            open.validity = open.validity.worse(validity);
        }
    }

    /// A request's packet was seen at a point; `next` is the reason if it is not seen at the next point.
    pub(super) fn progress(&mut self, copy: Option<CopyId>, now: u64, next: Reason) {
        let first = copy.filter(|id| id.is_first());
        if let Some(open) = first.and_then(|id| self.open.get_mut(id.request)) {
            (open.last, open.reason_if_last) = (now, next.into());
        }
    }

    /// A packet to the guest is no longer followed.
    pub(super) fn arrived(&mut self, packet: InboundPacket, c: &mut Common) {
        self.outgoing.came(&packet, c);
        let Some(id) = packet.request else { return };
        if !id.is_first() {
            return self.further_arrived(id, packet, c);
        }
        if let Some(open) = self.open.get_mut(id.request) {
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
        part: Option<(Match, Validity)>,
        kick: Option<(u64, Kick)>,
        c: &mut Common,
    ) -> Option<EntryId> {
        let (m, validity) = part?;
        self.groups.message(now, vm, &m);
        if !matches!(m.role, Role::Final | Role::Either) {
            return None;
        }
        let Some(id) = self.index.get(&(vm, m.key)).copied() else {
            // A request that the guest itself sends, a repeated response, or one to a request that was not seen.
            let recent = self.recent.recall(now, vm, m.key);
            let from_outside = m.role == Role::Final || recent.is_some_and(|r| r.from_outside);
            if m.role == Role::Either || self.repeats {
                self.recent.remember(now, vm, m.key, from_outside);
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
        open.sender = p.worker.map(|_| p.tid);
        open.response = p.fingerprint;
        open.kick = kick.filter(|(ts, _)| *ts >= open.entered());
        let ambiguous = open.copies > 1;
        self.index.remove(&(vm, m.key));
        // It must not expire before its response has left.
        self.open.touch(id, now);
        if m.role == Role::Either || self.repeats {
            self.recent.remember(now, vm, m.key, true);
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
        self.forget_copies(&open);
        let (outcome, exclusion) = match open.validity.worse(validity) {
            Validity::Ambiguous(exclusion) => (Outcome::Ambiguous, exclusion),
            Validity::Incomplete(exclusion) => (
                Outcome::Incomplete,
                exclusion.unless_lost(open.start, open.last.saturating_add(STUCK), &c.lost),
            ),
            // A request is closed for a reason.
            Validity::Valid => (Outcome::Incomplete, open.reason_if_last),
        };
        c.vm_stats[open.vm as usize].leave_out(outcome, exclusion);
        self.groups.broken(&open, c);
    }

    /// A packet of a guest has left: completes the request that it answers.
    pub(super) fn complete(&mut self, sent: &OutboundPacket, c: &mut Common, sink: Sink) {
        self.outgoing.left(sent, c);
        let Some(id) = sent.request() else { return };
        let Some(open) = self.open.get_mut(id) else { return };
        if let Some((at, _)) = open.kick
            && self.inside.sent_after(c.pids[open.vm as usize], open.response, at)
        {
            open.kick = None;
        }
        let answered = self.answered(id, sent, c);
        let Some(open) = self.open.get_mut(id) else { return };
        match answered {
            Answered::Copy(copy) if !open.response_dropped => open.follow(copy),
            Answered::Later => return self.close(Some(id), Validity::ambiguous(Reason::OtherCopy), c),
            Answered::Copy(_) | Answered::Unknown => {}
        }
        let open = &*open;
        let start = open.inbound.as_ref().map_or(0, |packet| packet.start);
        let validity = if !open.validity.is_valid() {
            open.validity
        } else if c.lost.touches(start, sent.end()) {
            Validity::incomplete(Reason::EventsLost)
        } else if open.inbound.is_none() {
            Validity::Incomplete(if open.copies_seen > 1 || open.segment_again {
                Reason::OtherCopy.into()
            } else {
                open.reason_if_last
            })
        } else if waterfall::fill_stages(open, sent, c, &mut self.joined).is_none() {
            Validity::incomplete(Reason::OutOfOrder)
        } else {
            Validity::Valid
        };
        if !validity.is_valid() {
            self.close(Some(id), validity, c);
            return;
        }
        let Some(open) = self.open.remove(id) else { return };
        self.forget_copies(&open);
        let stay = open.inbound.as_ref().map(|packet| Stay {
            pid: c.pids[open.vm as usize],
            fingerprints: [packet.fingerprint, open.response],
            earlier_alike: packet.earlier_alike,
            entered: packet.entered,
            entered_on: packet.vcpu,
            left: open.kick.map_or(sent.sent, |(ts, _)| ts),
            left_on: open.kick.map(|(_, kick)| kick.vcpu),
            way: Way {
                start: packet.start,
                enqueued: packet.enqueued,
                dequeued: packet.dequeued,
                signalled: packet.signalled,
                accepted: packet.accepted,
                sent: sent.sent,
                end: sent.end(),
                receiver: packet.worker,
                sender: open.sender,
                receiver_asleep: asleep(packet.put_clock, packet.taken_clock),
                sender_asleep: asleep(open.kick.and_then(|(_, kick)| kick.worker), open.worker),
            },
        });
        let division = stay.as_ref().map_or(Division::NotReported, |stay| self.inside.divide(stay));
        let stats = &mut c.vm_stats[open.vm as usize];
        stats.requests.complete += 1;
        open.count_answered(answered, &mut stats.requests.sent_again);
        self.joined.request.copies = open.copies_seen;
        self.joined.request.answered = answered.number();
        let divided = stats.inside.add(&division);
        self.joined.request.inside = divided.map(|divided| divided.request);
        self.joined.request.threads = None;
        if let (Some(stay), Some(divided)) = (&stay, divided) {
            let known = self.inside.starts(stay, &divided.points, &mut self.starts);
            stats.threads.add(known.then_some(&self.starts), &c.threads);
            if known && (self.timelines || stats.shows(&self.joined.request)) {
                let threads = self.inside.threads(stay, &divided.points, &self.starts, &c.threads);
                self.joined.request.threads = threads;
            }
        }
        stats.request(&self.joined, divided, &c.threads);
        for (_, thread) in &mut self.joined.preempted_by {
            *thread = c.threads.thread(*thread).tid;
        }
        self.groups.completed(&open, start, sent.end(), c);
        sink(&self.joined);
    }

    /// What a vCPU does from now on, or, if it is no `change`, does still.
    pub(super) fn vcpu(&mut self, now: u64, state: &VcpuState, change: bool) {
        self.inside.vcpu(now, state, self.ttl, change);
    }

    /// A thread of a VM got a CPU.
    pub(super) fn start(&mut self, now: u64, start: &Start) {
        self.inside.start(now, start, self.ttl);
    }

    pub(super) fn expire_inside(&mut self, now: u64) {
        self.inside.expire(now, self.ttl);
    }
}
