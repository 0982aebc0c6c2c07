//! The threads of requests in a guest that reports: when each was started, who woke it, and what it did.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::guest;
use teiji_model::report::{Counters, Joined, Report, RequestThreads};
use teiji_model::stage::{Split, ThreadState};
use teiji_model::stream::{Change, Changed, ClockMapping, Item, StreamId};
use teiji_model::threads::{RequestThread, ThreadRole, WokenBy};

use ThreadRole::{ApplicationVcpu, InterruptVcpu, Reader, Receiver, Sender};
use ThreadState::{Asleep, Guest, Ready, Run};

const REQUESTS: u64 = 20;
const EVERY: u64 = 20_000_000;
const GUEST: StreamId = StreamId(1);
/// The vCPU that takes interrupts, and the one of the reader: KVM's number, index in the VM, thread.
const TAKES: (u32, u16, u32) = (1, 1, 501);
const READS: (u32, u16, u32) = (8, 5, 505);
/// A thread that carries the request to the tap.
const FORWARDER: u32 = 77;

/// A traced thread, whose starts are numbered.
struct Thread {
    tid: u32,
    vcpu: Option<(u32, u16)>,
    nth: u32,
    /// When it last lost its CPU.
    left: u64,
    state: ThreadState,
    since: u64,
    clock: Split,
}

impl Thread {
    fn vcpu((number, index, tid): (u32, u16, u32)) -> Thread {
        Thread {
            tid,
            vcpu: Some((number, index)),
            nth: 0,
            left: 0,
            state: Asleep,
            since: 0,
            clock: Split::default(),
        }
    }

    fn worker() -> Thread {
        Thread { tid: WORKER, vcpu: None, ..Thread::vcpu((0, 0, 0)) }
    }

    fn goes(&mut self, at: u64, state: ThreadState) -> EventKind {
        self.clock.0[self.state as usize] += at - self.since;
        (self.since, self.state) = (at, state);
        if state == Asleep {
            self.left = at;
        }
        let (vcpu, index) = self.vcpu.unwrap();
        EventKind::VcpuState(VcpuState {
            vm: VM,
            vcpu,
            index: Some(index),
            state,
            clock: self.clock,
            preempted_by: 0,
        })
    }

    fn starts(&mut self, woken: Option<u64>, waker: Waker) -> EventKind {
        self.nth += 1;
        EventKind::Start(Start {
            tid: self.tid,
            vm: VM,
            vcpu: self.vcpu.map(|(number, _)| number),
            left: T + self.left,
            slept: woken.is_some(),
            woken: woken.map(|ns| T + ns),
            waker,
            nth: self.nth,
        })
    }
}

/// Which reports of starts are missing: of the worker, the first vCPU, the second.
type Missing = [bool; 3];

