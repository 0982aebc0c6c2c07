//! vCPU threads and vhost workers.
//!
//! The `stat` of a thread has its name, its start and its last CPU, so it is read once, and nothing else of the threads that
//! are neither vCPUs nor workers.

use crate::root::{Dir, Root};
use crate::task::Stat;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::{Vcpu, Worker};
use teiji_model::resource::Task;

/// A process or thread that is not ending.
pub(crate) struct Thread {
    pub task: Task,
    pub name: String,
    pub kernel_thread: bool,
    last_cpu: u32,
}

impl Thread {
    fn of(id: u32, stat: &Stat) -> Option<Thread> {
        Some(Thread {
            task: stat.task(id)?,
            name: stat.name()?.to_owned(),
            kernel_thread: stat.is_kernel_thread(),
            last_cpu: stat.last_cpu()?,
        })
    }

    /// The process that has this id now.
    pub(crate) fn of_process(root: &Root, pid: u32) -> Option<Thread> {
        Thread::of(pid, &Stat::read(root, pid)?)
    }

    fn id(&self) -> u32 {
        self.task.id
    }
}

/// The threads of a process.
pub(crate) struct Threads {
    /// Its directory `task`.
    dir: Dir,
    /// By thread id, ascending.
    all: Vec<Thread>,
}

impl Threads {
    /// `None` if the process has vanished.
    pub(crate) fn of(root: &Root, pid: u32) -> Option<Threads> {
        let dir = root.dir(&format!("proc/{pid}/task"))?;
        let thread = |tid| Thread::of(tid, &Stat::of_thread(&dir, tid)?);
        let all = dir.threads().into_iter().filter_map(thread).collect();
        Some(Threads { all, dir })
    }

    fn with(&self, tid: u32) -> Option<&Thread> {
        self.all.binary_search_by_key(&tid, Thread::id).ok().map(|at| &self.all[at])
    }

    /// The CPUs that a thread may run on, online or not.
    fn allowed(&self, tid: u32) -> Option<String> {
        self.dir.text(&format!("{tid}/status")).as_deref().map(cpus_allowed)
    }
}

/// The CPUs that a thread may run on, by its `status`.
fn cpus_allowed(status: &str) -> String {
    let cpus = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    cpus.trim().to_owned()
}

/// The vCPU whose thread has this name: QEMU's `CPU 3/KVM`, cloud-hypervisor's `vcpu3`, Firecracker's `fc_vcpu 3`.
fn vcpu_index(comm: &str) -> Option<u16> {
    let qemu = comm.strip_prefix("CPU ").and_then(|c| c.strip_suffix("/KVM"));
    let other = || comm.strip_prefix("fc_vcpu ").or_else(|| comm.strip_prefix("vcpu"));
    qemu.or_else(other)?.parse().ok()
}

/// The vCPU threads of a VMM, by index, each with its task. `vm_fds` are its descriptors of KVM VMs.
///
/// The name of a thread has the index; KVM's debugfs has KVM's number of the vCPU (the APIC id, which differs from the
/// index if the number of sockets or cores is not a power of two). If threads have no names (QEMU without
/// `debug-threads=on`), the order of KVM's numbers is that of the indices. If debugfs does not have them (before Linux
/// 5.19, or with lockdown), KVM's numbers stay unknown.
pub(crate) fn vcpus(root: &Root, pid: u32, threads: &Threads, vm_fds: &[u32]) -> Vec<(Vcpu, Task)> {
    let known = known_to_kvm(root, pid, threads, vm_fds);
    let named = named_vcpus(threads);
    let indices = if named.is_empty() { in_order(&known) } else { named };
    let vcpu = |(index, tid)| {
        let thread = threads.with(tid)?;
        let kvm_id = known.iter().find(|(_, of)| *of == Some(tid)).map(|(id, _)| *id);
        let cpus = threads.allowed(tid)?;
        Some((Vcpu { index, kvm_id, tid, cpus, last_cpu: thread.last_cpu }, thread.task))
    };
    indices.into_iter().filter_map(vcpu).collect()
}

/// Index and thread of each vCPU, by the names of threads.
fn named_vcpus(threads: &Threads) -> Vec<(u16, u32)> {
    let index = |thread: &Thread| Some((vcpu_index(&thread.name)?, thread.id()));
    let mut named: Vec<(u16, u32)> = threads.all.iter().filter_map(index).collect();
    named.sort_unstable();
    named.dedup_by_key(|(index, _)| *index);
    named
}

/// Index and thread of each vCPU, by the order of KVM's numbers.
fn in_order(known: &[(u32, Option<u32>)]) -> Vec<(u16, u32)> {
    (0..).zip(known).filter_map(|(index, (_, tid))| Some((index, (*tid)?))).collect()
}

