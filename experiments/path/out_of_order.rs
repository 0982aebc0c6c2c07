//! Requests that were answered before the guest entry that is taken for theirs: their points are out of order. A guest polls its
//! ring once more after it has enabled interrupts, and may take a packet whose interrupt is under way, or for which none is sent.
//!
//! The report's count of such requests is made by teiji, so it excuses nothing by itself. The recording has to show as many
//! requests that were answered between signal and entry. If an interrupt was sent to a vCPU in guest mode, that vCPU may have polled
//! the packet first: all of these are excused. Of all others those of at most 3 signals, or of as many as 1 % of the requests: there the
//! vCPU was not running, or teiji itself concluded which vCPU it was. A signal is counted once however many packets it covers, as what
//! holds one up holds up all of them. Of TCP, whose packets have the key of their connection, a request is what comes to the guest until
//! it answers.
//!
//! And if a worker is held up between an interrupt and its record while the vCPU runs, the entry comes before teiji asks for it, and is
//! not seen at all. The recording has to show that of as many packets.

use super::late::events;
use anyhow::{Result, ensure};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use teiji_model::event::{Delivery, Event, EventKind, Packet, Point, Role};
use teiji_model::report::{Reason, Report};
use teiji_model::stage::{Split, ThreadState};

/// How many requests are left out because their points are out of order; and those without an entry that came before its record.
///
/// # Errors
/// If the recording does not show that as many were answered before the entry, or there are such requests and no recording.
pub fn out_of_order(report: &Report, recording: Option<&Path>) -> Result<u64> {
    let left_out = |reason| report.vms.iter().map(|vm| vm.left_out_for(reason)).sum();
    let (count, without_entry): (u64, u64) = (left_out(Reason::OutOfOrder), left_out(Reason::NotEntered));
    let Some(recording) = recording.filter(|_| count + without_entry > 0) else {
        ensure!(count == 0, "{count} requests are out of order, and no recording shows why");
        return Ok(0);
    };
    let events = events(recording)?;
    let held_up = packets_held_up(&events);
    let shown = answered_before_entry(events).excusable();
    ensure!(
        count <= shown,
        "{count} requests are out of order, but the recording shows {shown} that were answered before the guest entry"
    );
    Ok(count + without_entry.min(held_up))
}

/// A request: its tap, and its key.
type Request = (u32, u64);

/// A request that waits for a guest entry, since when, and whether an interrupt was sent to a vCPU in guest mode.
type Waiting = (Request, u64, bool);

/// What a recording shows.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answered {
    /// Requests that were answered after their interrupt was accepted for a vCPU in guest mode, and before the guest entry that
    /// injected it.
    to_running: u64,
    /// All others that were answered between signal and entry, by the time of the signal.
    others: BTreeMap<u64, u64>,
    /// Requests that were put on a tap.
    requests: u64,
}

impl Answered {
    /// All with an interrupt to a running vCPU; of the others those of 3 signals, or of as many as 1 % of the requests if that is more:
    /// if there are more, teiji tells entries wrongly.
    fn excusable(&self) -> u64 {
        self.to_running + of_largest(3.max(self.requests / 100), self.others.values().copied())
    }
}

/// The key of a request or an answer: a segment without payload is neither.
fn key(p: &Packet) -> Option<u64> {
    p.matching.filter(|m| !matches!(m.role, Role::Segment { payload: 0, .. })).map(|m| m.key)
}

/// The sum of the largest `most` of these counts.
fn of_largest(most: u64, counts: impl Iterator<Item = u64>) -> u64 {
    let mut counts: Vec<u64> = counts.collect();
    counts.sort_unstable_by_key(|count| Reverse(*count));
    counts.iter().take(usize::try_from(most).unwrap_or(usize::MAX)).sum()
}

