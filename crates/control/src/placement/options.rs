//! The options of each VM: nodes for its threads and its memory, with what each costs and takes.

use super::{EACH_MOVE, MIGRATION_RATE, PAYS_WITHIN};
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::numa::{ByNode, total};
use teiji_model::placement::{Demand, Problem, VmDemand};
use teiji_model::text::bytes as size_of_memory;

/// For a VM's memory only this many nodes are tried: the threads' own and those nearest to it. Memory may also stay where it is.
const NEAR: usize = 4;

/// What memory is made of: pages of the usual size (0), or huge pages of a size.
pub(super) type PageSize = u64;

/// All VMs with their options, and the nodes' limits.
pub(super) struct Options {
    pub vms: Vec<VmOptions>,
    /// CPUs of each node, by node index.
    pub cpus: Vec<f64>,
    /// Bytes of each kind of pages on each node: the node index, plus the index of the kind times the number of nodes.
    pub room: Vec<u64>,
    pub problems: Vec<Problem>,
}

/// The options of a VM. The first one is to stay.
pub(super) struct VmOptions {
    pub options: Vec<PlacementOption>,
    /// CPUs that it uses.
    pub cpus: f64,
}

/// Nodes for a VM's threads and its memory.
pub(super) struct PlacementOption {
    pub stays: bool,
    pub threads: BTreeSet<u32>,
    /// `None`: where it is.
    pub memory: Option<ByNode>,
    /// Bytes that move.
    pub bytes: u64,
    /// CPUs that are lost to remote accesses.
    pub lost: f64,
    /// What the move costs, CPUs.
    pub cost: f64,
    /// The share of its threads' time on each node, by node index.
    pub shares: Vec<f64>,
    /// Where in [`Options::room`] it takes memory, and how much.
    pub takes: Vec<(usize, u64)>,
}

/// The memory that a VM may come to have, bytes.
fn promised(vm: &VmDemand) -> u64 {
    vm.size.max(total(&vm.memory))
}

/// What a part of a VM's memory grows to when the VM has all that it was promised, in the same proportion.
fn in_all(bytes: u64, vm: &VmDemand) -> u64 {
    let (promised, now) = (promised(vm), total(&vm.memory).max(1));
    u64::try_from(u128::from(bytes) * u128::from(promised) / u128::from(now)).unwrap_or(u64::MAX)
}

/// Everything about the nodes that options are made from.
struct Nodes<'d> {
    demand: &'d Demand,
    /// The index of each node.
    indices: BTreeMap<u32, usize>,
    kinds: Vec<PageSize>,
    /// As [`Options::room`].
    room: Vec<u64>,
}

impl Options {
    pub(super) fn of(demand: &Demand) -> Options {
        let indices = demand.nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
        let huge = demand.nodes.iter().flat_map(|node| node.huge.keys().copied());
        let of_vms = demand.vms.iter().filter_map(|vm| vm.huge);
        let kinds: BTreeSet<PageSize> = huge.chain(of_vms).chain([0]).collect();
        let mut nodes = Nodes { demand, indices, kinds: kinds.into_iter().collect(), room: Vec::new() };
        let has = |kind: &PageSize, node: usize| match kind {
            0 => demand.nodes[node].memory,
            size => demand.nodes[node].huge.get(size).copied().unwrap_or(0),
        };
        let count = demand.nodes.len();
        nodes.room =
            nodes.kinds.iter().flat_map(|kind| (0..count).map(move |node| has(kind, node))).collect();
        // What VMs have now is there, whatever the figures say.
        let mut taken = vec![0u64; nodes.room.len()];
        for vm in &demand.vms {
            for (node, bytes) in &vm.memory {
                if let Some(at) = nodes.at(*node, vm.huge) {
                    taken[at] = taken[at].saturating_add(in_all(*bytes, vm));
                }
            }
        }
        for (room, taken) in nodes.room.iter_mut().zip(taken) {
            *room = (*room).max(taken);
        }
        let mut problems = Vec::new();
        let vms = demand.vms.iter().map(|vm| nodes.choice(vm, &mut problems)).collect();
        let cpus = demand.nodes.iter().map(|node| f64::from(node.cpus)).collect();
        Options { vms, cpus, room: nodes.room, problems }
    }

    /// Each VM stays.
    pub(super) fn stay(&self) -> Vec<usize> {
        vec![0; self.vms.len()]
    }

    /// How many CPUs the VMs use on each node, if they choose so.
    pub(super) fn loads(&self, chosen: &[usize]) -> Vec<f64> {
        let mut loads = vec![0.0; self.cpus.len()];
        for (vm, chosen) in self.vms.iter().zip(chosen) {
            for (load, share) in loads.iter_mut().zip(&vm.options[*chosen].shares) {
                *load += vm.cpus * share;
            }
        }
        loads
    }

