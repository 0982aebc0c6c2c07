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
//! A request begins with the interrupt that made the guest's driver look at the NIC, if its packet was the first that the driver then
//! found, and the interrupt was not left over from an earlier one: the guest says so ([`Matched::first`]). Any other packet may have
//! come at any time: the request is `polled`, and begins when the guest received the packet.
//!
//! The guest's driver is interrupted right after the guest entry with that interrupt, as the guest takes no other interrupt in
//! between. So of the entries with interrupts of the VM's devices on that vCPU the last one before the guest's interrupt is the right
//! one. That is certain if the guest's clock is exact enough to tell them apart, or if an earlier entry is known to be that of an
//! earlier interrupt of the guest. Otherwise the request is incomplete ([`Reason::InterruptUnknown`]).

use super::inside::{Division, InsideTable, Stay};
use super::recent::RecentKeys;
use super::timeline::Way;
use super::{Common, Exclusion, Validity};
use crate::expiring::{EntryId, ExpiringSlab};
use crate::hash::{Map, Seeded, make_room};
use crate::passthrough_stats::CompletePassthrough;
use std::collections::VecDeque;
use teiji_model::event::{Delivery, DeviceInterrupt, GuestEntry, Role};
use teiji_model::guest::Matched;
use teiji_model::host::GivenNic;
use teiji_model::report::{Outcome, PassthroughRequest, PassthroughStage, Reason};

/// Requests open at once.
const MAX_OPEN: usize = 1 << 14;
/// Interrupts of a VM that wait for their guest entry, at once.
const MAX_WAITING: usize = 1 << 10;
/// Guest entries of a vCPU that are remembered: a request is joined with its entry when it is complete.
const MAX_ENTRIES: usize = 1 << 12;
/// vCPUs of a guest whose interrupts are told apart.
const MAX_VCPUS: usize = 1 << 12;
/// Complete requests that wait to be fetched.
const MAX_DONE: usize = 1 << 16;

/// An interrupt that a vCPU has accepted, and not entered its guest with yet.
#[derive(Clone, Copy)]
struct Waiting {
    began: u64,
    accepted: u64,
    vcpu: u32,
    vector: u8,
}

/// A vCPU is in guest mode with an interrupt.
#[derive(Clone, Copy)]
struct Entered {
    began: u64,
    accepted: u64,
    at: u64,
}

/// A VM with such NICs.
#[derive(Clone)]
struct Given {
    /// Index of its VM in `Meta::vms`.
    vm: u32,
    /// PCI vendor and device of each.
    ids: Vec<(u16, u16)>,
    waiting: VecDeque<Waiting>,
    /// By vCPU, KVM's number; by time.
    entries: Map<u32, VecDeque<Entered>>,
    /// By vCPU, the guest's number: the guest's last two interrupts of whose packets it has reported some, the later one first.
    interrupts: Map<u16, [u64; 2]>,
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
    /// The guest's interrupt in whose poll it was the first packet; `None`: polled.
    interrupted: Option<u64>,
    /// The guest's interrupt before that on the same vCPU, 0 if none is known.
    before: u64,
    /// The vCPU, the guest's number.
    cpu: u16,
    /// How many requests, and how many answers, of this key were seen.
    copies: u32,
    answers: u32,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct PassthroughTable {
    hasher: Seeded,
    ttl: u64,
    /// By process id.
    vms: Map<u32, Given>,
    /// Keys whose requests the guest itself sends.
    recent: RecentKeys,
    index: Map<(u32, u64), EntryId>,
    open: ExpiringSlab<Open>,
    /// Whether complete requests are kept until they are fetched; and those that are.
    kept: bool,
    done: VecDeque<PassthroughRequest>,
}

impl PassthroughTable {
    /// `kept`: see [`Options::passthrough`](crate::Options::passthrough).
    pub(super) fn new(hasher: Seeded, ttl: u64, kept: bool) -> Self {
        PassthroughTable {
            hasher,
            ttl,
            vms: Map::with_hasher(hasher),
            recent: RecentKeys::new(hasher, ttl),
            index: Map::with_hasher(hasher),
            open: ExpiringSlab::new(MAX_OPEN),
            kept,
            done: VecDeque::new(),
        }
    }

    /// A VM has these NICs from now on.
    pub(super) fn set(&mut self, pid: u32, vm: u32, nics: &[GivenNic], c: &mut Common) {
        c.vm_stats[vm as usize].passthrough.set(nics);
        let hasher = self.hasher;
        let new = || Given {
            vm,
            ids: Vec::new(),
            waiting: VecDeque::new(),
            entries: Map::with_hasher(hasher),
            interrupts: Map::with_hasher(hasher),
        };
        self.vms.entry(pid).or_insert_with(new).ids =
            nics.iter().map(|nic| (nic.vendor, nic.device)).collect();
    }

