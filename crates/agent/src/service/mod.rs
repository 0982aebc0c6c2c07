//! Everything that teiji can do on a host, in one interface for the command line, an API and tests. Callers make
//! requests and show answers; they make no decisions.
//!
//! | module | holds |
//! | --- | --- |
//! | `plan` | policy, plan, observe |
//! | `apply` | apply, confirm, rollback |
//! | `status` | status |
//! | `agent` | the agent |
//! | `diagnose` | what is wrong with VMs, by the kernel's counters |
//! | `numa` | where VMs are on a host with NUMA nodes |
//! | `inspect` | doctor, VMs, traces, recordings |
//! | [`select`] | which VMs a name means |
//! | `guests` | how the guests of a trace are asked |
//! | [`mod@advice`] | advice beside a report |

pub mod advice;
mod agent;
mod apply;
mod diagnose;
mod guests;
mod inspect;
mod numa;
mod plan;
pub mod select;
mod status;

pub use crate::daemon::Signals;
pub use crate::daemon::detached::TraceOrder;
pub use crate::trace::{Replayed, Shown};
pub use apply::PreparedPlan;
pub use diagnose::{Observer, Timing};
pub use guests::GuestsWanted;
pub use inspect::{Doctor, TraceResult};
pub use status::StatusReport;
pub use teiji_control::placement::Pins;

use crate::apply::{Engine, STATE_DIRECTORY};
use crate::backend::{HostBackend, PINS};
use crate::{daemon, policy, trace};
use std::path::{Path, PathBuf};
use teiji_host::Root;
use teiji_model::guest::TokenError;

/// A host, and where teiji keeps its state of it.
#[derive(Clone, Debug)]
pub struct Service {
    root: Root,
    state: PathBuf,
    pins: PathBuf,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Only root may.
    #[error("root is needed and this process does not have it: {0}; run it with sudo")]
    NotRoot(&'static str),
    /// The request makes sense on this machine only.
    #[error("{0}")]
    Elsewhere(&'static str),
    /// There is no such VM, or there are several; or what was said of guests does not fit the VMs.
    #[error("{0}")]
    Selection(String),
    /// A trace of the agent has no recording.
    #[error("{0}")]
    NoRecording(String),
    /// A recording is that of a trace.
    #[error(
        "{0} has no counters of VMs, so nothing can be diagnosed: `teiji replay` shows recordings of traces"
    )]
    NoCounters(PathBuf),
    /// A guest cannot be asked over TCP.
    #[error("cannot use the token file {path} of --guest-token, so nothing is traced")]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: TokenError,
    },
    /// Probes cannot be attached.
    #[error(
        "tracing needs privileges that this process lacks ({}), so no probe can be attached: run it with sudo, or see \
         `teiji doctor`; `teiji replay` needs none",
        .0.join(", ")
    )]
    NotPermitted(Vec<&'static str>),
    /// The operator has to do something first.
    #[error("something else has to be done first, so nothing is changed: {}", .0.join("; "))]
    First(Vec<String>),
    /// There is no policy or no plan.
    #[error(transparent)]
    Policy(#[from] policy::Error),
    /// A change failed.
    #[error(transparent)]
    Apply(#[from] crate::apply::Error),
    /// Memory cannot be measured.
    #[error(transparent)]
    NumaBench(#[from] teiji_host::numa_bench::BenchError),
    /// The host cannot be observed.
    #[error(transparent)]
    Host(#[from] teiji_host::Error),
    /// A trace failed.
    #[error("cannot trace")]
    Trace(#[source] trace::Error),
    /// The probes of a diagnosis failed.
    #[error("cannot count what VMs do (--level census)")]
    Census(#[source] teiji_bpf::Error),
    /// A recording cannot be read.
    #[error(transparent)]
    Replay(trace::Error),
    /// The agent ended.
    #[error(transparent)]
    Agent(#[from] daemon::Error),
}

impl Service {
    /// This machine, or the host whose files are below `root`, with its state where it is kept by default.
    pub fn new(root: Option<&Path>) -> Service {
        let root = root.map_or_else(Root::default, Root::new);
        Service { root, state: STATE_DIRECTORY.into(), pins: PINS.into() }
    }

    /// This service with its state in other places.
    pub fn with(self, state: &Path, pins: &Path) -> Service {
        Service { state: state.to_owned(), pins: pins.to_owned(), ..self }
    }

    fn engine(&self) -> Result<Engine<HostBackend>, crate::apply::Error> {
        Engine::open(&self.state, HostBackend::new(self.root.clone(), &self.pins, &self.state))
    }

    /// Fails with `why` if this is not the machine that the kernel runs on.
    fn real(&self, why: &'static str) -> Result<(), Error> {
        if self.root.is_real() { Ok(()) } else { Err(Error::Elsewhere(why)) }
    }

    /// Fails with the reason why root is needed.
    fn needs_root(what: &'static str) -> Result<(), Error> {
        if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(Error::NotRoot(what)) }
    }
}
