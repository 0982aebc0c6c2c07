//! b. Blame: situations with a known cause, and teiji's verdict on them.

use super::preemptors::{Waiter, of_readings};
use super::{Extent, lost, only};
use crate::load::{self, Polling, VCPU_CPU, VHOST_CPU};
use crate::tracing::{Lab, Trace, requests};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::path::{Path, PathBuf};
use teiji_lab::{Child, Guest};
use teiji_model::finding::Finding;
use teiji_model::report::{Joined, PartReport, StageReport, StageTime, VmReport};
use teiji_model::stage::{Stage, ThreadState};

/// Number of busy loops on a CPU.
const HOGS: u32 = 4;

/// An induced cause.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// Name.
    pub name: &'static str,
    /// What is done, for the report.
    pub what: &'static str,
    /// Stages; the verdict must blame one of them.
    pub stages: &'static [Stage],
    /// The thread state that the verdict must blame.
    pub state: ThreadState,
    /// Requests per second, at most if there is one at a time.
    pub rate: f64,
    load: Load,
    induce: Induce,
}

/// What answers in the guest: a program, or its kernel, which leaves a larger part of the time to the host.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// One request at a time. Of a backlog the worker takes several packets in one round, and signals when it has written all: if it
    /// loses its CPU in between, that is in `vhost_rx`, which is not divided.
    Echo,
    /// Sent at their rate, whether or not the former ones have been answered.
    Echoes,
    Ping,
}

#[derive(Clone, Copy, Debug)]
enum Induce {
    Hogs(u32),
    /// KVM polls for this long, ns.
    Polling(u64),
}

impl Situation {
    /// Whether its cause is busy loops.
    pub fn has_hogs(&self) -> bool {
        matches!(self.induce, Induce::Hogs(_))
    }

    /// The same, with requests that are in flight at the same time if the guest does not keep up with their rate.
    pub fn overlapping(self) -> Situation {
        Situation { load: Load::Echoes, ..self }
    }
}

/// Remedy of paper P0 for the idle guest: KVM polls for longer than the guest is idle between two requests, ns.
const POLLED: u64 = 60_000_000;

/// The three situations.
pub const SITUATIONS: [Situation; 3] = [
    Situation {
        name: "vcpu-hogs",
        what: "busy loops on the vCPU's CPU",
        stages: &[Stage::VcpuWake],
        state: ThreadState::Ready,
        rate: 40.0,
        load: Load::Echo,
        induce: Induce::Hogs(VCPU_CPU),
    },
    Situation {
        name: "vhost-hogs",
        what: "busy loops on the vhost worker's CPU",
        stages: &[Stage::TapQueue, Stage::VhostTx],
        state: ThreadState::Ready,
        rate: 40.0,
        load: Load::Echo,
        induce: Induce::Hogs(VHOST_CPU),
    },
    Situation {
        name: "idle",
        what: "an idle guest, and KVM does not poll",
        stages: &[Stage::VcpuWake],
        state: ThreadState::Asleep,
        rate: 20.0,
        load: Load::Ping,
        induce: Induce::Polling(0),
    },
];

/// The idle guest without the cause: distinguishes a cause from a part of the time that does not depend on it.
pub const REMEDY: Situation = Situation {
    name: "idle-polled",
    what: "the same guest, and KVM polls until the next request",
    stages: &[],
    state: ThreadState::Poll,
    rate: 20.0,
    load: Load::Ping,
    induce: Induce::Polling(POLLED),
};

