//! A snapshot of a trace in progress equals the report of its recording cut at that instant, and making one changes
//! nothing of what comes later.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::recording::{Reader, Writer};
use teiji_model::report::{Counters, Report};

/// Requests and responses that overlap; some are dropped, never answered, or of the other VM's kind.
fn history(requests: &[(u64, u8)]) -> Vec<Event> {
    let mut h = History::default();
    let mut t = 0;
    for (n, (gap, kind)) in requests.iter().enumerate() {
        t += gap;
        let (n, fp) = (n as u64, (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match kind % 5 {
            0 => drop(h.request(t, fp, m(n, Role::Request))),
            1 => drop(h.dropped(t, fp, NIC, m(n, Role::Request))),
            2 => drop(
                h.request(t, fp, m(n, Role::Request))
                    .at(t + 50_000, EventKind::Lost(Lost { since: T + t, count: 2 })),
            ),
            _ => drop(h.request(t, fp, m(n, Role::Request)).response(t + 200_000, !fp, m(n, Role::Final))),
        }
    }
    h.0.sort_by_key(|e| e.ts);
    h.0
}

fn counters(events: &[Event]) -> Counters {
    let ended = events.last().map_or(T, |e| e.ts) + 1;
    Counters { ended, events: events.len() as u64, ..Counters::default() }
}

fn analyzer(meta: &teiji_model::report::Meta) -> Analyzer {
    Analyzer::new(meta, Options { seed: 1, ..Options::default() })
}

/// The report of an unfinished recording of these events.
fn replayed(events: &[Event]) -> Report {
    let meta = meta(Matching::Echo);
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &meta).unwrap();
    for event in events {
        writer.push(*event).unwrap();
    }
    writer.sync(&counters(events)).unwrap();
    drop(writer);
    let mut reader = Reader::unfinished(&file[..]).unwrap();
    let mut analyzer = analyzer(reader.meta());
    while let Some(item) = reader.next().unwrap() {
        analyzer.take(item, &mut |_| ());
    }
    assert!(reader.is_cut());
    analyzer.finish(reader.counters().cloned().unwrap(), &mut |_| ())
}

proptest! {
    #[test]
    fn a_snapshot_is_the_report_of_the_recording_until_then(
        requests in prop::collection::vec((0u64..3_000_000_000, any::<u8>()), 1..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let events = history(&requests);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(events.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut live, mut undisturbed) = (analyzer(&meta(Matching::Echo)), analyzer(&meta(Matching::Echo)));
        let mut complete = [0, 0];
        for (n, event) in events.iter().enumerate() {
            for _ in cuts.iter().filter(|cut| **cut == n) {
                let snapshot = live.snapshot(counters(&events[..n]));
                prop_assert_eq!(&snapshot, &replayed(&events[..n]), "cut at {}", n);
            }
            live.push(*event, &mut |_| complete[0] += 1);
            undisturbed.push(*event, &mut |_| complete[1] += 1);
        }
        let last = live.snapshot(counters(&events));
        let end = live.finish(counters(&events), &mut |_| complete[0] += 1);
        let without = undisturbed.finish(counters(&events), &mut |_| complete[1] += 1);
        prop_assert_eq!(&last, &end);
        prop_assert_eq!(&end, &without);
        prop_assert_eq!(&end, &replayed(&events));
        prop_assert_eq!(complete[0], complete[1]);
    }
}

#[test]
fn a_snapshot_shows_what_is_complete_so_far() {
    let all: Vec<(u64, u8)> = (0..100).map(|_| (1_000_000_000, 3)).collect();
    let events = history(&all);
    let mut live = analyzer(&meta(Matching::Echo));
    let mut seen = Vec::new();
    for (n, event) in events.iter().enumerate() {
        if n % (events.len() / 4) == 0 {
            seen.push(live.snapshot(counters(&events[..n])).vms[0].requests.complete);
        }
        live.push(*event, &mut |_| ());
    }
    assert_eq!(seen, [0, 25, 50, 75]);
}
