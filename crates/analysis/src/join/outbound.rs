//! Packets from guests.
//!
//! ```text
//!           TapSend         DevQueue           [QdiscDequeue]  DevXmit              quiet
//!  (nothing) ─────► [sent] ─────────► [queued] ──────────────► ──────► [handed on] ───────► done
//!                     │                  ▲                                  │
//!                     │ TapEnqueue       └──────────────────────────────────┘ DevQueue of a device below
//!                     └──────────────► [at another VM] ── quiet ──► done
//! ```
//!
//! A packet may pass several devices, such as a VLAN over a bond over a NIC. The link is the last device that it was
//! queued on before nothing more was seen for [`Options::quiet`](crate::Options::quiet). The usual number of devices
//! is learnt for each first device: a packet with fewer has a missing point, and more mean two packets.
//! A packet to another traced VM ends where it is put on that VM's tap.

mod drops;

use super::inbound::Origin;
use super::request::RequestTable;
use super::{Common, Exclusion, Served, Sink, Validity};
use crate::expiring::{EntryId, ExpiringMap};
use crate::hash::Seeded;
use crate::learnt_count::LearntCount;
use std::collections::VecDeque;
use teiji_model::event::{Packet, Point};
use teiji_model::report::Reason;

/// Fingerprints followed at once.
const MAX_RECORDS: usize = 1 << 15;
/// The first segment of a large packet of TCP is long enough to be followed if each has this share of the packet, bytes.
const SEGMENT: u32 = 512;
/// Set in a key of [`LearntCount`] that counts reports by the host stack on the way from one tap to another.
const TRANSIT: u64 = 1 << 32;

/// A packet between a guest and the link.
#[derive(Clone, Debug, Default)]
pub(super) struct OutboundPacket {
    pub(super) vm: u32,
    tap: u32,
    pub(super) sent: u64,
    /// Time since its kick, if it has one of its own.
    pub(super) vhost_tx: Option<u64>,
    /// The request that it answers.
    request: Option<EntryId>,
    /// The guest's own request that it is.
    pub(super) outgoing: Option<EntryId>,
    ambiguous: bool,
    /// If it is split on its way, nothing more is seen of it.
    ends_if_split: bool,
    sends: u16,
    /// Reports by the host stack on the way.
    transit: u16,
    first_if: u32,
    /// How many devices it was queued on, and how many it was handed to.
    chain: u16,
    handed: u16,
    link: u32,
    pub(super) queued: u64,
    queued_cpu: u16,
    /// 0 if its qdisc was bypassed.
    pub(super) dequeued: u64,
    /// 0 until it is handed to the last device that it was queued on.
    pub(super) xmit: u64,
    xmit_cpu: u16,
    /// When it was first put on another traced tap, on which, and how often.
    tapped: u64,
    tapped_if: u32,
    taps: u16,
    /// A drop that may be that of this packet or of a copy of it.
    drop: Option<Exclusion>,
}

impl OutboundPacket {
    fn over(&self) -> bool {
        self.xmit != 0 || self.chain == 0 && self.tapped != 0
    }

    /// When it was last seen, and which point is missing after that.
    fn missing(&self) -> (u64, Exclusion) {
        let (last, reason) = match self.chain {
            0 => (self.sent, Reason::NotForwarded),
            _ => (self.queued.max(self.dequeued), Reason::NotHandedOver),
        };
        let reason = if self.ends_if_split { Reason::LargePacket } else { reason };
        (last, self.drop.unwrap_or(reason.into()))
    }

    /// Whether a packet that is dropped at the device `at` for a reason can only be this one.
    fn is_at(&self, at: u32) -> bool {
        match (self.taps, self.chain) {
            (0, 0) => at == self.tap,
            (0, _) => at == self.link,
            (taps, chain) => taps == 1 && chain == 0 && at == self.tapped_if,
        }
    }

    /// When it left the host, or the tap if it was not seen to leave, ns.
    pub(super) fn end(&self) -> u64 {
        if self.xmit != 0 { self.xmit } else { self.tapped }
    }