/// teiji's verdict on one run.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The situation.
    pub situation: &'static str,
    /// Run number, from 1.
    pub run: u32,
    /// Whether the verdict is right.
    pub right: bool,
    /// Whether the cause is the greatest part of what the host's threads did, and the verdict blames either that or the
    /// guest itself for a part that is at least as great. If the lab is emulated and this machine is busy, the guest's own
    /// time fluctuates, and the verdict may rightly blame that, in every run.
    pub right_of_host: bool,
    /// Whether that holds by the median alone, although the verdict is about fluctuation.
    pub by_median_alone: bool,
    /// The verdict in one line.
    pub sentence: String,
    /// The blamed stage.
    pub stage: Option<Stage>,
    /// The blamed thread state.
    pub state: Option<ThreadState>,
    /// Complete requests.
    pub complete: u64,
    /// Events that teiji lost.
    pub lost: u64,
    /// The first thread that the verdict names as having run instead.
    #[serde(rename = "behind")]
    pub preempted_by: Option<String>,
    /// Share of the waits behind the busy loops, by their thread ids: in the finding that has the situation's part,
    /// whether or not the verdict names it; if that part is too small for a finding, in the requests themselves. `None`
    /// in situations without busy loops.
    #[serde(rename = "behind_hogs")]
    pub preempted_by_hogs: Option<f64>,
    /// The same in the finding alone; `None` if there is none.
    #[serde(skip)]
    pub reported_behind_hogs: Option<f64>,
    /// Share of the waits in the requests that were behind the busy loops.
    #[serde(skip)]
    pub waits_behind_hogs: Option<f64>,
    /// Share of the waits between two readings of the waiting thread's clock that were behind the busy loops. Each reading has a
    /// name of its own, whereas many requests may share one. Each wait counts up to [`WAIT_CAP`], so that one long stop of an emulated
    /// CPU does not decide it.
    pub capped_behind_hogs: Option<f64>,
    /// Median and 99th percentile of the response time, µs.
    pub total_us: [f64; 2],
    /// Mean time in each stage, µs.
    pub stages: Vec<(Stage, f64)>,
    /// The whole report of the VM.
    #[serde(skip)]
    pub report: VmReport,
    /// The recording, if there is one.
    #[serde(skip)]
    pub recording: Option<PathBuf>,
    /// Thread ids of the busy loops.
    #[serde(skip)]
    pub hogs: Vec<u32>,
}

/// What a run says about the verdict on a machine that is busy with other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// The verdict blames the cause.
    Right,
    /// The cause is the greatest part of what the host's threads did, by the measure that was judged.
    RightOfHost,
    /// The cause is that by the median alone, although its fluctuation was to be judged.
    ByMedianAlone,
    /// Neither.
    Wrong,
}

/// So many runs of a situation have to be right, or right of the host, and more than are accepted by the median alone.
const ENOUGH_RUNS: usize = 2;
/// After so many runs there is no other.
const MOST_RUNS: usize = 6;

/// Whether the runs of a situation show that its cause is found; `None` if another run has to tell. None may be wrong. One that is
/// accepted by the median alone shows nothing, as other work of this machine may change the fluctuation of a run. But a verdict
/// that is about the fluctuation and wrong in half of the runs is a fault.
pub fn accepted(runs: &[Acceptance]) -> Option<bool> {
    let count = |wanted| runs.iter().filter(|r| **r == wanted).count();
    let found = count(Acceptance::Right) + count(Acceptance::RightOfHost);
    match count(Acceptance::Wrong) {
        0 if found >= ENOUGH_RUNS && found > count(Acceptance::ByMedianAlone) => Some(true),
        0 if runs.len() < MOST_RUNS => None,
        _ => Some(false),
    }
}

impl Judged {
    /// See [`Acceptance`].
    pub fn acceptance(&self) -> Acceptance {
        match self {
            Judged { right: true, .. } => Acceptance::Right,
            Judged { right_of_host: false, .. } => Acceptance::Wrong,
            Judged { by_median_alone: true, .. } => Acceptance::ByMedianAlone,
            _ => Acceptance::RightOfHost,
        }
    }

