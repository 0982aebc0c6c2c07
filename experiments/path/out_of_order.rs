//! Requests that were answered before the guest entry that is taken for theirs: their points are out of order. A guest polls its
//! ring once more after it has enabled interrupts, and may take a packet whose interrupt is under way, or for which none is sent.
//!
//! The report's count of such requests is made by teiji, so it excuses nothing by itself. The recording has to show as many
//! requests that were answered between signal and entry. If an interrupt was sent to a vCPU in guest mode, that vCPU may have polled
//! the packet first: all of these are excused. Of all others at most 3, or 1 %: there the vCPU was not running, or teiji itself
//! concluded which vCPU it was. Of TCP, whose packets have the key of their connection, a request is what comes to the guest until it
//! answers.

use super::late::events;
use anyhow::{Context, Result, ensure};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use teiji_model::event::{Delivery, Event, EventKind, Packet, Point, Role};
use teiji_model::report::{Reason, Report};
use teiji_model::stage::ThreadState;

/// How many requests are left out because their points are out of order.
///
/// # Errors
/// If the recording does not show that as many were answered before the entry, or there are such requests and no recording.
pub fn out_of_order(report: &Report, recording: Option<&Path>) -> Result<u64> {
    let count = report.vms.iter().map(|vm| vm.left_out_for(Reason::OutOfOrder)).sum();
    if count > 0 {
        let what = || format!("{count} requests are out of order, and no recording shows why");
        let shown = answered_before_entry(events(recording.with_context(what)?)?).excusable();
        ensure!(
            count <= shown,
            "{count} requests are out of order, but the recording shows {shown} that were answered before the guest entry"
        );
    }
    Ok(count)
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
    /// All others that were answered between signal and entry.
    others: u64,
    /// Requests that were put on a tap.
    requests: u64,
}

impl Answered {
    /// All with an interrupt to a running vCPU; of the others at most 3, or 1 % of the requests if that is more: if there are more,
    /// teiji tells entries wrongly.
    fn excusable(&self) -> u64 {
        self.to_running + self.others.min(3.max(self.requests / 100))
    }
}

/// The key of a request or an answer: a segment without payload is neither.
fn key(p: &Packet) -> Option<u64> {
    p.matching.filter(|m| !matches!(m.role, Role::Segment { payload: 0, .. })).map(|m| m.key)
}

fn answered_before_entry(mut events: Vec<Event>) -> Answered {
    events.sort_by_key(|event| event.ts);
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
                    of_vcpu.extend(
                        requests.into_iter().map(|request| (request, event.ts, is_to_running(&event))),
                    );
                }
            }
            EventKind::Packet(p) if p.point == Point::TapSend => {
                let Some(key) = key(&p) else { continue };
                let answer_to = (p.ifindex, key);
                open.remove(&answer_to);
                // A request may have several segments.
                let mut found = None;
                for of_vcpu in waiting.values_mut() {
                    of_vcpu.retain(|(request, _, to_running)| {
                        let is_it = *request == answer_to;
                        if is_it {
                            found = Some(found.unwrap_or(false) || *to_running);
                        }
                        !is_it
                    });
                }
                answered.to_running += u64::from(found == Some(true));
                answered.others += u64::from(found == Some(false));
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
/// later. That can happen with an interrupt that is sent to a vCPU that runs: a tenth of these, and three in any case.
///
/// # Errors
/// If the recording cannot be read.
pub fn raced(recording: &Path) -> Result<u64> {
    Ok(3.max(events(recording)?.iter().filter(|event| is_to_running(event)).count() as u64 / 10))
}

/// Whether an interrupt is sent to a vCPU that runs: it may take the packets without it, as it polls.
pub fn is_to_running(event: &Event) -> bool {
    let EventKind::Interrupt(i) = &event.kind else { return false };
    i.delivery == Delivery::Accepted && i.state == Some(ThreadState::Guest)
}

#[cfg(test)]
mod tests {
    use super::super::late::tests::packet_at;
    use super::*;
    use teiji_model::event::{GroupRole, GuestEntry, Interrupt, Match};
    use teiji_model::stage::Split;
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
        let shown = |to_running, requests| Answered { to_running, others: 0, requests };
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
        for (state, count) in [(ThreadState::Run, 1), (ThreadState::Guest, 0)] {
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
            assert_eq!(answered, Answered { to_running: 0, others: count, requests: 1 }, "{state:?}");
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
        assert_eq!(answered, Answered { to_running: 0, others: 1, requests: 1 });
    }

    /// Which vCPU receives a packet without an interrupt is teiji's conclusion: if that were wrong often, it would excuse itself.
    #[test]
    fn few_other_answers_before_an_entry_are_excusable() {
        for (to_running, others, requests, excusable) in [(5, 3, 10, 8), (0, 4, 10, 3), (0, 40, 1000, 10)] {
            assert_eq!(Answered { to_running, others, requests }.excusable(), excusable);
        }
    }
}
