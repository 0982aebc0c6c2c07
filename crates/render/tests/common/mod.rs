//! Reports made by hand.
#![allow(dead_code)]

use teiji_model::event::Role;
use teiji_model::finding::{Cause, PolicyChange, Remedy};
use teiji_model::flow::{Matching, Watch};
use teiji_model::host::{DataPlane, Identity, NamedBy, Nic, Vcpu, Vm, Worker};
use teiji_model::report::*;
use teiji_model::stage::{Actor, Split, Stage, ThreadState};
use teiji_model::threads::{
    RequestThread, RequestThreads, RoleStarts, ThreadRole, ThreadSpan, ThreadStart, ThreadsReport, WokenBy,
};

const US: u64 = 1_000;

/// The advice that the command gives in addition to a report.
pub fn advice(report: &Report) -> Vec<teiji_model::advice::Advice> {
    let suggestion = teiji_control::suggest::suggest(report, None);
    let one = |(vm, advice): (&VmReport, _)| teiji_model::advice::Advice {
        absence: if vm.total.is_none() { teiji_analysis::absence::why(report, vm) } else { Vec::new() },
        help: suggestion.of(advice),
    };
    report.vms.iter().zip(&suggestion.vms).map(one).collect()
}

/// A VM of root's, which names itself.
pub fn of_root() -> Identity {
    Identity {
        uid: Some(0),
        user: Some("root".into()),
        named_by: NamedBy::Itself,
        started: None,
        uuid: None,
        unconfirmed: false,
    }
}

pub fn vm(name: &str, pid: u32) -> Vm {
    let vcpu =
        |index, tid| Vcpu { index, kvm_id: Some(u32::from(index)), tid, cpus: "0-3".into(), last_cpu: 1 };
    Vm {
        name: name.into(),
        pid,
        vcpus: vec![vcpu(0, pid + 2), vcpu(1, pid + 3)],
        workers: vec![Worker {
            tid: pid + 4,
            comm: format!("vhost-{pid}"),
            kernel_thread: false,
            cpus: "0-3,8".into(),
            last_cpu: 8,
        }],
        nics: vec![Nic {
            tap: "tap0".into(),
            ifindex: 5,
            mac: Some([0x52, 0x54, 0, 0xaa, 0xbb, 1]),
            bridge: Some("br0".into()),
            data_plane: DataPlane::VhostNet,
            queues: 1,
        }],
        memory: Some(512 << 20),
        memory_nodes: vec![400 << 20, 20 << 20],
        given: Vec::new(),
    }
}

pub fn meta() -> Meta {
    Meta {
        teiji: "0.1.0".into(),
        host: "lab1".into(),
        kernel: "7.2.12+deb14-amd64".into(),
        started_unix: 1_790_000_000,
        started: 1_000_000_000,
        watch: Watch { flow_text: "udp port 5060".into(), matching: Matching::Sip, ..Watch::default() },
        vms: vec![vm("sip1", 4240)],
        devices: vec![(5, "tap0".into())],
    }
}

pub fn dist(count: u64, us: [u64; 5]) -> Dist {
    let [min, p50, p90, p99, max] = us.map(|u| u * US);
    Dist {
        count,
        mean: (p50 * 3 + p90) as f64 / 4.0,
        stddev: p90 as f64 / 3.0,
        min,
        p50,
        p90,
        p99,
        p999: max,
        max,
    }
}

fn stage(stage: Stage, us: [u64; 5], time_share: f64, fluctuation_share: f64) -> StageReport {
    StageReport { stage, dist: dist(990, us), time_share, fluctuation_share, parts: vec![] }
}

fn detail(label: &str, text: &str) -> Detail {
    Detail { label: label.into(), text: text.into() }
}

fn part(state: ThreadState, us: u64, time_share: f64, fluctuation_share: f64) -> PartReport {
    PartReport { state, mean: (us * US) as f64, p50: us * US, of_p50: us * US, time_share, fluctuation_share }
}

