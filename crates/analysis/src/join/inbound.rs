//! Packets toward guests.
//!
//! ```text
//!            HostRx            TapEnqueue             TapDequeue       Interrupt        GuestEntry
//!  (nothing) ─────► [arriving] ─────────► [on the tap] ────────► [taken] ──────► [accepted] ─────► done
//!      │                │                      │                                  Posted, or
//!      │ TapEnqueue     │ another like it,     │ HostRx or TapEnqueue             Suppressed in guest
//!      ▼                ▼ too many reports     ▼ of another like it               ─────────────────► done
//!  [on the tap]     [spoilt] ◄─────────────────┘
//! ```
//!
//! By fingerprint up to the dequeue. A record whose reports do not come to one packet is spoilt: all its
//! packets are ambiguous, and so are those that follow with its fingerprint, until the reports of all have
//! been accounted for or none was seen for the time a packet may live. Fewer reports than usual, or none
//! on a tap whose packets have them, are a hole: the start of the packet is not known. On a tap that is
//! fed by the host itself too, a packet without reports starts at the tap.
//!
//! From the dequeue on by thread: a signal covers what its worker has taken off the tap until it began to
//! signal. A worker does not sleep before it has signalled; if its clock says that it slept with packets
//! in hand, their signal was lost. An entry covers the interrupts of its vector accepted up to
//! [`GuestEntry::upto`].

use super::request::Requests;
use super::{Common, Fate};
use crate::aged::{Aged, Id, Table};
use crate::hash::{Map, Seeded};
use crate::usual::Usual;
use teiji_model::event::{Delivery, GuestEntry, Interrupt, Packet};
use teiji_model::stage::{Split, ThreadState};

/// Fingerprints followed at once.
const MAX_RECORDS: usize = 1 << 16;
/// Legs followed at once.
const MAX_LEGS: usize = 1 << 15;
/// Workers and vCPUs with packets in hand.
const MAX_THREADS: usize = 4096;
/// Packets in hand of one worker or vCPU.
const MAX_IN_HAND: usize = 4096;
/// Taps that one packet may be flooded to.
const MAX_TAPS: usize = 4;
/// Set in a key of [`Usual`] that counts the reports by other devices than the first.
const OTHERS: u64 = 1 << 33;
/// Share of a tap's packets with a report before the tap, above which one without has lost it.
const REPORTED: f32 = 0.9;

/// A packet on its way to a guest.
#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub(super) vm: u32,
    pub(super) fate: Fate,
    pub(super) request: Option<Id>,
    pub(super) start: u64,
    pub(super) enqueued: u64,
    pub(super) dequeued: u64,
    pub(super) signalled: u64,
    pub(super) accepted: u64,
    pub(super) entered: u64,
    /// The worker's clock when the packet was put on the tap, and when it was taken off.
    pub(super) put_clock: Option<Split>,
    pub(super) taken_clock: Option<Split>,
    pub(super) tap_behind: u32,
    pub(super) depth: u16,
    pub(super) vcpu: u16,
    pub(super) state: Option<ThreadState>,
    pub(super) accept_clock: Split,
    pub(super) entry_clock: Split,
    pub(super) wake_behind: u32,
}

/// Where a packet comes from that another traced VM has sent.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    /// When it was sent, ns.
    pub(super) sent: u64,
    /// How often the host stack has received it since.
    pub(super) transit: u16,
    /// How sure that is.
    pub(super) fate: Fate,
}

/// Packets of one fingerprint between the host's edge and the worker.
#[derive(Default)]
struct Record {
    first: u64,
    first_if: u32,
    /// Reports by the first device, and by others.
    reports: u16,
    others: u16,
    enqueued: u16,
    dequeued: u16,
    spoilt: bool,
    /// Whether a guest has sent one of them.
    sent: bool,
    on_taps: [Option<(u32, Id)>; MAX_TAPS],
}

impl Record {
    fn open(&self) -> bool {
        self.on_taps.iter().any(Option::is_some)
    }
}

/// An interrupt that waits for its vCPU to enter guest mode.
struct Awaited {
    vector: u8,
    accepted: u64,
    leg: Id,
}

