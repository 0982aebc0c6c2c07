//! Which processes are VMs: those that hold descriptors of a KVM virtual machine and of its vCPUs. [`Identity`] says
//! whether their names can be trusted.

use crate::cmdline::CommandLine;
use crate::identity::Domains;
use crate::root::{self, Root};
use crate::{Error, net, numa, thread};
use std::collections::BTreeMap;
use teiji_model::host::{Identity, Vm, Worker};

impl Root {
    /// The VMs of this host, by process id. A process that vanishes meanwhile, or that the caller may not inspect, is
    /// left out.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    pub fn vms(&self) -> Result<Vec<Vm>, Error> {
        Ok(self.identified_vms()?.into_iter().map(|(vm, _)| vm).collect())
    }

    /// The same, each with the user of its process and the origin of its name.
    ///
    /// # Errors
    /// If `/proc` cannot be listed.
    pub fn identified_vms(&self) -> Result<Vec<(Vm, Identity)>, Error> {
        let path = self.path("proc");
        let names = root::list(&path).map_err(|source| Error::Processes { path, source })?;
        let mut pids: Vec<u32> = names.iter().filter_map(|n| n.parse().ok()).collect();
        pids.sort_unstable();
        let found: Vec<(u32, Open)> = pids.iter().filter_map(|&pid| Some((pid, open(self, pid)?))).collect();
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let shared = Shared {
            workers: thread::kernel_workers(self, &pids),
            domains: Domains::find(self),
            fdb: net::BridgeFdb::default(),
        };
        Ok(found.iter().filter_map(|(pid, open)| vm(self, *pid, open, &shared)).collect())
    }
}

/// What a VMM has open.
#[derive(Default)]
struct Open {
    vm_fds: Vec<u32>,
    vcpus: usize,
    net: net::Descriptors,
}

/// What a process has open, if it is a VMM.
fn open(root: &Root, pid: u32) -> Option<Open> {
    let mut open = Open::default();
    for fd in root.numbers(&format!("proc/{pid}/fd")) {
        let Some(target) = root.link(&format!("proc/{pid}/fd/{fd}")) else { continue };
        match target.as_str() {
            "anon_inode:kvm-vm" => open.vm_fds.push(fd),
            "/dev/vhost-net" => open.net.vhost_net += 1,
            "/dev/net/tun" => open.net.taps.extend(net::tap(root, pid, fd).map(|name| (fd, name))),
            other if other.starts_with("anon_inode:kvm-vcpu") => open.vcpus += 1,
            other => {
                let index = other.strip_prefix("/dev/tap").and_then(|index| index.parse().ok());
                open.net.macvtaps.extend(index.map(|index| (fd, index)));
            }
        }
    }
    (!open.vm_fds.is_empty() && open.vcpus > 0).then_some(open)
}

/// What is read once for all VMs.
struct Shared {
    /// vhost workers that are kernel threads, by the thread that each was made for.
    workers: BTreeMap<u32, Vec<Worker>>,
    domains: Domains,
    fdb: net::BridgeFdb,
}

/// The VM of a VMM; `None` if it is gone.
fn vm(root: &Root, pid: u32, open: &Open, shared: &Shared) -> Option<(Vm, Identity)> {
    let line = CommandLine::new(&root.bytes(&format!("proc/{pid}/cmdline"))?);
    let vcpus = thread::vcpus(root, pid, &open.vm_fds);
    let workers = thread::workers(root, pid, &shared.workers);
    let mut nics = net::nics(root, pid, &open.net, &line.netdevs(), &shared.fdb);
    nics.extend(net::without_tap(root, &line));
    let memory_nodes = numa::resident(root, pid);
    if !root.exists(&format!("proc/{pid}/task")) {
        return None;
    }
    let own = line.name();
    let (mut identity, named) = shared.domains.identify(root, pid, own.as_deref());
    identity.uuid = line.uuid();
    let name = named.or(own).unwrap_or_else(|| format!("pid:{pid}"));
    let vm = Vm { name, pid, vcpus, workers, nics, memory: line.memory(), memory_nodes };
    Some((vm, identity))
}