/// A request whose `tap_queue` takes `queue_us`, all of it waiting for a CPU.
pub fn request(key: u64, start: u64, queue_us: u64) -> Request {
    let split = |state: ThreadState, us: u64| {
        let mut split = Split::default();
        split.0[state as usize] = us * US;
        Some(split)
    };
    let time = |stage, us: u64, split| StageTime { stage, ns: us * US, split };
    let stages = vec![
        time(Stage::SwitchIn, 12, None),
        time(Stage::TapQueue, queue_us, split(ThreadState::Ready, queue_us)),
        time(Stage::VhostRx, 9, None),
        time(Stage::Irq, 3, None),
        time(Stage::VcpuWake, 140, split(ThreadState::Asleep, 140)),
        time(Stage::Guest, 820, split(ThreadState::Guest, 820)),
        time(Stage::VhostTx, 60, split(ThreadState::Run, 60)),
        time(Stage::SwitchOut, 8, None),
        time(Stage::Qdisc, 0, None),
        time(Stage::WireOut, 4, None),
        time(Stage::Unattributed, 0, None),
    ];
    Request {
        key,
        group: 0,
        start,
        total: stages.iter().map(|s| s.ns).sum(),
        stages,
        depth: (queue_us / 500) as u16,
        vcpu: (key % 2) as u16,
        vcpu_state: Some(ThreadState::Asleep),
        preempted: 0,
        coalesced_kick: false,
        inside: Some(InsideRequest {
            parts: [60, 40, 600, 80, 40].map(|us| us * US),
            splits: [None, None, Some(Split([100 * US, 0, 500 * US, 0, 0])), None, None],
            reader: 311,
            sender: 311,
            woken: Some(20 * US),
            moved: true,
            new_thread: false,
            backlog: 2,
        }),
        threads: Some(Box::new(threads(start, queue_us))),
        copies: 1,
        answered: Some(1),
    }
}

/// The threads of a request whose worker waits for a CPU from 20 µs on.
fn threads(start: u64, queue_us: u64) -> RequestThreads {
    let at = |us: u64| start + us * US;
    let begin = |role, woken: Option<u64>, running, by| ThreadStart {
        role,
        woken: woken.map(at),
        running: at(running),
        by,
    };
    let by = |tid, name: &str| WokenBy::Thread { tid, name: name.into() };
    let spans = |edges: &[(u64, Option<ThreadState>)]| {
        let mut from = 0;
        let span = |&(to, state): &(u64, _)| {
            let span = ThreadSpan { from: at(from), to: at(to), state };
            from = to;
            span
        };
        edges.iter().map(span).collect::<Vec<_>>()
    };
    let (asleep, ready) = (Some(ThreadState::Asleep), Some(ThreadState::Ready));
    let (guest, run) = (Some(ThreadState::Guest), Some(ThreadState::Run));
    let (q, irq) = (queue_us + 12, queue_us + 24);
    let thread = |roles: &[ThreadRole], tid, vcpu, starts, spans| RequestThread {
        roles: roles.to_vec(),
        tid,
        vcpu,
        name: if roles == [ThreadRole::Reader] { "sipp".into() } else { String::new() },
        starts,
        spans,
    };
    let end = irq + 140 + 820 + 72;
    RequestThreads {
        threads: vec![
            thread(
                &[ThreadRole::Receiver, ThreadRole::Sender],
                4244,
                None,
                vec![
                    begin(ThreadRole::Receiver, Some(14), q - 4, WokenBy::Interrupt),
                    begin(ThreadRole::Sender, Some(end - 70), end - 40, by(4243, "CPU 1/KVM")),
                ],
                spans(&[
                    (14, asleep),
                    (q - 4, ready),
                    (irq + 10, run),
                    (end - 70, asleep),
                    (end - 40, ready),
                    (end, run),
                ]),
            ),
            thread(
                &[ThreadRole::InterruptVcpu],
                4242,
                Some(0),
                vec![begin(ThreadRole::InterruptVcpu, Some(irq), irq + 130, by(4244, "vhost-4240"))],
                spans(&[
                    (irq, asleep),
                    (irq + 130, ready),
                    (irq + 140, run),
                    (irq + 300, guest),
                    (end, asleep),
                ]),
            ),
            thread(
                &[ThreadRole::ApplicationVcpu],
                4243,
                Some(1),
                vec![begin(ThreadRole::ApplicationVcpu, Some(irq + 240), irq + 780, by(4242, "CPU 0/KVM"))],
                spans(&[(irq + 240, asleep), (irq + 780, ready), (end - 70, guest), (end, None)]),
            ),
            thread(
                &[ThreadRole::Reader],
                311,
                None,
                vec![begin(ThreadRole::Reader, Some(irq + 260), irq + 820, by(17, "ksoftirqd/1"))],
                vec![ThreadSpan { from: at(irq + 260), to: at(irq + 820), state: ready }],
            ),
        ],
        to_application: Some(844 * US),
    }
}

