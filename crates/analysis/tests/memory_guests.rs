//! Memory stays bounded whatever guests report.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::guest;
use teiji_model::report::Counters;
use teiji_model::stream::{Change, Changed, ClockMapping, StreamId};

/// How many guests there are, and how much memory each may take, kB.
const GUESTS: u16 = 8;
const EACH: u64 = 8_000;
/// The memory of a trace without guests, kB.
const OTHER: u64 = 40_000;

/// The greatest memory that this process has used, kB.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn memory_is_bounded_whatever_guests_report() {
    let mut analyzer = Analyzer::new(&meta(Matching::Echo), Options { seed: 3, ..Options::default() });
    let mapping = ClockMapping { own: T, host: T, rate: ClockMapping::EQUAL, error: 100 };
    for stream in 1..=GUESTS {
        let what = Changed::Clock { stream: StreamId(stream), vm: VM, mapping };
        analyzer.change(Change { ts: T, what });
    }
    let mut used = 0u64;
    for i in 0..400_000u64 {
        let ts = T + i * 10_000;
        let kind = EventKind::Packet(packet(Point::HostRx, i, NIC));
        analyzer.push(Event { ts, stream: StreamId::HOST, cpu: (i % 4) as u16, kind }, &mut |_| ());
        for stream in 1..=GUESTS {
            // Ahead for ever; just in time, so that each is the oldest of its CPU; on many CPUs; and each of another packet
            // or thread.
            let (ts, cpu) = match i % 4 {
                0 => (u64::MAX - i, 0),
                1 => (ts.saturating_sub(499_000_000), 0),
                2 => (ts, (i % 4096) as u16),
                _ => (ts.saturating_sub(i % 500_000_000), (i % 64) as u16),
            };
            let kind = match i % 5 {
                0 => guest::EventKind::Received { print: i, interrupted: 0 },
                1 => guest::EventKind::Queued { print: i, backlog: 0 },
                2 => guest::EventKind::Thread {
                    tid: i as u32,
                    process: 1,
                    parent: 1,
                    comm: [0; 16],
                    started: ts,
                },
                3 => guest::EventKind::Sent { print: i, tid: 1, began: 0 },
                _ => guest::EventKind::Handed { print: i },
            };
            let event = Event { ts, stream: StreamId(stream), cpu, kind: EventKind::Guest(kind) };
            used += u64::from(analyzer.push(event, &mut |_| ()));
        }
    }
    let kb = resident_kb();
    println!("{used} events of {GUESTS} guests used, {kb} kB");
    assert!(used > 100_000, "{used}: the guests were hardly heard");
    assert!(kb < OTHER + u64::from(GUESTS) * EACH, "{kb} kB");
    let report = analyzer.finish(Counters { ended: T + 4_000_000_000, ..Counters::default() }, &mut |_| ());
    assert_eq!(report.guests.len(), usize::from(GUESTS));
}
