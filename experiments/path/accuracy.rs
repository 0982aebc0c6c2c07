//! a. Accuracy: teiji's time of each request, compared with a capture on the same bridge port.
//!
//! The capture's time stamps are the kernel's own for packet sockets, and they are paired by code that is independent
//! of teiji's. The two clocks differ (CLOCK_REALTIME, CLOCK_MONOTONIC), so durations are compared, request by request.
//! Requests are matched by their start times, for which the difference of the clocks is known well enough.
//!
//! ```text
//! peer ─ eth0 ══ uplink0 ─ bridge ─ tap ─ guest
//!         │         │                │
//!      outside   the capture      inside: captures of the same packets
//!                and teiji
//! ```
//!
//! An emulated CPU may be preempted between teiji's time stamp and the capture's, for as long as the machine has other
//! work. The two times then differ although both are right. But every packet passes the three places in the same order,
//! whatever is preempted and for how long. So the time of each request by teiji has to be between its time inside and
//! its time outside; that is checked without a tolerance for noise.

use super::{Extent, is_few, late, lost, may_be_incomplete, only, served_by_vmm};
use crate::load;
use crate::numbers::{quantile, share};
use crate::pcap::{self, Exchange, Pairing, Side};
use crate::tracing::{Lab, Trace, requests};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;
use teiji_lab::{Child, Guest};
use teiji_model::event::{Event, EventKind, Point};
use teiji_model::flow::Matching;
use teiji_model::report::{Joined, LargePackets, LeftOut, Reason, Request};
use teiji_model::stage::{Stage, ThreadState};

/// A request's time may differ by this share of it, or by [`OFF_NS`].
const OFF_SHARE: f64 = 0.02;
/// See [`OFF_SHARE`], ns.
const OFF_NS: f64 = 50_000.0;

/// Two readings of the kernel's clocks, on CPUs that have just been synchronised, may differ by this much, ns.
const CLOCKS_OFF: u64 = 1_000;

/// A protocol that is tested.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name.
    pub name: &'static str,
    /// How requests and responses in the capture are paired.
    pub pairing: Pairing,
    /// Arguments of `teiji trace`.
    pub arguments: &'static str,
    /// Requests per second; for SIP, each call has two requests.
    pub rate: f64,
}

/// The three cases.
pub const CASES: [Case; 3] = [
    Case { name: "udp", pairing: Pairing::Udp, arguments: "--flow 'udp port 7'", rate: 50.0 },
    Case { name: "icmp", pairing: Pairing::Icmp, arguments: "--flow icmp", rate: 50.0 },
    Case { name: "sip", pairing: Pairing::Sip, arguments: "--flow 'udp port 5060' --match sip", rate: 20.0 },
];

/// One request in the capture and in teiji's recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Start according to the capture, ns of CLOCK_REALTIME.
    pub start: u64,
    /// How much later it started according to teiji, ns, as well as the clocks' difference is known ([`ClockDifference`]).
    pub late: i64,
    /// Time according to the capture, ns.
    pub capture: u64,
    /// Time according to teiji, ns.
    pub teiji: u64,
    /// Times according to the captures inside and outside, ns; `None` if one of them lacks the request.
    pub around: Option<[u64; 2]>,
    /// The least and the most, by teiji's stages, that the capture inside can have between request and response,
    /// ns.
    pub beyond_tap: [u64; 2],
}

impl Pair {
    /// teiji's time minus the capture's, ns.
    pub fn off(&self) -> f64 {
        self.teiji as f64 - self.capture as f64
    }

    /// Whether the two times agree.
    pub fn agrees(&self) -> bool {
        self.off().abs() <= (OFF_SHARE * self.capture as f64).max(OFF_NS)
    }

    /// Whether teiji's time is between the one inside and the one outside.
    pub fn between(&self) -> bool {
        self.around.is_some_and(|[inside, outside]| {
            inside <= self.teiji + CLOCKS_OFF && self.teiji <= outside + CLOCKS_OFF
        })
    }

    /// Whether teiji divides the time at the tap as the capture there does. That capture sees the request after
    /// `switch_in` has begun and before it ends, and the response before `vhost_tx` ends. It sees it after the kick only if the worker
    /// was asleep: one that is awake may take the frame before the kick's exit is handled.
    pub fn divides(&self) -> bool {
        let [least, most] = self.beyond_tap;
        self.around.is_some_and(|[inside, _]| least <= inside + CLOCKS_OFF && inside <= most + CLOCKS_OFF)
    }
}