/// Of all requests.
fn threads_report() -> ThreadsReport {
    let role = |role, starts, times, woken_by: &[(WokenBy, u64)]| RoleStarts {
        role,
        starts,
        wake_up: Some(dist(starts, times)),
        woken_by: woken_by.to_vec(),
    };
    let by = |tid, name: &str| WokenBy::Thread { tid, name: name.into() };
    ThreadsReport {
        requests: 980,
        unknown: 5,
        per_request: Some(DepthDist { count: 980, mean: 4.8, p50: 5, p99: 7, max: 9 }),
        to_application: Some(dist(970, [240, 650, 900, 1_900, 3_100])),
        roles: vec![
            role(ThreadRole::Receiver, 970, [4, 210, 3_900, 9_200, 12_100], &[(WokenBy::Interrupt, 970)]),
            role(
                ThreadRole::InterruptVcpu,
                975,
                [20, 90, 180, 420, 900],
                &[(by(4244, "vhost-4240"), 960), (WokenBy::Unknown, 15)],
            ),
            role(
                ThreadRole::ApplicationVcpu,
                930,
                [30, 310, 500, 900, 1_400],
                &[(by(4242, "CPU 0/KVM"), 930)],
            ),
            role(ThreadRole::Reader, 970, [8, 40, 120, 900, 1_700], &[(WokenBy::Interrupt, 970)]),
            role(ThreadRole::Sender, 850, [5, 30, 60, 150, 400], &[(by(4243, "CPU 1/KVM"), 850)]),
        ],
    }
}

pub fn joined(key: u64, start: u64, queue_us: u64) -> Joined {
    Joined {
        vm: 0,
        request: request(key, start, queue_us),
        ended_by: Role::Final,
        preempted_by: vec![(Stage::TapQueue, 812)],
    }
}

/// A guest whose packets wait for the reader.
fn inside() -> Inside {
    // Of a mean of 690 µs or so.
    let state = |state, share: f64| InsideState {
        state,
        mean: dist(985, [100, 420, 690, 1_000, 1_900]).mean * share,
        time_share: 0.64 * share,
        fluctuation_share: 0.9 * share,
    };
    let states =
        [state(Some(ThreadState::Guest), 0.2), state(Some(ThreadState::Asleep), 0.75), state(None, 0.05)];
    let part = |(part, (times, time_share, fluctuation_share))| InsidePart {
        part,
        dist: dist(985, times),
        time_share,
        fluctuation_share,
        states: match part {
            GuestPart::SocketWait => states.to_vec(),
            _ => Vec::new(),
        },
    };
    let times = [
        ([30, 60, 90, 200, 400], 0.09, 0.04),
        ([20, 40, 60, 90, 300], 0.06, 0.02),
        ([100, 420, 690, 1_000, 1_900], 0.64, 0.9),
        ([60, 80, 120, 190, 600], 0.13, 0.03),
        ([30, 40, 60, 150, 200], 0.08, 0.01),
    ];
    Inside {
        divided: 985,
        undivided: 4,
        violations: 1,
        clock_unknown: 2,
        contradictions: 2,
        parts: GuestPart::ALL.into_iter().zip(times).map(part).collect(),
        asleep: 970,
        wake_up: Some(dist(970, [8, 40, 120, 900, 1_700])),
        moved: 300,
        new_threads: 12,
        backlog: Some(DepthDist { count: 985, mean: 0.4, p50: 0, p99: 6, max: 9 }),
    }
}

/// Ten seconds in which the queue fills up every second.
pub fn over_time() -> OverTime {
    let mut all = OverTime::default();
    for n in 0..990u64 {
        let queue_us = if n % 100 < 8 { 12_100 - (n % 100) * 1_400 } else { 180 + n * 37 % 90 };
        let (at, r) = (n * 10_000_000, request(n, 0, queue_us));
        let mut stages = [0; Stage::COUNT];
        stages.iter_mut().zip(&r.stages).for_each(|(ns, s)| *ns = s.ns);
        all.requests.add(&RequestBin::of(at, r.total, stages));
        all.depth.add(&DepthBin::of(at, queue_us / 400));
    }
    all
}

