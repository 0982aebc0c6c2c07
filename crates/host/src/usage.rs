//! The kernel's own counters of VMs, at an instant, without any probe: `schedstat` and `stat` of threads, KVM's statistics in debugfs,
//! control groups, taps, qdiscs, `/proc/stat`.
//!
//! # Cost
//! A look is mostly system calls. Files that each look reads stay open, so that one costs one call; what can hardly have changed is
//! read only where it matters:
//!
//! | what | read |
//! | --- | --- |
//! | `schedstat` and `stat` of a VM's threads, packets of its taps | by each look |
//! | the system call of a vCPU thread | if it has not begun to run since the look before |
//! | whether a group is frozen | if no vCPU thread in it has begun to run since the look before |
//! | what a group's quota took | if it has one, or a thread of the VM has waited for a CPU |
//! | what KVM polled, page faults, qdiscs, CPUs | when an observation begins or ends |
//! | names of the VMM's threads | when an observation begins or ends, if their number has changed or they were read 15 s ago |
//! | which groups, quotas and taps there are | when an observation begins or ends, and they have been known for 15 s |
//! | other threads of the host | if somebody wants to know: it takes longer than all else |
//!
//! So what stops a VM is noticed one look later than it could be.

use crate::cgroup::{Hierarchy, group_in, parent, value};
use crate::kept_files::{self, KeptFiles};
use crate::migration::CopyThreads;
use crate::qdiscs::Qdiscs;
use crate::root::{Kept, Root, USUAL};
use crate::task::Stat;
use crate::throttling::{self, Throttling};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};
use std::cell::LazyCell;
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
/// How long it is believed which groups, quotas and taps there are, ns.
const BELIEVED: u64 = 15 * BILLION;
/// Groups of a VM that are looked at: one for each vCPU, and those above.
const MAX_GROUPS: usize = 1024;
/// A thread that has waited for a CPU so long since the look before, ns, may have been kept from it by a quota.
const WAITED: u64 = 1_000_000;
/// KVM's statistics (`kvm_create_vm_debugfs`, virt/kvm/kvm_main.c): a directory for each VM, `PID-DESCRIPTOR`.
const KVM: &str = "sys/kernel/debug/kvm";
const POLLED: [&str; 2] = ["halt_poll_success_ns", "halt_poll_fail_ns"];

/// What a look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// In the middle of an observation.
    Within,
    /// An observation begins or ends.
    End,
}

/// Looks at the counters of VMs again and again.
pub struct UsageReader {
    root: Root,
    /// By process id.
    vms: BTreeMap<u32, OfVm>,
    /// How many files may stay open.
    files: usize,
    buffer: Box<[u8; USUAL]>,
}

/// What stays open, or is known from an earlier look.
#[derive(Default)]
struct OfVm {
    /// By thread id.
    threads: BTreeMap<u32, OfThread>,
    groups: Vec<OfGroup>,
    taps: BTreeMap<String, [Option<Kept>; 2]>,
    quotas_seen: bool,
    copy_threads: CopyThreads,
    /// The directory of KVM's statistics. They do not stay open: an open one keeps the whole VM in memory after its end.
    kvm: Option<String>,
    /// When these were looked up, ns.
    learnt: u64,
}

/// A control group.
struct OfGroup {
    usage: GroupUsage,
    /// Its directory, with `/` at its end.
    dir: String,
    stat: Option<Kept>,
    throttling: Throttling,
}

#[derive(Default)]
struct OfThread {
    schedstat: Option<Kept>,
    stat: Option<Kept>,
    syscall: Option<Kept>,
    group: String,
    /// How often it had begun to run at the last look, and how long it had waited for a CPU, ns.
    before: Option<(u64, u64)>,
}

impl OfVm {
    fn open_files(&self) -> usize {
        let of = |kept: &Option<Kept>| usize::from(kept.is_some());
        let of_thread = |thread: &OfThread| of(&thread.schedstat) + of(&thread.stat) + of(&thread.syscall);
        self.threads.values().map(of_thread).sum::<usize>()
            + self.groups.iter().map(|group| of(&group.stat)).sum::<usize>()
            + self.taps.values().flatten().map(of).sum::<usize>()
    }
}

