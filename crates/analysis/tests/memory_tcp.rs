//! Memory stays bounded whatever connections of TCP come and go.

mod common;

use common::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::report::{Counters, Reason};

/// The limit on the memory of a process, kB.
const LIMIT: u64 = 100_000;

/// The greatest memory that this process has used, kB.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kb| kb.parse().ok()).expect("the kernel tells VmHWM")
}

fn segment(connection: u64, seq: u32, ack: u32, payload: u16, flags: u8) -> Option<Match> {
    Some(Match::of_segment(connection, Segment { seq, ack, payload, flags }))
}

/// A guest opens a million connections, on each of which a request waits for its answer.
#[test]
fn a_million_connections_take_no_more_than_their_bound() {
    // As documented where events wait to be sorted.
    assert_eq!(size_of::<Event>(), 128);
    let mut analyzer = Analyzer::new(&meta(Matching::Tcp), Options { seed: 3, ..Options::default() });
    let mut joined = 0u64;
    for i in 0..1_000_000u64 {
        let fp = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut h = History::default();
        h.request(i * 10_000, fp, segment(i, 100, 0, 0, Segment::SYN));
        h.response(i * 10_000 + 1_000, fp ^ 1, segment(i, 200, 101, 0, Segment::SYN | Segment::ACK));
        h.request(i * 10_000 + 2_000, fp ^ 2, segment(i, 101, 201, 10, Segment::ACK));
        h.0.sort_by_key(|e| e.ts);
        // Each on a CPU of its own, in order.
        for (cpu, e) in (0..).zip(h.0) {
            analyzer.push(Event { cpu, ..e }, &mut |_| joined += 1);
        }
    }
    let losses = analyzer.losses();
    let report = analyzer.finish(Counters::default(), &mut |_| joined += 1);
    let vm = &report.vms[0];
    println!("{:?} {:?} {losses:?}, {} kB", vm.requests, vm.connections, resident_kb());
    assert!(resident_kb() < LIMIT, "{} kB", resident_kb());
    assert_eq!((joined, vm.requests.seen, vm.requests.unanswered), (0, 1_000_000, 1_000_000));
    assert_eq!(vm.connections.map(|c| c.seen), Some(1_000_000));
    let evicted = vm.left_out.iter().filter(|l| l.reason == Reason::Evicted).map(|l| l.count).sum::<u64>();
    assert!(evicted > 900_000, "{:?}", vm.left_out);
}
