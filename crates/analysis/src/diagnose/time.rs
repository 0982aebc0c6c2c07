//! Where the time of a VM's threads went.
//!
//! Between two samples of a thread the kernel's counters tell how long it ran and waited. The rest is what its state was at both ends;
//! where the ends differ, half of it is of each. What a CPU quota took is part of what the thread waited, by these counters.

use std::collections::{BTreeMap, BTreeSet};
use teiji_model::diagnosis::ThreadTime;
use teiji_model::host::Vm;
use teiji_model::usage::{GroupUsage, Role, RunState, Sample, ThreadUsage, VmUsage};

/// The time of each thread that was there from the first sample to the last one: vCPUs by index, then workers.
pub(super) fn of(vm: &Vm, samples: &[Sample]) -> Vec<(Role, ThreadTime)> {
    let usages: Vec<(u64, &VmUsage)> =
        samples.iter().filter_map(|sample| sample.vms.get(&vm.pid)).map(|usage| (usage.at, usage)).collect();
    let mut all: BTreeMap<(Role, u32), ThreadTime> = BTreeMap::new();
    let is_there = |tid: &u32, thread: &ThreadUsage| {
        usages.iter().all(|(_, vm)| vm.threads.get(tid).is_some_and(|other| other.started == thread.started))
    };
    if let Some((_, first)) = usages.first() {
        for (tid, thread) in first.threads.iter().filter(|(tid, thread)| is_there(tid, thread)) {
            let name = match thread.role {
                Role::Vcpu(index) => format!("vCPU {index}"),
                Role::Worker => "vhost worker".to_owned(),
            };
            all.insert((thread.role, *tid), ThreadTime { name, tid: *tid, ..ThreadTime::default() });
        }
    }
    for two in usages.windows(2) {
        let [(from, first), (to, last)] = two else { continue };
        let length = to.saturating_sub(*from);
        let mut bins: BTreeMap<(Role, u32), ThreadTime> = BTreeMap::new();
        for key in all.keys() {
            if let (Some(first), Some(last)) = (first.threads.get(&key.1), last.threads.get(&key.1)) {
                bins.insert(*key, between(first, last, length));
            }
        }
        frozen(first, last, &mut bins);
        throttled(first, last, &mut bins);
        for (key, sum) in &mut all {
            if let Some(bin) = bins.get(key) {
                add(sum, bin);
            }
        }
    }
    all.into_iter().map(|((role, _), time)| (role, time)).collect()
}

fn between(first: &ThreadUsage, last: &ThreadUsage, length: u64) -> ThreadTime {
    let ran = last.ran.saturating_sub(first.ran).min(length);
    let starts = last.starts.saturating_sub(first.starts);
    let mut waited = last.waited.saturating_sub(first.waited).min(length - ran);
    let rest = length - ran - waited;
    let mut time = ThreadTime { length, ran, starts, ..ThreadTime::default() };
    let cpus: BTreeSet<u32> = [first.cpu, last.cpu].into();
    time.cpus = cpus.into_iter().collect();
    time.guest = last.guest.saturating_sub(first.guest).min(ran);
    // A wait counts when it ends. One that has gone on since the sample before has begun nothing.
    let still = |state: RunState| starts == 0 && first.state == state && last.state == state;
    if still(RunState::Runnable) && ran == 0 {
        waited += rest;
    } else {
        for (state, part) in [(first.state, rest / 2), (last.state, rest - rest / 2)] {
            *match state {
                RunState::Stopped => &mut time.stopped,
                // Else the VMM did something for the guest just then.
                RunState::InVmm if !still(RunState::InVmm) => &mut time.slept,
                RunState::InVmm => &mut time.in_vmm,
                RunState::Disk => &mut time.disk,
                RunState::Asleep | RunState::Runnable => &mut time.slept,
            } += part;
        }
    }
    time.waited = waited;
    time
}

/// Threads of a group that was frozen at both ends sleep for that reason.
fn frozen(first: &VmUsage, last: &VmUsage, bins: &mut BTreeMap<(Role, u32), ThreadTime>) {
    let is_frozen = |vm: &VmUsage| vm.groups.iter().any(|group| group.frozen);
    if !is_frozen(first) || !is_frozen(last) {
        return;
    }
    for ((role, _), time) in bins {
        // A worker that is a kernel thread is not frozen, but has nothing to do.
        if *role != Role::Worker {
            for part in [&mut time.slept, &mut time.in_vmm, &mut time.waited] {
                time.stopped += std::mem::take(part);
            }
        }
    }
}

/// What the quotas of groups took of the threads, as far as these waited.
fn throttled(first: &VmUsage, last: &VmUsage, bins: &mut BTreeMap<(Role, u32), ThreadTime>) {
    fn grown<'a>(first: &VmUsage, group: &'a GroupUsage) -> Option<(&'a str, u64)> {
        let before = first.groups.iter().find(|before| before.path == group.path)?;
        Some((&group.path, group.throttled.saturating_sub(before.throttled)))
    }
    // Groups one below the other throttle the same threads: that with the most counts, for those that it limits most.
    let grown: Vec<(&str, u64)> =
        last.groups.iter().filter_map(|group| grown(first, group)).filter(|(_, ns)| *ns > 0).collect();
    let limit = |tid: &u32| {
        let group = last.threads.get(tid)?.group.as_str();
        let is_in = |path: &str| {
            group.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        grown.iter().filter(|(path, _)| is_in(path)).max_by_key(|(_, ns)| *ns)
    };
    let mut wanted: BTreeMap<&str, u64> = BTreeMap::new();
    for ((_, tid), time) in bins.iter() {
        if let Some((path, _)) = limit(tid) {
            *wanted.entry(path).or_default() += time.ran + time.waited;
        }
    }
    for ((_, tid), time) in bins.iter_mut() {
        let Some((path, ns)) = limit(tid) else { continue };
        let all = wanted.get(path).copied().unwrap_or(0).max(1);
        let part = u128::from(*ns) * u128::from(time.ran + time.waited) / u128::from(all);
        let taken = u64::try_from(part).unwrap_or(u64::MAX).min(time.waited);
        time.waited -= taken;
        time.throttled += taken;
    }
}

fn add(sum: &mut ThreadTime, bin: &ThreadTime) {
    sum.length += bin.length;
    sum.ran += bin.ran;
    sum.guest += bin.guest;
    sum.waited += bin.waited;
    sum.starts += bin.starts;
    sum.throttled += bin.throttled;
    sum.stopped += bin.stopped;
    sum.in_vmm += bin.in_vmm;
    sum.disk += bin.disk;
    sum.slept += bin.slept;
    let cpus: BTreeSet<u32> = sum.cpus.iter().chain(&bin.cpus).copied().collect();
    sum.cpus = cpus.into_iter().collect();
}
