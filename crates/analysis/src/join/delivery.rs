//! Packets toward guests, from the vhost worker into the guest: joined by thread.
//!
//! ```text
//!             TapDequeue        Interrupt              GuestEntry
//!  [on the tap] ─────► [taken] ──────────► [accepted] ───────────► done
//!                         │ Posted, or Suppressed in guest mode ─► done
//!                         │ its worker slept: the signal was lost ─► done, with a hole
//!                         │ its signal came too late to be used ───► done, with a hole
//!                         │ Unknown ───────────────────────────────► done, with a hole
//!                         │ Dropped by its reader: vhost discarded it ► done, with a hole
//! ```
//!
//! A worker here is whatever thread takes packets off the tap: a vhost worker, or the VMM's.
//!
//! A signal covers the packets that its worker took off the tap before it began to signal. A worker does not sleep
//! before it has signalled; if its clock shows that it slept while it held packets, the event of their signal was
//! lost. A guest entry covers the interrupts of its vector that were accepted up to [`GuestEntry::upto`].

use super::arrival::Arrival;
use super::request::{CopyId, RequestTable};
use super::{Common, Exclusion, Validity};
use crate::expiring::{EntryId, ExpiringSlab};
use crate::hash::{Map, Seeded};
use teiji_model::event::{Delivery as Became, GuestEntry, Interrupt, Packet};
use teiji_model::report::Reason;
use teiji_model::stage::{Split, ThreadState};

/// Packets followed at once.
const MAX_PACKETS: usize = 1 << 15;
/// Workers and vCPUs that hold packets.
const MAX_THREADS: usize = 4096;
/// Packets that one worker or vCPU holds.
const MAX_IN_HAND: usize = 4096;

/// A packet on its way to a guest.
#[derive(Clone, Debug, Default)]
pub(super) struct InboundPacket {
    pub(super) vm: u32,
    pub(super) validity: Validity,
    /// Why it was followed no further; `None` if it reached the guest.
    pub(super) stop: Option<Exclusion>,
    /// A drop that may be that of this packet or of a copy of it.
    pub(super) drop: Option<Exclusion>,
    pub(super) request: Option<CopyId>,
    /// The guest's own request that it answers.
    pub(super) answers: Option<EntryId>,
    /// How many earlier copies of its request, with the same fingerprint, reached the guest.
    pub(super) earlier_alike: u8,
    pub(super) start: u64,
    pub(super) enqueued: u64,
    pub(super) dequeued: u64,
    pub(super) signalled: u64,
    pub(super) accepted: u64,
    pub(super) entered: u64,
    /// The worker's clock when the packet was put on the tap, and when it was taken off.
    pub(super) put_clock: Option<Split>,
    pub(super) taken_clock: Option<Split>,
    /// The worker that took it off the tap: its thread id.
    pub(super) worker: u32,
    pub(super) depth: u16,
    /// The vCPU by KVM's number, and by its index in the VM.
    pub(super) vcpu: u32,
    pub(super) vcpu_index: u16,
    pub(super) state: Option<ThreadState>,
    pub(super) accept_clock: Option<Split>,
    pub(super) entry_clock: Split,
    pub(super) fingerprint: u64,
}

impl InboundPacket {
    /// This packet, followed no further because of `exclusion`.
    fn stopped(mut self, exclusion: Exclusion) -> InboundPacket {
        self.validity = self.validity.worse(Validity::Incomplete(exclusion));
        self.stop = Some(exclusion);
        self
    }

    /// When it was last seen, and which point is missing after that.
    fn missing(&self) -> (u64, Exclusion) {
        if self.accepted > 0 {
            (self.accepted, Reason::NotEntered.into())
        } else if self.dequeued > 0 {
            (self.dequeued, Reason::NotSignalled.into())
        } else {
            (self.enqueued, self.drop.unwrap_or(Reason::NotTaken.into()))
        }
    }
}

