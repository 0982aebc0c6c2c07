//! What VMs need, and what nodes have, by an observation of a host.

use std::collections::{BTreeMap, BTreeSet};
use teiji_model::cpus::CpuSet;
use teiji_model::numa::{ByNode, LOCAL_DISTANCE, NumaHost, ThreadPlacement, VmPlacement, total};
use teiji_model::placement::{Demand, NodeCapacity, Problem, VmDemand};

/// The part of a VM's time that is taken to be accesses to memory.
const MEMORY_BOUND: f64 = 0.5;
/// The part of a node's memory that is left free.
const RESERVE: u64 = 50;

/// Whether the CPUs that a VM's threads are bound to now are the operator's will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pins {
    /// It stays on the nodes of these CPUs.
    Kept,
    /// It may go to any node.
    Ignored,
}

/// What the VMs of this host need, what cannot be placed and why, and what is assumed.
pub fn demand(host: &NumaHost, pins: Pins) -> (Demand, Vec<Problem>, Vec<String>) {
    let mut problems = Vec::new();
    let mut vms = Vec::new();
    for vm in &host.vms {
        match of_vm(host, vm, pins) {
            Ok(vm) => vms.push(vm),
            Err(why) => problems.push(Problem { vm: vm.name.clone(), why: why.to_owned() }),
        }
    }
    let mut nodes: Vec<NodeCapacity> = host
        .nodes
        .iter()
        .map(|node| NodeCapacity {
            id: node.id,
            cpus: u32::try_from(node.cpus.len()).unwrap_or(u32::MAX),
            memory: node.available.saturating_sub(node.memory / RESERVE),
            huge: node
                .huge_pages
                .iter()
                .map(|huge| (huge.size, huge.free.saturating_mul(huge.size)))
                .collect(),
        })
        .collect();
    for node in &mut nodes {
        for vm in &vms {
            let has = vm.memory.get(&node.id).copied().unwrap_or(0);
            let room = vm.huge.map_or(&mut node.memory, |size| node.huge.entry(size).or_default());
            *room = room.saturating_add(has);
        }
    }
    let distance = |from: &teiji_model::numa::Node, to: u32| {
        let distance = from.distances.get(&to).copied().unwrap_or(LOCAL_DISTANCE);
        f64::from(distance.max(LOCAL_DISTANCE)) / f64::from(LOCAL_DISTANCE)
    };
    let access = host
        .nodes
        .iter()
        .flat_map(|from| host.nodes.iter().map(move |to| ((from.id, to.id), distance(from, to.id))));
    let assumed = vec![
        "accesses to other nodes take as much longer as the firmware's distances say".to_owned(),
        "half of the threads' time is accesses to memory".to_owned(),
    ];
    (Demand { nodes, access: access.collect::<BTreeMap<_, _>>(), vms }, problems, assumed)
}

fn of_vm(host: &NumaHost, vm: &VmPlacement, pins: Pins) -> Result<VmDemand, &'static str> {
    let memory = vm.memory.as_ref().ok_or("its memory cannot be read")?;
    let guest = memory.guest.as_ref().ok_or("the guest's memory cannot be told from its VMM's")?;
    let huge = match (total(&guest.huge), total(&guest.bytes)) {
        (0, _) => None,
        (huge, all) if huge == all => guest.huge_page,
        _ => return Err("its memory has pages of several sizes"),
    };
    let observed = host.observed.max(1) as f64;
    let used =
        |threads: &[ThreadPlacement]| threads.iter().map(|t| total(&t.ran)).sum::<u64>() as f64 / observed;
    let io = used(&vm.workers);
    let uplinks: BTreeSet<u32> =
        vm.nics.iter().flat_map(|nic| &nic.uplinks).filter_map(|uplink| uplink.node).collect();
    Ok(VmDemand {
        name: vm.name.clone(),
        vcpus: u32::try_from(vm.vcpus.len()).unwrap_or(u32::MAX),
        cpus: used(&vm.vcpus) + io,
        threads: shares(vm),
        memory: guest.bytes.clone(),
        huge,
        allowed: if pins == Pins::Kept { allowed(host, vm) } else { None },
        memory_bound: MEMORY_BOUND,
        // With NICs at several nodes none of these is better.
        nic: uplinks.first().copied().filter(|_| uplinks.len() == 1),
        io,
    })
}

/// The share of time that the VM's threads were on each node; where they were last, if they did not run.
fn shares(vm: &VmPlacement) -> BTreeMap<u32, f64> {
    let threads = || vm.vcpus.iter().chain(&vm.workers);
    let mut ran = ByNode::new();
    for (node, ns) in threads().flat_map(|thread| &thread.ran) {
        teiji_model::numa::add(&mut ran, *node, *ns);
    }
    if total(&ran) == 0 {
        threads().filter_map(|thread| thread.last).for_each(|node| teiji_model::numa::add(&mut ran, node, 1));
    }
    let all = total(&ran).max(1) as f64;
    ran.into_iter().map(|(node, ns)| (node, ns as f64 / all)).collect()
}