    /// `switch_out`, `qdisc` and `wire_out`, ns; `None` for those of which it is not known how the time divides. If
    /// the qdisc was bypassed, a packet is handed to the device on the CPU that queued it. One that is handed over on
    /// another CPU has waited in a queue whose dequeue was not seen.
    pub(super) fn stages(&self) -> Option<(u64, Option<(u64, u64)>)> {
        if self.xmit == 0 {
            return Some((self.tapped.checked_sub(self.sent)?, Some((0, 0))));
        }
        let switch_out = self.queued.checked_sub(self.sent)?;
        let rest = match self.dequeued {
            0 if self.queued_cpu != self.xmit_cpu => None,
            0 => Some((0, self.xmit.checked_sub(self.queued)?)),
            d => Some((d.checked_sub(self.queued)?, self.xmit.checked_sub(d)?)),
        };
        Some((switch_out, rest))
    }
}

/// Whether nothing is seen any more of a packet that is split on its way. The first segment of TCP has the packet's own
/// fingerprint, if it has enough bytes (`identify()` in `crates/bpf/src/common/packet_hash.bpf.h`).
fn ends_if_split(p: &Packet) -> bool {
    let segments = u32::from(p.segments());
    let of_tcp = p.matching.is_some_and(|m| m.segment().is_some());
    segments > 1 && !(of_tcp && p.len / segments >= SEGMENT)
}

/// See the module.
#[derive(Clone)]
pub(super) struct Outbound {
    records: ExpiringMap<u64, OutboundPacket>,
    learnt: LearntCount,
    /// Records that may be complete `quiet` after the given time, in order of time.
    settling: VecDeque<(u64, u64, EntryId)>,
}

impl Outbound {
    pub(super) fn new(hasher: Seeded) -> Self {
        Outbound {
            records: ExpiringMap::new(MAX_RECORDS, hasher),
            learnt: LearntCount::new(hasher),
            settling: VecDeque::new(),
        }
    }

    /// A packet is received by the host stack. It may be one that a traced guest has sent and that is in flight, for
    /// instance from a bridge to the routing table.
    pub(super) fn host_rx(&mut self, fingerprint: u64) {
        if let Some(s) = self.records.get_mut(&fingerprint)
            && s.xmit == 0
        {
            s.transit = s.transit.saturating_add(1);
        }
    }

    /// A packet is put on a tap. Returns its origin if another guest sent it.
    /// `received` says that the host has received it: it may have left the host and come back by a router.
    pub(super) fn at_tap(&mut self, now: u64, p: &Packet, received: bool, c: &Common) -> Option<Origin> {
        c.tap(p.ifindex)?;
        let id = self.records.id(&p.fingerprint)?;
        let (_, s) = self.records.by_id(id)?;
        if received && s.transit == 0 && s.xmit != 0 && !s.ambiguous {
            return None;
        }
        if s.tap == p.ifindex {
            // A packet does not come back to the guest that sent it: this is another one.
            return None;
        }
        if s.taps == 0 {
            s.tapped = now;
            s.tapped_if = p.ifindex;
            self.learnt.learn(TRANSIT | u64::from(s.tap), s.transit);
        }
        s.taps = s.taps.saturating_add(1);
        let learnt = self.learnt.compare(TRANSIT | u64::from(s.tap), s.transit);
        let validity = if s.ambiguous { Validity::ambiguous(Reason::Alike) } else { learnt };
        let origin = Origin { sent: s.sent, transit: s.transit, validity };
        self.settling.push_back((now, p.fingerprint, id));
        Some(origin)
    }

    /// `Some` if a guest has sent an identical packet that may be on its way to the tap. True if the host stack has
    /// received more than that packet, judged by how often it usually receives a packet from there. `received`: how
    /// often it has received packets with this fingerprint.
    pub(super) fn may_be_in_flight(&self, fingerprint: u64, tap: u32, received: u16) -> Option<bool> {
        let s = self.records.get(&fingerprint)?;
        let may_be = s.tap != tap && (s.ambiguous || s.taps == 0 && s.chain == 0);
        let transit = self.learnt.get(TRANSIT | u64::from(s.tap)).unwrap_or(0);
        may_be.then_some(s.ambiguous || received != transit)
    }

    /// Whether a packet identical to the one on this tap may be on its way to it from another guest. `received` is as
    /// in [`Self::at_tap`].
    pub(super) fn follows(&self, fingerprint: u64, tap: u32, received: bool) -> bool {
        self.records.get(&fingerprint).is_some_and(|s| {
            let came_back = received && s.transit == 0 && s.xmit != 0;
            s.tap != tap && (s.ambiguous || s.taps == 0 && !came_back)
        })
    }

