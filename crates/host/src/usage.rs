//! The kernel's own counters of VMs, at an instant, without any probe: `schedstat` and `stat` of threads, KVM's statistics in debugfs,
//! control groups, taps, qdiscs, `/proc/stat`.

use crate::cgroup::{Hierarchy, group_in, parent};
use crate::root::{Dir, Root};
use crate::rtnl::Rtnl;
use crate::task::Stat;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::Vm;
use teiji_model::usage::{
    CpuUsage, GroupUsage, HostThread, Role, RunState, Sample, TapUsage, ThreadUsage, VmUsage,
};

const BILLION: u64 = 1_000_000_000;
/// The `ioctl` by which a VMM runs a vCPU (`KVM_RUN`, include/uapi/linux/kvm.h).
const KVM_RUN: &str = "0xae80";
/// Threads of the host that are looked at; more are left out.
const MAX_THREADS: usize = 1 << 16;
/// Qdiscs that delay packets whatever the load.
const DELAYING: [&str; 1] = ["netem"];

impl Root {
    /// The counters of these VMs now; VMs and threads that have ended are left out. `thorough`: also what each thread of the host has
    /// run, which takes a few system calls for each, and qdiscs.
    pub fn usage(&self, vms: &[Vm], thorough: bool) -> Sample {
        let hierarchy = Hierarchy::find(self).ok();
        let delaying = if thorough { self.delaying(vms) } else { BTreeMap::new() };
        let usage = |vm: &Vm| Some((vm.pid, self.usage_of(vm, hierarchy.as_ref(), &delaying)?));
        Sample {
            at: now(),
            vms: vms.iter().filter_map(usage).collect(),
            cpus: self.text("proc/stat").map(|text| cpus(&text)).unwrap_or_default(),
            threads: if thorough { self.host_threads() } else { BTreeMap::new() },
        }
    }

    fn usage_of(
        &self,
        vm: &Vm,
        hierarchy: Option<&Hierarchy<'_>>,
        delaying: &BTreeMap<String, String>,
    ) -> Option<VmUsage> {
        let tasks = self.dir(&format!("proc/{}/task", vm.pid))?;
        let vcpus = vm.vcpus.iter().map(|vcpu| (vcpu.tid, Role::Vcpu(vcpu.index)));
        let workers = vm.workers.iter().map(|worker| (worker.tid, Role::Worker));
        let (at, mut threads) = (now(), BTreeMap::new());
        for (tid, role) in vcpus.chain(workers) {
            // A worker that is a kernel thread is no thread of the VMM.
            let own = self.dir(&format!("proc/{tid}/task"));
            let usage = thread(&tasks, tid, role).or_else(|| thread(own.as_ref()?, tid, role));
            if let Some(usage) = usage {
                threads.insert(tid, usage);
            }
        }
        let whole = Stat::read(self, vm.pid)?;
        let names = vm.nics.iter().filter(|nic| nic.ifindex != 0).map(|nic| &nic.tap);
        let packets = |tap: &String| {
            let of = |what: &str| self.number(&format!("sys/class/net/{tap}/statistics/{what}"));
            Some((tap.clone(), TapUsage { taken: of("tx_packets")?, dropped: of("tx_dropped")? }))
        };
        let near: BTreeSet<String> = vm
            .nics
            .iter()
            .flat_map(|nic| {
                let ports = |bridge: &String| self.names(&format!("sys/class/net/{bridge}/brif"));
                nic.bridge.iter().flat_map(ports).chain([nic.tap.clone()]).collect::<Vec<_>>()
            })
            .collect();
        let own: BTreeSet<&String> = vm.nics.iter().map(|nic| &nic.tap).collect();
        // Other VMs' taps and containers' devices on the bridge delay only what these receive.
        let counts = |(device, _): &(String, String)| {
            own.contains(device) || self.exists(&format!("sys/class/net/{device}/device"))
        };
        let delayed = |device: String| delaying.get(&device).map(|kind| (device.clone(), kind.clone()));
        Some(VmUsage {
            at,
            quotas_seen: hierarchy.is_some_and(Hierarchy::has_cpu),
            threads,
            groups: hierarchy.map(|hierarchy| self.groups(hierarchy, vm)).unwrap_or_default(),
            polled: self.polled(vm.pid),
            major_faults: whole.number(12).unwrap_or(0),
            taps: names.filter_map(packets).collect(),
            delaying: near.into_iter().filter_map(delayed).filter(counts).collect(),
        })
    }

