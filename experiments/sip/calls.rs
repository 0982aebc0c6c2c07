//! a. Calls: each as teiji, as sipp's own logs, and as a capture at sipp's interface have it.
//!
//! ```text
//! sipp ─ eth0 ══ uplink0 ─ bridge ─ tap ─ guest
//!   │     │          └ teiji: from here, and back
//!   │     └ the capture
//!   └ its logs: response times (`-trace_rtt`), and the time of each message (`-trace_shortmsg`)
//! ```
//!
//! sipp's response times are those of its own clock, which advances in steps of several ms here: their resolution is
//! measured. Its message log has the system's clock in µs, and contains what sipp itself needs to notice a message.
//! Calls are told apart by Call-ID in the logs and in the capture, and by the time of the INVITE in teiji's recording.

use super::{Extent, TRACE};
use crate::load;
use crate::numbers::{quantile, share};
use crate::path::accuracy::ClockDifference;
use crate::path::{lost, may_be_incomplete, only};
use crate::pcap::{self, Side};
use crate::reporting::START;
use crate::tracing::{Lab, Trace, requests};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use teiji_lab::Guest;
use teiji_model::report::{Call, CallMessage, Groups, Inside, Joined, SentAgain};
use teiji_model::stage::Stage;

/// A call's times may differ by this share.
const OFF: f64 = 0.02;

/// A call, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// When its INVITE left sipp's interface, CLOCK_REALTIME.
    pub start: u64,
    /// By teiji.
    pub teiji: u64,
    /// By the capture at sipp's interface.
    pub capture: u64,
    /// By sipp's message log.
    pub messages: u64,
    /// By sipp's response times.
    pub response_times: u64,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    /// Calls that sipp completed, by its response-time log.
    pub calls: usize,
    /// Calls that are complete in teiji's report.
    pub complete: u64,
    /// Calls that began in it and are not complete.
    pub incomplete: u64,
    /// Calls that were found in all four sources.
    pub compared: usize,
    /// Share of these whose time is within 2 % of the capture's.
    pub with_capture: f64,
    /// The same, of sipp's message log.
    pub with_messages: f64,
    /// The same, of sipp's response times.
    pub with_response_times: f64,
    /// Share of the calls for which sipp's response time is within 2 % of the capture's, without regard to teiji.
    pub response_times_with_capture: f64,
    /// The step of sipp's clock: the smallest difference between two of its response times, ms.
    pub step_ms: f64,
    /// How many different response times there are.
    pub distinct: usize,
    /// Median and 99th percentile of the calls' times, by teiji, ms.
    pub total_ms: [f64; 2],
    /// Median and 99th percentile of the distance of teiji's time from the capture's, the message log's, and the response
    /// times', ms.
    pub off_ms: [[f64; 2]; 3],
    /// Requests whose stages do not add up to their time, and the share of the time that no stage accounts for.
    pub sums_wrong: usize,
    /// See above.
    pub unattributed: f64,
    /// Calls whose requests and the time outside do not add up to the call, within 1 %.
    pub calls_wrong: usize,
    /// Messages of complete calls: which, how many calls have it, further copies, median time after the INVITE, ms.
    pub messages: Vec<(CallMessage, u64, u64, f64)>,
    /// Requests that were sent again.
    pub sent_again: SentAgain,
    /// Copies of requests in the capture.
    pub repeated: usize,
    /// Requests of which the guest's part is known, and those of which a report came before its cause.
    pub divided: u64,
    /// See above.
    pub violations: u64,
    /// By how much the guest's clock may be wrong, ns.
    pub clock_error: u64,
    /// Events that were lost, of the host and of the guest, and requests that may be missing because of unseen events.
    pub lost: [u64; 3],
    /// The calls.
    #[serde(skip)]
    pub all: Vec<Compared>,
}

