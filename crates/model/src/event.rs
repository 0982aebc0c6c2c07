//! What the probes report, one event for each time a packet, an interrupt or a thread passes a point.
//!
//! Events of one CPU arrive in order; events of different CPUs may be out of order by the time that
//! it takes to drain the buffers, so consumers sort by [`Event::ts`] within a window.
//!
//! Thread clocks ([`Split`]) are cumulative. The difference between two events' clocks of the same
//! thread says how that thread spent the time between them; no per-transition events are needed.

use crate::stage::{Split, ThreadState};
use serde::{Deserialize, Serialize};

/// One report of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When: ns of the host's `CLOCK_MONOTONIC`.
    pub ts: u64,
    /// The CPU on which it happened.
    pub cpu: u16,
    /// What happened.
    pub kind: Kind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A packet passed a point of the path.
    Packet(Packet),
    /// A vhost worker told the guest that its receive queue has packets.
    Interrupt(Interrupt),
    /// A vCPU entered guest mode with such an interrupt.
    GuestEntry(GuestEntry),
    /// A guest told the host that a transmit queue has packets.
    Kick(Kick),
    /// The name of a thread that others refer to by id.
    Task(Task),
    /// Events are missing here.
    Lost(Lost),
    /// The kernel dropped a packet.
    Dropped(Dropped),
    /// What a number in [`Dropped::why`] means.
    DropName(DropName),
}

/// Where on the path a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Point {
    /// Received by the host stack from a device that is not a traced tap (`netif_rx`,
    /// `netif_receive_skb`). May be reported more than
    /// once for one packet; the first counts.
    HostRx,
    /// Put on a traced tap's ring (`tun_net_xmit`).
    TapEnqueue,
    /// Taken off it by the vhost worker (`tun_recvmsg`).
    TapDequeue,
    /// A guest's frame handed to the host stack (`netif_receive_skb` on a traced tap).
    TapSend,
    /// Given to a link's queue (`net_dev_queue`).
    DevQueue,
    /// Taken off a link's qdisc (`qdisc_dequeue`); absent where the qdisc was bypassed.
    QdiscDequeue,
    /// Handed to the device (`dev_hard_start_xmit`, where functions cannot be probed `net_dev_start_xmit`).
    DevXmit,
}

/// A packet at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Where.
    pub point: Point,
    /// Identifies the packet along its path: a hash of its unchanging header fields.
    pub fingerprint: u64,
    /// For the matching of requests and responses; set at [`Point::TapEnqueue`] and [`Point::TapSend`].
    pub matching: Option<Match>,
    /// The device: the tap for tap points, else the NIC, bridge port or link.
    pub ifindex: u32,
    /// Length of the frame, bytes.
    pub len: u32,
    /// The thread in whose context it happened: at [`Point::TapDequeue`] the vhost worker, and at
    /// [`Point::TapSend`] if `worker` is known; else whoever ran the host stack.
    pub tid: u32,
    /// At [`Point::TapSend`]: the tap's queue, if it is known.
    pub queue: Option<u16>,
    /// At [`Point::TapDequeue`]: packets still waiting behind this one, in the tap's ring and in the
    /// worker's batch.
    pub depth: u16,
    /// At tap points: the clock of the vhost worker that serves the queue, if it is known. At [`Point::TapSend`] only
    /// if that worker itself handed the frame over: with receive packet steering or NAPI on the tap another thread may,
    /// at another time.
    pub worker: Option<Split>,
    /// At [`Point::TapDequeue`] and [`Point::TapSend`]: the thread that kept the worker from its CPU in its last
    /// wait for one, 0 if none. Of several, one is chosen with a probability in proportion to the time that it had.
    pub behind: u32,
}

/// How a packet takes part in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Match {
    /// Equal for a request and its responses. A keyed hash, not payload.
    pub key: u64,
    /// Which of them this is.
    pub role: Role,
    /// Groups requests that belong together (a SIP call: hash of its Call-ID); 0 if nothing does.
    pub group: u64,
    /// Which part of its group this is; of no meaning without one.
    pub step: Step,
}

/// A packet's part in a group of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    /// Neither of the others.
    #[default]
    Within,
    /// A request that begins a group (SIP: an INVITE outside a dialogue), or its response.
    Begins,
    /// A request whose response ends the group (SIP BYE), or that response.
    Ends,
}

/// A packet's part in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The protocol does not tell: the first packet of a key is the request, the next in the other
    /// direction its response (UDP echo).
    Either,
    /// A request.
    Request,
    /// A response after which another follows (SIP 1xx).
    Provisional,
    /// The response that ends the request.
    Final,
    /// Belongs to a group but is neither answered nor an answer (SIP ACK).
    OneWay,
}