fn bursts() -> Bursts {
    let numbers = |p99, max| DepthDist { count: 1201, mean: 1.1, p50: 1, p99, max };
    let burst = |packets, actor, state| Burst {
        at: 3_100_000_000 + packets * 1_000_000,
        packets,
        waited: 12_300_000,
        actor: Some(actor),
        state,
        in_state: 11_900_000,
    };
    Bursts {
        signals: numbers(8, 16),
        arrivals: numbers(8, 31),
        sizes: [1100, 60, 20, 12, 6, 3, 0, 0],
        largest: vec![
            burst(31, Actor::Worker, Some(ThreadState::Ready)),
            burst(19, Actor::Vcpu, Some(ThreadState::Asleep)),
            burst(4, Actor::Worker, None),
        ],
    }
}

fn finding(cause: Cause, part: (Stage, ThreadState), shares: [f64; 3], remedy: Remedy) -> Finding {
    let [share, time_share, fluctuation_share] = shares;
    let (stage, state) = (part.0, Some(part.1));
    Finding {
        cause,
        title: cause.name().replace('_', " "),
        blame: Blame::Host,
        share,
        evidence: vec![Evidence {
            stage,
            part: None,
            state,
            share,
            time_share,
            fluctuation_share,
            length: Some(1_050_000),
        }],
        preempted_by: vec![],
        confidence: Confidence::High,
        doubts: vec![],
        explanation: "Made up.".into(),
        remedy,
    }
}