/// An interrupt that waits for its vCPU to enter guest mode.
#[derive(Clone)]
struct Awaited {
    vector: u8,
    accepted: u64,
    packet: EntryId,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Delivery {
    packets: ExpiringSlab<InboundPacket>,
    /// Packets that were taken off a tap and not signalled yet, by worker and tap.
    taken: Map<u64, Vec<EntryId>>,
    /// Packets whose interrupt was accepted and whose guest entry has not come yet, by VM and vCPU.
    awaited: Map<u64, Vec<Awaited>>,
}

fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) << 32 | u64::from(b)
}

impl Delivery {
    pub(super) fn new(hasher: Seeded) -> Self {
        Delivery {
            packets: ExpiringSlab::new(MAX_PACKETS),
            taken: Map::with_hasher(hasher),
            awaited: Map::with_hasher(hasher),
        }
    }

    /// A packet is on a tap.
    pub(super) fn begin(
        &mut self,
        packet: InboundPacket,
        now: u64,
        c: &mut Common,
        requests: &mut RequestTable,
    ) -> EntryId {
        if self.packets.full()
            && let Some(oldest) = self.packets.pop_oldest()
        {
            c.evicted += 1;
            Self::done(oldest.stopped(Reason::Evicted.into()), c, requests);
        }
        self.packets.insert(packet, now)
    }

    /// Another packet identical to one on a tap was seen: it is ambiguous.
    pub(super) fn mark_ambiguous(&mut self, id: EntryId, requests: &mut RequestTable) {
        if let Some(packet) = self.packets.get_mut(id) {
            packet.validity = packet.validity.worse(Validity::ambiguous(Reason::Alike));
            requests.mark(packet.request, packet.validity);
            requests.outgoing.mark(packet.answers, packet.validity);
        }
    }

    /// A packet on a tap is no longer followed.
    pub(super) fn evict(&mut self, id: EntryId, c: &mut Common, requests: &mut RequestTable) {
        Self::give_up(&mut self.packets, id, Reason::Evicted, c, requests);
    }

    /// A packet on a tap, or a copy of it, is dropped there: it counts as dropped only if no worker takes it.
    pub(super) fn may_be_dropped(&mut self, id: EntryId, exclusion: Exclusion) {
        if let Some(packet) = self.packets.get_mut(id) {
            packet.drop = Some(exclusion);
        }
    }

    /// A packet on a tap, or one that a worker has taken off it, is dropped.
    pub(super) fn dropped(
        &mut self,
        now: u64,
        id: EntryId,
        exclusion: Exclusion,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let Some(packet) = self.packets.remove(id) else { return };
        let request = packet.request;
        Self::done(packet.stopped(exclusion), c, requests);
        requests.dropped(now, request, exclusion, c);
    }

    /// A packet is taken off a tap. Returns whether it was followed still.
    pub(super) fn taken(
        &mut self,
        now: u64,
        p: &Packet,
        id: EntryId,
        c: &mut Common,
        requests: &mut RequestTable,
    ) -> bool {
        let Some(packet) = self.packets.get_mut(id) else { return false };
        packet.dequeued = now;
        packet.drop = None; // The drop was that of a copy.
        requests.progress(packet.request, now, Reason::NotSignalled);
        packet.depth = p.depth;
        packet.worker = p.tid;
        packet.taken_clock = p.worker;
        let thread = pair(p.tid, p.ifindex);
        if self.taken.len() >= MAX_THREADS {
            self.taken.retain(|_, ids| !ids.is_empty());
        }
        if self.taken.len() < MAX_THREADS || self.taken.contains_key(&thread) {
            let ids = self.taken.entry(thread).or_default();
            if ids.len() < MAX_IN_HAND {
                ids.push(id);
                return true;
            }
        }
        Self::give_up(&mut self.packets, id, Reason::Evicted, c, requests);
        true
    }

