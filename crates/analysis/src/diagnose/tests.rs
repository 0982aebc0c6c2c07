use super::*;
use teiji_model::diagnosis::Times;
use teiji_model::host::{Vcpu, Worker};
use teiji_model::usage::{CpuUsage, GroupUsage, RateLimit, RunState, TapUsage, ThreadUsage};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const VCPU: u32 = 11;
const WORKER: u32 = 12;

fn vm() -> Vm {
    let vcpu = Vcpu { index: 0, kvm_id: Some(0), tid: VCPU, cpus: "0-3".into(), last_cpu: 1 };
    let worker = Worker {
        tid: WORKER,
        comm: "vhost-10".into(),
        kernel_thread: false,
        cpus: "0-3".into(),
        last_cpu: 2,
    };
    Vm { name: "a".into(), pid: 10, vcpus: vec![vcpu], workers: vec![worker], ..Vm::default() }
}

/// A healthy VM, a quarter busy, at the second `n`.
fn sample(n: u64) -> Sample {
    let thread = |role, ran: u64, cpu| ThreadUsage {
        role,
        started: 5,
        ran: n * ran,
        guest: n * ran / 2,
        waited: n * MS,
        starts: n * 100,
        state: RunState::Asleep,
        cpu,
        group: "/m/a".into(),
        census: None,
    };
    let threads = [(VCPU, thread(Role::Vcpu(0), S / 4, 1)), (WORKER, thread(Role::Worker, S / 50, 2))];
    let group = GroupUsage { path: "/m".into(), ..GroupUsage::default() };
    let usage = VmUsage {
        at: S + n * S,
        threads: threads.into(),
        groups: vec![group],
        polled: Some(0),
        ..VmUsage::default()
    };
    let usage = VmUsage { quotas_seen: true, ..usage };
    let cpus = (0..4).map(|cpu| (cpu, CpuUsage { total: n * S, interrupts: n * S / 100, stolen: 0 }));
    Sample {
        at: S + n * S,
        ends: false,
        vms: [(10, usage)].into(),
        cpus: cpus.collect(),
        threads: BTreeMap::new(),
        rate_limits: BTreeMap::new(),
        migrations: BTreeMap::new(),
    }
}

/// Five seconds of it, each sample changed by what knows its number.
fn seen(change: impl Fn(u64, &mut Sample)) -> VmDiagnosis {
    let changed = |n| {
        let mut sample = sample(n);
        change(n, &mut sample);
        sample
    };
    let samples: Vec<Sample> = (0..6).map(changed).collect();
    let diagnosis = diagnose(&[vm()], &samples);
    assert_eq!(diagnosis.length, 5 * S);
    let [vm] = diagnosis.vms.try_into().unwrap();
    for time in &vm.threads {
        let sum = time.times.ran
            + time.times.waited
            + time.times.throttled
            + time.times.stopped
            + time.times.in_vmm
            + time.times.disk
            + time.times.slept;
        assert_eq!(sum, time.times.length, "{time:?}");
    }
    assert!(vm.headline.split_whitespace().count() <= 12, "{}", vm.headline);
    vm
}

fn causes(vm: &VmDiagnosis) -> Vec<FaultCause> {
    vm.faults.iter().map(|fault| fault.cause).collect()
}

fn usage(sample: &mut Sample) -> &mut VmUsage {
    sample.vms.get_mut(&10).unwrap()
}

fn of(sample: &mut Sample, tid: u32) -> &mut ThreadUsage {
    usage(sample).threads.get_mut(&tid).unwrap()
}

#[test]
fn a_healthy_vm_has_no_fault() {
    let vm = seen(|_, _| {});
    assert_eq!(causes(&vm), []);
    assert_eq!(vm.headline, "no fault found; its vCPUs use 25 % of their time");
    let times: Vec<(u64, u64, u64)> =
        vm.threads.iter().map(|t| (t.times.ran, t.times.waited, t.times.slept)).collect();
    assert_eq!(times[0], (5 * S / 4, 5 * MS, 5 * S - 5 * S / 4 - 5 * MS));
}

#[test]
fn nobody_is_named_whose_time_before_is_not_known() {
    let vm = seen(|n, sample| {
        let vcpu = of(sample, VCPU);
        (vcpu.ran, vcpu.waited) = (n * S / 5, n * 3 * S / 5);
        if n > 0 {
            let burn =
                HostThread { pid: 50, started: 1, name: "burn".into(), unit: None, ran: 9 * S, cpu: 1 };
            sample.threads = [(50, burn)].into();
        }
    });
    assert_eq!(causes(&vm), [FaultCause::VcpuWaitsForCpu]);
    assert!(vm.faults[0].neighbours.is_empty(), "{:?}", vm.faults[0]);
}

