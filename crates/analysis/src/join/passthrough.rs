//! Requests that reach a guest by a NIC that it was given (VFIO), from the NIC's interrupt on.
//!
//! ```text
//!  host    DeviceInterrupt ─► GuestEntry            by vCPU and vector: the entry takes the interrupts that were accepted before it
//!                                 │  by vCPU and time
//!  guest             the driver's interrupt ─► Received, Matched ─► Queued ─► Read ─► Sent ─► Handed, Matched
//!                                                │ opens a request (VM, key)              by print │ answers and completes it
//! ```
//! The host sees none of these packets, so which of them are a request and its answer, and by which device they came, the guest has
//! to say ([`EventKind::Matched`](teiji_model::guest::EventKind::Matched)); it can only deceive about its own requests. Of the devices
//! it names the PCI ids: those that the host has given to the VM count.
//!
//! A request begins with the interrupt that made the guest's driver look at the NIC, if that was certainly its packet's: the guest says so
//! ([`Matched::own`]). Any other packet may have come at any time: it has no interrupt of its own (`without_interrupt`), and begins when the guest received it.
//!
//! A guest enters with an interrupt, and handles it at once: it takes no other one in between. So of the guest entries with interrupts of
//! the VM's devices on that vCPU, the right one is the only one after the guest's previous interrupt, of whatever device, and before this
//! one ([`only_entry_between`]). Where hardware delivers interrupts, one guest entry may stand for several. Where the guest's clock is not
//! exact enough, or an interrupt was sent and not seen to be accepted, the request is incomplete ([`Reason::InterruptUnknown`]).

use super::inside::{Division, InsideTable, Stay};
use super::recent::RecentKeys;
use super::timeline::Way;
use super::{Common, Exclusion, Validity};
use crate::expiring::ExpiringMap;
use crate::hash::{Map, Seeded};
use crate::lost::LostWindows;
use crate::passthrough_stats::CompletePassthrough;
use std::collections::VecDeque;
use teiji_model::event::{Delivery, DeviceInterrupt, GuestEntry, Role};
use teiji_model::guest::Matched;
use teiji_model::host::GivenNic;
use teiji_model::report::{GuestPart, Outcome, PassthroughRequest, PassthroughStage, Reason};

/// Requests of a VM that are open at once.
const MAX_OPEN: usize = 1 << 12;
/// Keys that are remembered of a VM, of requests that its guest sends or has answered.
const MAX_OWN_KEYS: usize = 1 << 12;
/// Interrupts of a VM that wait for their guest entry, at once.
const MAX_WAITING: usize = 1 << 10;
/// Guest entries of a vCPU that are remembered.
const MAX_ENTRIES: usize = 1 << 12;
/// vCPUs of a VM whose guest entries are.
const MAX_VCPUS: usize = 1 << 12;
/// Guest entries among which the clock cannot tell.
const MAX_DOUBTFUL: usize = 64;
/// Complete requests that wait to be fetched.
const MAX_DONE: usize = 1 << 16;

/// An interrupt that a vCPU has accepted, and not entered its guest with yet.
#[derive(Clone, Copy)]
struct Waiting {
    began: u64,
    accepted: u64,
    vcpu: u32,
    vector: u8,
    by_hardware: bool,
}

/// A vCPU was in guest mode with an interrupt.
#[derive(Clone, Copy)]
struct InterruptEntry {
    began: u64,
    accepted: u64,
    entered: u64,
    by_hardware: bool,
    /// Interrupts of several vectors: when the guest took each is not known.
    several: bool,
}

/// A VM with such NICs.
#[derive(Clone)]
struct VmNics {
    /// Index of its VM in `Meta::vms`.
    vm: u32,
    /// PCI vendor and device of each.
    ids: Vec<(u16, u16)>,
    waiting: VecDeque<Waiting>,
    /// By vCPU, KVM's number; by time.
    entries: Map<u32, VecDeque<InterruptEntry>>,
    /// When interrupts came that no vCPU was seen to accept.
    not_accepted: LostWindows,
    /// Keys whose requests the guest itself sends.
    recent: RecentKeys,
    /// Requests by key.
    open: ExpiringMap<u64, Open>,
}

