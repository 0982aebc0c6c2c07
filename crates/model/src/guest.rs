//! What a host and the `teiji-guest` in one of its guests say to each other.
//!
//! The host connects to the guest, so it knows from the address (vsock: the context id; TCP: what the operator says) which
//! guest it is talking to; what a guest says about itself plays no part in that. Everything that comes from a guest is untrusted.
//!
//! ```text
//! frame   = len:u32 type:u8 payload[len]                     len little-endian, at most MAX_FRAME; payload in postcard's encoding
//!
//!   host                                             guest
//!     │ ◄────────────────────────────── 70 Challenge ── │  these three over TCP only,
//!     │ ── 1 Answer ─────────────────────────────────► │  where the address proves nothing:
//!     │ ◄────────────────────────────────── 71 Proof ── │  see [`Token`]
//!     │ ── 2 Hello ──────────────────────────────────► │  loads its programs
//!     │ ◄──────────────────────────────── 65 Welcome ── │  or 69 Refused, and closes
//!     │ ◄──────────────── 67 Events, 68 Lost, ... ────── │
//!     │ ── 3 Ping ───────────────────────────────────► │
//!     │ ◄─────────────────────────────────── 66 Pong ── │
//!     │ ── 4 Stop ───────────────────────────────────► │  detaches
//!     │ ◄──────────── the last 67 Events, 68 Lost ────── │  closes
//! ```
//!
//! Hello, Welcome and Refused begin with the version of the protocol. Whoever reads another version than [`VERSION`] reads
//! no further: a guest answers it with Refused.
//!
//! Times are ns of the guest's `CLOCK_MONOTONIC`. [`Pong`] tells what the guest's TSC was before and after a reading of
//! that clock, so that a host that knows the TSC offset of a vCPU can convert them. (Each vCPU has an offset; they are
//! equal unless the guest has changed them.)
//!
//! A decoder allocates no memory by a claimed length, bounds each list and text, refuses times that contradict each other,
//! and never panics. This module does no I/O: [`Decoder`] is given bytes, [`ToGuest::frame`] and [`ToHost::frame`]
//! return them.

mod check;
mod frame;
mod token;

#[cfg(test)]
mod tests;

pub use frame::{Decoder, Error, Message, fuzz};
pub use token::{Answer, Challenge, NONCE, Nonce, Nonces, PROOF, Proof, Side, Token, TokenError};

use crate::event::Role;
use crate::flow::Watch;
use serde::{Deserialize, Serialize};

/// The port that a guest listens on by default, of vsock and TCP.
pub const PORT: u32 = 7413;

/// The version of the protocol. Incremented when the shape of anything in it changes.
pub const VERSION: u16 = 1;

/// How long a host may say nothing, ms: after that the guest takes it for gone. A host that streams pings more often.
pub const SILENT_MS: u64 = 60_000;

/// The longest payload of a frame, bytes.
pub const MAX_FRAME: usize = 64 << 10;

/// The most events in a frame.
pub const MAX_EVENTS: usize = 512;

/// Words of a packet that take part in its print: the length of each half of the secret.
pub const SECRET_WORDS: usize = 28;

/// The secret of the prints of one guest, which no other guest gets: who has it can make packets whose prints collide.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [[u64; SECRET_WORDS]; 2]);

/// Does not show it.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What the host asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u16,
    /// Of this guest's prints. The host's probes have the same for this guest, so that one packet has one print.
    pub secret: Secret,
    /// Which packets to follow. Directions are the guest's: `In` is towards it.
    pub watch: Watch,
}

/// Asks for a reading of the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Is in the answer.
    pub number: u64,
}

/// From the host to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGuest {
    /// The first frame over TCP.
    Answer(Answer),
    /// The first frame, but for the answer.
    Hello(Box<Hello>),
    /// At any time after Hello.
    Ping(Ping),
    /// The last frame.
    Stop,
}

/// Says what can be followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`VERSION`].
    pub version: u16,
    /// Version of `teiji-guest`.
    pub teiji: String,
    /// The kernel's release (`uname -r`).
    pub kernel: String,
    /// CPUs that are online.
    pub cpus: u16,
    /// What this kernel lacks. At most [`Welcome::MAX_MISSING`].
    #[serde(deserialize_with = "check::missing")]
    pub missing: Vec<Missing>,
}

impl Welcome {
    /// The most entries of [`Welcome::missing`].
    pub const MAX_MISSING: usize = 64;
}

/// A function, tracepoint or symbol that a guest's kernel lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Its name.
    pub hook: String,
    /// What is not seen without it.
    pub without: String,
}

/// A reading of the guest's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Of the [`Ping`].
    pub number: u64,
    /// The guest's TSC before the clock was read. Both readings are of one vCPU, unless the thread was moved in between.
    pub tsc_before: u64,
    /// The guest's `CLOCK_MONOTONIC`, ns.
    pub clock: u64,
    /// The guest's TSC after that.
    pub tsc_after: u64,
}