/// Makes calls to a guest whose SIP server is running.
///
/// # Errors
/// If a tool fails.
pub fn run(lab: &Lab, guest: &Guest<'_>, extent: &Extent) -> Result<Agreement> {
    let _quiet = load::polling(&lab.host, 0)?;
    let trace = Trace::start(lab, "calls", TRACE, true)?;
    trace.wait_for("reports its part of the path", START)?;
    let capture = lab
        .host
        .spawn("exec ip netns exec peer teiji-lab capture --if eth0 --snap 1000 --out /tmp/calls.pcap")?;
    capture.wait_for("capturing", START)?;
    let limit = Duration::from_secs_f64(extent.calls as f64 / extent.rate * 2.0 + 120.0);
    lab.host.run_for(&sipp(guest, extent), limit)?;
    std::thread::sleep(Duration::from_secs(2));
    lab.host.run(&format!("kill -INT {}", capture.id()?))?.ok()?;
    let printed = capture.wait()?.ok()?;
    let clocks: ClockDifference = serde_json::from_str(printed.lines().last().unwrap_or_default())
        .with_context(|| format!("the capture printed {printed:?}"))?;
    let traced = trace.stop()?;
    let recording = traced.recording.as_deref().context("no recording")?;
    let (joined, _) = requests(recording)?;
    let file = std::fs::read(lab.fetch("/tmp/calls.pcap")?)?;
    let packets = pcap::packets(&file)?;
    let captured = pcap::calls(&packets, guest.ip(), Side::Downlink);
    let repeated = pcap::pair(&packets, guest.ip(), pcap::Pairing::Sip, Side::Downlink).repeated;
    let text = |path: &str| -> Result<String> { Ok(lab.host.run(&format!("cat {path}"))?.ok()?) };
    let messages = messages(&text("/tmp/sip-run/*_shortmessages.log")?);
    let times = response_times(&text("/tmp/sip-run/*_rtt.csv")?)?;
    let by_id: HashMap<&str, (u64, u64)> =
        messages.iter().zip(&times).map(|((id, total), ms)| (id.as_str(), (*total, *ms))).collect();
    let calls = of_recording(&joined);
    let mut all = Vec::new();
    for (teiji, call) in align(&captured, &calls, clocks) {
        let Some((messages, response_times)) = by_id.get(call.call.as_str()).copied() else { continue };
        let (start, capture) = (call.start, call.total);
        all.push(Compared { start, teiji, capture, messages, response_times });
    }
    let vm = only(&traced.report)?;
    let groups = vm.groups.clone().unwrap_or_default();
    let inside = vm.inside.clone().unwrap_or_default();
    let within = |of: &dyn Fn(&Compared) -> u64, what: &dyn Fn(&Compared) -> u64| {
        let near = |c: &&Compared| of(c).abs_diff(what(c)) as f64 <= OFF * of(c) as f64;
        share(all.iter().filter(near).count(), all.len())
    };
    let off = |of: &dyn Fn(&Compared) -> u64| {
        let all: Vec<f64> = all.iter().map(|c| of(c).abs_diff(c.teiji) as f64 / 1e6).collect();
        [quantile(&all, 0.5), quantile(&all, 0.99)]
    };
    let totals: Vec<f64> = all.iter().map(|c| c.teiji as f64 / 1e6).collect();
    let (step_ms, distinct) = resolution(&times);
    let unattributed = vm.stages.iter().find(|s| s.stage == Stage::Unattributed);
    let unattributed = unattributed.map_or(0.0, |s| s.time_share);
    Ok(Agreement {
        calls: times.len(),
        complete: groups.complete,
        incomplete: groups.incomplete,
        compared: all.len(),
        with_capture: within(&|c| c.capture, &|c| c.teiji),
        with_messages: within(&|c| c.messages, &|c| c.teiji),
        with_response_times: within(&|c| c.response_times, &|c| c.teiji),
        response_times_with_capture: within(&|c| c.capture, &|c| c.response_times),
        step_ms,
        distinct,
        total_ms: [quantile(&totals, 0.5), quantile(&totals, 0.99)],
        off_ms: [off(&|c| c.capture), off(&|c| c.messages), off(&|c| c.response_times)],
        sums_wrong: joined.iter().filter(|j| sum(j) != j.request.total).count(),
        unattributed,
        calls_wrong: calls_wrong(&groups, &joined),
        messages: groups
            .messages
            .iter()
            .map(|m| (m.message, m.at.count, m.copies, m.at.p50 as f64 / 1e6))
            .collect(),
        sent_again: vm.requests.sent_again,
        repeated,
        divided: inside.divided,
        violations: inside.violations,
        clock_error: traced.report.guests.iter().map(|g| g.clock_error).max().unwrap_or(u64::MAX),
        lost: [
            lost(&traced.report),
            traced.report.guests.iter().map(|g| g.lost).sum(),
            may_be_incomplete(&traced)?,
        ],
        all,
    })
}

