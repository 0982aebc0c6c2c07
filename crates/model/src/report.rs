//! What a trace found. This is what `--json` prints; [`SCHEMA`] is its version.
use crate::event::Role;
pub use crate::finding::{Confidence, Evidence, Finding, Preemptor};
use crate::flow::Watch;
use crate::host::Vm;
pub use crate::reason::{Blame, DropPlace, LeftOut, Outcome, Reason};
use crate::stage::{Split, Stage, ThreadState};
use serde::{Deserialize, Serialize};

/// Version of the report's shape. Raised when a field changes its meaning or goes.
pub const SCHEMA: u32 = 3;

/// How a trace was made: written into recordings, repeated in reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// teiji's version.
    pub teiji: String,
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Start: seconds since 1970 of the host's clock.
    pub started_unix: u64,
    /// Start on the clock of the events, ns.
    pub started: u64,
    /// What was watched.
    pub watch: Watch,
    /// The VMs that were watched, as they were at the start.
    pub vms: Vec<Vm>,
    /// Names of devices by index, for those that events may name.
    pub devices: Vec<(u32, String)>,
}

/// What the tracer itself counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// End of the trace on the clock of the events, ns.
    pub ended: u64,
    /// Events taken from the kernel.
    pub events: u64,
    /// Events that did not fit into the buffer, by CPU.
    pub lost: Vec<u64>,
    /// Runs of probes that the kernel left out, because the same probe was at work on that CPU already
    /// (`bpf_prog_info.recursion_misses`). Each may have been an event.
    #[serde(default)]
    pub missed: u64,
    /// Packets that a probe could not identify (not IP, headers outside the linear part, XDP frames).
    pub unidentified: u64,
    /// Process ids of watched VMs that ended before the trace did.
    pub vanished: Vec<u32>,
}

impl Counters {
    /// Events lost, and runs of probes missed, each of which may have been an event; saturates.
    pub fn gone(&self) -> u64 {
        self.lost.iter().fold(self.missed, |a, &n| a.saturating_add(n))
    }
}

/// Everything that a trace found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// How the trace was made.
    pub meta: Meta,
    /// What the tracer counted.
    pub counters: Counters,
    /// Events that came after later ones had been analysed, and could not be used: their CPU had taken the time, and was
    /// stopped for longer than the analysis waits before it handed them over.
    #[serde(default)]
    pub late: u64,
    /// One for each VM that was watched, in the order of `meta.vms`.
    pub vms: Vec<VmReport>,
}

impl Report {
    /// Events that the analysis did not have though they happened, as far as it is known; saturates.
    pub fn gone(&self) -> u64 {
        self.counters.gone().saturating_add(self.late)
    }
}

/// What was found for one VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmReport {
    /// Its name.
    pub name: String,
    /// Its VMM's process id.
    pub pid: u32,
    /// How many requests of which kind.
    pub requests: Requests,
    /// Why requests are not complete: by outcome, most frequent first. The counts of an outcome add up to that in
    /// `requests`.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
    /// Response time: request received by the host → response handed to the NIC. `None` without a
    /// complete request.
    pub total: Option<Dist>,
    /// By stage, in path order; empty without a complete request.
    pub stages: Vec<StageReport>,
    /// The slowest requests, slowest first; at most 10.
    pub slowest: Vec<Request>,
    /// Groups of requests (SIP calls), if the matching has such.
    pub groups: Option<Groups>,
    /// Packets toward the guest, whether or not they belong to a request.
    pub inbound: Leg,
    /// Packets from the guest.
    pub outbound: Leg,
    /// Packets found waiting behind the one taken, at each dequeue from the tap.
    pub depth: Option<DepthDist>,
    /// What to blame.
    pub verdict: Verdict,
    /// What makes its requests slow, by rank: the first is what the verdict names. Empty without a complete request.
    #[serde(default)]
    pub findings: Vec<Finding>,
}

impl VmReport {
    /// The finding that the verdict names; `None` if there is nothing to judge by.
    pub fn blamed(&self) -> Option<&Finding> {
        self.findings.first()
    }

    /// The stage that the verdict names.
    pub fn blamed_stage(&self) -> Option<Stage> {
        self.blamed().and_then(Finding::stage)
    }

    /// What that stage's thread was doing.
    pub fn blamed_state(&self) -> Option<ThreadState> {
        self.blamed().and_then(Finding::state)
    }

    /// The verdict in one line, for logs; of the threads that preempted others, the first.
    pub fn line(&self) -> String {
        let details = self.verdict.details.iter().map(|d| format!("; {}: {}", d.label, d.text));
        let preempted_by = self.blamed().and_then(|f| f.preempted_by.first()).map(|p| {
            let name = if p.name.is_empty() { "a thread" } else { &p.name };
            format!("; preempted by: {name} ({}) {:.0} %", p.tid, p.share * 100.0)
        });
        std::iter::once(self.verdict.headline.clone()).chain(details).chain(preempted_by).collect()
    }
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Requests seen to reach the tap, or to be dropped by the host on their way to it.
    pub seen: u64,
    /// Matched with a response, every stage known.
    pub complete: u64,
    /// Dropped by the host, or matched with a stage missing: not in any figure.
    pub incomplete: u64,
    /// Given up because two packets alike were on the path at once.
    pub ambiguous: u64,
    /// Not known to be dropped by the host, and no response until the trace ended or the time allowed for one had
    /// passed.
    pub unanswered: u64,
    /// Requests that came again (SIP over UDP), not counted in `seen`: the first to come is the one followed.
    #[serde(default)]
    pub retransmitted: u64,
}