    /// How long KVM has polled before it let vCPUs of a VM sleep.
    fn polled(&self, pid: u32) -> Option<u64> {
        let kvm = "sys/kernel/debug/kvm";
        let own = format!("{pid}-");
        let name = self.names(kvm).into_iter().find(|name| name.starts_with(&own))?;
        let of = |what: &str| self.number(&format!("{kvm}/{name}/{what}"));
        Some(of("halt_poll_success_ns")?.saturating_add(of("halt_poll_fail_ns")?))
    }

    /// The groups that limit a VM's threads. Those of libvirt's VMs are in several groups, one for each thread.
    fn groups(&self, hierarchy: &Hierarchy<'_>, vm: &Vm) -> Vec<GroupUsage> {
        let mut all = BTreeSet::new();
        for group in hierarchy.of_threads(vm.pid) {
            let mut at = Some(group.as_str());
            while let Some(path) = at {
                all.insert(path.to_owned());
                at = parent(path);
            }
        }
        let usage = |path: String| {
            let text = |file: &str| self.text(&hierarchy.path(&path, file)).unwrap_or_default();
            let of = |text: &str, key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
                line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
            };
            GroupUsage {
                throttled: of(&text("cpu.stat"), "throttled_usec").saturating_mul(1000),
                frozen: of(&text("cgroup.events"), "frozen") == 1,
                quota: quota(&text("cpu.max")),
                path,
            }
        };
        all.into_iter().filter(|path| path != "/").map(usage).collect()
    }

    /// Devices with a qdisc that delays packets on purpose, with its kind.
    fn delaying(&self, vms: &[Vm]) -> BTreeMap<String, String> {
        if !self.is_real() || vms.iter().all(|vm| vm.nics.is_empty()) {
            return BTreeMap::new();
        }
        let Ok(mut rtnl) = Rtnl::open() else { return BTreeMap::new() };
        let (Ok(qdiscs), Ok(links)) = (rtnl.all_qdiscs(), rtnl.links()) else { return BTreeMap::new() };
        let named = links.into_iter().filter_map(|link| {
            let of = qdiscs.get(&link.index)?;
            let found = of.iter().find(|qdisc| DELAYING.contains(&qdisc.kind.as_str()))?;
            Some((link.name, found.kind.clone()))
        });
        named.collect()
    }

    /// Every thread of the host.
    fn host_threads(&self) -> BTreeMap<u32, HostThread> {
        let mut all = BTreeMap::new();
        for pid in self.numbers("proc") {
            let Some(tasks) = self.dir(&format!("proc/{pid}/task")) else { continue };
            let group = self.text(&format!("proc/{pid}/cgroup"));
            let unit = group.as_deref().and_then(group_in).and_then(|group| unit(&group));
            if all.len() >= MAX_THREADS {
                break;
            }
            for tid in tasks.threads() {
                let Some(stat) = Stat::of_thread(&tasks, tid) else { continue };
                let ran = tasks.text(&format!("{tid}/schedstat")).and_then(|text| schedstat(&text));
                let (Some((ran, ..)), Some(name), Some(cpu)) = (ran, stat.name(), stat.last_cpu()) else {
                    continue;
                };
                let started = stat.number(22).unwrap_or(0);
                let (name, unit) = (name.to_owned(), unit.clone());
                all.insert(tid, HostThread { pid, started, name, unit, ran, cpu });
            }
        }
        all
    }
}

fn now() -> u64 {
    let Ok(at) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return 0 };
    at.tv_sec() as u64 * BILLION + at.tv_nsec() as u64
}

/// The length of the clock ticks of `/proc`, ns.
fn tick() -> u64 {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100).max(1);
    BILLION / per_second as u64
}

fn thread(tasks: &Dir, tid: u32, role: Role) -> Option<ThreadUsage> {
    // First: where the kernel accounts for time without ticks (nohz_full), it brings the counters up to date for this file.
    let stat = Stat::of_thread(tasks, tid)?;
    let (ran, waited, starts) = schedstat(&tasks.text(&format!("{tid}/schedstat"))?)?;
    let state = match stat.field(3)? {
        "R" => RunState::Runnable,
        "T" | "t" => RunState::Stopped,
        "D" => RunState::Disk,
        _ if matches!(role, Role::Vcpu(_)) && in_vmm(&tasks.text(&format!("{tid}/syscall"))) => {
            RunState::InVmm
        }
        _ => RunState::Asleep,
    };
    Some(ThreadUsage {
        role,
        started: stat.number(22)?,
        ran,
        guest: stat.number::<u64>(43).unwrap_or(0).saturating_mul(tick()),
        waited,
        starts,
        state,
        cpu: stat.last_cpu()?,
        group: tasks.text(&format!("{tid}/cgroup")).as_deref().and_then(group_in).unwrap_or_default(),
    })
}