/// sipp's own caller, with a second response time: from the INVITE to the response to BYE.
fn sipp(guest: &Guest<'_>, extent: &Extent) -> String {
    format!(
        "rm -rf /tmp/sip-run; mkdir /tmp/sip-run; cd /tmp/sip-run; \
         sipp -sd uac | sed -e '0,/<send retrans=\"500\">/s//<send retrans=\"500\" start_rtd=\"2\">/' \
         -e 's/<recv response=\"200\" crlf=\"true\">/<recv response=\"200\" rtd=\"2\">/' >uac.xml; \
         ip netns exec peer taskset -c {} {} -sf uac.xml {}:5060 -i 10.77.0.1 -r {} -m {} -d 0 -trace_rtt -rtt_freq 1 \
         -trace_shortmsg -timeout 600 >/dev/null",
        load::CALLER_CPU,
        load::SIPP,
        guest.ip(),
        extent.rate,
        extent.calls
    )
}

/// The calls of sipp's message log: Call-ID, and the time from the first INVITE to the first response to BYE, ns; in the order of
/// their ends.
fn messages(log: &str) -> Vec<(String, u64)> {
    let (mut begun, mut ended) = (HashMap::new(), Vec::new());
    for line in log.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [_, _, at, way, id, cseq, first] = fields[..] else { continue };
        let Some(ns) = nanoseconds(at) else { continue };
        match (way, cseq) {
            ("S", "CSeq:1 INVITE") => {
                begun.entry(id.to_owned()).or_insert(ns);
            }
            ("R", "CSeq:2 BYE") if first.starts_with("SIP/2.0 200") => {
                if let Some(start) = begun.remove(id) {
                    ended.push((id.to_owned(), ns.saturating_sub(start)));
                }
            }
            _ => {}
        }
    }
    ended
}

/// Seconds with six decimals, as ns.
fn nanoseconds(seconds: &str) -> Option<u64> {
    let (whole, micros) = seconds.split_once('.')?;
    Some(whole.parse::<u64>().ok()? * 1_000_000_000 + micros.get(..6)?.parse::<u64>().ok()? * 1000)
}

/// sipp's response times of whole calls (its second timer), ns, in the order of their ends.
fn response_times(csv: &str) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for line in csv.lines().skip(1) {
        let fields: Vec<&str> = line.split(';').collect();
        let [_, ms, number] = fields[..] else { continue };
        if number == "2" {
            let ms: f64 = ms.parse().with_context(|| format!("a response time is {ms:?}"))?;
            all.push((ms * 1e6) as u64);
        }
    }
    Ok(all)
}

/// The smallest difference between two of these times in whole ms, and how many different ones there are. (sipp adds a µs to some.)
fn resolution(times: &[u64]) -> (f64, usize) {
    let mut distinct: Vec<u64> = times.iter().map(|ns| ns / 1_000_000 * 1_000_000).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let step = distinct.windows(2).map(|w| w[1] - w[0]).min().unwrap_or(0);
    (step as f64 / 1e6, distinct.len())
}

fn sum(joined: &Joined) -> u64 {
    joined.request.stages.iter().map(|s| s.ns).sum()
}

/// The calls of a recording with both requests: when each began, and its time until the end of the last one, ns; by time.
fn of_recording(joined: &[Joined]) -> Vec<(u64, u64)> {
    let mut calls: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for j in joined.iter().filter(|j| j.request.group != 0) {
        calls.entry(j.request.group).or_default().push((j.request.start, j.request.start + j.request.total));
    }
    let whole = |requests: &Vec<(u64, u64)>| match requests[..] {
        [(start, _), (_, end)] => Some((start, end - start)),
        _ => None,
    };
    let mut all: Vec<_> = calls.values().filter_map(whole).collect();
    all.sort_unstable();
    all
}