    pub(super) fn tap_send(
        &mut self,
        now: u64,
        p: &Packet,
        c: &mut Common,
        requests: &mut RequestTable,
        sink: Sink,
    ) {
        let Some(tap) = c.tap(p.ifindex) else { return };
        let vm = c.taps[tap].vm;
        c.vm_stats[vm as usize].outbound.on_tap(p);
        // A frame whose queue is not known has no kick of its own: the kick of another queue says nothing about it.
        let queue = p.queue.and_then(|queue| c.taps[tap].queue(queue));
        let (kick, before) = queue.map_or((None, 0), |q| (q.kick, std::mem::replace(&mut q.sent, now)));
        // One that an earlier frame of the queue had, too, says nothing about when this one was ready.
        let kick = kick.filter(|(ts, _)| *ts >= before);
        let vhost_tx = kick.map(|(ts, _)| now - ts);
        let part = requests.part_of_packet(now, vm, p.matching.as_ref(), false, Validity::Valid, c);
        let request = requests.answer(now, vm, p, part, kick, c);
        let outgoing = match request {
            None if c.taps[tap].served != Served::Unseen => {
                requests.begin_outgoing(now, vm, part, now - vhost_tx.unwrap_or(0), c)
            }
            _ => None,
        };
        if let Some(id) = self.records.id(&p.fingerprint) {
            if self.has_left(id) {
                if let Some(s) = self.records.remove(&p.fingerprint) {
                    self.done(s, c, requests, sink);
                }
            } else if let Some((_, s)) = self.records.by_id(id) {
                if !s.ambiguous {
                    s.ambiguous = true;
                    c.vm_stats[s.vm as usize].outbound.incomplete += 1;
                    requests.close(s.request.take(), Validity::ambiguous(Reason::Alike), c);
                    requests.outgoing.not_left(s.outgoing.take(), Validity::ambiguous(Reason::Alike), c);
                }
                s.sends = s.sends.saturating_add(1);
                c.vm_stats[vm as usize].outbound.incomplete += 1;
                requests.close(request, Validity::ambiguous(Reason::Alike), c);
                requests.outgoing.not_left(outgoing, Validity::ambiguous(Reason::Alike), c);
                self.records.touch(&p.fingerprint, now);
                return;
            }
        }
        let sent = OutboundPacket {
            vm,
            tap: p.ifindex,
            sent: now,
            vhost_tx,
            request,
            ends_if_split: ends_if_split(p),
            outgoing,
            sends: 1,
            ..OutboundPacket::default()
        };
        if let Some((_, old)) = self.records.insert(p.fingerprint, sent, now) {
            c.evicted += 1;
            self.give_up(old, c, requests);
        }
    }

    /// Whether a packet is known to have left before the quiet time is over.
    fn has_left(&mut self, id: EntryId) -> bool {
        let Some((_, s)) = self.records.by_id(id) else { return false };
        let whole = s.chain == 0 || self.learnt.compare(u64::from(s.first_if), s.chain).is_valid();
        !s.ambiguous && s.over() && whole
    }

    /// A packet passes a link's queue. Packets that no traced guest has sent are ignored.
    pub(super) fn device(&mut self, now: u64, cpu: u16, p: &Packet) {
        let Some(id) = self.records.id(&p.fingerprint) else { return };
        let Some((_, s)) = self.records.by_id(id) else { return };
        match p.point {
            Point::DevQueue => {
                if s.chain == 0 {
                    s.first_if = p.ifindex;
                }
                s.chain = s.chain.saturating_add(1);
                (s.link, s.queued, s.queued_cpu) = (p.ifindex, now, cpu);
                (s.dequeued, s.xmit) = (0, 0);
            }
            Point::QdiscDequeue if p.ifindex == s.link && s.chain > 0 => {
                // If the driver refuses a packet, it is dequeued again.
                (s.dequeued, s.xmit) = (now, 0);
            }
            Point::DevXmit if p.ifindex == s.link && s.chain > 0 => {
                s.handed = s.handed.saturating_add(1);
                (s.xmit, s.xmit_cpu) = (now, cpu);
                self.settling.push_back((now, p.fingerprint, id));
            }
            _ => {}
        }
    }