/// Whether a vCPU thread sleeps in another system call than `KVM_RUN`: its `syscall` (proc_pid_syscall(5)) has the number of the system
/// call, then its arguments.
fn in_vmm(syscall: &Option<String>) -> bool {
    let Some(text) = syscall else { return false };
    let mut words = text.split_whitespace();
    words.next().is_some_and(|number| number.parse::<i64>().is_ok_and(|number| number >= 0))
        && words.nth(1).is_some_and(|request| request != KVM_RUN)
}

/// `schedstat` of a thread (Documentation/scheduler/sched-stats.rst): time on a CPU, time that it waited for one, both ns, and how often
/// it began to run.
fn schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// The CPU quota in a `cpu.max`, percent of a CPU; `None` if there is none.
fn quota(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let period: u64 = period.parse().ok().filter(|period| *period > 0)?;
    Some(quota.parse::<u64>().ok()?.saturating_mul(100) / period)
}

/// The CPUs in a `/proc/stat` (proc_stat(5)).
fn cpus(text: &str) -> BTreeMap<u32, CpuUsage> {
    let tick = tick();
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_whitespace();
        let cpu = words.next()?.parse().ok()?;
        let times: Vec<u64> =
            words.take(8).map(|word| word.parse::<u64>().unwrap_or(0).saturating_mul(tick)).collect();
        let [.., irq, softirq, stolen] = times[..] else { return None };
        let total = times.iter().fold(0, |sum: u64, time| sum.saturating_add(*time));
        Some((cpu, CpuUsage { total, interrupts: irq.saturating_add(softirq), stolen }))
    };
    // The first line is the sum, without a number.
    text.lines().filter(|line| !line.starts_with("cpu ")).filter_map(line).collect()
}

/// The unit or container whose control group this is: the last part of its path that is one.
fn unit(group: &str) -> Option<String> {
    let is_unit = |part: &&str| {
        part.ends_with(".service")
            || part.ends_with(".scope")
            || part.starts_with("docker-")
            || part.starts_with("cri-containerd-")
            || part.starts_with("lxc")
    };
    group.rsplit('/').find(is_unit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_threads_and_cpus_are_read() {
        assert_eq!(schedstat("5 6 7\n"), Some((5, 6, 7)));
        assert_eq!(schedstat("5 6\n"), None);
        let cpus = cpus("cpu  1 1 1 1 1 1 1 1 0 0\ncpu3 1 2 3 4 5 6 7 8 9 10\nintr 5\n");
        let tick = tick();
        let usage = CpuUsage { total: 36 * tick, interrupts: 13 * tick, stolen: 8 * tick };
        assert_eq!(cpus.into_iter().collect::<Vec<_>>(), [(3, usage)]);
    }

    #[test]
    fn a_vcpu_that_sleeps_outside_kvm_is_told() {
        let of = |text: &str| in_vmm(&Some(text.to_owned()));
        assert!(!of("16 0x1c 0xae80 0x0 0x1 0x2 0x3 0x7ffd 0x7f00\n"));
        assert!(of("202 0x55d0 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n"));
        // It runs, or sleeps in no system call; and nothing is known.
        assert!(!of("running\n") && !of("-1 0x7ffd 0x7f00\n") && !in_vmm(&None));
    }

    #[test]
    fn quotas_are_percentages_of_a_cpu() {
        assert_eq!(quota("50000 100000\n"), Some(50));
        assert_eq!((quota("max 100000\n"), quota(""), quota("5 0")), (None, None, None));
    }

    #[test]
    fn a_thread_belongs_to_the_innermost_unit() {
        let of = |group: &str| unit(group);
        assert_eq!(of("/system.slice/backup.service").as_deref(), Some("backup.service"));
        assert_eq!(
            of("/user.slice/user-0.slice/user@0.service/app.slice/x.scope/a").as_deref(),
            Some("x.scope")
        );
        assert_eq!(of("/"), None);
    }
}