/// Requests whose every thread sleeps before it is needed: 12 starts of 5 roles for 3 requests, and so on.
fn history(missing: Missing) -> Vec<Item> {
    let mapping = ClockMapping { own: T, host: T, rate: ClockMapping::EQUAL, error: 1_000 };
    let clock = Changed::Clock { stream: GUEST, vm: VM, mapping };
    let mut items = vec![Item::Change(Change { ts: T, what: clock })];
    let (mut worker, mut takes, mut reads) = (Thread::worker(), Thread::vcpu(TAKES), Thread::vcpu(READS));
    let of_host = |at: u64, kind| Event { ts: T + at, stream: StreamId::HOST, cpu: 0, kind };
    for thread in [&mut takes, &mut reads] {
        items.push(Item::Event(of_host(0, thread.goes(0, Asleep))));
    }
    let forwarder = ThreadName { tid: FORWARDER, comm: *b"forwarder\0\0\0\0\0\0\0" };
    items.push(Item::Event(of_host(0, EventKind::ThreadName(forwarder))));
    for thread in [&mut worker, &mut takes, &mut reads] {
        items.push(Item::Event(of_host(1_000, thread.starts(Some(500), Waker::Interrupt))));
        thread.left = 2_000;
    }
    for n in 0..REQUESTS {
        let t = n * EVERY + EVERY;
        let (request, response) = (1000 + n, 2000 + n);
        // Readings of the clocks that come with the host's other events.
        let mut entered = takes.clock;
        entered.0[Asleep as usize] += t + 250_000 - takes.since;
        let mut kicked = reads.clock;
        kicked.0[Asleep as usize] += t + 510_000 - reads.since;
        kicked.0[Guest as usize] += 190_000;
        let mut h = History::default();
        h.packet(t, Point::HostRx, request, NIC)
            .matched(t + 10_000, Point::TapEnqueue, request, TAP, m(n, Role::Request))
            .packet(t + 110_000, Point::TapDequeue, request, TAP)
            .interrupt(t + 130_000, t + 120_000, Delivery::Accepted)
            .entry(t + 250_000, t + 135_000, 40)
            .response(t + 700_000, response, m(n, Role::Final));
        let mut events = h.0;
        for event in &mut events {
            match &mut event.kind {
                EventKind::GuestEntry(e) => (e.vcpu, e.clock) = (TAKES.0, entered),
                EventKind::Kick(k) => (k.vcpu, k.clock) = (READS.0, kicked),
                EventKind::Interrupt(i) => i.state = None,
                // The worker sends 50 µs after the kick.
                EventKind::Packet(p) if p.fingerprint == response => {
                    event.ts += 40_000;
                    p.worker = (p.point == Point::TapSend).then_some(Split::default());
                }
                _ => {}
            }
        }
        let mut add = |at: u64, kind| events.push(of_host(t + at, kind));
        for (at, fingerprint) in [(10_000, request), (750_000, response)] {
            add(at, EventKind::Print(Print { fingerprint, print: fingerprint ^ 0xabc }));
        }
        let lose = |index: usize| missing[index] && n % 2 == 1;
        // The worker: woken 5 µs after the packet is on the tap, runs 55 µs later, is preempted for 20 µs, sleeps.
        worker.left = t - 1_000_000;
        let kinds = [
            (70_000, worker.starts(Some(t + 15_000), Waker::Thread(FORWARDER))),
            (100_000, {
                worker.left = t + 80_000;
                worker.starts(None, Waker::Unknown)
            }),
            (740_000, {
                worker.left = t + 200_000;
                worker.starts(Some(t + 705_000), Waker::Thread(READS.2))
            }),
        ];
        for (i, (at, kind)) in kinds.into_iter().enumerate() {
            if !(lose(0) && i == 1) {
                add(at, kind);
            }
        }
        // The vCPU of the interrupt, woken by the worker.
        let kind = takes.starts(Some(t + 140_000), Waker::Thread(WORKER));
        if !lose(1) {
            add(240_000, kind);
        }
        add(250_000, takes.goes(t + 250_000, Guest));
        add(320_000, takes.goes(t + 320_000, Asleep));
        // That of the application, woken by the former.
        let kind = reads.starts(Some(t + 310_000), Waker::Thread(TAKES.2));
        if !lose(2) {
            add(500_000, kind);
        }
        add(510_000, reads.goes(t + 510_000, Guest));
        add(800_000, reads.goes(t + 800_000, Asleep));
        let mut told = |at: u64, cpu, kind| {
            let event = Event { ts: T + t + at, stream: GUEST, cpu, kind: EventKind::Guest(kind) };
            items.push(Item::Event(event));
        };
        let print = request ^ 0xabc;
        let on = |at: u64| T + t + at;
        if n == 0 {
            let comm = *b"sipp\0\0\0\0\0\0\0\0\0\0\0\0";
            let thread = guest::EventKind::Thread { tid: 40, process: 40, parent: 0, comm, started: 0 };
            told(0, READS.1, thread);
        }
        told(270_000, TAKES.1, guest::EventKind::Received { print, interrupted: 0 });
        told(300_000, TAKES.1, guest::EventKind::Queued { print, backlog: 0 });
        let (woken, running) = (on(305_000), on(540_000));
        told(560_000, READS.1, guest::EventKind::Read { print, tid: 40, woken, running, woken_by: 0 });
        let sent = guest::EventKind::Sent { print: response ^ 0xabc, tid: 40, began: on(650_000) };
        told(680_000, READS.1, sent);
        events.sort_by_key(|event| event.ts);
        items.extend(events.into_iter().map(Item::Event));
    }
    items
}