/// Pairs teiji's calls with those of the capture: an INVITE reaches the host just after it left sipp's interface.
fn align<'c>(
    captured: &'c [pcap::CallSeen],
    teiji: &[(u64, u64)],
    clocks: ClockDifference,
) -> Vec<(u64, &'c pcap::CallSeen)> {
    let mut pairs = Vec::new();
    let mut at = 0;
    for (start, total) in teiji {
        let start = *start as i64 + clocks.realtime_minus_monotonic_ns;
        let stamped = |call: &pcap::CallSeen| call.start as i64 <= start + clocks.error();
        while captured.get(at + 1).is_some_and(stamped) {
            at += 1;
        }
        let under_way = |call: &&pcap::CallSeen| stamped(call) && start <= (call.start + call.total) as i64;
        if let Some(call) = captured.get(at).filter(under_way) {
            pairs.push((*total, call));
            at += 1;
        }
    }
    pairs
}

/// How many of the longest calls are not the sum of their requests' stages and the time outside, within 1 %.
fn calls_wrong(groups: &Groups, joined: &[Joined]) -> usize {
    let wrong = |call: &&Call| {
        let of_call = joined.iter().filter(|j| j.request.group == call.group);
        let inside: u64 = of_call.map(sum).sum();
        (inside + call.outside).abs_diff(call.total) as f64 > 0.01 * call.total as f64
    };
    groups.slowest.iter().filter(wrong).count()
}

/// b. Sends echo requests through the same guest: no report of it may come before its cause.
///
/// # Errors
/// If a tool fails.
pub fn causality(lab: &Lab, guest: &Guest<'_>, echoes: u64) -> Result<(Inside, u64, u64)> {
    let trace = Trace::start(lab, "clock", "--vm vm1 --guest --flow 'udp port 7'", false)?;
    trace.wait_for("reports its part of the path", START)?;
    let mut sent = 0;
    while sent < echoes {
        let count = (echoes - sent).min(20_000);
        let rate = 250.0;
        let limit = Duration::from_secs_f64(count as f64 / rate * 2.0 + 120.0);
        lab.host.run_for(&load::echo_command(guest, rate, count), limit)?.ok()?;
        sent += count;
    }
    std::thread::sleep(Duration::from_secs(1));
    let traced = trace.stop()?;
    let inside = only(&traced.report)?.inside.clone().context("the guest reported nothing")?;
    let error = traced.report.guests.iter().map(|g| g.clock_error).max().unwrap_or(u64::MAX);
    Ok((inside, error, traced.report.guests.iter().map(|g| g.lost).sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sipps_logs_are_read() {
        let log = "2026-11-24\t23:09:07.164264\t1795561747.164264\tS\t1-2@p\tCSeq:1 INVITE\tINVITE sip:s SIP/2.0\n\
                   2026-11-24\t23:09:07.172074\t1795561747.172074\tR\t1-2@p\tCSeq:1 INVITE\tSIP/2.0 200 OK\n\
                   2026-11-24\t23:09:07.192143\t1795561747.192143\tR\t1-2@p\tCSeq:2 BYE\tSIP/2.0 200 OK\n";
        assert_eq!(messages(log), [("1-2@p".to_owned(), 27_879_000)]);
        let csv = "Date_ms;response_time_ms;rtd_no\n112.001;8;1\n124.001;28;2\n224.001;16;1\n240.001;32;2\n";
        let times = response_times(csv).unwrap();
        assert_eq!((&times[..], resolution(&times)), (&[28_000_000, 32_000_000][..], (4.0, 2)));
    }

    #[test]
    fn calls_are_paired_by_the_time_of_their_invite() {
        let call = |start, total| pcap::CallSeen { call: format!("{start}"), start, total };
        let captured = [call(10_000_000, 900_000), call(20_000_000, 900_000), call(30_000_000, 900_000)];
        // The second is missing; the clocks differ by 1 ms.
        let clocks = ClockDifference { realtime_minus_monotonic_ns: 1_000_000, difference_error_ns: 300 };
        let found = align(&captured, &[(9_010_000, 890_000), (29_010_000, 880_000)], clocks);
        assert_eq!(found, [(890_000, &captured[0]), (880_000, &captured[2])]);
    }
}
