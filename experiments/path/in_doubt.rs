//! Which requests were on their path while events may have been missing.
//!
//! The report's count of such requests (`events_lost`) is made by teiji, so it excuses nothing by itself. The recording has to
//! show as many: requests that were on their path between two reads of the counters of lost events and skipped runs of probes
//! of which the second had grown, or when an event came too late to be used, or that began soon after.

use super::late::events;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use teiji_analysis::{Options, request_ttl};
use teiji_model::event::{Event, EventKind, Packet, Point, Role, Segment};
use teiji_model::report::{Reason, Report};

/// How long after such a time a request may begin and be left out, ns: teiji promises to use those that begin later.
const MARGIN: u64 = 100_000_000;
/// No packet is on its way through the host for longer, ns.
const LONGEST: u64 = 1_000_000_000;

/// A time with both ends, ns.
type Span = (u64, u64);

/// How many requests are left out because events may be missing of them.
///
/// # Errors
/// If the recording does not show as many, or there are such requests and no recording.
pub fn in_doubt(report: &Report, recording: Option<&Path>) -> Result<u64> {
    let count: u64 = report.vms.iter().map(|vm| vm.left_out_for(Reason::EventsLost)).sum();
    if count > 0 {
        let what =
            || format!("{count} requests of which events may be missing, and no recording that shows it");
        let events = events(recording.with_context(what)?)?;
        let open = request_ttl(report.meta.watch.matching);
        let shown = overlapping(&requests(&events, open), &missing(&events));
        ensure!(
            count <= shown,
            "events may be missing of {count} requests by the report, but only of {shown} by the recording"
        );
    }
    Ok(count)
}

/// How many of the requests were on their path at one of these times, or began at most [`MARGIN`] later.
fn overlapping(requests: &[Span], missing: &[Span]) -> u64 {
    let is = |(start, end): &&Span| missing.iter().any(|(a, b)| a <= end && b + MARGIN >= *start);
    requests.iter().filter(is).count() as u64
}

/// The times at which events are missing, of events in the order in which they were read.
fn missing(events: &[Event]) -> Vec<Span> {
    let (mut newest, mut spans) = (0, Vec::new());
    for event in events {
        match event.kind {
            EventKind::Lost(lost) => spans.push((lost.since.min(event.ts), event.ts)),
            EventKind::ThreadName(_) | EventKind::DropName(_) => {}
            _ => {
                // By then the analysis may have gone on without the event.
                let used = u64::saturating_sub(newest, Options::default().reorder);
                if event.ts < used {
                    spans.push((event.ts, used));
                }
                newest = newest.max(event.ts);
            }
        }
    }
    spans
}

