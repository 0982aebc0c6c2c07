//! What is wrong with VMs by the kernel's own counters, without any probe: one file for each cause, and the table of them.
//!
//! ```text
//!  Sample, Sample, … ─► time: where the time of each thread went ─► rule of each cause ─► Fault: share, evidence, remedy
//! ```
//! A `Rule` looks at one VM (`Seen`) and says how bad its cause is, as the part of the time that a thread wanted and did not get.
//! Faults are ranked by that part; those that are no loss of time come after them, in the order of the table. What is less than a
//! rule's limit is no fault: every VM waits a little.
//!
//! # Confidence
//! Each of these is a doubt: less than [`MIN_LENGTH`] was observed; a wait for a CPU may be that of a quota, where quotas cannot be seen.
//! No doubt means high confidence, one means medium, more mean low.

mod delayed;
mod guest_busy;
mod interrupts;
mod migration;
mod paused;
mod rate_limited;
mod stolen;
mod stopped;
mod swapped;
mod tap_full;
mod throttled;
mod time;
mod vcpu_waits;
mod worker_busy;
mod worker_waits;

use std::collections::{BTreeMap, BTreeSet};
use teiji_model::diagnosis::{
    Bin, Diagnosis, Fault, FaultCause, Neighbour, ThreadTime, Times, VmDiagnosis, share,
};
use teiji_model::finding::{Confidence, Remedy};
use teiji_model::host::Vm;
use teiji_model::reason::Blame;
use teiji_model::text::{duration, percent, printable};
use teiji_model::usage::{HostThread, Role, Sample, VmUsage};

/// The shortest time without a doubt, ns.
pub const MIN_LENGTH: u64 = 2_000_000_000;
/// The part of the time that it wanted from which on a thread that waits is a fault: a tenth.
const WAITS: f64 = 0.1;
/// It waits that long each time on average, ns, or [`WAITS_OF_ALL`] of all the time: on idle hosts a thread that hardly runs waits for
/// as long as it runs, some 10 µs each time.
const WAITS_EACH: u64 = 500_000;
const WAITS_OF_ALL: f64 = 0.05;
/// The least part of all the time that it waits: beside others, a thread that hardly ever runs waits for some ms now and then.
const WAITS_AT_LEAST: f64 = 0.01;
/// The greatest number of neighbours that are named.
const MAX_NEIGHBOURS: usize = 3;
/// The least part of the CPUs' time for which a neighbour is named.
const NEIGHBOUR: f64 = 0.02;

/// A cause.
struct Rule {
    cause: FaultCause,
    /// In at most six words.
    title: &'static str,
    blame: Blame,
    /// Whether and how the cause is there.
    found: fn(&Seen<'_>) -> Option<Found>,
    /// For people.
    explanation: &'static str,
    remedy: fn(&Seen<'_>) -> Remedy,
}

/// Every cause, in the order of [`FaultCause::ALL`].
static RULES: [Rule; FaultCause::ALL.len()] = [
    stopped::RULE,
    paused::RULE,
    throttled::RULE,
    vcpu_waits::RULE,
    worker_waits::RULE,
    worker_busy::RULE,
    guest_busy::RULE,
    swapped::RULE,
    tap_full::RULE,
    rate_limited::RULE,
    delayed::RULE,
    migration::RULE,
    interrupts::RULE,
    stolen::RULE,
];

/// A cause that is there.
struct Found {
    /// See [`Fault::share`].
    share: Option<f64>,
    evidence: Vec<String>,
    /// CPUs on which others ran instead.
    cpus: BTreeSet<u32>,
}

impl Found {
    /// Time is lost.
    fn lost(share: f64, evidence: Vec<String>) -> Option<Found> {
        Some(Found { share: Some(share), evidence, cpus: BTreeSet::new() })
    }

    /// No time is lost, or it is not known how much.
    fn unmeasured(evidence: Vec<String>) -> Option<Found> {
        Some(Found { share: None, evidence, cpus: BTreeSet::new() })
    }
}

/// What was seen of a VM.
struct Seen<'a> {
    times: &'a [(Role, ThreadTime)],
    first: &'a VmUsage,
    last: &'a VmUsage,
    /// Its process id.
    pid: u32,
    /// The first and the last sample.
    host: (&'a Sample, &'a Sample),
    /// CPUs on which one of its threads was in at least half of the samples.
    cpus: BTreeSet<u32>,
    /// How long it was observed, ns.
    length: u64,
}

impl Seen<'_> {
    fn vcpus(&self) -> impl Iterator<Item = &ThreadTime> {
        self.times.iter().filter(|(role, _)| *role != Role::Worker).map(|(_, time)| time)
    }