fn answered_before_entry(mut events: Vec<Event>) -> Answered {
    events.sort_by_key(|event| event.ts);
    let to_running = to_running(&events);
    // By tap and fingerprint, the keys of those on a tap (not every event has the key); by worker, those that it holds; by vCPU and
    // vector, those whose interrupt waits, with its time, and those without an interrupt.
    let mut on_tap: HashMap<(u32, u64), u64> = HashMap::new();
    let mut held: HashMap<u32, Vec<Request>> = HashMap::new();
    let mut waiting: HashMap<(u32, u32, u8), Vec<Waiting>> = HashMap::new();
    let mut answered = Answered::default();
    // Those that were put on a tap and not answered yet.
    let mut open: HashSet<Request> = HashSet::new();
    for event in events {
        match event.kind {
            EventKind::Packet(p) if p.point == Point::TapEnqueue => {
                let Some(key) = key(&p) else { continue };
                answered.requests += u64::from(open.insert((p.ifindex, key)));
                on_tap.insert((p.ifindex, p.fingerprint), key);
            }
            EventKind::Packet(p) if p.point == Point::TapDequeue => {
                let key = on_tap.remove(&(p.ifindex, p.fingerprint));
                held.entry(p.tid).or_default().extend(key.map(|key| (p.ifindex, key)));
            }
            EventKind::Interrupt(i) => {
                let requests = held.remove(&i.tid).unwrap_or_default();
                // Without an interrupt, a vCPU that is not in guest mode is taken to receive the packets with its next entry.
                let vector = match i.delivery {
                    Delivery::Accepted => Some(i.vector),
                    Delivery::Suppressed if i.state != Some(ThreadState::Guest) => Some(0),
                    _ => None,
                };
                if let Some(vector) = vector {
                    let of_vcpu = waiting.entry((i.vm, i.vcpu, vector)).or_default();
                    let runs = i.delivery == Delivery::Accepted && to_running.contains(&event.ts);
                    of_vcpu.extend(requests.into_iter().map(|request| (request, event.ts, runs)));
                }
            }
            EventKind::Packet(p) if p.point == Point::TapSend => {
                let Some(key) = key(&p) else { continue };
                let answer_to = (p.ifindex, key);
                open.remove(&answer_to);
                // A request may have several segments: the first of their signals counts, and whether any was to a running vCPU.
                let mut found: Option<(u64, bool)> = None;
                for of_vcpu in waiting.values_mut() {
                    of_vcpu.retain(|(request, signal, to_running)| {
                        let is_it = *request == answer_to;
                        if is_it {
                            let (first, runs) = found.unwrap_or((*signal, false));
                            found = Some((first.min(*signal), runs || *to_running));
                        }
                        !is_it
                    });
                }
                match found {
                    Some((_, true)) => answered.to_running += 1,
                    Some((signal, false)) => *answered.others.entry(signal).or_default() += 1,
                    None => {}
                }
            }
            EventKind::GuestEntry(e) => {
                if let Some(of_vcpu) = waiting.get_mut(&(e.vm, e.vcpu, e.vector)) {
                    of_vcpu.retain(|(_, accepted, _)| *accepted > e.upto);
                }
            }
            _ => {}
        }
    }
    answered
}

/// How many requests at most may contradict the guest's clock because the guest received them before the guest entry, and answered
/// later. That can happen with an interrupt that is sent to a vCPU that runs: with a tenth of these, and three in any case, and then
/// to all packets of that signal.
///
/// # Errors
/// If the recording cannot be read.
pub fn raced(recording: &Path) -> Result<u64> {
    Ok(packets_that_raced(&events(recording)?))
}

fn packets_that_raced(events: &[Event]) -> u64 {
    let to_running = to_running(events);
    let most = 3.max(to_running.len() as u64 / 10);
    let of_signals = packets_of_signals(events).into_iter().filter(|(ts, _)| to_running.contains(ts));
    // A signal counts as one packet at least, also if it is not seen which it covers.
    of_largest(most, of_signals.map(|(_, count)| count.max(1))).max(3)
}

