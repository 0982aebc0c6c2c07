//! Where the time of a VM's threads went.
//!
//! Between two samples of a thread the kernel's counters tell how long it ran and waited. The rest is what its state was at both ends;
//! where the ends differ, half of it is of each. What a CPU quota took is part of what the thread waited, by these counters.

use std::collections::{BTreeMap, BTreeSet};
use teiji_model::census::Census;
use teiji_model::diagnosis::{Bin, ThreadTime, Times};
use teiji_model::host::Vm;
use teiji_model::usage::{GroupUsage, Role, RunState, Sample, TapUsage, ThreadUsage, VmUsage};

/// What threads did between two samples, by role and thread id.
type Threads = BTreeMap<(Role, u32), Times>;

/// Where a VM's time went.
#[derive(Default)]
pub(super) struct Time {
    /// Of each thread that was there from the first sample to the last one: vCPUs by index, then workers.
    pub(super) threads: Vec<(Role, ThreadTime)>,
    /// The same from each sample to the next.
    pub(super) series: Vec<Bin>,
}

pub(super) fn of(vm: &Vm, samples: &[Sample]) -> Time {
    let usages: Vec<&VmUsage> = samples.iter().filter_map(|sample| sample.vms.get(&vm.pid)).collect();
    let Some(begun) = usages.first() else { return Time::default() };
    let stays = |tid: &u32, thread: &ThreadUsage| {
        usages.iter().all(|vm| vm.threads.get(tid).is_some_and(|other| other.started == thread.started))
    };
    let of = |(tid, thread): (&u32, &ThreadUsage)| {
        let name = match thread.role {
            Role::Vcpu(index) => format!("vCPU {index}"),
            Role::Worker => "vhost worker".to_owned(),
        };
        ((thread.role, *tid), ThreadTime { name, tid: *tid, ..ThreadTime::default() })
    };
    let staying = begun.threads.iter().filter(|(tid, thread)| stays(tid, thread));
    let mut threads: BTreeMap<(Role, u32), ThreadTime> = staying.map(of).collect();
    let mut series: Vec<Bin> = Vec::new();
    // What each thread did in the bin before, and how much of what it ran there is assumed.
    let mut former: BTreeMap<(Role, u32), (Times, u64)> = BTreeMap::new();
    for two in usages.windows(2) {
        let [first, last] = two else { continue };
        let length = last.at.saturating_sub(first.at);
        let (mut times, mut assumed) = (Threads::new(), BTreeMap::new());
        for (key, thread) in &mut threads {
            if let (Some(first), Some(last)) = (first.threads.get(&key.1), last.threads.get(&key.1)) {
                let (of_thread, assumed_ran) = between(first, last, length);
                times.insert(*key, of_thread);
                assumed.insert(*key, assumed_ran);
                let cpus: BTreeSet<u32> = thread.cpus.iter().copied().chain([first.cpu, last.cpu]).collect();
                thread.cpus = cpus.into_iter().collect();
            }
        }
        frozen(first, last, &mut times);
        throttled(first, last, &mut times);
        for (key, (times, assumed)) in &former {
            let Some(late) = Late::of(first.threads.get(&key.1), last.threads.get(&key.1), length) else {
                continue;
            };
            let of_thread = threads.get_mut(key).map(|thread| &mut thread.times);
            let of_bin = series.last_mut().map(|bin| together(bin, key.0));
            for sum in of_thread.into_iter().chain(of_bin) {
                late.correct(times, *assumed, sum);
            }
        }
        let mut bin = Bin { at: first.at.saturating_sub(begun.at), ..packets(first, last) };
        for (key, times) in &times {
            if let Some(counted) = counted(first.threads.get(&key.1), last.threads.get(&key.1)) {
                bin.census = Some(bin.census.unwrap_or_default().and(&counted));
            }
            together(&mut bin, key.0).add(times);
            if let Some(thread) = threads.get_mut(key) {
                thread.times.add(times);
            }
        }
        series.push(bin);
        former = times
            .into_iter()
            .map(|(key, times)| (key, (times, assumed.get(&key).copied().unwrap_or(0))))
            .collect();
    }
    // Not the sum of the series: what goes on at a look is estimated.
    for (key, thread) in &mut threads {
        thread.census =
            usages.last().and_then(|last| counted(begun.threads.get(&key.1), last.threads.get(&key.1)));
    }
    Time { threads: threads.into_iter().map(|((role, _), time)| (role, time)).collect(), series }
}

/// What the threads of this role did in a bin.
fn together(bin: &mut Bin, role: Role) -> &mut Times {
    if role == Role::Worker { &mut bin.workers } else { &mut bin.vcpus }
}

/// What the kernel counted in a bin although it was before: it counts what a thread runs at the ticks of its CPU, and one that a hypervisor
/// lets stand still has none; a wait it counts when it ends.
struct Late {
    ran: u64,
    waited: u64,
    /// It has waited for all of this bin: it had no CPU when it began.
    lost_cpu: bool,
}

