//! The report: what a trace found. `--json` prints it; [`SCHEMA`] is its version.
pub use crate::call::{Call, CallMessage, CallMessageReport, CallStep, Groups, SentAgain};
use crate::event::{NicCounter, Role};
pub use crate::finding::{Confidence, Evidence, Finding, Preemptor};
use crate::flow::Watch;
use crate::host::Vm;
pub use crate::outgoing::{Outgoing, OutgoingStage, OutgoingStageReport};
pub use crate::over_time::{Burst, Bursts, DepthBin, OverTime, RequestBin, Timeline};
pub use crate::passthrough::{
    Passthrough, PassthroughRequest, PassthroughRequests, PassthroughStage, PassthroughStageReport,
};
pub use crate::reason::{Blame, DropLocation, LeftOut, Outcome, Reason};
use crate::stage::{Split, Stage, ThreadState};
pub use crate::threads::{RequestThreads, ThreadsReport};
use serde::{Deserialize, Serialize};

/// Version of the report's form. Incremented when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 3;

/// How a trace was made. It is stored in recordings and repeated in reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// teiji's version.
    pub teiji: String,
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Start of the trace, seconds since 1970 on the host's clock.
    pub started_unix: u64,
    /// Start of the trace on the clock of the events, ns.
    pub started: u64,
    /// What was traced.
    pub watch: Watch,
    /// The VMs that were traced. In a recording those that were there at the start, as they were then; in a report also
    /// those that came later, each as it was last seen.
    pub vms: Vec<Vm>,
    /// Names of devices by index, for the devices that events may refer to.
    pub devices: Vec<(u32, String)>,
}

/// The greatest number of VMs of a trace, those that have ended included; later ones are counted in [`Report::not_followed`].
pub const MAX_VMS: usize = 1024;

/// The tracer's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// End of the trace on the clock of the events, ns.
    pub ended: u64,
    /// Events that were received from the kernel.
    pub events: u64,
    /// Records that did not fit into the buffer, by CPU; each is one event.
    pub lost: Vec<u64>,
    /// Runs of probes that the kernel skipped because the same probe was already running on that CPU
    /// (`bpf_prog_info.recursion_misses`). Each of them may have been an event.
    #[serde(default)]
    pub missed: u64,
    /// Packets that a probe could not identify (not IP, headers outside the linear part, XDP frames, packets that a
    /// VMM which serves its tap itself began to wait for before they came).
    pub unidentified: u64,
    /// Process ids of traced VMs that ended before the trace did; of the first [`MAX_VMS`] of them.
    pub vanished: Vec<u32>,
}

impl Counters {
    /// A traced VM has ended. Of a long trace of many short-lived VMs only the first are listed, as in the report.
    pub fn note_ended_vm(&mut self, pid: u32) {
        if self.vanished.len() < MAX_VMS {
            self.vanished.push(pid);
        }
    }

    /// Lost events plus skipped runs of probes, each of which may have been an event; saturates.
    pub fn lost_or_missed(&self) -> u64 {
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
    /// The tracer's counters.
    pub counters: Counters,
    /// Events that arrived after later ones had been analysed, and could not be used. Either their CPU was stopped or
    /// their thread preempted between the time stamp and the hand-over, for longer than the analysis waits, or they are
    /// among `late_no_room`.
    #[serde(default)]
    pub late: u64,
    /// Those of `late` for which the analysis would have waited, had not more events waited than it has room for.
    #[serde(default)]
    pub late_no_room: u64,
    /// Signals of vhost workers during which the kernel skipped a probe; these skips are not in [`Counters::missed`]. The requests
    /// whose packets they delivered are left out.
    #[serde(default)]
    pub skipped_signals: u64,
    /// VMs that came during the trace and were not followed, as there was no room for more than 1,024.
    #[serde(default)]
    pub not_followed: u64,
    /// See [`NicLoss`](crate::event::NicLoss); summed up by NIC and counter. Zeros are not listed.
    #[serde(default)]
    pub nic_losses: Vec<NicLosses>,
    /// The guests that reported events themselves, by stream.
    #[serde(default)]
    pub guests: Vec<GuestStream>,
    /// One for each traced VM, in the order of `meta.vms`.
    pub vms: Vec<VmReport>,
}

/// Packets that were discarded, by one counter of one NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicLosses {
    /// The NIC.
    pub device: String,
    /// Which of its counters.
    pub counter: NicCounter,
    /// By how much it grew while the trace ran.
    pub packets: u64,
}

