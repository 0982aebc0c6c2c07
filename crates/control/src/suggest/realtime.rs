//! Which VMs can be real-time on this host, and on which CPUs.
//!
//! ```text
//! VMs that wait for a CPU ──► each for itself: readable, guarded, not real-time yet
//!                         ──► together: is a CPU left?  yes: no pinning
//!                               │ no: is there a CPU that no other real-time thread may use? pin to the others
//!                               └ no: leave out the last VM, and repeat
//!                         ──► would the vCPUs of a VM then wait for each other? leave it out, and repeat
//! ```
//! The rules are those of the plan ([`housekeeping`]), for all VMs at once: a class may be possible for each VM alone, but not
//! for all together.

use crate::housekeeping;
use crate::plan::reason;
use teiji_model::cpus::CpuSet;
use teiji_model::observed::{Observed, ObservedVm};
use teiji_model::operator::LIMIT_REAL_TIME;
use teiji_model::policy::DEFAULT_PRIORITY;
use teiji_model::resource::{Resource, Scheduling, Task, Value};
use teiji_model::stage::Actor;

/// A VM some of whose threads wait for a CPU.
pub(super) struct RealtimeCandidate<'a> {
    pub vm: &'a ObservedVm,
    /// The kinds of threads that wait.
    pub of: Vec<Actor>,
}

/// What a VM needs in addition to `class = "realtime"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RealtimeClass {
    /// `priority`, if some of its threads already have a higher one than the default.
    pub priority: Option<u8>,
    /// `vcpu_cpus`.
    pub vcpu_cpus: Option<CpuSet>,
    /// `worker_cpus`.
    pub worker_cpus: Option<CpuSet>,
    /// The number of threads and of the CPUs that they share, if there are fewer CPUs.
    pub crowded: Option<(usize, usize)>,
}

/// The greatest priority that a policy can ask for: that of workers is one higher.
const MOST: u8 = 98;