impl Late {
    fn of(first: Option<&ThreadUsage>, last: Option<&ThreadUsage>, length: u64) -> Option<Late> {
        let (first, last) = (first?, last?);
        let (ran, waited) = (last.ran.saturating_sub(first.ran), last.waited.saturating_sub(first.waited));
        let stands = last.starts == first.starts && last.state == RunState::Runnable;
        Some(Late {
            ran: ran.saturating_sub(length),
            waited: waited.saturating_sub(length.saturating_sub(ran)),
            lost_cpu: ran == 0 && stands,
        })
    }

    /// Corrects a sum of which these times of the bin before are a part.
    fn correct(&self, times: &Times, assumed: u64, sum: &mut Times) {
        let mut slept = times.slept;
        let mut take = |most: u64| {
            let taken = most.min(slept);
            slept -= taken;
            taken
        };
        let ran = take(self.ran);
        let not_run = if self.lost_cpu { assumed } else { self.waited.min(assumed) };
        let waited = take(self.waited.saturating_sub(not_run));
        // A recording may have any numbers: a sum may have reached its limit.
        sum.slept = sum.slept.saturating_sub(ran).saturating_sub(waited);
        sum.ran = sum.ran.saturating_sub(not_run).saturating_add(ran);
        sum.waited = sum.waited.saturating_add(waited).saturating_add(not_run);
    }
}

/// What probes counted of a thread between two samples.
fn counted(first: Option<&ThreadUsage>, last: Option<&ThreadUsage>) -> Option<Census> {
    Some(last?.census.as_deref()?.since(first?.census.as_deref()?))
}

/// The packets for the guest, on the taps that were there at both ends.
fn packets(first: &VmUsage, last: &VmUsage) -> Bin {
    let mut bin = Bin::default();
    for (tap, TapUsage { taken, dropped }) in &last.taps {
        if let Some(before) = first.taps.get(tap) {
            bin.taken = bin.taken.saturating_add(taken.saturating_sub(before.taken));
            bin.dropped = bin.dropped.saturating_add(dropped.saturating_sub(before.dropped));
        }
    }
    bin
}

/// What a thread did between two samples, and how much of what it ran is assumed.
fn between(first: &ThreadUsage, last: &ThreadUsage, length: u64) -> (Times, u64) {
    let ran = last.ran.saturating_sub(first.ran).min(length);
    let starts = last.starts.saturating_sub(first.starts);
    let mut waited = last.waited.saturating_sub(first.waited).min(length - ran);
    let rest = length - ran - waited;
    let mut time = Times { length, ran, starts, ..Times::default() };
    time.guest = last.guest.saturating_sub(first.guest).min(ran);
    // A wait counts when it ends. One that has gone on since the sample before has begun nothing.
    let still = |state: RunState| starts == 0 && first.state == state && last.state == state;
    let mut assumed = 0;
    if still(RunState::Runnable) {
        // One that ran had a CPU when this began, and nothing says yet that it lost it: see Late.
        *if ran == 0 { &mut waited } else { &mut assumed } += rest;
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
    time.ran += assumed;
    (time, assumed)
}

/// Threads of a group that was frozen at both ends sleep for that reason.
fn frozen(first: &VmUsage, last: &VmUsage, threads: &mut Threads) {
    let is_frozen = |vm: &VmUsage| vm.groups.iter().any(|group| group.frozen);
    if !is_frozen(first) || !is_frozen(last) {
        return;
    }
    for ((role, _), time) in threads {
        // A worker that is a kernel thread is not frozen, but has nothing to do.
        if *role != Role::Worker {
            for part in [&mut time.slept, &mut time.in_vmm, &mut time.waited] {
                time.stopped += std::mem::take(part);
            }
        }
    }
}

/// What the quotas of groups took of the threads, as far as these waited.
fn throttled(first: &VmUsage, last: &VmUsage, threads: &mut Threads) {
    let before: BTreeMap<&str, u64> =
        first.groups.iter().map(|group| (group.path.as_str(), group.throttled)).collect();
    let grown = |group: &GroupUsage| Some(group.throttled.saturating_sub(*before.get(group.path.as_str())?));
    // Groups one below the other throttle the same threads: that with the most counts, for those that it limits most.
    let grown: Vec<(&GroupUsage, u64)> = last
        .groups
        .iter()
        .filter_map(|group| Some((group, grown(group)?)))
        .filter(|(_, ns)| *ns > 0)
        .collect();
    let limit = |tid: &u32| {
        let thread = last.threads.get(tid)?;
        let limits = grown.iter().filter(|(group, _)| group.contains(&thread.group));
        limits.max_by_key(|(_, ns)| *ns).map(|(group, ns)| (group.path.as_str(), *ns))
    };
    let mut wanted: BTreeMap<&str, u64> = BTreeMap::new();
    for ((_, tid), time) in threads.iter() {
        if let Some((path, _)) = limit(tid) {
            let wanted = wanted.entry(path).or_default();
            *wanted = wanted.saturating_add(time.ran + time.waited);
        }
    }
    for ((_, tid), time) in threads.iter_mut() {
        let Some((path, ns)) = limit(tid) else { continue };
        let all = wanted.get(path).copied().unwrap_or(0).max(1);
        let part = u128::from(ns) * u128::from(time.ran + time.waited) / u128::from(all);
        let taken = u64::try_from(part).unwrap_or(u64::MAX).min(time.waited);
        time.waited -= taken;
        time.throttled += taken;
    }
}
