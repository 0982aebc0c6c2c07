//! The host: its VMs with their threads and NICs, what its kernel allows teiji to do, and the settings that can be
//! changed.
//!
//! Everything is read from procfs, sysfs, the cgroup file system and rtnetlink. Only `resource` and `hfsc` change
//! anything, and only in `Settings::write` and `Hfsc::write`. All paths go through [`Root`], so a directory tree of a
//! test can take the place of a host.
//!
//! | module | holds |
//! | --- | --- |
//! | [`requirement`] | what teiji needs of a host, and whether it is present |
//! | `cgroup` | the cgroup v2 hierarchy: where it is mounted, which processes are in which group |
//! | `cmdline` | a VMM's command line: name, memory, MAC addresses |
//! | [`guest`] | how a VM's guest can be talked to, and how its TSC follows from the host's |
//! | `hfsc` | channels with deadlines as qdiscs, classes and filters of the kernel's own |
//! | `identity` | the user of a VM's process, and where its name comes from |
//! | `interrupts` | which interrupts are a NIC's, and where they come |
//! | `kept_files` | files that stay open between looks |
//! | [`kernel`] | information of the kernel about itself and single threads |
//! | `migration` | whether a VMM copies its guest's memory elsewhere |
//! | `net` | taps, bridges, queues |
//! | `nic_counters` | what NICs count of the packets that they lose |
//! | `numa` | where the memory, threads and NICs of VMs are on a host with NUMA nodes |
//! | `observe` | the host as a plan needs to know it |
//! | `passthrough` | NICs of the host that were given to a VM (VFIO) |
//! | [`priority`] | the priority of what the agent starts |
//! | [`privilege`] | gives up privileges that a process no longer needs |
//! | `qdiscs` | qdiscs that delay VMs' packets or limit their rate |
//! | `resource` | observes, reads and changes resources, one file for each kind |
//! | `root` | reads files below a prefix |
//! | `rtnl` | devices and qdiscs by rtnetlink |
//! | `sys` | system calls; the only module with `unsafe` |
//! | `task` | threads that are not mistaken for later ones of the same id |
//! | `thread` | vCPU threads and vhost workers |
//! | `throttling` | what CPU quotas of control groups take |
//! | [`tsc`] | the TSC and `CLOCK_MONOTONIC` at one instant |
//! | `usage` | the kernel's counters of VMs, for a diagnosis |
//! | `vm` | which processes are VMs |
//! | [`watch`] | tells when something has changed that a plan depends on |
#![deny(unsafe_code)]

mod cgroup;
mod cmdline;
pub mod guest;
mod hfsc;
mod identity;
mod interrupts;
mod kept_files;
pub mod kernel;
mod migration;
mod net;
mod nic_counters;
mod numa;
mod observe;
mod passthrough;
pub mod priority;
pub mod privilege;
mod qdiscs;
pub mod requirement;
mod resource;
mod root;
mod rtnl;
mod sys;
mod task;
mod thread;
mod throttling;
pub mod tsc;
mod usage;
mod vm;
pub mod watch;

pub use hfsc::{CurveOf, Hfsc};
pub use nic_counters::NicCounters;
pub use numa::{NumaObserver, bench as numa_bench};
pub use resource::{Devices, Settings};
pub use root::Root;
pub use rtnl::lists_requested;
pub use task::{process_with, task};
pub use usage::{Look, UsageReader, now};

use std::path::PathBuf;
use teiji_model::host::{Requirement, Vm};

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
    /// The list of CPUs cannot be read.
    #[error("cannot tell from {path} which CPUs are online, so nothing can be planned; is sysfs mounted?")]
    Cpus {
        /// What was to be read.
        path: PathBuf,
    },
    /// A tap that does not exist.
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

/// The vCPU threads and vhost workers that a VMM has now, by thread id; not those workers that are kernel threads.
pub fn vm_threads(pid: u32) -> std::collections::BTreeSet<u32> {
    thread::of_process(&Root::default(), pid)
}

/// The number of a group of this host, by its name in `/etc/group`; `None` if there is none. Other sources of groups, which
/// may need the network, are not asked.
pub fn group_id(name: &str) -> Option<u32> {
    identity::group_id(&Root::default(), name)
}

/// What teiji needs of this host apart from the kernel's hooks.
pub fn requirements() -> Vec<Requirement> {
    Root::default().requirements()
}
