//! a. Accuracy: teiji's time of each request against a capture on the same bridge port.
//!
//! The capture's stamps are the kernel's own for packet sockets, paired by other code than teiji's. The clocks
//! differ (CLOCK_REALTIME, CLOCK_MONOTONIC), so durations are compared, request by request; which request of teiji's is
//! which of the capture's is told by their starts, whose clocks' difference is known well enough for that.

use super::{Extent, lost, only};
use crate::load;
use crate::numbers::{quantile, share};
use crate::pcap::{self, Exchange, Pairing};
use crate::tracing::{Lab, Trace, requests};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use teiji_lab::Guest;
use teiji_model::report::Joined;

/// A request may be off by this share of its time, or by [`OFF_NS`].
const OFF_SHARE: f64 = 0.02;
/// See [`OFF_SHARE`], ns.
const OFF_NS: f64 = 50_000.0;
/// Starts of one request on the two clocks differ by no more than this, ns.
const START_OFF: i64 = 3_000_000;

/// A protocol to try.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// How the capture is paired.
    pub pairing: Pairing,
    /// teiji's arguments.
    pub arguments: &'static str,
    /// Requests a second; for SIP calls, of two requests each.
    pub rate: f64,
}

/// The three cases.
pub const CASES: [Case; 3] = [
    Case { name: "udp", pairing: Pairing::Udp, arguments: "--flow 'udp port 7'", rate: 50.0 },
    Case { name: "icmp", pairing: Pairing::Icmp, arguments: "--flow icmp", rate: 50.0 },
    Case { name: "sip", pairing: Pairing::Sip, arguments: "--flow 'udp port 5060' --match sip", rate: 20.0 },
];

/// One request on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Its start, ns of CLOCK_REALTIME.
    pub start: u64,
    /// Its time by the capture, ns.
    pub capture: u64,
    /// Its time by teiji, ns.
    pub teiji: u64,
}

impl Pair {
    /// teiji's time less the capture's, ns.
    pub fn off(&self) -> f64 {
        self.teiji as f64 - self.capture as f64
    }

    /// Whether they agree.
    pub fn agrees(&self) -> bool {
        self.off().abs() <= (OFF_SHARE * self.capture as f64).max(OFF_NS)
    }
}

/// What a case came to.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    /// The case.
    pub case: &'static str,
    /// Requests that came to the bridge port, by the capture.
    pub requests: usize,
    /// Of them, answered, by the capture.
    pub answered: usize,
    /// Of them, followed by teiji from end to end.
    pub matched: usize,
    /// Requests of teiji's that the capture does not have.
    pub invented: usize,
    /// Share of the answered requests that teiji followed.
    pub matched_share: f64,
    /// Share of them whose times agree.
    pub agree_share: f64,
    /// Median of the differences, µs.
    pub off_p50_us: f64,
    /// 99th percentile of their sizes, µs.
    pub off_p99_us: f64,
    /// The greatest, µs.
    pub off_max_us: f64,
    /// Median time of a request by the capture, µs.
    pub total_p50_us: f64,
    /// 99th percentile of it, µs.
    pub total_p99_us: f64,
    /// Requests whose stages do not add up to their total.
    pub sums_wrong: usize,
    /// Share of the whole time that no stage accounts for.
    pub unattributed: f64,
    /// Events that teiji lost.
    pub lost: u64,
    /// Packets that the capture lost.
    pub capture_dropped: u64,
    /// teiji's own counts: seen, complete, incomplete, ambiguous, unanswered.
    pub counts: [u64; 5],
    /// The requests.
    #[serde(skip)]
    pub pairs: Vec<Pair>,
    /// The requests as teiji has them.
    #[serde(skip)]
    pub joined: Vec<Joined>,
}

/// What `teiji-lab capture` prints at its end.
#[derive(Deserialize)]
struct Counts {
    dropped: u64,
    realtime_minus_monotonic_ns: i64,
}

/// Runs one case against a guest that serves already.
///
/// # Errors
/// If a tool fails.
pub fn run(lab: &Lab, guest: &Guest<'_>, case: &Case, extent: &Extent) -> Result<Agreement> {
    run_under(lab, guest, case, || {
        match case.pairing {
            Pairing::Udp => drop(load::echo(&lab.host, guest, case.rate, extent.requests)?),
            Pairing::Icmp => load::ping(&lab.host, guest, case.rate, extent.requests)?,
            Pairing::Sip => drop(load::call(&lab.host, guest, case.rate, extent.requests / 2)?),
        }
        Ok(())
    })
}