/// A request.
#[derive(Clone)]
struct Open {
    pid: u32,
    vm: u32,
    key: u64,
    print: u64,
    validity: Validity,
    received: u64,
    /// `None`: which interrupt was its own is not known.
    interrupt: Option<GuestInterrupt>,
    /// The vCPU, the guest's number.
    cpu: u16,
    /// How many requests, and how many answers, of this key were seen.
    copies: u32,
    answers: u32,
}

/// The guest's interrupt that was a request's own.
#[derive(Clone, Copy)]
struct GuestInterrupt {
    at: u64,
    /// That before it on the same vCPU, 0 if none is known.
    previous: u64,
    /// The guest entry with it, if it was known when the request was received: later it may be forgotten.
    entry: Option<InterruptEntry>,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct PassthroughTable {
    hasher: Seeded,
    ttl: u64,
    /// By process id.
    vms: Map<u32, VmNics>,
    /// Whether complete requests are kept until they are fetched; and those that are.
    kept: bool,
    done: VecDeque<PassthroughRequest>,
}

impl PassthroughTable {
    /// `kept`: see [`Options::passthrough`](crate::Options::passthrough).
    pub(super) fn new(hasher: Seeded, ttl: u64, kept: bool) -> Self {
        PassthroughTable { hasher, ttl, vms: Map::with_hasher(hasher), kept, done: VecDeque::new() }
    }

    /// A VM has these NICs from now on.
    pub(super) fn set(&mut self, pid: u32, vm: u32, nics: &[GivenNic], c: &mut Common) {
        c.vm_stats[vm as usize].passthrough.set(nics);
        let (hasher, ttl) = (self.hasher, self.ttl);
        let new = || VmNics {
            vm,
            ids: Vec::new(),
            waiting: VecDeque::new(),
            entries: Map::with_hasher(hasher),
            not_accepted: LostWindows::default(),
            recent: RecentKeys::new(hasher, ttl, MAX_OWN_KEYS),
            open: ExpiringMap::new(MAX_OPEN, hasher),
        };
        self.vms.entry(pid).or_insert_with(new).ids =
            nics.iter().map(|nic| (nic.vendor, nic.device)).collect();
    }

    /// A VM has ended.
    pub(super) fn forget(&mut self, pid: u32, inside: &InsideTable, c: &mut Common) {
        let Some(mut given) = self.vms.remove(&pid) else { return };
        while let Some((_, open)) = given.open.pop_oldest() {
            unanswered(&open, Reason::NoAnswer, self.ttl, inside, c);
        }
    }

    pub(super) fn interrupt(&mut self, now: u64, i: &DeviceInterrupt, c: &mut Common) {
        let Some(given) = self.vms.get_mut(&i.vm) else { return };
        let stats = &mut c.vm_stats[given.vm as usize].passthrough;
        stats.interrupts += 1;
        let DeviceInterrupt { began, vcpu, vector, by_hardware, .. } = *i;
        match i.delivery {
            Delivery::Accepted => {
                if given.waiting.len() >= MAX_WAITING {
                    given.waiting.pop_front();
                }
                given.waiting.push_back(Waiting { began, accepted: now, vcpu, vector, by_hardware });
            }
            // The vCPU was in guest mode: no entry follows.
            Delivery::Posted => {
                stats.record_delay(now.saturating_sub(began));
                let (by_hardware, several) = (true, false);
                given.push_entry(
                    vcpu,
                    InterruptEntry { began, accepted: now, entered: now, by_hardware, several },
                );
            }
            Delivery::Suppressed | Delivery::Unknown => {
                stats.not_accepted += 1;
                given.not_accepted.add(began, now);
            }
        }
    }

