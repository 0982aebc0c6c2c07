//! Which workers were stalled while they handed packets to a guest, or had a run of a probe skipped, so that nobody knows when it
//! received them.
//!
//! The report's count of such requests (`arrival_unknown`) is made by teiji, so it excuses nothing by itself. The recording has
//! to show one of three things of each of these signals: that the worker took long; that the vCPU had halted when the worker had
//! written the packets (a guest that polls halts only when it has handled what is in its ring); or that the kernel skipped the run
//! of a probe. Only the last is teiji's own statement. And the signals have to cover as many packets.

use super::late::events;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use teiji_model::event::{Event, EventKind, Interrupt, Point};
use teiji_model::report::{Reason, Report};
use teiji_model::stage::ThreadState;

/// A worker that has a CPU takes less than this from the beginning of a signal until the packets are in the ring, ns, also in
/// an emulated machine.
const LONG: u64 = 50_000;

/// How many requests are left out because their worker was stalled.
///
/// # Errors
/// If the recording does not show as many, or there are such requests and no recording.
pub fn stalled(report: &Report, recording: Option<&Path>) -> Result<u64> {
    shown(report.vms.iter().map(|vm| vm.left_out_for(Reason::ArrivalUnknown)).sum(), recording)
}

/// `count` requests are left out because their worker was stalled: returns that number.
///
/// # Errors
/// As [`stalled`].
pub fn shown(count: u64, recording: Option<&Path>) -> Result<u64> {
    if count > 0 {
        let what =
            || format!("{count} requests of stalled workers, and no recording that shows whether they were");
        let shown = packets(events(recording.with_context(what)?)?)?;
        ensure!(
            count <= shown,
            "{count} requests of stalled workers, but only {shown} such packets in the recording"
        );
    }
    Ok(count)
}

/// How many packets the signals of stalled workers covered.
fn packets(events: impl IntoIterator<Item = Event>) -> Result<u64> {
    /// When a worker took a packet, or signalled (`Some`).
    type Acts = Vec<(u64, Option<Interrupt>)>;
    // By worker and tap.
    let mut workers: BTreeMap<(u32, u32), Acts> = BTreeMap::new();
    for event in events {
        match event.kind {
            EventKind::Interrupt(i) => {
                workers.entry((i.tid, i.ifindex)).or_default().push((event.ts, Some(i)))
            }
            EventKind::Packet(p) if p.point == Point::TapDequeue => {
                workers.entry((p.tid, p.ifindex)).or_default().push((event.ts, None));
            }
            _ => {}
        }
    }
    let mut covered = 0;
    for mut events in workers.into_values() {
        events.sort_by_key(|(ts, _)| *ts);
        let mut in_hand = 0;
        for (ts, signal) in events {
            let Some(i) = signal else {
                in_hand += 1;
                continue;
            };
            if i.arrival_is_unknown() {
                let took = i.signalled.saturating_sub(ts);
                let halted = matches!(i.state, Some(ThreadState::Asleep | ThreadState::Poll));
                ensure!(
                    took > LONG || halted || i.is_skipped(),
                    "a worker that took {took} ns is said to have been stalled: {i:?}"
                );
                covered += in_hand;
            }
            in_hand = 0;
        }
    }
    Ok(covered)
}

#[cfg(test)]
mod tests {
    use super::super::late::tests::packet_at;
    use super::*;
    use teiji_model::event::Delivery;
    use teiji_model::stage::Split;
    use teiji_model::stream::StreamId;

    const WORKER: u32 = 7;

    fn taken(ts: u64, tid: u32) -> Event {
        packet_at(ts, 0, Point::TapDequeue, tid)
    }

    fn signal(ts: u64, took: u64, delivery: Delivery, state: Option<ThreadState>) -> Event {
        let interrupt = Interrupt {
            signalled: ts + took,
            ifindex: 1,
            tid: WORKER,
            delivery,
            vm: 1,
            vcpu: 0,
            index: Some(0),
            vector: 0,
            state,
            clock: Split::default(),
        };
        Event { ts, stream: StreamId::HOST, cpu: 0, kind: EventKind::Interrupt(interrupt) }
    }

    fn skipped(ts: u64, took: u64, state: Option<ThreadState>) -> Event {
        let mut event = signal(ts, took, Delivery::Unknown, state);
        if let EventKind::Interrupt(i) = &mut event.kind {
            i.vector = Interrupt::SKIPPED;
        }
        event
    }

    #[test]
    fn the_packets_of_stalled_workers_are_counted_and_no_others() {
        let runs = Some(ThreadState::Guest);
        let events = [
            taken(1, WORKER),
            signal(2, 1, Delivery::Suppressed, runs),
            taken(3, WORKER),
            taken(4, WORKER),
            taken(4, WORKER + 1),
            signal(5, LONG + 1, Delivery::Unknown, runs),
            signal(6, LONG + 1, Delivery::Unknown, None),
            taken(7, WORKER),
            signal(8, 1, Delivery::Unknown, Some(ThreadState::Asleep)),
            taken(9, WORKER),
            skipped(10, 0, None),
            // The vCPU had left guest mode, or has lost its CPU, by the end of the signal.
            taken(11, WORKER),
            skipped(12, 10_000, Some(ThreadState::Run)),
        ];
        assert_eq!(packets(events).unwrap(), 5);
        assert!(packets([signal(5, LONG, Delivery::Unknown, runs)]).is_err());
    }

    #[test]
    fn without_such_requests_no_recording_is_needed() {
        use teiji_analysis::{Analyzer, Options};
        use teiji_model::report::{Counters, Meta};
        let report =
            Analyzer::new(&Meta::default(), Options::default()).finish(Counters::default(), &mut |_| ());
        assert_eq!(stalled(&report, None).unwrap(), 0);
    }
}
