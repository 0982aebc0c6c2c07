//! What guests report of their packets: how a request's time in the guest was spent.
//!
//! ```text
//!  guest entry ─guest_irq─ Received ─guest_stack─ Queued ─socket_wait─ Read ─app─ Sent.began ─guest_tx─ kick
//!  (host)                  └──────────────── reported by the guest ──────────────────────┘           (host)
//! ```
//! A guest knows a packet by its print. The host learns the print of each packet on a traced tap ([`Print`]), so the reports
//! of a request's packet and of its response are found when the request is complete. What a guest reports is used for its
//! own requests only, and only if no report comes before its cause: the guest entry before `Received`, and so on until the
//! kick. Times may contradict each other by as much as the guest's clock may be wrong.
//!
//! Each part is divided further by what the vCPU concerned was doing ([`Vcpus`]):
//!
//! | part | whose states |
//! | --- | --- |
//! | `guest_irq`, `guest_stack` | the vCPU that took the interrupt, if the packet was received, and queued, on it |
//! | `socket_wait` | the vCPU on which the packet was read |
//! | `app` | the same, if the answer was sent on it |
//! | `guest_tx` | the vCPU on which the answer was sent, if it is the one that kicked |
//!
//! Otherwise the thread, or the packet, moved between vCPUs at a time that is not known, and the part is not divided. If the
//! guest claims that something happened on a vCPU that had no CPU at that time, no part of the request is.

mod copies;

pub(super) use copies::Followed;

use super::starts::Starts;
use super::timeline::Way;
use super::vcpus::{Vcpus, Wait};
use crate::expiring::ExpiringMap;
use crate::guest_cells::Row;
use crate::hash::{Map, Seeded};
use crate::lost::LostWindows;
use std::collections::VecDeque;
use teiji_model::event::{self, Print, Start, VcpuState};
use teiji_model::guest::EventKind;
use teiji_model::report::{GuestPart, InsideRequest};
use teiji_model::stage::Split;
use teiji_model::stream::StreamId;

/// Packets of the host whose print is known, and packets of a guest that are followed at once.
const MAX_PRINTS: usize = 1 << 16;
const MAX_OF_GUEST: usize = 1 << 13;
/// Threads of a guest whose beginning is known: of more, those are forgotten that were seen least recently.
const MAX_THREADS: usize = 4096;
/// Measurements of a guest's clock that are kept: one a second, for as long as requests may be open.
const MAX_MEASUREMENTS: usize = 128;
/// A request is not divided if the guest's clock may be wrong by more than this part of its time in the guest.
const PRECISION: u64 = 20;

/// What a guest reported of a packet. Times are the host's, ns; 0: not reported.
#[derive(Clone, Copy, Default)]
struct GuestPacket {
    received: u64,
    received_on: u16,
    queued: u64,
    queued_on: u16,
    backlog: u32,
    read: u64,
    read_on: u16,
    reader: u32,
    woken: u64,
    running: u64,
    woken_by: u32,
    sent: u64,
    sent_on: u16,
    sender: u32,
    began: u64,
    /// How often it was queued and read: more than once if there are others like it.
    queues: u8,
    reads: u8,
    /// How many earlier copies of the same request have the same print.
    earlier: u8,
}

/// A guest's stream.
#[derive(Clone)]
pub(super) struct Guest {
    /// The process id of its VMM.
    pid: u32,
    /// By how much its clock may have been wrong at most, ns.
    error: u64,
    /// The latest measurements of its clock: from when on it was mapped so, and by how much that may be wrong, ns. Each contains how far
    /// the one before it had drifted.
    measured: VecDeque<(u64, u64)>,
    packets: ExpiringMap<u64, GuestPacket>,
    /// Earlier copies of packets, by print and number.
    earlier: ExpiringMap<(u64, u8), GuestPacket>,
    /// When reports of it are missing.
    lost: LostWindows,
    /// When its threads began, 0 if before the trace, and their names.
    threads: ExpiringMap<u32, (u64, [u8; 16])>,
    pub(super) vcpus: Vcpus,
    pub(super) starts: Starts,
}

impl Guest {
    /// By how much its clock may have been wrong so far, ns.
    pub(super) fn error(&self) -> u64 {
        self.error
    }

    /// By how much its clock may have been wrong from `since` on, ns: the mappings that were in use from then on, and what later
    /// measurements have shown of them.
    fn error_since(&self, since: u64) -> u64 {
        let in_use = self.measured.partition_point(|(from, _)| *from <= since).saturating_sub(1);
        self.measured.range(in_use..).map(|(_, error)| *error).max().unwrap_or(self.error)
    }

