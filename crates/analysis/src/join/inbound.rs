//! Packets toward guests, from the host's edge to the vhost worker or the VMM's thread that takes its part: joined by
//! fingerprint.
//!
//! ```text
//!            HostRx            TapEnqueue             TapDequeue
//!  (nothing) ─────► [arriving] ─────────► [on the tap] ────────► delivery
//!      │                │                      │
//!      │ TapEnqueue     │ another like it,     │ HostRx or TapEnqueue
//!      ▼                ▼ too many reports     ▼ of another like it
//!  [on the tap]     [ambiguous] ◄──────────────┘
//! ```
//!
//! A record ([`PacketsOfFingerprint`]) covers all packets of one fingerprint. If its reports cannot be those of a
//! single packet it is *ambiguous*: all its packets are ambiguous, and so are later ones with the same fingerprint,
//! until the reports of all of them are accounted for, or no report was seen for the longest time that a packet is
//! followed. A packet with fewer reports than usual, or without any on a tap whose packets usually have some, is
//! incomplete, as its start is not known. On a tap that also gets packets from the host itself, a packet without reports
//! starts at the tap. On a tap whose VMM is not followed, the path ends at the tap.

mod drops;

use super::delivery::{Delivery, InboundPacket};
use super::request::RequestTable;
use super::{Common, Served, Validity};
use crate::expiring::{EntryId, ExpiringMap};
use crate::hash::Seeded;
use crate::learnt_count::LearntCount;
use drops::PossibleDrop;
use teiji_model::event::{GuestEntry, Interrupt, Match, Packet, Role};
use teiji_model::report::Reason;

/// Fingerprints followed at once.
const MAX_RECORDS: usize = 1 << 16;
/// Taps that a bridge may flood one packet to.
const MAX_TAPS: usize = 4;
/// Set in a key of [`LearntCount`] that counts the reports by other devices than the first.
const OTHERS: u64 = 1 << 33;
/// If more than this share of a tap's packets are reported before the tap, the report of a packet without one was lost.
const REPORTED: f32 = 0.9;

/// Whether a packet may be one of the later segments of a large packet of TCP that the host has split before the tap.
fn may_be_split(p: &Packet) -> bool {
    matches!(p.matching, Some(Match { role: Role::Segment { payload: 1.., .. }, .. }))
}

/// The origin of a packet that another traced VM has sent.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    /// When it was sent, ns.
    pub(super) sent: u64,
    /// How often the host stack has received it since.
    pub(super) transit: u16,
    /// Whether that is certain.
    pub(super) validity: Validity,
}

/// Whether another guest has sent packets identical to one that is dropped.
#[derive(Clone, Copy)]
pub(super) struct IdenticalPackets {
    /// `Some` if such a packet may be on its way to the tap; true if the host stack may have received more packets
    /// than that one.
    pub(super) sent: Option<bool>,
    /// One identical packet is on the tap, and another one may follow it.
    pub(super) follows: bool,
}

/// Packets of one fingerprint between the host's edge and the worker.
#[derive(Clone, Default)]
struct PacketsOfFingerprint {
    first: u64,
    first_if: u32,
    /// Reports by the first device, and by all others.
    reports: u16,
    others: u16,
    enqueued: u16,
    dequeued: u16,
    ambiguous: bool,
    /// Whether a guest has sent one of them.
    sent: bool,
    /// The tap before which its packet was certainly dropped: the next packet for that tap is another one.
    dropped_before_tap: Option<u32>,
    possible_drop: Option<PossibleDrop>,
    on_taps: [Option<(u32, EntryId)>; MAX_TAPS],
}

impl PacketsOfFingerprint {
    fn open(&self) -> bool {
        self.on_taps.iter().any(Option::is_some)
    }

