//! The threads of a request that is divided: which starts it waited for, and what each thread did.
//!
//! | role | thread | its starts count |
//! | --- | --- | --- |
//! | receiver | the vhost worker that took the request | put on the tap → taken |
//! | interrupt vCPU | the vCPU that took the interrupt | interrupt accepted → received by the guest's stack |
//! | application vCPU | the vCPU on which the packet was read | on the socket's queue → kicked |
//! | reader | the guest's thread that read it | on the socket's queue → read |
//! | sender | the vhost worker that took the response | kicked → handed over |
//!
//! A start counts if it ends within that time: then the request waited for it. What the guest's kernel answers itself has no
//! application; its vCPU counts as that of the interrupt until the kick.

use super::inside::{Guest, InsideTable, Points, Stay};
use super::starts::{Started, Starts};
use super::vcpus::Vcpus;
use crate::threads::Threads;
use teiji_model::event::Waker;
use teiji_model::stage::ThreadState;
use teiji_model::threads::{RequestThread, RequestThreads, ThreadRole, ThreadSpan, ThreadStart, WokenBy};

/// A halted vCPU counts as asleep a little before it gives its CPU up, and may be woken meanwhile, ns.
const LEAST: u64 = 10_000;
/// The most starts, and the most spans, of a thread that are kept of a request.
const MAX_STARTS: usize = 64;
const MAX_SPANS: usize = 256;

/// The host's part of a request's way: when it passed, and which workers carried it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    pub(super) start: u64,
    pub(super) enqueued: u64,
    pub(super) dequeued: u64,
    pub(super) signalled: u64,
    pub(super) accepted: u64,
    pub(super) sent: u64,
    pub(super) end: u64,
    /// Thread ids.
    pub(super) receiver: u32,
    pub(super) sender: Option<u32>,
    /// How long they were asleep while their starts count, by their clocks, ns; 0 if it is not known.
    pub(super) receiver_asleep: u64,
    pub(super) sender_asleep: u64,
}

/// A start that a request waited for.
pub(crate) type Waited = (ThreadRole, Started);

/// The starts of a request. Reused from request to request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestStarts {
    pub(crate) starts: Vec<Waited>,
    /// The reader was asleep, and a thread of the guest woke it: its id and name.
    pub(crate) reader_woken_by: Option<(u32, String)>,
    /// From taken off the tap until the reader runs.
    pub(crate) to_application: Option<u64>,
}

/// The thread of a role, by the host's id, and when its starts count.
type Window = (ThreadRole, Option<u32>, u64, u64);

fn windows(stay: &Stay, points: &Points, starts: &Starts) -> [Window; 4] {
    let way = &stay.way;
    let tid = |vcpu: Option<u32>| vcpu.and_then(|vcpu| starts.vcpu(vcpu));
    let at_socket = points.queued.unwrap_or(stay.left);
    let taken_by_guest = if points.queued.is_some() { points.received } else { stay.left };
    [
        (ThreadRole::Receiver, Some(way.receiver), way.enqueued, way.dequeued),
        (ThreadRole::InterruptVcpu, tid(Some(stay.entered_on)), way.accepted, taken_by_guest),
        (ThreadRole::ApplicationVcpu, tid(points.reads_on), at_socket, stay.left),
        (ThreadRole::Sender, way.sender, stay.left, way.sent),
    ]
}

impl Guest {
    /// How long a thread was seen to be asleep while its starts count, ns: by its clock, or the vCPU's states.
    fn asleep(&self, role: ThreadRole, stay: &Stay, points: &Points, from: u64, to: u64) -> u64 {
        let vcpu = match role {
            ThreadRole::Receiver => return stay.way.receiver_asleep,
            ThreadRole::Sender => return stay.way.sender_asleep,
            ThreadRole::InterruptVcpu => stay.entered_on,
            _ => match points.reads_on {
                Some(vcpu) => vcpu,
                None => return 0,
            },
        };
        let mut sum = 0;
        self.vcpus.spans(vcpu, from, to, &mut |from, to, state| {
            sum += if state == Some(ThreadState::Asleep) { to - from } else { 0 };
        });
        sum
    }
}