    /// Which of the prints of a packet is this guest's.
    fn own(&self, prints: Prints) -> Option<u64> {
        prints.0.into_iter().flatten().find(|print| self.packets.get(print).is_some())
    }

    /// The name of one of its threads, empty if it is not known.
    pub(super) fn thread_name(&self, tid: u32) -> String {
        self.threads.get(&tid).map(|(_, comm)| event::name(comm)).unwrap_or_default()
    }
}

/// When a divided request passed the points within the guest, and its threads there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Points {
    pub(super) received: u64,
    /// `None` if the guest's kernel answered; then the others have no meaning.
    pub(super) queued: Option<u64>,
    pub(super) read: u64,
    pub(super) began: u64,
    /// The vCPU on which the packet was read, by KVM's number; `None` if it is not known.
    pub(super) reads_on: Option<u32>,
    pub(super) reader: u32,
    pub(super) sender: u32,
    /// When the reader was woken, and got a vCPU; `None` if it was not asleep.
    pub(super) woken: Option<(u64, u64)>,
    /// The guest's thread that woke it; 0: an interrupt.
    pub(super) woken_by: u32,
}

/// How a request is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// Its VM reports nothing.
    NotReported,
    /// A report is missing.
    Incomplete,
    /// A report came before its cause.
    Violation,
    /// The guest's clock may have been wrong by too much.
    ClockUnknown,
    Divided(Box<Divided>),
}

/// A request that is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Divided {
    pub(crate) request: InsideRequest,
    /// The same time, by [`Row`]: ns, and what the vCPU concerned did, if that is known.
    pub(crate) rows: [(u64, Option<Split>); Row::COUNT],
    /// Waits for a CPU: where, the number of the thread that had it, ns.
    pub(crate) waits: Vec<(Row, u32, u64)>,
    /// The guest claims that a vCPU did something while it had no CPU.
    pub(crate) contradicted: bool,
    pub(super) points: Points,
}

/// What the host saw of a request in the guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    /// The process id of the VM.
    pub(super) pid: u32,
    /// The fingerprints of request and response.
    pub(super) fingerprints: [u64; 2],
    /// How many earlier copies of the request have the fingerprint of the one that was answered.
    pub(super) earlier_alike: u8,
    /// When the vCPU entered with the interrupt, and which vCPU that was, by KVM's number.
    pub(super) entered: u64,
    pub(super) entered_on: u32,
    /// When the response was kicked out, and by which vCPU; if it had no kick, when it was sent.
    pub(super) left: u64,
    pub(super) left_on: Option<u32>,
    /// The rest of its way.
    pub(super) way: Way,
}

/// The prints of a packet, the latest first: two if it passes the taps of two guests that report.
#[derive(Clone, Copy, Default)]
struct Prints([Option<u64>; 2]);

/// See the module.
#[derive(Clone)]
pub(super) struct InsideTable {
    hasher: Seeded,
    /// Prints by fingerprint, of packets on their way.
    prints: ExpiringMap<u64, Prints>,
    guests: Map<StreamId, Guest>,
}

impl InsideTable {
    pub(super) fn new(hasher: Seeded) -> Self {
        InsideTable { hasher, prints: ExpiringMap::new(MAX_PRINTS, hasher), guests: Map::with_hasher(hasher) }
    }

    /// The clock of a guest's stream was measured: from `from` on, ns of the host's clock, it is mapped so.
    pub(super) fn clock(&mut self, stream: StreamId, pid: u32, from: u64, error: u64) {
        let hasher = self.hasher;
        let new = || Guest {
            pid,
            error,
            measured: VecDeque::new(),
            packets: ExpiringMap::new(MAX_OF_GUEST, hasher),
            earlier: ExpiringMap::new(copies::MAX_EARLIER, hasher),
            lost: LostWindows::default(),
            threads: ExpiringMap::new(MAX_THREADS, hasher),
            vcpus: Vcpus::new(hasher),
            starts: Starts::new(hasher),
        };
        let guest = self.guests.entry(stream).or_insert_with(new);
        guest.error = guest.error.max(error);
        if guest.measured.len() >= MAX_MEASUREMENTS {
            guest.measured.pop_front();
        }
        // A damaged recording may have them in any order.
        let from = guest.measured.back().map_or(from, |(last, _)| from.max(*last));
        guest.measured.push_back((from, error));
    }