    /// A VM has ended.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.vms.remove(&pid);
    }

    pub(super) fn interrupt(&mut self, now: u64, i: &DeviceInterrupt, c: &mut Common) {
        let Some(given) = self.vms.get_mut(&i.vm) else { return };
        let stats = &mut c.vm_stats[given.vm as usize].passthrough;
        stats.interrupts += 1;
        match i.delivery {
            Delivery::Accepted => {
                if given.waiting.len() >= MAX_WAITING {
                    given.waiting.pop_front();
                }
                let (vcpu, vector) = (i.vcpu, i.vector);
                given.waiting.push_back(Waiting { began: i.began, accepted: now, vcpu, vector });
            }
            // The vCPU was in guest mode: no entry follows.
            Delivery::Posted => {
                stats.delivered(now.saturating_sub(i.began));
                given.enter(i.vcpu, Entered { began: i.began, accepted: now, at: now });
            }
            Delivery::Suppressed | Delivery::Unknown => stats.not_accepted += 1,
        }
    }

    pub(super) fn guest_entry(&mut self, now: u64, e: &GuestEntry, c: &mut Common) {
        let Some(given) = self.vms.get_mut(&e.vm).filter(|given| !given.waiting.is_empty()) else { return };
        let takes = |w: &Waiting| w.vcpu == e.vcpu && w.vector == e.vector && w.accepted <= e.upto;
        // If the NIC interrupted again before the entry, the guest handles both at once.
        let first = given.waiting.iter().copied().find(takes);
        let stats = &mut c.vm_stats[given.vm as usize].passthrough;
        given.waiting.iter().filter(|w| takes(w)).for_each(|w| stats.delivered(now.saturating_sub(w.began)));
        given.waiting.retain(|w| !takes(w));
        let Some(Waiting { began, accepted, .. }) = first else { return };
        given.enter(e.vcpu, Entered { began, accepted, at: now });
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
        let Some(given) = self.vms.get(&pid).filter(|given| given.ids.contains(&(m.vendor, m.device))) else {
            return;
        };
        let vm = given.vm;
        if m.sent {
            let answers = matches!(m.role, Role::Final | Role::Either);
            match self.index.get(&(vm, m.key)).copied().filter(|_| answers) {
                Some(id) => self.answer(now, id, cpu, m, inside, c),
                None if matches!(m.role, Role::Request | Role::Either) => {
                    self.recent.remember(now, vm, m.key, false);
                }
                None => {}
            }
        } else {
            self.receive(now, pid, cpu, m, c);
        }
    }

    /// The guest has received a packet.
    fn receive(&mut self, now: u64, pid: u32, cpu: u16, m: &Matched, c: &mut Common) {
        let Some(given) = self.vms.get_mut(&pid) else { return };
        let vm = given.vm;
        let mut before = 0;
        if m.interrupted != 0 && (given.interrupts.len() < MAX_VCPUS || given.interrupts.contains_key(&cpu)) {
            let known = given.interrupts.entry(cpu).or_default();
            if known[0] < m.interrupted {
                *known = [m.interrupted, known[0]];
            }
            before = known[1];
        }
        let from_guest = self.recent.recall(now, vm, m.key).is_some_and(|recent| !recent.from_outside);
        let begins = m.role == Role::Request || m.role == Role::Either && !from_guest;
        if !begins {
            return;
        }
        let stats = &mut c.vm_stats[vm as usize].passthrough;
        stats.seen();
        if let Some(id) = self.index.get(&(vm, m.key)).copied() {
            stats.leave_out(Outcome::Ambiguous, Reason::SameKey.into());
            if let Some(open) = self.open.get_mut(id) {
                open.validity = open.validity.worse(Validity::ambiguous(Reason::SameKey));
                open.copies = open.copies.saturating_add(1);
            }
            self.open.touch(id, now);
            return;
        }
        if self.open.full()
            && let Some(open) = self.open.pop_oldest()
        {
            c.evicted += 1;
            self.unanswered(&open, Reason::Evicted, c);
        }
        let open = Open {
            pid,
            vm,
            key: m.key,
            print: m.print,
            validity: Validity::Valid,
            received: now,
            interrupted: (m.first && m.interrupted != 0).then_some(m.interrupted),
            before,
            cpu,
            copies: 1,
            answers: 0,
        };
        let id = self.open.insert(open, now);
        make_room(&mut self.index, MAX_OPEN);
        self.index.insert((vm, m.key), id);
    }