    fn is_on(&self, ifindex: u32) -> bool {
        self.on_taps.iter().flatten().any(|(tap, _)| *tap == ifindex)
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct Inbound {
    records: ExpiringMap<u64, PacketsOfFingerprint>,
    delivery: Delivery,
    learnt: LearntCount,
    /// By tap: the share of recent packets that were reported before the tap.
    reported: Vec<Option<f32>>,
}

impl Inbound {
    pub(super) fn new(hasher: Seeded) -> Self {
        Inbound {
            records: ExpiringMap::new(MAX_RECORDS, hasher),
            delivery: Delivery::new(hasher),
            learnt: LearntCount::new(hasher),
            reported: Vec::new(),
        }
    }

    pub(super) fn host_rx(&mut self, now: u64, p: &Packet, c: &mut Common, requests: &mut RequestTable) {
        if let Some(r) = self.records.get_mut(&p.fingerprint)
            && (r.dropped_before_tap.is_none() || p.ifindex != r.first_if || r.open() || r.ambiguous)
        {
            // After a drop it may be another packet, or a copy of the dropped one that a bridge flooded.
            if !r.ambiguous && (r.enqueued > 0 || r.dropped_before_tap.is_some()) {
                Self::mark_ambiguous(r, &mut self.delivery, requests);
            }
            if r.reports == 0 {
                (r.first, r.first_if) = (now, p.ifindex);
            }
            if p.ifindex == r.first_if {
                r.reports = r.reports.saturating_add(1);
            } else {
                r.others = r.others.saturating_add(1);
            }
            if r.ambiguous {
                self.records.touch(&p.fingerprint, now);
            }
            return;
        }
        let record = PacketsOfFingerprint {
            first: now,
            first_if: p.ifindex,
            reports: 1,
            ..PacketsOfFingerprint::default()
        };
        self.insert(p.fingerprint, record, now, c, requests);
    }

    /// How often the host has received packets of this fingerprint that are not on a tap yet.
    pub(super) fn received(&self, fingerprint: u64) -> u16 {
        self.records.get(&fingerprint).map_or(0, |r| r.reports.saturating_add(r.others))
    }

    fn insert(
        &mut self,
        fingerprint: u64,
        record: PacketsOfFingerprint,
        now: u64,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let Some((_, old)) = self.records.insert(fingerprint, record, now) else { return };
        c.evicted += u64::from(old.open() || old.ambiguous);
        self.forget(old, now, c, requests);
    }

    /// Counts what is left of a record that is removed.
    fn forget(&mut self, r: PacketsOfFingerprint, now: u64, c: &mut Common, requests: &mut RequestTable) {
        for (_, id) in r.on_taps.into_iter().flatten() {
            self.delivery.evict(id, c, requests);
        }
        if let Some(drop) = r.possible_drop.filter(|_| r.enqueued == 0 && r.dropped_before_tap.is_none()) {
            Self::count_drop(now, drop, r.first, c, requests);
        }
    }

    /// Whether a packet with this fingerprint is on that tap.
    pub(super) fn waits_on(&self, ifindex: u32, fingerprint: u64) -> bool {
        self.records.get(&fingerprint).is_some_and(|r| r.is_on(ifindex))
    }

    /// Marks the record and its packets as ambiguous.
    fn mark_ambiguous(r: &mut PacketsOfFingerprint, delivery: &mut Delivery, requests: &mut RequestTable) {
        r.ambiguous = true;
        for (_, id) in r.on_taps.iter_mut().filter_map(Option::take) {
            delivery.mark_ambiguous(id, requests);
        }
    }

    /// `from`: the identical packet that another traced VM has sent, if there is one.
    pub(super) fn tap_enqueue(
        &mut self,
        now: u64,
        p: &Packet,
        from: Option<Origin>,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let Some(tap) = c.tap(p.ifindex) else { return };
        let vm = c.taps[tap].vm;
        c.vm_stats[vm as usize].inbound.on_tap(p);
        let another = |r: &mut PacketsOfFingerprint| {
            r.dropped_before_tap == Some(p.ifindex) && !r.open() && !r.ambiguous
        };
        if self.records.get_mut(&p.fingerprint).is_none_or(another) {
            self.insert(p.fingerprint, PacketsOfFingerprint::default(), now, c, requests);
        }
        let Some(r) = self.records.get_mut(&p.fingerprint) else { return };
        r.sent |= from.is_some();
        if tap >= self.reported.len() {
            self.reported.resize(tap + 1, None);
        }
        let (start, validity) =
            Self::start(r, now, tap, from, may_be_split(p), &mut self.learnt, &mut self.reported);
        if c.taps[tap].served == Served::Unseen {
            let stats = &mut c.vm_stats[vm as usize].inbound;
            if validity.is_valid() && !c.lost.touches(start, now) {
                stats.packets += 1;
                stats.stages[0].record(now.saturating_sub(start));
            } else {
                stats.incomplete += 1;
            }
            self.records.remove(&p.fingerprint);
            return;
        }
        let part = requests.part_of_packet(now, vm, p.matching.as_ref(), true, validity, c);
        let matching = part.as_ref().map(|(m, _)| m);
        let certain = part.map_or(Validity::Valid, |(_, certain)| certain);
        r.enqueued = r.enqueued.saturating_add(1);
        let again = r.is_on(p.ifindex);
        let room = r.on_taps.iter().position(Option::is_none);
        let slot = match room {
            Some(slot) if !r.ambiguous && !again && !matches!(validity, Validity::Ambiguous(_)) => slot,
            _ => {
                let alike = r.ambiguous || again;
                let reason = if room.is_none() && !alike { Reason::TooManyTaps } else { Reason::Alike };
                let validity = Validity::ambiguous(reason).worse(validity);
                Self::mark_ambiguous(r, &mut self.delivery, requests);
                self.records.touch(&p.fingerprint, now);
                c.vm_stats[vm as usize].inbound.incomplete += 1;
                let validity = validity.worse(certain);
                requests.open(now, vm, matching, start, validity, c);
                let answers = requests.answer_outgoing(now, vm, matching, validity, c);
                requests.outgoing.end(answers, c);
                return;
            }
        };
        let request = requests.open(now, vm, matching, start, validity.worse(certain), c);
        let answers = requests.answer_outgoing(now, vm, matching, validity.worse(certain), c);
        let packet = InboundPacket {
            vm,
            validity,
            request,
            answers,
            start,
            enqueued: now,
            put_clock: p.worker,
            fingerprint: p.fingerprint,
            ..InboundPacket::default()
        };
        r.on_taps[slot] = Some((p.ifindex, self.delivery.begin(packet, now, c, requests)));
    }

    /// When the packet that is being put on a tap was received, and whether that is certain.
    fn start(
        r: &PacketsOfFingerprint,
        now: u64,
        tap: usize,
        from: Option<Origin>,
        may_be_split: bool,
        learnt: &mut LearntCount,
        reported: &mut [Option<f32>],
    ) -> (u64, Validity) {
        let present = r.reports > 0 || from.is_some();
        let share = reported[tap].unwrap_or(f32::from(u8::from(present)));
        // That the later segments of a split packet are not reported says nothing of other packets.
        if r.enqueued == 0 && (present || !may_be_split) {
            reported[tap] = Some(share + (f32::from(u8::from(present)) - share) / 64.0);
        }
        match from {
            // The host stack has received more or fewer packets than this one: there is another packet.
            Some(from) if from.transit != r.reports.saturating_add(r.others) => {
                (from.sent, Validity::ambiguous(Reason::Alike))
            }
            Some(from) => (from.sent, from.validity),
            None if r.reports > 0 => {
                let device = u64::from(r.first_if);
                let known = learnt.get(device).is_some();
                if r.enqueued == 0 {
                    learnt.learn(device, r.reports);
                    learnt.learn(device | OTHERS, r.others);
                }
                if !known && r.others > 0 {
                    // The reports by other devices may be those of another packet; the next packet will tell.
                    return (r.first, Validity::incomplete(Reason::NotLearnt));
                }
                (r.first, learnt.compare(device, r.reports).worse(learnt.compare(device | OTHERS, r.others)))
            }
            None => (
                now,
                if share > REPORTED { Validity::incomplete(Reason::NotReceived) } else { Validity::Valid },
            ),
        }
    }

    pub(super) fn tap_dequeue(&mut self, now: u64, p: &Packet, c: &mut Common, requests: &mut RequestTable) {
        let Some(tap) = c.tap(p.ifindex) else { return };
        let vm = c.taps[tap].vm as usize;
        c.vm_stats[vm].depth.record(u64::from(p.depth));
        c.vm_stats[vm].over_time.dequeue(now, u64::from(p.depth));
        self.delivery.check_slept(p, c, requests);
        let Some(r) = self.records.get_mut(&p.fingerprint) else {
            c.vm_stats[vm].inbound.incomplete += 1;
            return;
        };
        r.dequeued = r.dequeued.saturating_add(1);
        if r.ambiguous {
            let one = self.learnt.get(u64::from(r.first_if)).unwrap_or(1);
            let all = r.reports == 0 || u32::from(r.reports) == u32::from(one) * u32::from(r.enqueued);
            let all = all && r.others == 0 && !r.sent;
            if r.enqueued == r.dequeued && all {
                self.records.remove(&p.fingerprint);
            } else {
                self.records.touch(&p.fingerprint, now);
            }
            return;
        }
        let found = r.on_taps.iter_mut().find(|t| t.is_some_and(|(ifindex, _)| ifindex == p.ifindex));
        let id = found.and_then(Option::take).map(|(_, id)| id);
        if !r.open() {
            self.records.remove(&p.fingerprint);
        }
        if !id.is_some_and(|id| self.delivery.taken(now, p, id, c, requests)) {
            c.vm_stats[vm].inbound.incomplete += 1;
        }
    }

    pub(super) fn late_interrupt(&mut self, i: &Interrupt, c: &mut Common, requests: &mut RequestTable) {
        self.delivery.late_interrupt(i, c, requests);
    }

    /// Whether packets that are followed wait for this signal.
    pub(super) fn awaits(&self, i: &Interrupt) -> bool {
        self.delivery.awaits(i)
    }

    pub(super) fn interrupt(&mut self, now: u64, i: &Interrupt, c: &mut Common, requests: &mut RequestTable) {
        self.delivery.interrupt(now, i, c, requests);
    }

    pub(super) fn guest_entry(
        &mut self,
        now: u64,
        e: &GuestEntry,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        self.delivery.guest_entry(now, e, c, requests);
    }

    pub(super) fn expire(&mut self, now: u64, c: &mut Common, requests: &mut RequestTable) {
        let Some(then) = now.checked_sub(c.ttl) else { return };
        // Packets of an ambiguous record are counted already; those of other records are still followed by `delivery`.
        while let Some((_, mut r)) = self.records.pop_until(then) {
            r.on_taps = Default::default();
            self.forget(r, now, c, requests);
        }
        self.delivery.expire(then, c, requests);
    }

    pub(super) fn finish(&mut self, c: &mut Common, requests: &mut RequestTable) {
        let now = c.ended.unwrap_or_default();
        while let Some((_, mut r)) = self.records.pop_oldest() {
            r.on_taps = Default::default();
            self.forget(r, now, c, requests);
        }
        self.delivery.finish(c, requests);
    }
}
