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

use crate::expiring::ExpiringMap;
use crate::hash::{Map, Seeded};
use teiji_model::event::Print;
use teiji_model::guest::EventKind;
use teiji_model::report::InsideRequest;
use teiji_model::stream::StreamId;

/// Packets of the host whose print is known, and packets of a guest that are followed at once.
const MAX_PRINTS: usize = 1 << 16;
const MAX_OF_GUEST: usize = 1 << 13;
/// Threads of a guest whose beginning is known.
const MAX_THREADS: usize = 4096;

/// What a guest reported of a packet. Times are the host's, ns; 0: not reported.
#[derive(Clone, Copy, Default)]
struct GuestPacket {
    received: u64,
    received_on: u16,
    queued: u64,
    backlog: u32,
    read: u64,
    read_on: u16,
    reader: u32,
    woken: u64,
    running: u64,
    sent: u64,
    sender: u32,
    began: u64,
}

/// A guest's stream.
#[derive(Clone)]
struct Guest {
    /// The process id of its VMM.
    pid: u32,
    /// By how much its clock may be wrong, ns.
    error: u64,
    packets: ExpiringMap<u64, GuestPacket>,
    /// When its threads began.
    threads: Map<u32, u64>,
}

/// How a request is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// Its VM reports nothing.
    NotReported,
    /// A report is missing.
    Incomplete,
    /// A report came before its cause.
    Violation,
    Divided(InsideRequest),
}

/// See the module.
#[derive(Clone)]
pub(super) struct InsideTable {
    hasher: Seeded,
    /// Print by fingerprint, of packets on their way.
    prints: ExpiringMap<u64, u64>,
    guests: Map<StreamId, Guest>,
}

impl InsideTable {
    pub(super) fn new(hasher: Seeded) -> Self {
        InsideTable { hasher, prints: ExpiringMap::new(MAX_PRINTS, hasher), guests: Map::with_hasher(hasher) }
    }

    /// The clock of a guest's stream was measured.
    pub(super) fn clock(&mut self, stream: StreamId, pid: u32, error: u64) {
        let hasher = self.hasher;
        let new = || Guest {
            pid,
            error,
            packets: ExpiringMap::new(MAX_OF_GUEST, hasher),
            threads: Map::with_hasher(hasher),
        };
        let guest = self.guests.entry(stream).or_insert_with(new);
        guest.error = guest.error.max(error);
    }

    /// A guest has ended.
    pub(super) fn forget(&mut self, stream: StreamId) {
        self.guests.remove(&stream);
    }

    pub(super) fn print(&mut self, now: u64, p: &Print) {
        self.prints.insert(p.fingerprint, p.print, now);
    }

    /// A guest's report.
    pub(super) fn report(&mut self, now: u64, stream: StreamId, cpu: u16, kind: &EventKind) {
        let Some(guest) = self.guests.get_mut(&stream) else { return };
        let print = match kind {
            EventKind::Thread { tid, started, .. } => {
                if *started != 0 && (guest.threads.len() < MAX_THREADS || guest.threads.contains_key(tid)) {
                    guest.threads.insert(*tid, *started);
                } else {
                    guest.threads.remove(tid);
                }
                return;
            }
            EventKind::Received { print, .. }
            | EventKind::Queued { print, .. }
            | EventKind::Read { print, .. }
            | EventKind::Sent { print, .. }
            | EventKind::Handed { print } => *print,
        };
        if guest.packets.get_mut(&print).is_none() {
            guest.packets.insert(print, GuestPacket::default(), now);
        }
        let Some(packet) = guest.packets.get_mut(&print) else { return };
        match kind {
            EventKind::Received { .. } if packet.received == 0 => {
                (packet.received, packet.received_on) = (now, cpu);
            }
            EventKind::Queued { backlog, .. } if packet.queued == 0 => {
                (packet.queued, packet.backlog) = (now, *backlog);
            }
            EventKind::Read { tid, woken, running, .. } if packet.read == 0 => {
                (packet.read, packet.read_on, packet.reader) = (now, cpu, *tid);
                (packet.woken, packet.running) = (*woken, *running);
            }
            EventKind::Sent { tid, began, .. } if packet.sent == 0 => {
                (packet.sent, packet.sender, packet.began) = (now, *tid, *began);
            }
            _ => {}
        }
    }

    /// Whether a guest has sent the packet with this fingerprint only after `kick`: then that kick was for an earlier one.
    pub(super) fn sent_after(&mut self, pid: u32, fingerprint: u64, kick: u64) -> bool {
        let Some(print) = self.prints.get(&fingerprint).copied() else { return false };
        let Some(guest) = self.guest(pid) else { return false };
        let error = guest.error;
        guest.packets.get_mut(&print).is_some_and(|packet| packet.sent > kick.saturating_add(error))
    }

    /// The guest of the VM with this process id. A trace gives a VM one stream; a damaged recording may name several.
    fn guest(&mut self, pid: u32) -> Option<&mut Guest> {
        let latest =
            self.guests.iter().filter(|(_, guest)| guest.pid == pid).map(|(stream, _)| *stream).max();
        latest.and_then(|stream| self.guests.get_mut(&stream))
    }

    /// Divides the time from `entered` to `left` of a request of the VM with this process id, whose packets have these
    /// fingerprints.
    pub(super) fn divide(&mut self, pid: u32, fingerprints: [u64; 2], entered: u64, left: u64) -> Division {
        let prints = fingerprints.map(|fingerprint| self.prints.get(&fingerprint).copied());
        let Some(guest) = self.guest(pid) else { return Division::NotReported };
        let [request, response] = prints.map(|print| print.and_then(|print| guest.packets.remove(&print)));
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
        let mut at = entered;
        let mut parts = [0; 5];
        for (part, point) in parts.iter_mut().zip(points.into_iter().chain([left])) {
            // Each has the error of its own clock; host and guest differ by that of the guest.
            if point.saturating_add(guest.error) < at || point > left.saturating_add(guest.error) {
                return Division::Violation;
            }
            let next = point.clamp(at, left.max(at));
            *part = next - at;
            at = next;
        }
        if response.sent > left.saturating_add(guest.error) {
            return Division::Violation;
        }
        let began = guest.threads.get(&response.sender).copied().unwrap_or(0);
        Division::Divided(InsideRequest {
            parts,
            reader: request.reader,
            sender: response.sender,
            woken: (request.woken != 0).then(|| request.running.saturating_sub(request.woken)),
            moved: !by_kernel && request.read_on != request.received_on,
            new_thread: !by_kernel && began != 0 && began >= request.read,
            backlog: request.backlog,
        })
    }

    /// `ttl`: how long a request may wait for its response, ns.
    pub(super) fn expire(&mut self, now: u64, ttl: u64) {
        let Some(then) = now.checked_sub(ttl) else { return };
        while self.prints.pop_until(then).is_some() {}
        for guest in self.guests.values_mut() {
            while guest.packets.pop_until(then).is_some() {}
        }
    }
}