    /// The guest has given an answer to its driver.
    fn answer(
        &mut self,
        now: u64,
        id: EntryId,
        cpu: u16,
        m: &Matched,
        inside: &mut InsideTable,
        c: &mut Common,
    ) {
        let Some(open) = self.open.get_mut(id) else { return };
        open.answers = open.answers.saturating_add(1);
        if open.answers < open.copies {
            self.open.touch(id, now);
            return;
        }
        let Some(open) = self.open.remove(id) else { return };
        self.index.remove(&(open.vm, open.key));
        match self.complete(now, &open, cpu, m.print, inside, c) {
            Ok(complete) => {
                c.vm_stats[open.vm as usize].passthrough.complete(&complete);
                if self.kept {
                    if self.done.len() >= MAX_DONE {
                        self.done.pop_front();
                    }
                    let CompletePassthrough { start, stages } = complete;
                    let total = now - start;
                    self.done.push_back(PassthroughRequest {
                        vm: open.vm as usize,
                        key: open.key,
                        start,
                        total,
                        stages,
                    });
                }
            }
            Err(Validity::Ambiguous(why)) => leave_out(open.vm, Outcome::Ambiguous, why, c),
            Err(Validity::Incomplete(why)) => leave_out(open.vm, Outcome::Incomplete, why, c),
            Err(Validity::Valid) => {}
        }
    }

    /// The stages of a request whose answer, with this print, was given to the driver at `handed`.
    fn complete(
        &self,
        handed: u64,
        open: &Open,
        cpu: u16,
        response: u64,
        inside: &mut InsideTable,
        c: &Common,
    ) -> Result<CompletePassthrough, Validity> {
        if !open.validity.is_valid() {
            return Err(open.validity);
        }
        let vcpu = |cpu| inside.latest(open.pid).and_then(|guest| guest.vcpus.number(cpu));
        let (took, sent_on) = (vcpu(open.cpu), vcpu(cpu));
        let error = inside.latest(open.pid).map_or(0, |guest| guest.error());
        let entered = match open.interrupted {
            Some(interrupted) => {
                let unknown = Validity::incomplete(Reason::InterruptUnknown);
                let given = self.vms.get(&open.pid).ok_or(unknown)?;
                let entries = took.and_then(|vcpu| given.entries.get(&vcpu)).ok_or(unknown)?;
                Some(entry_of(entries, interrupted, open.before, error).ok_or(unknown)?)
            }
            None => None,
        };
        let start = entered.map_or(open.received, |entered| entered.began);
        if c.lost.touches(start, handed) {
            return Err(Validity::incomplete(Reason::EventsLost));
        }
        let at = entered.map_or(open.received, |entered| entered.at);
        let stay = Stay {
            pid: open.pid,
            fingerprints: [0; 2],
            earlier_alike: 0,
            entered: at,
            entered_on: took.unwrap_or(0),
            left: handed,
            left_on: sent_on,
            way: Way::default(),
        };
        let parts = match inside.divide_prints(&stay, Some(open.print), Some(response)) {
            Division::Divided(divided) => divided.request.parts,
            Division::Violation => return Err(Validity::incomplete(Reason::OutOfOrder)),
            Division::Incomplete | Division::NotReported => {
                return Err(Validity::incomplete(Reason::ReportMissing));
            }
        };
        let mut stages = [None; PassthroughStage::COUNT];
        for stage in PassthroughStage::ALL {
            stages[stage as usize] = match (stage, stage.of_guest(), entered) {
                (PassthroughStage::GuestIrq, _, None) | (_, None, None) => None,
                (_, Some(part), _) => Some(parts[part as usize]),
                (PassthroughStage::Irq, None, Some(e)) => Some(e.accepted.saturating_sub(e.began)),
                (_, None, Some(e)) => Some(e.at.saturating_sub(e.accepted)),
            };
        }
        // Begun before accepted before entered, as the probes are in this order in one thread; a recording may say otherwise.
        if stages.iter().flatten().sum::<u64>() != handed.saturating_sub(start) {
            return Err(Validity::incomplete(Reason::OutOfOrder));
        }
        Ok(CompletePassthrough { start, stages })
    }

    /// Complete requests that have not been fetched yet.
    pub(crate) fn fetch(&mut self) -> Vec<PassthroughRequest> {
        self.done.drain(..).collect()
    }