/// A VM whose vhost worker waits for a CPU.
pub fn contended() -> Report {
    let mut queue = stage(Stage::TapQueue, [4, 210, 3_900, 9_200, 12_100], 0.58, 0.93);
    queue.parts = vec![
        part(ThreadState::Asleep, 38, 0.03, 0.0),
        part(ThreadState::Ready, 1_050, 0.53, 0.92),
        part(ThreadState::Run, 30, 0.02, 0.01),
    ];
    let mut wake = stage(Stage::VcpuWake, [5, 90, 180, 420, 900], 0.06, 0.02);
    wake.parts = vec![part(ThreadState::Asleep, 70, 0.04, 0.01), part(ThreadState::Ready, 30, 0.02, 0.01)];
    let mut guest = stage(Stage::Guest, [500, 640, 900, 1_300, 2_400], 0.31, 0.06);
    guest.parts = vec![part(ThreadState::Guest, 660, 0.29, 0.05), part(ThreadState::Run, 40, 0.02, 0.01)];
    let mut tx = stage(Stage::VhostTx, [10, 40, 80, 200, 600], 0.02, -0.01);
    tx.parts = vec![part(ThreadState::Run, 40, 0.02, -0.01)];
    let vm = VmReport {
        name: "sip1".into(),
        pid: 4240,
        came: None,
        ended: None,
        requests: RequestCounts {
            seen: 1000,
            complete: 990,
            incomplete: 4,
            ambiguous: 1,
            unanswered: 5,
            retransmitted: 0,
            sent_again: SentAgain { requests: 2, first: 1, later: 1, unknown: 0 },
        },
        left_out: vec![
            LeftOut::new(
                Outcome::Incomplete,
                Reason::DroppedIn,
                Some(DropLocation {
                    location: "tun_net_xmit".into(),
                    why: "FULL_RING".into(),
                    device: "tap<0>".into(),
                }),
                3,
            ),
            LeftOut::new(Outcome::Incomplete, Reason::NotSignalled, None, 1),
            LeftOut::new(Outcome::Ambiguous, Reason::Alike, None, 1),
            LeftOut::new(Outcome::Unanswered, Reason::NoAnswer, None, 5),
        ],
        total: Some(dist(990, [700, 1_180, 5_200, 10_900, 15_000])),
        stages: vec![
            stage(Stage::SwitchIn, [4, 9, 15, 40, 88], 0.01, 0.0),
            queue,
            stage(Stage::VhostRx, [3, 6, 12, 30, 70], 0.01, 0.0),
            stage(Stage::Irq, [1, 2, 3, 5, 9], 0.0, 0.0),
            wake,
            guest,
            tx,
            stage(Stage::SwitchOut, [2, 5, 8, 19, 30], 0.01, 0.0),
            stage(Stage::Qdisc, [0, 0, 0, 0, 0], 0.0, 0.0),
            stage(Stage::WireOut, [1, 2, 3, 7, 12], 0.0, 0.0),
            stage(Stage::Unattributed, [0, 0, 0, 0, 0], 0.0, 0.0),
        ],
        slowest: [12_100, 10_400, 9_300, 7_700, 6_200, 4_100, 2_000, 700]
            .iter()
            .zip(1..)
            .map(|(us, i)| request(i, 2_000_000_000 + i * 1_000_000, *us))
            .collect(),
        typical: Some(request(77, 2_600_000_000, 190)),
        chosen: None,
        groups: Some(Groups {
            complete: 164,
            incomplete: 1,
            total: dist(164, [90_000, 101_000, 110_000, 131_000, 140_000]),
            outside: dist(164, [88_000, 93_000, 95_000, 99_000, 101_000]),
            messages: calls().0,
            slowest: calls().1,
        }),
        connections: None,
        outgoing: None,
        passthrough: None,
        inbound: DirectionReport { packets: 1330, incomplete: 2, ..DirectionReport::default() },
        outbound: DirectionReport {
            packets: 1320,
            large: LargePackets { packets: 12, segments: 140, largest: 45 },
            ..DirectionReport::default()
        },
        depth: Some(DepthDist { count: 1330, mean: 1.7, p50: 0, p99: 19, max: 31 }),
        over_time: over_time(),
        bursts: Some(bursts()),
        inside: Some(inside()),
        threads: Some(threads_report()),
        verdict: Verdict {
            headline: "vhost worker waits for a CPU (tap_queue): 92 % of the fluctuation".into(),
            details: vec![detail("response time", "fluctuates: median 1.18 ms, 99th percentile 10.9 ms")],
            fluctuation: true,
        },
        findings: vec![
            Finding {
                preempted_by: vec![
                    Preemptor { tid: 812, name: "stress-ng-cpu".into(), share: 0.71 },
                    Preemptor { tid: 4242, name: "CPU 0/KVM".into(), share: 0.2 },
                ],
                ..finding(
                    Cause::WorkerWaitsForCpu,
                    (Stage::TapQueue, ThreadState::Ready),
                    [0.92, 0.53, 0.92],
                    Remedy::change(
                        PolicyChange::Realtime { threads: Actor::Worker },
                        "vCPU threads and vhost workers before all ordinary threads (SCHED_FIFO). Costs: those on the \
                         same CPUs wait while they run",
                        "",
                    ),
                )
            },
            finding(
                Cause::GuestRuns,
                (Stage::Guest, ThreadState::Guest),
                [0.05, 0.29, 0.05],
                Remedy::elsewhere("profile the service in the guest with perf record"),
            ),
        ],
    };
    let counters =
        Counters { ended: 11_000_000_000, events: 18_220, lost: vec![0, 0, 17, 0], ..Counters::default() };
    Report {
        schema: SCHEMA,
        meta: meta(),
        counters,
        late: 0,
        late_no_room: 0,
        skipped_signals: 0,
        nic_losses: Vec::new(),
        not_followed: 0,
        guests: vec![GuestStream { pid: 4240, events: 4_970, lost: 2, clock_error: 310 }],
        vms: vec![vm],
    }
}

/// The same VM when no other thread wants its CPU.
pub fn quiet() -> Report {
    let mut report = contended();
    report.counters.lost.clear();
    let vm = &mut report.vms[0];
    vm.total = Some(dist(1000, [620, 840, 1_100, 1_700, 2_900]));
    vm.requests = RequestCounts { seen: 1000, complete: 1000, ..RequestCounts::default() };
    vm.left_out.clear();
    let queue = &mut vm.stages[1];
    *queue = stage(Stage::TapQueue, [3, 20, 40, 90, 200], 0.03, 0.02);
    vm.stages[5].time_share = 0.82;
    vm.stages[5].fluctuation_share = 0.9;
    vm.slowest = vec![request(1, 5_000_000, 120), request(2, 6_000_000, 60)];
    vm.verdict = Verdict {
        headline: "nothing stands out; most time in guest (82 %)".into(),
        details: vec![detail("response time", "is steady: median 840 µs, 99th percentile 1.70 ms")],
        fluctuation: false,
    };
    vm.findings = vec![finding(
        Cause::GuestRuns,
        (Stage::Guest, ThreadState::Guest),
        [0.82, 0.82, 0.9],
        Remedy::elsewhere("profile the service in the guest with perf record"),
    )];
    report
}