#[test]
fn the_series_adds_up_to_the_whole() {
    let vm = seen(|n, sample| {
        of(sample, VCPU).waited = [0, 1, 300, 301, 302, 303][n as usize] * MS;
        let taps = [("t0", 100), ("t1", if n < 2 { 0 } else { 50 })];
        usage(sample).taps =
            taps.map(|(tap, each)| (tap.to_owned(), TapUsage { taken: n * each, dropped: n })).into();
        // It came later.
        if n < 3 {
            usage(sample).taps.remove("t1");
        }
    });
    let begin: Vec<u64> = vm.series.iter().map(|bin| bin.at).collect();
    assert_eq!(begin, [0, S, 2 * S, 3 * S, 4 * S]);
    let waited: Vec<u64> = vm.series.iter().map(|bin| bin.vcpus.waited / MS).collect();
    assert_eq!(waited, [1, 299, 1, 1, 1]);
    let taken: Vec<(u64, u64)> = vm.series.iter().map(|bin| (bin.taken, bin.dropped)).collect();
    assert_eq!(taken, [(100, 1), (100, 1), (100, 1), (150, 2), (150, 2)]);
    let (mut vcpus, mut workers) = (Times::default(), Times::default());
    for bin in &vm.series {
        vcpus.add(&bin.vcpus);
        workers.add(&bin.workers);
    }
    assert_eq!([vcpus, workers], [vm.threads[0].times, vm.threads[1].times]);
}

/// The CPU had no tick for half a second before the third sample.
#[test]
fn time_that_was_counted_late_was_run_before() {
    let vm = seen(|n, sample| {
        of(sample, VCPU).ran = if n == 3 { 5 * S / 2 } else { n * S };
        of(sample, VCPU).waited = 0;
    });
    let ran: Vec<u64> = vm.series.iter().map(|bin| bin.vcpus.ran).collect();
    assert_eq!(ran, [S; 5]);
    assert_eq!((vm.threads[0].times.ran, vm.threads[0].times.slept), (5 * S, 0));
    assert_eq!(causes(&vm), [FaultCause::GuestBusy]);
}

#[test]
fn times_of_a_recording_that_exaggerates_are_limited() {
    const LONG: u64 = u64::MAX / 6;
    let vm = seen(|n, sample| {
        let at = n * LONG;
        usage(sample).at = at;
        let vcpu = ThreadUsage {
            ran: if n == 3 { at - LONG / 2 } else { at },
            waited: 0,
            ..of(sample, VCPU).clone()
        };
        let all = (0..16)
            .map(|index| (100 + u32::from(index), ThreadUsage { role: Role::Vcpu(index), ..vcpu.clone() }));
        usage(sample).threads = all.collect();
    });
    assert_eq!(vm.series[2].vcpus.ran, u64::MAX);
}

/// Its CPU has had no tick since then: the observation ends before the rest is counted.
#[test]
fn a_thread_that_has_not_lost_its_cpu_runs() {
    let vm = seen(|n, sample| {
        let vcpu = of(sample, VCPU);
        (vcpu.ran, vcpu.waited, vcpu.state) =
            (n * S - if n == 5 { 9 * S / 10 } else { 0 }, 0, RunState::Runnable);
        vcpu.starts = n.min(4);
    });
    assert_eq!((vm.threads[0].times.ran, vm.threads[0].times.slept), (5 * S, 0));
}

/// It is preempted in the third second, and runs again in the fourth, or in the fifth.
#[test]
fn a_wait_that_has_begun_is_not_taken_for_running() {
    const FROM: u64 = 5 * S / 2;
    for until in [7 * S / 2, 9 * S / 2] {
        let vm = seen(|n, sample| {
            let now = n * S;
            let vcpu = of(sample, VCPU);
            vcpu.ran = now.min(FROM) + now.saturating_sub(until);
            vcpu.waited = if now >= until { until - FROM } else { 0 };
            (vcpu.starts, vcpu.state) = (1 + u64::from(now >= until), RunState::Runnable);
        });
        let times = vm.threads[0].times;
        assert_eq!((times.waited, times.ran, times.slept), (until - FROM, 5 * S - (until - FROM), 0));
    }
}

