//! Reports made by hand, and random reports.
#![allow(clippy::unwrap_used)]

use super::common::{any_host, vm as observed_vm};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use teiji_analysis::finding::RuleInput;
use teiji_analysis::verdict::rank;
use teiji_model::host::{Vcpu, Vm, Worker};
use teiji_model::observed::Observed;
use teiji_model::report::*;
use teiji_model::stage::{Stage, ThreadState};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
/// The length of every trace that is made by hand, ns.
const LENGTH: u64 = 10_000 * MS;

pub fn vcpu(tid: u32, last_cpu: u32) -> Vcpu {
    Vcpu { index: 0, kvm_id: None, tid, cpus: String::new(), last_cpu }
}

pub fn worker(tid: u32, last_cpu: u32) -> Worker {
    Worker { tid, comm: format!("vhost-{tid}"), kernel_thread: false, cpus: String::new(), last_cpu }
}

fn traced(name: &str, pid: u32) -> Vm {
    Vm { pid, ..observed_vm(name, 0, 0, 0, None, false).vm }
}

/// A trace of these VMs, with the findings of the analysis.
pub fn report(vms: Vec<VmReport>) -> Report {
    let meta = Meta {
        host: "lab1".into(),
        started: 7 * MS,
        vms: vms.iter().map(|vm| traced(&vm.name, vm.pid)).collect(),
        ..Meta::default()
    };
    let counters = Counters { ended: meta.started + LENGTH, ..Counters::default() };
    let mut report = Report {
        schema: SCHEMA,
        meta,
        counters,
        late: 0,
        late_no_room: 0,
        skipped_signals: 0,
        nic_losses: Vec::new(),
        not_followed: 0,
        guests: vec![],
        vms,
    };
    find(&mut report);
    report
}

/// Computes the findings again, after the figures of the VMs have changed.
pub fn find(report: &mut Report) {
    for vm in &mut report.vms {
        let input = RuleInput {
            requests: &vm.requests,
            total: vm.total.as_ref(),
            stages: &vm.stages,
            guest: &[],
            guest_waits: &[],
            length: report.counters.ended.saturating_sub(report.meta.started),
            waits: &[],
            name: &|_| String::new(),
        };
        vm.findings = rank(&input).1;
    }
}

/// A VM whose fluctuation is caused by this part, with a request each millisecond and 50 µs in that part.
pub fn blamed(name: &str, pid: u32, stage: Stage, state: Option<ThreadState>) -> VmReport {
    let requests = LENGTH / MS;
    let mut vm = VmReport {
        name: name.into(),
        pid,
        came: None,
        ended: None,
        requests: RequestCounts { seen: requests, complete: requests, ..RequestCounts::default() },
        left_out: Vec::new(),
        total: Some(Dist { count: requests, p50: 100 * US, p99: MS, ..Dist::default() }),
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
        over_time: OverTime::default(),
        bursts: None,
        inside: None,
        threads: None,
        verdict: Verdict { headline: "it is slow".into(), details: Vec::new(), fluctuation: true },
        findings: Vec::new(),
    };
    match state {
        Some(state) => part(&mut vm, stage, state, 50 * US, 0.8, 0.9),
        None => vm.stages.push(StageReport {
            stage,
            dist: Dist { p50: 50 * US, ..Dist::default() },
            time_share: 0.8,
            fluctuation_share: 0.9,
            parts: Vec::new(),
        }),
    }
    vm
}

/// Adds a stage with only this part.
pub fn part(vm: &mut VmReport, stage: Stage, state: ThreadState, ns: u64, time: f64, fluctuation: f64) {
    let part = PartReport {
        state,
        mean: ns as f64,
        p50: ns,
        of_p50: ns,
        time_share: time,
        fluctuation_share: fluctuation,
    };
    vm.stages.push(StageReport {
        stage,
        dist: Dist::default(),
        time_share: time,
        fluctuation_share: fluctuation,
        parts: vec![part],
    });
}

/// VMs whose vCPUs wait for a CPU.
pub fn on(vms: &[(&str, u32)]) -> Report {
    let waits = |(name, pid): &(&str, u32)| blamed(name, *pid, Stage::VcpuWake, Some(ThreadState::Ready));
    report(vms.iter().map(waits).collect())
}

/// VMs, each with the stage that is blamed.
pub fn of(stages: Vec<(&str, Stage)>) -> Report {
    report(stages.iter().zip(1..).map(|((name, stage), pid)| blamed(name, pid, *stage, None)).collect())
}

/// A VM whose vCPU is asleep when requests come, with this time between requests.
pub fn sleeping(name: &str, pid: u32, gap: u64) -> Report {
    let mut vm = blamed(name, pid, Stage::VcpuWake, Some(ThreadState::Asleep));
    vm.requests.seen = LENGTH / gap;
    vm.requests.complete = vm.requests.seen / 2;
    report(vec![vm])
}