    pub(super) fn guest_entry(&mut self, now: u64, e: &GuestEntry, c: &mut Common) {
        let Some(given) = self.vms.get_mut(&e.vm).filter(|given| !given.waiting.is_empty()) else { return };
        let takes = |w: &Waiting| {
            let entered = if w.by_hardware { e.vector == 0 } else { e.vector == w.vector };
            w.vcpu == e.vcpu && entered && w.accepted <= e.upto
        };
        let stats = &mut c.vm_stats[given.vm as usize].passthrough;
        let mut taken: Option<(Waiting, bool)> = None;
        given.waiting.retain(|w| {
            // One that waits for so long was not delivered, or its guest entry was not seen.
            let old = w.accepted.saturating_add(self.ttl) < now;
            if old || !takes(w) {
                return !old;
            }
            if !c.lost.touches(w.began, now) {
                stats.record_delay(now.saturating_sub(w.began));
            }
            // If the NIC interrupted again before the entry, the guest handles both at once.
            let (first, several) = taken.unwrap_or((*w, false));
            taken = Some((first, several || first.vector != w.vector));
            false
        });
        let Some((Waiting { began, accepted, by_hardware, .. }, several)) = taken else { return };
        given.push_entry(e.vcpu, InterruptEntry { began, accepted, entered: now, by_hardware, several });
    }

    /// A guest reports a packet that takes part in a request, at `now`; `inside` knows of it already.
    pub(super) fn matched(
        &mut self,
        now: u64,
        pid: u32,
        cpu: u16,
        m: &Matched,
        inside: &mut InsideTable,
        c: &mut Common,
    ) {
        let Some(given) = self.vms.get_mut(&pid).filter(|given| given.ids.contains(&(m.vendor, m.device)))
        else {
            return;
        };
        if !m.sent {
            inside.receive(now, pid, cpu, m.print);
            return self.receive(now, pid, cpu, m, inside, c);
        }
        let answers = matches!(m.role, Role::Final | Role::Either);
        if answers && given.open.get(&m.key).is_some() {
            self.answer(now, pid, cpu, m, inside, c);
        } else if matches!(m.role, Role::Request | Role::Either) {
            // A request that the guest itself sends, or an answer once more.
            let recent = given.recent.recall(now, given.vm, m.key);
            let from_outside = m.role == Role::Either && recent.is_some_and(|recent| recent.from_outside);
            given.recent.remember(now, given.vm, m.key, from_outside);
        }
        // A later packet may be equal.
        inside.forget_packet(pid, m.print);
    }

    /// The guest has received a packet.
    fn receive(&mut self, now: u64, pid: u32, cpu: u16, m: &Matched, inside: &InsideTable, c: &mut Common) {
        let Some(given) = self.vms.get_mut(&pid) else { return };
        let vm = given.vm;
        let from_guest = given.recent.recall(now, vm, m.key).is_some_and(|recent| !recent.from_outside);
        let begins = m.role == Role::Request || m.role == Role::Either && !from_guest;
        if !begins {
            return;
        }
        let stats = &mut c.vm_stats[vm as usize].passthrough;
        stats.seen();
        if let Some(open) = given.open.get_mut(&m.key) {
            stats.leave_out(Outcome::Ambiguous, Reason::SameKey.into());
            open.validity = open.validity.worse(Validity::ambiguous(Reason::SameKey));
            open.copies = open.copies.saturating_add(1);
            given.open.touch(&m.key, now);
            return;
        }
        let interrupt = (m.own && m.interrupted != 0).then(|| {
            let (at, previous) = (m.interrupted, m.previous);
            let interrupt = GuestInterrupt { at, previous, entry: None };
            GuestInterrupt { entry: given.entry_for(&interrupt, cpu, pid, inside), ..interrupt }
        });
        let open = Open {
            pid,
            vm,
            key: m.key,
            print: m.print,
            validity: Validity::Valid,
            received: now,
            interrupt,
            cpu,
            copies: 1,
            answers: 0,
        };
        if let Some((_, evicted)) = given.open.insert(m.key, open, now) {
            c.evicted += 1;
            unanswered(&evicted, Reason::Evicted, self.ttl, inside, c);
        }
    }