impl InsideTable {
    /// Finds the starts that a request waited for; `false` if one may be missing.
    pub(super) fn starts(&self, stay: &Stay, points: &Points, found: &mut RequestStarts) -> bool {
        found.starts.clear();
        (found.to_application, found.reader_woken_by) = (None, None);
        let Some(guest) = self.latest(stay.pid).filter(|guest| guest.starts.any()) else { return false };
        if points.queued.is_some() && points.reads_on.is_none() {
            return false;
        }
        for (role, tid, from, to) in windows(stay, points, &guest.starts) {
            // A thread that was never seen to start has run, or slept, all the time.
            let Some(tid) = tid else { continue };
            let Some(within) = guest.starts.within(tid, from, to) else { return false };
            // The thread slept and ran again: then its start was not reported.
            if guest.asleep(role, stay, points, from, to) > LEAST && !within.clone().any(|s| s.slept) {
                return false;
            }
            found.starts.extend(within.take(MAX_STARTS).map(|start| (role, *start)));
        }
        if let Some((woken, running)) = points.woken {
            let waker = if points.woken_by == 0 { Waker::Interrupt } else { Waker::Unknown };
            let reader = Started::of_guest(woken, running, waker);
            found.starts.push((ThreadRole::Reader, reader));
            found.to_application = running.checked_sub(stay.way.dequeued);
            if points.woken_by != 0 {
                found.reader_woken_by = Some((points.woken_by, guest.thread_name(points.woken_by)));
            }
        }
        found.starts.sort_by_key(|(_, start)| start.running);
        true
    }

    /// What the threads of a request did. `found` are its starts.
    pub(super) fn threads(
        &self,
        stay: &Stay,
        points: &Points,
        found: &RequestStarts,
        names: &Threads,
    ) -> Option<Box<RequestThreads>> {
        let guest = self.latest(stay.pid)?;
        let mut threads: Vec<RequestThread> = Vec::new();
        let start_of = |role: ThreadRole| {
            found.starts.iter().filter(move |(of, _)| *of == role).map(move |(_, s)| ThreadStart {
                role,
                woken: s.woken,
                running: s.running,
                by: found.by(role, s, names),
            })
        };
        for (role, tid, ..) in windows(stay, points, &guest.starts) {
            let vcpu = match role {
                ThreadRole::InterruptVcpu => Some(stay.entered_on),
                ThreadRole::ApplicationVcpu => points.reads_on,
                _ => None,
            };
            if role == ThreadRole::ApplicationVcpu && vcpu.is_none()
                || role == ThreadRole::Sender && tid.is_none()
            {
                continue;
            }
            let index = vcpu.and_then(|vcpu| guest.vcpus.index(vcpu));
            let tid = tid.unwrap_or(0);
            let same = |other: &&mut RequestThread| {
                other.tid == tid && tid != 0 || vcpu.is_some() && other.vcpu == index
            };
            if let Some(other) = threads.iter_mut().find(same) {
                other.roles.push(role);
                other.starts.extend(start_of(role));
                continue;
            }
            let spans = match vcpu {
                Some(vcpu) => vcpu_spans(vcpu, tid, &stay.way, &guest.vcpus, &guest.starts),
                None => worker_spans(tid, &stay.way, &guest.starts),
            };
            let (roles, starts) = (vec![role], start_of(role).collect());
            threads.push(RequestThread { roles, tid, vcpu: index, name: String::new(), starts, spans });
        }
        if points.queued.is_some() {
            let role = ThreadRole::Reader;
            let reader = RequestThread {
                roles: vec![role],
                tid: points.reader,
                vcpu: None,
                name: guest.thread_name(points.reader),
                starts: start_of(role).collect(),
                spans: reader_spans(points),
            };
            // Before a sender that is a thread of its own.
            let at = threads.iter().position(|t| t.roles == [ThreadRole::Sender]).unwrap_or(threads.len());
            threads.insert(at, reader);
        }
        Some(Box::new(RequestThreads { threads, to_application: found.to_application }))
    }
}