/// Events were lost: records did not fit into the buffer, or the kernel skipped runs of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// They were lost after this instant, ns.
    pub since: u64,
    /// And before this one, ns.
    pub until: u64,
    /// How many records did not fit, plus how many runs of probes were skipped.
    pub count: u64,
}

/// The guest does not do what it is asked for; it then closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// [`VERSION`].
    pub version: u16,
    /// Why, for people. Untrusted: `text::printable` before it is shown.
    pub text: String,
}

/// From the guest to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHost {
    /// The first frame over TCP.
    Challenge(Challenge),
    /// The answer to a right Answer.
    Proof(Proof),
    /// The answer to Hello.
    Welcome(Welcome),
    /// The answer to Ping.
    Pong(Pong),
    /// What was seen. Not in order: see [`Event`]. At most [`MAX_EVENTS`], and at least one.
    Events(Vec<Event>),
    /// That not all was seen.
    Lost(Lost),
    /// Instead of Welcome, or the last frame.
    Refused(Refused),
}

/// One report of a guest's probe.
///
/// Events are not quite in the order of [`Event::ts`], neither between CPUs nor on one: see
/// [`crate::event`]. In particular [`EventKind::Queued`] has the time before the packet is in the queue, but is reported
/// after that, when the packet may have been read already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When: ns of the guest's `CLOCK_MONOTONIC`.
    pub ts: u64,
    /// The vCPU on which it happened, as the guest counts.
    pub cpu: u16,
    /// What happened.
    pub kind: EventKind,
}

/// What happened. Packets have their print: the host's fingerprint of the same packet, hashed with the guest's secret.
/// Times within are not later than [`Event::ts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// The stack received a packet from a device (`netif_receive_skb`). Reported again for each device that the packet
    /// passes within the guest (VLAN, bridge, veth); the first report counts.
    Received {
        /// The packet.
        print: u64,
        /// When the interrupt came in which the NIC's driver asked to be polled, in whose poll the packet was received. 0
        /// if there was none, as the driver found the packet when it looked once more, or if it is not known.
        interrupted: u64,
    },
    /// A packet was put on a socket's receive queue: a datagram of UDP; or a segment of TCP with data, if none that was reported before
    /// is there without having been read from.
    Queued {
        /// The packet.
        print: u64,
        /// Packets that were in the queue before it.
        backlog: u32,
    },
    /// A thread took a datagram off a socket's queue, to copy it then; or it has copied the first data of a segment of TCP that was
    /// reported when it was queued.
    Read {
        /// The packet.
        print: u64,
        /// The thread.
        tid: u32,
        /// When the thread was woken, after the packet had been queued; 0 if it was not asleep then.
        woken: u64,
        /// When it then got a CPU; 0 if `woken` is.
        running: u64,
        /// Who woke it: a thread, or 0 for an interrupt or softirq, as that which put the packet on the queue.
        woken_by: u32,
    },
    /// A packet was queued to a device (`net_dev_queue`). Reported again for each device that it passes within the guest;
    /// the first report counts. One that the guest only forwards has been `Received` before.
    Sent {
        /// The packet.
        print: u64,
        /// The thread that sent it; 0 if that was done in an interrupt or softirq, or is not known.
        tid: u32,
        /// When this thread began to send (`inet_sendmsg`, `inet6_sendmsg`), just after it had entered the system call; 0
        /// if it is not known.
        began: u64,
    },
    /// A packet was given to a device's driver (`net_dev_start_xmit`). If it was reported more than once, the last
    /// report counts.
    Handed {
        /// The packet.
        print: u64,
    },
    /// Who a thread is that is in other events. Comes before the first of these, unless it was lost.
    Thread {
        /// The thread.
        tid: u32,
        /// The id of its process.
        process: u32,
        /// The thread that created it, 0 if it was not created during the trace.
        parent: u32,
        /// Its name, zero-padded; untrusted: [`crate::event::name`] makes it text.
        comm: [u8; 16],
        /// When it was created, 0 if that was not during the trace.
        started: u64,
    },
    /// A packet that takes part in a request passed a PCI device. Comes after its `Received` or `Handed`, at the same time. Only if
    /// the host asks for matching, as it does if it has given a NIC to the VM: it sees the packets of all others itself.
    Matched(Matched),
}

/// A packet that takes part in a request, at a PCI device of the guest. A NIC of virtio is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matched {
    /// The packet.
    pub print: u64,
    /// Equal for a request and its responses, with the secret of the prints.
    pub key: u64,
    /// The packet's part in the request.
    pub role: Role,
    /// It was given to the device; otherwise it was received from it.
    pub sent: bool,
    /// Of a packet that was received: as in `Received`.
    pub interrupted: u64,
    /// When the same vCPU was interrupted before that, by whatever device; 0 if that is not known.
    pub previous: u64,
    /// Whether the interrupt at `interrupted` was certainly this packet's own: the driver received no other one before it since then,
    /// and the interrupt cannot have been left over from an earlier packet.
    pub own: bool,
    /// The device's PCI vendor id.
    pub vendor: u16,
    /// The device's PCI device id.
    pub device: u16,
}