fn counters() -> Counters {
    Counters { ended: T + (REQUESTS + 2) * EVERY, ..Counters::default() }
}

fn analyse(missing: Missing, options: Options) -> (Report, Vec<Joined>) {
    let mut analyzer = Analyzer::new(&meta(Matching::Echo), Options { seed: 1, ..options });
    let mut all = Vec::new();
    for item in history(missing) {
        analyzer.take(item, &mut |joined| all.push(joined.clone()));
    }
    let report = analyzer.finish(counters(), &mut |joined| all.push(joined.clone()));
    assert_eq!(all.len() as u64, REQUESTS);
    (report, all)
}

/// Starts as µs after the request began: role, woken, running, by whom.
fn starts(thread: &RequestThread, begin: u64) -> Vec<(ThreadRole, Option<u64>, u64, &WokenBy)> {
    let us = |ns: u64| (ns - begin) / 1_000;
    thread.starts.iter().map(|s| (s.role, s.woken.map(us), us(s.running), &s.by)).collect()
}

fn spans(thread: &RequestThread, begin: u64) -> Vec<(u64, u64, Option<ThreadState>)> {
    let us = |ns: u64| (ns - begin) / 1_000;
    thread.spans.iter().map(|s| (us(s.from), us(s.to), s.state)).collect()
}

fn by(tid: u32, name: &str) -> WokenBy {
    WokenBy::Thread { tid, name: name.into() }
}

#[test]
fn each_start_has_its_thread_its_waker_and_its_times() {
    let (report, _) = analyse([false; 3], Options::default());
    let vm = &report.vms[0];
    let request = &vm.slowest[0];
    let RequestThreads { threads, to_application } = &**request.threads.as_ref().unwrap();
    let [worker, takes, reads, reader] = &threads[..] else { panic!("{threads:#?}") };
    let begin = request.start;
    assert_eq!((&worker.roles[..], worker.tid), (&[Receiver, Sender][..], WORKER));
    assert_eq!(
        starts(worker, begin),
        [
            (Receiver, Some(15), 70, &by(FORWARDER, "forwarder")),
            (Receiver, None, 100, &WokenBy::Unknown),
            (Sender, Some(705), 740, &by(READS.2, "")),
        ]
    );
    assert_eq!(
        spans(worker, begin),
        [
            (0, 15, Some(Asleep)),
            (15, 70, Some(Ready)),
            (70, 80, Some(Run)),
            (80, 100, Some(Ready)),
            (100, 200, Some(Run)),
            (200, 705, Some(Asleep)),
            (705, 740, Some(Ready)),
            (740, 750, Some(Run)),
            (750, 780, None),
        ]
    );
    assert_eq!((&takes.roles[..], takes.tid, takes.vcpu), (&[InterruptVcpu][..], TAKES.2, Some(TAKES.1)));
    assert_eq!(starts(takes, begin), [(InterruptVcpu, Some(140), 240, &by(WORKER, ""))]);
    assert_eq!(
        spans(takes, begin),
        [
            (0, 140, Some(Asleep)),
            (140, 240, Some(Ready)),
            // Host code before the guest entry.
            (240, 250, Some(Run)),
            (250, 320, Some(Guest)),
            // What it does from its last report on is known only with the next one.
            (320, 780, None),
        ]
    );
    assert_eq!((&reads.roles[..], reads.vcpu), (&[ApplicationVcpu][..], Some(READS.1)));
    assert_eq!(starts(reads, begin), [(ApplicationVcpu, Some(310), 500, &by(TAKES.2, ""))]);
    assert_eq!((&reader.roles[..], reader.tid, reader.name.as_str()), (&[Reader][..], 40, "sipp"));
    assert_eq!(starts(reader, begin), [(Reader, Some(305), 540, &WokenBy::Interrupt)]);
    assert_eq!(
        spans(reader, begin),
        [(300, 305, Some(Asleep)), (305, 540, Some(Ready)), (540, 650, Some(Run))]
    );
    assert_eq!(*to_application, Some(430_000), "from 110 µs to 540 µs");
}

