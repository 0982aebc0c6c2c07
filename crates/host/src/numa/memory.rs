//! The memory of a VM by node: `/proc/<pid>/numa_maps`, and `/proc/<pid>/maps`, which has the sizes of the mappings
//! (Documentation/filesystems/proc.rst, numa(7)).

use super::by_node;
use crate::cgroup::{self, Hierarchy};
use crate::cmdline::CommandLine;
use crate::root::Root;
use crate::task::Stat;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::host::{DataPlane, Vm};
use teiji_model::numa::{ByNode, GuestMemory, Node, VmMemory, add};

/// What the kernel has for a group, by the lines of `memory.numa_stat`.
const KERNEL: [&str; 5] =
    ["kernel_stack", "pagetables", "sec_pagetables", "slab_reclaimable", "slab_unreclaimable"];
/// Files below /dev whose mappings can be a guest's memory, also if they are not in huge pages; all others there are devices.
const MEMORY_FILES: [&str; 3] = ["/dev/shm/", "/dev/hugepages", "/dev/zero"];

/// The memory of a VM, and what cannot be told of it.
pub(super) fn memory(
    root: &Root,
    vm: &Vm,
    hierarchy: Option<&Hierarchy<'_>>,
    nodes: &[Node],
) -> (Option<VmMemory>, Vec<String>) {
    let mut unseen = Vec::new();
    let text = |file: &str| root.text(&format!("proc/{}/{file}", vm.pid));
    let maps = text("maps").unwrap_or_default();
    let Some(numa_maps) = text("numa_maps") else {
        let only = nodes.first().filter(|_| nodes.len() == 1);
        let resident = super::resident(root, vm.pid, Some(0)).first().copied();
        let Some((node, resident)) = only.zip(resident) else {
            unseen.push(format!("its memory, as /proc/{}/numa_maps cannot be read", vm.pid));
            return (None, unseen);
        };
        let vmm = ByNode::from([(node.id, resident)]);
        return (Some(VmMemory { vmm, ..VmMemory::default() }), unseen);
    };
    let parts =
        text("cmdline").map(|line| CommandLine::new(line.as_bytes()).memory_parts()).unwrap_or_default();
    let mappings = mappings(&maps, &numa_maps);
    let ram = ram(&mappings, &parts);
    if ram.is_none() {
        let why = match parts.is_empty() {
            true => "the command line does not say how much the VM has",
            false => "no mappings are as large as the VM's memory",
        };
        unseen.push(format!("which memory of the VMM is the guest's, as {why}"));
    }
    let mut memory = divided(&numa_maps, &mappings, ram.as_ref());
    if let Some(guest) = &mut memory.guest {
        let passed = vm.nics.iter().any(|nic| nic.data_plane == DataPlane::Passthrough);
        guest.pinned = passed || maps.lines().any(|line| line.contains("vfio"));
    }
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

/// The mappings, by their first addresses, in the text of `/proc/<pid>/maps`. `numa_maps` says which have huge pages.
fn mappings(maps: &str, numa_maps: &str) -> BTreeMap<u64, Mapping> {
    let in_huge_pages = numa_maps.lines().filter(|line| line.split(' ').any(|word| word == "huge"));
    let in_huge_pages: BTreeSet<u64> = in_huge_pages.filter_map(first_address).collect();
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
            _ => {
                let device =
                    path.starts_with("/dev/") && !MEMORY_FILES.iter().any(|file| path.starts_with(file));
                !device || in_huge_pages.contains(&from)
            }
        };
        let plain = memory && rights.starts_with("rw");
        Some((from, Mapping { size: to.checked_sub(from)?, plain, shared: rights.ends_with('s') }))
    };
    maps.lines().filter_map(mapping).collect()
}

/// The address at the beginning of a line of a `numa_maps`.
fn first_address(line: &str) -> Option<u64> {
    u64::from_str_radix(line.split(' ').next()?, 16).ok()
}