    /// Ends packets of which nothing was seen for long enough.
    pub(super) fn complete_settled(
        &mut self,
        now: u64,
        c: &mut Common,
        requests: &mut RequestTable,
        sink: Sink,
    ) {
        while let Some((then, fingerprint, id)) = self.settling.front().copied() {
            if then.saturating_add(c.quiet) > now {
                return;
            }
            self.settling.pop_front();
            let Some((_, s)) = self.records.by_id(id) else { continue };
            let learnt = self.learnt.get(u64::from(s.first_if)).unwrap_or(1);
            let over = if s.ambiguous {
                // All copies are accounted for.
                let queued = u32::from(s.sends) * u32::from(learnt);
                let handed = s.chain > 0 && u32::from(s.chain) == queued && s.handed == s.chain;
                handed || s.chain == 0 && s.taps == s.sends
            } else {
                s.over() && s.end() <= then
            };
            if over && let Some(s) = self.records.remove(&fingerprint) {
                self.done(s, c, requests, sink);
            }
        }
    }

    /// Counts a packet that has left.
    fn done(&mut self, s: OutboundPacket, c: &mut Common, requests: &mut RequestTable, sink: Sink) {
        if s.ambiguous {
            return; // Counted when it became ambiguous.
        }
        if !s.over() {
            let (last, missing) = s.missing();
            let exclusion = c.unless_ended(missing, last);
            if exclusion.reason == Reason::DroppedOut {
                return Self::count_drop(&s, exclusion, c, requests);
            }
            c.vm_stats[s.vm as usize].outbound.incomplete += 1;
            return Self::not_left(&s, Validity::Incomplete(exclusion), c, requests);
        }
        let mut validity = Validity::Valid;
        if s.chain > 0 {
            let first = u64::from(s.first_if);
            self.learnt.learn(first, s.chain);
            validity = validity.worse(self.learnt.compare(first, s.chain));
        }
        let stages = s.stages();
        if c.lost.touches(s.sent, s.end()) {
            validity = validity.worse(Validity::incomplete(Reason::EventsLost));
        }
        if stages.is_none() {
            validity = validity.worse(Validity::incomplete(Reason::OutOfOrder));
        }
        let stats = &mut c.vm_stats[s.vm as usize].outbound;
        match (validity, stages) {
            (Validity::Valid, Some((switch_out, rest))) => {
                stats.packets += 1;
                if let Some(ns) = s.vhost_tx {
                    stats.stages[0].record(ns);
                }
                stats.stages[1].record(switch_out);
                if let Some((qdisc, wire_out)) = rest {
                    stats.stages[2].record(qdisc);
                    stats.stages[3].record(wire_out);
                }
                requests.complete(&s, c, sink);
            }
            _ => {
                stats.incomplete += 1;
                Self::not_left(&s, validity, c, requests);
            }
        }
    }

    /// Counts a packet that is removed because there is no room.
    fn give_up(&mut self, s: OutboundPacket, c: &mut Common, requests: &mut RequestTable) {
        if !s.ambiguous {
            c.vm_stats[s.vm as usize].outbound.incomplete += 1;
            Self::not_left(&s, Validity::incomplete(Reason::Evicted), c, requests);
        }
    }

    /// A packet cannot be followed until it has left.
    fn not_left(s: &OutboundPacket, validity: Validity, c: &mut Common, requests: &mut RequestTable) {
        requests.close(s.request, validity, c);
        requests.outgoing.not_left(s.outgoing, validity, c);
    }

    pub(super) fn expire(&mut self, now: u64, c: &mut Common, requests: &mut RequestTable, sink: Sink) {
        let Some(then) = now.checked_sub(c.ttl) else { return };
        while let Some((_, s)) = self.records.pop_until(then) {
            self.done(s, c, requests, sink);
        }
    }

    pub(super) fn finish(&mut self, c: &mut Common, requests: &mut RequestTable, sink: Sink) {
        while let Some((_, s)) = self.records.pop_oldest() {
            self.done(s, c, requests, sink);
        }
    }
}

impl OutboundPacket {
    pub(super) fn request(&self) -> Option<EntryId> {
        self.request
    }
}
