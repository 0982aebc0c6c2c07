//! Joins the events of a packet, and packets into requests.
//!
//! ```text
//!  inbound        HostRx* ─► TapEnqueue ─► TapDequeue ─► Interrupt ─► GuestEntry
//!                 (or TapSend of another VM)  by fingerprint   by worker     by vCPU
//!                                │ opens a request (VM, key)
//!                                ▼
//!  outbound       Kick ─► TapSend ─► { DevQueue ─► [QdiscDequeue] ─► DevXmit }+ ─► quiet
//!                            │ answers it                                          │ completes it
//! ```
//!
//! A request that the guest itself sends is the other way round: its packet is the outbound one, and the inbound one answers
//! it ([`outgoing`]).
//!
//! | module | joins by |
//! | --- | --- |
//! | [`inbound`] | fingerprint |
//! | [`delivery`] | the worker that took the packet, then the vCPU that was interrupted |
//! | [`arrival`] | nothing: it counts the packets that reach a guest at once |
//! | [`outbound`] | fingerprint |
//! | [`request`] | key, within a VM |
//! | [`outgoing`] | key, within a VM: requests of the guest's own |
//! | [`passthrough`] | vCPU and time, then print and key within a VM: requests by NICs that were given to VMs |
//! | [`recent`] | nothing: it keeps keys, and who sends their requests |
//! | [`connections`] | sequence numbers of TCP: it says which segments begin a request or an answer |
//! | [`inside`] | print, within a VM: what its guest reports |
//! | [`starts`] | nothing: it keeps when threads of VMs got a CPU |
//! | [`timeline`] | nothing: it finds what the threads of a request did |
//! | [`vcpus`] | nothing: it keeps what the vCPUs of guests did |
//! | [`waits`] | nothing: it keeps who had the CPUs that threads waited for |
//! | [`group`] | SIP call |
//! | [`waterfall`] | nothing: it computes the stages of a joined request |
//! | [`validity`] | nothing: it says why a packet or request cannot be used |
//!
//! A pairing is certain if no other pairing is possible. So if two identical packets could be on the same part of
//! the path at once, both are left out and counted as ambiguous, until the path is known to be free of them again.
//! If a point of a packet was not seen, the packet is counted as incomplete. Neither is in any figure. Each has a
//! [`Reason`], that of the first thing that went wrong with it.
//!
//! Inside, `preempted_by` or the waker of an event is the number of a thread ([`Threads`]), not its id.
//!
//! Drops by the kernel are events, too. A drop ends a packet at once if the kernel gives a reason for it and it
//! happens at the device where the packet is expected next. Any other drop may be that of a copy, and counts only if
//! nothing more is seen of the packet. The submodules `drops` of [`inbound`], [`outbound`] and [`request`] do that.

mod arrival;
mod connections;
mod delivery;
mod group;
mod inbound;
mod inside;
mod outbound;
mod outgoing;
mod passthrough;
mod recent;
mod request;
mod starts;
mod timeline;
mod validity;
mod vcpus;
mod waits;
mod waterfall;

use crate::Options;
use crate::hash::{Map, Seeded};
use crate::lost::LostWindows;
use crate::threads::Threads;
use crate::vm_stats::VmStats;
use inbound::IdenticalPackets;
pub(crate) use inside::{Divided, Division};
use teiji_model::event::{
    Event, EventKind, GuestEntry, Interrupt, Kick, Packet, Point, Start, ThreadName, VcpuState, Wait, Waker,
};
use teiji_model::flow::Direction;
use teiji_model::guest;
use teiji_model::host::{DataPlane, GivenNic, Vm};
use teiji_model::report::{Joined, Meta, Reason};
use teiji_model::stage::ThreadState;
use teiji_model::stream::StreamId;
pub(crate) use timeline::RequestStarts;
pub(crate) use validity::{DropSites, Exclusion, OTHER_DROPS, Validity};
use waits::Waits;

