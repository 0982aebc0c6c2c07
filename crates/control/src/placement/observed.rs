//! What VMs need, and what nodes have, by an observation of a host.

use std::collections::{BTreeMap, BTreeSet};
use teiji_model::cpus::CpuSet;
use teiji_model::numa::{LOCAL_DISTANCE, NumaHost, ThreadNodes, VmNodes, time_shares, total};
use teiji_model::placement::{Demand, NodeCapacity, Problem, VmDemand};
use teiji_model::text::percent;

/// The share of a VM's time that is taken to be memory accesses.
const MEMORY_BOUND: f64 = 0.5;
/// Below this share of remote accesses it is no problem that memory has to stay.
const REMOTE: f64 = 0.01;
/// One part in so many of a node's memory is left free.
const LEFT_FREE: u64 = 50;

/// What to do about threads that are pinned to CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pins {
    /// The VM stays on nodes where all its pinned threads may run.
    Kept,
    /// The VM may go to any node.
    Ignored,
}

/// What the VMs of this host need, what cannot be placed and why, and what is assumed.
pub(super) fn demand(host: &NumaHost, pins: Pins) -> (Demand, Vec<Problem>, Vec<String>) {
    let mut problems = Vec::new();
    let mut vms = Vec::new();
    for vm in &host.vms {
        let problem = |why: &str| Problem { vm: vm.name.clone(), pid: vm.pid, why: why.to_owned() };
        vms.push(of_vm(host, vm, pins).unwrap_or_else(|why| {
            problems.push(problem(why));
            // It uses CPUs where it is.
            VmDemand { fixed: true, ..used(host, vm) }
        }));
        if let Some(why) = memory_fixed(vm, pins).filter(|_| vm.remote_accesses >= Some(REMOTE)) {
            problems.push(problem(why));
        }
    }
    let mut nodes: Vec<NodeCapacity> = host
        .nodes
        .iter()
        .map(|node| NodeCapacity {
            id: node.id,
            cpus: u32::try_from(node.cpus.len()).unwrap_or(u32::MAX),
            memory: node.available.saturating_sub(node.memory / LEFT_FREE),
            huge: node
                .huge_pages
                .iter()
                .map(|huge| (huge.size, huge.free.saturating_sub(huge.reserved).saturating_mul(huge.size)))
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
    let slowdown = host
        .nodes
        .iter()
        .flat_map(|from| host.nodes.iter().map(move |to| ((from.id, to.id), distance(from, to.id))));
    let assumed = vec![
        "remote accesses take as much longer as the firmware's distances say".to_owned(),
        format!("{} of the threads' time is memory accesses", percent(MEMORY_BOUND)),
    ];
    (Demand { nodes, slowdown: slowdown.collect::<BTreeMap<_, _>>(), vms }, problems, assumed)
}

/// What a VM uses, and where its threads are.
fn used(host: &NumaHost, vm: &VmNodes) -> VmDemand {
    let observed = host.observed.max(1) as f64;
    let used = |threads: &[ThreadNodes]| threads.iter().map(|t| total(&t.ran)).sum::<u64>() as f64 / observed;
    let worker_cpus = used(&vm.workers);
    VmDemand {
        name: vm.name.clone(),
        pid: vm.pid,
        vcpus: u32::try_from(vm.vcpus.len()).unwrap_or(u32::MAX),
        cpus: used(&vm.vcpus) + worker_cpus,
        worker_cpus,
        threads: time_shares(vm.vcpus.iter().chain(&vm.workers)),
        ..VmDemand::default()
    }
}

/// Why a VM's memory has to stay where it is.
fn memory_fixed(vm: &VmNodes, pins: Pins) -> Option<&'static str> {
    let guest = vm.memory.as_ref()?.guest.as_ref()?;
    if guest.pinned {
        return Some("its memory cannot move, as it was given a device (VFIO)");
    }
    let bound = guest.bound && pins == Pins::Kept;
    bound.then_some("its memory is bound to nodes by a policy of its VMM, so it stays: see --ignore-pins")
}

/// # Errors
/// Why it cannot be placed.
fn of_vm(host: &NumaHost, vm: &VmNodes, pins: Pins) -> Result<VmDemand, &'static str> {
    let memory = vm.memory.as_ref().ok_or("its memory cannot be read")?;
    let guest = memory.guest.as_ref().ok_or("the guest's memory cannot be told from its VMM's")?;
    if vm.vcpus.is_empty() {
        return Err(
            "its vCPU threads cannot be identified: start QEMU with -name guest=NAME,debug-threads=on",
        );
    }
    let huge = match (total(&guest.huge), total(&guest.bytes), guest.huge_sizes.first()) {
        (0, ..) => None,
        (huge, all, Some(size)) if huge == all && guest.huge_sizes.len() == 1 => Some(*size),
        _ => return Err("its memory has pages of several sizes"),
    };
    let allowed = if pins == Pins::Kept { allowed(host, vm) } else { None };
    if allowed.as_ref().is_some_and(BTreeSet::is_empty) {
        return Err(
            "its threads are pinned to different nodes, so no node suits all of them: see --ignore-pins",
        );
    }
    let nics = vm.nic_nodes();
    Ok(VmDemand {
        memory: guest.bytes.clone(),
        memory_fixed: memory_fixed(vm, pins).is_some(),
        size: vm.size.unwrap_or(0),
        huge,
        allowed,
        memory_bound: MEMORY_BOUND,
        // With NICs at several nodes none of these is better.
        nic: nics.first().copied().filter(|_| nics.len() == 1),
        ..used(host, vm)
    })
}