    /// The kernel has dropped a packet at a tap after a worker had taken it: vhost discards what the guest's buffers are too small
    /// for. It is the last one like it, as the worker takes no other in between. Returns whether a worker has it.
    pub(super) fn discarded(
        &mut self,
        now: u64,
        tap: u32,
        fingerprint: u64,
        exclusion: Exclusion,
        c: &mut Common,
        requests: &mut RequestTable,
    ) -> bool {
        let of_tap = self.taken.iter_mut().filter(|(thread, _)| **thread as u32 == tap);
        for (_, ids) in of_tap {
            let is_it =
                |id: &EntryId| self.packets.get(*id).is_some_and(|packet| packet.fingerprint == fingerprint);
            if let Some(at) = ids.iter().rposition(is_it) {
                let id = ids.remove(at);
                self.dropped(now, id, exclusion, c, requests);
                return true;
            }
        }
        false
    }

    /// Ends the packets that the worker holds if it has slept since it took them: their signal was not seen.
    pub(super) fn check_slept(&mut self, p: &Packet, c: &mut Common, requests: &mut RequestTable) {
        let (Some(ids), Some(clock)) = (self.taken.get_mut(&pair(p.tid, p.ifindex)), p.worker) else {
            return;
        };
        let Some(packet) = ids.last().and_then(|id| self.packets.get(*id)) else { return };
        let asleep = |clock: &Split| clock.get(ThreadState::Asleep);
        if packet.taken_clock.is_some_and(|then| asleep(&clock) > asleep(&then)) {
            for id in ids.drain(..) {
                Self::give_up(&mut self.packets, id, Reason::NotSignalled, c, requests);
            }
        }
    }

    /// Ends the packets of a signal whose report came too late.
    pub(super) fn late_interrupt(&mut self, i: &Interrupt, c: &mut Common, requests: &mut RequestTable) {
        let Some(ids) = self.taken.get_mut(&pair(i.tid, i.ifindex)) else { return };
        let covered = Self::covered(&self.packets, ids, i);
        for id in ids.drain(..covered) {
            Self::give_up(&mut self.packets, id, Reason::EventsLost, c, requests);
        }
    }

    /// How many of the packets that a worker holds a signal covers.
    fn covered(packets: &ExpiringSlab<InboundPacket>, ids: &[EntryId], i: &Interrupt) -> usize {
        let of_signal = |id: &&EntryId| packets.get(**id).is_none_or(|packet| packet.dequeued <= i.signalled);
        ids.iter().take_while(of_signal).count()
    }

    /// Whether packets that are followed wait for this signal.
    pub(super) fn awaits(&self, i: &Interrupt) -> bool {
        self.taken.get(&pair(i.tid, i.ifindex)).is_some_and(|ids| !ids.is_empty())
    }

