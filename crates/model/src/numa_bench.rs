//! What accesses to memory cost between the nodes of a host: the programs P and Q of the paper on NUMA and virtual machines, and
//! latency and bandwidth between nodes.
//!
//! Program P writes 4 bytes every `stride` bytes over a buffer of its own; program Q has the kernel do so in a buffer of the kernel's, by
//! a system call for each write. Both go over the buffer several times (passes). The first pass of P also takes the page faults.

use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The sizes of the buffers of P and Q, bytes.
    pub sizes: Vec<u64>,
    /// The distances of their writes, bytes: multiples of 4.
    pub strides: Vec<u64>,
    /// How often they go over the buffer; at least 2.
    pub passes: u32,
    /// The size of the buffer for latency and bandwidth, bytes: larger than the caches.
    pub large: u64,
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NumaBench {
    /// The size of the last level of caches, bytes; 0 if it is not known.
    pub cache: u64,
    /// The size of the buffer for latency and bandwidth, bytes.
    pub large: u64,
    /// Each pair of a node with CPUs and a node with memory.
    pub pairs: Vec<Pair>,
    /// P and Q on each pair.
    pub runs: Vec<Run>,
}

/// Accesses from CPUs of one node to memory of another, or its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The node of the CPU.
    pub from: u32,
    /// The node of the memory.
    pub to: u32,
    /// How long a read takes whose address is known only when the one before it is done, ns.
    pub latency: f64,
    /// How fast one CPU reads memory in order, bytes/s.
    pub bandwidth: f64,
}

/// P or Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Program {
    /// Writes to memory of its own.
    P,
    /// Has the kernel write to memory of the kernel's.
    Q,
}

/// A run of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Which.
    pub program: Program,
    /// The node of the CPU.
    pub from: u32,
    /// The node of the memory.
    pub to: u32,
    /// The size of the buffer, bytes.
    pub size: u64,
    /// The distance of the writes, bytes.
    pub stride: u64,
    /// How many writes a pass has.
    pub writes: u64,
    /// How long each pass took, ns.
    pub passes: Vec<u64>,
    /// How many page faults the first pass took, and all others together.
    pub faults: (u64, u64),
}

impl Run {
    /// The median of the passes after the first one, ns; 0 if there are none.
    pub fn later(&self) -> u64 {
        let mut later = self.passes.get(1..).unwrap_or_default().to_vec();
        later.sort_unstable();
        later.get(later.len() / 2).copied().unwrap_or(0)
    }

    /// The first pass, ns.
    pub fn first(&self) -> u64 {
        self.passes.first().copied().unwrap_or(0)
    }

    /// Whether the memory is the CPU's own.
    pub fn is_near(&self) -> bool {
        self.from == self.to
    }
}

impl NumaBench {
    /// How many times as long a read of another node's memory takes as one of a node's own: the least and the greatest of all pairs of
    /// nodes. `None` if there are no two.
    pub fn far_by_near(&self) -> Option<(f64, f64)> {
        let near = |from: u32| self.pairs.iter().find(|pair| pair.from == from && pair.to == from);
        let ratio =
            |pair: &Pair| Some(pair.latency / near(pair.from).filter(|near| near.latency > 0.0)?.latency);
        let mut ratios: Vec<f64> =
            self.pairs.iter().filter(|pair| pair.from != pair.to).filter_map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        Some((*ratios.first()?, *ratios.last()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_is_compared_with_near_of_the_same_cpu() {
        let pair = |from, to, latency| Pair { from, to, latency, bandwidth: 1.0 };
        let all = |pairs: &[Pair]| NumaBench { pairs: pairs.to_vec(), ..NumaBench::default() }.far_by_near();
        let pairs = [pair(0, 0, 80.0), pair(0, 1, 120.0), pair(1, 1, 100.0), pair(1, 0, 140.0)];
        assert_eq!(all(&pairs), Some((1.4, 1.5)));
        assert_eq!(all(&pairs[..1]), None);
        // Node 1 has no memory.
        assert_eq!(all(&[pair(0, 0, 80.0), pair(1, 0, 120.0)]), None);
    }

    #[test]
    fn the_first_pass_is_told_from_the_later_ones() {
        let run = |passes: &[u64]| Run {
            program: Program::P,
            from: 0,
            to: 0,
            size: 4096,
            stride: 64,
            writes: 64,
            passes: passes.to_vec(),
            faults: (1, 0),
        };
        assert_eq!((run(&[9, 2, 8, 3]).first(), run(&[9, 2, 8, 3]).later()), (9, 3));
        assert_eq!((run(&[]).first(), run(&[5]).later()), (0, 0));
    }
}
