//! Which CPUs keep the deadlines of the VMs on them, and how soon after a guest's kick its frames are handed to the host.
//!
//! This is known of a CPU if every thread of this class that may run there is pinned to that CPU, and no thread of SCHED_FIFO, SCHED_RR
//! or SCHED_DEADLINE of a VM may run there: then [`cpu::admit`] tells. Other threads of the same VMs may be on other CPUs.

use super::{Promise, listed, newest};
use crate::admission::cpu::{self, CpuShare, Overload};
use crate::plan::checks::Thread;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::cpus::CpuSet;
use teiji_model::host::{DataPlane, Nic};
use teiji_model::observed::Observed;
use teiji_model::plan::{HandedOver, PacketDeadlines};
use teiji_model::policy::{PacketClass, SourceLocation};
use teiji_model::text::{duration, printable};

/// What is known of deadlines.
pub(super) struct Deadlines {
    /// CPUs whose VMs have all their threads there, and whose deadlines do not fit: the place of the class of the newest VM, and why.
    pub refused: BTreeMap<u32, (SourceLocation, String)>,
    /// Of each promise; `None` without threads.
    pub by_promise: Vec<Option<(PacketDeadlines, HandedOver)>>,
}

/// What is known of the deadlines of these promises.
pub(super) fn deadlines(observed: &Observed, threads: &[Thread], promises: &[Promise]) -> Deadlines {
    let ours: Vec<Ours<'_>> = threads
        .iter()
        .filter_map(|thread| {
            let promise = promises.iter().position(|promise| promise.vm.process == thread.vm)?;
            let cpus: Vec<u32> = thread.cpus.iter().filter(|cpu| observed.cpus.contains(*cpu)).collect();
            Some(Ours { promise, thread, cpus })
        })
        .collect();
    let mut refused = BTreeMap::new();
    let mut by_cpu = BTreeMap::new();
    for cpu in ours.iter().filter_map(Ours::only_cpu) {
        by_cpu.entry(cpu).or_insert_with(|| of_cpu(cpu, &ours, threads, promises, &mut refused));
    }
    let vm_of =
        |promise: &Promise| observed.vms.iter().find(|vm| vm.process == promise.vm.process).map(|vm| &vm.vm);
    let sends_by_workers = |promise: &Promise| {
        let other = |nic: &&Nic| !matches!(nic.data_plane, DataPlane::VhostNet | DataPlane::VhostMacvtap);
        vm_of(promise).and_then(|vm| vm.nics.iter().find(other)).map_or(Ok(()), |nic| {
            Err(format!("its NIC {} is not served by a vhost worker (vhost=on)", printable(&nic.tap)))
        })
    };
    let of = |(n, promise)| {
        let own: Vec<&Ours<'_>> = ours.iter().filter(|our| our.promise == n).collect();
        let handed_over = || handed_over(promise, &own, sends_by_workers(promise), &by_cpu);
        let nics = vm_of(promise).map_or(&[][..], |vm| &vm.nics);
        (!own.is_empty()).then(|| (packet_deadlines(promise, nics, &own, &by_cpu), handed_over()))
    };
    let by_promise = promises.iter().enumerate().map(of).collect();
    Deadlines { refused, by_promise }
}

/// A thread of a VM of this class.
struct Ours<'a> {
    /// The number of its VM's promise.
    promise: usize,
    thread: &'a Thread,
    /// Online ones on which it may run.
    cpus: Vec<u32>,
}

impl Ours<'_> {
    fn only_cpu(&self) -> Option<u32> {
        match self.cpus[..] {
            [cpu] => Some(cpu),
            _ => None,
        }
    }

    fn may_run_on_several(&self) -> String {
        match self.cpus[..] {
            [] => format!("{} may run on no CPU that is online", self.thread.name),
            _ => format!(
                "{} may run on CPUs {}: pin it to one (vcpu_cpus, worker_cpus)",
                self.thread.name, self.thread.cpus
            ),
        }
    }
}

/// What is known of the deadlines on a CPU.
enum Known {
    /// It keeps those that are at least so long, ns, and not all others, as it says.
    From(u64, String),
    /// Nothing, for this reason.
    Nothing(String),
}

