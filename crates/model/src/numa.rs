//! Where the memory, the threads and the NICs of VMs are on a host with NUMA nodes, and which part of a VM's memory is remote
//! from its vCPUs.
//!
//! The remote share takes it that each vCPU uses all of the guest's memory alike. It is what a VM has to expect whose guest
//! knows nothing of nodes; a guest that was given a topology of its own may do better.

use crate::cpus::CpuSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Amounts by the number of a node: bytes or nanoseconds. A node with nothing need not be there.
pub type ByNode = BTreeMap<u32, u64>;

/// The distance of a node from itself (ACPI SLIT); others are greater.
pub const LOCAL_DISTANCE: u32 = 10;

/// All of a [`ByNode`].
pub fn total(amounts: &ByNode) -> u64 {
    amounts.values().fold(0, |sum, amount| sum.saturating_add(*amount))
}

/// Adds to the amount of a node.
pub fn add(amounts: &mut ByNode, node: u32, amount: u64) {
    let of_node = amounts.entry(node).or_default();
    *of_node = of_node.saturating_add(amount);
}

/// The nodes of a host, and its VMs on them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NumaHost {
    /// The nodes that are online, by their numbers.
    pub nodes: Vec<Node>,
    /// How long threads were observed, ns.
    pub observed: u64,
    /// The VMs.
    pub vms: Vec<VmPlacement>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The kernel's number of it.
    pub id: u32,
    /// Its CPUs that are online. A node may have none.
    pub cpus: CpuSet,
    /// Its memory, bytes; 0 for a node without any.
    pub memory: u64,
    /// Memory that nothing uses, bytes.
    pub free: u64,
    /// Memory that could be used, bytes: what is free, and half of what files are cached in.
    pub available: u64,
    /// What the kernel itself has there, bytes: slab, stacks, page tables (those of KVM among them) and per-CPU data.
    pub kernel: u64,
    /// Huge pages that were set aside there (hugetlb), by page size.
    pub huge_pages: Vec<HugePages>,
    /// The firmware's distances (SLIT) to the nodes of the host, by their numbers: 10 is itself.
    pub distances: BTreeMap<u32, u32>,
    /// What the firmware says of access by the nearest CPUs (HMAT); `None` if it says nothing.
    pub access: Option<Access>,
}

/// Huge pages of one size on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugePages {
    /// The size of one, bytes.
    pub size: u64,
    /// How many there are.
    pub total: u64,
    /// How many nobody has; they may be reserved.
    pub free: u64,
}

/// Access to the memory of a node by its nearest CPUs, by the firmware (HMAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// ns.
    pub read_latency: u64,
    /// MB/s.
    pub read_bandwidth: u64,
}

/// Where a VM is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VmPlacement {
    /// The VM's name. Untrusted text.
    pub name: String,
    /// The process id of its VMM.
    pub pid: u32,
    /// The memory that it has now; `None` if that cannot be read.
    pub memory: Option<VmMemory>,
    /// Its vCPUs, by index.
    pub vcpus: Vec<ThreadPlacement>,
    /// Its vhost workers.
    pub workers: Vec<ThreadPlacement>,
    /// Its network interfaces.
    pub nics: Vec<NicPlacement>,
    /// What cannot be told of it, printable.
    pub unseen: Vec<String>,
    /// The part of its memory that is remote from its vCPUs, from 0 to 1 ([`remote_share`]); `None` if it cannot be told.
    pub remote: Option<f64>,
    /// The same from its vhost workers, which copy packets to and from this memory.
    pub remote_of_workers: Option<f64>,
    /// What matters most, in at most 12 words.
    pub headline: String,
}

/// The memory that a VM has now, bytes by node. What was swapped out, or never written, is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmMemory {
    /// The guest's memory; `None` if it cannot be told from the VMM's own: then `vmm` is all.
    pub guest: Option<GuestMemory>,
    /// What else its VMM has.
    pub vmm: ByNode,
    /// What the kernel has for it, as its control group counts it: page tables, those of KVM among them, stacks and slab.
    /// `None` if it has no group of its own with the memory controller.
    pub kernel: Option<ByNode>,
}

/// The memory of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestMemory {
    /// Bytes.
    pub bytes: ByNode,
    /// The part of `bytes` that is in huge pages that were set aside (hugetlb). Transparent huge pages are not told.
    pub huge: ByNode,
    /// The size of these huge pages, bytes; of several the largest.
    pub huge_page: Option<u64>,
    /// The part of `bytes` that other processes can have, too (a file, memfd or shared memory), as with vhost-user.
    pub shared: ByNode,
}

/// Where a thread runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadPlacement {
    /// Its thread id.
    pub tid: u32,
    /// The index of the vCPU; `None` for a vhost worker.
    pub vcpu: Option<u16>,
    /// The CPUs that it may run on.
    pub allowed: CpuSet,
    /// The node that it was on last.
    pub last: Option<u32>,
    /// How long it ran on each node while it was observed, ns.
    pub ran: ByNode,
}