    /// The verdict, then one line for each stage and each of its parts, for the message of a failed test.
    pub fn shown(&self) -> String {
        let mut text = format!("{} {:?}: {}", self.situation, self.acceptance(), self.sentence);
        for stage in &self.report.stages {
            let parts = stage.parts.iter().filter(|p| p.mean > 0.0);
            let parts = parts.map(|p| (Some(p.state), p.of_p50, p.mean, p.fluctuation_share));
            let all = [(None, stage.dist.p50, stage.dist.mean, stage.fluctuation_share)];
            for (state, typical, mean, fluctuation) in all.into_iter().chain(parts) {
                let name = state.map_or(format!("{:?}", stage.stage), |state| format!("  {state:?}"));
                let (typical, mean, fluctuation) = (typical as f64 / 1e3, mean / 1e3, fluctuation * 100.0);
                text += &format!(
                    "\n{name:14} typical {typical:9.1} µs, mean {mean:9.1} µs, {fluctuation:5.1} % of the fluctuation"
                );
            }
        }
        text
    }

    /// Time that the wake-up of the halted vCPU took in a typical request, µs.
    pub fn asleep_us(&self) -> f64 {
        let wake = self.report.stages.iter().filter(|s| s.stage == Stage::VcpuWake);
        let asleep = wake.flat_map(|s| &s.parts).find(|p| p.state == ThreadState::Asleep);
        asleep.map_or(0.0, |p| p.of_p50 as f64 / 1e3)
    }
}

/// Ends the induced cause when dropped.
enum Undo<'l> {
    Hogs(Child),
    Polling(#[expect(dead_code, reason = "ends with it")] Polling<'l>),
}

impl Undo<'_> {
    /// Thread ids of the busy loops; none if the cause is another.
    fn hogs(&self, lab: &Lab) -> Result<Option<Vec<u32>>> {
        let Undo::Hogs(hogs) = self else { return Ok(None) };
        let listed = lab.host.run(&format!("ls /proc/{}/task", hogs.id()?))?.ok()?;
        Ok(Some(listed.split_whitespace().filter_map(|tid| tid.parse().ok()).collect()))
    }
}

fn induce(lab: &Lab, what: Induce) -> Result<Undo<'_>> {
    match what {
        Induce::Hogs(cpu) => load::hogs(&lab.host, cpu, HOGS).map(Undo::Hogs),
        Induce::Polling(ns) => load::polling(&lab.host, ns).map(Undo::Polling),
    }
}

/// Has the guest's threads seen before the first request, by a packet that the trace's filter leaves out: the clock of a worker begins
/// when it first takes a packet, and its time before that is not divided.
fn meet_threads(lab: &Lab, guest: &Guest<'_>, s: &Situation) -> Result<()> {
    match s.load {
        Load::Echo | Load::Echoes => {
            // While a guest stands still it may be out of reach.
            let ip = guest.ip();
            let ping = format!("until ip netns exec peer ping -q -c 1 -W 60 {ip}; do sleep 0.2; done");
            lab.host.run(&ping)?.ok()?;
        }
        Load::Ping => drop(load::echo(&lab.host, guest, 20.0, 1)?),
    }
    Ok(())
}

/// How the situation's part is the greatest of the vCPUs' and the vhost workers' parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greatest {
    /// By the measure that is judged.
    AsJudged,
    /// By the median alone, although the part makes the response time fluctuate.
    ByMedianAlone,
}

/// Whether the situation's part is the greatest of the vCPUs' and the vhost workers' parts, each measured in its greatest
/// stage: by the median, or, if the part makes the response time fluctuate, by the share of the fluctuation, as in the
/// verdict. Other work of this machine changes the fluctuation (an emulated CPU that is stopped for 300 ms wakes up its
/// worker that late), but hardly the median: then it is the greatest by the median alone. The same holds if a stage without thread states,
/// or what a stage's thread states leave over, has more of the fluctuation.
fn greatest_of_host(vm: &VmReport, s: &Situation) -> Option<Greatest> {
    let fluctuates = vm.verdict.fluctuation && s.state == ThreadState::Ready;
    if greatest_by(vm, s, fluctuates) {
        return Some(Greatest::AsJudged);
    }
    (fluctuates && greatest_by(vm, s, false)).then_some(Greatest::ByMedianAlone)
}