    fn workers(&self) -> impl Iterator<Item = &ThreadTime> {
        self.times.iter().filter(|(role, _)| *role == Role::Worker).map(|(_, time)| time)
    }

    fn all(&self) -> impl Iterator<Item = &ThreadTime> {
        self.times.iter().map(|(_, time)| time)
    }

    /// How long KVM polled before it let vCPUs sleep, ns.
    fn polled(&self) -> Option<u64> {
        Some(self.last.polled?.saturating_sub(self.first.polled?))
    }

    /// The busiest of its CPUs by a part of its time, 0 to 1.
    fn worst_cpu(&self, part: fn(&teiji_model::usage::CpuUsage) -> u64) -> Option<(u32, f64)> {
        let of = |cpu: u32| {
            let (first, last) = (self.host.0.cpus.get(&cpu)?, self.host.1.cpus.get(&cpu)?);
            Some((cpu, share(part(last).saturating_sub(part(first)), last.total.saturating_sub(first.total))))
        };
        self.cpus.iter().filter_map(|cpu| of(*cpu)).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Threads that wait for a CPU: the fault of those of one kind.
fn waiting<'a>(threads: impl Iterator<Item = &'a ThreadTime>) -> Option<Found> {
    let is_waiting = |time: &&ThreadTime| {
        let each = time.times.waited / time.times.starts.max(1);
        time.times.waited_share() >= WAITS
            && share(time.times.waited, time.times.length) >= WAITS_AT_LEAST
            && (each >= WAITS_EACH || share(time.times.waited, time.times.length) >= WAITS_OF_ALL)
    };
    let mut all: Vec<&ThreadTime> = threads.filter(is_waiting).collect();
    all.sort_by(|a, b| b.times.waited_share().total_cmp(&a.times.waited_share()));
    let line = |time: &&ThreadTime| {
        let each = duration(time.times.waited as f64 / time.times.starts.max(1) as f64);
        let of = percent(time.times.waited_share());
        format!("{} waits {of} of the time that it could run, {each} each time", time.name)
    };
    Some(Found {
        share: Some(all.first()?.times.waited_share()),
        evidence: all.iter().map(line).collect(),
        cpus: all.iter().flat_map(|time| time.cpus.iter().copied()).collect(),
    })
}

/// What is wrong with these VMs, by samples in the order of time. VMs that ended, and those that came later, are left out.
pub fn diagnose(vms: &[Vm], samples: &[Sample]) -> Diagnosis {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return Diagnosis { length: 0, vms: Vec::new() };
    };
    let length = last.at.saturating_sub(first.at);
    let one = |vm: &Vm| {
        let time = time::of(vm, samples);
        let seen = Seen {
            times: &time.threads,
            first: first.vms.get(&vm.pid)?,
            last: last.vms.get(&vm.pid)?,
            pid: vm.pid,
            host: (first, last),
            cpus: usual_cpus(vm, samples),
            length,
        };
        Some(of_vm(vm, vms, &seen, &time.series))
    };
    Diagnosis { length, vms: vms.iter().filter_map(one).collect() }
}

/// CPUs on which a thread of the VM was in at least half of the samples.
fn usual_cpus(vm: &Vm, samples: &[Sample]) -> BTreeSet<u32> {
    let mut seen: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for usage in samples.iter().filter_map(|sample| sample.vms.get(&vm.pid)) {
        for (tid, thread) in &usage.threads {
            *seen.entry((*tid, thread.cpu)).or_default() += 1;
        }
    }
    seen.into_iter().filter(|(_, n)| n * 2 >= samples.len()).map(|((_, cpu), _)| cpu).collect()
}

fn of_vm(vm: &Vm, vms: &[Vm], seen: &Seen<'_>, series: &[Bin]) -> VmDiagnosis {
    let unseen = unseen(vm, seen);
    let mut doubts = Vec::new();
    if seen.length < MIN_LENGTH {
        doubts.push(format!("observed for only {}", duration(seen.length as f64)));
    }
    let fault = |rule: &Rule| {
        let found = (rule.found)(seen)?;
        let mut doubts = doubts.clone();
        if rule.cause.is_wait() && !seen.last.quotas_seen {
            doubts.push("it may be a CPU quota, which could not be seen".to_owned());
        }
        Some(Fault {
            cause: rule.cause,
            title: rule.title.to_owned(),
            blame: rule.blame,
            share: found.share,
            evidence: found.evidence,
            neighbours: neighbours(vm, vms, seen, &found.cpus),
            confidence: Confidence::of(doubts.len()),
            doubts,
            explanation: rule.explanation.to_owned(),
            remedy: (rule.remedy)(seen),
        })
    };
    let mut faults: Vec<Fault> = RULES.iter().filter_map(fault).collect();
    let rank = |fault: &Fault| fault.share.unwrap_or(-1.0);
    faults.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    let headline = headline(&faults, seen);
    VmDiagnosis {
        name: vm.name.clone(),
        pid: vm.pid,
        headline,
        threads: seen.times.iter().map(|(_, time)| time.clone()).collect(),
        series: series.to_vec(),
        polled: seen.polled(),
        faults,
        unseen,
    }
}