    /// A guest has ended.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.guests.remove(&stream);
    }

    pub(super) fn print(&mut self, now: u64, p: &Print) {
        let known = self.prints.get(&p.fingerprint).copied().unwrap_or_default();
        let [latest, before] = known.0;
        let prints = if latest == Some(p.print) { [latest, before] } else { [Some(p.print), latest] };
        self.prints.insert(p.fingerprint, Prints(prints), now);
    }

    /// What a vCPU does from now on, as the host sees it. It is of use if the VM's guest reports events.
    ///
    /// `ttl`: how long a request may wait for its response, ns.
    /// `change`: see [`Vcpus::add`].
    pub(super) fn vcpu(&mut self, now: u64, state: &VcpuState, ttl: u64, change: bool) {
        if let Some(guest) = self.guest(state.vm) {
            guest.vcpus.add(now, state, now.saturating_sub(ttl), change);
        }
    }

    /// A thread of a VM got a CPU; as [`InsideTable::vcpu`].
    pub(super) fn start(&mut self, now: u64, start: &Start, ttl: u64) {
        if let Some(guest) = self.guest(start.vm) {
            guest.starts.add(now, start, now.saturating_sub(ttl));
        }
    }

    /// A guest's report.
    pub(super) fn report(&mut self, now: u64, stream: StreamId, cpu: u16, kind: &EventKind) {
        let Some(guest) = self.guests.get_mut(&stream) else { return };
        let print = match kind {
            EventKind::Thread { tid, started, comm, .. } => {
                guest.threads.insert(*tid, (*started, *comm), now);
                return;
            }
            EventKind::Received { print, .. }
            | EventKind::Queued { print, .. }
            | EventKind::Read { print, .. }
            | EventKind::Sent { print, .. }
            | EventKind::Handed { print } => *print,
            // See `receive`.
            EventKind::Matched(_) => return,
        };
        if guest.packets.get_mut(&print).is_none() {
            guest.packets.insert(print, GuestPacket::default(), now);
        }
        let Some(packet) = guest.packets.get_mut(&print) else { return };
        match kind {
            EventKind::Queued { .. } => packet.queues = packet.queues.saturating_add(1),
            EventKind::Read { .. } => packet.reads = packet.reads.saturating_add(1),
            _ => {}
        }
        match kind {
            EventKind::Received { .. } if packet.received == 0 => {
                (packet.received, packet.received_on) = (now, cpu);
            }
            EventKind::Queued { backlog, .. } if packet.queued == 0 => {
                (packet.queued, packet.queued_on, packet.backlog) = (now, cpu, *backlog);
            }
            EventKind::Read { tid, woken, running, woken_by, .. } if packet.read == 0 => {
                (packet.read, packet.read_on, packet.reader) = (now, cpu, *tid);
                (packet.woken, packet.running, packet.woken_by) = (*woken, *running, *woken_by);
            }
            EventKind::Sent { tid, began, .. } if packet.sent == 0 => {
                (packet.sent, packet.sent_on) = (now, cpu);
                (packet.sender, packet.began) = (*tid, *began);
            }
            _ => {}
        }
    }

    /// A guest has received a packet by a NIC that it was given: of an earlier one with this print nothing more is reported.
    pub(super) fn receive(&mut self, now: u64, pid: u32, cpu: u16, print: u64) {
        if let Some(guest) = self.guest(pid) {
            let fresh = GuestPacket { received: now, received_on: cpu, ..GuestPacket::default() };
            guest.packets.insert(print, fresh, now);
        }
    }

    /// What is reported of a packet with this print from now on is of another one.
    pub(super) fn forget_packet(&mut self, pid: u32, print: u64) {
        if let Some(guest) = self.guest(pid) {
            guest.packets.remove(&print);
        }
    }

    /// Whether reports of a guest of that time are missing.
    pub(super) fn is_missing(&self, pid: u32, since: u64, until: u64) -> bool {
        self.latest(pid).is_some_and(|guest| guest.lost.touches(since, until))
    }

    /// Whether a guest has sent the packet with this fingerprint only after `kick`: then that kick was for an earlier one.
    pub(super) fn sent_after(&mut self, pid: u32, fingerprint: u64, kick: u64) -> bool {
        let Some(prints) = self.prints.get(&fingerprint).copied() else { return false };
        let Some(guest) = self.latest(pid) else { return false };
        let packet = guest.own(prints).and_then(|print| guest.packets.get(&print));
        packet.is_some_and(|packet| packet.sent > kick.saturating_add(guest.error_since(kick)))
    }

    /// The guest of the VM with this process id. A trace gives a VM one stream; a damaged recording may name several.
    fn guest(&mut self, pid: u32) -> Option<&mut Guest> {
        let latest =
            self.guests.iter().filter(|(_, guest)| guest.pid == pid).map(|(stream, _)| *stream).max();
        latest.and_then(|stream| self.guests.get_mut(&stream))
    }

    /// The same, to read only.
    pub(super) fn latest(&self, pid: u32) -> Option<&Guest> {
        let of_vm = self.guests.iter().filter(|(_, guest)| guest.pid == pid);
        of_vm.max_by_key(|(stream, _)| **stream).map(|(_, guest)| guest)
    }

    /// The process id of the VM whose guest's stream this is.
    pub(super) fn pid_of(&self, stream: StreamId) -> Option<u32> {
        self.guests.get(&stream).map(|guest| guest.pid)
    }

    /// Divides the time of a request in the guest.
    pub(super) fn divide(&mut self, stay: &Stay) -> Division {
        let prints = stay.fingerprints.map(|fingerprint| self.prints.get(&fingerprint).copied());
        let own =
            |prints: Option<Prints>| self.latest(stay.pid).zip(prints).and_then(|(guest, p)| guest.own(p));
        let [request, response] = prints.map(own);
        let division = self.divide_prints(stay, request, response);
        // With a clock that is wrong by more, each part would be what the clock is wrong by, and no report could contradict it.
        let exact = stay.left.saturating_sub(stay.entered) / PRECISION;
        match division {
            Division::Divided(_)
                if self.latest(stay.pid).is_some_and(|g| g.error_since(stay.entered) > exact) =>
            {
                Division::ClockUnknown
            }
            division => division,
        }
    }

    /// The same of a request with these prints, whatever its fingerprints are.
    pub(super) fn divide_prints(
        &mut self,
        stay: &Stay,
        request: Option<u64>,
        response: Option<u64>,
    ) -> Division {
        let Stay { entered, left, .. } = *stay;
        let Some(guest) = self.guest(stay.pid) else { return Division::NotReported };
        let request = request.and_then(|print| guest.take(print, stay.earlier_alike));
        let response = response.and_then(|print| guest.packets.remove(&print));
        let (Some(request), Some(response)) = (request, response) else { return Division::Incomplete };
        if request.received == 0 || response.sent == 0 {
            return Division::Incomplete;
        }
        let by_kernel = request.queued == 0 && request.read == 0 && response.sender == 0;
        if !by_kernel && (request.queued == 0 || request.read == 0 || response.began == 0) {
            return Division::Incomplete;
        }
        let points = if by_kernel {
            [request.received, response.sent, response.sent, response.sent]
        } else {
            [request.received, request.queued, request.read, response.began]
        };
        let error = guest.error_since(entered);
        let mut at = entered;
        let mut parts = [0; GuestPart::COUNT];
        let mut begin = [0; GuestPart::COUNT];
        for ((part, begin), point) in parts.iter_mut().zip(&mut begin).zip(points.into_iter().chain([left])) {
            // Each has the error of its own clock; host and guest differ by that of the guest.
            if point.saturating_add(error) < at || point > left.saturating_add(error) {
                return Division::Violation;
            }
            let next = point.clamp(at, left.max(at));
            (*part, *begin) = (next - at, at);
            at = next;
        }
        if response.sent > left.saturating_add(error) {
            return Division::Violation;
        }
        let began = guest.threads.get(&response.sender).map_or(0, |(began, _)| *began);
        for tid in [request.reader, response.sender] {
            guest.threads.touch(&tid, left);
        }
        let inside = InsideRequest {
            parts,
            splits: Default::default(),
            reader: request.reader,
            sender: response.sender,
            woken: (request.woken != 0).then(|| request.running.saturating_sub(request.woken)),
            moved: !by_kernel && request.read_on != request.received_on,
            new_thread: !by_kernel && began != 0 && began >= request.read,
            backlog: request.backlog,
        };
        let steps = Steps { stay, request: &request, response: &response, by_kernel, begin, error };
        Division::Divided(Box::new(steps.divided(inside, &guest.vcpus)))
    }

    /// `ttl`: how long a request may wait for its response, ns.
    pub(super) fn expire(&mut self, now: u64, ttl: u64) {
        let Some(then) = now.checked_sub(ttl) else { return };
        while self.prints.pop_until(then).is_some() {}
        for guest in self.guests.values_mut() {
            while guest.packets.pop_until(then).is_some() {}
            while guest.earlier.pop_until(then).is_some() {}
        }
    }
}