/// Called with each complete request.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&Joined);

/// A packet of which nothing was seen for this long before the end of a trace counts as stuck, not as in flight, ns.
const STUCK: u64 = 1_000_000_000;

/// Taps that a trace may have, those that are gone included.
const MAX_TAPS: usize = 1 << 16;

/// Queues that a tap may have (`MAX_TAP_QUEUES` of the tun driver).
const MAX_QUEUES: usize = 256;

/// A queue of a traced tap, on the way from the guest.
#[derive(Clone, Copy, Default)]
struct TapQueue {
    /// Its last kick.
    kick: Option<(u64, Kick)>,
    /// When a frame was last taken from it.
    sent: u64,
}

/// A traced tap.
#[derive(Clone)]
struct Tap {
    /// Index of its VM in `Meta::vms`.
    vm: u32,
    /// Its queues by number, as far as they have been used.
    queues: Vec<(u16, TapQueue)>,
    served: Served,
}

/// What takes packets off a tap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    /// A vhost worker.
    ByVhost,
    /// A thread of the VMM.
    ByVmm,
    /// Not known (`teiji trace --tap`): the path of a packet ends on the tap.
    Unseen,
}

impl Tap {
    /// The queue of this number; `None` if there are more than a tap can have.
    fn queue(&mut self, number: u16) -> Option<&mut TapQueue> {
        let at = match self.queues.iter().position(|(n, _)| *n == number) {
            Some(at) => at,
            None if self.queues.len() < MAX_QUEUES => {
                self.queues.push((number, TapQueue::default()));
                self.queues.len() - 1
            }
            None => return None,
        };
        Some(&mut self.queues[at].1)
    }
}

/// What does not change while joining, and what all parts share.
#[derive(Clone)]
pub(crate) struct Common {
    /// When the trace began.
    started: u64,
    /// See [`Options::chosen`].
    chosen: Option<u64>,
    ttl: u64,
    quiet: u64,
    taps: Vec<Tap>,
    /// The taps that are there.
    by_ifindex: Map<u32, u32>,
    pids: Vec<u32>,
    pub(crate) threads: Threads,
    lost: LostWindows,
    pub(crate) drop_sites: DropSites,
    /// When the trace ended; `None` while it goes on.
    ended: Option<u64>,
    /// By VM, in the order of `Meta::vms`.
    pub(crate) vm_stats: Vec<VmStats>,
    waits: Waits,
    /// Splits that were discarded because they did not fit their stage.
    pub(crate) splits_dropped: u64,
    /// See [`teiji_model::report::Report::skipped_signals`].
    pub(crate) skipped_signals: u64,
    /// Records that were removed early because there was no room for others.
    pub(crate) evicted: u64,
}

impl Common {
    fn tap(&self, ifindex: u32) -> Option<usize> {
        self.by_ifindex.get(&ifindex).map(|i| *i as usize)
    }

    /// A VM has these taps from now on, and no others.
    fn set_taps(&mut self, vm: u32, v: &Vm) {
        let taps = &self.taps;
        let stays = |ifindex: &u32| v.nics.iter().any(|nic| nic.ifindex == *ifindex);
        self.by_ifindex.retain(|ifindex, tap| taps[*tap as usize].vm != vm || stays(ifindex));
        for nic in v.nics.iter().filter(|nic| nic.ifindex != 0) {
            let served = match nic.data_plane {
                DataPlane::VhostNet | DataPlane::VhostMacvtap => Served::ByVhost,
                DataPlane::UserspaceMacvtap | DataPlane::Passthrough | DataPlane::VhostUser => Served::Unseen,
                DataPlane::Userspace if v.pid == 0 => Served::Unseen,
                DataPlane::Userspace => Served::ByVmm,
            };
            match self.tap(nic.ifindex) {
                Some(tap) if self.taps[tap].vm == vm => self.taps[tap].served = served,
                _ if self.taps.len() < MAX_TAPS => {
                    self.by_ifindex.insert(nic.ifindex, self.taps.len() as u32);
                    self.taps.push(Tap { vm, queues: Vec::new(), served });
                }
                _ => {}
            }
        }
    }

