//! What is remote of each VM on a host with NUMA nodes: memory from its vCPUs, from its vhost workers, and NICs from both.

use std::collections::BTreeSet;
use teiji_model::numa::{NumaHost, VmNodes, remote_accesses, time_shares};
use teiji_model::text::percent;

/// Below this share of accesses, nothing is said to be remote: a few pages are always elsewhere.
const LEAST: f64 = 0.01;

/// Works out the shares and the headline of each VM.
pub fn assess(host: &mut NumaHost) {
    let one = host.nodes.len() < 2;
    for vm in &mut host.vms {
        let memory = vm.memory.as_ref().map(|memory| memory.used_by_vcpus());
        vm.remote_accesses = memory.and_then(|memory| remote_accesses(memory, &vm.vcpus));
        vm.remote_accesses_of_workers = memory.and_then(|memory| remote_accesses(memory, &vm.workers));
        (vm.well, vm.headline) =
            if one { (true, "the host has one node: nothing is remote".to_owned()) } else { headline(vm) };
    }
}

/// Whether all is well, and what matters most.
fn headline(vm: &VmNodes) -> (bool, String) {
    let far = |share: Option<f64>| share.filter(|share| *share >= LEAST);
    let nodes: BTreeSet<u32> = time_shares(vm.vcpus.iter()).into_keys().collect();
    let wrong = match (vm.remote_accesses, far(vm.remote_accesses), far(vm.remote_accesses_of_workers)) {
        (None, ..) => "it cannot be told where its memory or its vCPUs are".to_owned(),
        (_, Some(share), _) if nodes.len() > 1 => {
            format!("vCPUs run on {} nodes: {} of accesses are remote", nodes.len(), percent(share))
        }
        (_, Some(share), _) => format!("{} of its memory is remote from its vCPUs", percent(share)),
        (_, None, Some(share)) => format!("{} of its vhost workers' accesses are remote", percent(share)),
        (..) => match far_nic(vm, &nodes) {
            Some(node) => format!("its memory is local, but its NIC is at node {node}"),
            None => return (true, "its memory is local to its threads".to_owned()),
        },
    };
    (false, wrong)
}

/// The node of a NIC, if all NICs that the VM uses are on other nodes than its vCPUs.
fn far_nic(vm: &VmNodes, nodes: &BTreeSet<u32>) -> Option<u32> {
    let of_nics = vm.nic_nodes();
    of_nics.first().copied().filter(|_| of_nics.is_disjoint(nodes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::numa::{ByNode, GuestMemory, NicNodes, Node, ThreadNodes, Uplink, VmMemory};

    fn by_node(amounts: &[(u32, u64)]) -> ByNode {
        amounts.iter().copied().collect()
    }

    fn thread(ran: &[(u32, u64)]) -> ThreadNodes {
        ThreadNodes { ran: by_node(ran), last: Some(0), ..ThreadNodes::default() }
    }

    /// The result for a VM with this memory of the guest, whose vCPUs and workers ran so.
    fn assessed(
        memory: &[(u32, u64)],
        vcpus: &[&[(u32, u64)]],
        workers: &[&[(u32, u64)]],
        nic: u32,
    ) -> VmNodes {
        let guest = Some(GuestMemory { bytes: by_node(memory), ..GuestMemory::default() });
        // What the VMM has itself does not count.
        let memory = Some(VmMemory { guest, vmm: by_node(&[(3, 1 << 40)]), kernel: None });
        let uplink = Uplink { name: "eth0".into(), node: Some(nic), interrupts: ByNode::new() };
        let vm = VmNodes {
            memory,
            vcpus: vcpus.iter().map(|ran| thread(ran)).collect(),
            workers: workers.iter().map(|ran| thread(ran)).collect(),
            nics: vec![NicNodes { name: "tap0".into(), uplinks: vec![uplink] }],
            ..VmNodes::default()
        };
        let nodes = (0..4).map(|id| Node { id, ..Node::default() }).collect();
        let mut host = NumaHost { nodes, vms: vec![vm], ..NumaHost::default() };
        assess(&mut host);
        let vm = host.vms.remove(0);
        assert!(vm.headline.split(' ').count() <= 12, "{}", vm.headline);
        assert_eq!(vm.well, vm.headline == "its memory is local to its threads");
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
            "vCPUs run on 2 nodes: 50 % of accesses are remote"
        );
        assert_eq!(
            said(&[(0, 100)], &[&[(0, 5)]], &[&[(1, 5)]], 1),
            "100 % of its vhost workers' accesses are remote"
        );
        assert_eq!(
            said(&[(0, 100)], &[&[(0, 5)]], &[&[(0, 5)]], 1),
            "its memory is local, but its NIC is at node 1"
        );
        assert_eq!(said(&[], &[&[(0, 5)]], &[], 0), "it cannot be told where its memory or its vCPUs are");
        // Less than a hundredth is no matter.
        assert_eq!(said(&[(0, 995), (1, 5)], &[&[(0, 5)]], &[], 0), "its memory is local to its threads");
    }

    #[test]
    fn shares_are_those_of_the_guests_memory() {
        let vm = assessed(&[(0, 25), (1, 75)], &[&[(0, 5)]], &[&[(1, 1)]], 0);
        assert_eq!((vm.remote_accesses, vm.remote_accesses_of_workers), (Some(0.75), Some(0.25)));
    }

    #[test]
    fn on_one_node_nothing_is_remote() {
        let mut host =
            NumaHost { nodes: vec![Node::default()], vms: vec![VmNodes::default()], ..NumaHost::default() };
        assess(&mut host);
        assert_eq!(host.vms[0].headline, "the host has one node: nothing is remote");
    }
}
