//! Real-time threads that share CPUs in such a way that one may starve another.
//!
//! A `SCHED_FIFO` thread runs until it sleeps or a thread of a higher priority becomes runnable (sched(7)). A vCPU does
//! not sleep while its guest is busy. A vhost worker does not sleep while there are packets and the guest has room for
//! them.
//!
//! - A thread *can starve* if threads that it does not preempt may be busy on all of its CPUs at once. That depends on
//!   the load, and is a warning. A worker does not count as an obstacle for the vCPUs of its own VM: without them it
//!   soon has nothing to do.
//! - An ordinary worker *can be held up* by the real-time vCPUs of its own VM, as `vcpusched` of libvirt makes them, if they
//!   may be busy on all of its CPUs at once: it is left with what the kernel keeps for ordinary threads (5 % by default,
//!   by the fair server or by `sched_rt_runtime_us`). That is a warning, too. Real-time threads of others are not looked at
//!   there: ordinary threads always wait for those.
//! - The vCPUs of one VM *will starve* if there are more of them than CPUs that they may run on: a guest's vCPUs wait
//!   for each other in loops (interrupts between them, locks), and a vCPU that loops does not let the one that it waits
//!   for run. Such a guest hangs for ever, so the plan is refused.

use super::checks::Thread;
use super::names::shown;
use super::{Draft, WantedSetting};
use crate::housekeeping;
use std::collections::BTreeMap;
use teiji_model::cpus::CpuSet;
use teiji_model::observed::Observed;
use teiji_model::resource::{Resource, Scheduling};

/// How many names a message lists; further names are counted.
const LISTED: usize = 4;

/// Refuses plans in which a guest would hang, and warns of threads that may starve, if the policy is part of the cause.
pub(super) fn check(observed: &Observed, threads: &[Thread], draft: &mut Draft) {
    let unbounded: Vec<&Thread> = threads.iter().filter(|t| housekeeping::unbounded(&t.scheduling)).collect();
    let mut problems = Vec::new();
    for vm in &observed.vms {
        let is_own = |t: &&&Thread| t.vm == vm.process && t.vcpu && fifo(&t.scheduling);
        let vcpus: Vec<&Thread> = unbounded.iter().filter(is_own).copied().collect();
        let may: Vec<CpuSet> =
            vcpus.iter().map(|t| housekeeping::reachable_cpus([&t.cpus], &observed.cpus)).collect();
        if housekeeping::can_all_run(&may) {
            continue;
        }
        let Some(want) = vcpus.iter().find_map(|t| want(t, draft)) else { continue };
        let (name, all) = (shown(&vm.vm.name), housekeeping::reachable_cpus(&may, &observed.cpus));
        problems.push((
            want.location.clone(),
            format!(
                "the {} real-time vCPUs of {name} would share fewer CPUs ({all}): a guest's vCPUs wait for \
                 each other in loops, and one that loops never lets the other run: give each its own CPU with \
                 vcpu_cpus, or remove the class",
                vcpus.len()
            ),
        ));
    }
    for (location, message) in &problems {
        draft.problem(location, message.clone());
    }
    if problems.is_empty() {
        warn(observed, &unbounded, draft);
        warn_of_ordinary_workers(observed, threads, &unbounded, draft);
    }
}

/// Warns of ordinary workers that the real-time vCPUs of their own VM can hold up.
fn warn_of_ordinary_workers(
    observed: &Observed,
    threads: &[Thread],
    unbounded: &[&Thread],
    draft: &mut Draft,
) {
    let ordinary = |t: &&Thread| !t.vcpu && t.scheduling.priority() == 0;
    let mut warnings = Vec::new();
    for worker in threads.iter().filter(ordinary) {
        let cpus = housekeeping::reachable_cpus([&worker.cpus], &observed.cpus);
        let of = |t: &&&Thread| t.vcpu && t.vm == worker.vm && t.cpus.iter().any(|cpu| cpus.contains(cpu));
        let vcpus: Vec<&&Thread> = unbounded.iter().filter(of).collect();
        let may: Vec<CpuSet> = vcpus.iter().map(|t| housekeeping::reachable_cpus([&t.cpus], &cpus)).collect();
        let concerned = || want(worker, draft).is_some() || vcpus.iter().any(|t| want(t, draft).is_some());
        if cpus.is_empty() || !housekeeping::can_take_all(&may, &cpus) || !concerned() {
            continue;
        }
        let busy: Vec<String> = vcpus.iter().map(|t| named(t)).collect();
        warnings.push(format!(
            "on {} {} is ordinary and gets hardly any CPU time while these are busy: {}; give it a CPU of its own \
             with worker_cpus, or give the VM a class, which puts its workers above its vCPUs",
            on(&cpus),
            worker.name,
            listed(&busy)
        ));
    }
    draft.warnings.extend(warnings);
}

/// `CPU 1`, `CPUs 1-2`.
fn on(cpus: &CpuSet) -> String {
    format!("{} {cpus}", if cpus.len() == 1 { "CPU" } else { "CPUs" })
}

/// Warns of the threads that can starve, with their CPUs and the threads that can be busy there.
fn warn(observed: &Observed, unbounded: &[&Thread], draft: &mut Draft) {
    let mut found: BTreeMap<String, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for victim in unbounded {
        let cpus = housekeeping::reachable_cpus([&victim.cpus], &observed.cpus);
        let in_the_way: Vec<&&Thread> = unbounded.iter().filter(|t| stays(t, victim)).collect();
        let may: Vec<CpuSet> =
            in_the_way.iter().map(|t| housekeeping::reachable_cpus([&t.cpus], &cpus)).collect();
        let concerned =
            || want(victim, draft).is_some() || in_the_way.iter().any(|t| want(t, draft).is_some());
        if !housekeeping::can_take_all(&may, &cpus) || !concerned() {
            continue;
        }
        let (victims, others) = found.entry(on(&cpus)).or_default();
        victims.push(named(victim));
        let here = in_the_way.iter().zip(&may).filter(|(_, may)| !may.is_empty());
        for name in here.map(|(t, _)| named(t)) {
            if !others.contains(&name) {
                others.push(name);
            }
        }
    }
    for (cpus, (victims, others)) in found {
        draft.warnings.push(format!(
            "on {cpus} {} may get no CPU time at all while these are busy: {}; give them CPUs of their own \
             with vcpu_cpus and worker_cpus",
            listed(&victims),
            listed(&others)
        ));
    }
}

/// Whether `victim` does not preempt `other` once that runs, and `other` may be busy for as long as it likes.
fn stays(other: &Thread, victim: &Thread) -> bool {
    let (its, wanted) = (other.scheduling.priority(), victim.scheduling.priority());
    let not_preempted = its > wanted || (its == wanted && fifo(&other.scheduling));
    let waits_for_victim = !other.vcpu && victim.vcpu && other.vm == victim.vm;
    other.task != victim.task && not_preempted && !waits_for_victim
}

fn fifo(scheduling: &Scheduling) -> bool {
    matches!(scheduling, Scheduling::Fifo { .. })
}

/// The line of the policy that decides how or where a thread runs, if any.
fn want<'d>(thread: &Thread, draft: &'d Draft) -> Option<&'d WantedSetting> {
    let of = |setting: Resource| draft.wants.iter().find(|w| w.setting == setting);
    of(Resource::ThreadCpus(thread.task)).or_else(|| of(Resource::ThreadScheduling(thread.task)))
}

fn named(thread: &Thread) -> String {
    format!("{} ({})", thread.name, thread.scheduling)
}

fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let text = names[..names.len().min(LISTED)].join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}
