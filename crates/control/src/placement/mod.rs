//! Where VMs should be on a host with NUMA nodes, all together.
//!
//! # Cost
//! Everything is counted in CPUs that are lost:
//!
//! - **Distance.** A VM whose threads use c CPUs, of whose time the part m is accesses to memory, loses c·m·Σ t_i·μ_j·(a_ij − 1): t_i is
//!   the share of its threads' time on node i, μ_j the share of its memory on node j, and a_ij how many times as long an access from i to
//!   j takes as one to a node's own memory. Its vhost workers lose as much of their time again for each of two distances: to the
//!   guest's memory, which they write, and to the node of the NIC, where packets are.
//! - **Overload.** The CPUs that the VMs of a node use beyond those it has.
//! - **Imbalance.** A hundredth of the squares of the nodes' loads: among places that are as good, the less loaded one.
//! - **Moves.** Memory moves at [`MIGRATION_RATE`] and has to pay within [`PAYS_WITHIN`]; each VM that is moved costs [`EACH_MOVE`] besides,
//!   so that trifles stay as they are.
//!
//! Memory and huge pages of a node are hard limits, and so are the nodes that a VM may use.
//!
//! # Search
//! Each VM has a few [`options`]: to stay, to have its threads moved to where its memory is, to be moved as a whole; VMs that fit on no
//! single node are spread over as few as possible, near each other. The [`search`] begins with all VMs staying, so its result is never
//! worse than that. It moves single VMs, then pairs, of which one makes room for the other, and with few VMs it tries all
//! combinations (branch and bound). It is deterministic, and bounded by a number of steps.

mod observed;
mod options;
mod search;

pub use observed::{Pins, demand};

use options::Choices;
use search::Search;
use teiji_model::placement::{Advice, Demand, Move};

/// Memory that is moved in a second, bytes; a CPU is taken for that long. An assumption about the host.
pub const MIGRATION_RATE: f64 = 1e9;
/// The time within which a move has to pay, s.
pub const PAYS_WITHIN: f64 = 600.0;
/// What it costs to move a VM, apart from its memory, CPUs: one that is nearly idle stays.
pub const EACH_MOVE: f64 = 0.01;
/// The weight of the squares of the nodes' loads.
const IMBALANCE: f64 = 0.01;

/// Where the VMs should be.
pub fn advise(demand: &Demand) -> Advice {
    let choices = Choices::of(demand);
    let mut search = Search::new(&choices);
    search.run();
    let before = choices.lost(&choices.stay());
    let after = choices.lost(search.chosen());
    let mut moves: Vec<Move> = Vec::new();
    for (at, vm) in demand.vms.iter().enumerate() {
        let option = &choices.vms[at].options[search.chosen()[at]];
        if option.stays {
            continue;
        }
        moves.push(Move {
            vm: vm.name.clone(),
            threads: option.threads.clone(),
            memory: option.memory.clone(),
            bytes: option.bytes,
            gain: search.gain(at),
        });
    }
    moves.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    let problems = choices.problems;
    Advice { moves, lost_before: before, lost_after: after, problems, assumed: Vec::new() }
}