/// A vhost worker signalled a receive queue.
///
/// The packets concerned are those that `tid` has taken off `ifindex` since its last signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// When the worker began to signal; [`Event::ts`] is when a vCPU's interrupt controller accepted
    /// (the same instant if nothing was sent).
    pub signalled: u64,
    /// The tap whose receive queue it is.
    pub ifindex: u32,
    /// The worker.
    pub tid: u32,
    /// What became of it.
    pub delivery: Delivery,
    /// The VMM's process id.
    pub vm: u32,
    /// The vCPU by KVM's number (its APIC id), valid unless `delivery` is [`Delivery::Unknown`].
    pub vcpu: u32,
    /// The same vCPU by its index in the VM; `None` if its thread is not known yet, as may be until its first
    /// entry; KVM's number if the thread was first met then.
    pub index: Option<u16>,
    /// The guest's interrupt vector, 0 if none.
    pub vector: u8,
    /// What that vCPU's thread was doing at [`Event::ts`]; `None` if not known.
    pub state: Option<ThreadState>,
    /// That thread's clock at [`Event::ts`]; of no meaning if `state` is not known.
    pub clock: Split,
}

/// What became of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// Accepted by the vCPU's emulated interrupt controller; a [`GuestEntry`] follows.
    Accepted,
    /// Posted by hardware (APICv, AVIC) into a vCPU that was in guest mode: no entry follows.
    Posted,
    /// The guest had interrupts of the queue off, as it does while it polls the ring; `vcpu` is the
    /// one that last took them. If `state` is [`ThreadState::Guest`] the guest sees the packets at
    /// once, else a [`GuestEntry`] with vector 0 follows.
    Suppressed,
    /// No vCPU was seen to take it.
    Unknown,
}

/// A vCPU entered guest mode with interrupts that [`Interrupt`] announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEntry {
    /// The VMM's process id.
    pub vm: u32,
    /// The vCPU by KVM's number.
    pub vcpu: u32,
    /// The same vCPU by its index in the VM; KVM's number where that is not known.
    pub index: u16,
    /// The vector injected; 0 for an entry that answers [`Delivery::Suppressed`].
    pub vector: u8,
    /// It covers every interrupt of this vector that was accepted up to this instant.
    pub upto: u64,
    /// The vCPU thread's clock at [`Event::ts`].
    pub clock: Split,
    /// The thread that kept the vCPU thread from its CPU; see [`Packet::behind`].
    pub behind: u32,
}

/// A guest kicked a transmit queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kick {
    /// The tap whose transmit queue it is.
    pub ifindex: u32,
    /// Which of the tap's queues.
    pub queue: u16,
    /// The VMM's process id.
    pub vm: u32,
    /// The vCPU that kicked, by KVM's number.
    pub vcpu: u32,
    /// Its thread's clock.
    pub clock: Split,
    /// The clock of the vhost worker that the kick wakes, if it is known.
    pub worker: Option<Split>,
    /// The thread that kept the vCPU thread from its CPU; see [`Packet::behind`].
    pub behind: u32,
}

/// A thread's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Thread id.
    pub tid: u32,
    /// `comm`, zero-padded.
    pub comm: [u8; 16],
}

/// Events of some CPU did not fit into its buffer.
///
/// Reported by whoever drains the buffers, when it finds that the count of lost events has grown since
/// it last looked. What was on its way then cannot be told apart from what it seems to be, so consumers
/// count it as incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// When the count was last known to be right, ns; [`Event::ts`] is when it no longer was.
    pub since: u64,
    /// How many events.
    pub count: u64,
}

/// The kernel dropped a packet (`kfree_skb`).
///
/// The kernel drops copies as well, such as those that a sniffer had no room for, while the packet itself goes on:
/// only what is seen afterwards tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// As in [`Packet`].
    pub fingerprint: u64,
    /// As in [`Packet`], whatever the packet's way.
    pub matching: Option<Match>,
    /// The device that the packet was at, 0 if none.
    pub ifindex: u32,
    /// The traced tap that it was meant for, 0 if it is not known to be meant for a traced guest.
    pub tap: u32,
    /// The kernel's reason: a number of this kernel's `enum skb_drop_reason`; [`DropName`] names it.
    pub why: u32,
    /// The kernel gave no reason of its own for it. Drivers also free packets so that they have sent.
    pub vague: bool,
    /// The function that dropped it, zero-padded; empty if it is not known.
    pub place: [u8; 32],
}

/// The kernel's name for a reason to drop packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropName {
    /// The number.
    pub why: u32,
    /// The name without `SKB_DROP_REASON_`, zero-padded.
    pub name: [u8; 32],
}

/// A zero-padded name as text; bytes that are not printable ASCII become `?` (names are untrusted).
pub fn name(padded: &[u8]) -> String {
    padded
        .iter()
        .take_while(|&&b| b != 0)
        .map(|&b| if b.is_ascii_graphic() || b == b' ' { b as char } else { '?' })
        .collect()
}

/// A name, cut and zero-padded.
pub fn padded(name: &str) -> [u8; 32] {
    let mut out = [0; 32];
    let n = name.len().min(out.len());
    out[..n].copy_from_slice(&name.as_bytes()[..n]);
    out
}

impl Task {
    /// The name as text; bytes that are not printable ASCII become `?` (names are untrusted).
    pub fn name(&self) -> String {
        name(&self.comm)
    }
}