/// Share of the waits behind the threads `tids`, in the finding that has the situation's part, if there is one.
fn share_behind(vm: &VmReport, s: &Situation, tids: &[u32]) -> Option<f64> {
    let of_situation =
        |f: &&Finding| f.evidence.iter().any(|e| s.stages.contains(&e.stage) && e.state == Some(s.state));
    let finding = vm.findings.iter().find(of_situation)?;
    Some(finding.preempted_by.iter().filter(|p| tids.contains(&p.tid)).map(|p| p.share).sum())
}

/// The waits of the requests in the situation's part, ns, and whether each was behind one of the threads `tids`.
fn waits(requests: &[Joined], s: &Situation, tids: &[u32]) -> Vec<(u64, bool)> {
    let of = |joined: &Joined| {
        let times = joined.request.stages.iter().filter(|time| s.stages.contains(&time.stage));
        let wait = |time: &StageTime| {
            let by = |(stage, tid): &(Stage, u32)| *stage == time.stage && tids.contains(tid);
            let ns = time.split.map_or(0, |split| split.get(ThreadState::Ready));
            (ns, joined.preempted_by.iter().any(by))
        };
        times.map(wait).filter(|(ns, _)| *ns > 0).collect::<Vec<_>>()
    };
    requests.iter().flat_map(of).collect()
}

/// The waits between two readings of the clock of the situation's thread while there were requests, ns, and whether each was behind
/// one of the threads `tids`.
fn waits_of_readings(
    recording: &Path,
    guest: &Guest<'_>,
    s: &Situation,
    requests: &[Joined],
    tids: &[u32],
) -> Result<Vec<(u64, bool)>> {
    let waiter = if s.stages.contains(&Stage::VcpuWake) {
        Waiter::Vcpu(guest.pid())
    } else {
        Waiter::Worker(guest.vhost_tids().first().copied().context("the guest has no vhost worker")?)
    };
    let begins = requests.iter().map(|joined| joined.request.start).min().unwrap_or(0);
    let ends = requests.iter().map(|joined| joined.request.start + joined.request.total).max().unwrap_or(0);
    let mut readings = of_readings(recording, waiter)?;
    // Before and after, there are times without busy loops.
    readings.retain(|wait| wait.from >= begins && wait.to <= ends);
    Ok(readings.iter().map(|wait| (wait.ns, tids.contains(&wait.named))).collect())
}

/// Share of the time of the waits that was behind the threads; 0 if there are none.
fn share_of_time(waits: &[(u64, bool)]) -> f64 {
    let sum = |counted: &dyn Fn(bool) -> bool| -> u64 {
        waits.iter().filter(|(_, behind)| counted(*behind)).map(|(ns, _)| ns).sum()
    };
    sum(&|behind| behind) as f64 / sum(&|_| true).max(1) as f64
}

/// The longest time that a wait counts with in [`share_of_capped_time`], ns: that of some turns of the scheduler.
pub(super) const WAIT_CAP: u64 = 20_000_000;

/// The same, but of each wait only the first [`WAIT_CAP`] ns: if this machine stops an emulated CPU for half a second, the thread
/// that runs there is charged with half a second of waiting.
fn share_of_capped_time(waits: &[(u64, bool)]) -> f64 {
    let waits: Vec<_> = waits.iter().map(|&(ns, behind)| (ns.min(WAIT_CAP), behind)).collect();
    share_of_time(&waits)
}

