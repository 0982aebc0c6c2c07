//! vCPU threads and vhost workers.

use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::{Vcpu, Worker};

/// `PF_KTHREAD` of `include/linux/sched.h`: the task is a kernel thread.
const PF_KTHREAD: u64 = 0x0020_0000;

/// The CPUs that a thread may run on, and the last one that it ran on.
struct Placement {
    cpus: String,
    last_cpu: u32,
    flags: u64,
}

/// A thread's placement; `dir` is its directory below `/proc`.
fn placement(root: &Root, dir: &str) -> Option<Placement> {
    let status = root.text(&format!("{dir}/status"))?;
    let cpus = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let stat = root.text(&format!("{dir}/stat"))?;
    // The name may contain anything; fields are counted from the last `)`, which closes field 2.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(Placement {
        cpus: cpus.trim().to_owned(),
        last_cpu: fields.get(39 - 3)?.parse().ok()?,
        flags: fields.get(9 - 3)?.parse().ok()?,
    })
}

/// The name of a thread.
fn comm(root: &Root, dir: &str) -> Option<String> {
    root.text(&format!("{dir}/comm")).map(|c| c.trim_end_matches('\n').to_owned())
}

/// The vCPU whose thread has this name: QEMU's `CPU 3/KVM`, cloud-hypervisor's `vcpu3`, Firecracker's `fc_vcpu 3`.
fn vcpu_index(comm: &str) -> Option<u16> {
    let qemu = comm.strip_prefix("CPU ").and_then(|c| c.strip_suffix("/KVM"));
    let other = || comm.strip_prefix("fc_vcpu ").or_else(|| comm.strip_prefix("vcpu"));
    qemu.or_else(other)?.parse().ok()
}

/// The vCPU threads of a VMM, by index. `vm_fds` are its descriptors of KVM VMs.
///
/// The name of a thread has the index; KVM's debugfs has KVM's number of the vCPU (the APIC id, which differs from the
/// index if the number of sockets or cores is not a power of two). If threads have no names (QEMU without
/// `debug-threads=on`), the order of KVM's numbers is that of the indices. If debugfs does not have them (before Linux
/// 5.19, or with lockdown), KVM's numbers stay unknown.
pub(crate) fn vcpus(root: &Root, pid: u32, vm_fds: &[u32]) -> Vec<Vcpu> {
    let tids = root.numbers(&format!("proc/{pid}/task"));
    let mut named: Vec<(u16, u32)> = tids
        .iter()
        .filter_map(|&tid| Some((vcpu_index(&comm(root, &format!("proc/{pid}/task/{tid}"))?)?, tid)))
        .collect();
    let mut known: Vec<(u32, Option<u32>)> =
        vm_fds.iter().flat_map(|fd| from_debugfs(root, pid, *fd, &tids)).collect();
    known.sort_unstable();
    known.dedup_by_key(|(id, _)| *id);
    if named.is_empty() {
        named = (0..).zip(&known).filter_map(|(index, (_, tid))| Some((index, (*tid)?))).collect();
    }
    named.sort_unstable();
    named.dedup_by_key(|(index, _)| *index);
    let vcpu = |(index, tid)| {
        let at = placement(root, &format!("proc/{pid}/task/{tid}"))?;
        let kvm_id = known.iter().find(|(_, of)| *of == Some(tid)).map(|(id, _)| *id);
        Some(Vcpu { index, kvm_id, tid, cpus: at.cpus, last_cpu: at.last_cpu })
    };
    named.into_iter().filter_map(vcpu).collect()
}

/// The vCPU threads and vhost workers that a VMM has now, by thread id, as an observation finds them. Reads nothing of any
/// other process; workers that are kernel threads are not among them.
pub(crate) fn of_process(root: &Root, pid: u32) -> BTreeSet<u32> {
    let of_pid = |name: &String| name.strip_prefix(&format!("{pid}-"))?.parse().ok();
    let vm_fds: Vec<u32> = root.names("sys/kernel/debug/kvm").iter().filter_map(of_pid).collect();
    let vcpus = vcpus(root, pid, &vm_fds).into_iter().map(|vcpu| vcpu.tid);
    vcpus.chain(workers(root, pid, &BTreeMap::new()).into_iter().map(|worker| worker.tid)).collect()
}

/// KVM's numbers of vCPUs, and their threads once they have run, by `/sys/kernel/debug/kvm/PID-FD/vcpuN/pid`.
fn from_debugfs(root: &Root, pid: u32, fd: u32, tids: &[u32]) -> Vec<(u32, Option<u32>)> {
    let dir = format!("sys/kernel/debug/kvm/{pid}-{fd}");
    let vcpu = |name: &String| {
        let id = name.strip_prefix("vcpu")?.parse().ok()?;
        let tid = root.number(&format!("{dir}/{name}/pid")).and_then(|n| u32::try_from(n).ok());
        Some((id, tid.filter(|tid| tids.contains(tid))))
    };
    root.names(&dir).iter().filter_map(vcpu).collect()
}

/// The vhost workers that serve a VMM, by thread id: threads of the VMM itself (from Linux 6.4 on), and kernel threads
/// of `kernel_threads` whose owner is one of its threads.
pub(crate) fn workers(root: &Root, pid: u32, kernel_threads: &BTreeMap<u32, Vec<Worker>>) -> Vec<Worker> {
    let tids = root.numbers(&format!("proc/{pid}/task"));
    let own = tids.iter().filter_map(|tid| {
        let dir = format!("proc/{pid}/task/{tid}");
        let comm = comm(root, &dir)?;
        owner(&comm)?;
        let at = placement(root, &dir)?;
        Some(Worker { tid: *tid, comm, kernel_thread: false, cpus: at.cpus, last_cpu: at.last_cpu })
    });
    let mut kernel: Vec<Worker> =
        tids.iter().filter_map(|tid| kernel_threads.get(tid)).flatten().cloned().collect();
    kernel.sort_unstable_by_key(|worker| worker.tid);
    own.chain(kernel).collect()
}

/// The vhost workers among these processes that are kernel threads, by the thread that each was made for.
pub(crate) fn kernel_workers(root: &Root, pids: &[u32]) -> BTreeMap<u32, Vec<Worker>> {
    let mut all: BTreeMap<u32, Vec<Worker>> = BTreeMap::new();
    for worker in pids.iter().filter_map(|pid| kernel_worker(root, *pid)) {
        all.entry(owner(&worker.comm).unwrap_or_default()).or_default().push(worker);
    }
    all
}

/// The vhost worker that process `pid` is, if it is a kernel thread of that kind.
fn kernel_worker(root: &Root, pid: u32) -> Option<Worker> {
    let dir = format!("proc/{pid}");
    let comm = comm(root, &dir)?;
    owner(&comm)?;
    let at = placement(root, &dir)?;
    if at.flags & PF_KTHREAD == 0 {
        return None; // anyone may call a process `vhost-1`
    }
    Some(Worker { tid: pid, comm, kernel_thread: true, cpus: at.cpus, last_cpu: at.last_cpu })
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
