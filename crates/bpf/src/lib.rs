//! teiji's BPF programs and their Rust halves, one folder each.
//!
//! | module | does |
//! | --- | --- |
//! | [`hooks`] | which functions and tracepoints of the running kernel the programs can be attached to |
//! | [`census`] | counts what the threads of VMs do, and how long that takes |
//! | [`path_trace`] | follows packets between NIC and guest |
//! | [`qdisc_edf`] | sends packets by their deadlines |
//! | [`scx_vcpu`] | schedules the threads of real-time VMs by the deadlines of their packets |
//! | `common` | pinned maps: their pins, versions and writers, the heartbeat, maps shared by objects |
//! | `object` | maps and programs of loaded objects |
//!
//! This crate accesses the kernel and interprets nothing: it returns [`teiji_model::event::Event`]s. It exposes no type
//! of libbpf.
pub mod census;
mod common;
pub mod hooks;
mod object;
pub mod path_trace;
pub mod qdisc_edf;
pub mod scx_vcpu;

pub use object::Verified;

use rustix::thread::{CapabilitySet, capabilities};
use std::path::PathBuf;

/// Why a BPF program could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not describe its types.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux): probes cannot find the kernel's fields, so nothing can be traced; use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    /// Not allowed.
    #[error(
        "not permitted to load or open BPF programs: that needs CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN; run as root"
    )]
    NotPermitted,
    /// The verifier or libbpf refused.
    #[error("cannot {doing}: {reason}; see `teiji doctor` for what this kernel offers")]
    Kernel {
        /// What was being done.
        doing: String,
        /// libbpf's words.
        reason: String,
    },
    /// The kernel lacks something that is needed.
    #[error("the kernel lacks {what}: {consequence}")]
    Missing {
        /// What.
        what: String,
        /// What does not work.
        consequence: String,
    },
    /// Nothing can be pinned in this folder.
    #[error(
        "{} is in no BPF file system, so no channel can have a deadline; run `mount -t bpf bpf /sys/fs/bpf`", .0.display()
    )]
    NoBpfFileSystem(PathBuf),
    /// Pins are missing or are not teiji's, and links may have the qdisc.
    #[error(
        "what is pinned in {folder} is incomplete or not teiji's ({why}), so links that have the qdisc cannot be served: run \
         1. `teiji rollback --force`; 2. `tc qdisc del dev NAME root` for each device that `tc qdisc` still shows with teiji_edf; \
         3. `rm -r {folder}`: then the agent loads its own", folder = .folder.display()
    )]
    Damaged {
        /// Their folder.
        folder: PathBuf,
        /// What is missing or wrong.
        why: String,
    },
    /// What was asked for cannot be done.
    #[error("cannot {doing}: {reason}")]
    Refused {
        /// What was asked for.
        doing: String,
        /// Why, and what would work instead.
        reason: String,
    },
}

impl Error {
    /// Wraps an error of libbpf; a lack of permission becomes an error of its own.
    pub(crate) fn kernel(doing: impl Into<String>, error: libbpf_rs::Error) -> Error {
        match error.kind() {
            // A refusal by the verifier has the same code, so check whether a capability is missing.
            libbpf_rs::ErrorKind::PermissionDenied if !permitted() => Error::NotPermitted,
            libbpf_rs::ErrorKind::PermissionDenied => Error::Kernel {
                doing: doing.into(),
                reason: "the kernel's verifier refused a program (TEIJI_LOG=debug shows its words)".into(),
            },
            _ => Error::Kernel { doing: doing.into(), reason: format!("{error:#}") },
        }
    }
}

/// Whether this thread has the capabilities that loading needs; CAP_SYS_ADMIN is to find modules' types.
fn permitted() -> bool {
    const NEEDED: CapabilitySet =
        CapabilitySet::SYS_ADMIN.union(CapabilitySet::PERFMON).union(CapabilitySet::BPF);
    capabilities(None).is_ok_and(|own| own.effective.contains(NEEDED))
}

/// Sends the messages of libbpf to the log instead of standard error. They have debug level, as the errors that callers
/// get say what went wrong.
pub(crate) fn silence_libbpf() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, |_, text| {
        tracing::debug!(target: "libbpf", "{}", text.trim_end());
    })));
}
