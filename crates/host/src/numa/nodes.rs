//! The nodes of the host: `/sys/devices/system/node` (Documentation/ABI/stable/sysfs-devices-node,
//! Documentation/admin-guide/mm/numaperf.rst).

use crate::root::Root;
use std::collections::BTreeMap;
use teiji_model::cpus::CpuSet;
use teiji_model::numa::{Access, HugePages, Node};

const NODES: &str = "sys/devices/system/node";
/// Lines of a `meminfo` with what the kernel itself has.
const KERNEL: [&str; 4] = ["Slab", "KernelStack", "PageTables", "SecPageTables"];
/// Lines with what files are cached in.
const CACHE: [&str; 2] = ["Active(file)", "Inactive(file)"];

/// The nodes that are online, by their numbers. A kernel without NUMA has one.
pub(super) fn nodes(root: &Root) -> Vec<Node> {
    let online = root.text(&format!("{NODES}/online")).and_then(|text| text.parse::<CpuSet>().ok());
    // Lists of nodes have the format of lists of CPUs.
    let ids: Vec<u32> = online.iter().flat_map(CpuSet::iter).collect();
    if ids.is_empty() {
        return vec![only(root)];
    }
    ids.iter().map(|id| node(root, *id, &ids)).collect()
}

/// The host as one node.
fn only(root: &Root) -> Node {
    let memory = root.text("proc/meminfo").unwrap_or_default();
    let cpus = root.online().unwrap_or_default();
    let distances = BTreeMap::from([(0, teiji_model::numa::LOCAL_DISTANCE)]);
    Node { id: 0, cpus, distances, ..with_memory(&memory) }
}

fn node(root: &Root, id: u32, all: &[u32]) -> Node {
    let dir = format!("{NODES}/node{id}");
    let text = |file: &str| root.text(&format!("{dir}/{file}")).unwrap_or_default();
    let distances = text("distance");
    let distances = distances.split_whitespace().filter_map(|word| word.parse().ok());
    Node {
        id,
        cpus: text("cpulist").parse().unwrap_or_default(),
        huge_pages: huge_pages(root, &dir),
        distances: all.iter().copied().zip(distances).collect(),
        // Class 1 has CPUs only, class 0 whatever initiates accesses.
        access: access(root, &dir, 1).or_else(|| access(root, &dir, 0)),
        ..with_memory(&text("meminfo"))
    }
}

/// A node of which only the memory is known: by lines such as `Node 0 MemTotal:  3016 kB`, or `MemTotal:  3016 kB`.
fn with_memory(meminfo: &str) -> Node {
    let bytes = |name: &str| {
        let value = |line: &str| {
            let (before, after) = line.split_once(':')?;
            let named = before.split_whitespace().next_back() == Some(name);
            after.split_whitespace().next().filter(|_| named)?.parse::<u64>().ok()
        };
        meminfo.lines().find_map(value).map(|kib| kib.saturating_mul(1024))
    };
    let named = |name: &str| bytes(name).unwrap_or(0);
    Node {
        memory: named("MemTotal"),
        free: named("MemFree"),
        available: named("MemFree")
            .saturating_add(CACHE.into_iter().map(named).fold(0, u64::saturating_add) / 2),
        kernel: KERNEL.into_iter().map(named).fold(0, u64::saturating_add),
        ..Node::default()
    }
}

fn huge_pages(root: &Root, dir: &str) -> Vec<HugePages> {
    let of = |name: &String| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()?;
        let number = |file: &str| root.number(&format!("{dir}/hugepages/{name}/{file}"));
        let total = number("nr_hugepages")?;
        let reserved = root.number(&format!("sys/kernel/mm/hugepages/{name}/resv_hugepages")).unwrap_or(0);
        Some(HugePages { size: kib.checked_mul(1024)?, total, free: number("free_hugepages")?, reserved })
    };
    let mut all: Vec<HugePages> =
        root.names(&format!("{dir}/hugepages")).iter().filter_map(of).filter(|huge| huge.total > 0).collect();
    all.sort_unstable_by_key(|huge| huge.size);
    all
}

fn access(root: &Root, dir: &str, class: u32) -> Option<Access> {
    let number = |file: &str| root.number(&format!("{dir}/access{class}/initiators/{file}"));
    let read_latency = number("read_latency").filter(|ns| *ns > 0)?;
    Some(Access { read_latency, read_bandwidth: number("read_bandwidth").unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::new(dir.path());
        (dir, root)
    }

    #[test]
    fn nodes_have_gaps_and_some_have_no_cpus() {
        let meminfo = "\nNode 2 MemTotal:       1000 kB\nNode 2 MemFree:         300 kB\nNode 2 Active(file): 10 kB\nNode 2 Inactive(file): 40 kB\nNode 2 Slab:        20 kB\n\
                       Node 2 KernelStack:         3 kB\nNode 2 PageTables:       4 kB\nNode 2 SUnreclaim: 9 kB\n";
        let node = "sys/devices/system/node/node2";
        let (_dir, root) = host(&[
            ("sys/devices/system/node/online", "0,2\n"),
            ("sys/devices/system/node/node0/cpulist", "0-1,4\n"),
            ("sys/devices/system/node/node0/distance", "10 32\n"),
            (&format!("{node}/cpulist"), "\n"),
            (&format!("{node}/distance"), "32 10\n"),
            (&format!("{node}/meminfo"), meminfo),
            (&format!("{node}/hugepages/hugepages-1048576kB/nr_hugepages"), "0\n"),
            (&format!("{node}/hugepages/hugepages-1048576kB/free_hugepages"), "0\n"),
            (&format!("{node}/hugepages/hugepages-2048kB/nr_hugepages"), "8\n"),
            (&format!("{node}/hugepages/hugepages-2048kB/free_hugepages"), "5\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "3\n"),
            (&format!("{node}/access0/initiators/read_latency"), "120\n"),
            (&format!("{node}/access0/initiators/read_bandwidth"), "9000\n"),
        ]);
        let nodes = nodes(&root);
        assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(nodes[0].cpus.to_string(), "0-1,4");
        assert_eq!(nodes[0].distances, BTreeMap::from([(0, 10), (2, 32)]));
        assert!(nodes[1].cpus.is_empty() && nodes[0].access.is_none());
        assert_eq!((nodes[1].memory, nodes[1].free, nodes[1].kernel), (1_024_000, 307_200, 27 * 1024));
        assert_eq!(nodes[1].available, 325 * 1024);
        assert_eq!(nodes[1].huge_pages, [HugePages { size: 2 << 20, total: 8, free: 5, reserved: 3 }]);
        assert_eq!(nodes[1].access, Some(Access { read_latency: 120, read_bandwidth: 9000 }));
    }

    #[test]
    fn a_kernel_without_numa_has_one_node() {
        let (_dir, root) = host(&[
            ("sys/devices/system/cpu/online", "0-1\n"),
            ("proc/meminfo", "MemTotal:  100 kB\nMemFree:  40 kB\nSlab:  2 kB\n"),
        ]);
        let nodes = nodes(&root);
        assert_eq!(nodes.len(), 1);
        assert_eq!((nodes[0].id, nodes[0].memory, nodes[0].kernel), (0, 102_400, 2048));
        assert_eq!(nodes[0].cpus.to_string(), "0-1");
    }
}