impl UsageReader {
    /// Lets this process have as many open files as it may.
    pub fn new(root: &Root) -> Self {
        UsageReader {
            root: root.clone(),
            vms: BTreeMap::new(),
            files: kept_files::most(),
            buffer: Box::new([0; USUAL]),
        }
    }

    /// The counters of these VMs now; VMs and threads that have ended are left out. A VM that was not looked at before is looked at as
    /// at the end of an observation.
    pub fn look(&mut self, vms: &[Vm], look: Look) -> Sample {
        let root = self.root.clone();
        let ends = look == Look::End;
        let qdiscs = if ends { Qdiscs::now(&root, vms) } else { None };
        self.vms.retain(|pid, _| vms.iter().any(|vm| vm.pid == *pid));
        let open: usize = self.vms.values().map(OfVm::open_files).sum();
        let mut files =
            KeptFiles { root: &root, left: self.files.saturating_sub(open), buffer: &mut self.buffer };
        let at = now();
        let (mut found, mut rate_limits, mut migrations) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let hierarchy = LazyCell::new(|| Hierarchy::find(&root).ok());
        let kvm = LazyCell::new(|| root.names(KVM));
        for vm in vms {
            let fresh = !self.vms.contains_key(&vm.pid);
            let of = self.vms.entry(vm.pid).or_default();
            if fresh || ends && at.saturating_sub(of.learnt) >= BELIEVED {
                root.learn(of, vm, hierarchy.as_ref(), &kvm);
                of.copy_threads.forget();
                of.learnt = at;
            }
            let usage = usage(of, vm, ends || fresh, &mut files);
            if usage.threads.is_empty() && !root.exists(&format!("proc/{}", vm.pid)) {
                continue;
            }
            if let Some(qdiscs) = &qdiscs {
                rate_limits.insert(vm.pid, qdiscs.rate_limits(vm));
            }
            let copying: Vec<String> = of.copy_threads.names().cloned().collect();
            if ends && !copying.is_empty() {
                migrations.insert(vm.pid, copying);
            }
            let delaying = qdiscs.as_ref().map(|qdiscs| qdiscs.delaying(&root, vm)).unwrap_or_default();
            found.insert(vm.pid, VmUsage { delaying, ..usage });
        }
        let cpus = if ends { root.text("proc/stat").map(|text| cpus(&text)) } else { None };
        let cpus = cpus.unwrap_or_default();
        Sample { at, ends, vms: found, cpus, threads: BTreeMap::new(), rate_limits, migrations }
    }

    /// What each thread of the host has run: [`Sample::threads`].
    pub fn threads(&self) -> BTreeMap<u32, HostThread> {
        self.root.host_threads()
    }
}

