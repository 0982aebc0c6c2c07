//! Looks for the combination of options with the least cost.

use super::IMBALANCE;
use super::options::{Options, PlacementOption};

/// What an improvement has to be at least, CPUs: rounding is none.
const LEAST: f64 = 1e-9;
/// At most this many pairs (a VM to move, and another one that makes room for it) are tried.
const PAIRS: u64 = 1_000_000;
/// At most this many nodes of the tree of all combinations are looked at.
const TREE: u64 = 300_000;

/// An option for each VM, with what all of them take.
pub(super) struct Search<'c> {
    options: &'c Options,
    chosen: Vec<usize>,
    loads: Vec<f64>,
    taken: Vec<u64>,
    pairs: u64,
}

impl<'c> Search<'c> {
    /// Begins with all VMs where they are.
    pub(super) fn new(options: &'c Options) -> Self {
        let chosen = options.stay();
        let mut taken = vec![0u64; options.room.len()];
        for (at, bytes) in options.vms.iter().flat_map(|vm| &vm.options[0].takes) {
            taken[*at] = taken[*at].saturating_add(*bytes);
        }
        Search { loads: options.loads(&chosen), options, chosen, taken, pairs: 0 }
    }

    /// The option of each VM.
    pub(super) fn chosen(&self) -> &[usize] {
        &self.chosen
    }

    pub(super) fn run(&mut self) {
        while self.move_one() || self.move_two() {}
        self.try_all();
        // If not all combinations could be tried.
        while self.move_one() || self.move_two() {}
    }

    /// How much more it would cost if this VM stayed.
    pub(super) fn gain(&self, vm: usize) -> f64 {
        Change::of(vm, 0).cost(self)
    }

    fn option(&self, vm: usize, option: usize) -> &'c PlacementOption {
        &self.options.vms[vm].options[option]
    }

    fn make(&mut self, vm: usize, option: usize) {
        let (old, new) = (self.option(vm, self.chosen[vm]), self.option(vm, option));
        let cpus = self.options.vms[vm].cpus;
        for (load, (old, new)) in self.loads.iter_mut().zip(old.shares.iter().zip(&new.shares)) {
            *load += cpus * (new - old);
        }
        for (at, bytes) in &old.takes {
            self.taken[*at] -= bytes;
        }
        for (at, bytes) in &new.takes {
            self.taken[*at] += bytes;
        }
        self.chosen[vm] = option;
    }

    /// Moves VMs one by one, each to where it costs least; returns whether any was moved.
    fn move_one(&mut self) -> bool {
        let mut any = false;
        for vm in 0..self.chosen.len() {
            let mut best = (-LEAST, None);
            for option in 0..self.options.vms[vm].options.len() {
                let change = Change::of(vm, option);
                if option != self.chosen[vm] && change.fits(self) {
                    let cost = change.cost(self);
                    if cost < best.0 {
                        best = (cost, Some(option));
                    }
                }
            }
            if let Some(option) = best.1 {
                self.make(vm, option);
                any = true;
            }
        }
        any
    }

    /// Moves a VM together with another one that is in its way; returns whether any were moved.
    fn move_two(&mut self) -> bool {
        let mut any = false;
        for first in 0..self.chosen.len() {
            for option in 0..self.options.vms[first].options.len() {
                if option == self.chosen[first] {
                    continue;
                }
                let alone = Change::of(first, option);
                // A heuristic: only what saves distance is worth making room for.
                if alone.by_itself(self) >= -LEAST {
                    continue;
                }
                if let Some((second, other)) = self.second(first, &alone) {
                    self.make(first, option);
                    self.make(second, other);
                    any = true;
                }
            }
        }
        any
    }

    /// The move of another VM that is best together with this one, if both together are an improvement.
    fn second(&mut self, first: usize, alone: &Change) -> Option<(usize, usize)> {
        let mut best = (-LEAST, None);
        for second in (0..self.chosen.len()).filter(|second| *second != first) {
            if !alone.is_in_the_way(self, second) {
                continue;
            }
            for other in 0..self.options.vms[second].options.len() {
                if other == self.chosen[second] {
                    continue;
                }
                self.pairs += 1;
                if self.pairs > PAIRS {
                    return None;
                }
                let both = alone.and(second, other);
                if both.fits(self) {
                    let cost = both.cost(self);
                    if cost < best.0 {
                        best = (cost, Some((second, other)));
                    }
                }
            }
        }
        best.1
    }

    /// Tries all combinations, unless there are too many, and takes the best one.
    fn try_all(&mut self) {
        let count = self.options.vms.len();
        let combinations = self.options.vms.iter().map(|vm| vm.options.len() as f64).product::<f64>();
        // With bounds a small part of the tree is looked at.
        if count == 0 || combinations > 1e9 {
            return;
        }
        let least = |vm: usize| {
            let costs = self.options.vms[vm].options.iter().map(|option| option.lost + option.cost);
            costs.fold(f64::INFINITY, f64::min)
        };
        let mut rest = vec![0.0; count + 1];
        for vm in (0..count).rev() {
            rest[vm] = rest[vm + 1] + least(vm);
        }
        let mut tree = Tree {
            options: self.options,
            rest,
            best: total_cost(self.options, &self.chosen) - LEAST,
            found: None,
            chosen: vec![0; count],
            loads: vec![0.0; self.loads.len()],
            taken: vec![0; self.taken.len()],
            left: TREE,
        };
        tree.descend(0, 0.0);
        if let Some(found) = tree.found {
            for (vm, option) in found.into_iter().enumerate() {
                self.make(vm, option);
            }
        }
    }
}

