//! Where VMs should be on a host with NUMA nodes, all together.
//!
//! What is weighed against each other, in CPUs that are lost, is in docs/decisions/0017-placement.md: remote accesses, overload, imbalance,
//! moves. Memory and huge pages of a node, and the nodes that a VM may use, are hard limits.
//!
//! # Search
//! Each VM has a few [`options`]: to stay; its threads on one node, and its memory where it is, on that node or on one of the nearest to it.
//! VMs that fit on no single node are spread over as few as possible, near each other. The [`search`] begins with all VMs staying, so its result is never
//! worse than that. It moves single VMs, then pairs, of which one makes room for the other, and with few VMs it tries all
//! combinations (branch and bound). It is deterministic, and bounded by a number of steps.

mod observed;
mod options;
mod search;

pub use observed::Pins;

use options::Options;
use search::Search;
use teiji_model::numa::NumaHost;
use teiji_model::placement::{Advice, Demand, Move};

/// Memory that is moved in a second, bytes; a CPU is taken for that long. An assumption about the host.
pub const MIGRATION_RATE: f64 = 1e9;
/// The time within which a move has to pay, s.
pub const PAYS_WITHIN: f64 = 600.0;
/// What it costs to move a VM, apart from its memory, CPUs: one that is nearly idle stays.
pub const EACH_MOVE: f64 = 0.01;
/// The weight of imbalance.
const IMBALANCE: f64 = 1e-4;

/// Where the VMs of this host should be.
pub fn advise(host: &NumaHost, pins: Pins) -> Advice {
    let (demand, mut problems, assumed) = observed::demand(host, pins);
    let mut advice = place(&demand);
    problems.append(&mut advice.problems);
    Advice { problems, assumed, ..advice }
}

/// Where VMs should be that need this.
pub fn place(demand: &Demand) -> Advice {
    let options = Options::of(demand);
    let mut search = Search::new(&options);
    search.run();
    let lost_before = options.lost(&options.stay());
    let lost_after = options.lost(search.chosen());
    let mut moves: Vec<Move> = Vec::new();
    for (at, vm) in demand.vms.iter().enumerate() {
        let option = &options.vms[at].options[search.chosen()[at]];
        if option.stays {
            continue;
        }
        moves.push(Move {
            vm: vm.name.clone(),
            pid: vm.pid,
            from: options.vms[at].options[0].threads.clone(),
            threads: option.threads.clone(),
            memory: option.memory.clone(),
            bytes: option.bytes,
            gain: search.gain(at),
        });
    }
    moves.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    let problems = options.problems;
    Advice { moves, lost_before, lost_after, problems, assumed: Vec::new() }
}