    /// CPUs that are lost to remote accesses and overload, without what moves cost.
    pub(super) fn lost(&self, chosen: &[usize]) -> f64 {
        let distance: f64 = self.vms.iter().zip(chosen).map(|(vm, chosen)| vm.options[*chosen].lost).sum();
        let overload: f64 =
            self.loads(chosen).iter().zip(&self.cpus).map(|(load, cpus)| (load - cpus).max(0.0)).sum();
        distance + overload
    }
}

impl Nodes<'_> {
    fn choice(&self, vm: &VmDemand, problems: &mut Vec<Problem>) -> VmOptions {
        let stay = self.option(vm, vm.threads.clone(), None, true);
        let here = stay.threads.clone();
        let mut options = vec![stay];
        if vm.fixed {
            return VmOptions { options, cpus: vm.cpus.max(0.0) };
        }
        let may = |id: &u32| vm.allowed.as_ref().is_none_or(|allowed| allowed.contains(id));
        let allowed: Vec<u32> = self.demand.nodes.iter().map(|node| node.id).filter(may).collect();
        let (bytes, promised) = (total(&vm.memory), promised(vm));
        let vcpus = vm.vcpus.max(1);
        let has_cpus = |id: &&u32| self.cpus(**id) >= vcpus;
        let holds = |id: &u32| self.room(*id, vm.huge) >= promised;
        let local = |id: &u32| vm.memory.iter().all(|(node, bytes)| node == id || *bytes == 0);
        for id in allowed.iter().filter(has_cpus) {
            let threads = || BTreeMap::from([(*id, 1.0)]);
            if here.len() != 1 || !here.contains(id) {
                options.push(self.option(vm, threads(), None, false));
            }
            for target in self.nearest(*id, &allowed).into_iter().take(NEAR) {
                if !vm.memory_fixed && holds(&target) && !local(&target) {
                    let memory = Some(ByNode::from([(target, bytes)]));
                    options.push(self.option(vm, threads(), memory, false));
                }
            }
        }
        let fits = |id: &u32| has_cpus(&id) && (vm.memory_fixed || holds(id));
        if !allowed.iter().any(fits) {
            let spread = if vm.memory_fixed { BTreeSet::new() } else { self.sets(vm, &allowed, promised) };
            let why = match spread.first() {
                _ if allowed.is_empty() => "it may use no node of this host".to_owned(),
                Some(set) => format!(
                    "it does not fit on one node that it may use; {} together are large enough",
                    set.len()
                ),
                None => self.too_large(vm, &allowed, promised),
            };
            problems.push(Problem { vm: vm.name.clone(), pid: vm.pid, why });
            for set in spread {
                let cpus: f64 = set.iter().map(|id| f64::from(self.cpus(*id))).sum();
                let threads = set.iter().map(|id| (*id, f64::from(self.cpus(*id)) / cpus)).collect();
                let memory = self.shared_out(vm, &set, bytes);
                options.push(self.option(vm, threads, memory, false));
            }
        }
        VmOptions { options, cpus: vm.cpus.max(0.0) }
    }

    /// Why a VM does not fit on the nodes that it may use.
    fn too_large(&self, vm: &VmDemand, allowed: &[u32], bytes: u64) -> String {
        let ids: Vec<String> = allowed.iter().map(u32::to_string).collect();
        let nodes = format!("the nodes that it may use ({})", ids.join(", "));
        let cpus: u64 = allowed.iter().map(|id| u64::from(self.cpus(*id))).sum();
        if cpus < u64::from(vm.vcpus) {
            return format!("its {} vCPUs do not fit on {nodes}: they have {cpus} CPUs", vm.vcpus);
        }
        let room = allowed.iter().fold(0u64, |sum, id| sum.saturating_add(self.room(*id, vm.huge)));
        let pages = vm.huge.map_or(String::new(), |size| format!(" in pages of {}", size_of_memory(size)));
        let (bytes, room) = (size_of_memory(bytes), size_of_memory(room));
        format!("its memory ({bytes}{pages}) does not fit on {nodes}: they have room for {room}")
    }

    /// The smallest sets of nodes on which a VM fits: around each node those that are nearest to it.
    fn sets(&self, vm: &VmDemand, allowed: &[u32], bytes: u64) -> BTreeSet<BTreeSet<u32>> {
        let enough = |set: &[u32]| {
            let cpus: u32 = set.iter().map(|id| self.cpus(*id)).sum();
            let room = set.iter().fold(0u64, |sum, id| sum.saturating_add(self.room(*id, vm.huge)));
            cpus >= vm.vcpus.max(1) && room >= bytes
        };
        let around = |from: &u32| {
            let near = self.nearest(*from, allowed);
            (1..=near.len()).map(|count| &near[..count]).find(|set| enough(set)).map(<[u32]>::to_vec)
        };
        let found: Vec<Vec<u32>> = allowed.iter().filter_map(around).collect();
        let least = found.iter().map(Vec::len).min().unwrap_or(0);
        found.into_iter().filter(|set| set.len() == least).map(|set| set.into_iter().collect()).collect()
    }

    /// Memory shared out among nodes by their CPUs, as far as each has room. `None` if it is so already.
    fn shared_out(&self, vm: &VmDemand, set: &BTreeSet<u32>, bytes: u64) -> Option<ByNode> {
        let cpus: u64 = set.iter().map(|id| u64::from(self.cpus(*id))).sum::<u64>().max(1);
        let mut left = bytes;
        let mut memory = ByNode::new();
        for id in set {
            let part = (u128::from(bytes) * u128::from(self.cpus(*id)) / u128::from(cpus)) as u64;
            let part = part.min(self.room(*id, vm.huge)).min(left);
            left -= part;
            memory.insert(*id, part);
        }
        for id in set {
            let more = self.room(*id, vm.huge).saturating_sub(memory[id]).min(left);
            left -= more;
            *memory.entry(*id).or_default() += more;
        }
        (memory != vm.memory).then_some(memory)
    }

    /// An option: threads with these shares of their time on nodes, and memory, if it moves.
    fn option(
        &self,
        vm: &VmDemand,
        threads: BTreeMap<u32, f64>,
        memory: Option<ByNode>,
        stays: bool,
    ) -> PlacementOption {
        let target = memory.as_ref().unwrap_or(&vm.memory);
        let arrives =
            |(node, bytes): (&u32, &u64)| bytes.saturating_sub(vm.memory.get(node).copied().unwrap_or(0));
        let moved = target.iter().map(arrives).fold(0u64, u64::saturating_add);
        let all: f64 = threads.values().filter(|share| **share > 0.0).sum();
        let shares: BTreeMap<u32, f64> = threads
            .iter()
            .filter(|(_, share)| **share > 0.0)
            .map(|(node, share)| (*node, share / all))
            .collect();
        let mut by_index = vec![0.0; self.demand.nodes.len()];
        for (node, share) in &shares {
            if let Some(index) = self.indices.get(node) {
                by_index[*index] += share;
            }
        }
        let takes = target.iter().filter(|(_, bytes)| **bytes > 0);
        let takes =
            takes.filter_map(|(node, bytes)| Some((self.at(*node, vm.huge)?, in_all(*bytes, vm)))).collect();
        let cost = match stays {
            true => 0.0,
            false => EACH_MOVE + moved as f64 / MIGRATION_RATE / PAYS_WITHIN,
        };
        PlacementOption {
            stays,
            lost: self.lost(vm, &shares, target),
            threads: shares.into_keys().collect(),
            memory,
            bytes: moved,
            cost,
            shares: by_index,
            takes,
        }
    }

    /// CPUs that are lost to remote accesses.
    fn lost(&self, vm: &VmDemand, threads: &BTreeMap<u32, f64>, memory: &ByNode) -> f64 {
        let bytes = total(memory).max(1) as f64;
        let far = |from: u32, to: u32| (self.slowdown(from, to) - 1.0).max(0.0);
        let (mut to_memory, mut to_nic) = (0.0, 0.0);
        for (from, share) in threads {
            to_memory +=
                memory.iter().map(|(to, part)| share * *part as f64 / bytes * far(*from, *to)).sum::<f64>();
            to_nic += vm.nic.map_or(0.0, |nic| share * far(*from, nic));
        }
        let (cpus, workers) = (vm.cpus.max(0.0), vm.worker_cpus.clamp(0.0, vm.cpus.max(0.0)));
        cpus * vm.memory_bound.clamp(0.0, 1.0) * to_memory + workers * (to_memory + to_nic)
    }

    /// These nodes, the nearest to `from` first, which is itself.
    fn nearest(&self, from: u32, nodes: &[u32]) -> Vec<u32> {
        let key = |to: u32| (to != from, self.slowdown(from, to));
        let mut near = nodes.to_vec();
        near.sort_by(|a, b| {
            let (a_key, b_key) = (key(*a), key(*b));
            a_key.0.cmp(&b_key.0).then(a_key.1.total_cmp(&b_key.1)).then(a.cmp(b))
        });
        near
    }

    fn slowdown(&self, from: u32, to: u32) -> f64 {
        self.demand.slowdown.get(&(from, to)).copied().filter(|times| times.is_finite()).unwrap_or(1.0)
    }

    fn cpus(&self, id: u32) -> u32 {
        self.indices.get(&id).map_or(0, |index| self.demand.nodes[*index].cpus)
    }

    /// Where in [`Options::room`] memory of this kind on a node is.
    fn at(&self, id: u32, huge: Option<u64>) -> Option<usize> {
        let kind = self.kinds.iter().position(|kind| *kind == huge.unwrap_or(0))?;
        Some(kind * self.demand.nodes.len() + self.indices.get(&id)?)
    }

    fn room(&self, id: u32, huge: Option<u64>) -> u64 {
        self.at(id, huge).map_or(0, |at| self.room[at])
    }
}