/// The nodes on which all of the VM's threads may run; `None` if they may run on all CPUs of the host.
fn allowed(host: &NumaHost, vm: &VmNodes) -> Option<BTreeSet<u32>> {
    let all: CpuSet = host.nodes.iter().flat_map(|node| node.cpus.iter()).collect();
    let is_pinned = |thread: &&ThreadNodes| !all.without(&thread.allowed).is_empty();
    let pinned: Vec<&ThreadNodes> = vm.vcpus.iter().chain(&vm.workers).filter(is_pinned).collect();
    if pinned.is_empty() {
        return None;
    }
    let has_cpu = |node: u32| {
        let is_there =
            |thread: &&ThreadNodes| thread.allowed.iter().any(|cpu| host.node_of(cpu) == Some(node));
        pinned.iter().all(is_there)
    };
    Some(host.nodes.iter().map(|node| node.id).filter(|id| has_cpu(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::numa::{ByNode, GuestMemory, HugePages, Node, VmMemory};

    const GIB: u64 = 1 << 30;

    fn thread(allowed: &str, ran: &[(u32, u64)]) -> ThreadNodes {
        ThreadNodes {
            allowed: allowed.parse().unwrap(),
            ran: ran.iter().copied().collect(),
            last: Some(0),
            ..ThreadNodes::default()
        }
    }

    fn host() -> NumaHost {
        let node = |id: u32, cpus: &str| Node {
            id,
            cpus: cpus.parse().unwrap(),
            memory: 100 * GIB,
            available: 10 * GIB,
            huge_pages: vec![HugePages { size: 1 << 21, total: 512, free: 300, reserved: 44 }],
            distances: BTreeMap::from([(id, 10), (1 - id, 17)]),
            ..Node::default()
        };
        let guest = GuestMemory { bytes: ByNode::from([(0, GIB), (1, 3 * GIB)]), ..GuestMemory::default() };
        let vm = VmNodes {
            name: "a".into(),
            memory: Some(VmMemory { guest: Some(guest), ..VmMemory::default() }),
            vcpus: vec![thread("0-3", &[(0, 500), (1, 500)]), thread("0-3", &[])],
            workers: vec![thread("0-3", &[(1, 250)])],
            ..VmNodes::default()
        };
        NumaHost { nodes: vec![node(0, "0-1"), node(1, "2-3")], observed: 1000, vms: vec![vm] }
    }

    #[test]
    fn what_is_needed_is_what_was_used() {
        let (demand, problems, _) = demand(&host(), Pins::Kept);
        assert_eq!(problems, []);
        let vm = &demand.vms[0];
        assert_eq!((vm.vcpus, vm.cpus, vm.worker_cpus, vm.huge, &vm.allowed), (2, 1.25, 0.25, None, &None));
        assert_eq!(vm.threads, BTreeMap::from([(0, 0.4), (1, 0.6)]));
        // What is available but for a fiftieth of all, and what the VM has there.
        assert_eq!([demand.nodes[0].memory, demand.nodes[1].memory], [9 * GIB, 11 * GIB]);
        assert_eq!(demand.nodes[0].huge, BTreeMap::from([(1 << 21, GIB / 2)]));
        assert_eq!((demand.slowdown[&(0, 1)], demand.slowdown[&(1, 1)]), (1.7, 1.0));
    }

    #[test]
    fn huge_pages_are_room_of_their_own() {
        let mut host = host();
        let guest = host.vms[0].memory.as_mut().unwrap().guest.as_mut().unwrap();
        (guest.huge, guest.huge_sizes) = (guest.bytes.clone(), BTreeSet::from([1 << 21]));
        let (found, ..) = demand(&host, Pins::Kept);
        assert_eq!(found.vms[0].huge, Some(1 << 21));
        assert_eq!([found.nodes[0].memory, found.nodes[1].memory], [8 * GIB, 8 * GIB]);
        assert_eq!(found.nodes[1].huge, BTreeMap::from([(1 << 21, GIB / 2 + 3 * GIB)]));
        let guest = host.vms[0].memory.as_mut().unwrap().guest.as_mut().unwrap();
        guest.huge_sizes.insert(1 << 30);
        let several = "its memory has pages of several sizes";
        assert_eq!(demand(&host, Pins::Kept).1[0].why, several);
        let guest = host.vms[0].memory.as_mut().unwrap().guest.as_mut().unwrap();
        (guest.huge, guest.huge_sizes) = (ByNode::from([(0, 1 << 21)]), BTreeSet::from([1 << 21]));
        assert_eq!(demand(&host, Pins::Kept).1[0].why, several);
    }

    #[test]
    fn threads_that_are_pinned_keep_the_vm_there() {
        let mut host = host();
        let allowed = |host: &NumaHost, pins| demand(host, pins).0.vms[0].allowed.clone();
        host.vms[0].vcpus[0].allowed = "1-2".parse().unwrap();
        assert_eq!(allowed(&host, Pins::Kept), Some(BTreeSet::from([0, 1])));
        host.vms[0].vcpus[1].allowed = "3".parse().unwrap();
        assert_eq!(allowed(&host, Pins::Kept), Some(BTreeSet::from([1])));
        assert_eq!(allowed(&host, Pins::Ignored), None);
        host.vms[0].workers[0].allowed = "0".parse().unwrap();
        let (none, problems, _) = demand(&host, Pins::Kept);
        assert!(
            none.vms[0].fixed && problems[0].why.starts_with("its threads are pinned to different nodes")
        );
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

    #[test]
    fn a_vm_that_cannot_be_placed_uses_its_cpus() {
        let mut host = host();
        host.vms[0].memory = None;
        let (found, ..) = demand(&host, Pins::Kept);
        assert_eq!((found.vms[0].fixed, found.vms[0].cpus), (true, 1.25));
        assert_eq!(found.vms[0].threads, BTreeMap::from([(0, 0.4), (1, 0.6)]));
    }

    #[test]
    fn memory_that_cannot_move_stays() {
        let mut host = host();
        host.vms[0].remote_accesses = Some(0.4);
        let of = |host: &NumaHost, pins| {
            let (found, problems, _) = demand(host, pins);
            (found.vms[0].memory_fixed, problems.first().map(|problem| problem.why.clone()))
        };
        assert_eq!(of(&host, Pins::Kept), (false, None));
        let guest = |host: &mut NumaHost| host.vms[0].memory.as_mut().unwrap().guest.take().unwrap();
        let was = guest(&mut host);
        let with = |host: &mut NumaHost, guest| host.vms[0].memory.as_mut().unwrap().guest = Some(guest);
        with(&mut host, GuestMemory { bound: true, ..was.clone() });
        let (fixed, why) = of(&host, Pins::Kept);
        assert!(fixed && why.unwrap().contains("bound to nodes by a policy"));
        assert_eq!(of(&host, Pins::Ignored), (false, None));
        with(&mut host, GuestMemory { pinned: true, ..was });
        let (fixed, why) = of(&host, Pins::Ignored);
        assert!(fixed && why.unwrap().contains("VFIO"));
    }
}