/// Result of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    /// The case.
    pub case: &'static str,
    /// Requests at the bridge port, by the capture.
    pub requests: usize,
    /// Of these, answered, by the capture.
    pub answered: usize,
    /// Of these, followed by teiji from end to end.
    pub matched: usize,
    /// Requests in teiji's recording that the capture does not have.
    pub invented: usize,
    /// Share of the answered requests that teiji followed.
    pub matched_share: f64,
    /// Share of these whose times agree.
    pub agree_share: f64,
    /// How many of these have a time that is not between the one inside and the one outside.
    pub not_between: usize,
    /// How many of these are divided at the tap differently from the capture there.
    pub divided_wrongly: usize,
    /// Median of the difference between the times outside and inside, µs.
    pub around_p50_us: f64,
    /// Median of teiji's time minus the capture's, µs.
    pub off_p50_us: f64,
    /// 99th percentile of the absolute values of these differences, µs.
    pub off_p99_us: f64,
    /// The greatest absolute value, µs.
    pub off_max_us: f64,
    /// Median time of a request by the capture, µs.
    pub total_p50_us: f64,
    /// 99th percentile of a request's time by the capture, µs.
    pub total_p99_us: f64,
    /// Requests whose stages do not add up to their time.
    pub sums_wrong: usize,
    /// Share of the total time that no stage accounts for.
    pub unattributed: f64,
    /// Events that teiji lost.
    pub lost: u64,
    /// Requests that may be incomplete through no fault of teiji's: see [`may_be_incomplete`] and [`served_by_vmm`]; and those for a
    /// segment that was missing, if a capture shows that as many came to the host, or to the tap, after later ones.
    #[serde(rename = "spoilt")]
    pub excused: u64,
    /// Packets that the captures dropped.
    pub capture_dropped: u64,
    /// Requests captured again.
    #[serde(skip)]
    pub repeated: usize,
    /// Requests that teiji saw again.
    #[serde(skip)]
    pub retransmitted: u64,
    /// teiji's counts: seen, complete, incomplete, ambiguous, unanswered.
    pub counts: [u64; 5],
    /// Large packets on the tap by teiji's counts: toward the guest, from it.
    #[serde(skip)]
    pub large: [LargePackets; 2],
    /// Why teiji followed the others no further.
    #[serde(skip)]
    pub left_out: Vec<LeftOut>,
    /// The requests in both.
    #[serde(skip)]
    pub pairs: Vec<Pair>,
    /// The requests in teiji's recording.
    #[serde(skip)]
    pub joined: Vec<Joined>,
}

impl Agreement {
    /// Whether [few](is_few) of the answered requests are excused: a check for [`comparable`](super::comparable).
    ///
    /// # Errors
    /// If something was made up or lost, or more than one in a hundred is not followed, which nothing excuses.
    pub fn few_excused(&self) -> Result<bool> {
        let Agreement { case, answered, matched, excused, .. } = *self;
        let clean = (self.sums_wrong, self.invented, self.lost, self.capture_dropped, self.not_between)
            == (0, 0, 0, 0, 0);
        ensure!(
            clean,
            "{case}: wrong sums, invented, lost, dropped by a capture, or not between the captures: {self:?}"
        );
        ensure!(
            (matched as u64 + excused) as f64 >= 0.99 * answered as f64,
            "{case}: {matched} of {answered} followed, {excused} excused: {:?}",
            self.left_out
        );
        Ok(is_few(excused, answered as u64))
    }

    /// Checks that teiji followed at least the share `least_followed` of the answered requests, but for the [few](is_few) that are
    /// excused, with the times of the captures around them; that it divided at most `most_divided_wrongly` of them at the
    /// tap in another way than the capture there; and that nothing was made up or lost.
    ///
    /// # Errors
    /// If something of it does not hold.
    pub fn check(&self, least_followed: f64, most_divided_wrongly: usize) -> Result<()> {
        let Agreement { case, answered, matched, excused, .. } = *self;
        ensure!(self.few_excused()?, "{case}: {excused} of {answered} excused: {self:?}");
        ensure!(
            (matched as u64 + excused) as f64 >= least_followed * answered as f64,
            "{case}: {matched} of {answered} followed, {excused} excused: {:?}",
            self.left_out
        );
        ensure!(
            self.divided_wrongly <= most_divided_wrongly,
            "{case}: {} of {matched} divided wrongly: {self:?}",
            self.divided_wrongly
        );
        Ok(())
    }
}

