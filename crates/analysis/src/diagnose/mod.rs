//! What is wrong with VMs by the kernel's own counters, without any probe: one file for each cause, and the table of them.
//!
//! ```text
//!  Sample, Sample, … ─► time: where the time of each thread went ─► rule of each cause ─► Fault: share, evidence, remedy
//! ```
//! A `Rule` looks at one VM ([`Seen`]) and says how bad its cause is, as the part of the time that a thread wanted and did not get.
//! Faults are ranked by that part. What is less than a rule's limit is no fault: every VM waits a little. The limits are those at
//! which response times change by more than they do on an idle host.
//!
//! # Confidence
//! Each of these is a doubt: less than [`MIN_LENGTH`] was looked at; the cause needs something that this host does not show
//! ([`VmDiagnosis::unseen`]). No doubt means high confidence, one means medium, more mean low.

mod delayed;
mod guest_busy;
mod interrupts;
mod paused;
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
use teiji_model::diagnosis::{Diagnosis, Fault, FaultCause, Neighbour, ThreadTime, VmDiagnosis, share};
use teiji_model::finding::{Confidence, Remedy};
use teiji_model::host::Vm;
use teiji_model::reason::Blame;
use teiji_model::text::{duration, percent, printable};
use teiji_model::usage::{HostThread, Role, Sample, VmUsage};

/// The shortest time of which a diagnosis is certain, ns.
pub const MIN_LENGTH: u64 = 2_000_000_000;
/// The part of the time that it wanted from which on a thread that waits is a fault: a tenth.
const WAITS: f64 = 0.1;
/// It waits that long each time on average, ns, or [`WAITS_OF_ALL`] of all the time: on idle hosts a thread that hardly runs waits for
/// as long as it runs, some 10 µs each time.
const WAITS_EACH: u64 = 500_000;
const WAITS_OF_ALL: f64 = 0.05;
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
    delayed::RULE,
    interrupts::RULE,
    stolen::RULE,
];

/// A cause that is there.
struct Found {
    /// See [`Fault::share`].
    share: f64,
    evidence: Vec<String>,
    /// CPUs on which others ran instead.
    cpus: BTreeSet<u32>,
}

impl Found {
    fn new(share: f64, evidence: Vec<String>) -> Option<Found> {
        Some(Found { share, evidence, cpus: BTreeSet::new() })
    }
}

