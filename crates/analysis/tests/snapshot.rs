//! A snapshot of a trace in progress equals the report of its recording cut at that instant, and making one changes
//! nothing of what comes later.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::guest;
use teiji_model::recording::{Reader, Writer};
use teiji_model::report::{Counters, Report};
use teiji_model::stream::{Change, Changed, ClockMapping, Item, StreamId};

/// A VM that is not there at the start, and its tap.
const VM3: u32 = 72;
const TAP3: u32 = 7;
/// The stream of the first VM's guest, whose clock is `BEHIND` ns behind the host's.
const GUEST: StreamId = StreamId(1);
const BEHIND: u64 = 700_000_000;

/// What happens at one time, `T` + `t` on the host's clock: each item with the time at which the trace gets it.
fn happens(n: u64, t: u64, kind: u8) -> Vec<(u64, Item)> {
    let fp = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let change = |what| vec![(t, Item::Change(Change { ts: T + t, what }))];
    let mut h = History::default();
    let mut of_guest = Vec::new();
    match kind % 13 {
        0 => drop(h.request(t, fp, m(n, Role::Request))),
        1 => drop(h.dropped(t, fp, NIC, m(n, Role::Request))),
        2 => drop(
            h.request(t, fp, m(n, Role::Request))
                .at(t + 50_000, EventKind::Lost(Lost { since: T + t, count: 2 })),
        ),
        3 => return change(Changed::Ended { pid: VM2 }),
        4 => return change(Changed::Vm(Box::new(vm(VM2, TAP2)))),
        5 => return change(Changed::Vm(Box::new(vm(VM3, TAP3)))),
        6 => return change(Changed::Ended { pid: VM3 }),
        7 => {
            let mapping =
                ClockMapping { own: T + t - BEHIND, host: T + t, rate: ClockMapping::EQUAL, error: n * 10 };
            return change(Changed::Clock { stream: GUEST, vm: VM, mapping });
        }
        8 | 9 => {
            h.request(t, fp, m(n, Role::Request)).response(t + 200_000, !fp, m(n, Role::Final));
            for (at, fingerprint) in [(10_000, fp), (210_000, !fp)] {
                h.at(t + at, EventKind::Print(Print { fingerprint, print: fingerprint ^ 0xabc }));
            }
            let (print, own) = (fp ^ 0xabc, |after: u64| T + t + after - BEHIND);
            let (woken, running) = (own(76_000), own(100_000));
            of_guest = vec![
                (60_000, guest::EventKind::Received { print, interrupted: 0 }),
                (75_000, guest::EventKind::Queued { print, backlog: 0 }),
                (110_000, guest::EventKind::Read { print, tid: 40, woken, running, woken_by: 0 }),
                (180_000, guest::EventKind::Sent { print: !fp ^ 0xabc, tid: 40, began: own(170_000) }),
            ];
        }
        10 => {
            h.request(t, fp, m(n, Role::Request)).response(t + 200_000, !fp, m(n, Role::Final));
            h.redirect(0, VM3, TAP3);
        }
        _ => drop(h.request(t, fp, m(n, Role::Request)).response(t + 200_000, !fp, m(n, Role::Final))),
    }
    let of_host = h.0.into_iter().map(|event| (event.ts - T, Item::Event(event)));
    // A guest's reports come late, some of them too late.
    let late = if kind % 13 == 9 { n * 40_000_000 } else { 5_000_000 };
    let of_guest = of_guest.into_iter().map(|(after, kind)| {
        let ts = T + t + after - BEHIND;
        let event = Event { ts, stream: GUEST, cpu: 0, kind: EventKind::Guest(kind) };
        (t + after + late, Item::Event(event))
    });
    of_host.chain(of_guest).collect()
}

/// Requests and responses that overlap, some of them dropped or never answered, VMs that come and end, and a guest that reports; in
/// the order in which a trace gets them.
fn history(requests: &[(u64, u8)]) -> Vec<Item> {
    let mut t = 0;
    let mut all: Vec<(u64, Item)> = Vec::new();
    for (n, (gap, kind)) in requests.iter().enumerate() {
        t += gap;
        all.extend(happens(n as u64, t, *kind));
    }
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, item)| item).collect()
}