/// The last line of `teiji-lab capture`.
#[derive(Deserialize)]
pub(super) struct Counts {
    pub(super) dropped: u64,
    #[serde(flatten)]
    difference: ClockDifference,
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC, ns.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct ClockDifference {
    pub(crate) realtime_minus_monotonic_ns: i64,
    /// By how much that may be wrong.
    pub(crate) difference_error_ns: i64,
}

impl ClockDifference {
    /// By how much a capture's stamp may seem to be later than one of teiji's that was made after it, ns.
    pub(crate) fn error(&self) -> i64 {
        self.difference_error_ns + CLOCKS_OFF as i64
    }
}

/// Runs one case with a guest whose server is running.
///
/// # Errors
/// If a tool fails.
pub fn run(lab: &Lab, guest: &Guest<'_>, case: &Case, extent: &Extent) -> Result<Agreement> {
    run_under(lab, guest, case, || {
        match case.pairing {
            Pairing::Udp => drop(load::echo(&lab.host, guest, case.rate, extent.requests)?),
            Pairing::Icmp => load::ping(&lab.host, guest, case.rate, extent.requests)?,
            // Without a limit, a guest on a slow machine has more calls at once than it can handle, and some fail.
            Pairing::Sip => drop(load::call_at_most(&lab.host, guest, case.rate, extent.requests / 2, 3)?),
            Pairing::Dns | Pairing::Http | Pairing::Key { .. } => {
                bail!("the caller of run_under() sends the load of {}", case.name)
            }
        }
        Ok(())
    })
}

/// Runs one case with the caller's load.
///
/// # Errors
/// If a tool or the load fails.
pub fn run_under(
    lab: &Lab,
    guest: &Guest<'_>,
    case: &Case,
    load: impl FnOnce() -> Result<()>,
) -> Result<Agreement> {
    // A polling vCPU reads the clock continuously, and the CPUs of an emulator read it one at a time.
    let _quiet = load::polling(&lab.host, 0)?;
    let trace = Trace::start(lab, case.name, &format!("--vm {} {}", guest.name(), case.arguments), true)?;
    let tap = guest.taps().into_iter().next().context("the guest has no tap")?;
    let place = if guest.has_macvtaps() { Inside::Guest } else { Inside::Tap };
    let captures = [
        Capture::start(lab, case, "at", "", "uplink0")?,
        match place {
            Inside::Tap => Capture::start(lab, case, "inside", "", &tap)?,
            Inside::Guest => Capture::within(guest, case)?,
        },
        Capture::start(lab, case, "outside", "ip netns exec peer", "eth0")?,
    ];
    load()?;
    let [at, inside, outside] = captures.map(|c| c.stop(lab));
    let ((captured, counts), (inside, drops_inside), (outside, drops_outside)) = (at?, inside?, outside?);
    let traced = trace.stop()?;
    let recording = traced
        .recording
        .as_deref()
        .with_context(|| format!("no recording; teiji said: {}", traced.printed))?;
    let (joined, _) = requests(recording)?;
    let paired = |capture: &[u8], side| -> Result<pcap::Pairs> {
        Ok(pcap::pair(&pcap::packets(capture)?, guest.ip(), case.pairing, side))
    };
    // A segment that others overtook before the uplink, or between there and the tap, where teiji sees their order.
    let ahead = |capture: &[u8]| -> Result<u64> {
        Ok(pcap::out_of_order(&pcap::packets(capture)?, guest.ip()).ahead)
    };
    let ahead = ahead(&captured)?.max(ahead(&inside)?);
    let mut found = paired(&captured, Side::Uplink)?;
    // Later responses are not taken for a request's.
    let matching = if case.pairing == Pairing::Sip { Matching::Sip } else { Matching::None };
    found.exchanges.retain(|e| e.total <= teiji_analysis::request_ttl(matching));
    // Requests come into the guest by its NIC, and leave the host by its tap.
    let side = if place == Inside::Guest { Side::Uplink } else { Side::Downlink };
    let [inside, outside] = [paired(&inside, side)?, paired(&outside, Side::Downlink)?].map(totals);
    let around = |e: &Exchange| Some([*inside.get(&e.id)?, *outside.get(&e.id)?]);
    let one_at_a_time = case.pairing == Pairing::Http;
    let slept = Slept::of(late::events(recording)?);
    let pairs = align(&found.exchanges, &joined, counts.difference, one_at_a_time, place, &slept, around);

    for wrong in pairs.iter().filter(|p| !p.divides()) {
        let starts = wrong.start as i64 + wrong.late - counts.difference.realtime_minus_monotonic_ns;
        let request = joined.iter().find(|j| j.request.start as i64 == starts).map(|j| &j.request);
        eprintln!("divided wrongly: {wrong:?}, {request:?}, slept {:?}", request.map(|r| slept.read(r)));
    }
    let off: Vec<f64> = pairs.iter().map(|p| p.off() / 1e3).collect();
    let size: Vec<f64> = off.iter().map(|o| o.abs()).collect();
    let apart: Vec<f64> =
        pairs.iter().filter_map(|p| p.around).map(|[i, o]| (o as f64 - i as f64) / 1e3).collect();
    let total: Vec<f64> = found.exchanges.iter().map(|e| e.total as f64 / 1e3).collect();
    let vm = only(&traced.report)?;
    let r = vm.requests;
    let missing = vm.left_out.iter().filter(|l| l.reason == Reason::SegmentMissing).map(|l| l.count);
    let overtaken = ahead.min(missing.sum());
    let unattributed = vm.stages.iter().find(|s| s.stage == Stage::Unattributed);
    Ok(Agreement {
        case: case.name,
        requests: found.requests,
        answered: found.exchanges.len(),
        matched: pairs.len(),
        invented: joined.len() - pairs.len(),
        matched_share: share(pairs.len(), found.exchanges.len()),
        agree_share: share(pairs.iter().filter(|p| p.agrees()).count(), pairs.len()),
        not_between: pairs.iter().filter(|p| !p.between()).count(),
        divided_wrongly: pairs.iter().filter(|p| !p.divides()).count(),
        around_p50_us: quantile(&apart, 0.5),
        off_p50_us: quantile(&off, 0.5),
        off_p99_us: quantile(&size, 0.99),
        off_max_us: quantile(&size, 1.0),
        total_p50_us: quantile(&total, 0.5),
        total_p99_us: quantile(&total, 0.99),
        sums_wrong: joined.iter().filter(|j| sum(j) != j.request.total).count(),
        unattributed: unattributed.map_or(0.0, |s| s.time_share),
        lost: lost(&traced.report),
        excused: may_be_incomplete(&traced)?
            + overtaken
            + served_by_vmm::left_out(&traced.report, recording)?,
        capture_dropped: counts.dropped + drops_inside.dropped + drops_outside.dropped,
        repeated: found.repeated,
        retransmitted: r.retransmitted,
        counts: [r.seen, r.complete, r.incomplete, r.ambiguous, r.unanswered],
        large: [vm.inbound.large, vm.outbound.large],
        left_out: vm.left_out.clone(),
        pairs,
        joined,
    })
}

/// A running capture.
pub(super) struct Capture<'g> {
    child: Child,
    file: String,
    guest: Option<&'g Guest<'g>>,
}