/// See the module.
pub(super) struct Inbound {
    records: Table<u64, Record>,
    legs: Aged<Leg>,
    usual: Usual,
    /// By tap: share of recent packets that were reported before the tap.
    reported: Vec<Option<f32>>,
    /// Taken and not signalled, by worker and tap.
    taken: Map<u64, Vec<Id>>,
    /// Accepted and not entered, by VM and vCPU.
    awaited: Map<u64, Vec<Awaited>>,
}

fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) << 32 | u64::from(b)
}

impl Inbound {
    pub(super) fn new(hasher: Seeded, taps: usize) -> Self {
        Inbound {
            records: Table::new(MAX_RECORDS, hasher),
            legs: Aged::new(MAX_LEGS),
            usual: Usual::new(hasher),
            reported: vec![None; taps],
            taken: Map::with_hasher(hasher),
            awaited: Map::with_hasher(hasher),
        }
    }

    pub(super) fn host_rx(&mut self, now: u64, p: &Packet, c: &mut Common, requests: &mut Requests) {
        if let Some(r) = self.records.get_mut(&p.fingerprint) {
            if r.enqueued > 0 && !r.spoilt {
                Self::spoil(r, &mut self.legs, requests);
            }
            if r.reports == 0 {
                (r.first, r.first_if) = (now, p.ifindex);
            }
            if p.ifindex == r.first_if {
                r.reports = r.reports.saturating_add(1);
            } else {
                r.others = r.others.saturating_add(1);
            }
            if r.spoilt {
                self.records.touch(&p.fingerprint, now);
            }
            return;
        }
        let record = Record { first: now, first_if: p.ifindex, reports: 1, ..Record::default() };
        self.insert(p.fingerprint, record, now, c);
    }

    /// Whether the host has received packets of this fingerprint that are not on a tap yet.
    pub(super) fn received(&mut self, fingerprint: u64) -> bool {
        self.records.get_mut(&fingerprint).is_some_and(|r| r.reports > 0)
    }

    fn insert(&mut self, fingerprint: u64, record: Record, now: u64, c: &mut Common) {
        if self.records.insert(fingerprint, record, now).is_some_and(|(_, r)| r.open() || r.spoilt) {
            c.evicted += 1;
        }
    }

    /// Marks the record and its packets as ambiguous.
    fn spoil(r: &mut Record, legs: &mut Aged<Leg>, requests: &mut Requests) {
        r.spoilt = true;
        for (_, id) in r.on_taps.iter_mut().filter_map(Option::take) {
            if let Some(leg) = legs.get_mut(id) {
                leg.fate = Fate::Ambiguous;
                requests.mark(leg.request, Fate::Ambiguous);
            }
        }
    }

    /// `from`: another traced VM's packet like it, if there is one.
    pub(super) fn tap_enqueue(
        &mut self,
        now: u64,
        p: &Packet,
        from: Option<Origin>,
        c: &mut Common,
        requests: &mut Requests,
    ) {
        let Some(tap) = c.tap(p.ifindex) else { return };
        let vm = c.taps[tap].vm;
        if self.records.id(&p.fingerprint).is_none() {
            self.insert(p.fingerprint, Record::default(), now, c);
        }
        let Some(r) = self.records.get_mut(&p.fingerprint) else { return };
        r.sent |= from.is_some();
        let (start, fate) = Self::start(r, now, tap, from, &mut self.usual, &mut self.reported);
        r.enqueued = r.enqueued.saturating_add(1);
        let again = r.on_taps.iter().flatten().any(|(ifindex, _)| *ifindex == p.ifindex);
        let room = r.on_taps.iter().position(Option::is_none);
        let slot = match room {
            Some(slot) if !r.spoilt && !again && fate != Fate::Ambiguous => slot,
            _ => {
                Self::spoil(r, &mut self.legs, requests);
                self.records.touch(&p.fingerprint, now);
                c.books[vm as usize].inbound.incomplete += 1;
                requests.open(now, vm, p.matching.as_ref(), start, Fate::Ambiguous, c);
                return;
            }
        };
        let request = requests.open(now, vm, p.matching.as_ref(), start, fate, c);
        if self.legs.full()
            && let Some(leg) = self.legs.pop_oldest()
        {
            c.evicted += 1;
            Self::done(leg.spoilt(Fate::Hole), c, requests);
        }
        let leg = Leg {
            vm,
            fate,
            request,
            start,
            enqueued: now,
            dequeued: 0,
            signalled: 0,
            accepted: 0,
            entered: 0,
            put_clock: p.worker,
            taken_clock: None,
            tap_behind: 0,
            depth: 0,
            vcpu: 0,
            state: None,
            accept_clock: Split::default(),
            entry_clock: Split::default(),
            wake_behind: 0,
        };
        r.on_taps[slot] = Some((p.ifindex, self.legs.insert(leg, now)));
    }

