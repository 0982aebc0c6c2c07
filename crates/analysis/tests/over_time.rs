//! Requests over the trace, queue depth over the trace, and bursts.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::over_time::BINS;
use teiji_model::report::*;
use teiji_model::stage::{Actor, Split, Stage, ThreadState};

/// A fingerprint for each number.
fn fp(n: u64) -> u64 {
    (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

proptest! {
    #[test]
    fn every_complete_request_is_in_a_bin_and_so_is_the_slowest(
        requests in prop::collection::vec((1u64..40_000_000_000, 200u64..3_000_000, any::<bool>()), 1..60),
    ) {
        let mut h = History::default();
        let mut t = 0;
        for (n, (gap, answer, answered)) in requests.iter().enumerate() {
            t += gap;
            let n = n as u64;
            h.request(t, fp(n), m(n, Role::Request));
            if *answered {
                h.response(t + 60_000 + answer, !fp(n), m(n, Role::Final));
            }
        }
        h.0.sort_by_key(|e| e.ts);
        let meta = Meta { started: T, ..meta(Matching::Echo) };
        let run = run(&meta, &h.0);
        let vm = &run.report.vms[0];
        let bins = &vm.over_time.requests.bins;
        prop_assert!(bins.len() <= BINS && vm.over_time.depth.bins.len() <= BINS);
        prop_assert_eq!(bins.iter().map(|b| b.count).sum::<u64>(), vm.requests.complete);
        prop_assert_eq!(vm.over_time.depth.bins.iter().map(|b| b.count).sum::<u64>(), vm.requests.seen);
        let sum: u64 = run.joined.iter().map(|j| j.request.total).sum();
        prop_assert_eq!(bins.iter().map(|b| b.sum).sum::<u64>(), sum);
        prop_assert_eq!(bins.iter().map(|b| b.max).max(), vm.total.map(|d| d.max));
        prop_assert_eq!(bins.iter().map(|b| b.min).min(), vm.total.map(|d| d.min));
        if let Some(slowest) = vm.slowest.first() {
            let stages: Vec<u64> = slowest.stages.iter().map(|s| s.ns).collect();
            let found = bins.iter().any(|b| b.max == slowest.total && b.stages[..] == stages[..]);
            prop_assert!(found, "{slowest:?} is in none of {bins:?}");
        }
        for j in &run.joined {
            let at = j.request.start - T;
            let width = vm.over_time.requests.width;
            let of = bins.iter().find(|b| b.at <= at && at - b.at < width).unwrap();
            prop_assert!(of.min <= j.request.total && j.request.total <= of.max);
        }
    }
}

#[test]
fn a_long_trace_has_no_more_bins_than_a_short_one_and_keeps_each_spike() {
    let mut h = History::default();
    for n in 0..20_000u64 {
        let answer = if n == 7_777 { 90_000_000 } else { 300_000 };
        h.request(n * 100_000_000, fp(n), m(n, Role::Request));
        h.response(n * 100_000_000 + 60_000 + answer, !fp(n), m(n, Role::Final));
    }
    h.0.sort_by_key(|e| e.ts);
    let run = run(&Meta { started: T, ..meta(Matching::Echo) }, &h.0);
    let vm = &run.report.vms[0];
    assert_eq!(vm.requests.complete, 20_000);
    let line = &vm.over_time.requests;
    assert!(line.bins.len() > BINS / 2 && line.bins.len() <= BINS, "{}", line.bins.len());
    let spikes: Vec<_> = line.bins.iter().filter(|b| b.max > 1_000_000).collect();
    assert_eq!(spikes.len(), 1);
    assert_eq!(spikes[0].slowest_at, 7_777 * 100_000_000);
    assert_eq!(spikes[0].stages[Stage::Guest as usize], 90_000_000 + 60_000 - 50_000);
    let json = serde_json::to_string(&run.report).unwrap();
    assert!(json.len() < 400_000, "{} bytes", json.len());
}

/// A clock that has run for so many µs in each of these states.
fn clock(us: &[(ThreadState, u64)]) -> Split {
    let mut split = Split::default();
    us.iter().for_each(|(state, us)| split.0[*state as usize] += us * 1000);
    split
}

/// Packets `from..to` are put on the tap 1 µs after one another from `put` on, and taken from `taken` on, while the worker
/// was `worker` in between. Times in µs.
fn packets(h: &mut History, numbers: std::ops::Range<u64>, put: u64, taken: u64, worker: ThreadState) {
    let of = |point, n, split| Packet { worker: Some(split), ..packet(point, fp(n), TAP) };
    for (i, n) in (0..).zip(numbers.clone()) {
        h.packet((put + i) * 1000 - 500, Point::HostRx, fp(n), NIC);
        let at_put = clock(&[(worker, put + i)]);
        h.at((put + i) * 1000, EventKind::Packet(of(Point::TapEnqueue, n, at_put)));
    }
    let behind = numbers.end - numbers.start;
    for (i, n) in (0..).zip(numbers) {
        let p = of(Point::TapDequeue, n, clock(&[(worker, taken), (ThreadState::Run, i)]));
        h.at((taken + i) * 1000, EventKind::Packet(Packet { depth: (behind - 1 - i) as u16, ..p }));
    }
}

/// A signal that a vCPU accepts at `at`, µs, and whose clock then is `clock`.
fn signal(h: &mut History, at: u64, delivery: Delivery, clock: Split) {
    let i = Interrupt { delivery, clock, ..interrupt((at - 1) * 1000) };
    h.at(at * 1000, EventKind::Interrupt(i));
}

fn entry_at(h: &mut History, at: u64, clock: Split) {
    h.at(at * 1000, EventKind::GuestEntry(GuestEntry { clock, ..entry((at - 1) * 1000) }));
}

fn bursts(h: &mut History) -> (Bursts, OverTime) {
    h.0.sort_by_key(|e| e.ts);
    let mut report = run(&Meta { started: T, ..meta(Matching::None) }, &h.0).report;
    let vm = report.vms.remove(0);
    (vm.bursts.unwrap(), vm.over_time)
}

#[test]
fn packets_that_wait_for_the_worker_are_a_burst_of_the_worker() {
    for state in [ThreadState::Asleep, ThreadState::Ready, ThreadState::Run] {
        let mut h = History::default();
        packets(&mut h, 0..8, 100, 900, state);
        signal(&mut h, 920, Delivery::Accepted, clock(&[(ThreadState::Asleep, 10)]));
        entry_at(&mut h, 930, clock(&[(ThreadState::Asleep, 20)]));
        let (b, over_time) = bursts(&mut h);
        assert_eq!((b.signals.count, b.signals.max), (1, 8));
        assert_eq!((b.arrivals.count, b.arrivals.max, b.sizes), (1, 8, [0, 0, 0, 1, 0, 0, 0, 0]));
        let wanted = Burst {
            at: 930_000,
            packets: 8,
            waited: 830_000,
            actor: Some(Actor::Worker),
            state: Some(state),
            in_state: 800_000,
        };
        assert_eq!(b.largest, [wanted]);
        let depth: Vec<_> = over_time.depth.bins.iter().map(|b| (b.at, b.count, b.sum, b.max)).collect();
        assert_eq!(depth, [(0, 8, 28, 7)]);
    }
}

#[test]
fn packets_of_several_signals_that_wait_for_the_vcpu_are_a_burst_of_the_vcpu() {
    for state in [ThreadState::Asleep, ThreadState::Ready, ThreadState::Guest, ThreadState::Run] {
        let mut h = History::default();
        for n in 0..5 {
            packets(&mut h, 2 * n..2 * n + 2, 100 + 20 * n, 103 + 20 * n, ThreadState::Asleep);
            signal(&mut h, 110 + 20 * n, Delivery::Accepted, clock(&[(state, 110 + 20 * n)]));
        }
        entry_at(&mut h, 3_000, clock(&[(state, 2_900), (ThreadState::Poll, 100)]));
        // One packet afterwards is no burst.
        packets(&mut h, 10..11, 4_000, 4_001, ThreadState::Asleep);
        signal(&mut h, 4_003, Delivery::Posted, clock(&[(state, 3_000)]));
        let (b, _) = bursts(&mut h);
        assert_eq!((b.signals.count, b.signals.max), (6, 2), "each signal is for two packets");
        assert_eq!((b.arrivals.count, b.arrivals.max), (2, 10));
        assert_eq!(b.sizes, [1, 0, 0, 0, 1, 0, 0, 0]);
        let wanted = Burst {
            at: 3_000_000,
            packets: 10,
            waited: 2_900_000,
            actor: Some(Actor::Vcpu),
            state: Some(state),
            in_state: 2_790_000,
        };
        assert_eq!(b.largest, [wanted]);
    }
}

#[test]
fn the_largest_bursts_are_kept_and_no_more() {
    let mut h = History::default();
    let mut n = 0;
    for i in 0..100u64 {
        let (size, at) = (1 + (i * 37) % 50, 1_000 * (i + 1));
        packets(&mut h, n..n + size, at, at + 100, ThreadState::Asleep);
        n += size;
        signal(&mut h, at + 200, Delivery::Posted, Split::default());
    }
    let (b, _) = bursts(&mut h);
    assert_eq!((b.arrivals.count, b.sizes.iter().sum::<u64>()), (100, 100));
    let sizes: Vec<u64> = b.largest.iter().map(|b| b.packets).collect();
    assert_eq!(sizes, [50, 50, 49, 49, 48, 48, 47, 47, 46, 46, 45, 45, 44, 44, 43, 43]);
}

#[test]
fn where_events_were_lost_no_burst_is_claimed() {
    let mut h = History::default();
    packets(&mut h, 0..2, 100, 200, ThreadState::Asleep);
    signal(&mut h, 220, Delivery::Posted, Split::default());
    // A second later a signal may be among what was lost.
    packets(&mut h, 2..6, 1_000_100, 1_000_200, ThreadState::Asleep);
    h.at(1_000_210_000, EventKind::Lost(Lost { since: T + 1_000_150_000, count: 1 }));
    signal(&mut h, 1_000_220, Delivery::Posted, Split::default());
    let (b, over_time) = bursts(&mut h);
    assert_eq!((b.signals.count, b.signals.max), (1, 2));
    assert_eq!((b.arrivals.count, b.arrivals.max), (1, 2));
    assert_eq!(b.largest.iter().map(|b| b.packets).collect::<Vec<_>>(), [2]);
    let taken: u64 = over_time.depth.bins.iter().map(|b| b.count).sum();
    assert_eq!(taken, 6, "what was seen was seen");
}