#[test]
fn the_starts_of_all_requests_are_counted_by_role() {
    let (report, _) = analyse([false; 3], Options::default());
    let threads = report.vms[0].threads.as_ref().unwrap();
    assert_eq!((threads.requests, threads.unknown), (REQUESTS, 0));
    let per_request = threads.per_request.unwrap();
    assert_eq!((per_request.p50, per_request.max, per_request.mean), (6, 6, 6.0));
    assert_eq!(threads.to_application.unwrap().max, 430_000);
    let of = |role| threads.roles.iter().find(|r| r.role == role).unwrap();
    for (role, starts, woken, us) in [
        (Receiver, 2 * REQUESTS, REQUESTS, 55),
        (InterruptVcpu, REQUESTS, REQUESTS, 100),
        (ApplicationVcpu, REQUESTS, REQUESTS, 190),
        (Reader, REQUESTS, REQUESTS, 235),
        (Sender, REQUESTS, REQUESTS, 35),
    ] {
        let dist = of(role).wake_up.unwrap();
        assert_eq!(
            (of(role).starts, dist.count, dist.min, dist.max),
            (starts, woken, us * 1_000, us * 1_000)
        );
        assert_eq!(of(role).woken_by.iter().map(|(_, n)| n).sum::<u64>(), woken, "{role:?}");
    }
    assert_eq!(of(Receiver).woken_by, [(by(FORWARDER, "forwarder"), REQUESTS)]);
    assert_eq!(of(Reader).woken_by, [(WokenBy::Interrupt, REQUESTS)]);
}

/// A start that was not reported shows by the number of the next one: nothing is said of the requests that may have waited for it.
#[test]
fn a_missing_start_makes_a_requests_starts_unknown() {
    for index in 0..3 {
        let mut missing = [false; 3];
        missing[index] = true;
        let (report, all) = analyse(missing, Options { timelines: true, ..Options::default() });
        let threads = report.vms[0].threads.as_ref().unwrap();
        assert_eq!((threads.requests, threads.unknown), (REQUESTS / 2, REQUESTS / 2), "{index}");
        assert_eq!(threads.per_request.unwrap().p50, 6);
        for (n, joined) in all.iter().enumerate() {
            assert_eq!(joined.request.threads.is_some(), n % 2 == 0, "{index}, request {n}");
        }
    }
    // Without any, as in a recording of a former version, there is no figure.
    let mut analyzer = Analyzer::new(&meta(Matching::Echo), Options { seed: 1, ..Options::default() });
    let without = history([false; 3]);
    let is_start = |item: &Item| matches!(item.event().map(|e| e.kind), Some(EventKind::Start(_)));
    for item in without.into_iter().filter(|item| !is_start(item)) {
        analyzer.take(item, &mut |_| {});
    }
    let report = analyzer.finish(counters(), &mut |_| {});
    assert_eq!(report.vms[0].inside.as_ref().unwrap().divided, REQUESTS);
    assert!(report.vms[0].threads.is_none());
}

#[test]
fn threads_are_described_of_the_requests_that_are_shown() {
    let (report, all) = analyse([false; 3], Options::default());
    let vm = &report.vms[0];
    assert!(vm.slowest.iter().all(|r| r.threads.is_some()));
    let typical = vm.typical.as_ref().unwrap();
    assert!(typical.threads.is_some() && typical.total == vm.total.unwrap().p50);
    assert!(vm.chosen.is_none() && all.iter().any(|j| j.request.threads.is_none()));
    // The one that is asked for, by the time since the trace began.
    let after = T + 15 * EVERY - 5_000_000;
    let options = Options { chosen: Some(after), ..Options::default() };
    let (report, _) = analyse([false; 3], options);
    let chosen = report.vms[0].chosen.clone().unwrap();
    assert_eq!(chosen.start, T + 15 * EVERY);
    assert!(chosen.threads.is_some());
    let (_, all) = analyse([false; 3], Options { timelines: true, ..Options::default() });
    assert!(all.iter().all(|j| j.request.threads.is_some()));
}