    /// When the packet that is being put on a tap was received, and how sure that is.
    fn start(
        r: &Record,
        now: u64,
        tap: usize,
        from: Option<Origin>,
        usual: &mut Usual,
        reported: &mut [Option<f32>],
    ) -> (u64, Fate) {
        let present = r.reports > 0 || from.is_some();
        let share = reported[tap].unwrap_or(f32::from(u8::from(present)));
        if r.enqueued == 0 {
            reported[tap] = Some(share + (f32::from(u8::from(present)) - share) / 64.0);
        }
        match from {
            // What was received besides it is another packet.
            Some(from) if from.transit != r.reports.saturating_add(r.others) => (from.sent, Fate::Ambiguous),
            Some(from) => (from.sent, from.fate),
            None if r.reports > 0 => {
                let device = u64::from(r.first_if);
                let known = usual.get(device).is_some();
                if r.enqueued == 0 {
                    usual.learn(device, r.reports);
                    usual.learn(device | OTHERS, r.others);
                }
                if !known && r.others > 0 {
                    // The others' may be another packet's; whether they are the next one will tell.
                    return (r.first, Fate::Hole);
                }
                (r.first, usual.compare(device, r.reports).max(usual.compare(device | OTHERS, r.others)))
            }
            None => (now, if share > REPORTED { Fate::Hole } else { Fate::Sound }),
        }
    }