/// What a VM has used. `all`: also what can hardly have changed since the look before.
fn usage(of: &mut OfVm, vm: &Vm, all: bool, files: &mut KeptFiles<'_>) -> VmUsage {
    let vcpus = vm.vcpus.iter().map(|vcpu| (vcpu.tid, Role::Vcpu(vcpu.index), false));
    let workers = vm.workers.iter().map(|worker| (worker.tid, Role::Worker, worker.kernel_thread));
    let (at, mut threads) = (now(), BTreeMap::new());
    // Groups of vCPU threads that have begun to run since the look before, and whether a thread has waited for a CPU.
    let (mut ran_in, mut waited) = (Vec::new(), false);
    for (tid, role, of_kernel) in vcpus.chain(workers) {
        let known = of.threads.entry(tid).or_default();
        let before = known.before;
        // A worker that is a kernel thread is no thread of the VMM.
        let pid = if of_kernel { tid } else { vm.pid };
        let Some(thread) = thread(known, pid, tid, role, all, files) else {
            *known = OfThread { group: std::mem::take(&mut known.group), ..OfThread::default() };
            continue;
        };
        if role != Role::Worker && before.is_none_or(|(starts, _)| starts != thread.starts) {
            ran_in.push(thread.group.clone());
        }
        waited |= before.is_some_and(|(_, ns)| thread.waited.saturating_sub(ns) >= WAITED);
        threads.insert(tid, thread);
    }
    for OfGroup { usage: group, dir, stat, throttling } in &mut of.groups {
        // A group without a quota may have got one.
        if (all || waited || group.quota.is_some())
            && let Some(text) = files.text(stat, || format!("{dir}cpu.stat"))
        {
            group.throttled = throttling.taken(text, group.throttled);
        }
        group.frozen = (all || !ran_in.iter().any(|other| group.contains(other)))
            && files
                .root
                .text(&format!("{dir}cgroup.events"))
                .is_some_and(|text| value(&text, "frozen") == 1);
    }
    let mut taps = BTreeMap::new();
    for (tap, [taken, dropped]) in &mut of.taps {
        let mut number = |slot, what: &str| {
            let text = files.text(slot, || format!("sys/class/net/{tap}/statistics/{what}"))?;
            text.trim().parse().ok()
        };
        if let (Some(taken), Some(dropped)) = (number(taken, "tx_packets"), number(dropped, "tx_dropped")) {
            taps.insert(tap.clone(), TapUsage { taken, dropped });
        }
    }
    let polled = of.kvm.as_ref().filter(|_| all).and_then(|dir| {
        let number = |file| files.root.number(&format!("{KVM}/{dir}/{file}"));
        POLLED.into_iter().map(number).try_fold(0u64, |sum, ns| Some(sum.saturating_add(ns?)))
    });
    let stat = if all { Stat::read(files.root, vm.pid) } else { None };
    if let Some(stat) = &stat {
        of.copy_threads.look(files.root, vm.pid, stat);
    }
    VmUsage {
        at,
        quotas_seen: of.quotas_seen,
        threads,
        groups: of.groups.iter().map(|group| group.usage.clone()).collect(),
        polled,
        major_faults: stat.and_then(|stat| stat.number(12)),
        taps,
        ..VmUsage::default()
    }
}

/// A thread of the process `pid`; `None` if it has ended.
fn thread(
    known: &mut OfThread,
    pid: u32,
    tid: u32,
    role: Role,
    all: bool,
    files: &mut KeptFiles<'_>,
) -> Option<ThreadUsage> {
    let path = |file: &str| format!("proc/{pid}/task/{tid}/{file}");
    // First: where the kernel accounts for time without ticks (nohz_full), it brings the counters up to date for this file.
    let stat = StatOfThread::of(files.bytes(&mut known.stat, || path("stat"))?)?;
    let (ran, waited, starts) = schedstat(files.text(&mut known.schedstat, || path("schedstat"))?)?;
    let stands = known.before.is_some_and(|(before, _)| before == starts);
    let mut in_vmm = || {
        let is_vcpu = matches!(role, Role::Vcpu(_)) && (all || stands);
        is_vcpu && files.text(&mut known.syscall, || path("syscall")).is_some_and(in_vmm)
    };
    let state = match stat.state {
        'R' => RunState::Runnable,
        'T' | 't' => RunState::Stopped,
        'D' => RunState::Disk,
        _ if in_vmm() => RunState::InVmm,
        _ => RunState::Asleep,
    };
    known.before = Some((starts, waited));
    Some(ThreadUsage {
        role,
        started: stat.started,
        ran,
        guest: stat.guest.saturating_mul(tick()),
        waited,
        starts,
        state,
        cpu: stat.cpu,
        group: known.group.clone(),
        census: None,
    })
}

