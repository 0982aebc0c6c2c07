//! What the probes report: one event each time a packet, an interrupt or a thread passes a point.
//!
//! Events are not quite in the order of [`Event::ts`], so consumers sort them within a window. Those of different CPUs
//! may be out of order by as much as the time it takes to drain the buffer. Those of one CPU may be as well: a probe takes
//! the time before it hands the event over, and may be interrupted in between; and that an interrupt is suppressed is
//! known only when its signal ends, until when the worker may have lost its CPU ([`Delivery::Suppressed`]).
//!
//! Thread clocks ([`Split`]) are cumulative. The difference between the clocks of one thread in two events says how
//! that thread spent the time between them; no event per transition is needed.

use crate::guest;
use crate::stage::{Split, ThreadState};
use crate::stream::StreamId;
use serde::{Deserialize, Serialize};

/// One report of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When: ns of the stream's clock, for the host's events `CLOCK_MONOTONIC`.
    pub ts: u64,
    /// Who reports it. In a recording all events of a frame have the same stream.
    #[serde(skip)]
    pub stream: StreamId,
    /// The CPU on which it happened.
    pub cpu: u16,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// A packet passed a point of the path.
    Packet(Packet),
    /// A vhost worker told the guest that its receive queue has packets.
    Interrupt(Interrupt),
    /// A vCPU entered guest mode with such an interrupt.
    GuestEntry(GuestEntry),
    /// A guest told the host that a transmit queue has packets.
    Kick(Kick),
    /// The name of a thread that other events refer to by id.
    ThreadName(ThreadName),
    /// Events were lost.
    Lost(Lost),
    /// The kernel dropped a packet.
    Dropped(Dropped),
    /// What a number in [`Dropped::why`] means.
    DropName(DropName),
    /// How a guest that reports events itself identifies a packet on its tap.
    Print(Print),
    /// What a guest reported: the only kind of event in a guest's stream.
    Guest(guest::EventKind),
    /// What a vCPU's thread does from now on.
    VcpuState(VcpuState),
    /// A vCPU thread or vhost worker got a CPU.
    Start(Start),
    /// A NIC lost packets, by its own count.
    NicLoss(NicLoss),
    /// A device that was given to a VM interrupted it.
    DeviceInterrupt(DeviceInterrupt),
    /// Who had a CPU for which a vCPU thread or vhost worker has waited.
    Wait(Wait),
}

/// Where on the path a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Point {
    /// Received by the host stack from a device that is not a traced tap (`netif_rx`, `netif_receive_skb`). May be
    /// reported more than once for one packet; the first report counts.
    HostRx,
    /// Put on a traced tap's ring (`tun_net_xmit`).
    TapEnqueue,
    /// Taken off the tap's ring by the vhost worker (`tun_recvmsg`).
    TapDequeue,
    /// A guest's frame handed to the host stack (`netif_receive_skb` on a traced tap).
    TapSend,
    /// Put into a link's queue (`net_dev_queue`).
    DevQueue,
    /// Taken off a link's qdisc (`qdisc_dequeue`); absent if the packet bypassed the qdisc.
    QdiscDequeue,
    /// Handed to the device (`dev_hard_start_xmit`, or `net_dev_start_xmit` on kernels whose functions cannot be
    /// probed).
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
    /// The thread in whose context it happened: the vhost worker at [`Point::TapDequeue`], and at [`Point::TapSend`] if
    /// `worker` is known; otherwise the thread that ran the host stack.
    pub tid: u32,
    /// At [`Point::TapSend`]: the tap's queue, if known.
    pub queue: Option<u16>,
    /// At [`Point::TapDequeue`]: how many packets still wait behind this one, in the tap's ring and in the worker's
    /// batch. At [`Point::TapEnqueue`] and [`Point::TapSend`] a part of [`Packet::segments`]: older readers ignore it
    /// there, and older recordings have 0.
    pub depth: u16,
    /// At tap points: the clock of the vhost worker that serves the queue, if known. At [`Point::TapSend`] only if that
    /// worker handed the frame over itself: with receive packet steering, or NAPI on the tap, another thread may do so
    /// later.
    pub worker: Option<Split>,
    /// At [`Point::TapDequeue`] and [`Point::TapSend`]: a thread that had the worker's CPU while the worker waited for
    /// it, 0 if there was none or it is not known. Of those since the event before that named one is chosen, with
    /// a probability in proportion to its time.
    pub preempted_by: u32,
}