/// What a guest reported itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStream {
    /// The process id of its VMM.
    pub pid: u32,
    /// Events that were used.
    pub events: u64,
    /// Events that are missing: lost in the guest, by its own count; come too late; or too many at once.
    pub lost: u64,
    /// By how much the times of its events may be wrong on the host's clock, ns; the largest value of the trace.
    pub clock_error: u64,
}

impl Report {
    /// Events that the analysis did not have though they happened, as far as it is known; saturates.
    pub fn lost_or_missed(&self) -> u64 {
        self.counters.lost_or_missed().saturating_add(self.late)
    }

    /// [`late`](Report::late) events that came later than the analysis waits.
    pub fn late_beyond_window(&self) -> u64 {
        self.late.saturating_sub(self.late_no_room)
    }
}

/// What was found for one VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmReport {
    /// libvirt's or QEMU's name, or `pid:N`. Untrusted text.
    pub name: String,
    /// The VMM's process id.
    pub pid: u32,
    /// When it came, ns since the trace began; `None` if it was there then.
    #[serde(default)]
    pub came: Option<u64>,
    /// When it ended, ns since the trace began; `None` if it was there at the end.
    #[serde(default)]
    pub ended: Option<u64>,
    /// Counts of requests to the guest, by outcome.
    pub requests: RequestCounts,
    /// Why requests are not complete: by outcome, most frequent reason first. The counts of an outcome add up to that
    /// in `requests`.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
    /// Response time: request received by the host → response handed to the NIC. `None` if there is no complete
    /// request.
    pub total: Option<Dist>,
    /// By stage, in the order of the path; empty if there is no complete request.
    pub stages: Vec<StageReport>,
    /// The slowest requests, slowest first; at most 10.
    pub slowest: Vec<Request>,
    /// A complete request whose response time is about the median: the nearest one to the median so far when it came.
    #[serde(default)]
    pub typical: Option<Request>,
    /// The request that was asked for: the first one that began at that time or later.
    #[serde(default)]
    pub chosen: Option<Request>,
    /// Groups of requests (SIP calls), if the matching has groups.
    pub groups: Option<Groups>,
    /// TCP connections, if their requests are matched and there are any.
    #[serde(default)]
    pub connections: Option<Connections>,
    /// Requests that the guest itself sent, as a client; absent if it sent none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<Outgoing>,
    /// NICs that the VM was given, and the requests by them, which are not in `requests`; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passthrough: Option<Passthrough>,
    /// Packets towards the guest, whether or not they belong to a request.
    pub inbound: DirectionReport,
    /// Packets from the guest, whether or not they belong to a request.
    pub outbound: DirectionReport,
    /// How many packets waited behind each packet when it was dequeued from the tap.
    pub depth: Option<DepthDist>,
    /// Requests and queue depth over the trace.
    #[serde(default)]
    pub over_time: OverTime,
    /// How many packets came at once; `None` if no signal was seen.
    #[serde(default)]
    pub bursts: Option<Bursts>,
    /// What the guest reported of its requests; `None` if it reported nothing.
    #[serde(default)]
    pub inside: Option<Inside>,
    /// When the threads of its requests were started; `None` if no start was reported.
    #[serde(default)]
    pub threads: Option<ThreadsReport>,
    /// The largest cause, for people.
    pub verdict: Verdict,
    /// What makes requests slow, ranked: the verdict names the first. Empty if there is no complete request.
    #[serde(default)]
    pub findings: Vec<Finding>,
}

impl VmReport {
    /// Requests that are left out for a reason, whatever their outcome.
    pub fn left_out_for(&self, reason: Reason) -> u64 {
        self.left_out.iter().filter(|l| l.reason == reason).map(|l| l.count).sum()
    }

    /// The finding that the verdict names; `None` if there is nothing to judge.
    pub fn blamed(&self) -> Option<&Finding> {
        self.findings.first()
    }

