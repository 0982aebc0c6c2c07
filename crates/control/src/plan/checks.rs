//! Whether the wanted settings are acceptable on this host.
//!
//! The checks are about the host after the plan. Its settings are the wanted ones; the others have the value to which
//! they return, or their present value.

use super::names::shown;
use super::{Draft, HostAndHeld, WantedSetting, packets, starvation, steps, wanted};
use crate::housekeeping;
use std::collections::BTreeMap;
use teiji_model::cpus::CpuSet;
use teiji_model::observed::Observed;
use teiji_model::operator::LIMIT_REAL_TIME;
use teiji_model::policy::SourceLocation;
use teiji_model::resource::{Resource, ResourceError, Scheduling, Task, Value};

/// The share of the CPUs that all `SCHED_DEADLINE` threads may have together, millionths: the kernel's default of
/// `sched_rt_runtime_us` / `sched_rt_period_us`.
const SCHED_DEADLINE_SHARE: u128 = 950_000;

/// Adds every problem of the wanted settings on this host.
pub(super) fn check(host: HostAndHeld<'_>, draft: &mut Draft) {
    let observed = host.observed;
    readable(observed, draft);
    guard(observed, draft);
    let threads = threads(host, draft);
    housekeeping_cpu(observed, &threads, draft);
    check_sched_deadline(observed, &threads, draft);
    starvation::check(observed, &threads, draft);
    packets::check(observed, &threads, draft);
}

/// A setting that cannot be read could not be restored, so it is not changed. One that is offline is left out: it has no
/// value and no effect now.
fn readable(observed: &Observed, draft: &mut Draft) {
    let warnings = &mut draft.warnings;
    draft.wants.retain(|want| match observed.settings.error(&want.setting) {
        Some(why @ ResourceError::Offline(_)) => {
            warnings.push(format!("`{}` leaves the {} as it is: {why}", want.reason, want.setting));
            false
        }
        _ => true,
    });
    let mut missing: Vec<(SourceLocation, String, Vec<String>)> = Vec::new();
    for want in draft.wants.iter().filter(|w| !observed.settings.has_value(&w.setting)) {
        let why = reason(&want.setting, observed);
        let name = format!("{} ({})", want.setting, want.whose);
        match missing.iter_mut().find(|(location, w, _)| *location == want.location && *w == why) {
            Some((_, _, names)) => names.push(name),
            None => missing.push((want.location.clone(), why, vec![name])),
        }
    }
    for (location, why, names) in missing {
        let more = match names.len() {
            1 => String::new(),
            n => format!(" and {} more like it", n - 1),
        };
        let name = &names[0];
        draft.problem(&location, format!("{name}{more} cannot be read, so it could not be restored: {why}"));
    }
}

/// Why a resource has no value, if the observation says so.
pub(crate) fn reason(resource: &Resource, observed: &Observed) -> String {
    observed.settings.error(resource).map_or_else(
        || "this host does not show it; `teiji doctor` says what is missing".to_owned(),
        |why| why.to_string().trim_end_matches('.').to_owned(),
    )
}

/// The first wanted setting that gives a thread such a class.
fn first_with(draft: &Draft, is: fn(&Scheduling) -> bool) -> Option<&WantedSetting> {
    draft.wants.iter().find(|w| matches!(&w.wanted, Value::Scheduling(s) if is(s)))
}

fn guard(observed: &Observed, draft: &mut Draft) {
    let Some(location) = first_with(draft, Scheduling::is_real_time).map(|w| w.location.clone()) else {
        return;
    };
    if observed.realtime_guard.is_none() {
        let message = format!(
            "a real-time thread that never sleeps would starve the host: {LIMIT_REAL_TIME}, or remove the class"
        );
        draft.problem(&location, message);
    }
}

/// A VM's thread after the plan.
pub(super) struct Thread {
    pub task: Task,
    /// `vCPU 0 of sip1`; printable.
    pub name: String,
    /// The process of its VM.
    pub vm: Task,
    /// Whether it is a vCPU thread rather than a vhost worker.
    pub vcpu: bool,
    pub scheduling: Scheduling,
    /// All online CPUs if not known.
    pub cpus: CpuSet,
}