    /// The guest has given an answer to its driver.
    fn answer(
        &mut self,
        now: u64,
        pid: u32,
        cpu: u16,
        m: &Matched,
        inside: &mut InsideTable,
        c: &mut Common,
    ) {
        let Some(given) = self.vms.get_mut(&pid) else { return };
        let Some(open) = given.open.get_mut(&m.key) else { return };
        open.answers = open.answers.saturating_add(1);
        if open.answers < open.copies {
            given.open.touch(&m.key, now);
            return;
        }
        let Some(open) = given.open.remove(&m.key) else { return };
        if m.role == Role::Either {
            given.recent.remember(now, given.vm, m.key, true);
        }
        let complete = given.complete(now, &open, cpu, m.print, inside, c);
        inside.forget_packet(pid, open.print);
        match complete {
            Ok((total, complete)) => {
                c.vm_stats[open.vm as usize].passthrough.complete(&complete);
                if self.kept {
                    if self.done.len() >= MAX_DONE {
                        self.done.pop_front();
                    }
                    let (vm, key) = (open.vm as usize, open.key);
                    let CompletePassthrough { start, stages } = complete;
                    self.done.push_back(PassthroughRequest { vm, key, start, total, stages });
                }
            }
            Err(Validity::Ambiguous(why)) => leave_out(open.vm, Outcome::Ambiguous, why, c),
            Err(Validity::Incomplete(why)) => leave_out(open.vm, Outcome::Incomplete, why, c),
            Err(Validity::Valid) => {}
        }
    }

    /// Complete requests that have not been fetched yet.
    pub(crate) fn fetch(&mut self) -> Vec<PassthroughRequest> {
        self.done.drain(..).collect()
    }

    pub(super) fn expire(&mut self, now: u64, inside: &InsideTable, c: &mut Common) {
        let Some(then) = now.checked_sub(self.ttl) else { return };
        for given in self.vms.values_mut() {
            while let Some((_, open)) = given.open.pop_until(then) {
                unanswered(&open, Reason::NoAnswer, self.ttl, inside, c);
            }
        }
    }

    pub(super) fn finish(&mut self, inside: &InsideTable, c: &mut Common) {
        for given in self.vms.values_mut() {
            while let Some((_, open)) = given.open.pop_oldest() {
                unanswered(&open, Reason::NoAnswer, self.ttl, inside, c);
            }
        }
    }
}

impl VmNics {
    fn push_entry(&mut self, vcpu: u32, entry: InterruptEntry) {
        if self.entries.len() >= MAX_VCPUS && !self.entries.contains_key(&vcpu) {
            return;
        }
        let of_vcpu = self.entries.entry(vcpu).or_default();
        if of_vcpu.len() >= MAX_ENTRIES {
            of_vcpu.pop_front();
        }
        of_vcpu.push_back(entry);
    }

    /// The guest entry with an interrupt of the guest on the vCPU that it calls `cpu`, if it is certain.
    fn entry_for(
        &self,
        interrupt: &GuestInterrupt,
        cpu: u16,
        pid: u32,
        inside: &InsideTable,
    ) -> Option<InterruptEntry> {
        let guest = inside.latest(pid)?;
        let of_vcpu = self.entries.get(&guest.vcpus.number(cpu)?)?;
        only_entry_between(of_vcpu, interrupt.previous, interrupt.at, guest.error())
    }

    /// The same of a request whose answer is there.
    fn entry_of_request(
        &self,
        open: &Open,
        inside: &InsideTable,
    ) -> Result<Option<InterruptEntry>, Validity> {
        let Some(interrupt) = open.interrupt else { return Ok(None) };
        let error = inside.latest(open.pid).map_or(0, |guest| guest.error());
        let in_doubt = self.not_accepted.touches(interrupt.previous, interrupt.at.saturating_add(error));
        let entry = match interrupt.entry {
            _ if in_doubt => None,
            None => self.entry_for(&interrupt, open.cpu, open.pid, inside),
            known => known,
        };
        entry.map(Some).ok_or(Validity::incomplete(Reason::InterruptUnknown))
    }

