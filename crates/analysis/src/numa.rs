//! What is remote of each VM on a host with NUMA nodes: memory from its vCPUs, from its vhost workers, and NICs from both.

use std::collections::BTreeSet;
use teiji_model::numa::{ByNode, NumaHost, ThreadPlacement, VmPlacement, remote_share, total};
use teiji_model::text::percent;

/// A share from which on something is said to be remote. Below it are pages that VMs have in common with the rest of the host, such as
/// libraries.
const LEAST: f64 = 0.01;

/// Works out the shares and the headline of each VM.
pub fn assess(host: &mut NumaHost) {
    let one = host.nodes.len() < 2;
    for vm in &mut host.vms {
        let memory = vm.memory.as_ref().map(|memory| memory.used_by_vcpus());
        vm.remote = memory.and_then(|memory| remote_share(memory, &vm.vcpus));
        vm.remote_of_workers = memory.and_then(|memory| remote_share(memory, &vm.workers));
        vm.headline = if one { "the host has one node: nothing is remote".to_owned() } else { headline(vm) };
    }
}

fn headline(vm: &VmPlacement) -> String {
    let far = |share: Option<f64>| share.filter(|share| *share >= LEAST);
    let nodes: BTreeSet<u32> = vm.vcpus.iter().flat_map(nodes).collect();
    match (vm.remote, far(vm.remote), far(vm.remote_of_workers)) {
        (None, ..) => "where its memory or its vCPUs are cannot be told".to_owned(),
        (_, Some(share), _) if nodes.len() > 1 => {
            format!("vCPUs run on {} nodes: {} of its memory is remote", nodes.len(), percent(share))
        }
        (_, Some(share), _) => format!("{} of its memory is remote from its vCPUs", percent(share)),
        (_, None, Some(share)) => {
            format!("{} of its memory is remote from its vhost workers", percent(share))
        }
        (..) => match far_nic(vm, &nodes) {
            Some(node) => format!("its memory is local, but its NIC is at node {node}"),
            None => "its memory is local to its threads".to_owned(),
        },
    }
}

/// The nodes that a thread ran on, or was on last.
fn nodes(thread: &ThreadPlacement) -> BTreeSet<u32> {
    let ran = |ran: &ByNode| ran.iter().filter(|(_, ns)| **ns > 0).map(|(node, _)| *node).collect();
    if total(&thread.ran) > 0 { ran(&thread.ran) } else { thread.last.into_iter().collect() }
}

/// The node of a NIC, if all NICs that the VM uses are on other nodes than its vCPUs.
fn far_nic(vm: &VmPlacement, nodes: &BTreeSet<u32>) -> Option<u32> {
    let of_nics: BTreeSet<u32> =
        vm.nics.iter().flat_map(|nic| &nic.uplinks).filter_map(|uplink| uplink.node).collect();
    of_nics.first().copied().filter(|_| of_nics.is_disjoint(nodes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::numa::{GuestMemory, NicPlacement, Node, Uplink, VmMemory};

    fn by_node(amounts: &[(u32, u64)]) -> ByNode {
        amounts.iter().copied().collect()
    }

    fn thread(ran: &[(u32, u64)]) -> ThreadPlacement {
        ThreadPlacement { ran: by_node(ran), last: Some(0), ..ThreadPlacement::default() }
    }

    /// The result for a VM with this memory of the guest, whose vCPUs and workers ran so.
    fn assessed(
        memory: &[(u32, u64)],
        vcpus: &[&[(u32, u64)]],
        workers: &[&[(u32, u64)]],
        nic: u32,
    ) -> VmPlacement {
        let guest = Some(GuestMemory { bytes: by_node(memory), ..GuestMemory::default() });
        // What the VMM has itself does not count.
        let memory = Some(VmMemory { guest, vmm: by_node(&[(3, 1 << 40)]), kernel: None });
        let uplink = Uplink { name: "eth0".into(), node: Some(nic), interrupts: ByNode::new() };
        let vm = VmPlacement {
            memory,
            vcpus: vcpus.iter().map(|ran| thread(ran)).collect(),
            workers: workers.iter().map(|ran| thread(ran)).collect(),
            nics: vec![NicPlacement { name: "tap0".into(), uplinks: vec![uplink] }],
            ..VmPlacement::default()
        };
        let nodes = (0..4).map(|id| Node { id, ..Node::default() }).collect();
        let mut host = NumaHost { nodes, observed: 0, vms: vec![vm] };
        assess(&mut host);
        let vm = host.vms.remove(0);
        assert!(vm.headline.split(' ').count() <= 12, "{}", vm.headline);
        vm
    }

    #[test]
    fn what_matters_most_is_said() {
        let said = |memory: &[(u32, u64)], vcpus: &[&[(u32, u64)]], workers: &[&[(u32, u64)]], nic| {
            assessed(memory, vcpus, workers, nic).headline
        };
        assert_eq!(said(&[(0, 9)], &[&[(0, 5)]], &[&[(0, 1)]], 0), "its memory is local to its threads");
        assert_eq!(
            said(&[(0, 25), (1, 75)], &[&[(0, 5)]], &[&[(1, 1)]], 0),
            "75 % of its memory is remote from its vCPUs"
        );
        assert_eq!(
            said(&[(0, 100)], &[&[(0, 5)], &[(1, 5)]], &[], 0),
            "vCPUs run on 2 nodes: 50 % of its memory is remote"
        );
        assert_eq!(
            said(&[(0, 100)], &[&[(0, 5)]], &[&[(1, 5)]], 1),
            "100 % of its memory is remote from its vhost workers"
        );
        assert_eq!(
            said(&[(0, 100)], &[&[(0, 5)]], &[&[(0, 5)]], 1),
            "its memory is local, but its NIC is at node 1"
        );
        assert_eq!(said(&[], &[&[(0, 5)]], &[], 0), "where its memory or its vCPUs are cannot be told");
        // Less than a hundredth is no matter.
        assert_eq!(said(&[(0, 995), (1, 5)], &[&[(0, 5)]], &[], 0), "its memory is local to its threads");
    }

    #[test]
    fn shares_are_those_of_the_guests_memory() {
        let vm = assessed(&[(0, 25), (1, 75)], &[&[(0, 5)]], &[&[(1, 1)]], 0);
        assert_eq!((vm.remote, vm.remote_of_workers), (Some(0.75), Some(0.25)));
    }

    #[test]
    fn on_one_node_nothing_is_remote() {
        let mut host = NumaHost {
            nodes: vec![Node::default()],
            vms: vec![VmPlacement::default()],
            ..NumaHost::default()
        };
        assess(&mut host);
        assert_eq!(host.vms[0].headline, "the host has one node: nothing is remote");
    }
}
