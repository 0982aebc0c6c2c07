//! Real-time threads that share CPUs in such a way that one may keep another from running for good.
//!
//! A `SCHED_FIFO` thread runs until it sleeps or one of a higher priority comes (sched(7)). A vCPU does not sleep while
//! its guest is busy. A vhost worker does not sleep while there are packets and the guest makes room for them.
//!
//! - A thread *can starve* if others that need not give way to it may be busy on all of its CPUs at once. That depends
//!   on the load, and is a warning. A worker is not counted as in the way of its own VM's vCPUs: without them it has
//!   nothing to do for long.
//! - vCPUs of one VM that are more than the CPUs they may run on *will*: a guest's vCPUs wait for each other in loops
//!   (interrupts between them, locks), and the one that loops keeps the one it waits for from running. Such a guest
//!   stands still for good, and the plan is refused.

use super::checks::Thread;
use super::names::shown;
use super::{Draft, Want};
use crate::spare;
use std::collections::BTreeMap;
use teiji_model::cpus::CpuSet;
use teiji_model::plan::Observed;
use teiji_model::resource::{Resource, Scheduling};

/// Names that a message lists; more are counted.
const LISTED: usize = 4;

/// Refuses what would stand still, and warns of what may starve, where the policy has a part in it.
pub(super) fn check(observed: &Observed, threads: &[Thread], draft: &mut Draft) {
    let unbounded: Vec<&Thread> = threads.iter().filter(|t| spare::unbounded(&t.scheduling)).collect();
    let mut problems = Vec::new();
    for vm in &observed.vms {
        let is_own = |t: &&&Thread| t.vm == vm.process && t.vcpu && fifo(&t.scheduling);
        let vcpus: Vec<&Thread> = unbounded.iter().filter(is_own).copied().collect();
        let may: Vec<CpuSet> = vcpus.iter().map(|t| spare::reach([&t.cpus], &observed.cpus)).collect();
        if spare::one_each(&may) {
            continue;
        }
        let Some(want) = vcpus.iter().find_map(|t| want(t, draft)) else { continue };
        let (name, all) = (shown(&vm.vm.name), spare::reach(&may, &observed.cpus));
        problems.push((
            want.place.clone(),
            format!(
                "the {} real-time vCPUs of {name} would share fewer CPUs than they are ({all} in all): they wait for \
                 each other in loops, and the one that loops never lets the other run: give each a CPU of its own with \
                 vcpu_cpus, or leave the class out",
                vcpus.len()
            ),
        ));
    }
    for (place, message) in &problems {
        draft.problem(place, message.clone());
    }
    if problems.is_empty() {
        warn(observed, &unbounded, draft);
    }
}

/// Who can starve on which CPUs, and who is in the way there.
fn warn(observed: &Observed, unbounded: &[&Thread], draft: &mut Draft) {
    let mut found: BTreeMap<String, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for victim in unbounded {
        let cpus = spare::reach([&victim.cpus], &observed.cpus);
        let in_the_way: Vec<&&Thread> = unbounded.iter().filter(|t| stays(t, victim)).collect();
        let may: Vec<CpuSet> = in_the_way.iter().map(|t| spare::reach([&t.cpus], &cpus)).collect();
        let concerned =
            || want(victim, draft).is_some() || in_the_way.iter().any(|t| want(t, draft).is_some());
        if !spare::all_taken(&may, &cpus) || !concerned() {
            continue;
        }
        let (victims, others) = found.entry(cpus.to_string()).or_default();
        victims.push(named(victim));
        let here = in_the_way.iter().zip(&may).filter(|(_, may)| !may.is_empty());
        for name in here.map(|(t, _)| named(t)) {
            if !others.contains(&name) {
                others.push(name);
            }
        }
    }
    for (cpus, (victims, others)) in found {
        let noun = if cpus.parse::<u32>().is_ok() { "CPU" } else { "CPUs" };
        draft.warnings.push(format!(
            "on {noun} {cpus} {} may get no CPU time at all while these are busy: {}; give them CPUs of their own with \
             vcpu_cpus and worker_cpus",
            listed(&victims),
            listed(&others)
        ));
    }
}

/// Whether `other`, once it runs, need not give way to `victim`, and may be busy for as long as it likes.
fn stays(other: &Thread, victim: &Thread) -> bool {
    let (its, wanted) = (other.scheduling.priority(), victim.scheduling.priority());
    let not_preempted = its > wanted || (its == wanted && fifo(&other.scheduling));
    let waits_for_victim = !other.vcpu && victim.vcpu && other.vm == victim.vm;
    other.task != victim.task && not_preempted && !waits_for_victim
}

fn fifo(scheduling: &Scheduling) -> bool {
    matches!(scheduling, Scheduling::Fifo { .. })
}

/// The part that the policy has in how and where a thread runs.
fn want<'d>(thread: &Thread, draft: &'d Draft) -> Option<&'d Want> {
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