fn greatest_by(vm: &VmReport, s: &Situation, fluctuation: bool) -> bool {
    let share = |p: &PartReport| if fluctuation { p.fluctuation_share } else { p.of_p50 as f64 };
    let greatest = |stages: &[Stage], wanted: &dyn Fn(ThreadState) -> bool| -> f64 {
        let of_stage = |stage: &&StageReport| stages.contains(&stage.stage);
        let parts = vm.stages.iter().filter(of_stage).flat_map(|stage| &stage.parts);
        parts.filter(|p| wanted(p.state)).map(share).fold(0.0, f64::max)
    };
    // What no thread's state divides may be most of the fluctuation if an emulated CPU is stopped within it.
    let undivided = |stage: &StageReport| match stage.stage {
        Stage::Guest | Stage::Unattributed => 0.0,
        _ if fluctuation => {
            stage.fluctuation_share - stage.parts.iter().map(|p| share(p).max(0.0)).sum::<f64>()
        }
        _ => 0.0,
    };
    let wanted = greatest(s.stages, &|state| state == s.state);
    wanted > 0.0
        && wanted >= greatest(&[Stage::VcpuWake, Stage::TapQueue, Stage::VhostTx], &|_| true)
        && wanted >= vm.stages.iter().map(undivided).fold(0.0, f64::max)
}

/// Whether the parts that the verdict names are at least as great as the situation's part, by the verdict's measure.
fn greater_is_named(vm: &VmReport, s: &Situation, named: &[(Stage, Option<ThreadState>)]) -> bool {
    let fluctuation = vm.verdict.fluctuation;
    let measure = |stage: Stage, state: Option<ThreadState>| {
        let of_stage = vm.stages.iter().find(|r| r.stage == stage)?;
        let part = of_stage.parts.iter().find(|p| Some(p.state) == state);
        Some(match (part, fluctuation) {
            (Some(p), true) => p.fluctuation_share,
            (Some(p), false) => p.of_p50 as f64,
            (None, true) => of_stage.fluctuation_share,
            (None, false) => of_stage.dist.p50 as f64,
        })
    };
    let wanted = s.stages.iter().filter_map(|&stage| measure(stage, Some(s.state))).fold(0.0, f64::max);
    named.iter().filter_map(|&(stage, state)| measure(stage, state)).sum::<f64>() >= wanted
}

/// Whether the verdict may name these parts instead of the situation's: only the guest's, as no part of the host's is greater.
/// By another measure than the one by which the situation's part is the greatest, other parts may be greater.
fn may_be_named(
    vm: &VmReport,
    s: &Situation,
    greatest: Option<Greatest>,
    named: &[(Stage, Option<ThreadState>)],
) -> bool {
    let by_the_verdicts_measure =
        greatest == Some(Greatest::AsJudged) && (!vm.verdict.fluctuation || s.state == ThreadState::Ready);
    let of_guest = !named.is_empty() && named.iter().all(|(stage, _)| *stage == Stage::Guest);
    of_guest || !by_the_verdicts_measure
}