/// Decides for all VMs; the results are in their order, each with the reason if the VM gets no class.
pub(super) fn decide(
    candidates: &[RealtimeCandidate<'_>],
    observed: &Observed,
) -> Vec<Result<RealtimeClass, String>> {
    let mut all: Vec<Result<RealtimeClass, String>> =
        candidates.iter().map(|candidate| class_alone(candidate, observed)).collect();
    let mut chosen: Vec<usize> = (0..all.len()).filter(|i| all[*i].is_ok()).collect();
    loop {
        let vms: Vec<&ObservedVm> = chosen.iter().map(|i| candidates[*i].vm).collect();
        let Some(housekeeping) = fit_together(&vms, observed) else {
            let Some(last) = chosen.pop() else { return all };
            all[last] = Err(format!(
                "class = \"realtime\" would let real-time threads take every online CPU ({}) at once, and \
                 pinning this VM's threads leaves none free: move work to another host, or remove real-time classes",
                observed.cpus
            ));
            continue;
        };
        let mut pinned = Vec::new();
        let mut refused = None;
        for (at, i) in chosen.iter().enumerate() {
            let Ok(mut class) = all[*i].clone() else { continue };
            pin(&mut class, candidates[*i].vm, housekeeping, observed);
            match would_stand_still(&class, candidates[*i].vm, observed) {
                None => pinned.push((*i, class)),
                Some(why) => refused = Some((at, why)),
            }
        }
        // The real-time threads that this VM already has stay where they are, and the other VMs have to leave a CPU
        // free of them, too.
        if let Some((at, why)) = refused {
            all[chosen.remove(at)] = Err(why);
            continue;
        }
        for (i, class) in pinned {
            all[i] = Ok(class);
        }
        return all;
    }
}

/// Whether and how a VM can be real-time, without regard to other VMs.
fn class_alone(candidate: &RealtimeCandidate<'_>, observed: &Observed) -> Result<RealtimeClass, String> {
    if observed.realtime_guard.is_none() {
        return Err(format!(
            "class = \"realtime\" would help, but nothing keeps a real-time thread that never sleeps from starving \
             this host: {LIMIT_REAL_TIME} first"
        ));
    }
    let mut waiting = Vec::new();
    let mut highest = 0;
    for (actor, tasks) in [(Actor::Vcpu, &candidate.vm.vcpus), (Actor::Worker, &candidate.vm.workers)] {
        for task in tasks {
            let setting = Resource::ThreadScheduling(*task);
            let Some(Value::Scheduling(scheduling)) = observed.settings.get(&setting) else {
                return Err(format!(
                    "class = \"realtime\" would help, but {setting} cannot be read, so it could not be restored: {}",
                    reason(&setting, observed)
                ));
            };
            match scheduling {
                Scheduling::Deadline { .. } => {
                    return Err(
                        "some of its threads have deadlines already (SCHED_DEADLINE): give those a longer \
                                runtime or a shorter period, and the others as well"
                            .to_owned(),
                    );
                }
                Scheduling::Fifo { priority } | Scheduling::RoundRobin { priority } => {
                    // A worker's priority is one higher than that in the policy.
                    let asked = if actor == Actor::Worker { priority.saturating_sub(1) } else { *priority };
                    highest = highest.max(asked.min(MOST));
                }
                _ => {}
            }
            if candidate.of.contains(&actor) {
                waiting.push(*scheduling);
            }
        }
    }
    if waiting.is_empty() {
        return Err("it is not known which threads are the vCPUs that wait for a CPU: start QEMU with \
                    -name guest=NAME,debug-threads=on"
            .to_owned());
    }
    if waiting.iter().all(housekeeping::unbounded) {
        return Err(format!(
            "the waiting threads are real-time already ({}): so are the threads that they wait for, or a limit stops \
             them (the quota of their control group); give them CPUs of their own with vcpu_cpus and worker_cpus",
            waiting[0]
        ));
    }
    Ok(RealtimeClass {
        priority: Some(highest).filter(|p| *p > DEFAULT_PRIORITY),
        ..RealtimeClass::default()
    })
}

/// The CPUs that a thread may run on, if that can be read.
fn affinity(task: &Task, observed: &Observed) -> Option<CpuSet> {
    match observed.settings.get(&Resource::ThreadCpus(*task)) {
        Some(Value::Cpus(cpus)) => Some(cpus.clone()),
        _ => None,
    }
}

fn tasks(vm: &ObservedVm) -> impl Iterator<Item = &Task> {
    vm.vcpus.iter().chain(&vm.workers)
}

/// Whether the threads of these VMs can all be real-time: `Some(None)` without pinning, `Some(Some(cpu))` if `cpu` is
/// kept free of them, `None` if not.
fn fit_together(vms: &[&ObservedVm], observed: &Observed) -> Option<Option<u32>> {
    let online = &observed.cpus;
    if vms.is_empty() {
        return Some(None);
    }
    let chosen = |vm: &ObservedVm| vms.iter().any(|v| v.process == vm.process);
    let real_time = |task: &Task| match observed.settings.get(&Resource::ThreadScheduling(*task)) {
        Some(Value::Scheduling(scheduling)) => housekeeping::unbounded(scheduling),
        _ => false,
    };
    let others = observed.vms.iter().filter(|vm| !chosen(vm)).flat_map(tasks).filter(|task| real_time(task));
    let cpus = |task: &Task| affinity(task, observed).unwrap_or_else(|| online.clone());
    let others: Vec<CpuSet> = others.map(cpus).collect();
    let own: Vec<&Task> = vms.iter().flat_map(|vm| tasks(vm)).collect();
    let present: Vec<CpuSet> = own.iter().map(|task| cpus(task)).collect();
    let all: Vec<&CpuSet> = others.iter().chain(&present).collect();
    if !housekeeping::leave_no_cpu(&all, online) {
        return Some(None);
    }
    // Threads of other VMs are not pinned here, nor are those whose CPUs could not be restored.
    let unmoved = own.iter().filter(|task| affinity(task, observed).is_none()).map(|_| online);
    let free = online.without(&housekeeping::reachable_cpus(others.iter().chain(unmoved), online));
    if online.len() < 2 {
        return None;
    }
    let last: Vec<u32> = vms
        .iter()
        .flat_map(|vm| vm.vm.vcpus.iter().map(|v| v.last_cpu).chain(vm.vm.workers.iter().map(|w| w.last_cpu)))
        .collect();
    // The CPU from which the fewest threads have to move away.
    let driven = |cpu: u32| {
        let only = present.iter().filter(|cpus| cpus.iter().all(|c| c == cpu)).count();
        (only, last.iter().filter(|l| **l == cpu).count(), cpu)
    };
    free.iter().min_by_key(|cpu| driven(*cpu)).map(Some)
}

/// Why the plan would refuse the class, if the VM's vCPUs cannot each have their own CPU.
fn would_stand_still(class: &RealtimeClass, vm: &ObservedVm, observed: &Observed) -> Option<String> {
    let online = &observed.cpus;
    let own = |task: &Task| {
        let pinned = class.vcpu_cpus.clone().or_else(|| affinity(task, observed));
        housekeeping::reachable_cpus([&pinned.unwrap_or_else(|| online.clone())], online)
    };
    let may: Vec<CpuSet> = vm.vcpus.iter().map(own).collect();
    (!housekeeping::can_all_run(&may)).then(|| {
        format!(
            "class = \"realtime\" would let its {} vCPUs share fewer CPUs ({}), and the vCPUs of a guest \
             wait for each other in loops: one that loops would never let another run; give the guest fewer vCPUs, or \
             more CPUs with vcpu_cpus",
            may.len(),
            housekeeping::reachable_cpus(&may, online)
        )
    })
}

/// Pins a VM's threads to CPUs other than the spare one.
fn pin(class: &mut RealtimeClass, vm: &ObservedVm, housekeeping: Option<u32>, observed: &Observed) {
    let online = &observed.cpus;
    let mut reachable_cpus = CpuSet::default();
    for (tasks, line) in [(&vm.vcpus, &mut class.vcpu_cpus), (&vm.workers, &mut class.worker_cpus)] {
        let present: Vec<CpuSet> =
            tasks.iter().map(|t| affinity(t, observed).unwrap_or_else(|| online.clone())).collect();
        let mut may = housekeeping::reachable_cpus(&present, online);
        if let Some(housekeeping) = housekeeping.filter(|cpu| may.contains(*cpu)) {
            let housekeeping = CpuSet::from_iter([housekeeping]);
            may = may.without(&housekeeping);
            if may.is_empty() {
                may = online.without(&housekeeping);
            }
            *line = Some(may.clone());
        }
        reachable_cpus = reachable_cpus.union(&may);
    }
    let threads = tasks(vm).count();
    class.crowded = (threads > reachable_cpus.len()).then_some((threads, reachable_cpus.len()));
}