impl Packet {
    /// How many segments, or datagrams, the packet stands for: more than 1 if it is left to others on its way to split it
    /// (GSO, TSO), or if it was merged (GRO). Known at [`Point::TapEnqueue`] and [`Point::TapSend`]; 1 elsewhere. Of a packet
    /// from a guest it follows from the size of a segment, which the guest may choose as it likes.
    pub fn segments(&self) -> u16 {
        match self.point {
            Point::TapEnqueue | Point::TapSend => self.depth.max(1),
            _ => 1,
        }
    }
}

/// How a packet takes part in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Match {
    /// Equal for a request and its responses. A keyed hash, not payload.
    pub key: u64,
    /// The packet's part in the request.
    pub role: Role,
    /// Identifies requests that belong together (a SIP call: hash of its Call-ID); 0 if the packet is in no group. Of a
    /// segment of TCP, which is in none: a part of [`Match::segment`], so that events are not larger.
    pub group: u64,
    /// The packet's part in its group; has no meaning if `group` is 0.
    pub group_role: GroupRole,
}

/// A packet's part in a group of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GroupRole {
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
    /// The protocol does not say: the first packet with a key is the request, the next one in the other direction its
    /// response (UDP echo).
    Either,
    /// A request.
    Request,
    /// A response that another one follows (SIP 101 to 199).
    Provisional,
    /// The response that ends the request.
    Final,
    /// Belongs to a group but is neither a request with a response nor a response (SIP ACK). It has the key of the
    /// request whose response it acknowledges.
    OneWay,
    /// A response that says only that the next hop has the request (SIP 100).
    Trying,
    /// A segment of TCP: its part follows from the segments before it. The key is that of its connection. The rest of
    /// what is known of it has [`Match::segment`].
    Segment {
        /// As in [`Segment`].
        payload: u16,
        /// As in [`Segment`].
        flags: u8,
    },
}

impl Match {
    /// Of a segment of a connection.
    pub fn of_segment(connection: u64, s: Segment) -> Match {
        let Segment { seq, ack, payload, flags } = s;
        let group = u64::from(seq) << 32 | u64::from(ack);
        Match {
            key: connection,
            role: Role::Segment { payload, flags },
            group,
            group_role: GroupRole::Within,
        }
    }

    /// What is known of the segment, if it is one.
    pub fn segment(&self) -> Option<Segment> {
        match self.role {
            Role::Segment { payload, flags } => {
                Some(Segment { seq: (self.group >> 32) as u32, ack: self.group as u32, payload, flags })
            }
            _ => None,
        }
    }
}

/// What is known of a segment of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// Its sequence number.
    pub seq: u32,
    /// What it acknowledges; has no meaning without [`Segment::ACK`].
    pub ack: u32,
    /// Bytes of payload.
    pub payload: u16,
    /// Constants of [`Segment`], or-ed.
    pub flags: u8,
}

impl Segment {
    /// The sender sends no more.
    pub const FIN: u8 = 0x01;
    /// It opens the connection.
    pub const SYN: u8 = 0x02;
    /// It resets the connection.
    pub const RST: u8 = 0x04;
    /// It acknowledges something.
    pub const ACK: u8 = 0x10;
    /// The filter has a condition on ports that the guest's port satisfies.
    pub const PORT_OF_GUEST: u8 = 0x40;
    /// The filter has a condition on the port of either end that the other side's satisfies.
    pub const PORT_OF_OTHER: u8 = 0x80;

    /// Whether it has one of these flags.
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }
}