/// When each request was on its path: from the first event of its packet to the last event of its final response. One
/// without such a response is open for `open`, ns.
///
/// On a connection of TCP a request is what comes to the guest until the guest answers, or until what comes acknowledges an
/// answer that is not in the recording. Its time begins with the segment before it: what was lost since then makes it doubtful.
fn requests(events: &[Event], open: u64) -> Vec<Span> {
    /// The times at which requests were put on a tap, with their fingerprints; and those of the responses.
    #[derive(Default)]
    struct Sides {
        requests: BTreeMap<u64, u64>,
        responses: BTreeMap<u64, u64>,
    }
    /// A segment at a tap.
    struct Passed {
        at: u64,
        to_guest: bool,
        fingerprint: u64,
        segment: Segment,
    }
    let packets = || {
        events.iter().filter_map(|e| match e.kind {
            EventKind::Packet(p) => Some((e.ts, p)),
            _ => None,
        })
    };
    let mut paths: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    // By tap and key.
    let mut keys: BTreeMap<(u32, u64), Sides> = BTreeMap::new();
    let mut connections: BTreeMap<(u32, u64), Vec<Passed>> = BTreeMap::new();
    for (ts, p) in packets() {
        paths.entry(p.fingerprint).or_default().push(ts);
        let Packet { point, fingerprint, ifindex, matching: Some(m), .. } = p else { continue };
        if let Some(segment) = m.segment() {
            let to_guest = point == Point::TapEnqueue;
            if to_guest || point == Point::TapSend {
                let passed = Passed { at: ts, to_guest, fingerprint, segment };
                connections.entry((ifindex, m.key)).or_default().push(passed);
            }
            continue;
        }
        let sides = keys.entry((ifindex, m.key)).or_default();
        match (point, m.role) {
            (Point::TapEnqueue, Role::Either | Role::Request) => sides.requests.insert(ts, fingerprint),
            (Point::TapSend, Role::Either | Role::Final) => sides.responses.insert(ts, fingerprint),
            _ => None,
        };
    }
    let near = |fingerprint: &u64, at: u64| {
        paths[fingerprint].iter().copied().filter(move |ts| ts.abs_diff(at) <= LONGEST)
    };
    let mut spans: Vec<Span> = Vec::new();
    for sides in keys.values() {
        let mut last: Option<Span> = None;
        for (at, fingerprint) in &sides.requests {
            // A copy of an open request is no request of its own.
            if last.is_some_and(|(_, end)| *at <= end) {
                continue;
            }
            let start = near(fingerprint, *at).min().unwrap_or(*at);
            let answer = sides.responses.range(*at..at + open).next();
            let end = answer.and_then(|(at, fingerprint)| near(fingerprint, *at).max());
            let span = (start, end.unwrap_or(at + open));
            spans.push(span);
            last = Some(span);
        }
    }
    for mut segments in connections.into_values() {
        segments.sort_by_key(|s| s.at);
        // What the client had acknowledged when it sent the request that is open.
        let mut asked = None;
        for (i, s) in segments.iter().enumerate().filter(|(_, s)| s.segment.payload > 0) {
            if !s.to_guest {
                asked = None;
                continue;
            }
            if asked.replace(s.segment.ack) == Some(s.segment.ack) {
                continue;
            }
            let former = segments[..i].last().map_or(s.at, |former| former.at);
            let start = near(&s.fingerprint, s.at).min().unwrap_or(s.at).min(former);
            let answers = |a: &&Passed| !a.to_guest && a.segment.payload > 0 && a.at < s.at + open;
            let answer = segments[i..].iter().find(answers);
            let end = answer.and_then(|a| near(&a.fingerprint, a.at).max());
            spans.push((start, end.unwrap_or(s.at + open)));
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::super::late::tests::packet_at;
    use super::*;
    use teiji_model::event::{GroupRole, Lost, Match};
    use teiji_model::stream::StreamId;

    const MS: u64 = 1_000_000;
    const OPEN: u64 = 5_000 * MS;

    fn packet(ms: u64, point: Point, fingerprint: u64, of: Option<(u64, Role)>) -> Event {
        let mut event = packet_at(ms * MS, 0, point, 1);
        if let EventKind::Packet(p) = &mut event.kind {
            p.fingerprint = fingerprint;
            p.matching =
                of.map(|(key, role)| Match { key, role, group: 0, group_role: GroupRole::default() });
        }
        event
    }

    /// An echo of `took` ms, whose request comes at `ms` and reaches the tap 1 ms later.
    fn echo(ms: u64, took: u64, n: u64) -> [Event; 4] {
        [
            packet(ms, Point::HostRx, n, None),
            packet(ms + 1, Point::TapEnqueue, n, Some((n, Role::Either))),
            packet(ms + took - 1, Point::TapSend, n + 1000, Some((n, Role::Either))),
            packet(ms + took, Point::DevXmit, n + 1000, None),
        ]
    }

    fn lost(since: u64, until: u64) -> Event {
        let kind = EventKind::Lost(Lost { since: since * MS, count: 1 });
        Event { ts: until * MS, stream: StreamId::HOST, cpu: 0, kind }
    }

    #[test]
    fn a_request_lasts_from_its_reception_to_its_answers_end() {
        let mut events = [echo(1000, 10, 1), echo(1005, 10, 2)].concat();
        events.push(packet(3000, Point::TapEnqueue, 3, Some((3, Role::Request))));
        // A copy, a response that another one may follow, and a request with the same key later on.
        events.push(packet(3100, Point::TapSend, 8, Some((3, Role::Provisional))));
        events.push(packet(3500, Point::TapEnqueue, 4, Some((3, Role::Request))));
        events.push(packet(9000, Point::TapEnqueue, 5, Some((3, Role::Request))));
        // Neither what is acknowledged nor what the guest asks for is a request of this kind.
        events.push(packet(9000, Point::TapEnqueue, 6, Some((6, Role::OneWay))));
        events.push(packet(9000, Point::TapSend, 7, Some((7, Role::Request))));
        let ms = |spans: Vec<Span>| spans.into_iter().map(|(a, b)| (a / MS, b / MS)).collect::<Vec<_>>();
        assert_eq!(ms(requests(&events, OPEN)), [(1000, 1010), (1005, 1015), (3000, 8000), (9000, 14_000)]);
    }

    #[test]
    fn turns_on_a_connection_are_requests() {
        use Point::{DevXmit, HostRx, TapEnqueue, TapSend};
        let segment = |ms, point, fingerprint, (ack, payload): (u32, u16)| {
            let mut event = packet(ms, point, fingerprint, None);
            if let EventKind::Packet(p) = &mut event.kind {
                p.matching =
                    Some(Match::of_segment(5, Segment { seq: 0, ack, payload, flags: Segment::ACK }));
            }
            event
        };
        let events = [
            packet(1000, HostRx, 1, None),
            segment(1001, TapEnqueue, 1, (1, 9)),
            // More of the request; the guest acknowledges it, and answers by two segments.
            segment(1002, TapEnqueue, 2, (1, 9)),
            segment(1003, TapSend, 3, (19, 0)),
            segment(1010, TapSend, 4, (19, 5)),
            packet(1011, DevXmit, 4, None),
            segment(1012, TapSend, 5, (19, 5)),
            segment(1020, TapEnqueue, 6, (11, 0)),
            // Two requests: the answer to the first is not in the recording. One that is never answered.
            segment(2000, TapEnqueue, 7, (11, 9)),
            segment(2100, TapEnqueue, 8, (16, 9)),
            segment(2110, TapSend, 9, (37, 5)),
            segment(3000, TapEnqueue, 10, (21, 9)),
        ];
        let ms = |(a, b): Span| (a / MS, b / MS);
        let spans: Vec<_> = requests(&events, OPEN).into_iter().map(ms).collect();
        assert_eq!(spans, [(1000, 1011), (1020, 2110), (2000, 2110), (2110, 8000)]);
    }

    #[test]
    fn those_on_their_path_while_events_were_missing_are_in_doubt_and_no_others() {
        let events = [echo(1000, 10, 1), echo(1020, 10, 2), echo(1070, 10, 3), echo(1171, 10, 4)].concat();
        let by = |lost: Event| overlapping(&requests(&events, OPEN), &missing(&[lost]));
        // From the first read to the second, and 100 ms after that.
        assert_eq!(by(lost(1011, 1070)), 2);
        assert_eq!(by(lost(1010, 1071)), 4);
        assert_eq!(by(lost(1182, 1190)), 0);
        assert_eq!(by(lost(800, 899)), 0);
    }

    #[test]
    fn a_late_event_is_missing_from_its_time_on() {
        let window = Options::default().reorder / MS;
        let newest = packet(2000 + window, Point::HostRx, 1, None);
        let in_time = packet(2000, Point::HostRx, 1, None);
        assert!(missing(&[newest, in_time]).is_empty());
        let late = packet(1990, Point::HostRx, 1, None);
        assert_eq!(missing(&[newest, late]), [(1990 * MS, 2000 * MS)]);
    }
}