impl RequestStarts {
    /// Who woke a thread.
    pub(crate) fn by(&self, role: ThreadRole, start: &Started, names: &Threads) -> WokenBy {
        match (&self.reader_woken_by, start.waker) {
            (Some((tid, name)), _) if role == ThreadRole::Reader => {
                WokenBy::Thread { tid: *tid, name: name.clone() }
            }
            (_, Waker::Interrupt) => WokenBy::Interrupt,
            (_, Waker::Thread(number)) => {
                let thread = names.thread(number);
                if thread.tid == 0 {
                    return WokenBy::Unknown;
                }
                WokenBy::Thread { tid: thread.tid, name: names.name(thread) }
            }
            _ => WokenBy::Unknown,
        }
    }
}

/// Spans that follow each other without a gap.
struct Spans {
    spans: Vec<ThreadSpan>,
    at: u64,
    end: u64,
}

impl Spans {
    fn new(way: &Way) -> Self {
        Spans { spans: Vec::new(), at: way.start, end: way.end }
    }

    /// Until `to` the thread was in this state.
    fn until(&mut self, to: u64, state: Option<ThreadState>) {
        let to = to.min(self.end);
        if to <= self.at {
            return;
        }
        let room = self.spans.len() < MAX_SPANS;
        match self.spans.last_mut() {
            Some(last) if last.state == state => last.to = to,
            _ if room => self.spans.push(ThreadSpan { from: self.at, to, state }),
            _ => return,
        }
        self.at = to;
    }

    /// What a thread did from when it lost its CPU until it got one.
    fn start(&mut self, s: &Started) {
        match s.woken {
            Some(woken) => {
                self.until(woken, Some(ThreadState::Asleep));
                self.until(s.running, Some(ThreadState::Ready));
            }
            None if s.slept => self.until(s.running, None),
            None => self.until(s.running, Some(ThreadState::Ready)),
        }
    }

    fn finish(mut self) -> Vec<ThreadSpan> {
        self.until(self.end, None);
        self.spans
    }
}

/// A worker runs from one start until it leaves its CPU before the next one.
fn worker_spans(tid: u32, way: &Way, starts: &Starts) -> Vec<ThreadSpan> {
    let mut spans = Spans::new(way);
    let mut ran = false;
    for (s, gap) in starts.around(tid, way.start) {
        spans.until(s.left, (ran && !gap).then_some(ThreadState::Run));
        spans.start(s);
        ran = true;
    }
    // It carries packets after its last start.
    let seen = if way.sender == Some(tid) { way.sent } else { way.accepted.max(way.signalled) };
    spans.until(seen, ran.then_some(ThreadState::Run));
    spans.finish()
}

/// The states of a vCPU, and its thread between being woken and its next guest entry.
fn vcpu_spans(vcpu: u32, tid: u32, way: &Way, vcpus: &Vcpus, starts: &Starts) -> Vec<ThreadSpan> {
    let mut spans = Spans::new(way);
    vcpus.spans(vcpu, way.start, way.end, &mut |from, to, state| {
        spans.until(from, None);
        if matches!(state, Some(ThreadState::Asleep)) {
            for (s, _) in
                starts.around(tid, from).filter(|(s, _)| s.slept && s.left < to && s.running >= from)
            {
                if let Some(woken) = s.woken {
                    spans.until(woken.min(to), Some(ThreadState::Asleep));
                    spans.until(s.running.min(to), Some(ThreadState::Ready));
                } else {
                    spans.until(s.running.min(to), Some(ThreadState::Asleep));
                }
                // Host code of KVM, until the vCPU enters its guest.
                if s.running < to {
                    spans.until(to, Some(ThreadState::Run));
                }
            }
        }
        spans.until(to, state);
    });
    spans.finish()
}

/// What is known of the guest's reader. Whether the guest preempts it in between is not.
fn reader_spans(points: &Points) -> Vec<ThreadSpan> {
    let span = |from: u64, to: u64, state| ThreadSpan { from, to, state: Some(state) };
    let mut spans = Vec::new();
    let mut at = points.read;
    if let (Some((woken, running)), Some(queued)) = (points.woken, points.queued) {
        spans.push(span(queued, woken, ThreadState::Asleep));
        spans.push(span(woken, running, ThreadState::Ready));
        at = running;
    }
    let end = if points.sender == points.reader { points.began } else { points.read };
    spans.push(span(at, end, ThreadState::Run));
    spans.retain(|s| s.from < s.to);
    spans
}