    /// The stage that the verdict names.
    pub fn blamed_stage(&self) -> Option<Stage> {
        self.blamed().and_then(Finding::stage)
    }

    /// What the thread of that stage was doing.
    pub fn blamed_state(&self) -> Option<ThreadState> {
        self.blamed().and_then(Finding::state)
    }

    /// The verdict in one line, for logs; it names only the first of the threads that preempted others.
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
pub struct RequestCounts {
    /// Requests that were seen to reach the tap, or to be dropped by the host on their way to it.
    pub seen: u64,
    /// Requests matched with a response, with every stage known.
    pub complete: u64,
    /// Requests that were dropped by the host, or matched with a stage missing: they are in no figure.
    pub incomplete: u64,
    /// Requests that were given up because they may be confused with others.
    pub ambiguous: u64,
    /// Requests that are not known to be dropped by the host, and had no response until the trace ended or the time
    /// allowed for a response had passed.
    pub unanswered: u64,
    /// Further copies of requests that were sent again (SIP over UDP, DNS; TCP: segments), not counted in `seen`.
    #[serde(default)]
    pub retransmitted: u64,
    /// The requests that were sent again before they were answered.
    #[serde(default)]
    pub sent_again: SentAgain,
}

impl RequestCounts {
    /// The counts of requests that are in no figure, each with its name; empty if there are none.
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

/// TCP connections whose requests are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Connections of which a segment was seen.
    pub seen: u64,
    /// Those that were open when the trace began, and of which the filter does not say which end is the server: their
    /// requests are not followed.
    pub client_not_known: u64,
    /// Those whose sides spoke at the same time: of their later requests none is in a figure.
    pub interleaved: u64,
    /// Requests of more than one segment. If the client sends requests without waiting for answers, such a request may be
    /// several; it is the first of them that is measured.
    pub of_several_segments: u64,
    /// Segments of all requests; some that were merged on the way count as one.
    pub segments: u64,
}

/// A distribution of durations, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Dist {
    /// The number of durations.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub stddev: f64,
    /// The shortest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

/// A distribution of numbers of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DepthDist {
    /// How many numbers.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// The greatest.
    pub max: u64,
}

/// One stage over all complete requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// The stage.
    pub stage: Stage,
    /// Its durations.
    pub dist: Dist,
    /// Its share of the time, 0 to 1: mean of the stage over mean of the total.
    pub time_share: f64,
    /// Its share of the fluctuation: the covariance with the total divided by the variance of the total. The shares of
    /// all stages add up to 1; a negative share reduces the fluctuation.
    pub fluctuation_share: f64,
    /// The same by the state of the stage's thread; empty for a stage that no thread carries.
    pub parts: Vec<PartReport>,
}

/// The part of a stage that its thread spent in one state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartReport {
    /// The state.
    pub state: ThreadState,
    /// Mean, ns.
    pub mean: f64,
    /// Median of the requests in which the states of the thread are known, ns. Medians of parts do not add up to the stage's: if
    /// the thread is in one state in some requests, and in another in others, each may be 0.
    pub p50: u64,
    /// This part's share of the stage's median, ns: by the times of all requests, each counted as that median at most. The parts
    /// of a stage add up to its median, but for the time in which the state is not known.
    #[serde(default)]
    pub of_p50: u64,
    /// Its share of the time, 0 to 1.
    pub time_share: f64,
    /// Its share of the fluctuation.
    pub fluctuation_share: f64,
}

/// One request, and how its time was spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The key by which request and response are matched.
    pub key: u64,
    /// The group, 0 if none.
    pub group: u64,
    /// When the host received the request, ns on the clock of the events.
    pub start: u64,
    /// Response time, ns.
    pub total: u64,
    /// All stages, in the order of the path; their `ns` add up to `total`.
    pub stages: Vec<StageTime>,
    /// How many packets were behind it when the worker took it off the tap.
    pub depth: u16,
    /// The vCPU that accepted its interrupt: its index in the VM.
    pub vcpu: u16,
    /// What that vCPU was doing when the interrupt was accepted.
    pub vcpu_state: Option<ThreadState>,
    /// How much of `vcpu_wake` came after the first guest entry, ns: another thread preempted the vCPU while the
    /// request was in the guest.
    pub preempted: u64,
    /// Whether its response was sent without its own kick: then `guest` contains time that may belong to `vhost_tx`.
    pub coalesced_kick: bool,
    /// How its time in the guest was spent, if the guest reported it.
    #[serde(default)]
    pub inside: Option<InsideRequest>,
    /// Its threads, if their starts are known. Of requests that a report shows one by one; of others only on demand.
    #[serde(default)]
    pub threads: Option<Box<RequestThreads>>,
    /// How many copies of it were seen until its response had left: more than 1 if it was sent again.
    #[serde(default = "one")]
    pub copies: u16,
    /// Which of them was answered, from 1; `None` if that is not known. `start` and the stages are those of this copy, or
    /// of the first one.
    #[serde(default)]
    pub answered: Option<u16>,
}

