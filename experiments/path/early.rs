//! Which guests answered before the entry that took the interrupt: they had found the packet in their ring by themselves.
//!
//! The report's count of requests whose points are out of order is made by teiji, so it excuses nothing by itself. The recording
//! has to show as many packets that were answered while their interrupt waited for the vCPU's entry.

use super::late::events;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::path::Path;
use teiji_model::event::{Delivery, Event, EventKind, Point};
use teiji_model::report::{Reason, Report};

/// How many requests are left out because their points are out of order.
///
/// # Errors
/// If the recording does not show as many, or there are such requests and no recording.
pub fn early(report: &Report, recording: Option<&Path>) -> Result<u64> {
    let count = report.vms.iter().map(|vm| vm.left_out_for(Reason::OutOfOrder)).sum();
    if count > 0 {
        let what = || format!("{count} requests are out of order, and no recording shows why");
        let shown = answered_before_entry(events(recording.with_context(what)?)?);
        ensure!(
            count <= shown,
            "{count} requests are out of order, but the recording shows {shown} that were answered before their interrupt"
        );
    }
    Ok(count)
}

/// Packets that were answered after their interrupt was accepted, and before the entry that took it.
fn answered_before_entry(mut events: Vec<Event>) -> u64 {
    events.sort_by_key(|event| event.ts);
    // By worker: the keys of the packets that it holds. By vCPU and vector: those whose interrupt waits, and since when.
    let mut held: HashMap<u32, Vec<u64>> = HashMap::new();
    let mut waiting: HashMap<(u32, u32, u8), Vec<(u64, u64)>> = HashMap::new();
    let mut early = 0;
    for event in events {
        match event.kind {
            EventKind::Packet(p) if p.point == Point::TapDequeue => {
                held.entry(p.tid).or_default().extend(p.matching.map(|m| m.key));
            }
            EventKind::Interrupt(i) => {
                let keys = held.remove(&i.tid).unwrap_or_default();
                if i.delivery == Delivery::Accepted {
                    let of_vcpu = waiting.entry((i.vm, i.vcpu, i.vector)).or_default();
                    of_vcpu.extend(keys.into_iter().map(|key| (key, event.ts)));
                }
            }
            EventKind::Packet(p) if p.point == Point::TapSend => {
                let key = p.matching.map(|m| m.key);
                let answered = |(of, _): &&(u64, u64)| Some(*of) == key;
                early += waiting.values().flatten().filter(answered).count() as u64;
            }
            EventKind::GuestEntry(e) => {
                if let Some(of_vcpu) = waiting.get_mut(&(e.vm, e.vcpu, e.vector)) {
                    of_vcpu.retain(|(_, accepted)| *accepted > e.upto);
                }
            }
            _ => {}
        }
    }
    early
}

#[cfg(test)]
mod tests {
    use super::super::late::tests::packet_at;
    use super::*;
    use teiji_model::event::{GroupRole, GuestEntry, Interrupt, Match, Role};
    use teiji_model::stage::Split;
    use teiji_model::stream::StreamId;

    const WORKER: u32 = 7;

    fn packet(ts: u64, point: Point, key: u64) -> Event {
        let mut event = packet_at(ts, 0, point, WORKER);
        if let EventKind::Packet(p) = &mut event.kind {
            p.matching = Some(Match { key, role: Role::Either, group: 0, group_role: GroupRole::Within });
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
            state: None,
            clock: Split::default(),
        };
        Event { ts, stream: StreamId::HOST, cpu: 0, kind: EventKind::Interrupt(interrupt) }
    }

    fn entry(ts: u64, upto: u64) -> Event {
        let clock = Split::default();
        let entry = GuestEntry { vm: 1, vcpu: 0, index: 0, vector: 40, upto, clock, preempted_by: 0 };
        Event { ts, stream: StreamId::HOST, cpu: 0, kind: EventKind::GuestEntry(entry) }
    }

    #[test]
    fn answers_between_an_interrupt_and_its_entry_are_counted_and_no_others() {
        use Point::{TapDequeue, TapSend};
        let usual = [packet(1, TapDequeue, 5), accepted(2), entry(3, 2), packet(4, TapSend, 5)];
        assert_eq!(answered_before_entry(usual.to_vec()), 0);
        // The second packet's interrupt comes after the first one's entry.
        let early = [
            packet(1, TapDequeue, 5),
            accepted(2),
            packet(3, TapDequeue, 6),
            accepted(4),
            entry(5, 2),
            packet(6, TapSend, 6),
            packet(7, TapSend, 5),
            entry(8, 4),
        ];
        assert_eq!(answered_before_entry(early.to_vec()), 1);
        assert_eq!(answered_before_entry([usual, early[..4].to_vec().try_into().unwrap()].concat()), 0);
    }
}