/// What a node costs by its load.
fn of_load(load: f64, cpus: f64) -> f64 {
    (load - cpus).max(0.0) + IMBALANCE * load * load / cpus.max(1.0)
}

/// What a combination costs.
pub(super) fn total_cost(options: &Options, chosen: &[usize]) -> f64 {
    let of_vms = options.vms.iter().zip(chosen).map(|(vm, chosen)| &vm.options[*chosen]);
    let of_vms: f64 = of_vms.map(|option| option.lost + option.cost).sum();
    let of_nodes =
        options.loads(chosen).into_iter().zip(&options.cpus).map(|(load, cpus)| of_load(load, *cpus));
    of_vms + of_nodes.sum::<f64>()
}

/// Another option for a VM, or for two.
#[derive(Clone, Copy)]
struct Change {
    first: (usize, usize),
    second: Option<(usize, usize)>,
}

impl Change {
    fn of(vm: usize, option: usize) -> Self {
        Change { first: (vm, option), second: None }
    }

    fn and(self, vm: usize, option: usize) -> Self {
        Change { second: Some((vm, option)), ..self }
    }

    /// What each of them has now, what it would have, and how many CPUs it uses.
    fn each<'c>(
        &self,
        search: &Search<'c>,
    ) -> impl Iterator<Item = (&'c PlacementOption, &'c PlacementOption, f64)> + Clone {
        let of = |(vm, option): (usize, usize)| {
            let of_vm = &search.options.vms[vm];
            (&of_vm.options[search.chosen[vm]], &of_vm.options[option], of_vm.cpus)
        };
        [Some(of(self.first)), self.second.map(of)].into_iter().flatten()
    }

    /// Whether there is room for it.
    fn fits(&self, search: &Search<'_>) -> bool {
        let at_place = |takes: &[(usize, u64)], place: usize| -> i128 {
            takes.iter().filter(|(at, _)| *at == place).map(|(_, bytes)| i128::from(*bytes)).sum()
        };
        let more = |place: usize| -> i128 {
            self.each(search)
                .map(|(old, new, _)| at_place(&new.takes, place) - at_place(&old.takes, place))
                .sum()
        };
        let mut places = self.each(search).flat_map(|(_, new, _)| &new.takes).map(|(at, _)| *at);
        places.all(|place| {
            let more = more(place);
            more <= 0 || i128::from(search.taken[place]) + more <= i128::from(search.options.room[place])
        })
    }

    /// How much more distance and moves cost.
    fn by_itself(&self, search: &Search<'_>) -> f64 {
        let more = |(old, new, _): (&PlacementOption, &PlacementOption, f64)| {
            new.lost + new.cost - old.lost - old.cost
        };
        self.each(search).map(more).sum()
    }

    /// Whether this VM has memory or threads where the change needs more.
    fn is_in_the_way(&self, search: &Search<'_>, vm: usize) -> bool {
        let there = search.option(vm, search.chosen[vm]);
        self.each(search).any(|(old, new, _)| {
            let memory = new.takes.iter().any(|(at, _)| there.takes.iter().any(|(other, _)| at == other));
            let gets = new.shares.iter().zip(&old.shares).zip(&there.shares);
            memory || gets.into_iter().any(|((new, old), there)| new > old && *there > 0.0)
        })
    }

    /// How much more it costs.
    fn cost(&self, search: &Search<'_>) -> f64 {
        let mut sum = self.by_itself(search);
        for (node, (load, cpus)) in search.loads.iter().zip(&search.options.cpus).enumerate() {
            let more: f64 =
                self.each(search).map(|(old, new, used)| used * (new.shares[node] - old.shares[node])).sum();
            if more != 0.0 {
                sum += of_load(load + more, *cpus) - of_load(*load, *cpus);
            }
        }
        sum
    }
}

/// Branch and bound over all combinations, the VMs in their order.
struct Tree<'c> {
    options: &'c Options,
    /// The least that the VMs from each on can cost.
    rest: Vec<f64>,
    best: f64,
    found: Option<Vec<usize>>,
    chosen: Vec<usize>,
    loads: Vec<f64>,
    taken: Vec<u64>,
    left: u64,
}

impl Tree<'_> {
    fn descend(&mut self, vm: usize, so_far: f64) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let nodes: f64 =
            self.loads.iter().zip(&self.options.cpus).map(|(load, cpus)| of_load(*load, *cpus)).sum();
        if so_far + nodes + self.rest[vm] >= self.best {
            return;
        }
        let Some(of_vm) = self.options.vms.get(vm) else {
            self.best = so_far + nodes;
            self.found = Some(self.chosen.clone());
            return;
        };
        for (at, option) in of_vm.options.iter().enumerate() {
            let fits = |(place, bytes): &(usize, u64)| {
                self.taken[*place].saturating_add(*bytes) <= self.options.room[*place]
            };
            if !option.takes.iter().all(fits) {
                continue;
            }
            self.change(of_vm.cpus, option, true);
            self.chosen[vm] = at;
            self.descend(vm + 1, so_far + option.lost + option.cost);
            self.change(of_vm.cpus, option, false);
        }
    }

    fn change(&mut self, cpus: f64, option: &PlacementOption, add: bool) {
        let sign = if add { 1.0 } else { -1.0 };
        for (load, share) in self.loads.iter_mut().zip(&option.shares) {
            *load += sign * cpus * share;
        }
        for (place, bytes) in &option.takes {
            let taken = &mut self.taken[*place];
            *taken = if add { *taken + bytes } else { *taken - bytes };
        }
    }
}