/// How a network interface of a VM leaves the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicPlacement {
    /// The tap, or the address of a PCI device that was given to the VM. Untrusted text.
    pub name: String,
    /// The NICs of the host by which its packets may leave.
    pub uplinks: Vec<Uplink>,
}

/// A NIC of the host, or a PCI device that was given to a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// The network interface, or the PCI address. Untrusted text.
    pub name: String,
    /// The node that it is connected to; `None` if the firmware does not say.
    pub node: Option<u32>,
    /// How many of its interrupts came to each node while threads were observed.
    pub interrupts: ByNode,
}

impl NumaHost {
    /// The node of a CPU.
    pub fn node_of(&self, cpu: u32) -> Option<u32> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id)
    }
}

impl VmMemory {
    /// What the vCPUs use: the guest's memory, or all if it is not known.
    pub fn used_by_vcpus(&self) -> &ByNode {
        self.guest.as_ref().map_or(&self.vmm, |guest| &guest.bytes)
    }
}

impl ThreadPlacement {
    /// Its share of time on each node, from 0 to 1: where it ran, or where it was last if it did not run.
    fn shares(&self) -> BTreeMap<u32, f64> {
        match total(&self.ran) {
            0 => self.last.map(|node| (node, 1.0)).into_iter().collect(),
            all => self.ran.iter().map(|(node, ran)| (*node, *ran as f64 / all as f64)).collect(),
        }
    }
}

/// The part of accesses, from 0 to 1, that go to another node, if threads use this memory alike. Threads that ran more count more;
/// if none ran, all count alike. `None` without memory, or if it is not known where the threads are.
pub fn remote_share(memory: &ByNode, threads: &[ThreadPlacement]) -> Option<f64> {
    let all = total(memory);
    let ran: u64 = threads.iter().fold(0, |sum, thread| sum.saturating_add(total(&thread.ran)));
    let weight = |thread: &ThreadPlacement| if ran == 0 { 1.0 } else { total(&thread.ran) as f64 };
    let mut by_node: BTreeMap<u32, f64> = BTreeMap::new();
    for thread in threads {
        for (node, share) in thread.shares() {
            *by_node.entry(node).or_default() += share * weight(thread);
        }
    }
    let weights: f64 = by_node.values().sum();
    if all == 0 || weights <= 0.0 {
        return None;
    }
    let local = |(node, bytes): (&u32, &u64)| {
        *bytes as f64 / all as f64 * by_node.get(node).copied().unwrap_or(0.0) / weights
    };
    Some((1.0 - memory.iter().map(local).sum::<f64>()).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(ran: &[(u32, u64)], last: u32) -> ThreadPlacement {
        ThreadPlacement { ran: ran.iter().copied().collect(), last: Some(last), ..ThreadPlacement::default() }
    }

    #[test]
    fn memory_is_remote_where_the_threads_do_not_run() {
        let memory = ByNode::from([(0, 300), (1, 100)]);
        let remote = |threads: &[ThreadPlacement]| remote_share(&memory, threads);
        assert_eq!(remote(&[thread(&[(0, 5)], 0)]), Some(0.25));
        assert_eq!(remote(&[thread(&[(1, 5)], 1)]), Some(0.75));
        // It ran as long on either node: half of all accesses are remote wherever the memory is.
        assert_eq!(remote(&[thread(&[(0, 5), (1, 5)], 0)]), Some(0.5));
        // A thread that ran three times as long has three times the weight.
        assert_eq!(remote(&[thread(&[(0, 3)], 0), thread(&[(1, 1)], 1)]), Some(0.375));
    }

    #[test]
    fn threads_that_did_not_run_are_where_they_were_last() {
        let memory = ByNode::from([(0, 100)]);
        assert_eq!(remote_share(&memory, &[thread(&[], 1)]), Some(1.0));
        assert_eq!(remote_share(&memory, &[thread(&[], 1), thread(&[], 0)]), Some(0.5));
        // One that ran tells more than one that did not.
        assert_eq!(remote_share(&memory, &[thread(&[], 1), thread(&[(0, 1)], 0)]), Some(0.0));
    }

    #[test]
    fn nothing_is_claimed_without_memory_or_threads() {
        let nowhere = ThreadPlacement::default();
        assert_eq!(remote_share(&ByNode::new(), &[thread(&[(0, 5)], 0)]), None);
        assert_eq!(remote_share(&ByNode::from([(0, 0)]), &[thread(&[(0, 5)], 0)]), None);
        assert_eq!(remote_share(&ByNode::from([(0, 9)]), &[]), None);
        assert_eq!(remote_share(&ByNode::from([(0, 9)]), &[nowhere]), None);
    }

    #[test]
    fn sums_saturate() {
        let most = ByNode::from([(0, u64::MAX), (1, u64::MAX)]);
        let share = remote_share(&most, &[thread(&[(0, u64::MAX), (1, u64::MAX)], 0)]).unwrap();
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}
