//! The memory of a VM by node: `/proc/<pid>/numa_maps`, and `/proc/<pid>/maps`, which has the sizes of the mappings
//! (Documentation/filesystems/proc.rst, numa(7)).

use super::by_node;
use crate::cgroup::{self, Hierarchy};
use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::Vm;
use teiji_model::numa::{ByNode, GuestMemory, Node, VmMemory, add};

/// What the kernel has for a group, by the lines of `memory.numa_stat`.
const KERNEL: [&str; 5] =
    ["kernel_stack", "pagetables", "sec_pagetables", "slab_reclaimable", "slab_unreclaimable"];
/// Files whose mappings can be a guest's memory; devices, such as the registers of a NIC, cannot.
const MEMORY_FILES: [&str; 4] = ["/dev/shm/", "/dev/hugepages", "/dev/zero", "/memfd:"];

/// The memory of a VM, and what cannot be told of it.
pub(super) fn memory(
    root: &Root,
    vm: &Vm,
    hierarchy: Option<&Hierarchy<'_>>,
    nodes: &[Node],
) -> (Option<VmMemory>, Vec<String>) {
    let mut unseen = Vec::new();
    let maps = root.text(&format!("proc/{}/maps", vm.pid)).unwrap_or_default();
    let Some(numa_maps) = root.text(&format!("proc/{}/numa_maps", vm.pid)) else {
        let only = nodes.first().filter(|_| nodes.len() == 1);
        let resident = super::resident(root, vm.pid, Some(0)).first().copied();
        let Some((node, resident)) = only.zip(resident) else {
            unseen.push("its memory, as /proc/PID/numa_maps cannot be read: that takes root".to_owned());
            return (None, unseen);
        };
        let vmm = ByNode::from([(node.id, resident)]);
        return (Some(VmMemory { vmm, ..VmMemory::default() }), unseen);
    };
    let mappings = mappings(&maps);
    let ram = vm.memory.and_then(|bytes| ram(&mappings, bytes));
    if ram.is_none() {
        unseen.push(
            "which memory of the VMM is the guest's: no mappings are as large as the VM's memory".to_owned(),
        );
    }
    let mut memory = divided(&numa_maps, &mappings, ram.as_ref());
    memory.kernel = hierarchy.and_then(|hierarchy| of_kernel(hierarchy, root, vm));
    (Some(memory), unseen)
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    size: u64,
    /// Whether it can be a guest's memory: it is readable and writable, and no device.
    plain: bool,
    shared: bool,
}

/// The mappings, by their first addresses, in the text of `/proc/<pid>/maps`.
fn mappings(maps: &str) -> BTreeMap<u64, Mapping> {
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        let rights = rest.split(' ').next()?;
        // The path may have blanks; it comes after three more words.
        let path = rest.splitn(5, ' ').nth(4).unwrap_or_default().trim_start();
        let memory = match path {
            "" => true,
            // [heap], [stack], [vdso]; anon_inode:kvm-vcpu:0
            _ if path.starts_with('[') || path.starts_with("anon_inode:") => false,
            _ => !path.starts_with("/dev/") || MEMORY_FILES.iter().any(|file| path.starts_with(file)),
        };
        let plain = memory && rights.starts_with("rw");
        Some((from, Mapping { size: to.checked_sub(from)?, plain, shared: rights.ends_with('s') }))
    };
    maps.lines().filter_map(mapping).collect()
}

/// The mappings that are a guest's memory of so many bytes, by their first addresses: the one of exactly this size, otherwise the
/// largest ones that together have as much. `None` if all together are smaller.
fn ram(mappings: &BTreeMap<u64, Mapping>, bytes: u64) -> Option<BTreeSet<u64>> {
    let plain = mappings.iter().filter(|(_, mapping)| mapping.plain);
    let mut exact = plain.clone().filter(|(_, mapping)| mapping.size == bytes);
    if let (Some((from, _)), None) = (exact.next(), exact.next()) {
        return Some(BTreeSet::from([*from]));
    }
    let mut largest: Vec<(u64, u64)> = plain.map(|(from, mapping)| (mapping.size, *from)).collect();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    let (mut sum, mut taken) = (0u64, BTreeSet::new());
    for (size, from) in largest {
        if sum >= bytes {
            break;
        }
        sum = sum.saturating_add(size);
        taken.insert(from);
    }
    (bytes > 0 && sum >= bytes).then_some(taken)
}

/// What is in the text of a `numa_maps`, divided into the guest's, which is in the mappings `ram`, and the VMM's own.
fn divided(numa_maps: &str, mappings: &BTreeMap<u64, Mapping>, ram: Option<&BTreeSet<u64>>) -> VmMemory {
    let mut memory = VmMemory { guest: ram.map(|_| GuestMemory::default()), ..VmMemory::default() };
    for line in numa_maps.lines() {
        let words = || line.split(' ');
        let kib = words().find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
        let bytes = by_node(words(), kib.unwrap_or(4).saturating_mul(1024));
        let from = words().next().and_then(|address| u64::from_str_radix(address, 16).ok());
        let of_guest = from.filter(|from| ram.is_some_and(|ram| ram.contains(from)));
        let (Some(from), Some(guest)) = (of_guest, &mut memory.guest) else {
            add_all(&mut memory.vmm, &bytes);
            continue;
        };
        add_all(&mut guest.bytes, &bytes);
        if words().any(|word| word == "huge") {
            add_all(&mut guest.huge, &bytes);
            guest.huge_page = guest.huge_page.max(kib.map(|kib| kib.saturating_mul(1024)));
        }
        if mappings.get(&from).is_some_and(|mapping| mapping.shared) {
            add_all(&mut guest.shared, &bytes);
        }
    }
    memory
}