impl Root {
    /// What is believed of a VM for a while: the groups of its threads, its taps, where its statistics are. The groups that limit
    /// it are those and all above them; a VM of libvirt's is in several, one for each thread.
    fn learn(&self, of: &mut OfVm, vm: &Vm, hierarchy: Option<&Hierarchy<'_>>, kvm: &[String]) {
        of.quotas_seen = hierarchy.is_some_and(Hierarchy::has_cpu);
        let own = format!("{}-", vm.pid);
        of.kvm = kvm.iter().find(|name| name.starts_with(&own)).cloned();
        let workers = vm.workers.iter().map(|worker| (worker.tid, worker.kernel_thread));
        let threads: Vec<(u32, bool)> =
            vm.vcpus.iter().map(|vcpu| (vcpu.tid, false)).chain(workers).collect();
        of.threads.retain(|tid, _| threads.iter().any(|(other, _)| other == tid));
        for (tid, of_kernel) in threads {
            let pid = if of_kernel { tid } else { vm.pid };
            let group = self.text(&format!("proc/{pid}/task/{tid}/cgroup"));
            of.threads.entry(tid).or_default().group =
                group.as_deref().and_then(group_in).unwrap_or_default();
        }
        let mut groups = BTreeSet::new();
        for group in hierarchy.map(|hierarchy| hierarchy.of_threads(vm.pid)).unwrap_or_default() {
            let mut at = Some(group.as_str());
            while let Some(path) = at.filter(|path| *path != "/") {
                groups.insert(path.to_owned());
                at = parent(path);
            }
        }
        let mut before = std::mem::take(&mut of.groups);
        for path in groups.into_iter().take(MAX_GROUPS) {
            let Some(hierarchy) = hierarchy else { break };
            let place = before.iter().position(|group| group.usage.path == path);
            let mut group = match place {
                Some(place) => before.swap_remove(place),
                None => OfGroup {
                    dir: hierarchy.path(&path, ""),
                    usage: GroupUsage::default(),
                    stat: None,
                    throttling: Throttling::default(),
                },
            };
            let max = self.text(&format!("{}cpu.max", group.dir)).unwrap_or_default();
            (group.usage.path, group.usage.quota) = (path, throttling::quota(&max));
            group.throttling.follow(&max);
            of.groups.push(group);
        }
        let mut before = std::mem::take(&mut of.taps);
        for nic in vm.nics.iter().filter(|nic| nic.ifindex != 0) {
            of.taps.insert(nic.tap.clone(), before.remove(&nic.tap).unwrap_or_default());
        }
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

/// `CLOCK_MONOTONIC`, ns.
pub fn now() -> u64 {
    let Ok(at) = clock_gettime(ClockId::CLOCK_MONOTONIC) else { return 0 };
    at.tv_sec() as u64 * BILLION + at.tv_nsec() as u64
}

/// The length of the clock ticks of `/proc`, ns.
fn tick() -> u64 {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100).max(1);
    BILLION / per_second as u64
}

/// Fields of a thread's `stat` (proc_pid_stat(5)).
struct StatOfThread {
    state: char,
    started: u64,
    cpu: u32,
    /// Time in guest mode, ticks.
    guest: u64,
}

impl StatOfThread {
    /// In one go, as it is read often.
    fn of(bytes: &[u8]) -> Option<Self> {
        // The name, field 2, may contain anything.
        let after_name = bytes.iter().rposition(|byte| *byte == b')')? + 1;
        let mut fields = str::from_utf8(&bytes[after_name..]).ok()?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let mut at = 3;
        let mut field = |number: usize| {
            let skipped = number - at - 1;
            at = number;
            fields.nth(skipped)?.parse::<u64>().ok()
        };
        Some(StatOfThread {
            state,
            started: field(22)?,
            cpu: u32::try_from(field(39)?).ok()?,
            guest: field(43)?,
        })
    }
}

/// Whether a vCPU thread sleeps in another system call than `KVM_RUN`: its `syscall` (proc_pid_syscall(5)) has the number of the system
/// call, then its arguments.
fn in_vmm(syscall: &str) -> bool {
    let mut words = syscall.split_whitespace();
    words.next().is_some_and(|number| number.parse::<i64>().is_ok_and(|number| number >= 0))
        && words.nth(1).is_some_and(|request| request != KVM_RUN)
}

/// `schedstat` of a thread (Documentation/scheduler/sched-stats.rst): time on a CPU, time that it waited for one, both ns, and how often
/// it began to run.
fn schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = text.split_whitespace().map(|word| word.parse::<u64>().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
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
    use std::fs;
    use std::path::Path;

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
        let of = in_vmm;
        assert!(!of("16 0x1c 0xae80 0x0 0x1 0x2 0x3 0x7ffd 0x7f00\n"));
        assert!(of("202 0x55d0 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n"));
        // It runs, or sleeps in no system call.
        assert!(!of("running\n") && !of("-1 0x7ffd 0x7f00\n"));
    }