/// The mappings that are a guest's memory with parts of these sizes, by their first addresses: those of exactly these sizes, otherwise the
/// largest ones that together are as large. `None` if all together are smaller.
fn ram(mappings: &BTreeMap<u64, Mapping>, parts: &[u64]) -> Option<BTreeSet<u64>> {
    let bytes = parts.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
    let mut largest: Vec<(u64, u64)> = mappings
        .iter()
        .filter(|(_, mapping)| mapping.plain)
        .map(|(from, mapping)| (mapping.size, *from))
        .collect();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    let mut left = largest.clone();
    let exact = parts.iter().map(|part| {
        let at = left.iter().position(|(size, _)| size == part)?;
        Some(left.remove(at).1)
    });
    if let (Some(exact), false) = (exact.collect::<Option<BTreeSet<u64>>>(), parts.is_empty()) {
        return Some(exact);
    }
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
        let (page, bytes) = super::mapped(line);
        let from = first_address(line);
        let of_guest = from.filter(|from| ram.is_some_and(|ram| ram.contains(from)));
        let (Some(from), Some(guest)) = (of_guest, &mut memory.guest) else {
            add_all(&mut memory.vmm, &bytes);
            continue;
        };
        add_all(&mut guest.bytes, &bytes);
        if words().any(|word| word == "huge") {
            add_all(&mut guest.huge, &bytes);
            guest.huge_sizes.insert(page);
        }
        guest.bound |= words().nth(1).is_some_and(|policy| policy.starts_with("bind"));
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
    // Kernel threads for the VM are in its group, too: vhost workers, and KVM's kvm-nx-lpage-recovery before Linux 6.13.
    let of_kernel = |pid: u32| Stat::read(root, pid).is_some_and(|stat| stat.is_kernel_thread());
    let is_own = |pid: &u32| *pid == vm.pid || of_kernel(*pid);
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
        let mappings = mappings(MAPS, NUMA_MAPS);
        let of = |bytes: u64| ram(&mappings, &[bytes]).map(Vec::from_iter);
        assert_eq!(of(512 << 20), Some(vec![0x7f00_0000_0000]));
        assert_eq!(of(16 << 20), Some(vec![0x7f00_4000_0000]));
        // No mapping of that size, so the largest ones; neither the device nor what cannot be written.
        assert_eq!(of(520 << 20), Some(vec![0x7f00_0000_0000, 0x7f00_4000_0000]));
        assert_eq!(of(529 << 20), None);
        assert_eq!(of(0), None);
        // Each part has a mapping of its own, though one is larger than others together.
        let parts = |parts: &[u64]| ram(&mappings, parts).map(Vec::from_iter);
        assert_eq!(parts(&[16 << 20, 512 << 20]), Some(vec![0x7f00_0000_0000, 0x7f00_4000_0000]));
        assert_eq!(parts(&[16 << 20, 16 << 20]), Some(vec![0x7f00_0000_0000]));
        assert_eq!(parts(&[]), None);
    }

    #[test]
    fn memory_is_divided_by_node_and_owner() {
        let mappings = mappings(MAPS, NUMA_MAPS);
        let taken = ram(&mappings, &[528 << 20]).unwrap();
        let memory = divided(NUMA_MAPS, &mappings, Some(&taken));
        let guest = memory.guest.unwrap();
        assert_eq!(guest.bytes, ByNode::from([(0, 100 << 12), (1, (130_972 << 12) + (16 << 20))]));
        assert_eq!(guest.huge, ByNode::from([(1, 16 << 20)]));
        assert_eq!((guest.huge_sizes, guest.bound, guest.pinned), (BTreeSet::from([2 << 20]), true, false));
        assert_eq!(guest.shared, ByNode::from([(1, 16 << 20)]));
        assert_eq!(memory.vmm, ByNode::from([(0, 6 << 12), (1, 2 << 12)]));
    }

    #[test]
    fn huge_pages_are_memory_wherever_their_file_is() {
        let maps = "7f0000000000-7f0020000000 rw-s 00000000 00:01 1034 /dev/huge/a\n";
        let is_plain = |numa_maps: &str| mappings(maps, numa_maps)[&0x7f00_0000_0000].plain;
        assert!(is_plain("7f0000000000 default file=/dev/huge/a huge dirty=8 N1=8 kernelpagesize_kB=2048\n"));
        assert!(!is_plain("7f0000000000 default file=/dev/huge/a\n"));
    }

    #[test]
    fn without_known_memory_all_is_the_vmms() {
        let memory = divided(NUMA_MAPS, &mappings(MAPS, NUMA_MAPS), None);
        assert_eq!(memory.guest, None);
        assert_eq!(memory.vmm, ByNode::from([(0, 106 << 12), (1, (130_974 << 12) + (16 << 20))]));
    }

    #[test]
    fn nonsense_is_nothing() {
        for maps in ["", "x", "7f-", "zz-7f rw-p", "8-7 rw-p 0 0 0", "\u{fffd}"] {
            assert_eq!(mappings(maps, ""), BTreeMap::new(), "{maps}");
        }
        let huge = "7f00 default N0=18446744073709551615 N99999999999=4 Nx=1 N1 kernelpagesize_kB=18446744073709551615";
        assert_eq!(divided(huge, &BTreeMap::new(), None).vmm, ByNode::from([(0, u64::MAX)]));
    }
}
