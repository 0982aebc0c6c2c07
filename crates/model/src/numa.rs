//! Where the memory, the threads and the NICs of VMs are on a host with NUMA nodes, and how many of a VM's memory accesses are
//! remote: go to another node than the thread is on.
//!
//! The share of remote accesses assumes that each thread uses all of the guest's memory equally. A guest that was given nodes of its
//! own may do better.

use crate::cpus::CpuSet;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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
    pub vms: Vec<VmNodes>,
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
    /// What the kernel itself has there, bytes: slab, stacks and page tables (those of KVM among them).
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
    /// How many of this size are reserved on the whole host: nobody has them yet. The kernel does not say on which node.
    pub reserved: u64,
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
pub struct VmNodes {
    /// The VM's name. Untrusted text.
    pub name: String,
    /// The process id of its VMM.
    pub pid: u32,
    /// The memory that it was promised by its command line, bytes, if that says so.
    pub size: Option<u64>,
    /// The memory that it has now; `None` if that cannot be read.
    pub memory: Option<VmMemory>,
    /// Its vCPUs, by index.
    pub vcpus: Vec<ThreadNodes>,
    /// Its vhost workers.
    pub workers: Vec<ThreadNodes>,
    /// Its network interfaces.
    pub nics: Vec<NicNodes>,
    /// What cannot be told of it, printable.
    pub unseen: Vec<String>,
    /// The share of its vCPUs' memory accesses that are remote, from 0 to 1 ([`remote_accesses`]); `None` if it cannot be told.
    pub remote_accesses: Option<f64>,
    /// The same of its vhost workers, which copy packets to and from this memory.
    pub remote_accesses_of_workers: Option<f64>,
    /// Whether nothing that matters is remote; `false` also if that cannot be told.
    pub well: bool,
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
    /// The sizes of these huge pages, bytes.
    pub huge_sizes: BTreeSet<u64>,
    /// The part of `bytes` that other processes can have, too (a file, memfd or shared memory), as with vhost-user.
    pub shared: ByNode,
    /// Whether a memory policy binds some of it to nodes (`mbind(2)`, QEMU's `policy=bind`).
    pub bound: bool,
    /// Whether it is pinned for a device that was given to the VM (VFIO): the kernel does not move it.
    pub pinned: bool,
}

/// Where a thread runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadNodes {
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
    /// How much of that may count for the wrong node, ns, as two looks found it on different nodes. A move there and back between two looks
    /// is not seen.
    pub uncertain: u64,
}

/// How a network interface of a VM leaves the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicNodes {
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

impl VmNodes {
    /// The nodes of the NICs of the host that it uses, as far as they are known.
    pub fn nic_nodes(&self) -> BTreeSet<u32> {
        self.nics.iter().flat_map(|nic| &nic.uplinks).filter_map(|uplink| uplink.node).collect()
    }
}

/// The share of the threads' time on each node: where they ran; if none ran, where they were last. Empty if that is not known.
pub fn time_shares<'t>(threads: impl Iterator<Item = &'t ThreadNodes> + Clone) -> BTreeMap<u32, f64> {
    let mut time = ByNode::new();
    for (node, ns) in threads.clone().flat_map(|thread| &thread.ran) {
        add(&mut time, *node, *ns);
    }
    if total(&time) == 0 {
        time.clear();
        threads.filter_map(|thread| thread.last).for_each(|node| add(&mut time, node, 1));
    }
    let all = total(&time) as f64;
    time.into_iter().filter(|(_, ns)| *ns > 0).map(|(node, ns)| (node, ns as f64 / all)).collect()
}

/// The share of these threads' memory accesses that go to another node, from 0 to 1, if they use this memory equally. `None` without
/// memory, or if it is not known where the threads are.
pub fn remote_accesses(memory: &ByNode, threads: &[ThreadNodes]) -> Option<f64> {
    let (all, time) = (total(memory), time_shares(threads.iter()));
    if all == 0 || time.is_empty() {
        return None;
    }
    let local = |(node, share): (&u32, &f64)| {
        memory.get(node).map_or(0.0, |bytes| *bytes as f64 / all as f64 * share)
    };
    Some((1.0 - time.iter().map(local).sum::<f64>()).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(ran: &[(u32, u64)], last: u32) -> ThreadNodes {
        ThreadNodes { ran: ran.iter().copied().collect(), last: Some(last), ..ThreadNodes::default() }
    }

    #[test]
    fn memory_is_remote_where_the_threads_do_not_run() {
        let memory = ByNode::from([(0, 300), (1, 100)]);
        let remote = |threads: &[ThreadNodes]| remote_accesses(&memory, threads);
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
        assert_eq!(remote_accesses(&memory, &[thread(&[], 1)]), Some(1.0));
        assert_eq!(remote_accesses(&memory, &[thread(&[], 1), thread(&[], 0)]), Some(0.5));
        // One that ran tells more than one that did not.
        assert_eq!(remote_accesses(&memory, &[thread(&[], 1), thread(&[(0, 1)], 0)]), Some(0.0));
    }

    #[test]
    fn nothing_is_claimed_without_memory_or_threads() {
        let nowhere = ThreadNodes::default();
        assert_eq!(remote_accesses(&ByNode::new(), &[thread(&[(0, 5)], 0)]), None);
        assert_eq!(remote_accesses(&ByNode::from([(0, 0)]), &[thread(&[(0, 5)], 0)]), None);
        assert_eq!(remote_accesses(&ByNode::from([(0, 9)]), &[]), None);
        assert_eq!(remote_accesses(&ByNode::from([(0, 9)]), &[nowhere]), None);
    }

    #[test]
    fn sums_saturate() {
        let most = ByNode::from([(0, u64::MAX), (1, u64::MAX)]);
        let share = remote_accesses(&most, &[thread(&[(0, u64::MAX), (1, u64::MAX)], 0)]).unwrap();
        assert!((0.0..=1.0).contains(&share), "{share}");
    }
}