/// How many packets each signal covers, by its time: those that its worker has taken off the tap since the one before.
fn packets_of_signals(events: &[Event]) -> Vec<(u64, u64)> {
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_by_key(|event| event.ts);
    let mut taken: HashMap<(u32, u32), u64> = HashMap::new();
    let mut of_signals = Vec::new();
    for event in sorted {
        match &event.kind {
            EventKind::Packet(p) if p.point == Point::TapDequeue => {
                *taken.entry((p.tid, p.ifindex)).or_default() += 1;
            }
            EventKind::Interrupt(i) => {
                of_signals.push((event.ts, taken.remove(&(i.tid, i.ifindex)).unwrap_or(0)));
            }
            _ => {}
        }
    }
    of_signals
}

/// By how much a vCPU's clock has to be ahead of a record's time to show that the worker was held up in between, ns.
const HELD_UP: u64 = 50_000;

/// When interrupts were accepted for a vCPU that ran: it may take the packets without them, as it polls.
pub fn to_running(events: &[Event]) -> BTreeSet<u64> {
    accepted_by_running(events).into_keys().collect()
}

/// How many packets are those of signals whose record was held up while the vCPU ran.
fn packets_held_up(events: &[Event]) -> u64 {
    let accepted = accepted_by_running(events);
    let held_up = packets_of_signals(events).into_iter().filter(|(ts, _)| accepted.get(ts) == Some(&true));
    held_up.map(|(_, packets)| packets).sum()
}

