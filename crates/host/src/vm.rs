//! Which processes are VMs: those that hold descriptors of a KVM virtual machine and of its vCPUs. [`Identity`] says
//! whether their names can be trusted.

use crate::cmdline::CommandLine;
use crate::identity::Domains;
use crate::resource::Devices;
use crate::root::{self, Root};
use crate::task::alive;
use crate::thread::{self, Thread, Threads};
use crate::{Error, net, numa, passthrough};
use std::collections::BTreeMap;
use teiji_model::host::{Identity, Vm, Worker};
use teiji_model::resource::Task;

impl Root {
    /// The VMs of this host, by process id. A process that vanishes meanwhile, or that the caller may not inspect, is
    /// left out.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    pub fn vms(&self) -> Result<Vec<Vm>, Error> {
        Ok(self.identified_vms()?.into_iter().map(|(vm, _)| vm).collect())
    }

    /// The VMs of [`Root::vms`], each with the user of its process and the origin of its name.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    pub fn identified_vms(&self) -> Result<Vec<(Vm, Identity)>, Error> {
        let processes = processes(self)?;
        let vmms = vmms(self, &processes);
        Ok(identified(self, &processes, vmms, |_| Vec::new()))
    }

    /// The VMs of [`Root::identified_vms`], each with its memory by NUMA node. To be shown to somebody: for that memory the kernel
    /// walks the page tables of the VMM while it holds its memory map lock.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    pub fn identified_vms_with_memory(&self) -> Result<Vec<(Vm, Identity)>, Error> {
        let last = numa::last_node(self);
        let processes = processes(self)?;
        let vmms = vmms(self, &processes);
        Ok(identified(self, &processes, vmms, |pid| numa::resident(self, pid, last)))
    }
}

/// The VMs of these VMMs that are still there when all of it has been read: so that is the process's own, not that of another one
/// which got its id meanwhile.
fn identified(
    root: &Root,
    processes: &[Thread],
    vmms: Vec<Vmm>,
    memory_of: impl Fn(u32) -> Vec<u64>,
) -> Vec<(Vm, Identity)> {
    let there = |found: Found| {
        let memory_nodes = memory_of(found.vm.pid);
        alive(root, found.process).ok()?;
        Some((Vm { memory_nodes, ..found.vm }, found.identity))
    };
    vms(root, processes, vmms, &Devices::default()).into_iter().filter_map(there).collect()
}

/// All processes that are not ending.
///
/// # Errors
/// If `/proc` cannot be listed.
pub(crate) fn processes(root: &Root) -> Result<Vec<Thread>, Error> {
    let path = root.path("proc");
    let names = root::list(&path).map_err(|source| Error::Processes { path, source })?;
    let mut pids: Vec<u32> = names.iter().filter_map(|n| n.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids.into_iter().filter_map(|pid| Thread::of_process(root, pid)).collect())
}

/// A VM and its tasks.
pub(crate) struct Found {
    /// Without its memory by NUMA node.
    pub vm: Vm,
    pub identity: Identity,
    pub process: Task,
    /// In the order of those of `vm`.
    pub vcpus: Vec<Task>,
    pub workers: Vec<Task>,
}

/// The VMMs among these processes.
pub(crate) fn vmms(root: &Root, processes: &[Thread]) -> Vec<Vmm> {
    let vmm = |process: &Thread| Some(Vmm { process: process.task, open: open(root, process.task.id)? });
    processes.iter().filter(|process| !process.kernel_thread).filter_map(vmm).collect()
}

/// Their VMs. The kernel's list of `devices` is newer than that of the VMMs, so it has the taps that these have open. The caller
/// asks at last whether the process is still there ([`alive`]), once for all that it reads.
pub(crate) fn vms(root: &Root, processes: &[Thread], vmms: Vec<Vmm>, devices: &Devices) -> Vec<Found> {
    if vmms.is_empty() {
        return Vec::new();
    }
    let shared = Shared {
        workers: thread::kernel_workers(root, processes),
        domains: Domains::find(root),
        taps: net::Taps::new(root, devices),
    };
    vmms.into_iter().filter_map(|vmm| vm(root, &vmm, &shared)).collect()
}

/// A process that runs a VM.
pub(crate) struct Vmm {
    process: Task,
    open: Open,
}

/// What a VMM has open.
#[derive(Default)]
struct Open {
    vm_fds: Vec<u32>,
    vcpus: usize,
    net: net::Descriptors,
    vfio: passthrough::Vfio,
}

