//! The threads that take part in a request: when each got a CPU, who woke it, and what it did (figure 12 of paper P0).
//!
//! ```text
//!  vhost worker  ──asleep──┐woken  running├──takes the packet, signals──────────…──sends the response──
//!  vCPU          ──asleep───────────────────┐woken  running├──interrupt, protocol──
//!  vCPU          ──asleep───────────────────────────────────────┐woken  running├──application──
//!  reader (a thread of the guest)                                  ┐woken  running├──reads, answers──
//! ```
//! A *start* is what comes between being woken (or preempted) and running. Those count that the request waits for: a thread
//! that runs anyway when it is needed is not started. Times are ns on the clock of the events.

use crate::report::{DepthDist, Dist};
use crate::stage::ThreadState;
use serde::{Deserialize, Serialize};

/// What a thread does for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadRole {
    /// Takes the request off the tap.
    Receiver,
    /// Runs the vCPU that takes the interrupt, until the guest's stack has the packet.
    InterruptVcpu,
    /// Runs the vCPU on which the packet is read, from then on.
    ApplicationVcpu,
    /// Of the guest: reads the packet from the socket.
    Reader,
    /// Takes the response off the guest's ring.
    Sender,
}

impl ThreadRole {
    /// The number of roles.
    pub const COUNT: usize = 5;
    /// All roles, in the order in which a request needs them.
    pub const ALL: [ThreadRole; Self::COUNT] = [
        ThreadRole::Receiver,
        ThreadRole::InterruptVcpu,
        ThreadRole::ApplicationVcpu,
        ThreadRole::Reader,
        ThreadRole::Sender,
    ];

    /// The name used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            ThreadRole::Receiver => "worker, receiving",
            ThreadRole::InterruptVcpu => "vCPU, interrupt",
            ThreadRole::ApplicationVcpu => "vCPU, application",
            ThreadRole::Reader => "guest's reader",
            ThreadRole::Sender => "worker, sending",
        }
    }

    /// Between which instants its starts count.
    pub const fn meaning(self) -> &'static str {
        match self {
            ThreadRole::Receiver => "vhost worker; starts from put on the tap to taken off it",
            ThreadRole::InterruptVcpu => {
                "starts from the interrupt to the packet's reception by the guest's stack"
            }
            ThreadRole::ApplicationVcpu => "starts from the socket's queue to the kick",
            ThreadRole::Reader => "thread of the guest; its start between the socket's queue and reading",
            ThreadRole::Sender => "vhost worker; starts from the kick to the hand-over of the response",
        }
    }
}

/// Who woke a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WokenBy {
    /// Not known.
    #[default]
    Unknown,
    /// An interrupt or softirq.
    Interrupt,
    /// A thread; of the same kernel as the one that is woken.
    Thread {
        /// Its id.
        tid: u32,
        /// Its name, empty if not known. Untrusted text.
        name: String,
    },
}

/// A thread got a CPU, and the request had to wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStart {
    /// For what.
    pub role: ThreadRole,
    /// When it was woken; `None` if it was preempted, or that is not known.
    pub woken: Option<u64>,
    /// When it got a CPU.
    pub running: u64,
    /// Who woke it.
    pub by: WokenBy,
}

/// What a thread did for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadSpan {
    /// From when.
    pub from: u64,
    /// Until when.
    pub to: u64,
    /// What it did; [`ThreadState::Guest`] stands for guest mode with its exits. `None`: not known.
    pub state: Option<ThreadState>,
}

/// A thread in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestThread {
    /// What it does for the request.
    pub roles: Vec<ThreadRole>,
    /// Its id: the host's, or for [`ThreadRole::Reader`] the guest's. 0 if it is not known.
    pub tid: u32,
    /// A vCPU's index in the VM.
    pub vcpu: Option<u16>,
    /// The name of a guest's thread; empty if it is not known. Untrusted text.
    pub name: String,
    /// Its starts that the request waited for, in the order of time.
    pub starts: Vec<ThreadStart>,
    /// What it did while the request was under way, in the order of time.
    pub spans: Vec<ThreadSpan>,
}

/// The threads of one request, in the order in which it needs them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestThreads {
    /// See [`RequestThread`].
    pub threads: Vec<RequestThread>,
    /// From taken off the tap until the reader, which was woken for it, runs, ns; `None` if the reader was not asleep.
    pub to_application: Option<u64>,
}

/// What was found of thread starts, over all requests whose time in the guest is divided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThreadsReport {
    /// Requests whose starts are all known.
    pub requests: u64,
    /// Requests of which reports of starts are missing.
    pub unknown: u64,
    /// How many starts a request waits for.
    pub per_request: Option<DepthDist>,
    /// From taken off the tap until the reader runs, of requests whose reader was asleep.
    pub to_application: Option<Dist>,
    /// By role, in the order in which a request needs them; roles without a start are left out.
    pub roles: Vec<RoleStarts>,
}

/// The starts of the threads of one role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleStarts {
    /// The role.
    pub role: ThreadRole,
    /// How many starts requests waited for.
    pub starts: u64,
    /// From woken to running; of starts whose waking was seen.
    pub wake_up: Option<Dist>,
    /// Who woke them, most frequent first; at most 5. Preempted threads are not woken.
    pub woken_by: Vec<(WokenBy, u64)>,
}
