//! Which events of a recording came too late to be used, by a statement that does not depend on how teiji sorts: teiji
//! promises to use every event that is at most [`Options::reorder`] older than the newest event read before it.
//!
//! A recording has the events in the order in which they were read. `Report::late` is a count by the analysis itself, so
//! it excuses nothing by itself: an analysis that gives up events too early counts more of them than the recording shows.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use teiji_analysis::Options;
use teiji_model::event::{Event, EventKind};
use teiji_model::recording::Reader;
use teiji_model::report::Report;

/// How many of these events, in the order in which they were read, are older than the newest one before them by more than
/// `window` ns. Notes that the reader adds (losses and names) are no events of a path, and do not count.
fn older_than(window: u64, events: impl IntoIterator<Item = Event>) -> u64 {
    let (mut newest, mut older) = (0, 0);
    for event in events {
        if matches!(event.kind, EventKind::Lost(_) | EventKind::ThreadName(_) | EventKind::DropName(_)) {
            continue;
        }
        older += u64::from(event.ts.saturating_add(window) < newest);
        newest = newest.max(event.ts);
    }
    older
}

/// The events of a recording, in the order in which they were read.
///
/// # Errors
/// If it cannot be read.
pub fn events(recording: &Path) -> Result<Vec<Event>> {
    let what = || format!("cannot read the recording {}", recording.display());
    let mut reader =
        Reader::new(BufReader::new(File::open(recording).with_context(what)?)).with_context(what)?;
    let mut events = Vec::new();
    while let Some(item) = reader.next().with_context(what)? {
        events.extend(item.event().filter(|event| event.stream.is_host()));
    }
    Ok(events)
}

/// How many events of a trace were late, if its recording shows at least as many.
///
/// # Errors
/// If the recording shows fewer, or if there are late events and no recording.
pub fn late(report: &Report, recording: Option<&Path>) -> Result<u64> {
    if report.late == 0 {
        return Ok(0);
    }
    let recording = recording.with_context(|| {
        format!("{} late events, and no recording that shows whether they were", report.late)
    })?;
    shown(report.late, events(recording)?)
}

fn shown(late: u64, events: impl IntoIterator<Item = Event>) -> Result<u64> {
    let window = Options::default().reorder;
    let older = older_than(window, events);
    ensure!(
        late <= older,
        "{late} late events by the report, but only {older} are more than {} ms older than an event read before them",
        window / 1_000_000
    );
    Ok(late)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use teiji_analysis::Analyzer;
    use teiji_model::event::{Lost, Packet, Point, ThreadName};
    use teiji_model::report::{Counters, Meta};
    use teiji_model::stream::StreamId;

    /// A packet at a point, of the thread `tid`.
    pub(in crate::path) fn packet_at(ts: u64, cpu: u16, point: Point, tid: u32) -> Event {
        let packet = Packet {
            point,
            fingerprint: 1,
            matching: None,
            ifindex: 1,
            len: 100,
            tid,
            queue: None,
            depth: 0,
            worker: None,
            preempted_by: 0,
        };
        Event { ts, stream: StreamId::HOST, cpu, kind: EventKind::Packet(packet) }
    }

    fn packet(ts: u64, cpu: u16) -> Event {
        packet_at(ts, cpu, Point::TapSend, 1)
    }

    /// Events of two CPUs, in order, with `k` of the other CPU that are older than the window by 1 ns, and one more that is
    /// exactly as old as the window.
    fn with_late(k: u64) -> Vec<Event> {
        let window = Options::default().reorder;
        let mut events = Vec::new();
        for n in 1..=k {
            let newest = n * 10 * window;
            events.push(packet(newest, 0));
            // A loss and a name are read with later times of their own, and make no event late.
            events.push(Event {
                ts: newest + 5,
                stream: StreamId::HOST,
                cpu: 0,
                kind: EventKind::Lost(Lost { since: newest, count: 1 }),
            });
            let name = ThreadName { tid: 1, comm: [0; 16] };
            events.push(Event {
                ts: newest - window - 1,
                stream: StreamId::HOST,
                cpu: 1,
                kind: EventKind::ThreadName(name),
            });
            events.push(packet(newest - window - 1, 1));
            events.push(packet(newest - window, 1));
        }
        events
    }

    #[test]
    fn as_many_late_events_are_allowed_as_the_recording_shows_and_no_more() {
        for k in [0, 1, 7] {
            assert_eq!(older_than(Options::default().reorder, with_late(k)), k);
            assert_eq!(shown(k, with_late(k)).unwrap(), k);
            let why = shown(k + 1, with_late(k)).unwrap_err().to_string();
            assert!(why.contains(&format!("{} late events by the report, but only {k} ", k + 1)), "{why}");
        }
    }

    #[test]
    fn late_events_without_a_recording_excuse_nothing() {
        let mut report =
            Analyzer::new(&Meta::default(), Options::default()).finish(Counters::default(), &mut |_| ());
        assert_eq!(late(&report, None).unwrap(), 0);
        report.late = 1;
        assert!(late(&report, None).is_err());
    }

    /// What the analysis refuses is late by this definition, too; a smaller window than it promises is a fault.
    #[test]
    fn an_analysis_that_waits_too_shortly_counts_more_than_the_recording_shows() {
        let window = Options::default().reorder;
        let counted = |reorder: u64, events: &[Event]| {
            let options = Options { reorder, ..Options::default() };
            let mut analyzer = Analyzer::new(&Meta::default(), options);
            for event in events {
                analyzer.push(*event, &mut |_| ());
            }
            analyzer.losses().late
        };
        // The newer CPU goes on for several windows; the other one is each time 0.4 windows behind, or 1.4.
        let behind = |share: u64| {
            let at = |n: u64| [packet(n * window / 10, 0), packet((n * 10 - share) * window / 100, 1)];
            (20..100).flat_map(at).collect::<Vec<Event>>()
        };
        let (near, far) = (behind(40), behind(140));
        assert_eq!(counted(window, &near), 0);
        let late = counted(window, &far);
        assert!(late > 0 && shown(late, far).is_ok(), "{late}");
        let early = counted(window / 10, &near);
        assert!(early > 0 && shown(early, near).is_err(), "{early}");
    }
}