#[test]
fn a_thread_that_waits_for_a_cpu_is_named_with_who_had_it() {
    let host = |tid: u32, pid, name: &str, unit: Option<&str>, ran, cpu| {
        (tid, HostThread { pid, started: 1, name: name.into(), unit: unit.map(str::to_owned), ran, cpu })
    };
    let vm = seen(|n, sample| {
        let vcpu = of(sample, VCPU);
        (vcpu.ran, vcpu.waited) = (n * S / 5, n * 3 * S / 5);
        sample.threads = [
            host(VCPU, 10, "CPU 0/KVM", None, n * S / 5, 1),
            host(50, 50, "burn", None, n * S / 2, 1),
            host(60, 60, "backup", Some("backup.service"), n * S / 4, 1),
            host(13, 10, "CPU 1/KVM", None, n * S / 10, 1),
            // Elsewhere.
            host(70, 70, "far", None, n * S, 3),
        ]
        .into();
    });
    assert_eq!(causes(&vm), [FaultCause::VcpuWaitsForCpu]);
    let fault = &vm.faults[0];
    assert!((fault.share.unwrap() - 0.75).abs() < 0.001, "{fault:?}");
    assert_eq!(fault.evidence, ["vCPU 0 waits 75 % of the time that it could run, 6.00 ms each time"]);
    let named: Vec<(&str, String)> =
        fault.neighbours.iter().map(|n| (n.name.as_str(), percent(n.share))).collect();
    assert_eq!(
        named,
        [
            ("burn (50)", "50 %".to_owned()),
            ("backup.service", "25 %".to_owned()),
            ("its own other threads", "10 %".to_owned())
        ]
    );
    assert_eq!(fault.confidence, Confidence::High);
}

/// Its counter only grows once it runs again.
#[test]
fn a_thread_that_never_gets_a_cpu_waits() {
    let vm = seen(|_, sample| {
        let worker = of(sample, WORKER);
        (worker.ran, worker.waited, worker.starts, worker.state) = (7, 7, 7, RunState::Runnable);
    });
    assert_eq!(causes(&vm), [FaultCause::WorkerWaitsForCpu]);
    assert_eq!(vm.threads[1].times.waited, 5 * S);
}

#[test]
fn short_waits_of_a_vm_that_hardly_runs_are_no_fault() {
    let vm = seen(|n, sample| {
        let vcpu = of(sample, VCPU);
        (vcpu.ran, vcpu.waited, vcpu.starts) = (n * 5 * MS, n * 9 * MS, n * 3);
    });
    assert_eq!(causes(&vm), []);
}

#[test]
fn a_quota_is_told_from_waiting_behind_others() {
    let vm = seen(|n, sample| {
        let vcpu = of(sample, VCPU);
        (vcpu.ran, vcpu.waited) = (n * S / 5, n * 3 * S / 5);
        of(sample, WORKER).ran = 0;
        of(sample, WORKER).waited = 0;
        let group = &mut usage(sample).groups[0];
        (group.throttled, group.quota) = (n * 3 * S / 5, Some(20));
    });
    assert_eq!(causes(&vm), [FaultCause::Throttled]);
    assert_eq!(vm.threads[0].times.throttled, 3 * S);
    let line =
        "the control group /m may use 20 % of a CPU: that took 75 % of the time that its threads could run";
    assert_eq!(vm.faults[0].evidence, [line]);
}

#[test]
fn stopped_frozen_and_paused_are_told_apart() {
    let none = |sample: &mut Sample| {
        for tid in [VCPU, WORKER] {
            let thread = of(sample, tid);
            (thread.ran, thread.waited, thread.starts, thread.guest) = (0, 0, 0, 0);
        }
    };
    let stopped = seen(|_, sample| {
        none(sample);
        of(sample, VCPU).state = RunState::Stopped;
    });
    assert_eq!(causes(&stopped), [FaultCause::Stopped]);
    let frozen = seen(|_, sample| {
        none(sample);
        usage(sample).groups[0].frozen = true;
    });
    assert_eq!(causes(&frozen), [FaultCause::Stopped]);
    assert!(frozen.faults[0].evidence[1].contains("/m is frozen"), "{:?}", frozen.faults);
    let paused = seen(|_, sample| {
        none(sample);
        of(sample, VCPU).state = RunState::InVmm;
    });
    assert_eq!(causes(&paused), [FaultCause::Paused]);
    let idle = seen(|_, sample| none(sample));
    assert_eq!(causes(&idle), []);
}