fn counters(items: &[Item]) -> Counters {
    let of_host = |item: &Item| item.event().filter(|e| e.stream.is_host()).map(|e| e.ts);
    let ended = items.iter().filter_map(of_host).max().unwrap_or(T) + 1;
    let events = items.iter().filter(|item| item.event().is_some()).count() as u64;
    Counters { ended, events, ..Counters::default() }
}

fn analyzer(meta: &teiji_model::report::Meta) -> Analyzer {
    Analyzer::new(meta, Options { seed: 1, ..Options::default() })
}

/// The report of an unfinished recording of these items.
fn replayed(items: &[Item]) -> Report {
    let meta = meta(Matching::Echo);
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file, &meta).unwrap();
    for item in items {
        match item {
            Item::Event(event) => writer.push(*event).unwrap(),
            Item::Change(change) => writer.change(change).unwrap(),
            Item::Observed(_) | Item::Sample(_) => unreachable!("a trace has none"),
        }
    }
    writer.sync(&counters(items)).unwrap();
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
        let items = history(&requests);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(items.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut live, mut undisturbed) = (analyzer(&meta(Matching::Echo)), analyzer(&meta(Matching::Echo)));
        let mut complete = [0, 0];
        let mut recorded = Vec::new();
        for (n, item) in items.iter().enumerate() {
            for _ in cuts.iter().filter(|cut| **cut == n) {
                let snapshot = live.snapshot(counters(&recorded));
                prop_assert_eq!(&snapshot, &replayed(&recorded), "cut at {}", n);
            }
            let used = live.take(item.clone(), &mut |_| complete[0] += 1);
            prop_assert_eq!(used, undisturbed.take(item.clone(), &mut |_| complete[1] += 1));
            if used {
                recorded.push(item.clone());
            }
        }
        let last = live.snapshot(counters(&recorded));
        let end = live.finish(counters(&recorded), &mut |_| complete[0] += 1);
        let without = undisturbed.finish(counters(&recorded), &mut |_| complete[1] += 1);
        prop_assert_eq!(&last, &end);
        prop_assert_eq!(&end, &without);
        prop_assert_eq!(&end, &replayed(&recorded));
        prop_assert_eq!(complete[0], complete[1]);
    }
}

/// What the property above is about does occur.
#[test]
fn the_history_has_guests_changes_and_refused_reports() {
    let kinds = [7, 5, 8, 8, 10, 9, 9, 9, 6, 3, 4, 11].map(|kind| (500_000_000, kind));
    let items = history(&[&kinds[..], &[(500_000_000, 9); 20]].concat());
    let mut live = analyzer(&meta(Matching::Echo));
    let refused = items.iter().filter(|item| !live.take((*item).clone(), &mut |_| ())).count();
    let report = live.finish(counters(&items), &mut |_| ());
    assert!(refused > 0, "no report came too late");
    assert!(report.vms[0].inside.as_ref().is_some_and(|inside| inside.divided >= 2), "{:?}", report.vms[0]);
    let lifetimes: Vec<_> =
        report.vms.iter().map(|vm| (vm.pid, vm.came.is_some(), vm.ended.is_some())).collect();
    assert_eq!(lifetimes, [(VM, false, false), (VM2, false, true), (VM3, true, true), (VM2, true, false)]);
    assert_eq!(report.vms[2].requests.complete, 1);
}

#[test]
fn a_snapshot_shows_what_is_complete_so_far() {
    let all: Vec<(u64, u8)> = (0..100).map(|_| (1_000_000_000, 12)).collect();
    let items = history(&all);
    let mut live = analyzer(&meta(Matching::Echo));
    let mut seen = Vec::new();
    for (n, item) in items.iter().enumerate() {
        if n % (items.len() / 4) == 0 {
            seen.push(live.snapshot(counters(&items[..n])).vms[0].requests.complete);
        }
        live.take(item.clone(), &mut |_| ());
    }
    assert_eq!(seen, [0, 25, 50, 75]);
}