    fn unanswered(&mut self, open: &Open, why: Reason, c: &mut Common) {
        self.index.remove(&(open.vm, open.key));
        let (outcome, why) = match open.validity {
            Validity::Ambiguous(exclusion) => (Outcome::Ambiguous, exclusion),
            _ => (Outcome::Unanswered, c.unless_ended(why.into(), open.received)),
        };
        let lost = c.lost.touches(open.received, open.received.saturating_add(self.ttl));
        let why = if lost && why.reason == Reason::NoAnswer { Reason::EventsLost.into() } else { why };
        leave_out(open.vm, outcome, why, c);
    }

    pub(super) fn expire(&mut self, now: u64, c: &mut Common) {
        let Some(then) = now.checked_sub(self.ttl) else { return };
        while let Some(open) = self.open.pop_until(then) {
            self.unanswered(&open, Reason::NoAnswer, c);
        }
    }

    pub(super) fn finish(&mut self, c: &mut Common) {
        while let Some(open) = self.open.pop_oldest() {
            self.unanswered(&open, Reason::NoAnswer, c);
        }
    }
}

fn leave_out(vm: u32, outcome: Outcome, why: Exclusion, c: &mut Common) {
    c.vm_stats[vm as usize].passthrough.leave_out(outcome, why);
}

impl Given {
    fn enter(&mut self, vcpu: u32, entered: Entered) {
        if self.entries.len() >= MAX_VCPUS && !self.entries.contains_key(&vcpu) {
            return;
        }
        let of_vcpu = self.entries.entry(vcpu).or_default();
        if of_vcpu.len() >= MAX_ENTRIES {
            of_vcpu.pop_front();
        }
        of_vcpu.push_back(entered);
    }
}

/// The entry with which a guest took the interrupt that it saw at `interrupted`, on a clock that may be wrong by `error`; `None` if that
/// is not certain. `before`: when it saw the one before that on the same vCPU.
fn entry_of(entries: &VecDeque<Entered>, interrupted: u64, before: u64, error: u64) -> Option<Entered> {
    // The last one that may have been before it.
    let last = entries.partition_point(|e| e.at <= interrupted.saturating_add(error)).checked_sub(1)?;
    let entry = entries[last];
    // An entry is that of one interrupt, so not if it may be that of the one before.
    if before != 0 && before.saturating_add(error) >= entry.at {
        return None;
    }
    // It may have come after the interrupt: then that belongs to an earlier entry, unless the interrupt before was that one's.
    let may_be_late = entry.at.saturating_add(error) > interrupted;
    let earlier = last.checked_sub(1).map(|earlier| entries[earlier]);
    let earlier_is_taken = earlier.is_some_and(|e| before >= e.at.saturating_add(error));
    (!may_be_late || earlier_is_taken).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(at: &[u64]) -> VecDeque<Entered> {
        at.iter().map(|at| Entered { began: at - 20, accepted: at - 10, at: *at }).collect()
    }

    fn found(at: &[u64], interrupted: u64, before: u64, error: u64) -> Option<u64> {
        entry_of(&entries(at), interrupted, before, error).map(|e| e.at)
    }

    #[test]
    fn an_interrupt_of_a_guest_belongs_to_the_last_entry_before_it() {
        assert_eq!(found(&[1000, 2000, 3000], 2010, 0, 5), Some(2000));
        assert_eq!(found(&[1000, 2000, 3000], 5000, 0, 5), Some(3000));
        assert_eq!(found(&[1000, 2000, 3000], 990, 0, 5), None);
        assert_eq!(found(&[], 990, 0, 5), None);
    }

    #[test]
    fn what_the_clock_cannot_tell_apart_is_not_certain() {
        // The entry at 2,000 may have come after an interrupt at 2,003.
        assert_eq!(found(&[1000, 2000], 2003, 0, 5), None);
        // Unless the one at 1,000 was that of an earlier interrupt.
        assert_eq!(found(&[1000, 2000], 2003, 1010, 5), Some(2000));
        assert_eq!(found(&[1000, 2000], 1998, 1010, 5), Some(2000));
        assert_eq!(found(&[1000, 2000], 2003, 1002, 5), None);
        // The entries before the first one are not known.
        assert_eq!(found(&[2000], 2003, 0, 5), None);
    }

    #[test]
    fn an_entry_is_that_of_one_interrupt() {
        // The entry of the interrupt at 2,500 was not seen.
        assert_eq!(found(&[1000, 2000], 2500, 2010, 5), None);
        assert_eq!(found(&[1000, 2000], 2500, 1998, 5), None);
        assert_eq!(found(&[1000, 2000], 2500, 1010, 5), Some(2000));
    }
}