/// Whether a CPU keeps the deadlines of what runs on it.
fn of_cpu(
    cpu: u32,
    ours: &[Ours<'_>],
    threads: &[Thread],
    promises: &[Promise],
    refused: &mut BTreeMap<u32, (SourceLocation, String)>,
) -> Known {
    let here = || ours.iter().filter(|our| our.cpus.contains(&cpu));
    if let Some(loose) = here().find(|our| our.only_cpu().is_none()) {
        return Known::Nothing(loose.may_run_on_several());
    }
    let first = |thread: &&Thread| {
        let real_time = thread.scheduling.is_real_time() || thread.scheduling.is_sched_deadline();
        real_time && thread.cpus.contains(cpu)
    };
    if let Some(first) = threads.iter().find(first) {
        let class = "is a real-time thread (SCHED_FIFO, SCHED_RR or SCHED_DEADLINE)";
        return Known::Nothing(format!(
            "{} {class} and may take CPU {cpu} at any time: pin it to other CPUs",
            first.name
        ));
    }
    let mut numbers: Vec<usize> = here().map(|our| our.promise).collect();
    // Threads come VM by VM.
    numbers.dedup();
    let share = |n: &usize| {
        let PacketClass { runtime, deadline, period } = promises[*n].vm.class;
        let elsewhere = ours.iter().any(|our| our.promise == *n && our.only_cpu() != Some(cpu));
        CpuShare { runtime, deadline, period, elsewhere }
    };
    let shares: Vec<CpuShare> = numbers.iter().map(share).collect();
    let Err(overload) = cpu::admit(&shares) else { return Known::From(0, String::new()) };
    let vms: Vec<&Promise> = numbers.iter().map(|n| &promises[*n]).collect();
    let what = format!("{} on CPU {cpu} {}", listed(&vms), text(&overload));
    if let Some(newest) = newest(&vms).filter(|_| shares.iter().all(|share| !share.elsewhere)) {
        let fix = match overload {
            Overload::Rate { .. } => "shorten runtime, lengthen period, or pin one to another CPU",
            Overload::Deadline { .. } => "shorten runtime, lengthen deadline, or pin one to another CPU",
            Overload::Undecided => "choose periods and deadlines that differ less",
        };
        refused.insert(cpu, (newest.location.clone(), format!("{what}: {fix}")));
    }
    match overload {
        Overload::Deadline { kept_from, .. } => Known::From(kept_from, what),
        Overload::Rate { .. } | Overload::Undecided => Known::Nothing(what),
    }
}

fn text(overload: &Overload) -> String {
    let percent = |thousandths: u64| thousandths as f64 / 10.0;
    match *overload {
        Overload::Rate { needed, given } => format!(
            "may need {:.1} % of it (runtime in {} of {} parts of the period), but less than {:.0} % can be promised",
            percent(needed),
            cpu::PERIOD_PARTS - 1,
            cpu::PERIOD_PARTS,
            percent(given)
        ),
        Overload::Deadline { at, needed, given, .. } => {
            let [at, needed, given] = [at, needed, given].map(|ns| duration(ns as f64));
            let late = duration(cpu::LATE as f64);
            format!(
                "may need {needed} of it within {at}, as each may begin or end {late} late, but it gives {given}"
            )
        }
        Overload::Undecided => "have deadlines and periods that differ by too much to be compared".to_owned(),
    }
}

/// Why this thread may miss this deadline; `None` if it does not.
fn why_not_in_time(our: &Ours<'_>, deadline: u64, by_cpu: &BTreeMap<u32, Known>) -> Option<String> {
    match our.only_cpu().map(|cpu| by_cpu.get(&cpu)) {
        None => Some(our.may_run_on_several()),
        Some(Some(Known::From(from, _))) if deadline >= *from => None,
        Some(Some(Known::From(_, why) | Known::Nothing(why))) => Some(why.clone()),
        Some(None) => Some("nothing is known of its CPU".to_owned()),
    }
}

/// Whether a VM's packets are handled by their deadlines: if all its threads are on one CPU, one of them is ready there from a packet's
/// arrival until it has been handled. With threads on several CPUs, the one that wakes another may itself run late.
/// Only packets on taps that the scheduler finds, and that a worker serves, have deadlines.
fn packet_deadlines(
    promise: &Promise,
    nics: &[Nic],
    own: &[&Ours<'_>],
    by_cpu: &BTreeMap<u32, Known>,
) -> PacketDeadlines {
    if let Some(nic) = nics.iter().find(|nic| nic.data_plane != DataPlane::VhostNet || nic.ifindex == 0) {
        return PacketDeadlines::NotGuaranteed(format!(
            "packets of its NIC {} have no deadlines: it is no tap of this network namespace that a vhost worker serves",
            printable(&nic.tap)
        ));
    }
    if nics.is_empty() || own.iter().all(|our| our.thread.vcpu) {
        return PacketDeadlines::NotGuaranteed("it has no NIC that a vhost worker serves".to_owned());
    }
    if let Some(why) = own.iter().find_map(|our| why_not_in_time(our, promise.vm.class.deadline, by_cpu)) {
        return PacketDeadlines::NotGuaranteed(why);
    }
    let cpus: BTreeSet<u32> = own.iter().filter_map(|our| our.only_cpu()).collect();
    match cpus.first() {
        Some(&cpu) if cpus.len() == 1 => PacketDeadlines::Guaranteed { cpu },
        _ => PacketDeadlines::NotGuaranteed(format!(
            "its threads are on CPUs {}: pin all to one (vcpu_cpus, worker_cpus)",
            cpus.into_iter().collect::<CpuSet>()
        )),
    }
}

/// How soon a VM's frames are handed to the host's network stack. At worst the worker is awake at the kick: it has a new job every
/// deadline then, and a frame that just misses one is part of the next, which is released within a deadline and takes another one.
fn handed_over(
    promise: &Promise,
    own: &[&Ours<'_>],
    by_workers: Result<(), String>,
    by_cpu: &BTreeMap<u32, Known>,
) -> HandedOver {
    let deadline = promise.vm.class.deadline;
    let mut workers = own.iter().filter(|our| !our.thread.vcpu).peekable();
    let missing = match by_workers {
        Ok(()) if workers.peek().is_none() => Some("it has no vhost worker".to_owned()),
        served => served.err(),
    };
    match missing.or_else(|| workers.find_map(|our| why_not_in_time(our, deadline, by_cpu))) {
        Some(why) => HandedOver::Unknown(why),
        None => HandedOver::Within(deadline.saturating_mul(2)),
    }
}