impl Requests {
    /// Those that are in no figure, and why; empty if there are none.
    pub fn left_out(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let all = [
            (self.unanswered, "unanswered"),
            (self.incomplete, "incomplete"),
            (self.ambiguous, "ambiguous"),
            (self.retransmitted, "retransmitted"),
        ];
        all.into_iter().filter(|(n, _)| *n > 0)
    }
}

/// A distribution of durations, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dist {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// Least.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Greatest.
    pub max: u64,
}

/// A distribution of queue depths, packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DepthDist {
    /// How many dequeues.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Greatest.
    pub max: u64,
}

/// One stage over all complete requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// Which.
    pub stage: Stage,
    /// Its durations.
    pub dist: Dist,
    /// Its share of the time, 0 to 1: mean of the stage over mean of the total.
    pub time_share: f64,
    /// Its share of the fluctuation: covariance with the total over the total's variance. The stages'
    /// shares add up to 1; one below 0 works against the rest.
    pub fluctuation_share: f64,
    /// The same by what the stage's thread was doing; empty for a stage that no thread carries.
    pub parts: Vec<PartReport>,
}

/// The part of a stage that its thread spent in one state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartReport {
    /// Which state.
    pub state: ThreadState,
    /// Mean, ns.
    pub mean: f64,
    /// Median, ns.
    pub p50: u64,
    /// Share of the time, 0 to 1.
    pub time_share: f64,
    /// Share of the fluctuation.
    pub fluctuation_share: f64,
}

/// One request and where its time went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Match key.
    pub key: u64,
    /// Group, 0 if none.
    pub group: u64,
    /// When the host received it, ns on the clock of the events.
    pub start: u64,
    /// Response time, ns.
    pub total: u64,
    /// Its stages, in path order, all of them; their `ns` add up to `total`.
    pub stages: Vec<StageTime>,
    /// Packets behind it when the worker took it off the tap.
    pub depth: u16,
    /// vCPU that took its interrupt: its index in the VM.
    pub vcpu: u16,
    /// What that vCPU was doing when the interrupt was accepted.
    pub vcpu_state: Option<ThreadState>,
    /// How much of `vcpu_wake` came after the first guest entry, ns: the vCPU lost its CPU to another thread
    /// while the guest was at work, and had to be brought back.
    pub preempted: u64,
    /// Whether its response went out without a kick of its own, so that `guest` holds time that may be
    /// `vhost_tx`'s.
    pub coalesced_kick: bool,
}

/// How long a request was in one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTime {
    /// Which.
    pub stage: Stage,
    /// How long, ns.
    pub ns: u64,
    /// What the stage's thread was doing; adds up to `ns` or is absent.
    pub split: Option<Split>,
}

/// Groups of requests: for SIP, calls from the first INVITE to the response to BYE (P0's round trip).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    /// Completed.
    pub complete: u64,
    /// Begun and not completed.
    pub incomplete: u64,
    /// Time from the first request to the last response.
    pub total: Dist,
    /// Of that, the time spent outside this host: waiting for the other side's next message.
    pub outside: Dist,
}

/// Packets in one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leg {
    /// Packets followed from one end of the leg to the other.
    pub packets: u64,
    /// Packets with a missing point.
    pub incomplete: u64,
    /// Packets that the kernel dropped; all of these are in `incomplete`.
    #[serde(default)]
    pub dropped: u64,
    /// The leg's stages.
    pub stages: Vec<(Stage, Dist)>,
}

/// What to blame for the response time, for people. What it rests on is the first of the VM's findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The cause, in at most 12 words. Has nothing in it that somebody else wrote.
    pub headline: String,
    /// The figures that it rests on, but for the threads that preempted others.
    pub details: Vec<Detail>,
    /// Whether the blame is for fluctuation (else for the time itself).
    pub fluctuation: bool,
}

/// Figures below a headline, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// What they are: `response time`.
    pub label: String,
    /// The figures: `fluctuates: median 200 µs, 99th percentile 8.00 ms`.
    pub text: String,
}

/// A complete request as the join hands it on, before it is folded into a report. The CLI's Perfetto
/// and waterfall writers take these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The VM, as an index into `Meta::vms`.
    pub vm: usize,
    /// The request.
    pub request: Request,
    /// Role of the response that ended it.
    pub ended_by: Role,
    /// Threads it waited behind, by stage: (stage, thread id).
    pub behind: Vec<(Stage, u32)>,
}