/// When interrupts were accepted for a vCPU that ran, and whether their record was held up.
///
/// A worker may be held up between the time of its record and the reading of the vCPU's clock in it: the clock is then ahead of the time,
/// and the state is that of later. The vCPU may have run if it was in guest mode since its clock was last read.
fn accepted_by_running(events: &[Event]) -> BTreeMap<u64, bool> {
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_by_key(|event| event.ts);
    // By vCPU: the last reading of its clock, and when that was.
    let mut last: HashMap<(u32, u32), (u64, Split)> = HashMap::new();
    let mut found = BTreeMap::new();
    for event in sorted {
        let ts = event.ts;
        match &event.kind {
            EventKind::GuestEntry(e) => {
                last.insert((e.vm, e.vcpu), (ts, e.clock));
            }
            EventKind::Kick(k) => {
                last.insert((k.vm, k.vcpu), (ts, k.clock));
            }
            EventKind::VcpuState(s) => {
                last.insert((s.vm, s.vcpu), (ts, s.clock));
            }
            EventKind::Interrupt(i) if i.delivery == Delivery::Accepted => {
                let Some(state) = i.state else { continue };
                let held_up = last.get(&(i.vm, i.vcpu)).is_some_and(|(before, clock)| {
                    i.clock.total() > clock.total().saturating_add(ts - before + HELD_UP)
                        && i.clock.get(ThreadState::Guest) > clock.get(ThreadState::Guest)
                });
                if held_up || state == ThreadState::Guest {
                    found.insert(ts, held_up);
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::late::tests::packet_at;
    use super::*;
    use teiji_model::event::{GroupRole, GuestEntry, Interrupt, Match};
    use teiji_model::stream::StreamId;

    const WORKER: u32 = 7;

    /// A packet, whose fingerprint is `key`. That it is taken off the tap is reported without a key, as for SIP.
    fn packet(ts: u64, point: Point, key: u64, role: Role) -> Event {
        let mut event = packet_at(ts, 0, point, WORKER);
        if let EventKind::Packet(p) = &mut event.kind {
            p.fingerprint = key;
            let matching = Match { key, role, group: 0, group_role: GroupRole::Within };
            p.matching = (point != Point::TapDequeue).then_some(matching);
        }
        event
    }

    fn accepted(ts: u64) -> Event {
        let interrupt = Interrupt {
            signalled: ts,
            ifindex: 1,
            tid: WORKER,
            delivery: Delivery::Accepted,
            vm: 1,
            vcpu: 0,
            index: Some(0),
            vector: 40,
            state: Some(ThreadState::Guest),
            clock: Split::default(),
        };
        Event { ts, stream: StreamId::HOST, cpu: 0, kind: EventKind::Interrupt(interrupt) }
    }

    fn entry(ts: u64, upto: u64) -> Event {
        let clock = Split::default();
        let entry = GuestEntry { vm: 1, vcpu: 0, index: 0, vector: 40, upto, clock, preempted_by: 0 };
        Event { ts, stream: StreamId::HOST, cpu: 0, kind: EventKind::GuestEntry(entry) }
    }

    /// Two requests; the interrupt of the second comes after the entry of the first was decided on.
    fn two(role: Role, first_answer: u64, second_answer: u64) -> Answered {
        use Point::{TapDequeue, TapEnqueue, TapSend};
        answered_before_entry(vec![
            packet(1, TapEnqueue, 5, role),
            packet(1, TapEnqueue, 6, role),
            packet(2, TapDequeue, 5, role),
            accepted(3),
            packet(4, TapDequeue, 6, role),
            accepted(5),
            entry(10, 3),
            entry(20, 5),
            packet(first_answer, TapSend, 5, role),
            packet(second_answer, TapSend, 6, role),
            packet(second_answer + 1, TapSend, 6, role),
        ])
    }

    #[test]
    fn answers_between_an_interrupt_and_its_entry_are_counted_and_no_others() {
        let shown = |to_running, requests| Answered { to_running, others: BTreeMap::new(), requests };
        assert_eq!(two(Role::Either, 11, 21), shown(0, 2));
        assert_eq!(two(Role::Either, 11, 12), shown(1, 2));
        assert_eq!(two(Role::Request, 7, 12), shown(2, 2));
        assert_eq!(two(Role::Segment { payload: 9, flags: 0 }, 7, 12), shown(2, 2));
        assert_eq!(
            two(Role::Segment { payload: 0, flags: 0 }, 7, 12),
            shown(0, 0),
            "neither asks nor answers"
        );
    }

    /// A guest that polls may take a packet while its vCPU's thread is said to be in an exit.
    #[test]
    fn answers_without_an_interrupt_before_the_next_entry_are_counted() {
        for (state, others) in
            [(ThreadState::Run, BTreeMap::from([(3, 1)])), (ThreadState::Guest, BTreeMap::new())]
        {
            let mut signal = accepted(3);
            if let EventKind::Interrupt(i) = &mut signal.kind {
                (i.delivery, i.vector, i.state) = (Delivery::Suppressed, 0, Some(state));
            }
            let events = vec![
                packet(1, Point::TapEnqueue, 5, Role::Request),
                packet(2, Point::TapDequeue, 5, Role::Request),
                signal,
                packet(4, Point::TapSend, 5, Role::Final),
            ];
            let answered = answered_before_entry(events);
            assert_eq!(answered, Answered { to_running: 0, others, requests: 1 }, "{state:?}");
        }
    }

    /// Two segments of a request, the second of which has an interrupt.
    #[test]
    fn an_answer_belongs_to_the_first_of_its_requests_signals() {
        use Point::{TapDequeue, TapEnqueue, TapSend};
        let segment = Role::Segment { payload: 9, flags: 0 };
        for state in [ThreadState::Asleep, ThreadState::Guest] {
            // The order in which the signals are looked at is another one each time.
            for _ in 0..20 {
                let (mut none_sent, mut sent) = (accepted(3), accepted(6));
                if let EventKind::Interrupt(i) = &mut none_sent.kind {
                    (i.delivery, i.vector, i.state) = (Delivery::Suppressed, 0, Some(ThreadState::Asleep));
                }
                if let EventKind::Interrupt(i) = &mut sent.kind {
                    i.state = Some(state);
                }
                let answered = answered_before_entry(vec![
                    packet(1, TapEnqueue, 5, segment),
                    packet(2, TapDequeue, 5, segment),
                    none_sent,
                    packet(4, TapEnqueue, 5, segment),
                    packet(5, TapDequeue, 5, segment),
                    sent,
                    packet(7, TapSend, 5, segment),
                ]);
                let shown = match state {
                    ThreadState::Guest => Answered { to_running: 1, others: BTreeMap::new(), requests: 1 },
                    _ => Answered { to_running: 0, others: BTreeMap::from([(3, 1)]), requests: 1 },
                };
                assert_eq!(answered, shown, "{state:?}");
            }
        }
    }

    /// A vCPU that is not in guest mode takes an interrupt with its next entry.
    #[test]
    fn an_interrupt_to_a_vcpu_that_does_not_run_is_none_to_a_running_one() {
        let mut interrupt = accepted(3);
        if let EventKind::Interrupt(i) = &mut interrupt.kind {
            i.state = Some(ThreadState::Asleep);
        }
        let answered = answered_before_entry(vec![
            packet(1, Point::TapEnqueue, 5, Role::Request),
            packet(2, Point::TapDequeue, 5, Role::Request),
            interrupt,
            packet(4, Point::TapSend, 5, Role::Final),
            entry(10, 3),
        ]);
        let others = BTreeMap::from([(3, 1)]);
        assert_eq!(answered, Answered { to_running: 0, others, requests: 1 });
    }

    /// The vCPU polls the packet of the signal, and has halted when its clock is read.
    #[test]
    fn an_interrupt_whose_record_was_held_up_may_have_come_to_a_running_vcpu() {
        // How long after the time of the record the clock is read, and for how long the vCPU was in guest mode since the entry.
        for (after, in_guest, runs) in
            [(2_000_000, 40_000, true), (2_000_000, 0, false), (40_000, 40_000, false)]
        {
            let mut before = entry(990_000, 0);
            let mut interrupt = accepted(1_000_000);
            let clock = |guest: u64, total: u64| {
                let mut clock = Split::default();
                clock.0[ThreadState::Guest as usize] = guest;
                clock.0[ThreadState::Asleep as usize] = total - guest;
                clock
            };
            if let EventKind::GuestEntry(e) = &mut before.kind {
                e.clock = clock(500_000, 5_000_000);
            }
            if let EventKind::Interrupt(i) = &mut interrupt.kind {
                i.state = Some(ThreadState::Asleep);
                i.clock = clock(500_000 + in_guest, 5_000_000 + 10_000 + after);
            }
            let events = [interrupt, before, packet(995_000, Point::TapDequeue, 5, Role::Request)];
            assert_eq!(to_running(&events).contains(&1_000_000), runs, "{after} {in_guest}");
            assert_eq!(packets_held_up(&events), u64::from(runs), "{after} {in_guest}");
        }
    }

    /// One coincidence makes all packets of a signal come before their entry.
    #[test]
    fn all_packets_of_the_largest_signals_may_have_raced() {
        let mut events = Vec::new();
        for (n, packets) in (1u64..).zip([1, 5, 1, 2, 0]) {
            events.extend((0..packets).map(|_| packet(n * 100, Point::TapDequeue, 5, Role::Request)));
            events.push(accepted(n * 100 + 1));
        }
        assert_eq!(packets_of_signals(&events), [(101, 1), (201, 5), (301, 1), (401, 2), (501, 0)]);
        assert_eq!(packets_that_raced(&events), 5 + 2 + 1);
        // The largest one was sent to a vCPU that slept.
        for event in &mut events {
            if let EventKind::Interrupt(i) = &mut event.kind
                && event.ts == 201
            {
                i.state = Some(ThreadState::Asleep);
            }
        }
        assert_eq!(packets_that_raced(&events), 2 + 1 + 1);
    }

    /// Which vCPU receives a packet without an interrupt is teiji's conclusion: if that were wrong often, it would excuse itself.
    #[test]
    fn few_other_answers_before_an_entry_are_excusable() {
        for (to_running, signals, requests, excusable) in [(5, 3, 10, 8), (0, 4, 10, 3), (0, 40, 1000, 10)] {
            let others = (0..signals).map(|signal| (signal, 1)).collect();
            assert_eq!(Answered { to_running, others, requests }.excusable(), excusable);
        }
        let others = BTreeMap::from([(1, 1), (2, 7), (3, 1), (4, 2)]);
        assert_eq!(Answered { to_running: 0, others, requests: 10 }.excusable(), 10, "of three signals");
    }
}