/// Runs one case under a load of the caller's own.
///
/// # Errors
/// If a tool or the load fails.
pub fn run_under(
    lab: &Lab,
    guest: &Guest<'_>,
    case: &Case,
    load: impl FnOnce() -> Result<()>,
) -> Result<Agreement> {
    // A polling vCPU reads the clock without pause, and an emulator's CPUs read it one at a time.
    let _quiet = load::polling(&lab.host, 0)?;
    let _preferred = lab.host.prefer()?;
    let trace = Trace::start(lab, case.name, &format!("--vm {} {}", guest.name(), case.arguments), true)?;
    let file = format!("/tmp/{}.pcap", case.name);
    let capture = lab.host.spawn(&format!("exec teiji-lab capture --if uplink0 --snap 1000 --out {file}"))?;
    capture.wait_for("capturing", Duration::from_secs(60))?;
    load()?;
    lab.host.run(&format!("kill -INT {}", capture.id()?))?.ok()?;
    let told = capture.wait()?.ok()?;
    let counts: Counts = serde_json::from_str(told.lines().last().unwrap_or_default())
        .with_context(|| format!("the capture printed {told:?}"))?;
    let traced = trace.stop()?;
    let captured = std::fs::read(lab.fetch(&file)?).context("cannot read the capture")?;
    let recording = traced.recording.with_context(|| format!("no recording; teiji said: {}", traced.said))?;
    let (joined, _) = requests(&recording)?;
    let packets = pcap::packets(&captured)?;
    let found = pcap::pair(&packets, guest.ip(), case.pairing);
    let pairs = align(&found.exchanges, &joined, counts.realtime_minus_monotonic_ns);

    let off: Vec<f64> = pairs.iter().map(|p| p.off() / 1e3).collect();
    let size: Vec<f64> = off.iter().map(|o| o.abs()).collect();
    let total: Vec<f64> = found.exchanges.iter().map(|e| e.total as f64 / 1e3).collect();
    let vm = only(&traced.report)?;
    let r = vm.requests;
    let unattributed = vm.stages.iter().find(|s| s.stage == teiji_model::stage::Stage::Unattributed);
    Ok(Agreement {
        case: case.name,
        requests: found.requests,
        answered: found.exchanges.len(),
        matched: pairs.len(),
        invented: joined.len() - pairs.len(),
        matched_share: share(pairs.len(), found.exchanges.len()),
        agree_share: share(pairs.iter().filter(|p| p.agrees()).count(), pairs.len()),
        off_p50_us: quantile(&off, 0.5),
        off_p99_us: quantile(&size, 0.99),
        off_max_us: quantile(&size, 1.0),
        total_p50_us: quantile(&total, 0.5),
        total_p99_us: quantile(&total, 0.99),
        sums_wrong: joined.iter().filter(|j| sum(j) != j.request.total).count(),
        unattributed: unattributed.map_or(0.0, |s| s.time_share),
        lost: lost(&traced.report),
        capture_dropped: counts.dropped,
        counts: [r.seen, r.complete, r.incomplete, r.ambiguous, r.unanswered],
        pairs,
        joined,
    })
}

fn sum(joined: &Joined) -> u64 {
    joined.request.stages.iter().map(|s| s.ns).sum()
}

/// Pairs the requests of both, each used once, in the order of their starts: every one of teiji's with the nearest
/// of the capture's.
fn align(capture: &[Exchange], teiji: &[Joined], realtime_minus_monotonic: i64) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut at = 0;
    for j in teiji {
        let start = j.request.start as i64 + realtime_minus_monotonic;
        let distance = |e: &Exchange| (e.start as i64 - start).abs();
        while capture.get(at + 1).is_some_and(|next| distance(next) < distance(&capture[at])) {
            at += 1;
        }
        if let Some(e) = capture.get(at).filter(|e| distance(e) <= START_OFF) {
            pairs.push(Pair { start: e.start, capture: e.total, teiji: j.request.total });
            at += 1;
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::event::Role;
    use teiji_model::report::Request;

    fn joined(start: u64, total: u64) -> Joined {
        let request = Request {
            key: 0,
            group: 0,
            start,
            total,
            stages: Vec::new(),
            depth: 0,
            vcpu: 0,
            vcpu_state: None,
            preempted: 0,
            coalesced_kick: false,
        };
        Joined { vm: 0, request, ended_by: Role::Either, behind: Vec::new() }
    }

    #[test]
    fn requests_are_told_by_their_starts() {
        let capture: Vec<Exchange> =
            (1..=4).map(|i| Exchange { start: 10_000_000_000 + i * 5_000_000, total: 100 + i }).collect();
        // The second is missing; clocks 10 s apart, stamps 3 µs apart; the last was never captured.
        let teiji: Vec<Joined> =
            [1, 3, 4, 9].into_iter().map(|i| joined(i * 5_000_000 + 3_000, 200 + i)).collect();
        let pairs = align(&capture, &teiji, 10_000_000_000);
        let totals: Vec<_> = pairs.iter().map(|p| (p.capture, p.teiji)).collect();
        assert_eq!(totals, [(101, 201), (103, 203), (104, 204)]);
    }

    #[test]
    fn two_percent_or_fifty_microseconds_are_allowed() {
        let pair = |capture, teiji| Pair { start: 0, capture, teiji };
        assert!(pair(1_000_000, 1_050_000).agrees() && !pair(1_000_000, 1_050_001).agrees());
        assert!(pair(10_000_000, 9_800_000).agrees() && !pair(10_000_000, 9_799_999).agrees());
    }
}