/// A vhost worker signalled a receive queue, with an interrupt or without.
///
/// It covers the packets that `tid` has taken off `ifindex` since its last signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// When the worker began to write the packets to the ring and to signal; of [`Delivery::Unknown`] see there. [`Event::ts`] is
    /// when a vCPU's interrupt controller accepted the interrupt; if none was sent, when the packets were in the ring, or, if
    /// the probe after that write was skipped, the end of the signal.
    pub signalled: u64,
    /// The tap whose receive queue was signalled.
    pub ifindex: u32,
    /// The worker's thread id.
    pub tid: u32,
    /// The outcome of the signal.
    pub delivery: Delivery,
    /// The VMM's process id.
    pub vm: u32,
    /// The vCPU by KVM's number (its APIC id); has no meaning if `delivery` is [`Delivery::Unknown`] and `state` is `None`.
    pub vcpu: u32,
    /// The same vCPU by its index in the VM. `None` if its thread is not known yet, as before its first guest entry;
    /// KVM's number if the thread was first seen at that entry.
    pub index: Option<u16>,
    /// The guest's interrupt vector, 0 if none; [`Interrupt::SKIPPED`].
    pub vector: u8,
    /// What the vCPU's thread was doing at [`Event::ts`]; `None` if not known.
    pub state: Option<ThreadState>,
    /// The clock of the vCPU's thread at [`Event::ts`]; has no meaning if `state` is `None`.
    pub clock: Split,
}

impl Interrupt {
    /// Stands for the vector of a signal of which the kernel skipped the run of a probe: see the table at [`Delivery::Unknown`].
    /// No vector of a guest's is ever stored with that.
    pub const SKIPPED: u8 = 255;

    /// Whether the kernel skipped the run of a probe, so that it is not known when the guest received the packets.
    pub fn is_skipped(&self) -> bool {
        self.delivery == Delivery::Unknown && self.vector == Self::SKIPPED
    }

    /// Whether it is not known when the guest received the packets.
    pub fn arrival_is_unknown(&self) -> bool {
        self.is_skipped() || self.delivery == Delivery::Unknown && self.state.is_some()
    }
}

/// The outcome of a signal, or of a device's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// Accepted by the vCPU's emulated interrupt controller; a [`GuestEntry`] follows.
    Accepted,
    /// Posted by hardware (APICv, AVIC) into a vCPU that was in guest mode: no entry follows.
    Posted,
    /// The guest had switched off interrupts of the queue, as it does while it polls the ring; `vcpu` is the vCPU that
    /// accepted the last interrupt. If `state` is [`ThreadState::Guest`], the guest sees the packets at once; otherwise
    /// with the next [`GuestEntry`] with vector 0. The event may be handed over later than that one.
    Suppressed,
    /// No vCPU was seen to accept an interrupt. What is known otherwise:
    ///
    /// | `state` | `vector` | meaning | [`Event::ts`] | `signalled` |
    /// | --- | --- | --- | --- | --- |
    /// | `None` | 0 | nothing | end of the signal | its beginning; the same as [`Event::ts`] if none was seen to begin |
    /// | known | 0 | the guest polled, and `vcpu` was in guest mode during the signal: when it received the packets is not known | beginning of the signal | packets written |
    /// | known | [`Interrupt::SKIPPED`] | the same; the probe after the write was skipped | beginning of the signal | its end |
    /// | `None` | [`Interrupt::SKIPPED`] | the probe at the beginning was skipped, or at both ends | when that was noticed: at the end, or when the worker did something else | the same: it covers all packets that were taken by then |
    /// | `None` | [`Interrupt::SKIPPED`] | the probe at the end was skipped | when the worker did something else | its beginning |
    ///
    /// These are no variants of their own, because readers of format version 3 refuse a recording with a variant that they do not
    /// know.
    Unknown,
}

/// A device that was given to a VM (VFIO) interrupted it. The host does not know what the device has for the guest.
///
/// [`Event::ts`] is when a vCPU accepted the guest's interrupt; if none was seen to, when the host's interrupt handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInterrupt {
    /// When the host's interrupt handler began, ns.
    pub began: u64,
    /// The host's number of the interrupt.
    pub irq: u32,
    /// As of an [`Interrupt`]; never [`Delivery::Suppressed`].
    pub delivery: Delivery,
    /// The VMM's process id.
    pub vm: u32,
    /// The vCPU by KVM's number; has no meaning if `delivery` is [`Delivery::Unknown`].
    pub vcpu: u32,
    /// The guest's interrupt vector; has no meaning if `delivery` is [`Delivery::Unknown`].
    pub vector: u8,
    /// Hardware delivers it (APICv, AVIC), or that was not known before the vCPU's first entry: the [`GuestEntry`] that takes it has
    /// vector 0.
    pub by_hardware: bool,
}