/// In at most 12 words.
fn headline(faults: &[Fault], seen: &Seen<'_>) -> String {
    if let Some(worst) = faults.first() {
        let others = match faults.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        let share = worst.share.map(|share| format!(": {}", percent(share)));
        return format!("{}{}{others}", worst.title, share.unwrap_or_default());
    }
    if seen.vcpus().next().is_none() {
        return "cannot tell: its vCPU threads cannot be identified".to_owned();
    }
    let mut sum = Times::default();
    seen.vcpus().for_each(|vcpu| sum.add(&vcpu.times));
    format!("no fault found; its vCPUs use {} of their time", percent(share(sum.ran, sum.length)))
}

/// What could not be seen, and why.
fn unseen(vm: &Vm, seen: &Seen<'_>) -> Vec<String> {
    let mut all = Vec::new();
    if seen.vcpus().next().is_none() {
        all.push(
            "its vCPU threads cannot be identified: start QEMU with -name guest=NAME,debug-threads=on"
                .to_owned(),
        );
    }
    if !seen.last.quotas_seen {
        all.push(
            "CPU quotas: the host has no control groups of version 2 with the CPU controller".to_owned(),
        );
    }
    if seen.polled().is_none() {
        all.push("how long KVM polls: its statistics in debugfs could not be read".to_owned());
    }
    if vm.nics.iter().any(|nic| nic.ifindex != 0) && !seen.host.1.rate_limits.contains_key(&seen.pid) {
        all.push("rate limits of its taps: the kernel's list of qdiscs was not read".to_owned());
    }
    for nic in vm.nics.iter().filter(|nic| nic.ifindex == 0) {
        all.push(format!(
            "drops and qdiscs of its NIC {}: it is no tap of this network namespace",
            printable(&nic.tap)
        ));
    }
    all
}

/// Who else ran on these CPUs, as parts of their time.
fn neighbours(vm: &Vm, vms: &[Vm], seen: &Seen<'_>, cpus: &BTreeSet<u32>) -> Vec<Neighbour> {
    let (first, last) = seen.host;
    if first.threads.is_empty() {
        // They were not looked at: what others ran since they were started says nothing.
        return Vec::new();
    }
    let all = seen.length.saturating_mul(cpus.len() as u64);
    let mut ran: BTreeMap<String, u64> = BTreeMap::new();
    for (tid, thread) in last.threads.iter().filter(|(_, thread)| cpus.contains(&thread.cpu)) {
        let before = first.threads.get(tid).filter(|before| before.started == thread.started);
        let time = thread.ran.saturating_sub(before.map_or(0, |before| before.ran));
        let own = vm.pid == thread.pid || vm.workers.iter().any(|worker| worker.tid == *tid);
        let waits = seen.all().any(|time| time.tid == *tid && time.times.waited_share() >= WAITS);
        if own && waits {
            continue;
        }
        let name = if own { "its own other threads".to_owned() } else { whose(*tid, thread, vms) };
        let sum = ran.entry(name).or_default();
        *sum = sum.saturating_add(time.min(seen.length));
    }
    let mut longest: Vec<(String, u64)> =
        ran.into_iter().filter(|(_, ran)| share(*ran, all) >= NEIGHBOUR).collect();
    longest.sort_by_key(|(_, ran)| std::cmp::Reverse(*ran));
    longest.truncate(MAX_NEIGHBOURS);
    longest.into_iter().map(|(name, ran)| Neighbour { name, share: share(ran, all) }).collect()
}

/// The VM, unit or container that a thread belongs to, or its name.
fn whose(tid: u32, thread: &HostThread, vms: &[Vm]) -> String {
    let is_of = |vm: &&Vm| vm.pid == thread.pid || vm.workers.iter().any(|worker| worker.tid == tid);
    if let Some(vm) = vms.iter().find(is_of) {
        // Anyone may choose a name.
        return format!("VM {} ({})", printable(&vm.name), vm.pid);
    }
    match &thread.unit {
        Some(unit) => printable(unit),
        None => format!("{} ({})", printable(&thread.name), thread.pid),
    }
}

#[cfg(test)]
mod tests;