/// A report without requests: packets went in one direction.
pub fn one_way() -> Report {
    let mut report = contended();
    report.meta.watch.matching = Matching::None;
    report.counters.lost.clear();
    let vm = &mut report.vms[0];
    vm.requests = RequestCounts::default();
    vm.left_out.clear();
    vm.total = None;
    vm.stages.clear();
    vm.slowest.clear();
    vm.groups = None;
    vm.over_time.requests = Timeline::default();
    vm.inbound.stages = vec![
        (Stage::SwitchIn, dist(1330, [4, 9, 15, 40, 88])),
        (Stage::TapQueue, dist(1330, [4, 210, 3_900, 9_200, 12_100])),
    ];
    vm.outbound = DirectionReport::default();
    vm.verdict = Verdict {
        headline: "nothing to judge by: no request was seen".into(),
        details: vec![],
        fluctuation: false,
    };
    vm.findings.clear();
    report
}

/// Requests of a guest that is a client, of which 90 % of the time is spent outside.
pub fn outgoing() -> Outgoing {
    let stage = |stage| {
        let (us, time_share, fluctuation_share) = match stage {
            OutgoingStage::Outside => ([4_000, 9_000, 10_000, 20_000, 40_000], 0.9, 0.97),
            OutgoingStage::VcpuWake => ([20, 500, 600, 900, 2_000], 0.05, 0.02),
            OutgoingStage::Unattributed => ([0; 5], 0.0, 0.0),
            _ => ([1, 60, 70, 90, 300], 0.00625, 0.00125),
        };
        OutgoingStageReport { stage, dist: dist(480, us), time_share, fluctuation_share }
    };
    Outgoing {
        requests: RequestCounts {
            seen: 500,
            complete: 480,
            incomplete: 1,
            unanswered: 19,
            retransmitted: 4,
            sent_again: SentAgain { requests: 3, first: 0, later: 0, unknown: 2 },
            ..RequestCounts::default()
        },
        left_out: vec![
            LeftOut::of_outgoing(
                Outcome::Incomplete,
                Reason::DroppedOut,
                Some(DropLocation {
                    location: "dev_queue_xmit".into(),
                    why: "QDISC_DROP".into(),
                    device: "eth<0>".into(),
                }),
                1,
            ),
            LeftOut::of_outgoing(Outcome::Unanswered, Reason::NoAnswer, None, 19),
        ],
        to_other_vms: 7,
        total: Some(dist(480, [4_200, 10_000, 11_000, 22_000, 42_000])),
        host: Some(dist(480, [200, 1_000, 1_100, 1_900, 4_000])),
        stages: OutgoingStage::ALL.into_iter().map(stage).collect(),
    }
}

/// [`contended`], of a guest that is a client, too.
pub fn proxy() -> Report {
    let mut report = contended();
    report.vms[0].outgoing = Some(outgoing());
    report
}

/// A guest that is nothing but a client.
pub fn client() -> Report {
    let mut report = one_way();
    report.meta.watch.matching = Matching::Echo;
    report.vms[0].outgoing = Some(outgoing());
    report
}

/// The messages of 164 calls, and those of the longest.
fn calls() -> (Vec<CallMessageReport>, Vec<Call>) {
    let all = [
        (CallMessage::Invite, 0, 2),
        (CallMessage::Provisional, 1_100, 0),
        (CallMessage::Final, 1_400, 1),
        (CallMessage::Ack, 90_000, 0),
        (CallMessage::Bye, 99_000, 0),
        (CallMessage::ByeFinal, 101_000, 0),
    ];
    let message = |(message, us, copies)| {
        let at = dist(164, [us / 2, us, us + us / 10, us + us / 5, us + us / 3]);
        CallMessageReport { message, at, copies }
    };
    let step = |(message, us, copies)| CallStep { message, at: (us + us / 3) * US, copies: copies as u8 + 1 };
    let longest = Call {
        group: 9,
        start: 2_500_000_000,
        total: 140_000 * US,
        outside: 101_000 * US,
        messages: all.map(step).to_vec(),
    };
    (all.map(message).to_vec(), vec![longest])
}