/// A vCPU entered guest mode with interrupts that [`Interrupt`] or [`DeviceInterrupt`] events announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEntry {
    /// The VMM's process id.
    pub vm: u32,
    /// The vCPU by KVM's number.
    pub vcpu: u32,
    /// The same vCPU by its index in the VM; KVM's number if the index is not known.
    pub index: u16,
    /// The injected vector; 0 if none was seen, as after [`Delivery::Suppressed`].
    pub vector: u8,
    /// The entry covers every interrupt of this vector that was accepted up to this instant, ns.
    pub upto: u64,
    /// The vCPU thread's clock at [`Event::ts`].
    pub clock: Split,
    /// A thread that had the vCPU thread's CPU while that thread waited; see [`Packet::preempted_by`].
    pub preempted_by: u32,
}

/// A guest kicked a transmit queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kick {
    /// The tap whose transmit queue was kicked.
    pub ifindex: u32,
    /// The number of the tap's queue.
    pub queue: u16,
    /// The VMM's process id.
    pub vm: u32,
    /// The vCPU that kicked, by KVM's number.
    pub vcpu: u32,
    /// The clock of the vCPU's thread.
    pub clock: Split,
    /// The clock of the vhost worker that the kick wakes, if known.
    pub worker: Option<Split>,
    /// A thread that had the vCPU thread's CPU while that thread waited; see [`Packet::preempted_by`].
    pub preempted_by: u32,
}

/// How a guest that reports events itself identifies a packet on its tap. Comes with the packet's own event at
/// [`Point::TapEnqueue`] or [`Point::TapSend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Print {
    /// As in [`Packet`].
    pub fingerprint: u64,
    /// The same packet in [`guest::EventKind`].
    pub print: u64,
}

/// A vCPU's thread went to sleep, began to poll or to wait for a CPU, or did so no longer. Reported of VMs whose guests report
/// events themselves, for each such change but not for guest entries and exits; of a vCPU that goes on running, now and then.
///
/// `clock` is its clock at [`Event::ts`] exactly: the times in two events in a row add up to the time between them, and all of
/// it is in one state ([`ThreadState::Guest`] and [`ThreadState::Run`] count as one). Otherwise an event in between is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuState {
    /// The VMM's process id.
    pub vm: u32,
    /// The vCPU by KVM's number.
    pub vcpu: u32,
    /// The same vCPU by its index in the VM; see [`Interrupt::index`].
    pub index: Option<u16>,
    /// What it does from now on.
    pub state: ThreadState,
    /// Its clock.
    pub clock: Split,
    /// A thread that had its CPU while it waited; see [`Packet::preempted_by`].
    pub preempted_by: u32,
}

/// A vCPU that enters guest mode, as a reading of its clock.
impl From<&GuestEntry> for VcpuState {
    fn from(e: &GuestEntry) -> Self {
        let (vm, vcpu, clock, preempted_by) = (e.vm, e.vcpu, e.clock, e.preempted_by);
        VcpuState { vm, vcpu, index: None, state: ThreadState::Guest, clock, preempted_by }
    }
}

impl Interrupt {
    /// Its vCPU if that ran then, as a reading of its clock. `None` if it did not run: who had its CPU is known when a wait ends.
    pub fn reading(&self) -> Option<VcpuState> {
        let state = self.state.filter(|state| matches!(state, ThreadState::Guest | ThreadState::Run))?;
        let &Interrupt { vm, vcpu, index, clock, .. } = self;
        // Of unknown arrival: its time is not that at which the clock was read.
        (self.delivery != Delivery::Unknown).then_some(VcpuState {
            vm,
            vcpu,
            index,
            state,
            clock,
            preempted_by: 0,
        })
    }
}