/// What both sides know of a request that is divided.
struct Steps<'a> {
    stay: &'a Stay,
    request: &'a GuestPacket,
    response: &'a GuestPacket,
    by_kernel: bool,
    /// When each part begins, ns.
    begin: [u64; GuestPart::COUNT],
    error: u64,
}

impl Steps<'_> {
    /// Divides the parts by what the vCPUs did.
    fn divided(&self, mut inside: InsideRequest, vcpus: &Vcpus) -> Divided {
        let (request, response) = (self.request, self.response);
        let on = |cpu: u16| vcpus.number(cpu);
        // By KVM's number; None: it is not known which.
        let (received, queued, read, sent) =
            (on(request.received_on), on(request.queued_on), on(request.read_on), on(response.sent_on));
        let same = |a: Option<u32>, b: Option<u32>| a.filter(|_| a == b);
        let sockets = !self.by_kernel;
        let claims = [
            (true, received, request.received),
            (sockets, queued, request.queued),
            (sockets, read, request.read),
            (true, sent, response.sent),
        ];
        let denied = |(made, vcpu, ts): (bool, Option<u32>, u64)| {
            made && vcpu.is_some_and(|vcpu| vcpus.ran(vcpu, ts, self.error) == Some(false))
        };
        let contradicted = claims.into_iter().any(denied);
        // For each part: the vCPU concerned.
        let of: [Option<u32>; GuestPart::COUNT] = [
            same(received, Some(self.stay.entered_on)),
            same(received, if sockets { queued } else { sent }),
            read.filter(|_| sockets),
            same(read, sent).filter(|_| sockets),
            same(sent, self.stay.left_on.or(sent)),
        ];
        let mut rows = [(0, Some(Split::default())); Row::COUNT];
        let mut waits = Vec::new();
        for (i, part) in GuestPart::ALL.into_iter().enumerate() {
            let (begin, end) = (self.begin[i], self.begin[i] + inside.parts[i]);
            let (row, then) = match part {
                GuestPart::GuestIrq => (Row::Irq, None),
                GuestPart::GuestStack => (Row::Stack, None),
                GuestPart::SocketWait if request.woken != 0 => {
                    (Row::ReaderBusy, Some((request.woken.clamp(begin, end), Row::ReaderWoken)))
                }
                GuestPart::SocketWait => (Row::ReaderBusy, None),
                GuestPart::App if inside.new_thread => (Row::NewThread, None),
                GuestPart::App => (Row::App, None),
                GuestPart::GuestTx => (Row::Tx, None),
            };
            let middle = then.map_or(end, |(at, _)| at);
            let mut set = |row: Row, from: u64, to: u64| {
                let mut of_row: Vec<Wait> = Vec::new();
                let split = match of[i] {
                    _ if from == to => Some(Split::default()),
                    Some(vcpu) if !contradicted => vcpus.split(vcpu, from, to, &mut of_row),
                    _ => None,
                };
                waits.extend(of_row.into_iter().map(|(thread, ns)| (row, thread, ns)));
                rows[row as usize] = (to - from, split);
                split
            };
            let first = set(row, begin, middle);
            let second = then.map_or(Some(Split::default()), |(_, row)| set(row, middle, end));
            inside.splits[i] = first.zip(second).map(|(a, b)| {
                let mut sum = a;
                sum.0.iter_mut().zip(b.0).for_each(|(sum, ns)| *sum += ns);
                sum
            });
        }
        // As the times of the parts, at least within what the host saw of the stay.
        let [_, received, queued, began] = [0, 1, 2, 4].map(|i: usize| self.begin[i]);
        let seen = |ts: u64| ts.clamp(queued, self.begin[3]);
        let points = Points {
            received,
            queued: sockets.then_some(queued),
            read: self.begin[3],
            began,
            reads_on: read.filter(|_| sockets && !contradicted),
            reader: request.reader,
            sender: response.sender,
            woken: (sockets && request.woken != 0).then(|| {
                let woken = seen(request.woken);
                (woken, seen(request.running).max(woken))
            }),
            woken_by: request.woken_by,
        };
        Divided { request: inside, rows, waits, contradicted, points }
    }
}