    /// How long a request took whose answer, with this print, was given to the driver at `handed`, ns, and its stages.
    fn complete(
        &self,
        handed: u64,
        open: &Open,
        cpu: u16,
        response: u64,
        inside: &mut InsideTable,
        c: &Common,
    ) -> Result<(u64, CompletePassthrough), Validity> {
        if !open.validity.is_valid() {
            return Err(open.validity);
        }
        let vcpu = |cpu| inside.latest(open.pid).and_then(|guest| guest.vcpus.number(cpu));
        let (took, sent_on) = (vcpu(open.cpu), vcpu(cpu));
        let entry = self.entry_of_request(open, inside);
        let start = entry.ok().flatten().map_or(open.received, |entry| entry.began);
        // A lost event may be the interrupt, or one before that, which the guest took at the same time.
        let since = open.interrupt.map_or(start, |interrupt| match interrupt.previous {
            0 => interrupt.at.min(start),
            previous => previous.min(start),
        });
        if c.lost.touches(since, handed) {
            return Err(Validity::incomplete(Reason::EventsLost));
        }
        let entry = entry?;
        let stay = Stay {
            pid: open.pid,
            fingerprints: [0; 2],
            earlier_alike: 0,
            entered: entry.map_or(open.received, |entry| entry.entered),
            entered_on: took.unwrap_or(0),
            left: handed,
            left_on: sent_on,
            way: Way::default(),
        };
        let out_of_order = Validity::incomplete(Reason::OutOfOrder);
        let parts = match inside.divide_prints(&stay, Some(open.print), Some(response)) {
            Division::Divided(divided) => divided.request.parts,
            Division::Violation => return Err(out_of_order),
            Division::Incomplete | Division::NotReported | Division::ClockUnknown => {
                return Err(Validity::incomplete(Reason::ReportMissing));
            }
        };
        let stages = stages(&parts, entry);
        // Begun before accepted before entered, as the probes are in this order in one thread; a recording may say otherwise.
        let total = handed.checked_sub(start).ok_or(out_of_order)?;
        let sum = stages.iter().flatten().try_fold(0u64, |sum, ns| sum.checked_add(*ns));
        if sum != Some(total) {
            return Err(out_of_order);
        }
        Ok((total, CompletePassthrough { start, stages }))
    }
}

/// The stages of a request: those before the guest received it only if the guest entry with its interrupt is known.
fn stages(
    parts: &[u64; GuestPart::COUNT],
    entry: Option<InterruptEntry>,
) -> [Option<u64>; PassthroughStage::COUNT] {
    PassthroughStage::ALL.map(|stage| match stage {
        PassthroughStage::Irq => entry.map(|entry| entry.accepted.saturating_sub(entry.began)),
        PassthroughStage::VcpuWake => entry.map(|entry| entry.entered.saturating_sub(entry.accepted)),
        PassthroughStage::GuestIrq if entry.is_none() => None,
        other => other.guest_part().map(|part| parts[part as usize]),
    })
}

fn unanswered(open: &Open, why: Reason, ttl: u64, inside: &InsideTable, c: &mut Common) {
    let (outcome, why) = match open.validity {
        Validity::Ambiguous(exclusion) => (Outcome::Ambiguous, exclusion),
        _ => (Outcome::Unanswered, c.unless_ended(why.into(), open.received)),
    };
    let until = open.received.saturating_add(ttl);
    let why = match why.reason {
        Reason::NoAnswer if c.lost.touches(open.received, until) => Reason::EventsLost.into(),
        Reason::NoAnswer if inside.is_missing(open.pid, open.received, until) => Reason::ReportMissing.into(),
        _ => why,
    };
    leave_out(open.vm, outcome, why, c);
}

fn leave_out(vm: u32, outcome: Outcome, why: Exclusion, c: &mut Common) {
    c.vm_stats[vm as usize].passthrough.leave_out(outcome, why);
}

/// The guest entry with which a guest took the interrupt that it saw at `interrupted`, on a clock that may be wrong by `error`; `None` if
/// that is not certain. `previous`: when it saw the one before that on the same vCPU, 0 if that is not known.
fn only_entry_between(
    all: &VecDeque<InterruptEntry>,
    previous: u64,
    interrupted: u64,
    error: u64,
) -> Option<InterruptEntry> {
    if previous == 0 {
        return None;
    }
    // Those that may have been between the two, and those of them that certainly were.
    let from = all.partition_point(|e| e.entered.saturating_add(error) <= previous);
    let to = all.partition_point(|e| e.entered <= interrupted.saturating_add(error));
    let certain_from = all.partition_point(|e| e.entered <= previous.saturating_add(error));
    let certain_to = all.partition_point(|e| e.entered.saturating_add(error) <= interrupted);
    let found = match certain_to.saturating_sub(certain_from) {
        1 => certain_from,
        // The guest handles each at once, so the first one after the previous interrupt is this one's.
        0 if from == certain_from && from < to => from,
        _ => return None,
    };
    // A guest says when it was interrupted, and not how long the host shall look.
    let may_be = to.saturating_sub(from);
    if may_be > MAX_DOUBTFUL {
        return None;
    }
    let alone = may_be == 1 || all.range(from..to).all(|e| !e.by_hardware);
    all.get(found).filter(|found| alone && !found.several).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(at: &[u64]) -> VecDeque<InterruptEntry> {
        let delivered = |at: &u64| InterruptEntry {
            began: at - 20,
            accepted: at - 10,
            entered: *at,
            by_hardware: false,
            several: false,
        };
        at.iter().map(delivered).collect()
    }

    fn found(at: &[u64], interrupted: u64, previous: u64, error: u64) -> Option<u64> {
        only_entry_between(&all(at), previous, interrupted, error).map(|d| d.entered)
    }

    #[test]
    fn an_interrupt_of_a_guest_belongs_to_the_entry_since_its_previous_one() {
        assert_eq!(found(&[1000, 2000, 3000], 2010, 1010, 5), Some(2000));
        assert_eq!(found(&[1000, 2000, 3000], 5000, 2010, 5), Some(3000));
        assert_eq!(found(&[1000, 2000, 3000], 990, 900, 5), None);
        assert_eq!(found(&[], 990, 900, 5), None);
        // Not known.
        assert_eq!(found(&[1000, 2000], 2010, 0, 5), None);
        // That of another interrupt, or of none that the guest has handled.
        assert_eq!(found(&[1000, 2000], 5000, 4000, 5), None);
        assert_eq!(found(&[1000, 2000], 2010, 900, 5), None);
        // Contradictory.
        assert_eq!(found(&[1000, 2000], 900, 2010, 5), None);
    }

    #[test]
    fn what_the_clock_cannot_tell_apart_is_not_certain() {
        // That at 2,000 may have come after the interrupt: then that of this one was before it, and there is none.
        assert_eq!(found(&[1000, 2000], 2003, 1010, 5), Some(2000));
        assert_eq!(found(&[1000, 2000], 1998, 1010, 5), Some(2000));
        assert_eq!(found(&[2000, 2006], 2003, 1010, 5), Some(2000));
        // That at 1,000 may be the previous one's.
        assert_eq!(found(&[1000, 2000], 2003, 1002, 5), None);
        assert_eq!(found(&[1000, 2000], 2010, 1002, 5), Some(2000));
        assert_eq!(found(&[1000], 2010, 998, 5), None);
    }

    #[test]
    fn an_entry_is_that_of_one_interrupt() {
        // The entry of the interrupt at 2,500 was not seen.
        assert_eq!(found(&[1000, 2000], 2500, 2010, 5), None);
        assert_eq!(found(&[1000, 2000], 2500, 1998, 5), None);
        assert_eq!(found(&[1000, 2000], 2500, 1010, 5), Some(2000));
    }

    /// A guest that says that it was not interrupted before costs no look at all entries.
    #[test]
    fn one_of_many_entries_is_not_certain() {
        let many: Vec<u64> = (0..200).map(|i| 1000 + i).collect();
        assert_eq!(found(&many, 5000, 1, 0), None);
        assert_eq!(found(&many, 1100, 1099, 0), Some(1100));
        // By its error the clock cannot tell it from the others.
        assert_eq!(found(&many, 1100, 1099, 100), None);
    }

    #[test]
    fn what_hardware_delivers_is_certain_only_alone() {
        let certain = |at: &[u64], several| {
            let mut all = all(at);
            all.iter_mut().for_each(|d| (d.by_hardware, d.several) = (true, several));
            only_entry_between(&all, 1010, 2010, 5).is_some()
        };
        assert!(certain(&[1000, 2000], false));
        assert!(!certain(&[1000, 2000], true));
        // The guest may have taken the later one first.
        assert!(!certain(&[2007, 2010], false));
        assert!(!certain(&[1990, 2000], false));
    }
}