/// A vCPU whose exit is a kick, as a reading of its clock.
impl From<&Kick> for VcpuState {
    fn from(k: &Kick) -> Self {
        let (vm, vcpu, clock, preempted_by) = (k.vm, k.vcpu, k.clock, k.preempted_by);
        VcpuState { vm, vcpu, index: None, state: ThreadState::Run, clock, preempted_by }
    }
}

/// A thread has waited for a CPU until now, since the last event that named who had it, and another event of this moment has a
/// reading of its clock and names nobody: an interrupt, a packet put on a tap, or a kick for which a worker is woken. Without
/// this, whoever is named at the end of a request's wait could have had the CPU before the request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The thread.
    pub tid: u32,
    /// The VMM's process id; of a vhost worker 0 if not known.
    pub vm: u32,
    /// A vCPU thread's vCPU, by KVM's number; `None`: a vhost worker.
    pub vcpu: Option<u32>,
    /// What it does now.
    pub state: ThreadState,
    /// Its clock.
    pub clock: Split,
    /// A thread that had its CPU meanwhile; see [`Packet::preempted_by`].
    pub preempted_by: u32,
}

impl Wait {
    /// A vCPU's as a reading of its clock; `None` of a vhost worker.
    pub fn reading(&self) -> Option<VcpuState> {
        let &Wait { vm, vcpu, state, clock, preempted_by, .. } = self;
        vcpu.map(|vcpu| VcpuState { vm, vcpu, index: None, state, clock, preempted_by })
    }
}

/// A vCPU thread or vhost worker got a CPU at [`Event::ts`], after it had none. Reported of VMs whose guests report events
/// themselves: of vCPUs only if they had gone to sleep, as [`VcpuState`] tells the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The thread.
    pub tid: u32,
    /// The VMM's process id.
    pub vm: u32,
    /// A vCPU thread's vCPU, by KVM's number; `None`: a vhost worker.
    pub vcpu: Option<u32>,
    /// When it lost its CPU, ns.
    pub left: u64,
    /// It gave its CPU up to sleep; otherwise it was preempted.
    pub slept: bool,
    /// When it was woken, ns; `None` if it did not sleep, or that was not seen.
    pub woken: Option<u64>,
    /// Who woke it.
    pub waker: Waker,
    /// Counts the starts of the thread: if it grows by more than one, reports are missing.
    pub nth: u32,
}

/// Who woke a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Waker {
    /// Not seen, or the kernel does not tell.
    #[default]
    Unknown,
    /// An interrupt or softirq.
    Interrupt,
    /// This thread.
    Thread(u32),
}

/// A thread's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadName {
    /// Thread id.
    pub tid: u32,
    /// `comm`, zero-padded.
    pub comm: [u8; 16],
}

/// Events were lost: records did not fit into the buffer, or the kernel skipped runs of probes.
///
/// The tracer reports it when it drains the buffer and finds that the counts have grown since it last read them.
/// Packets that were on their way at that time may seem to be something else, so consumers count them as incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The events were lost after this instant, ns, and before [`Event::ts`].
    pub since: u64,
    /// How many records did not fit, plus how many runs of probes were skipped.
    pub count: u64,
}

/// The kernel dropped a packet (`kfree_skb`).
///
/// The kernel also drops copies, such as those for which a packet socket had no room, while the packet itself goes on.
/// Only later events show which one was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// As in [`Packet`].
    pub fingerprint: u64,
    /// As in [`Packet`], whatever the direction of the packet.
    pub matching: Option<Match>,
    /// The device that the packet was at, 0 if none.
    pub ifindex: u32,
    /// The traced tap that it was addressed to, 0 if it is not known to be addressed to a traced guest.
    pub tap: u32,
    /// The kernel's reason: a number of the running kernel's `enum skb_drop_reason`; [`DropName`] names it.
    pub why: u32,
    /// The kernel gave no specific reason. Drivers also free packets that they have sent in this way.
    pub unspecified: bool,
    /// The function that dropped it, zero-padded; empty if it is not known.
    pub location: [u8; 32],
}

