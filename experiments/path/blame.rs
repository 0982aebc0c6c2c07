//! b. Blame: situations with a known cause, and teiji's verdict on them.

use super::{Extent, lost, only};
use crate::load::{self, Polling, VCPU_CPU, VHOST_CPU};
use crate::tracing::{Lab, Trace};
use anyhow::Result;
use serde::Serialize;
use teiji_lab::{Child, Guest, RaisedPriority};
use teiji_model::report::{PartReport, Preemptor, StageReport, VmReport};
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
    /// Requests per second.
    pub rate: f64,
    load: Load,
    induce: Induce,
}

/// What answers in the guest: a program, or its kernel, which leaves a larger part of the time to the host.
#[derive(Clone, Copy, Debug)]
enum Load {
    Echo,
    Ping,
}

#[derive(Clone, Copy, Debug)]
enum Induce {
    Hogs(u32),
    /// KVM polls for this long, ns.
    Polling(u64),
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
    /// Whether the cause is the greatest part of what the host's threads did, without regard to the guest. If the lab
    /// is emulated and this machine is busy, the guest's own time fluctuates, and the verdict may rightly blame that.
    pub right_of_host: bool,
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
    /// Share of the waits behind the busy loops, by their thread ids; `None` in situations without busy loops.
    #[serde(rename = "behind_hogs")]
    pub preempted_by_hogs: Option<f64>,
    /// Median and 99th percentile of the response time, µs.
    pub total_us: [f64; 2],
    /// Mean time in each stage, µs.
    pub stages: Vec<(Stage, f64)>,
    /// The whole report of the VM.
    #[serde(skip)]
    pub report: VmReport,
}

impl Judged {
    /// Time that the wake-up of the halted vCPU took in a typical request, µs.
    pub fn asleep_us(&self) -> f64 {
        let wake = self.report.stages.iter().filter(|s| s.stage == Stage::VcpuWake);
        let asleep = wake.flat_map(|s| &s.parts).find(|p| p.state == ThreadState::Asleep);
        asleep.map_or(0.0, |p| p.p50 as f64 / 1e3)
    }
}

/// Ends the induced cause when dropped.
enum Undo<'l> {
    Hogs(Child),
    /// An idle lab host is preferred to other programs of this machine, so that nothing disturbs the guest. (A busy lab
    /// host would keep them from running.)
    Quiet(
        #[expect(dead_code, reason = "ends with it")] Polling<'l>,
        #[expect(dead_code, reason = "ends with it")] RaisedPriority,
    ),
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
        Induce::Polling(0) => Ok(Undo::Quiet(load::polling(&lab.host, 0)?, lab.host.raise_priority()?)),
        Induce::Polling(ns) => load::polling(&lab.host, ns).map(Undo::Polling),
    }
}

/// Whether the situation's part is the greatest of the vCPUs' and the vhost workers' parts, each measured in its greatest
/// stage: by the median, or, if the part makes the response time fluctuate, by the share of the fluctuation, as in the
/// verdict. Other work of this machine changes the fluctuation (an emulated CPU that is stopped for 300 ms wakes up its
/// worker that late), but hardly the median.
fn greatest_of_host(vm: &VmReport, s: &Situation) -> bool {
    let fluctuates = vm.verdict.fluctuation && s.state == ThreadState::Ready;
    greatest_by(vm, s, false) || fluctuates && greatest_by(vm, s, true)
}

fn greatest_by(vm: &VmReport, s: &Situation, fluctuation: bool) -> bool {
    let share = |p: &PartReport| if fluctuation { p.fluctuation_share } else { p.p50 as f64 };
    let greatest = |stages: &[Stage], wanted: &dyn Fn(ThreadState) -> bool| -> f64 {
        let of_stage = |stage: &&StageReport| stages.contains(&stage.stage);
        let parts = vm.stages.iter().filter(of_stage).flat_map(|stage| &stage.parts);
        parts.filter(|p| wanted(p.state)).map(share).fold(0.0, f64::max)
    };
    let wanted = greatest(s.stages, &|state| state == s.state);
    wanted > 0.0 && wanted >= greatest(&[Stage::VcpuWake, Stage::TapQueue, Stage::VhostTx], &|_| true)
}

/// Whether the parts that the verdict names are at least as great as the situation's part, by the verdict's measure.
fn greater_is_named(vm: &VmReport, s: &Situation, named: &[(Stage, Option<ThreadState>)]) -> bool {
    let fluctuation = vm.verdict.fluctuation;
    let measure = |stage: Stage, state: Option<ThreadState>| {
        let of_stage = vm.stages.iter().find(|r| r.stage == stage)?;
        let part = of_stage.parts.iter().find(|p| Some(p.state) == state);
        Some(match (part, fluctuation) {
            (Some(p), true) => p.fluctuation_share,
            (Some(p), false) => p.p50 as f64,
            (None, true) => of_stage.fluctuation_share,
            (None, false) => of_stage.dist.p50 as f64,
        })
    };
    let wanted = s.stages.iter().filter_map(|&stage| measure(stage, Some(s.state))).fold(0.0, f64::max);
    named.iter().filter_map(|&(stage, state)| measure(stage, state)).sum::<f64>() >= wanted
}

/// Induces a situation and reads teiji's verdict, with an echo server in a guest that [`load::placed`] describes.
///
/// # Errors
/// If a tool fails.
pub fn run(lab: &Lab, guest: &Guest<'_>, s: &Situation, run: u32, extent: &Extent) -> Result<Judged> {
    let stem = format!("{}-{run}", s.name);
    // The trace starts first, so that the busy loops do not slow its start.
    let flow = match s.load {
        Load::Echo => format!("udp port {}", load::ECHO_PORT),
        Load::Ping => "icmp".to_owned(),
    };
    let arguments = format!("--vm {} --flow '{flow}'", guest.name());
    let trace = Trace::start(lab, &stem, &arguments, false)?;
    let undo = induce(lab, s.induce)?;
    match s.load {
        Load::Echo => drop(load::echo(&lab.host, guest, s.rate, extent.situation)?),
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
    let preempted_by: Vec<Preemptor> = vm.blamed().map(|f| f.preempted_by.clone()).unwrap_or_default();
    let us = |ns: u64| ns as f64 / 1e3;
    let preempted_by_hogs =
        hogs.map(|tids| preempted_by.iter().filter(|b| tids.contains(&b.tid)).map(|b| b.share).sum());
    Ok(Judged {
        situation: s.name,
        run,
        right,
        right_of_host: greatest_of_host(&vm, s) && greater_is_named(&vm, s, &named),
        sentence: vm.line(),
        stage,
        state,
        complete: vm.requests.complete,
        lost,
        preempted_by_hogs,
        preempted_by: preempted_by.first().map(|b| b.name.clone()),
        total_us: vm.total.map_or([0.0; 2], |t| [us(t.p50), us(t.p99)]),
        stages: vm.stages.iter().map(|s| (s.stage, s.dist.mean / 1e3)).collect(),
        report: vm,
    })
}