/// What was seen of a VM.
struct Seen<'a> {
    times: &'a [(Role, ThreadTime)],
    first: &'a VmUsage,
    last: &'a VmUsage,
    /// The first and the last sample.
    host: (&'a Sample, &'a Sample),
    /// How long it was looked at, ns.
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

    /// CPUs that its threads were seen on.
    fn cpus(&self) -> BTreeSet<u32> {
        self.all().flat_map(|time| time.cpus.iter().copied()).collect()
    }

    /// The busiest of these CPUs by a part of its time, 0 to 1.
    fn worst_cpu(&self, part: fn(&teiji_model::usage::CpuUsage) -> u64) -> Option<(u32, f64)> {
        let of = |cpu: u32| {
            let (first, last) = (self.host.0.cpus.get(&cpu)?, self.host.1.cpus.get(&cpu)?);
            Some((cpu, share(part(last).saturating_sub(part(first)), last.total.saturating_sub(first.total))))
        };
        self.cpus().into_iter().filter_map(of).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Threads that wait for a CPU: the fault of those of one kind.
fn waiting<'a>(threads: impl Iterator<Item = &'a ThreadTime>) -> Option<Found> {
    let is_waiting = |time: &&ThreadTime| {
        let each = time.waited / time.starts.max(1);
        time.waited_share() >= WAITS
            && (each >= WAITS_EACH || share(time.waited, time.length) >= WAITS_OF_ALL)
    };
    let mut all: Vec<&ThreadTime> = threads.filter(is_waiting).collect();
    all.sort_by(|a, b| b.waited_share().total_cmp(&a.waited_share()));
    let line = |time: &&ThreadTime| {
        let each = duration(time.waited as f64 / time.starts.max(1) as f64);
        let of = percent(time.waited_share());
        format!("{} waits {of} of the time that it could run, {each} each time", time.name)
    };
    Some(Found {
        share: all.first()?.waited_share(),
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
        let times = time::of(vm, samples);
        let seen = Seen {
            times: &times,
            first: first.vms.get(&vm.pid)?,
            last: last.vms.get(&vm.pid)?,
            host: (first, last),
            length,
        };
        Some(of_vm(vm, vms, &seen))
    };
    Diagnosis { length, vms: vms.iter().filter_map(one).collect() }
}

fn of_vm(vm: &Vm, vms: &[Vm], seen: &Seen<'_>) -> VmDiagnosis {
    let unseen = unseen(vm, seen);
    let mut doubts = Vec::new();
    if seen.length < MIN_LENGTH {
        doubts.push(format!("only {} were looked at", duration(seen.length as f64)));
    }
    let fault = |rule: &Rule| {
        let found = (rule.found)(seen)?;
        Some(Fault {
            cause: rule.cause,
            title: rule.title.to_owned(),
            blame: rule.blame,
            share: found.share,
            evidence: found.evidence,
            neighbours: neighbours(vm, vms, seen, &found.cpus),
            confidence: Confidence::of(doubts.len()),
            doubts: doubts.clone(),
            explanation: rule.explanation.to_owned(),
            remedy: (rule.remedy)(seen),
        })
    };
    let mut faults: Vec<Fault> = RULES.iter().filter_map(fault).collect();
    // A thread that is kept from running by what comes first in the table only seems to have other faults.
    faults.sort_by(|a, b| b.share.total_cmp(&a.share));
    let headline = headline(&faults, seen, &unseen);
    VmDiagnosis {
        name: vm.name.clone(),
        pid: vm.pid,
        headline,
        threads: seen.times.iter().map(|(_, time)| time.clone()).collect(),
        faults,
        unseen,
    }
}

/// In at most 12 words.
fn headline(faults: &[Fault], seen: &Seen<'_>, unseen: &[String]) -> String {
    if seen.times.is_empty() {
        return "cannot tell: none of its threads can be identified".to_owned();
    }
    if let Some(worst) = faults.first() {
        let others = match faults.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        return format!("{}: {}{others}", worst.title, percent(worst.share));
    }
    let (ran, all) = seen.vcpus().fold((0, 0), |sum, time| (sum.0 + time.ran, sum.1 + time.length));
    let nothing = if unseen.is_empty() { "nothing is wrong" } else { "nothing wrong seen" };
    format!("{nothing}; its vCPUs use {} of their time", percent(share(ran, all)))
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
    if seen.last.groups.is_empty() {
        all.push("CPU quotas: it is in no control group of version 2 that could be read".to_owned());
    }
    if seen.vcpus().any(|time| time.polled.is_none()) {
        all.push("how long KVM polls: its statistics in debugfs could not be read".to_owned());
    }
    if vm.nics.iter().any(|nic| nic.unseen().is_some()) {
        all.push("packets of NICs that are no taps of this network namespace".to_owned());
    }
    all
}

/// Who else ran on these CPUs, as parts of their time.
fn neighbours(vm: &Vm, vms: &[Vm], seen: &Seen<'_>, cpus: &BTreeSet<u32>) -> Vec<Neighbour> {
    let (first, last) = seen.host;
    let all = seen.length.saturating_mul(cpus.len() as u64);
    let mut ran: BTreeMap<String, u64> = BTreeMap::new();
    for (tid, thread) in last.threads.iter().filter(|(_, thread)| cpus.contains(&thread.cpu)) {
        let before = first.threads.get(tid).filter(|before| before.started == thread.started);
        let time = thread.ran.saturating_sub(before.map_or(0, |before| before.ran));
        let name = whose(*tid, thread, vm, vms);
        let sum = ran.entry(name).or_default();
        *sum = sum.saturating_add(time.min(seen.length));
    }
    ran.remove(&itself(vm));
    let mut longest: Vec<(String, u64)> =
        ran.into_iter().filter(|(_, ran)| share(*ran, all) >= NEIGHBOUR).collect();
    longest.sort_by_key(|(_, ran)| std::cmp::Reverse(*ran));
    longest.truncate(MAX_NEIGHBOURS);
    longest.into_iter().map(|(name, ran)| Neighbour { name, share: share(ran, all) }).collect()
}

fn itself(vm: &Vm) -> String {
    format!("VM {}", vm.name)
}

/// The VM, unit or container that a thread belongs to, or its name.
fn whose(tid: u32, thread: &HostThread, own: &Vm, vms: &[Vm]) -> String {
    let is_of = |vm: &&Vm| vm.pid == thread.pid || vm.workers.iter().any(|worker| worker.tid == tid);
    if let Some(vm) = std::iter::once(own).chain(vms).find(is_of) {
        return itself(vm);
    }
    match &thread.unit {
        Some(unit) => unit.clone(),
        None => format!("{} ({})", printable(&thread.name), thread.pid),
    }
}

#[cfg(test)]
mod tests;
