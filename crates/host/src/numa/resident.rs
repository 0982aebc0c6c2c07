//! A VMM's resident memory by NUMA node.

use crate::root::Root;

/// Above this much resident memory (bytes) `numa_maps` is not read: for it the kernel walks every page table while it
/// holds the VMM's memory map lock, which could itself delay the VM.
const CHEAP: u64 = 4 << 30;

/// The number of the host's last NUMA node; `None` if it is not known.
pub(crate) fn last_node(root: &Root) -> Option<usize> {
    let nodes = root.names("sys/devices/system/node");
    nodes.iter().filter_map(|n| n.strip_prefix("node")?.parse::<usize>().ok()).max()
}

/// Resident bytes by node, `last` being the host's last one; empty if reading them would be expensive.
pub(crate) fn resident(root: &Root, pid: u32, last: Option<usize>) -> Vec<u64> {
    let Some(rss) = rss(root, pid) else { return Vec::new() };
    match last {
        None | Some(0) => vec![rss],
        Some(last) if rss <= CHEAP && last < 1024 => {
            root.text(&format!("proc/{pid}/numa_maps")).map(|text| sum(&text, last + 1)).unwrap_or_default()
        }
        Some(_) => Vec::new(),
    }
}

/// `VmRSS` of a process, bytes.
fn rss(root: &Root, pid: u32) -> Option<u64> {
    let status = root.text(&format!("proc/{pid}/status"))?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?.split_whitespace().next()?;
    kib.parse::<u64>().ok().map(|k| k.saturating_mul(1024))
}

/// Adds up what is mapped, bytes by node.
fn sum(maps: &str, nodes: usize) -> Vec<u64> {
    let mut bytes = vec![0u64; nodes];
    for (node, more) in maps.lines().flat_map(|line| super::mapped(line).1) {
        if let Some(slot) = bytes.get_mut(node as usize) {
            *slot = slot.saturating_add(more);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn mappings_add_up_by_node() {
        let maps = "7f00 default anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4\n\
                    7f80 default file=/x N1=1 kernelpagesize_kB=2048\n7fff default\n";
        assert_eq!(super::sum(maps, 2), [4096, 8192 + (2 << 20)]);
    }
}
