//! What a host has: its VMs with their threads and NICs, and what its kernel lets teiji do.
//!
//! Everything is read from procfs and sysfs; nothing is changed. All paths go through [`Root`], so a
//! made-up tree can stand in for a host.
//!
//! | module | holds |
//! | --- | --- |
//! | [`capability`] | what teiji needs of a host, and whether it is there |
//! | `cmdline` | a VMM's command line: name, memory, MAC addresses |
//! | `net` | taps, bridges, queues |
//! | `numa` | a VMM's memory by NUMA node |
//! | `root` | reading below a prefix |
//! | `thread` | vCPU threads and vhost workers |
//! | `vm` | which processes are VMs |
#![forbid(unsafe_code)]

pub mod capability;
mod cmdline;
mod net;
mod numa;
mod root;
mod thread;
mod vm;

pub use root::Root;

use std::path::PathBuf;
use teiji_model::host::{Capability, Vm};

/// Why discovery failed as a whole. A process that vanishes or may not be read is left out instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list of processes cannot be read.
    #[error("cannot list processes in {path}, so no VM can be found; is procfs mounted?")]
    Processes {
        /// What was to be listed.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A tap that is not there.
    #[error(
        "there is no tap {name:?} in this network namespace, so it cannot be traced; `ip -d link show type tun` lists those there are"
    )]
    NoTap {
        /// What was asked for.
        name: String,
    },
}

/// The VMs of this host, by process id.
///
/// Without `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH` only the VMs of the calling user are seen.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn vms() -> Result<Vec<Vm>, Error> {
    Root::default().vms()
}

/// What teiji needs of this host apart from the kernel's hooks.
pub fn capabilities() -> Vec<Capability> {
    Root::default().capabilities()
}