/// Names as guests may choose them.
fn name() -> impl Strategy<Value = String> {
    const KNOWN: [&str; 18] = [
        "vm0",
        "vm1",
        "",
        " ",
        "pid:100",
        "pid:9",
        "pid:x",
        "a.b",
        "a]\nhost = 1",
        "\"\"\"",
        "\\u0000",
        "\u{7f}",
        "\u{202e}",
        "\u{feff}a",
        "é\\",
        "'",
        "#",
        "\u{85}",
    ];
    prop_oneof![
        4 => select(&KNOWN[..]).prop_map(str::to_owned),
        2 => any::<String>(),
        1 => "\\PC{250,270}",
    ]
}

fn share() -> impl Strategy<Value = f64> {
    prop_oneof![5 => -0.5..1.5, 1 => select(&[f64::NAN, f64::INFINITY, -1e300, 0.125, 0.0][..])]
}

fn figure() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..20 * MS, 1 => select(&[0, 1, u64::MAX][..])]
}

fn any_stage() -> impl Strategy<Value = StageReport> {
    let part =
        (select(&ThreadState::ALL[..]), figure(), share(), share()).prop_map(|(state, ns, time, f)| {
            PartReport {
                state,
                mean: ns as f64,
                p50: ns / 2,
                of_p50: ns / 2,
                time_share: time,
                fluctuation_share: f,
            }
        });
    (select(&Stage::ALL[..]), figure(), share(), share(), vec(part, 0..4)).prop_map(
        |(stage, p50, time, f, parts)| StageReport {
            stage,
            dist: Dist { p50, mean: p50 as f64, ..Dist::default() },
            time_share: time,
            fluctuation_share: f,
            parts,
        },
    )
}

fn any_vm() -> impl Strategy<Value = VmReport> {
    // Parts that mostly have a remedy.
    const CAUSES: [(Stage, Option<ThreadState>); 4] = [
        (Stage::VcpuWake, Some(ThreadState::Ready)),
        (Stage::TapQueue, Some(ThreadState::Ready)),
        (Stage::VcpuWake, Some(ThreadState::Asleep)),
        (Stage::VhostTx, Some(ThreadState::Asleep)),
    ];
    let other = (select(&Stage::ALL[..]), prop::option::of(select(&ThreadState::ALL[..])));
    let cause =
        prop_oneof![6 => select(&CAUSES[..]).prop_map(Some), 3 => other.prop_map(Some), 1 => Just(None)];
    let pid = prop_oneof![5 => select(&[100, 200, 300][..]), 1 => any::<u32>(), 1 => Just(0)];
    (name(), pid, cause, vec(any_stage(), 0..6), 0..100_000u64, any::<String>()).prop_map(
        |(name, pid, cause, stages, seen, sentence)| {
            let (stage, state) = cause.unwrap_or((Stage::Irq, None));
            let mut vm = blamed(&name, pid, stage, state);
            if cause.is_none() {
                vm.total = None;
            }
            vm.verdict.headline = sentence;
            vm.requests.seen = seen;
            vm.requests.complete = seen / 3;
            vm.stages.extend(stages);
            vm
        },
    )
}

/// Any report, including those that no trace produces.
pub fn any_report() -> impl Strategy<Value = Report> {
    let rest = (name(), any::<String>(), figure(), vec(select(&[100u32, 200, 300][..]), 0..2), share());
    (vec(any_vm(), 0..5), rest).prop_map(|(vms, (host, flow, ended, vanished, share))| {
        let mut report = report(vms);
        report.meta.host = host;
        report.meta.watch.flow_text = flow;
        report.counters.ended = ended;
        find(&mut report);
        for vm in &mut report.vms {
            let preemptor = Preemptor { tid: vm.pid.wrapping_add(1), name: report.meta.host.clone(), share };
            vm.findings.iter_mut().take(1).for_each(|f| f.preempted_by = vec![preemptor.clone()]);
        }
        report.counters.vanished = vanished;
        for vm in &mut report.meta.vms {
            vm.vcpus = vec![vcpu(vm.pid.wrapping_add(1), 0)];
        }
        report
    })
}

/// A host whose VMs have any names and last ran on any CPUs, with some settings that cannot be read; and a report of
/// some of these VMs, of other VMs, or of VMs that have other names now.
pub fn named() -> impl Strategy<Value = (Report, Observed)> {
    let changes = (
        vec((name(), 0..6u32), 3),
        vec(any::<Index>(), 0..2),
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.8),
    );
    (any_host(), any_report(), changes).prop_map(
        |(mut host, mut report, (names, unreadable, guarded, same))| {
            for (vm, (name, last)) in host.vms.iter_mut().zip(names) {
                vm.vm.name = name;
                vm.vm.vcpus = vm.vcpus.iter().map(|task| vcpu(task.id, last)).collect();
                vm.vm.workers = vm.workers.iter().map(|task| worker(task.id, last)).collect();
            }
            for index in unreadable {
                let setting =
                    index.get(&host.settings.iter().map(|(s, _)| s.clone()).collect::<Vec<_>>()).clone();
                host.settings.remove(&setting);
            }
            if !guarded {
                host.realtime_guard = None;
            }
            for vm in report.vms.iter_mut().filter(|_| same) {
                if let Some(found) = host.vms.iter().find(|o| o.vm.pid == vm.pid) {
                    vm.name.clone_from(&found.vm.name);
                }
            }
            (report, host)
        },
    )
}
