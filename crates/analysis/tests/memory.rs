//! Memory stays bounded at 200,000 packets per second, with well-behaved guests and with hostile ones.

mod common;

use common::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::report::Counters;

/// A second, ns.
const S: u64 = 1_000_000_000;
/// The limit on the memory of a process, kB.
const LIMIT: u64 = 100_000;

/// The greatest memory that this process has used, kB.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kb| kb.parse().ok()).expect("the kernel tells VmHWM")
}

#[test]
fn memory_is_bounded() {
    // First regular traffic, then requests that are never answered or never taken off the tap, then equal fingerprints, then
    // requests of the guest's own that nobody answers.
    // At last all events come from one CPU at a time, as when the only busy vhost worker is moved: after a second, or so
    // often that it has been on each of 128 CPUs.
    let all =
        [("answered", 0), ("never answered", 1), ("never taken", 2), ("alike", 3), ("the guest's own", 4)];
    let all = all.map(|(what, hostile)| (what, hostile, None));
    let moved = [("moved each second", 0, Some(S)), ("moved to 128 CPUs", 0, Some(S / 30))];
    for (what, hostile, moves) in all.into_iter().chain(moved) {
        let mut analyzer = Analyzer::new(&meta(Matching::Sip), Options { seed: 3, ..Options::default() });
        let (mut joined, mut events, mut buffer) = (0u64, 0u64, Vec::new());
        for i in 0..500_000u64 {
            // 100,000 requests per second, two packets each, drained every 10 ms, CPU by CPU.
            let fp = if hostile == 3 { i % 1000 } else { i.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
            let mut h = History::default();
            let group_role =
                Some(Match { key: i, role: Role::Request, group: i + 1, group_role: GroupRole::Begins });
            if hostile == 4 {
                h.response(i * 10_000, fp, group_role);
            } else {
                h.request(i * 10_000, fp, group_role);
            }
            if hostile != 1 && hostile != 4 {
                let group_role =
                    Some(Match { key: i, role: Role::Final, group: i + 1, group_role: GroupRole::Begins });
                h.response(i * 10_000 + 100_000, !fp, group_role);
            }
            if hostile == 2 {
                h.0.retain(|e| !matches!(e.kind, EventKind::Packet(p) if p.point == Point::TapDequeue));
            }
            buffer.extend(h.0.into_iter().enumerate().map(|(n, e)| {
                let cpu = moves.map_or(n as u64, |after| e.ts / after % 128);
                Event { cpu: cpu as u16, ..e }
            }));
            if i % 1000 == 999 {
                buffer.sort_by_key(|e| (e.cpu, e.ts));
                events += buffer.len() as u64;
                for e in buffer.drain(..) {
                    analyzer.push(e, &mut |_| joined += 1);
                }
            }
        }
        let losses = analyzer.losses();
        let report = analyzer.finish(Counters::default(), &mut |_| joined += 1);
        println!(
            "{what}: {events} events, {joined} joined, {:?}, {losses:?}, {} kB",
            report.vms[0].requests,
            resident_kb()
        );
        assert!(resident_kb() < LIMIT, "{} kB after {what}", resident_kb());
    }
}