/// The nodes on which all of the VM's threads may run; `None` if they may run on all CPUs of the host.
fn allowed(host: &NumaHost, vm: &VmPlacement) -> Option<BTreeSet<u32>> {
    let all: CpuSet = host.nodes.iter().flat_map(|node| node.cpus.iter()).collect();
    let bound = |thread: &&ThreadPlacement| !all.without(&thread.allowed).is_empty();
    let bound: Vec<&ThreadPlacement> = vm.vcpus.iter().chain(&vm.workers).filter(bound).collect();
    if bound.is_empty() {
        return None;
    }
    let has_cpu = |node: u32| {
        let is_there =
            |thread: &&ThreadPlacement| thread.allowed.iter().any(|cpu| host.node_of(cpu) == Some(node));
        bound.iter().all(is_there)
    };
    Some(host.nodes.iter().map(|node| node.id).filter(|id| has_cpu(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::numa::{GuestMemory, HugePages, Node, VmMemory};

    const GIB: u64 = 1 << 30;

    fn thread(allowed: &str, ran: &[(u32, u64)]) -> ThreadPlacement {
        ThreadPlacement {
            allowed: allowed.parse().unwrap(),
            ran: ran.iter().copied().collect(),
            last: Some(0),
            ..ThreadPlacement::default()
        }
    }

    fn host() -> NumaHost {
        let node = |id: u32, cpus: &str| Node {
            id,
            cpus: cpus.parse().unwrap(),
            memory: 100 * GIB,
            available: 10 * GIB,
            huge_pages: vec![HugePages { size: 1 << 21, total: 512, free: 256 }],
            distances: BTreeMap::from([(id, 10), (1 - id, 17)]),
            ..Node::default()
        };
        let guest = GuestMemory { bytes: ByNode::from([(0, GIB), (1, 3 * GIB)]), ..GuestMemory::default() };
        let vm = VmPlacement {
            name: "a".into(),
            memory: Some(VmMemory { guest: Some(guest), ..VmMemory::default() }),
            vcpus: vec![thread("0-3", &[(0, 500), (1, 500)]), thread("0-3", &[])],
            workers: vec![thread("0-3", &[(1, 250)])],
            ..VmPlacement::default()
        };
        NumaHost { nodes: vec![node(0, "0-1"), node(1, "2-3")], observed: 1000, vms: vec![vm] }
    }

    #[test]
    fn what_is_needed_is_what_was_used() {
        let (demand, problems, _) = demand(&host(), Pins::Kept);
        assert_eq!(problems, []);
        let vm = &demand.vms[0];
        assert_eq!((vm.vcpus, vm.cpus, vm.io, vm.huge, &vm.allowed), (2, 1.25, 0.25, None, &None));
        assert_eq!(vm.threads, BTreeMap::from([(0, 0.4), (1, 0.6)]));
        // What is available but for a fiftieth of all, and what the VM has there.
        assert_eq!([demand.nodes[0].memory, demand.nodes[1].memory], [9 * GIB, 11 * GIB]);
        assert_eq!(demand.nodes[0].huge, BTreeMap::from([(1 << 21, GIB / 2)]));
        assert_eq!((demand.access[&(0, 1)], demand.access[&(1, 1)]), (1.7, 1.0));
    }

    #[test]
    fn huge_pages_are_room_of_their_own() {
        let mut host = host();
        let guest = host.vms[0].memory.as_mut().unwrap().guest.as_mut().unwrap();
        (guest.huge, guest.huge_page) = (guest.bytes.clone(), Some(1 << 21));
        let (found, ..) = demand(&host, Pins::Kept);
        assert_eq!(found.vms[0].huge, Some(1 << 21));
        assert_eq!([found.nodes[0].memory, found.nodes[1].memory], [8 * GIB, 8 * GIB]);
        assert_eq!(found.nodes[1].huge, BTreeMap::from([(1 << 21, GIB / 2 + 3 * GIB)]));
        let guest = host.vms[0].memory.as_mut().unwrap().guest.as_mut().unwrap();
        guest.huge = ByNode::from([(0, 1 << 21)]);
        assert_eq!(demand(&host, Pins::Kept).1[0].why, "its memory has pages of several sizes");
    }

    #[test]
    fn threads_that_are_bound_keep_the_vm_there() {
        let mut host = host();
        let allowed = |host: &NumaHost, pins| demand(host, pins).0.vms[0].allowed.clone();
        host.vms[0].vcpus[0].allowed = "1-2".parse().unwrap();
        assert_eq!(allowed(&host, Pins::Kept), Some(BTreeSet::from([0, 1])));
        host.vms[0].vcpus[1].allowed = "3".parse().unwrap();
        assert_eq!(allowed(&host, Pins::Kept), Some(BTreeSet::from([1])));
        host.vms[0].workers[0].allowed = "0".parse().unwrap();
        assert_eq!(allowed(&host, Pins::Kept), Some(BTreeSet::new()));
        assert_eq!(allowed(&host, Pins::Ignored), None);
    }

    #[test]
    fn a_vm_that_did_not_run_is_where_it_was_last() {
        let mut host = host();
        host.vms[0].vcpus = vec![thread("0-3", &[])];
        host.vms[0].workers.clear();
        let (demand, ..) = demand(&host, Pins::Kept);
        assert_eq!((demand.vms[0].cpus, demand.vms[0].threads.clone()), (0.0, BTreeMap::from([(0, 1.0)])));
        host.vms[0].memory = None;
        assert_eq!(super::demand(&host, Pins::Kept).1[0].why, "its memory cannot be read");
    }
}