#[test]
fn each_other_cause_is_found_by_its_counter() {
    type Change = fn(u64, &mut Sample);
    let all: [(FaultCause, Change); 9] = [
        (FaultCause::GuestBusy, |n, sample| {
            let vcpu = of(sample, VCPU);
            (vcpu.ran, vcpu.guest) = (n * 95 * S / 100, n * 60 * S / 100);
        }),
        (FaultCause::WorkerBusy, |n, sample| of(sample, WORKER).ran = n * 95 * S / 100),
        (FaultCause::Swapped, |n, sample| usage(sample).major_faults = Some(n * 50)),
        (FaultCause::TapFull, |n, sample| {
            usage(sample).taps = [("tap0".to_owned(), TapUsage { taken: n, dropped: n * 10 })].into();
        }),
        (FaultCause::Delayed, |_, sample| usage(sample).delaying = vec![("tap0".into(), "netem".into())]),
        (FaultCause::RateLimited, |n, sample| limited(sample, limit(n * 100, n, 0))),
        (FaultCause::Migration, |_, sample| {
            sample.migrations.insert(10, vec!["mig/src/main".to_owned()]);
        }),
        (FaultCause::Interrupts, |n, sample| sample.cpus.get_mut(&1).unwrap().interrupts = n * S / 2),
        (FaultCause::Stolen, |n, sample| sample.cpus.get_mut(&2).unwrap().stolen = n * S / 10),
    ];
    for (cause, change) in all {
        assert_eq!(causes(&seen(change)), [cause]);
    }
    // A CPU that none of its threads was on; a vCPU that runs, but polls.
    let elsewhere = seen(|n, sample| {
        sample.cpus.get_mut(&3).unwrap().interrupts = n * S;
        let vcpu = of(sample, VCPU);
        (vcpu.ran, vcpu.waited) = (n * S * 99 / 100, 0);
        usage(sample).polled = Some(n * S * 3 / 4);
    });
    assert_eq!(causes(&elsewhere), []);
}

fn limit(overlimits: u64, drops: u64, queued: u32) -> RateLimit {
    let (device, kind) = ("tap0".into(), "tbf".into());
    let (overlimits, drops) = (overlimits as u32, drops as u32);
    RateLimit { device, ifindex: 5, kind, handle: 1, overlimits, drops, queued }
}

fn limited(sample: &mut Sample, limit: RateLimit) {
    sample.rate_limits.insert(10, vec![limit]);
}

#[test]
fn a_rate_limit_counts_by_what_exceeded_it_meanwhile() {
    let evidence =
        |vm: VmDiagnosis| vm.faults.first().map(|fault| fault.evidence.clone()).unwrap_or_default();
    let line = |times, drops, queued| {
        format!(
            "tbf on tap0: {times} overlimits a second, {drops} packets dropped, {queued} queued at the end"
        )
    };
    let of = |limits: fn(u64) -> RateLimit| evidence(seen(|n, sample| limited(sample, limits(n))));
    assert_eq!(of(|n| limit(1000 + n * 100, 7, 9)), [line(100, 0, 9)]);
    assert_eq!(of(|n| limit(1000 + n * 100, 7 + n, 0)), [line(100, 5, 0)]);
    let not: [fn(u64) -> RateLimit; 5] = [
        // Not now; seldom.
        |_| limit(1000, 7, 9),
        |n| limit(1000 + n * 9, 7 + n, 9),
        // A busy link that needs no queue, one that queues at one of the ends, and one whose queue is managed.
        |n| limit(1000 + n * 100, 7, 0),
        |n| limit(1000 + n * 100, 7, if n < 5 { 0 } else { 9 }),
        |n| limit(1000 + n * 100, 7 + n / 2, 0),
    ];
    for limits in not {
        assert_eq!(of(limits), Vec::<String>::new());
    }
    // One that was added meanwhile, and one in the place of another.
    let added = |n, sample: &mut Sample| {
        if n > 2 {
            limited(sample, limit(500, 6, 2));
        }
    };
    let none = |sample: &mut Sample| drop(sample.rate_limits.insert(10, Vec::new()));
    let new = seen(|n, sample| {
        none(sample);
        added(n, sample);
    });
    assert_eq!(evidence(new), [line(100, 6, 2)]);
    assert_eq!(of(|n| if n > 2 { limit(500, 6, 2) } else { limit(100_000, 400, 2) }), [line(100, 6, 2)]);
    // At first, the qdiscs could not be read.
    assert_eq!(evidence(seen(added)), Vec::<String>::new());
}