fn add_all(sum: &mut ByNode, amounts: &ByNode) {
    amounts.iter().for_each(|(node, amount)| add(sum, *node, *amount));
}

/// What the kernel has for the VM, if it has a control group for itself that counts memory.
fn of_kernel(hierarchy: &Hierarchy<'_>, root: &Root, vm: &Vm) -> Option<ByNode> {
    let mut group = cgroup::common(&hierarchy.of_threads(vm.pid))?;
    // A worker that is a kernel thread is listed as a process.
    let is_own = |pid: &u32| *pid == vm.pid || vm.workers.iter().any(|worker| worker.tid == *pid);
    // The groups of single threads, as libvirt makes them, count no memory.
    let stat = loop {
        let own = hierarchy.members(&group)?.iter().all(is_own);
        if group == "/" || !own {
            return None;
        }
        if let Some(stat) = root.text(&hierarchy.path(&group, "memory.numa_stat")) {
            break stat;
        }
        group = cgroup::parent(&group)?.to_owned();
    };
    let mut sum = ByNode::new();
    for line in stat.lines() {
        let mut words = line.split(' ');
        if words.next().is_some_and(|what| KERNEL.contains(&what)) {
            add_all(&mut sum, &by_node(words, 1));
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c1000000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0020000000 rw-p 00000000 00:00 0 
7f0030000000-7f0034000000 ---p 00000000 00:00 0 
7f0040000000-7f0041000000 rw-s 00000000 00:01 1034                       /memfd:pc.ram (deleted)
7f0050000000-7f0090000000 rw-s 00000000 00:0e 77                         /dev/vfio/12
7f00a0000000-7f00a0002000 rw-s 00000000 00:0e 1064                       anon_inode:kvm-vcpu:0
7f00b0000000-7f00b4000000 r-xp 00000000 08:01 99                         /usr/bin/qemu system
";
    const NUMA_MAPS: &str = "\
55d0c0000000 default heap anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4
7f0000000000 bind:1 anon=131072 dirty=131072 N0=100 N1=130972 kernelpagesize_kB=4
7f0040000000 default file=/memfd:pc.ram\\040(deleted) huge dirty=8 N1=8 kernelpagesize_kB=2048
7f0050000000 default file=/dev/vfio/12
7f00b0000000 default file=/usr/bin/qemu\\040system mapped=5 N0=5 kernelpagesize_kB=4
";

    #[test]
    fn the_mapping_of_the_vms_size_is_the_guests_memory() {
        let mappings = mappings(MAPS);
        let of = |bytes: u64| ram(&mappings, bytes).map(Vec::from_iter);
        assert_eq!(of(512 << 20), Some(vec![0x7f00_0000_0000]));
        assert_eq!(of(16 << 20), Some(vec![0x7f00_4000_0000]));
        // No mapping of that size, so the largest ones; neither the device nor what cannot be written.
        assert_eq!(of(520 << 20), Some(vec![0x7f00_0000_0000, 0x7f00_4000_0000]));
        assert_eq!(of(529 << 20), None);
        assert_eq!(of(0), None);
    }

    #[test]
    fn memory_is_divided_by_node_and_owner() {
        let mappings = mappings(MAPS);
        let taken = ram(&mappings, 528 << 20).unwrap();
        let memory = divided(NUMA_MAPS, &mappings, Some(&taken));
        let guest = memory.guest.unwrap();
        assert_eq!(guest.bytes, ByNode::from([(0, 100 << 12), (1, (130_972 << 12) + (16 << 20))]));
        assert_eq!(guest.huge, ByNode::from([(1, 16 << 20)]));
        assert_eq!(guest.huge_page, Some(2 << 20));
        assert_eq!(guest.shared, ByNode::from([(1, 16 << 20)]));
        assert_eq!(memory.vmm, ByNode::from([(0, 6 << 12), (1, 2 << 12)]));
    }

    #[test]
    fn without_known_memory_all_is_the_vmms() {
        let memory = divided(NUMA_MAPS, &mappings(MAPS), None);
        assert_eq!(memory.guest, None);
        assert_eq!(memory.vmm, ByNode::from([(0, 106 << 12), (1, (130_974 << 12) + (16 << 20))]));
    }

    #[test]
    fn nonsense_is_nothing() {
        for maps in ["", "x", "7f-", "zz-7f rw-p", "8-7 rw-p 0 0 0", "\u{fffd}"] {
            assert_eq!(mappings(maps), BTreeMap::new(), "{maps}");
        }
        let huge = "7f00 default N0=18446744073709551615 N99999999999=4 Nx=1 N1 kernelpagesize_kB=18446744073709551615";
        assert_eq!(divided(huge, &BTreeMap::new(), None).vmm, ByNode::from([(0, u64::MAX)]));
    }
}