    pub(super) fn interrupt(&mut self, now: u64, i: &Interrupt, c: &mut Common, requests: &mut RequestTable) {
        let Some(ids) = self.taken.get_mut(&pair(i.tid, i.ifindex)) else { return };
        let in_guest = i.delivery == Became::Posted
            || i.delivery == Became::Suppressed && i.state == Some(ThreadState::Guest);
        let vector = if i.delivery == Became::Suppressed { 0 } else { i.vector };
        let packets = &mut self.packets;
        let covered = Self::covered(packets, ids, i);
        let waits = pair(i.vm, i.vcpu);
        let index = i.index.unwrap_or(u16::try_from(i.vcpu).unwrap_or(u16::MAX));
        if self.awaited.len() >= MAX_THREADS {
            self.awaited.retain(|_, list| !list.is_empty());
        }
        let has_room = self.awaited.len() < MAX_THREADS || self.awaited.contains_key(&waits);
        let (mut signalled, mut arrival) = (None, Arrival::default());
        for id in ids.drain(..covered) {
            let Some(packet) = packets.get_mut(id) else { continue };
            let (_, taken, count) = signalled.get_or_insert((packet.vm, packet.dequeued, 0));
            *taken = packet.dequeued.min(*taken);
            *count += 1;
            let of_vm = c.pids[packet.vm as usize] == i.vm;
            let reason = if i.delivery == Became::Unknown || !of_vm {
                Some(c.without_interrupt(i))
            } else if i.signalled > now {
                Some(Reason::OutOfOrder)
            } else {
                (!has_room).then_some(Reason::Evicted)
            };
            if let Some(reason) = reason {
                Self::give_up(packets, id, reason, c, requests);
                continue;
            }
            packet.signalled = i.signalled;
            packet.accepted = now;
            (packet.vcpu, packet.vcpu_index) = (i.vcpu, index);
            packet.state = i.state;
            packet.accept_clock = i.state.map(|_| i.clock);
            if in_guest {
                packet.entered = now;
                packet.entry_clock = i.clock;
                arrival.add(packet);
                if let Some(packet) = packets.remove(id) {
                    Self::done(packet, c, requests);
                }
                continue;
            }
            let list = self.awaited.entry(waits).or_default();
            if list.len() < MAX_IN_HAND {
                list.push(Awaited { vector, accepted: now, packet: id });
                requests.progress(packet.request, now, Reason::NotEntered);
            } else {
                Self::give_up(packets, id, Reason::Evicted, c, requests);
            }
        }
        arrival.count(now, c);
        // If events were lost meanwhile, a signal may be among them.
        if let Some((vm, taken, packets)) = signalled
            && !c.lost.touches(taken, now)
        {
            c.vm_stats[vm as usize].over_time.signal(packets);
        }
    }

    pub(super) fn guest_entry(
        &mut self,
        now: u64,
        e: &GuestEntry,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        let Some(list) = self.awaited.get_mut(&pair(e.vm, e.vcpu)) else { return };
        let (packets, mut arrival) = (&mut self.packets, Arrival::default());
        list.retain(|a| {
            if a.vector != e.vector || a.accepted > e.upto {
                return true;
            }
            if let Some(mut packet) = packets.remove(a.packet) {
                packet.entered = now;
                packet.vcpu_index = e.index;
                packet.entry_clock = e.clock;
                arrival.add(&packet);
                Self::done(packet, c, requests);
            }
            false
        });
        arrival.count(now, c);
    }

    fn give_up(
        packets: &mut ExpiringSlab<InboundPacket>,
        id: EntryId,
        reason: Reason,
        c: &mut Common,
        requests: &mut RequestTable,
    ) {
        if let Some(packet) = packets.remove(id) {
            Self::done(packet.stopped(reason.into()), c, requests);
        }
    }

    /// Counts a packet that is no longer followed, and hands it to its request.
    fn done(mut packet: InboundPacket, c: &mut Common, requests: &mut RequestTable) {
        if packet.validity.is_valid() && c.lost.touches(packet.start, packet.entered) {
            packet.validity = Validity::incomplete(Reason::EventsLost);
        }
        let stats = &mut c.vm_stats[packet.vm as usize].inbound;
        if packet.validity.is_valid() {
            stats.packets += 1;
            let times = [
                packet.start,
                packet.enqueued,
                packet.dequeued,
                packet.signalled,
                packet.accepted,
                packet.entered,
            ];
            for (series, t) in stats.stages.iter_mut().zip(times.windows(2)) {
                series.record(t[1].saturating_sub(t[0]));
            }
        } else {
            stats.incomplete += 1;
            stats.dropped +=
                u64::from(packet.stop.is_some_and(|exclusion| exclusion.reason == Reason::DroppedIn));
        }
        requests.arrived(packet, c);
    }

    pub(super) fn expire(&mut self, then: u64, c: &mut Common, requests: &mut RequestTable) {
        while let Some(packet) = self.packets.pop_until(then) {
            let (last, missing) = packet.missing();
            let exclusion = c.unless_ended(missing, last);
            Self::done(packet.stopped(exclusion), c, requests);
        }
    }

    pub(super) fn finish(&mut self, c: &mut Common, requests: &mut RequestTable) {
        self.expire(u64::MAX, c, requests);
    }
}