#[test]
fn titles_have_six_words_at_most() {
    for rule in &RULES {
        assert!(rule.title.split_whitespace().count() <= 6, "{}", rule.title);
    }
}

#[test]
fn threads_and_vms_that_come_or_end_are_left_out() {
    let vm = seen(|n, sample| of(sample, WORKER).started = n);
    assert_eq!(vm.threads.iter().map(|t| t.tid).collect::<Vec<_>>(), [VCPU]);
    let mut ended = sample(1);
    ended.vms.clear();
    assert_eq!(diagnose(&[super::tests::vm()], &[sample(0), ended]).vms, []);
    assert_eq!(diagnose(&[super::tests::vm()], &[]).vms, []);
}

#[test]
fn what_cannot_be_seen_is_said() {
    let vm = seen(|_, sample| {
        usage(sample).quotas_seen = false;
        usage(sample).polled = None;
    });
    assert_eq!(vm.unseen.len(), 2, "{:?}", vm.unseen);
}

/// A guest that uses up a vCPU is no reason that another one waits.
#[test]
fn lost_time_comes_first() {
    let vm = seen(|n, sample| {
        let other = ThreadUsage {
            role: Role::Vcpu(1),
            ran: n * S,
            guest: n * S,
            waited: 0,
            ..of(sample, VCPU).clone()
        };
        usage(sample).threads.insert(13, other);
        let vcpu = of(sample, VCPU);
        (vcpu.ran, vcpu.waited) = (n * S / 5, n * S / 5);
        sample.cpus.get_mut(&1).unwrap().stolen = n * S / 4;
    });
    // Otherwise than in the table.
    assert_eq!(causes(&vm), [FaultCause::VcpuWaitsForCpu, FaultCause::Stolen, FaultCause::GuestBusy]);
    assert_eq!((vm.headline.as_str(), vm.faults[2].share), ("vCPU waits for a CPU: 50 % (and 2 more)", None));
}

#[test]
fn what_may_be_a_quota_is_in_doubt_where_quotas_cannot_be_seen() {
    let vm = seen(|n, sample| {
        of(sample, WORKER).waited = n * S / 2;
        usage(sample).quotas_seen = false;
    });
    assert_eq!(causes(&vm), [FaultCause::WorkerWaitsForCpu]);
    assert_eq!((vm.faults[0].confidence, vm.faults[0].doubts.len()), (Confidence::Medium, 1));
}

/// libvirt has a group for each vCPU, and one for the other threads of QEMU.
#[test]
fn a_quota_counts_for_the_threads_that_it_limits() {
    let vm = seen(|n, sample| {
        let other = ThreadUsage {
            role: Role::Vcpu(1),
            waited: n * S / 2,
            group: "/m/b".into(),
            ..of(sample, VCPU).clone()
        };
        usage(sample).threads.insert(13, other);
        let vcpu = of(sample, VCPU);
        (vcpu.ran, vcpu.waited) = (n * S / 2, n * S / 2);
        let of_vcpu = GroupUsage { path: "/m/a".into(), throttled: n * S, ..GroupUsage::default() };
        // Another one's, such as /m/boot.
        let siblings = GroupUsage { path: "/m/bo".into(), throttled: n * 2 * S, ..GroupUsage::default() };
        usage(sample).groups.extend([of_vcpu, siblings]);
    });
    let times: Vec<(u64, u64)> = vm.threads.iter().map(|t| (t.times.waited, t.times.throttled)).collect();
    assert_eq!(times[0], (0, 5 * S / 2));
    assert_eq!(times[1], (5 * S / 2, 0), "it is in no limited group");
    // What slept was not kept from running.
    let slept = seen(|n, sample| usage(sample).groups[0].throttled = n * S / 2);
    assert_eq!(causes(&slept), []);
}

#[test]
fn a_vcpu_that_the_vmm_works_for_is_not_paused() {
    let vm = seen(|_, sample| of(sample, VCPU).state = RunState::InVmm);
    assert_eq!((causes(&vm), vm.threads[0].times.in_vmm), (vec![], 0));
}

/// A NIC that the guest does not use, and a CPU that a thread was on once.
#[test]
fn what_does_not_concern_the_vm_is_no_fault() {
    let vm = seen(|n, sample| {
        usage(sample).taps = [("tap0".to_owned(), TapUsage { taken: 5, dropped: n * 10 })].into();
        of(sample, VCPU).cpu = if n == 3 { 3 } else { 1 };
        sample.cpus.get_mut(&3).unwrap().stolen = n * S;
    });
    assert_eq!(causes(&vm), []);
}
