//! Where VMs are on a host with NUMA nodes: their memory by node, the nodes that their threads run on and that their NICs and
//! interrupts belong to.
//!
//! | module | holds |
//! | --- | --- |
//! | `bench` | what accesses to memory cost between nodes |
//! | `nodes` | the nodes of the host: CPUs, memory, huge pages, distances |
//! | `memory` | the memory of a VM by node, the guest's apart from the VMM's own and the kernel's |
//! | `threads` | on which node threads run |
//! | `uplinks` | the NICs by which a VM's packets leave, their nodes and interrupts |
//! | `resident` | the resident memory of a VMM by node, as a list of VMs shows it |
//!
//! Memory is read once, from `numa_maps`: for it the kernel walks all page tables of the VMM, 4 KiB pages one by one, while it holds
//! its memory map lock for reading (`show_numa_map()`, fs/proc/task_mmu.c). So this is done when somebody asks.

pub mod bench;
mod memory;
mod nodes;
mod resident;
mod threads;
mod uplinks;

pub(crate) use resident::{last_node, resident};

use crate::Root;
use crate::cgroup::Hierarchy;
use crate::task::{alive, task};
use crate::usage::now;
use teiji_model::host::Vm;
use teiji_model::numa::{ByNode, NumaHost, VmNodes, add};
use teiji_model::resource::Task;
use threads::Threads;
use uplinks::Uplinks;

/// Observes on which nodes VMs are. Reads only.
pub struct NumaObserver {
    root: Root,
    host: NumaHost,
    /// Each with its process.
    vms: Vec<(Vm, Task)>,
    threads: Threads,
    uplinks: Uplinks,
    begun: u64,
}

impl NumaObserver {
    /// Begins to observe the threads of these VMs and the interrupts of the NICs that they use.
    pub fn begin(root: &Root, vms: &[Vm]) -> Self {
        let nodes = nodes::nodes(root);
        let vms: Vec<(Vm, Task)> =
            vms.iter().filter_map(|vm| Some((vm.clone(), task(root, vm.pid)?))).collect();
        let alone: Vec<Vm> = vms.iter().map(|(vm, _)| vm.clone()).collect();
        // Takes long on a host with many NICs, so it comes before the time counts.
        let uplinks = Uplinks::begin(root, &alone);
        let begun = now();
        let threads = Threads::begin(root, &alone);
        let host = NumaHost { nodes, ..NumaHost::default() };
        NumaObserver { root: root.clone(), host, vms, threads, uplinks, begun }
    }

    /// Looks at which CPU each thread is on, and how long it has run since the last look. The more often, the less is uncertain when a
    /// thread moves in between.
    pub fn look(&mut self) {
        self.threads.look(&self.host);
    }

    /// A last look, and the memory of the VMs. Those that have ended are left out.
    pub fn end(mut self) -> NumaHost {
        self.look();
        self.host.observed = now().saturating_sub(self.begun);
        let uplinks = self.uplinks.end(&self.root, &self.host);
        let hierarchy = Hierarchy::find(&self.root).ok();
        let placed = self.vms.iter().filter_map(|(vm, process)| {
            let (memory, unseen) = memory::memory(&self.root, vm, hierarchy.as_ref(), &self.host.nodes);
            // What was read until now is that of this process, if it is still there.
            alive(&self.root, *process).ok()?;
            let (vcpus, workers) = self.threads.of(vm.pid);
            let nics = uplinks.get(&vm.pid).cloned().unwrap_or_default();
            let (name, size) = (vm.name.clone(), vm.memory);
            let found = VmNodes {
                name,
                pid: vm.pid,
                size,
                memory,
                vcpus,
                workers,
                nics,
                unseen,
                ..VmNodes::default()
            };
            Some(found)
        });
        let vms = placed.collect();
        NumaHost { vms, ..self.host }
    }
}

/// The numbers by the nodes in words such as `N0=5`; `each` is what one of them stands for.
fn by_node<'t>(words: impl Iterator<Item = &'t str>, each: u64) -> ByNode {
    let of = |word: &str| {
        let (node, amount) = word.strip_prefix('N')?.split_once('=')?;
        Some((node.parse::<u32>().ok()?, amount.parse::<u64>().ok()?.saturating_mul(each)))
    };
    let mut all = ByNode::new();
    for (node, amount) in words.filter_map(of) {
        add(&mut all, node, amount);
    }
    all
}

/// The size of the pages of a line of a `numa_maps`, and its bytes by node.
fn mapped(line: &str) -> (u64, ByNode) {
    let kib = line.split(' ').find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
    let size = kib.unwrap_or(4).saturating_mul(1024);
    (size, by_node(line.split(' '), size))
}