/// What a process has open, if it is a VMM.
fn open(root: &Root, pid: u32) -> Option<Open> {
    let dir = root.dir(&format!("proc/{pid}/fd"))?;
    let mut open = Open::default();
    for fd in dir.numbers() {
        let Some(target) = dir.link(&fd.to_string()) else { continue };
        match target.as_str() {
            "anon_inode:kvm-vm" => open.vm_fds.push(fd),
            "/dev/vhost-net" => open.net.vhost_net += 1,
            "/dev/net/tun" => open.net.taps.extend(net::tap(root, pid, fd).map(|name| (fd, name))),
            other if other.starts_with("anon_inode:kvm-vcpu") => open.vcpus += 1,
            other if open.vfio.note(other) => {}
            other => {
                let index = other.strip_prefix("/dev/tap").and_then(|index| index.parse().ok());
                open.net.macvtaps.extend(index.map(|index| (fd, index)));
            }
        }
    }
    (!open.vm_fds.is_empty() && open.vcpus > 0).then_some(open)
}

/// What is read once for all VMs.
struct Shared<'a> {
    /// vhost workers that are kernel threads, by the thread that each was made for.
    workers: BTreeMap<u32, Vec<(Worker, Task)>>,
    domains: Domains,
    taps: net::Taps<'a>,
}

/// The VM of a VMM; `None` if it is gone.
fn vm(root: &Root, vmm: &Vmm, shared: &Shared<'_>) -> Option<Found> {
    let Vmm { process, open } = vmm;
    let pid = process.id;
    let line = CommandLine::new(&root.bytes(&format!("proc/{pid}/cmdline"))?);
    let threads = Threads::of(root, pid)?;
    let (vcpus, vcpu_tasks) = thread::vcpus(root, pid, &threads, &open.vm_fds).into_iter().unzip();
    let (workers, worker_tasks) = thread::workers(&threads, &shared.workers).into_iter().unzip();
    let mut nics = shared.taps.nics(pid, &open.net, &line.netdevs());
    let given = passthrough::given(root, &open.vfio, &line);
    nics.extend(net::without_tap(&given, &line));
    let own = line.name();
    let (mut identity, named) = shared.domains.identify(root, *process, own.as_deref());
    identity.uuid = line.uuid();
    let name = named.or(own).unwrap_or_else(|| format!("pid:{pid}"));
    let memory = line.memory();
    let vm = Vm { name, pid, vcpus, workers, nics, memory, memory_nodes: Vec::new(), given };
    Some(Found { vm, identity, process: *process, vcpus: vcpu_tasks, workers: worker_tasks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    /// `/proc` with a VMM of one vCPU that started at tick 7.
    fn host() -> (TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("proc/700");
        for (tid, name) in [(700, "qemu"), (701, "CPU 0/KVM")] {
            fs::create_dir_all(own.join(format!("task/{tid}"))).unwrap();
            fs::write(own.join(format!("task/{tid}/stat")), stat(name, 7)).unwrap();
            fs::write(own.join(format!("task/{tid}/status")), "Cpus_allowed_list:\t0\n").unwrap();
        }
        fs::write(own.join("stat"), stat("qemu", 7)).unwrap();
        fs::write(own.join("cmdline"), "qemu\0-name\0sip1\0").unwrap();
        fs::create_dir_all(own.join("fd")).unwrap();
        symlink("anon_inode:kvm-vm", own.join("fd/9")).unwrap();
        symlink("anon_inode:kvm-vcpu:0", own.join("fd/10")).unwrap();
        let root = Root::new(dir.path());
        (dir, root)
    }

    fn stat(name: &str, started: u64) -> String {
        format!("1 ({name}) S {}{started} {}", "0 ".repeat(18), "0 ".repeat(20))
    }

    /// The VMs, if `change` happens to the host between the look for VMMs and that at each of them.
    fn found(change: impl Fn(&std::path::Path)) -> Vec<(String, Option<u64>)> {
        let (dir, root) = host();
        let processes = processes(&root).unwrap();
        let vmms = vmms(&root, &processes);
        change(&dir.path().join("proc/700"));
        let of = |(vm, identity): (Vm, Identity)| (vm.name, identity.started);
        identified(&root, &processes, vmms, |_| Vec::new()).into_iter().map(of).collect()
    }

    #[test]
    fn a_vmm_that_ends_during_the_look_is_left_out() {
        assert_eq!(found(|_| ()), [("sip1".to_owned(), Some(7))]);
        // The process is ending, but what it was is still there.
        let ended =
            found(|own| fs::write(own.join("task/700/stat"), stat("qemu", 7).replace(") S", ") Z")).unwrap());
        assert_eq!(ended, []);
        let gone = found(|own| fs::remove_file(own.join("task/700/stat")).unwrap());
        assert_eq!(gone, []);
    }

    #[test]
    fn a_later_process_with_the_id_of_a_vmm_is_not_that_one() {
        let later = found(|own| {
            fs::write(own.join("cmdline"), "qemu\0-name\0other\0").unwrap();
            fs::write(own.join("task/700/stat"), stat("qemu", 8)).unwrap();
        });
        assert_eq!(later, []);
    }
}