    /// A VM with one vCPU, a worker of the kernel, a tap, and two groups, of which the outer one has a quota.
    fn vm_in(root: &Path) -> Vm {
        use teiji_model::host::{DataPlane, Nic, Vcpu, Worker};
        let file = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        file("proc/stat", "cpu0 1 1 1 1 1 1 1 1 0 0\n");
        file("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        for (group, max) in [("m", "50000 100000"), ("m/a", "max 100000")] {
            file(&format!("sys/fs/cgroup/{group}/cpu.max"), max);
            file(&format!("sys/fs/cgroup/{group}/cpu.stat"), "usage_usec 9\nthrottled_usec 7\n");
            file(&format!("sys/fs/cgroup/{group}/cgroup.events"), "populated 1\nfrozen 1\n");
        }
        file("proc/5/stat", &format!("5 (qemu) S {}20 0\n", "0 ".repeat(8)));
        for task in ["5/task/5", "5/task/6", "7/task/7"] {
            file(&format!("proc/{task}/cgroup"), "0::/m/a\n");
            file(&format!("proc/{task}/syscall"), "202 0x55d0 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n");
        }
        file("sys/kernel/debug/kvm/5-12/halt_poll_success_ns", "3\n");
        file("sys/kernel/debug/kvm/5-12/halt_poll_fail_ns", "4\n");
        file("sys/class/net/tap0/statistics/tx_packets", "100\n");
        file("sys/class/net/tap0/statistics/tx_dropped", "1\n");
        ran(root, 1, 1);
        let (cpus, last_cpu) = (String::from("0"), 0);
        Vm {
            pid: 5,
            vcpus: vec![Vcpu { index: 0, kvm_id: None, tid: 6, cpus: cpus.clone(), last_cpu }],
            workers: vec![Worker { tid: 7, comm: "vhost-5".into(), kernel_thread: true, cpus, last_cpu }],
            nics: vec![Nic {
                tap: "tap0".into(),
                ifindex: 3,
                mac: None,
                bridge: None,
                data_plane: DataPlane::VhostNet,
                queues: 1,
            }],
            ..Vm::default()
        }
    }

    /// Its threads have run so long, ns, and begun to so often.
    fn ran(root: &Path, ran: u64, starts: u64) {
        for task in ["5/task/6", "7/task/7"] {
            let field = |n: usize| match n {
                22 => 500,
                39 => 2,
                43 => 1,
                _ => 0,
            };
            let fields: Vec<String> = (4..=52).map(|n| field(n).to_string()).collect();
            let stat = format!("6 (CPU) 0/KVM) S {}\n", fields.join(" "));
            fs::write(root.join(format!("proc/{task}/stat")), stat).unwrap();
            fs::write(root.join(format!("proc/{task}/schedstat")), format!("{ran} 5 {starts}\n")).unwrap();
        }
    }

