//! Experiment `agent`: an agent keeps a policy while VMs and links come and go, and costs little while they do not. See
//! README.md beside this file.
//!
//! | module | does |
//! | --- | --- |
//! | [`machine`] | a process that is a VM to anybody who looks at it: KVM's descriptors, vCPU threads, taps |
//! | [`driver`] | starts and stops such VMs and links, and measures the agent, on the machine that it runs on |
//! | [`lab`] | a lab host with an agent and a policy in force |

pub mod driver;
pub mod lab;
pub mod machine;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many VMs and links come and go at the same time, each of its own name.
pub const SLOTS: usize = 8;

/// The times until the agent had done what a start or a stop asks for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Churn {
    /// From the moment when a VM or a link is complete until it has the policy's settings, ms.
    pub starts_ms: Vec<f64>,
    /// From its end until the agent holds nothing of it, ms.
    pub stops_ms: Vec<f64>,
}

/// What the agent uses: all its processes together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Use {
    /// Share of one CPU.
    pub cpu: f64,
    /// The shares of the threads of the daemon itself, by name.
    pub threads: BTreeMap<String, f64>,
    /// Peak of the resident memory, MB.
    pub peak_mb: f64,
}

/// What was measured while nothing came or went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rest {
    /// VMs on the host, each with settings of the policy.
    pub vms: usize,
    /// Their taps.
    pub taps: usize,
    /// How long was measured, s.
    pub seconds: f64,
    /// What the agent used.
    pub agent: Use,
}