impl<'g> Capture<'g> {
    pub(super) fn start(
        lab: &Lab,
        case: &Case,
        place: &str,
        within: &str,
        interface: &str,
    ) -> Result<Capture<'g>> {
        let file = format!("/tmp/{}-{place}.pcap", case.name);
        let command = format!("exec {within} teiji-lab capture --if {interface} --snap 1000 --out {file}");
        let child = lab.host.spawn(&command)?;
        child.wait_for("capturing", Duration::from_secs(60))?;
        Ok(Capture { child, file, guest: None })
    }

    /// At the NIC of a guest, in the guest.
    fn within(guest: &'g Guest<'g>, case: &Case) -> Result<Capture<'g>> {
        let file = format!("/tmp/{}.pcap", case.name);
        let nic = "$(ls /sys/class/net | grep -v lo | head -n 1)";
        let child = guest.spawn(&format!("exec teiji-lab capture --if {nic} --snap 1000 --out {file}"))?;
        child.wait_for("capturing", Duration::from_secs(60))?;
        Ok(Capture { child, file, guest: Some(guest) })
    }

    /// Ends the capture; returns the file and the tool's counts.
    pub(super) fn stop(self, lab: &Lab) -> Result<(Vec<u8>, Counts)> {
        let end = format!("kill -INT {}", self.child.id()?);
        self.guest.map_or_else(|| lab.host.run(&end), |guest| guest.run(&end))?.ok()?;
        let printed = self.child.wait()?.ok()?;
        let counts = serde_json::from_str(printed.lines().last().unwrap_or_default())
            .with_context(|| format!("the capture printed {printed:?}"))?;
        let Some(guest) = self.guest else {
            return Ok((std::fs::read(lab.fetch(&self.file)?).context("cannot read the capture")?, counts));
        };
        let output = guest.run(&format!("cat {}", self.file))?;
        if output.code != 0 {
            bail!("the capture in the guest cannot be read: {}", output.text());
        }
        Ok((output.stdout, counts))
    }
}