    pub(super) fn tap_dequeue(&mut self, now: u64, p: &Packet, c: &mut Common, requests: &mut Requests) {
        let Some(tap) = c.tap(p.ifindex) else { return };
        let vm = c.taps[tap].vm as usize;
        c.books[vm].depth.record(u64::from(p.depth));
        let thread = pair(p.tid, p.ifindex);
        self.check_slept(thread, p, c, requests);
        let Some(r) = self.records.get_mut(&p.fingerprint) else {
            c.books[vm].inbound.incomplete += 1;
            return;
        };
        r.dequeued = r.dequeued.saturating_add(1);
        if r.spoilt {
            let one = self.usual.get(u64::from(r.first_if)).unwrap_or(1);
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
        let Some((id, leg)) = id.and_then(|id| self.legs.get_mut(id).map(|leg| (id, leg))) else {
            c.books[vm].inbound.incomplete += 1;
            return;
        };
        leg.dequeued = now;
        leg.depth = p.depth;
        leg.tap_behind = p.behind;
        leg.taken_clock = p.worker;
        let taken = &mut self.taken;
        if taken.len() >= MAX_THREADS {
            taken.retain(|_, ids| !ids.is_empty());
        }
        if taken.len() < MAX_THREADS || taken.contains_key(&thread) {
            let ids = taken.entry(thread).or_default();
            if ids.len() < MAX_IN_HAND {
                ids.push(id);
                return;
            }
        }
        Self::give_up(&mut self.legs, id, c, requests);
    }

    /// Gives up what the worker had in hand if it has slept since: the signal for it was not seen.
    fn check_slept(&mut self, thread: u64, p: &Packet, c: &mut Common, requests: &mut Requests) {
        let (Some(ids), Some(clock)) = (self.taken.get_mut(&thread), p.worker) else { return };
        let Some(leg) = ids.last().and_then(|id| self.legs.get(*id)) else { return };
        let asleep = |clock: &Split| clock.get(ThreadState::Asleep);
        if leg.taken_clock.is_some_and(|then| asleep(&clock) > asleep(&then)) {
            for id in ids.drain(..) {
                Self::give_up(&mut self.legs, id, c, requests);
            }
        }
    }

    pub(super) fn interrupt(&mut self, now: u64, i: &Interrupt, c: &mut Common, requests: &mut Requests) {
        let Some(ids) = self.taken.get_mut(&pair(i.tid, i.ifindex)) else { return };
        let in_guest = i.delivery == Delivery::Posted
            || i.delivery == Delivery::Suppressed && i.state == Some(ThreadState::Guest);
        let vector = if i.delivery == Delivery::Suppressed { 0 } else { i.vector };
        let legs = &mut self.legs;
        let covered =
            ids.iter().take_while(|id| legs.get(**id).is_none_or(|leg| leg.dequeued <= i.signalled)).count();
        let waits = pair(i.vm, u32::from(i.vcpu));
        if self.awaited.len() >= MAX_THREADS {
            self.awaited.retain(|_, list| !list.is_empty());
        }
        let roomy = self.awaited.len() < MAX_THREADS || self.awaited.contains_key(&waits);
        for id in ids.drain(..covered) {
            let Some(leg) = legs.get_mut(id) else { continue };
            let of_vm = c.pids[leg.vm as usize] == i.vm;
            if i.delivery == Delivery::Unknown || i.signalled > now || !of_vm || !roomy {
                Self::give_up(legs, id, c, requests);
                continue;
            }
            leg.signalled = i.signalled;
            leg.accepted = now;
            leg.vcpu = i.vcpu;
            leg.state = i.state;
            leg.accept_clock = i.clock;
            if in_guest {
                leg.entered = now;
                leg.entry_clock = i.clock;
                if let Some(leg) = legs.remove(id) {
                    Self::done(leg, c, requests);
                }
                continue;
            }
            let list = self.awaited.entry(waits).or_default();
            if list.len() < MAX_IN_HAND {
                list.push(Awaited { vector, accepted: now, leg: id });
            } else {
                Self::give_up(legs, id, c, requests);
            }
        }
    }

    pub(super) fn guest_entry(&mut self, now: u64, e: &GuestEntry, c: &mut Common, requests: &mut Requests) {
        let Some(list) = self.awaited.get_mut(&pair(e.vm, u32::from(e.vcpu))) else { return };
        let legs = &mut self.legs;
        list.retain(|a| {
            if a.vector != e.vector || a.accepted > e.upto {
                return true;
            }
            if let Some(mut leg) = legs.remove(a.leg) {
                leg.entered = now;
                leg.entry_clock = e.clock;
                leg.wake_behind = e.behind;
                Self::done(leg, c, requests);
            }
            false
        });
    }

    fn give_up(legs: &mut Aged<Leg>, id: Id, c: &mut Common, requests: &mut Requests) {
        if let Some(leg) = legs.remove(id) {
            Self::done(leg.spoilt(Fate::Hole), c, requests);
        }
    }

    /// Books a leg that has come to its end, and hands it to its request.
    fn done(mut leg: Leg, c: &mut Common, requests: &mut Requests) {
        if leg.fate == Fate::Sound && c.lost.touches(leg.start, leg.entered) {
            leg.fate = Fate::Hole;
        }
        let book = &mut c.books[leg.vm as usize].inbound;
        if leg.fate == Fate::Sound {
            book.packets += 1;
            let times = [leg.start, leg.enqueued, leg.dequeued, leg.signalled, leg.accepted, leg.entered];
            for (series, t) in book.stages.iter_mut().zip(times.windows(2)) {
                series.record(t[1].saturating_sub(t[0]));
            }
        } else {
            book.incomplete += 1;
        }
        requests.arrived(leg);
    }

    pub(super) fn expire(&mut self, now: u64, c: &mut Common, requests: &mut Requests) {
        let Some(then) = now.checked_sub(c.ttl) else { return };
        while let Some((_, r)) = self.records.pop_until(then) {
            // A spoilt record's packets are booked; others' legs go below.
            debug_assert!(!r.spoilt || !r.open());
        }
        while let Some(leg) = self.legs.pop_until(then) {
            Self::done(leg.spoilt(Fate::Hole), c, requests);
        }
    }

    pub(super) fn finish(&mut self, c: &mut Common, requests: &mut Requests) {
        while let Some(leg) = self.legs.pop_oldest() {
            Self::done(leg.spoilt(Fate::Hole), c, requests);
        }
    }
}

impl Leg {
    /// The same with a fate no better than `fate`.
    fn spoilt(mut self, fate: Fate) -> Leg {
        self.fate = self.fate.max(fate);
        self
    }
}