    /// Why packets with this signal can be followed no further: no vCPU was seen to accept its interrupt, or it is not
    /// known whether that is one of this tap, or when the guest received the packets.
    fn without_interrupt(&self, i: &Interrupt) -> Reason {
        if i.arrival_is_unknown() {
            return Reason::ArrivalUnknown;
        }
        let by_vmm = self.tap(i.ifindex).is_some_and(|tap| self.taps[tap].served == Served::ByVmm);
        if by_vmm && i.vm != 0 { Reason::NotLearnt } else { Reason::NoInterrupt }
    }

    /// `exclusion`, unless the trace ended within [`STUCK`] after `last`, when the packet or request was last seen.
    fn unless_ended(&self, exclusion: Exclusion, last: u64) -> Exclusion {
        match self.ended {
            Some(end) if exclusion.drop == 0 && last.saturating_add(STUCK) > end => Reason::TraceEnded.into(),
            _ => exclusion,
        }
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Joiner {
    pub(crate) common: Common,
    inbound: inbound::Inbound,
    outbound: outbound::Outbound,
    requests: request::RequestTable,
    pub(crate) passthrough: passthrough::PassthroughTable,
    hasher: Seeded,
    /// The time of the last event.
    now: u64,
}

impl Joiner {
    pub(crate) fn new(meta: &Meta, options: &Options) -> Self {
        let hasher = Seeded::new(options.seed);
        let common = Common {
            started: meta.started,
            chosen: options.chosen,
            ttl: options.packet_ttl,
            quiet: options.quiet,
            taps: Vec::new(),
            by_ifindex: Map::with_hasher(hasher),
            pids: Vec::new(),
            threads: Threads::new(hasher),
            lost: LostWindows::default(),
            drop_sites: DropSites::new(hasher),
            ended: None,
            vm_stats: Vec::new(),
            waits: Waits::new(hasher),
            splits_dropped: 0,
            skipped_signals: 0,
            evicted: 0,
        };
        let matching = meta.watch.matching;
        let ttl = options.request_ttl.unwrap_or(crate::request_ttl(matching));
        let both_ways = meta.watch.direction == Direction::Both;
        let outgoing = outgoing::OutgoingTable::new(hasher, ttl, matching.repeats(), both_ways);
        let mut joiner = Joiner {
            inbound: inbound::Inbound::new(hasher),
            outbound: outbound::Outbound::new(hasher),
            requests: request::RequestTable::new(
                hasher,
                ttl,
                matching.repeats(),
                options.timelines,
                outgoing,
            ),
            passthrough: passthrough::PassthroughTable::new(hasher, ttl, options.passthrough),
            common,
            hasher,
            now: 0,
        };
        meta.vms.iter().for_each(|vm| joiner.add_vm(vm));
        joiner
    }

    /// A VM is followed from now on: the next one of `Meta::vms`.
    pub(crate) fn add_vm(&mut self, v: &Vm) {
        let vm = self.common.pids.len() as u32;
        self.common.pids.push(v.pid);
        self.common.vm_stats.push(VmStats::new(self.hasher, self.common.started, self.common.chosen));
        self.common.set_taps(vm, v);
    }

    /// The VM with this index of `Meta::vms` has other taps from now on.
    pub(crate) fn set_vm(&mut self, vm: usize, v: &Vm) {
        self.common.set_taps(vm as u32, v);
    }

    /// The VM with this index of `Meta::vms` was given these NICs, and no others.
    pub(crate) fn set_given(&mut self, vm: usize, pid: u32, nics: &[GivenNic]) {
        self.passthrough.set(pid, vm as u32, nics, &mut self.common);
    }

    /// Keeps the statistics of a VM that has ended in little memory.
    pub(crate) fn pack(&mut self, vm: usize) {
        self.common.vm_stats[vm].pack();
    }

    /// The clock of a guest's stream was measured: from `from` on it is mapped anew, and may be wrong by `error`, ns.
    pub(crate) fn guest_clock(&mut self, stream: StreamId, pid: u32, from: u64, error: u64) {
        self.requests.inside.clock(stream, pid, from, error);
    }

    /// Reports of a guest between `since` and `until` are missing.
    pub(crate) fn guest_lost(&mut self, stream: StreamId, since: u64, until: u64) {
        self.requests.inside.lost(stream, since, until);
    }

    /// A guest has ended.
    pub(crate) fn forget_guest(&mut self, stream: StreamId) {
        self.requests.inside.forget(stream);
    }

    /// A VM has ended, and with it its NICs. Comes before [`Joiner::forget_guest`].
    pub(crate) fn forget_given(&mut self, pid: u32) {
        self.passthrough.forget(pid, &self.requests.inside, &mut self.common);
    }

    /// A guest's event, with its time on the host's clock. It changes nothing of what the host saw.
    pub(crate) fn of_guest(&mut self, event: &Event) {
        if let EventKind::Guest(kind) = &event.kind {
            let inside = &mut self.requests.inside;
            inside.report(event.ts, event.stream, event.cpu, kind);
            if let guest::EventKind::Matched(m) = kind
                && let Some(pid) = inside.pid_of(event.stream)
            {
                self.passthrough.matched(event.ts, pid, event.cpu, m, inside, &mut self.common);
            }
        }
    }

    /// A thread has this name from now on.
    pub(crate) fn name_thread(&mut self, name: &ThreadName) {
        self.common.threads.named(name);
    }

    /// Events between `since` and `until` are missing. To be called before any event of that time is joined.
    pub(crate) fn lost(&mut self, since: u64, until: u64) {
        self.common.lost.add(since, until);
    }

    /// The report of a signal came too late to be joined: its packets cannot be followed further. A worker may be held up
    /// for long before it reports a signal, and that must not cost the requests of all VMs in that time. A skipped signal counts.
    pub(crate) fn late_interrupt(&mut self, i: &Interrupt) {
        self.common.skipped_signals += u64::from(i.is_skipped());
        self.inbound.late_interrupt(i, &mut self.common, &mut self.requests);
    }

    /// What a thread does, or has waited, was told too late to be joined.
    pub(crate) fn late_reading(&mut self, event: &EventKind) {
        self.common.waits.late(event);
    }

    /// Takes an event; they come in order of time.
    pub(crate) fn event(&mut self, event: &Event, sink: Sink) {
        let now = event.ts;
        self.now = now;
        self.expire(now, sink);
        let (c, requests) = (&mut self.common, &mut self.requests);
        let mut kind = event.kind;
        match &mut kind {
            EventKind::Packet(Packet { preempted_by: thread, .. })
            | EventKind::GuestEntry(GuestEntry { preempted_by: thread, .. })
            | EventKind::Kick(Kick { preempted_by: thread, .. })
            | EventKind::VcpuState(VcpuState { preempted_by: thread, .. })
            | EventKind::Wait(Wait { preempted_by: thread, .. })
                if *thread != 0 =>
            {
                *thread = c.threads.number(*thread);
            }
            EventKind::Start(Start { waker: Waker::Thread(thread), .. }) => {
                *thread = c.threads.number(*thread);
            }
            _ => {}
        }
        c.waits.event(&kind);
        match &kind {
            EventKind::Packet(p) => match p.point {
                Point::HostRx => {
                    if c.tap(p.ifindex).is_none() {
                        self.outbound.host_rx(p.fingerprint);
                        self.inbound.host_rx(now, p, c, requests);
                    }
                }
                Point::TapEnqueue => {
                    let received = self.inbound.received(p.fingerprint);
                    let from = self.outbound.at_tap(now, p, received > 0, c);
                    self.inbound.tap_enqueue(now, p, from, c, requests);
                }
                Point::TapDequeue => self.inbound.tap_dequeue(now, p, c, requests),
                Point::TapSend => self.outbound.tap_send(now, p, c, requests, sink),
                Point::DevQueue | Point::QdiscDequeue | Point::DevXmit => {
                    if c.tap(p.ifindex).is_none() {
                        self.outbound.device(now, event.cpu, p);
                    }
                }
            },
            EventKind::Interrupt(i) => {
                // Other interrupts would leave less room for the readings that a request needs.
                if let Some(reading) = i.reading().filter(|_| self.inbound.awaits(i)) {
                    requests.vcpu(now, &reading, false);
                }
                c.skipped_signals += u64::from(i.is_skipped());
                self.inbound.interrupt(now, i, c, requests);
            }
            EventKind::GuestEntry(e) => {
                requests.vcpu(now, &e.into(), true);
                self.passthrough.guest_entry(now, e, c);
                self.inbound.guest_entry(now, e, c, requests);
            }
            EventKind::Kick(k) => {
                requests.vcpu(now, &k.into(), true);
                if let Some(tap) = c.tap(k.ifindex) {
                    let tap = &mut c.taps[tap];
                    if c.pids[tap.vm as usize] == k.vm
                        && let Some(queue) = tap.queue(k.queue)
                    {
                        queue.kick = Some((now, *k));
                    }
                }
            }
            EventKind::Dropped(d) => {
                let waits = self.inbound.waits_on(d.ifindex, d.fingerprint);
                if !self.inbound.discarded(now, d, c, requests)
                    && !self.outbound.dropped(now, d, waits, c, requests)
                {
                    let received = self.inbound.received(d.fingerprint);
                    let identical = IdenticalPackets {
                        sent: self.outbound.may_be_in_flight(d.fingerprint, d.tap, received),
                        follows: waits && self.outbound.follows(d.fingerprint, d.ifindex, received > 0),
                    };
                    self.inbound.dropped(now, d, identical, c, requests);
                }
            }
            EventKind::ThreadName(name) => c.threads.named(name),
            EventKind::Print(print) => requests.inside.print(now, print),
            EventKind::VcpuState(state) => requests.vcpu(now, state, true),
            EventKind::Start(start) => requests.start(now, start),
            EventKind::DeviceInterrupt(i) => self.passthrough.interrupt(now, i, c),
            // A vCPU that goes on waiting: it divides that time.
            EventKind::Wait(w) if w.state == ThreadState::Ready => {
                if let Some(reading) = w.reading() {
                    requests.vcpu(now, &reading, false);
                }
            }
            EventKind::Wait(_)
            | EventKind::DropName(_)
            | EventKind::NicLoss(_)
            | EventKind::Lost(_)
            | EventKind::Guest(_) => {}
        }
    }

    /// Ends packets and requests that are too old at `now`.
    fn expire(&mut self, now: u64, sink: Sink) {
        let (c, requests) = (&mut self.common, &mut self.requests);
        self.outbound.complete_settled(now, c, requests, sink);
        self.inbound.expire(now, c, requests);
        self.outbound.expire(now, c, requests, sink);
        requests.expire(now, c);
        self.passthrough.expire(now, &requests.inside, c);
        requests.expire_inside(now);
    }

    /// Ends the trace: packets that were handed to a device have left; no more is expected of all others.
    pub(crate) fn finish(&mut self, ended: u64, sink: Sink) {
        let (c, requests) = (&mut self.common, &mut self.requests);
        c.ended = Some(ended.max(self.now));
        self.outbound.finish(c, requests, sink);
        self.inbound.finish(c, requests);
        self.passthrough.finish(&requests.inside, c);
        requests.finish(c);
    }
}