/// The kernel's name for a reason to drop packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropName {
    /// The number.
    pub why: u32,
    /// The name without `SKB_DROP_REASON_`, zero-padded.
    pub name: [u8; 32],
}

/// A NIC, its driver or the kernel's device layer discarded packets, by the NIC's counters. Most of them are seen by no
/// probe; those that the kernel discards (`rx_dropped`, `tx_dropped`) may also be among the drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicLoss {
    /// The NIC.
    pub ifindex: u32,
    /// In which of the NIC's counters they are.
    pub counter: NicCounter,
    /// How many packets since that counter was last read, or since the trace began.
    pub packets: u64,
}

/// A NIC's counter of packets that were discarded (`struct rtnl_link_stats64`; [`NicCounter::meaning`] says why). Drivers differ in
/// where they count what, and some count a packet twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicCounter {
    /// `rx_missed_errors`
    RxMissedErrors,
    /// `rx_fifo_errors`
    RxFifoErrors,
    /// `rx_errors`
    RxErrors,
    /// `rx_dropped`. The kernel counts here what it has no handler for, such as LLDP and STP, and what does not fit into a CPU's
    /// backlog (net/core/dev.c).
    RxDropped,
    /// `tx_errors`
    TxErrors,
    /// `tx_dropped`
    TxDropped,
}

impl NicCounter {
    /// All of them.
    pub const ALL: [NicCounter; 6] = [
        NicCounter::RxMissedErrors,
        NicCounter::RxFifoErrors,
        NicCounter::RxErrors,
        NicCounter::RxDropped,
        NicCounter::TxErrors,
        NicCounter::TxDropped,
    ];

    /// The kernel's name of it: its file in `/sys/class/net/NIC/statistics`.
    pub fn name(self) -> &'static str {
        match self {
            NicCounter::RxMissedErrors => "rx_missed_errors",
            NicCounter::RxFifoErrors => "rx_fifo_errors",
            NicCounter::RxErrors => "rx_errors",
            NicCounter::RxDropped => "rx_dropped",
            NicCounter::TxErrors => "tx_errors",
            NicCounter::TxDropped => "tx_dropped",
        }
    }

    /// What it means that it grows.
    pub fn meaning(self) -> &'static str {
        match self {
            NicCounter::RxMissedErrors => "the driver had no free receive buffer",
            NicCounter::RxFifoErrors => "the NIC's memory or its receive ring was full",
            NicCounter::RxErrors => "received damaged, or of a size that the NIC refuses",
            NicCounter::RxDropped => {
                "dropped by the driver or the kernel, as this host does not handle them (LLDP, for example) or could not take more"
            }
            NicCounter::TxErrors => "could not be sent",
            NicCounter::TxDropped => "dropped by the driver or the kernel before they were sent",
        }
    }

    /// Whether a trace of this length may have so many on a healthy host: of `rx_dropped` 10 for each begun second, as it has frames
    /// that nobody waits for. Some drivers also count there what lacked a receive buffer.
    pub fn is_usual(self, packets: u64, length_ns: u64) -> bool {
        const PER_SECOND: u64 = 10;
        self == NicCounter::RxDropped && packets <= (length_ns / 1_000_000_000 + 1).saturating_mul(PER_SECOND)
    }
}

/// A zero-padded name as text; bytes that are not printable ASCII become `?` (names are untrusted).
pub fn name(padded: &[u8]) -> String {
    padded
        .iter()
        .take_while(|&&b| b != 0)
        .map(|&b| if b.is_ascii_graphic() || b == b' ' { b as char } else { '?' })
        .collect()
}

/// A name, truncated and zero-padded.
pub fn padded(name: &str) -> [u8; 32] {
    let mut out = [0; 32];
    let n = name.len().min(out.len());
    out[..n].copy_from_slice(&name.as_bytes()[..n]);
    out
}

impl ThreadName {
    /// The name as text; bytes that are not printable ASCII become `?` (names are untrusted).
    pub fn name(&self) -> String {
        name(&self.comm)
    }
}