fn threads(host: HostAndHeld<'_>, draft: &Draft) -> Vec<Thread> {
    let observed = host.observed;
    let after = |setting: &Resource| {
        draft.wanted(setting).cloned().or_else(|| steps::unwanted(setting, host).cloned())
    };
    let tasks = observed.vms.iter().flat_map(|vm| {
        let all = wanted::tasks(vm, &shown(&vm.vm.name));
        all.into_iter().map(move |(task, name, vcpu)| (task, name, vcpu, vm.process))
    });
    let thread = |(task, name, vcpu, vm): (Task, String, bool, Task)| {
        let Some(Value::Scheduling(scheduling)) = after(&Resource::ThreadScheduling(task)) else {
            return None;
        };
        let cpus = match after(&Resource::ThreadCpus(task)) {
            Some(Value::Cpus(cpus)) => cpus,
            _ => observed.cpus.clone(),
        };
        Some(Thread { task, name, vm, vcpu, scheduling, cpus })
    };
    tasks.filter_map(thread).collect()
}

/// Threads of `SCHED_FIFO` and `SCHED_RR` run as long as they like, so they must not be able to take every CPU at once.
/// ([`check_sched_deadline`] limits `SCHED_DEADLINE`.)
fn housekeeping_cpu(observed: &Observed, threads: &[Thread], draft: &mut Draft) {
    let Some(location) = first_with(draft, housekeeping::unbounded).map(|w| w.location.clone()) else {
        return;
    };
    let real_time: Vec<&CpuSet> =
        threads.iter().filter(|t| housekeeping::unbounded(&t.scheduling)).map(|t| &t.cpus).collect();
    if housekeeping::leave_no_cpu(&real_time, &observed.cpus) {
        let (count, online) = (real_time.len(), &observed.cpus);
        draft.problem(
            &location,
            format!(
                "{count} real-time threads could take every online CPU ({online}) at once, and nothing else \
                 would run: pin them with vcpu_cpus and worker_cpus so that a CPU is left"
            ),
        );
    }
}

/// Reports in advance what the kernel would refuse (`sched_setattr(2)`): it admits `SCHED_DEADLINE` threads only if
/// their bandwidth fits (kernel/sched/deadline.c) and if they may run on every CPU.
fn check_sched_deadline(observed: &Observed, threads: &[Thread], draft: &mut Draft) {
    pinned(observed, threads, draft);
    let Some(location) = first_with(draft, Scheduling::is_sched_deadline).map(|w| w.location.clone()) else {
        return;
    };
    let asked: u128 = threads
        .iter()
        .filter_map(|t| match t.scheduling {
            // A period of 0 stands for the deadline.
            Scheduling::Deadline { runtime, deadline, period } => {
                let period = u128::from(if period == 0 { deadline } else { period }).max(1);
                Some((u128::from(runtime) * 1_000_000).div_ceil(period))
            }
            _ => None,
        })
        .sum();
    let most = SCHED_DEADLINE_SHARE * observed.cpus.len() as u128;
    if asked > most {
        let [asked, most] = [asked, most].map(|millionths| millionths as f64 / 1e6);
        draft.problem(
            &location,
            format!(
                "the deadline threads ask for {asked:.2} CPUs together (runtime / period of each vCPU and vhost \
                 worker), but the kernel gives them {most:.2} at most, 95 % of {}: shorten runtime or lengthen \
                 period",
                observed.cpus.len()
            ),
        );
    }
}

/// Threads that are `SCHED_DEADLINE` after the plan, although they may not run on every CPU.
fn pinned(observed: &Observed, threads: &[Thread], draft: &mut Draft) {
    let mut pinned: BTreeMap<(String, usize, usize), (SourceLocation, Vec<String>)> = BTreeMap::new();
    let narrow = |t: &&Thread| t.scheduling.is_sched_deadline() && !observed.cpus.without(&t.cpus).is_empty();
    for thread in threads.iter().filter(narrow) {
        let of = |setting: Resource| draft.wants.iter().find(|w| w.setting == setting);
        let want =
            of(Resource::ThreadScheduling(thread.task)).or_else(|| of(Resource::ThreadCpus(thread.task)));
        let Some(want) = want else { continue };
        let key = (want.location.file.clone(), want.location.line, want.location.column);
        let (_, names) = pinned.entry(key).or_insert_with(|| (want.location.clone(), Vec::new()));
        names.push(format!("{} to {}", want.whose, thread.cpus));
    }
    for (location, names) in pinned.into_values() {
        let message = format!(
            "a deadline thread must be allowed to run on every CPU (sched(7)), but these are pinned: \
             {}: allow them on {} first, or use class = \"realtime\"",
            names.join(", "),
            observed.cpus
        );
        draft.problem(&location, message);
    }
}