/// Copies of a request that was not sent again.
fn one() -> u16 {
    1
}

/// How long a request was in one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTime {
    /// The stage.
    pub stage: Stage,
    /// The time, ns.
    pub ns: u64,
    /// How the stage's thread spent the time; the parts add up to `ns`. `None` if not known.
    pub split: Option<Split>,
}

/// A part of a request's time in the guest, from the guest entry to the kick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestPart {
    /// Guest entry → the guest's stack receives the packet (`netif_receive_skb`): interrupt, softirq, NAPI.
    GuestIrq,
    /// Received → on a socket's receive queue (`__udp_enqueue_schedule_skb`, `tcp_rcv_established`); for what the guest's
    /// kernel answers itself, until the answer is queued to its device.
    GuestStack,
    /// On the queue → taken by a thread (`__skb_recv_udp`), or its first byte read (`tcp_rcv_space_adjust`).
    SocketWait,
    /// Taken → the answering thread begins to send (`inet_sendmsg`).
    App,
    /// Begins to send → the guest kicks its transmit queue.
    GuestTx,
}

impl GuestPart {
    /// The number of parts.
    pub const COUNT: usize = 5;
    /// All parts, in the order of time.
    pub const ALL: [GuestPart; Self::COUNT] = [
        GuestPart::GuestIrq,
        GuestPart::GuestStack,
        GuestPart::SocketWait,
        GuestPart::App,
        GuestPart::GuestTx,
    ];

    /// The name used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            GuestPart::GuestIrq => "guest_irq",
            GuestPart::GuestStack => "guest_stack",
            GuestPart::SocketWait => "socket_wait",
            GuestPart::App => "app",
            GuestPart::GuestTx => "guest_tx",
        }
    }

    /// The instants at which it begins and ends.
    pub const fn meaning(self) -> &'static str {
        match self {
            GuestPart::GuestIrq => "guest entry → received by the guest's stack",
            GuestPart::GuestStack => "received → on the socket's queue",
            GuestPart::SocketWait => "on the queue → taken by a thread",
            GuestPart::App => "taken → begins to send the answer",
            GuestPart::GuestTx => "begins to send → kicks its transmit queue",
        }
    }
}

/// How a request's time in the guest was spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsideRequest {
    /// The times of the parts, ns, in the order of [`GuestPart::ALL`]. They add up to `guest` and `preempted`.
    pub parts: [u64; GuestPart::COUNT],
    /// What the vCPU concerned was doing in each part; each adds up to its part. `None` if it is not known, or if there was
    /// no single one.
    #[serde(default)]
    pub splits: [Option<Split>; GuestPart::COUNT],
    /// The thread that took the packet from the socket, by the guest's number; 0 if the guest's kernel answered.
    pub reader: u32,
    /// The thread that sent the answer, by the guest's number; 0 if it is not known.
    pub sender: u32,
    /// How long the reader, asleep until the packet came, waited from its wake-up until it had a vCPU, ns; `None` if it was
    /// awake.
    pub woken: Option<u64>,
    /// Whether the packet was taken on another vCPU than the one that received it.
    pub moved: bool,
    /// Whether the sender was created after the packet was taken: a thread for each request.
    pub new_thread: bool,
    /// Packets that were in the socket's queue before it.
    pub backlog: u32,
}

