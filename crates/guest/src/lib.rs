//! `teiji-guest`: follows packets inside a virtual machine, and tells the host.
//!
//! The host asks over vsock, or TCP where there is none, and gets what the probes see until it stops asking. Between
//! hosts nothing is loaded into the kernel. What is said is defined in [`teiji_model::guest`].
//!
//! | module | does |
//! | --- | --- |
//! | [`guest_trace`] | the probes: the BPF program and its Rust half |
//! | [`check`] | which hooks this kernel has, and what is not seen without the others |
//! | [`clock`] | a reading of the clock between two readings of the TSC |
//! | [`listen`] | sockets of vsock and TCP, and who may connect |
//! | [`privilege`] | gives up all but the capabilities that loading programs needs |
//! | [`serve`] | waits for hosts; one is served at a time |
//! | [`session`] | what happens on one connection |
//! | [`token`] | the file of the secret that a host has to know over TCP |
//!
//! Times are ns of `CLOCK_MONOTONIC`.
pub mod check;
pub mod clock;
pub mod guest_trace;
pub mod listen;
pub mod privilege;
pub mod serve;
pub mod session;
pub mod token;

/// Why packets cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not describe its types.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux): probes cannot find the kernel's fields, so nothing can be followed; use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    NoBtf,
    /// Not allowed.
    #[error("not permitted to load BPF programs: that needs CAP_BPF and CAP_PERFMON; run as root")]
    NotPermitted,
    /// The verifier or libbpf refused.
    #[error("cannot {doing}: {reason}; `teiji-guest check` says what this kernel offers")]
    Kernel {
        /// What was being done.
        doing: String,
        /// libbpf's words.
        reason: String,
    },
}

impl Error {
    /// Wraps an error of libbpf; a lack of permission becomes an error of its own.
    fn kernel(doing: impl Into<String>, error: &libbpf_rs::Error) -> Error {
        if error.kind() == libbpf_rs::ErrorKind::PermissionDenied && !privilege::may_load() {
            return Error::NotPermitted;
        }
        Error::Kernel { doing: doing.into(), reason: format!("{error:#}") }
    }
}