/// The time of each exchange, by its id.
fn totals(pairs: pcap::Pairs) -> HashMap<u64, u64> {
    pairs.exchanges.into_iter().map(|e| (e.id, e.total)).collect()
}

fn sum(joined: &Joined) -> u64 {
    joined.request.stages.iter().map(|s| s.ns).sum()
}

/// Where the capture inside is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    /// At the guest's tap.
    Tap,
    /// In the guest. The kernel stamps a packet once when it is received, so a capture at a macvtap has the stamp of the
    /// uplink.
    Guest,
}

/// How long the worker had slept in all, ns, by the readings of its clock that kicks and frames have, by the times of these.
#[derive(Default)]
struct Slept {
    at_kick: HashMap<u64, u64>,
    at_frame: HashMap<u64, u64>,
}

impl Slept {
    fn of(events: impl IntoIterator<Item = Event>) -> Slept {
        let mut slept = Slept::default();
        for event in events {
            let (by_time, worker) = match event.kind {
                EventKind::Kick(k) => (&mut slept.at_kick, k.worker),
                EventKind::Packet(p) if p.point == Point::TapSend => (&mut slept.at_frame, p.worker),
                _ => continue,
            };
            if let Some(clock) = worker {
                by_time.insert(event.ts, clock.get(ThreadState::Asleep));
            }
        }
        slept
    }

    /// At the kick of a request's response, and when that was handed over; `None`: the clock was not read.
    fn read(&self, request: &Request) -> [Option<u64>; 2] {
        let until = |last: Stage| -> u64 {
            request.start + request.stages.iter().filter(|s| s.stage <= last).map(|s| s.ns).sum::<u64>()
        };
        [self.at_kick.get(&until(Stage::Guest)).copied(), self.at_frame.get(&until(Stage::VhostTx)).copied()]
    }

    /// Whether the clock shows no sleep between the two. The kick's reading is made a little after its time. If the worker has the
    /// frame by then, it does not sleep until it has handed it over: a sleep between the readings shows that the kick came first. If there
    /// is none, that is not known. The kick's reading may even be the later one; the stage has no split then.
    fn none_between(&self, request: &Request) -> bool {
        matches!(self.read(request), [Some(kick), Some(frame)] if frame <= kick)
    }
}

/// See [`Pair::beyond_tap`]. If the kick was coalesced, `guest` lasts until the frame is handed over. And a worker that is awake
/// when the guest kicks may have taken the frame off the ring already: the guest puts it there before it kicks, and the exit that the
/// kick makes takes time. Of a worker whose clock was not read that is not taken for granted. Waits of the vCPU that `vcpu_wake` has in
/// place of `guest` may come after the frame, so they are left out then.
fn beyond_tap(request: &Request, inside: Inside, slept: &Slept) -> [u64; 2] {
    let of = |from: Stage, to: Stage| -> u64 {
        request.stages.iter().filter(|s| from <= s.stage && s.stage <= to).map(|s| s.ns).sum()
    };
    if inside == Inside::Guest {
        // It is within the stage, of which waits for a CPU have been taken out.
        return [0, of(Stage::Guest, Stage::Guest) + request.preempted];
    }
    let least = if request.coalesced_kick || slept.none_between(request) {
        of(Stage::TapQueue, Stage::VcpuWake).saturating_sub(request.preempted)
    } else {
        of(Stage::TapQueue, Stage::Guest)
    };
    [least, of(Stage::SwitchIn, Stage::VhostTx)]
}