/// Induces a situation and reads teiji's verdict, with an echo server in a guest that [`load::placed`] describes.
///
/// # Errors
/// If a tool fails.
pub fn run(lab: &Lab, guest: &Guest<'_>, s: &Situation, run: u32, extent: &Extent) -> Result<Judged> {
    let stem = format!("{}-{run}", s.name);
    // The trace starts first, so that the busy loops do not slow its start.
    let flow = match s.load {
        Load::Echo | Load::Echoes => format!("udp port {}", load::ECHO_PORT),
        Load::Ping => "icmp".to_owned(),
    };
    let arguments = format!("--vm {} --flow '{flow}'", guest.name());
    let trace = Trace::start(lab, &stem, &arguments, true)?;
    meet_threads(lab, guest, s)?;
    let undo = induce(lab, s.induce)?;
    match s.load {
        Load::Echo => drop(load::echo_one_by_one(&lab.host, guest, s.rate, extent.situation)?),
        Load::Echoes => drop(load::echo(&lab.host, guest, s.rate, extent.situation)?),
        Load::Ping => load::ping(&lab.host, guest, s.rate, extent.situation)?,
    }
    let hogs = undo.hogs(lab)?;
    drop(undo);
    let traced = trace.stop()?;
    let lost = lost(&traced.report);
    let vm = only(&traced.report)?.clone();
    let (stage, state) = (vm.blamed_stage(), vm.blamed_state());
    let right = stage.is_some_and(|stage| s.stages.contains(&stage)) && state == Some(s.state);
    let evidence = vm.blamed().map(|f| f.evidence.as_slice()).unwrap_or_default();
    let named: Vec<_> = evidence.iter().map(|e| (e.stage, e.state)).collect();
    let preempted_by = vm.blamed().and_then(|f| f.preempted_by.first()).map(|p| p.name.clone());
    let (mut reported_behind_hogs, mut waits_behind_hogs, mut capped_behind_hogs) = (None, None, None);
    if let Some(tids) = &hogs {
        let Some(recording) = &traced.recording else { bail!("the trace {stem} left no recording") };
        let requests = requests(recording)?.0;
        let waits = waits(&requests, s, tids);
        waits_behind_hogs = Some(share_of_time(&waits));
        reported_behind_hogs = share_behind(&vm, s, tids);
        let of_readings = waits_of_readings(recording, guest, s, &requests, tids)?;
        capped_behind_hogs = Some(share_of_capped_time(&of_readings));
    }
    let us = |ns: u64| ns as f64 / 1e3;
    let greatest = greatest_of_host(&vm, s);
    let named_rightly = right || may_be_named(&vm, s, greatest, &named);
    Ok(Judged {
        situation: s.name,
        run,
        right,
        right_of_host: greatest.is_some() && named_rightly && greater_is_named(&vm, s, &named),
        by_median_alone: greatest == Some(Greatest::ByMedianAlone),
        sentence: vm.line(),
        stage,
        state,
        complete: vm.requests.complete,
        lost,
        // On a busy machine the guest may need so much of the time that the situation's part is no finding; its waits are behind
        // the busy loops all the same.
        preempted_by_hogs: reported_behind_hogs.or(waits_behind_hogs),
        reported_behind_hogs,
        waits_behind_hogs,
        capped_behind_hogs,
        preempted_by,
        total_us: vm.total.map_or([0.0; 2], |t| [us(t.p50), us(t.p99)]),
        stages: vm.stages.iter().map(|s| (s.stage, s.dist.mean / 1e3)).collect(),
        report: vm,
        recording: traced.recording,
        hogs: hogs.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::accuracy::tests::joined;
    use super::*;
    use teiji_model::finding::{Cause, Confidence, Evidence, Preemptor, Remedy};
    use teiji_model::reason::Blame;
    use teiji_model::report::{DirectionReport, Dist, RequestCounts, Verdict};
    use teiji_model::stage::Split;

    /// The thread ids of the busy loops.
    const TIDS: [u32; 2] = [70, 71];

    fn stage(stage: Stage, p50: u64, fluctuation_share: f64, state: Option<ThreadState>) -> StageReport {
        let part = |state| PartReport {
            state,
            mean: p50 as f64,
            p50,
            of_p50: p50,
            time_share: 0.5,
            fluctuation_share,
        };
        let dist = Dist { count: 200, mean: p50 as f64, p50, ..Dist::default() };
        StageReport {
            stage,
            dist,
            time_share: 0.5,
            fluctuation_share,
            parts: state.map(part).into_iter().collect(),
        }
    }

    fn finding(cause: Cause, stage: Stage, state: ThreadState, preempted_by: Vec<Preemptor>) -> Finding {
        let evidence = Evidence {
            stage,
            part: None,
            state: Some(state),
            share: 0.5,
            time_share: 0.5,
            fluctuation_share: 0.5,
            length: None,
        };
        Finding {
            cause,
            title: String::new(),
            blame: Blame::Host,
            share: 0.5,
            evidence: vec![evidence],
            preempted_by,
            confidence: Confidence::High,
            doubts: Vec::new(),
            explanation: String::new(),
            remedy: Remedy::none(""),
        }
    }

    /// A report on busy loops on the vCPU's CPU, which blames the guest: the vCPU's wait for its CPU has the greatest median
    /// of the host's parts and this share of the fluctuation, the guest all else, and the worker's wake-up a tenth.
    fn blames_the_guest(of_wait: f64) -> VmReport {
        let mut vm = VmReport {
            name: "vm1".into(),
            pid: 1,
            came: None,
            ended: None,
            requests: RequestCounts::default(),
            left_out: Vec::new(),
            total: None,
            stages: Vec::new(),
            slowest: Vec::new(),
            typical: None,
            chosen: None,
            groups: None,
            connections: None,
            outgoing: None,
            passthrough: None,
            inbound: DirectionReport::default(),
            outbound: DirectionReport::default(),
            depth: None,
            over_time: Default::default(),
            bursts: None,
            inside: None,
            threads: None,
            verdict: Verdict { headline: String::new(), details: Vec::new(), fluctuation: true },
            findings: Vec::new(),
        };
        vm.stages = vec![
            stage(Stage::VcpuWake, 9_000_000, of_wait, Some(ThreadState::Ready)),
            stage(Stage::TapQueue, 50_000, 0.1, Some(ThreadState::Asleep)),
            stage(Stage::Guest, 2_000_000, 0.9 - of_wait, Some(ThreadState::Guest)),
        ];
        vm.findings = vec![
            finding(Cause::GuestRuns, Stage::Guest, ThreadState::Guest, Vec::new()),
            finding(
                Cause::VcpuWaitsForCpu,
                Stage::VcpuWake,
                ThreadState::Ready,
                [(70, 0.5), (9, 0.3), (71, 0.2)]
                    .map(|(tid, share)| Preemptor { tid, name: String::new(), share })
                    .to_vec(),
            ),
        ];
        vm
    }

    #[test]
    fn a_verdict_that_gives_all_fluctuation_to_the_guest_is_no_proof() {
        let vm = blames_the_guest(0.0);
        assert_eq!(greatest_of_host(&vm, &SITUATIONS[0]), Some(Greatest::ByMedianAlone));
        // What the guest is named for is greater by the verdict's own measure: this alone rejects nothing.
        assert!(greater_is_named(&vm, &SITUATIONS[0], &[(Stage::Guest, Some(ThreadState::Guest))]));
        use Acceptance::{ByMedianAlone, Right, RightOfHost, Wrong};
        assert_eq!(accepted(&[Right, ByMedianAlone]), None);
        assert_eq!(accepted(&[Right, ByMedianAlone, RightOfHost]), Some(true));
        assert_eq!(accepted(&[ByMedianAlone, ByMedianAlone, Right, Right]), None);
        assert_eq!(accepted(&[ByMedianAlone, ByMedianAlone, Right, Right, Right]), Some(true));
        assert_eq!(
            accepted(&[ByMedianAlone, ByMedianAlone, ByMedianAlone, Right, Right, Right]),
            Some(false)
        );
        assert_eq!(accepted(&[ByMedianAlone; MOST_RUNS - 1]), None);
        assert_eq!(accepted(&[ByMedianAlone; MOST_RUNS]), Some(false));
        assert_eq!(accepted(&[ByMedianAlone, Wrong]), Some(false));
        assert_eq!(accepted(&[Right, Right, Wrong]), Some(false));
    }

    #[test]
    fn where_the_part_leads_the_host_only_the_guest_may_be_named_before_it() {
        let guest = (Stage::Guest, Some(ThreadState::Guest));
        let (bridge, wake) = ((Stage::SwitchIn, None), (Stage::VcpuWake, Some(ThreadState::Asleep)));
        let (vm, s) = (blames_the_guest(0.4), &SITUATIONS[0]);
        let may = |greatest, named: &[_]| may_be_named(&vm, s, Some(greatest), named);
        assert!(may(Greatest::AsJudged, &[guest]) && may(Greatest::AsJudged, &[guest, guest]));
        for named in [&[bridge][..], &[wake], &[guest, bridge], &[]] {
            assert!(!may(Greatest::AsJudged, named), "{named:?}");
        }
        assert!(may(Greatest::ByMedianAlone, &[wake]));
        // The wake-up of an idle guest is judged by its median, also where the verdict is about fluctuation.
        let idle = SITUATIONS.iter().find(|s| s.state == ThreadState::Asleep).unwrap();
        assert!(may_be_named(&vm, idle, Some(Greatest::AsJudged), &[bridge]));
    }

    #[test]
    fn the_part_leads_by_fluctuation_if_fluctuation_is_judged() {
        let s = &SITUATIONS[0];
        assert_eq!(greatest_of_host(&blames_the_guest(0.4), s), Some(Greatest::AsJudged));
        let mut steady = blames_the_guest(0.0);
        steady.verdict.fluctuation = false;
        assert_eq!(greatest_of_host(&steady, s), Some(Greatest::AsJudged));
        let mut behind = blames_the_guest(0.0);
        behind.stages[1] = stage(Stage::TapQueue, 9_000_001, 0.1, Some(ThreadState::Asleep));
        assert_eq!(greatest_of_host(&behind, s), None);
        // One stop of an emulated CPU in a stage that no thread's state divides.
        let mut stopped = blames_the_guest(0.4);
        stopped.stages.push(stage(Stage::Irq, 50_000, 0.5, None));
        assert_eq!(greatest_of_host(&stopped, s), Some(Greatest::ByMedianAlone));
        stopped.stages[3] = stage(Stage::Irq, 50_000, 0.3, None);
        assert_eq!(greatest_of_host(&stopped, s), Some(Greatest::AsJudged));
    }

    #[test]
    fn waits_behind_busy_loops_are_of_the_situations_finding_even_if_another_is_blamed() {
        let mut vm = blames_the_guest(0.0);
        assert!(vm.blamed().unwrap().preempted_by.is_empty());
        assert!((share_behind(&vm, &SITUATIONS[0], &TIDS).unwrap() - 0.7).abs() < 1e-9);
        // The finding of another situation, and none at all.
        assert_eq!(share_behind(&vm, &SITUATIONS[1], &TIDS), None);
        vm.findings.truncate(1);
        assert_eq!(share_behind(&vm, &SITUATIONS[0], &TIDS), None);
    }

    #[test]
    fn waits_that_are_no_finding_are_summed_in_the_requests() {
        let waited = |stage, ns, tid| {
            let mut joined = joined(0, 10 * ns);
            joined.request.stages = vec![StageTime { stage, ns, split: Some(Split([0, 0, 0, ns, 0])) }];
            joined.preempted_by = vec![(stage, tid)];
            joined
        };
        let s = &SITUATIONS[0];
        let here = s.stages[0];
        let requests = [
            waited(here, 600, TIDS[0]),
            waited(here, 300, TIDS[1]),
            waited(here, 100, 9),
            waited(Stage::Qdisc, 900, 9),
        ];
        let shares = |requests: &[Joined], tids: &[u32]| {
            let waits = waits(requests, s, tids);
            (share_of_time(&waits), share_of_capped_time(&waits))
        };
        let near = |(all, ordinary): (f64, f64), wanted: (f64, f64)| {
            assert!((all - wanted.0).abs() < 1e-9 && (ordinary - wanted.1).abs() < 1e-9, "{all} {ordinary}");
        };
        near(shares(&requests, &TIDS), (0.9, 0.9));
        let stopped = [waited(here, 60_000_000, TIDS[0]), waited(here, 540_000_000, 9)];
        near(shares(&stopped, &TIDS), (0.1, 0.5));
        near(shares(&requests, &[]), (0.0, 0.0));
        near(shares(&[], &TIDS), (0.0, 0.0));
    }
}
