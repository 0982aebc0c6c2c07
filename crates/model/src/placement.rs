//! The joint placement of VMs on NUMA nodes: what is known of nodes and VMs, and what is advised.

use crate::numa::ByNode;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes, and the VMs that are to be placed on them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    /// The nodes, each once.
    pub nodes: Vec<NodeCapacity>,
    /// How many times as long an access from CPUs of one node (first number) to memory of another (second) takes as one to the node's
    /// own: 1 or more. Pairs that are missing are 1.
    pub slowdown: BTreeMap<(u32, u32), f64>,
    /// The VMs.
    pub vms: Vec<VmDemand>,
}

/// What a node has for VMs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeCapacity {
    /// The number of the node.
    pub id: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory for VMs, bytes, in pages of the usual size: what is free, and what VMs have there now.
    pub memory: u64,
    /// The same in huge pages, by their size.
    pub huge: BTreeMap<u64, u64>,
}

/// What a VM needs, and where it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VmDemand {
    /// The VM's name. Untrusted text.
    pub name: String,
    /// The process id of its VMM.
    pub pid: u32,
    /// Whether it has to stay as it is, as too little is known of it. It uses CPUs all the same.
    pub fixed: bool,
    /// Whether its memory has to stay.
    pub memory_fixed: bool,
    /// vCPUs: so many CPUs a node must have for the VM to fit there.
    pub vcpus: u32,
    /// CPUs that its threads use, on average.
    pub cpus: f64,
    /// The share of their time that the threads are on each node now.
    pub threads: BTreeMap<u32, f64>,
    /// Its memory by node now, bytes.
    pub memory: ByNode,
    /// The memory that it was promised, bytes: so much room it needs, if it is more than it has now.
    pub size: u64,
    /// The size of its pages, if these are huge pages that were set aside.
    pub huge: Option<u64>,
    /// The nodes that it may use; `None`: all.
    pub allowed: Option<BTreeSet<u32>>,
    /// The share of the threads' time that is memory accesses, from 0 to 1. Only this share grows with the distance.
    pub memory_bound: f64,
    /// The node of the NIC that it uses, if it is known.
    pub nic: Option<u32>,
    /// CPUs that its vhost workers use, on average; part of `cpus`.
    pub worker_cpus: f64,
}

/// What is advised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The VMs to move, those that gain most first.
    pub moves: Vec<Move>,
    /// CPUs that are lost to remote accesses and to overloaded nodes now.
    pub lost_before: f64,
    /// The same after the moves.
    pub lost_after: f64,
    /// VMs that cannot be on one node, or on no node that they may use, and why.
    pub problems: Vec<Problem>,
    /// What was assumed, as it is not known of this host, for people.
    pub assumed: Vec<String>,
}

/// A VM to move.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// Its name. Untrusted text.
    pub vm: String,
    /// The process id of its VMM.
    pub pid: u32,
    /// The nodes on which its threads are now.
    pub from: BTreeSet<u32>,
    /// The nodes on which its threads are to run.
    pub threads: BTreeSet<u32>,
    /// Where its memory is to be, bytes by node; `None`: where it is.
    pub memory: Option<ByNode>,
    /// How much of its memory goes to another node, bytes.
    pub bytes: u64,
    /// CPUs that this move saves when all other moves are made, what it costs taken off. Imbalance is counted, too, so gains do not add
    /// up to what is lost less. At most 0 if it only makes room for others.
    pub gain: f64,
}

/// What stands against a good place for a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Its name. Untrusted text.
    pub vm: String,
    /// The process id of its VMM.
    pub pid: u32,
    /// Why, printable.
    pub why: String,
}