/// Matches the requests of both, each used once, in the order of their starts. The capture stamps a packet before teiji
/// does, and both do so before the next packet arrives, however long the CPU is preempted in between. So teiji's
/// request is the last one that the capture had stamped by then, if its response had not left yet. A client that was held up
/// sends several requests within 20 µs, so the clocks have to be compared as exactly as they can be.
///
/// A segment of TCP is stamped later, when the capture gets its copy. But a client that sends one request at a time
/// (`one_at_a_time`) has sent no other before the response left: it is the last one that the capture stamped until then.
fn align(
    capture: &[Exchange],
    teiji: &[Joined],
    clocks: ClockDifference,
    one_at_a_time: bool,
    inside: Inside,
    slept: &Slept,
    around: impl Fn(&Exchange) -> Option<[u64; 2]>,
) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut at = 0;
    for j in teiji {
        let start = j.request.start as i64 + clocks.realtime_minus_monotonic_ns;
        let within = if one_at_a_time { j.request.total as i64 } else { clocks.error() };
        let stamped = |e: &Exchange| e.start as i64 <= start + within;
        while capture.get(at + 1).is_some_and(stamped) {
            at += 1;
        }
        let under_way = |e: &&Exchange| stamped(e) && start <= e.start as i64 + e.total as i64;
        if let Some(e) = capture.get(at).filter(under_way) {
            let (start, capture, teiji) = (e.start, e.total, j.request.total);
            let late = j.request.start as i64 + clocks.realtime_minus_monotonic_ns - start as i64;
            let (around, beyond_tap) = (around(e), beyond_tap(&j.request, inside, slept));
            pairs.push(Pair { start, late, capture, teiji, around, beyond_tap });
            at += 1;
        }
    }
    pairs
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use teiji_model::event::Role;
    use teiji_model::report::StageTime;

    /// A request without stages.
    pub fn joined(start: u64, total: u64) -> Joined {
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
            inside: None,
            threads: None,
            copies: 1,
            answered: None,
        };
        Joined { vm: 0, request, ended_by: Role::Either, preempted_by: Vec::new() }
    }

    /// The capture's clock is 10 s ahead, which is known to 0.3 µs.
    const CLOCKS: ClockDifference =
        ClockDifference { realtime_minus_monotonic_ns: 10_000_000_000, difference_error_ns: 300 };

    #[test]
    fn requests_are_told_by_their_starts() {
        let capture: Vec<Exchange> = (1..=4)
            .map(|i| Exchange { id: i, start: 10_000_000_000 + i * 5_000_000, total: 6_000_000 + i })
            .collect();
        // The second is missing; the clocks differ by 10 s; stamps differ by up to 4 ms because of preemption; the last
        // was never captured.
        let teiji: Vec<Joined> = [(1, 3_000), (3, 4_000_000), (4, 3_000), (9, 3_000)]
            .into_iter()
            .map(|(i, late)| joined(i * 5_000_000 + late, 200 + i))
            .collect();
        let pairs =
            align(&capture, &teiji, CLOCKS, false, Inside::Tap, &Slept::default(), |e| Some([e.id, e.id]));
        let totals: Vec<_> = pairs.iter().map(|p| (p.capture, p.teiji)).collect();
        assert_eq!(totals, [(6_000_001, 201), (6_000_003, 203), (6_000_004, 204)]);
        assert_eq!(pairs[1].around, Some([3, 3]));
        // Stamps of the capture that are later, of requests that come one at a time: each 5 ms, for 40 µs.
        let early: Vec<Joined> = [1, 3, 4].map(|i| joined(i * 5_000_000 - 30_000, 40_000)).into();
        let pairs =
            align(&capture, &early, CLOCKS, true, Inside::Tap, &Slept::default(), |e| Some([e.id, e.id]));
        assert_eq!(pairs.iter().map(|p| p.around).collect::<Vec<_>>(), [1, 3, 4].map(|i| Some([i, i])));
    }

    /// As a client sends them that was held up.
    #[test]
    fn requests_that_come_within_microseconds_are_told_apart() {
        let starts = [(1, 0), (2, 26_499), (3, 41_852), (4, 15_508_914)];
        let capture = starts.map(|(id, at)| Exchange { id, start: 10_000_000_000 + at, total: 52_030_000 });
        let teiji = starts.map(|(id, at)| joined(at + 600, 52_028_000 + id));
        let pairs =
            align(&capture, &teiji, CLOCKS, false, Inside::Tap, &Slept::default(), |e| Some([e.id, e.id]));
        assert_eq!(pairs.iter().map(|p| p.teiji - 52_028_000).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(
            pairs.iter().all(|p| p.late == 600 && p.around == Some([p.teiji - 52_028_000; 2])),
            "{pairs:?}"
        );
    }

    #[test]
    fn two_percent_or_fifty_microseconds_are_allowed() {
        let pair =
            |capture, teiji| Pair { start: 0, late: 0, capture, teiji, around: None, beyond_tap: [0; 2] };
        assert!(pair(1_000_000, 1_050_000).agrees() && !pair(1_000_000, 1_050_001).agrees());
        assert!(pair(10_000_000, 9_800_000).agrees() && !pair(10_000_000, 9_799_999).agrees());
    }

    #[test]
    fn a_time_is_between_those_inside_and_outside() {
        let pair = |teiji, around| Pair { start: 0, late: 0, capture: 0, teiji, around, beyond_tap: [0; 2] };
        let around = Some([1_000_000, 1_200_000]);
        assert!(pair(1_000_000, around).between() && pair(1_200_000, around).between());
        assert!(!pair(998_999, around).between() && !pair(1_201_001, around).between());
        assert!(!pair(1_100_000, None).between());
    }

    #[test]
    fn the_capture_at_the_tap_tells_what_is_on_either_side_of_it() {
        let names = [Stage::SwitchIn, Stage::TapQueue, Stage::VcpuWake, Stage::Guest, Stage::VhostTx];
        let divides_of = |stages: [u64; 5], preempted, coalesced_kick, slept: Option<[u64; 2]>| {
            let stage = |(stage, ns)| StageTime { stage, ns, split: None };
            let request = Request {
                stages: names.into_iter().zip(stages).map(stage).collect(),
                coalesced_kick,
                preempted,
                ..joined(0, 0).request
            };
            let mut read = Slept::default();
            if let Some([kick, frame]) = slept {
                read.at_kick.insert(stages[..4].iter().sum(), kick);
                read.at_frame.insert(stages.iter().sum(), frame);
            }
            let beyond_tap = beyond_tap(&request, Inside::Tap, &read);
            Pair { start: 0, late: 0, capture: 0, teiji: 0, around: Some([1_000_000, 0]), beyond_tap }
                .divides()
        };
        let divides = |[switch_in, tap_queue, guest, vhost_tx]: [u64; 4], coalesced_kick, asleep: u64| {
            divides_of([switch_in, tap_queue, 0, guest, vhost_tx], 0, coalesced_kick, Some([5, 5 + asleep]))
        };
        assert!(divides([50_000, 400_000, 600_000, 0], false, 1));
        assert!(divides([50_000, 400_000, 500_000, 50_000], false, 1));
        // A kick after the frame is wrong unless it was coalesced, or the worker was awake; so is a stage that is too short.
        let late_kick = [50_000, 400_000, 601_001, 0];
        assert!(!divides(late_kick, false, 1));
        assert!(divides(late_kick, true, 1));
        assert!(divides(late_kick, false, 0));
        let late_kick = [50_000, 400_000, 0, 601_001, 0];
        assert!(divides_of(late_kick, 0, false, Some([7, 5])), "the worker's clock was read after the frame");
        assert!(!divides_of(late_kick, 0, false, None), "whether it was awake is not known");
        // The vCPU waited after the worker had the frame.
        assert!(divides_of([50_000, 400_000, 650_000, 100_000, 50_000], 600_000, false, Some([5, 5])));
        for asleep in [0, 1] {
            assert!(!divides([50_000, 300_000, 600_000, 48_000], false, asleep));
        }
    }
}