/// What a guest reported of its complete requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inside {
    /// Complete requests whose time in the guest is divided.
    pub divided: u64,
    /// Complete requests of which a report of the guest is missing.
    pub undivided: u64,
    /// Complete requests that are not divided because a report came before its cause, by more than the clock may be
    /// wrong.
    pub violations: u64,
    /// Complete requests that are not divided because the guest's clock may have been wrong by more than a twentieth of their time in
    /// the guest.
    #[serde(default)]
    pub clock_unknown: u64,
    /// Requests that are divided, but not by what the vCPUs did, because the guest claims that something happened on a vCPU that
    /// had no CPU at that time.
    #[serde(default)]
    pub contradictions: u64,
    /// The parts, in the order of time.
    pub parts: Vec<InsidePart>,
    /// Requests whose reader was asleep when the packet came.
    pub asleep: u64,
    /// From the reader's wake-up until it had a vCPU.
    pub wake_up: Option<Dist>,
    /// Requests that were read on another vCPU than the one that received them.
    pub moved: u64,
    /// Requests that a thread answered which was created for it.
    pub new_threads: u64,
    /// Packets that were in the socket's queue before that of a request.
    pub backlog: Option<DepthDist>,
}

/// A part of the time in the guest, over all requests that are divided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InsidePart {
    /// The part.
    pub part: GuestPart,
    /// Its durations.
    pub dist: Dist,
    /// Its share of the time in the guest, 0 to 1.
    pub time_share: f64,
    /// Its share of the fluctuation of the time in the guest.
    pub fluctuation_share: f64,
    /// The same by what the vCPU concerned was doing; the last one, without a state, is what is not known. They add up to the
    /// part.
    #[serde(default)]
    pub states: Vec<InsideState>,
}

/// What is spent of a part of the time in the guest while the vCPU concerned was in one state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InsideState {
    /// The state; `None` if it is not known.
    pub state: Option<ThreadState>,
    /// Mean, ns.
    pub mean: f64,
    /// Its share of the time in the guest, 0 to 1.
    pub time_share: f64,
    /// Its share of the fluctuation of the time in the guest.
    pub fluctuation_share: f64,
}

/// Packets in one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Packets followed from one end of the path to the other.
    pub packets: u64,
    /// Packets of which a point is missing.
    pub incomplete: u64,
    /// Packets that the kernel dropped; they are also counted in `incomplete`.
    #[serde(default)]
    pub dropped: u64,
    /// Packets on the taps, dropped and incomplete ones included, that stand for several segments.
    #[serde(default)]
    pub large: LargePackets,
    /// The stages of this direction.
    pub stages: Vec<(Stage, Dist)>,
}

/// Packets that stand for several segments of TCP, or datagrams of UDP: those that are left to others on their way to split
/// (GSO, TSO), and those that were merged (GRO). What a guest sends has segments of the size that the guest claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargePackets {
    /// The packets.
    pub packets: u64,
    /// The segments of all of them.
    pub segments: u64,
    /// The most segments of one of them.
    pub largest: u64,
}

/// The largest cause of the response time, for people. It is based on the first of the VM's findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The cause, in at most 12 words. Has no untrusted text.
    pub headline: String,
    /// The figures that the verdict is based on, without the threads that preempted others.
    pub details: Vec<Detail>,
    /// Whether it is about fluctuation; otherwise it is about the time itself.
    pub fluctuation: bool,
}

/// Figures below the headline, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// What the figures are: `response time`.
    pub label: String,
    /// The figures: `fluctuates: median 200 µs, 99th percentile 8.00 ms`.
    pub text: String,
}

/// A complete request as the analysis returns it, before it is added to a report. The writers of waterfalls and of
/// Perfetto traces use these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The VM, as an index into `Meta::vms`.
    pub vm: usize,
    /// The request.
    pub request: Request,
    /// The role of the response that ended it.
    pub ended_by: Role,
    /// The threads that preempted the thread of a stage: (stage, thread id).
    pub preempted_by: Vec<(Stage, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VM that starts and ends every few seconds for months costs no memory.
    #[test]
    fn ended_vms_are_listed_up_to_a_limit() {
        let mut counters = Counters::default();
        (1..=2 * MAX_VMS as u32).for_each(|pid| counters.note_ended_vm(pid));
        assert_eq!(counters.vanished, Vec::from_iter(1..=MAX_VMS as u32));
    }
}