/// The vCPU threads and vhost workers that a VMM has now, by thread id, as an observation finds them. Reads nothing of any
/// other process; workers that are kernel threads are not among them.
pub(crate) fn of_process(root: &Root, pid: u32) -> BTreeSet<u32> {
    let Some(threads) = Threads::of(root, pid) else { return BTreeSet::new() };
    let mut vcpus = named_vcpus(&threads);
    if vcpus.is_empty() {
        let of_pid = |name: &String| name.strip_prefix(&format!("{pid}-"))?.parse().ok();
        let vm_fds: Vec<u32> = root.names("sys/kernel/debug/kvm").iter().filter_map(of_pid).collect();
        vcpus = in_order(&known_to_kvm(root, pid, &threads, &vm_fds));
    }
    let workers = threads.all.iter().filter(|thread| owner(&thread.name).is_some()).map(Thread::id);
    vcpus.into_iter().map(|(_, tid)| tid).chain(workers).collect()
}

/// KVM's numbers of vCPUs, ascending, and their threads once they have run, by `/sys/kernel/debug/kvm/PID-FD/vcpuN/pid`.
fn known_to_kvm(root: &Root, pid: u32, threads: &Threads, vm_fds: &[u32]) -> Vec<(u32, Option<u32>)> {
    let of_vm = |fd: &u32| {
        let dir = format!("sys/kernel/debug/kvm/{pid}-{fd}");
        let vcpu = |name: &String| {
            let id = name.strip_prefix("vcpu")?.parse().ok()?;
            let tid = root.number(&format!("{dir}/{name}/pid")).and_then(|n| u32::try_from(n).ok());
            Some((id, tid.filter(|tid| threads.with(*tid).is_some())))
        };
        root.names(&dir).iter().filter_map(vcpu).collect::<Vec<_>>()
    };
    let mut known: Vec<(u32, Option<u32>)> = vm_fds.iter().flat_map(of_vm).collect();
    known.sort_unstable();
    known.dedup_by_key(|(id, _)| *id);
    known
}

/// The vhost workers that serve a VMM, by thread id, each with its task: threads of the VMM itself (from Linux 6.4 on), and
/// kernel threads of `kernel_threads` whose owner is one of its threads.
pub(crate) fn workers(
    threads: &Threads,
    kernel_threads: &BTreeMap<u32, Vec<(Worker, Task)>>,
) -> Vec<(Worker, Task)> {
    let own = threads.all.iter().filter(|thread| owner(&thread.name).is_some());
    let own = own.filter_map(|thread| worker(thread, threads.allowed(thread.id())));
    let of = |thread: &Thread| kernel_threads.get(&thread.id());
    let mut kernel: Vec<(Worker, Task)> = threads.all.iter().filter_map(of).flatten().cloned().collect();
    kernel.sort_unstable_by_key(|(worker, _)| worker.tid);
    own.chain(kernel).collect()
}

/// The vhost workers among these processes that are kernel threads, by the thread that each was made for. Anyone may call a
/// process `vhost-1`.
pub(crate) fn kernel_workers(root: &Root, processes: &[Thread]) -> BTreeMap<u32, Vec<(Worker, Task)>> {
    let mut all: BTreeMap<u32, Vec<(Worker, Task)>> = BTreeMap::new();
    for thread in processes.iter().filter(|thread| thread.kernel_thread) {
        let Some(owner) = owner(&thread.name) else { continue };
        let status = root.text(&format!("proc/{}/status", thread.id()));
        all.entry(owner).or_default().extend(worker(thread, status.as_deref().map(cpus_allowed)));
    }
    all
}

/// A vhost worker; `cpus` are those that it may run on.
fn worker(thread: &Thread, cpus: Option<String>) -> Option<(Worker, Task)> {
    let Thread { task, name, kernel_thread, last_cpu } = thread;
    let (tid, comm, cpus) = (task.id, name.clone(), cpus?);
    Some((Worker { tid, comm, kernel_thread: *kernel_thread, cpus, last_cpu: *last_cpu }, *task))
}

/// The thread that a worker of this name was made for.
fn owner(comm: &str) -> Option<u32> {
    comm.strip_prefix("vhost-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_names_of_several_vmms() {
        assert_eq!(vcpu_index("CPU 12/KVM"), Some(12));
        assert_eq!(vcpu_index("vcpu3"), Some(3));
        assert_eq!(vcpu_index("fc_vcpu 0"), Some(0));
        for other in ["CPU 1/TCG", "qemu-system-x86", "vcpu", "vhost-1", "CPU x/KVM", ""] {
            assert_eq!(vcpu_index(other), None, "{other}");
        }
    }
}