    #[test]
    fn a_look_reads_what_may_have_changed() {
        let dir = tempfile::tempdir().unwrap();
        let vm = [vm_in(dir.path())];
        let root = Root::new(dir.path());
        let mut reader = UsageReader::new(&root);
        let mut look = |look| {
            let before = root.reads();
            let sample = reader.look(&vm, look);
            (sample.vms[&5].clone(), sample.ends, root.reads() - before)
        };
        let frozen = |vm: &VmUsage| vm.groups.iter().map(|group| group.frozen).collect::<Vec<_>>();
        let (usage, ends, _) = look(Look::End);
        assert!(ends && usage.quotas_seen);
        let [vcpu, worker] = [6, 7].map(|tid| usage.threads[&tid].clone());
        assert_eq!((vcpu.role, vcpu.state, vcpu.started), (Role::Vcpu(0), RunState::InVmm, 500));
        assert_eq!((vcpu.ran, vcpu.waited, vcpu.starts, vcpu.cpu), (1, 5, 1, 2));
        assert_eq!((vcpu.guest, vcpu.group.as_str()), (tick(), "/m/a"));
        assert_eq!((worker.role, worker.state), (Role::Worker, RunState::Asleep));
        assert_eq!((usage.major_faults, usage.polled), (Some(20), Some(7)));
        assert_eq!(usage.taps["tap0"], TapUsage { taken: 100, dropped: 1 });
        let groups: Vec<_> =
            usage.groups.iter().map(|g| (g.path.as_str(), g.quota, g.throttled, g.frozen)).collect();
        assert_eq!(groups, [("/m", Some(50), 7000, true), ("/m/a", None, 7000, true)]);

        // It has run: it is neither in the VMM for long nor frozen.
        ran(dir.path(), 2, 2);
        fs::write(dir.path().join("sys/fs/cgroup/m/cpu.stat"), "throttled_usec 8\n").unwrap();
        fs::write(dir.path().join("sys/class/net/tap0/statistics/tx_packets"), "101\n").unwrap();
        let (usage, ends, reads) = look(Look::Within);
        assert_eq!((usage.threads[&6].state, frozen(&usage)), (RunState::Asleep, vec![false; 2]));
        assert_eq!((ends, usage.threads[&6].ran, usage.polled), (false, 2, None));
        assert_eq!(usage.groups.iter().map(|group| group.throttled).collect::<Vec<_>>(), [8000, 7000]);
        assert_eq!(usage.taps["tap0"].taken, 101);
        // Two files for each of two threads and for the tap, one for the group with a quota.
        assert_eq!(reads, 2 * 2 + 2 + 1);
        // It stands: both may be the reason.
        let (usage, _, reads) = look(Look::Within);
        assert_eq!((usage.threads[&6].state, frozen(&usage)), (RunState::InVmm, vec![true; 2]));
        assert_eq!(reads, 7 + 1 + 2);
        // It waits, and that may be a new quota.
        fs::write(dir.path().join("sys/fs/cgroup/m/a/cpu.stat"), "throttled_usec 9\n").unwrap();
        fs::write(dir.path().join("proc/5/task/6/schedstat"), "2 1000005 2\n").unwrap();
        let (usage, ..) = look(Look::Within);
        assert_eq!(usage.groups.iter().map(|group| group.throttled).collect::<Vec<_>>(), [8000, 9000]);
        // A name may be anything.
        let stat = fs::read("/proc/self/task/1/stat").or_else(|_| fs::read("/proc/self/stat")).unwrap();
        let after = stat.iter().rposition(|byte| *byte == b')').unwrap();
        assert!(StatOfThread::of(&[b"5 (\xff) S", &stat[after..]].concat()).is_some());
    }

    #[test]
    fn without_room_for_open_files_the_counters_are_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let vm = [vm_in(dir.path())];
        let root = Root::new(dir.path());
        let mut usual = UsageReader::new(&root);
        let mut few = UsageReader { files: 0, ..UsageReader::new(&root) };
        for n in 1..4 {
            ran(dir.path(), n, n / 2);
            let [usual, few] = [&mut usual, &mut few].map(|reader| {
                let mut usage = reader.look(&vm, Look::Within).vms[&5].clone();
                usage.at = 0;
                usage
            });
            assert_eq!(usual, few);
        }
        assert_eq!(few.vms[&5].open_files(), 0);
        assert!(usual.vms[&5].open_files() > 0);
    }

    #[test]
    fn a_thread_that_has_ended_is_left_out() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        let vcpu = teiji_model::host::Vcpu { index: 0, kvm_id: None, tid, cpus: "0".into(), last_cpu: 0 };
        let vm = [Vm { pid: std::process::id(), vcpus: vec![vcpu], ..Vm::default() }];
        let mut reader = UsageReader::new(&Root::default());
        let mut threads = || reader.look(&vm, Look::Within).vms[&vm[0].pid].threads.len();
        assert_eq!((threads(), threads()), (1, 1));
        drop(end);
        thread.join().unwrap();
        // The kernel has released it when its directory is gone.
        while fs::exists(format!("/proc/self/task/{tid}")).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(threads(), 0);
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
