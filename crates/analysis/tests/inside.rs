//! What the vCPUs did while requests were in a guest that reports: the division of each part, and the causes found by it.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::finding::Cause;
use teiji_model::flow::Matching;
use teiji_model::guest;
use teiji_model::report::{Counters, GuestPart, Report};
use teiji_model::stage::{Split, Stage, ThreadState};
use teiji_model::stream::{Change, Changed, ClockMapping, Item, StreamId};

use ThreadState::{Asleep, Guest, Poll, Ready, Run};

const REQUESTS: u64 = 40;
const EVERY: u64 = 20_000_000;
const GUEST: StreamId = StreamId(1);
/// A thread that has the CPU while a vCPU waits.
const HOG: u32 = 31;
/// The vCPU that takes interrupts, and the one of the reader: KVM's numbers, and their indices in the VM.
const TAKES: (u32, u16) = (1, 1);
const READS: (u32, u16) = (8, 5);
/// When a slow part begins and ends, ns after the request.
const SLOW: (u64, u64) = (100_000, 4_100_000);

/// A guest whose requests are slow in one way.
#[derive(Clone, Copy)]
struct Slow {
    /// What the reader's vCPU does meanwhile.
    state: ThreadState,
    /// The reader was asleep when the packet came.
    woken: bool,
    /// In the application; otherwise while the packet is in the socket.
    in_app: bool,
    /// A thread is created to answer.
    new_thread: bool,
    /// The CPU on which the guest says that it reads.
    claims: u16,
    /// This one of three reports of the reader's vCPU is lost.
    lost: Option<usize>,
}

const SOCKET: Slow =
    Slow { state: Asleep, woken: true, in_app: false, new_thread: false, claims: READS.1, lost: None };

/// A vCPU and its clock.
struct Vcpu {
    id: (u32, u16),
    state: ThreadState,
    since: u64,
    clock: Split,
}

impl Vcpu {
    fn new(id: (u32, u16)) -> Vcpu {
        Vcpu { id, state: Asleep, since: 0, clock: Split::default() }
    }

    fn goes(&mut self, at: u64, state: ThreadState) -> EventKind {
        self.clock.0[self.state as usize] += at - self.since;
        (self.since, self.state) = (at, state);
        EventKind::VcpuState(VcpuState {
            vm: VM,
            vcpu: self.id.0,
            index: Some(self.id.1),
            state,
            clock: self.clock,
            preempted_by: HOG,
        })
    }
}

fn history(slow: Slow) -> Vec<Item> {
    let mapping = ClockMapping { own: T, host: T, rate: ClockMapping::EQUAL, error: 1_000 };
    let clock = Changed::Clock { stream: GUEST, vm: VM, mapping };
    let mut items = vec![Item::Change(Change { ts: T, what: clock })];
    let (mut takes, mut reads) = (Vcpu::new(TAKES), Vcpu::new(READS));
    for vcpu in [&mut takes, &mut reads] {
        let kind = vcpu.goes(0, Asleep);
        items.push(Item::Event(Event { ts: T, stream: StreamId::HOST, cpu: 0, kind }));
    }
    for n in 0..REQUESTS {
        let t = n * EVERY + EVERY;
        let (request, response) = (1000 + n, 2000 + n);
        let mut h = History::default();
        h.request(t, request, m(n, Role::Request)).response(t + 4_200_000, response, m(n, Role::Final));
        let mut events = h.0;
        let mut add = |at: u64, kind| {
            events.push(Event { ts: T + at, stream: StreamId::HOST, cpu: 0, kind });
        };
        for (at, fingerprint) in [(t + 10_000, request), (t + 4_210_000, response)] {
            add(at, EventKind::Print(Print { fingerprint, print: fingerprint ^ 0xabc }));
        }
        add(t + 50_000, takes.goes(t + 50_000, Guest));
        let entered = takes.clock;
        add(t + 90_000, takes.goes(t + 90_000, Asleep));
        // A timer of the guest.
        add(t + 4_290_000, takes.goes(t + 4_290_000, Guest));
        add(t + 4_291_000, takes.goes(t + 4_291_000, Asleep));
        // Asleep until the packet has been queued.
        let of_reader = [(t + SLOW.0, slow.state), (t + SLOW.1, Guest), (t + 4_300_000, Asleep)];
        let mut kicked = Split::default();
        for (i, (at, state)) in of_reader.into_iter().enumerate() {
            if i == 2 {
                kicked = reads.clock;
                kicked.0[Guest as usize] += t + 4_200_000 - reads.since;
            }
            let told = reads.goes(at, state);
            if slow.lost != Some(i) {
                add(at, told);
            }
        }
        for event in &mut events {
            match &mut event.kind {
                EventKind::GuestEntry(e) => (e.clock, e.vcpu) = (entered, TAKES.0),
                EventKind::Kick(k) => (k.clock, k.vcpu) = (kicked, READS.0),
                _ => {}
            }
        }
        // 10 µs to the stack, 15 to the socket; the reader takes it 20 µs after the vCPU is back, or before.
        let read = if slow.in_app { SLOW.0 + 20_000 } else { SLOW.1 + 20_000 };
        let mut told = |at: u64, cpu, kind| {
            let event = Event { ts: T + t + at, stream: GUEST, cpu, kind: EventKind::Guest(kind) };
            items.push(Item::Event(event));
        };
        let print = request ^ 0xabc;
        let (woken, running) = if slow.woken { (76_000, read - 10_000) } else { (0, 0) };
        let on_host = |at: u64| if at == 0 { 0 } else { T + t + at };
        told(60_000, TAKES.1, guest::EventKind::Received { print, interrupted: 0 });
        told(75_000, TAKES.1, guest::EventKind::Queued { print, backlog: 0 });
        let (woken, running) = (on_host(woken), on_host(running));
        told(read, slow.claims, guest::EventKind::Read { print, tid: 40, woken, running, woken_by: 0 });
        if slow.new_thread {
            let started = T + t + read + 1_000;
            let thread =
                guest::EventKind::Thread { tid: 41, process: 40, parent: 40, comm: [0; 16], started };
            told(read + 2_000, READS.1, thread);
        }
        let began = T + t + 4_130_000;
        told(4_140_000, READS.1, guest::EventKind::Sent { print: response ^ 0xabc, tid: 41, began });
        events.sort_by_key(|event| event.ts);
        items.extend(events.into_iter().map(Item::Event));
    }
    items
}

/// Each request adds up, and so do the figures of all.
fn report(slow: Slow) -> Report {
    let mut analyzer = Analyzer::new(&meta(Matching::Echo), Options { seed: 1, ..Options::default() });
    let mut requests = Vec::new();
    for item in history(slow) {
        analyzer.take(item, &mut |joined| requests.push(joined.request.clone()));
    }
    let counters = Counters { ended: T + (REQUESTS + 2) * EVERY, ..Counters::default() };
    let report = analyzer.finish(counters, &mut |joined| requests.push(joined.request.clone()));
    assert_eq!(requests.len() as u64, REQUESTS);
    for request in &requests {
        let inside = request.inside.unwrap();
        let guest = request.stages[Stage::Guest as usize].ns;
        assert_eq!(inside.parts.iter().sum::<u64>(), guest + request.preempted);
        for (ns, split) in inside.parts.iter().zip(inside.splits) {
            assert!(split.is_none_or(|split| split.total() == *ns), "{inside:?}");
        }
    }
    let inside = report.vms[0].inside.as_ref().unwrap();
    assert_eq!(inside.divided, REQUESTS);
    for part in &inside.parts {
        let sum: f64 = part.states.iter().map(|s| s.mean).sum();
        assert!((sum - part.dist.mean).abs() < 1.0, "{part:?}");
        let shares: f64 = part.states.iter().map(|s| s.time_share).sum();
        assert!((shares - part.time_share).abs() < 1e-9, "{part:?}");
    }
    report
}

fn splits(report: &Report) -> [Option<Split>; GuestPart::COUNT] {
    report.vms[0].slowest[0].inside.unwrap().splits
}

#[test]
fn each_part_has_the_states_of_the_vcpu_concerned() {
    let of = splits(&report(SOCKET)).map(|split| split.map(|split| split.0.map(|ns| ns / 1_000)));
    // The reader's vCPU sleeps until 4,100 µs; the packet was queued at 75 µs and is read at 4,120 µs.
    assert_eq!(of[..3], [Some([10, 0, 0, 0, 0]), Some([15, 0, 0, 0, 0]), Some([20, 0, 4025, 0, 0])]);
    assert_eq!(of[3..], [Some([10, 0, 0, 0, 0]), Some([70, 0, 0, 0, 0])]);
}

/// A packet comes to a vCPU in guest mode that had exits just before: its clock was read when the interrupt was sent, or not needed.
#[test]
fn exits_before_a_packet_came_are_not_its() {
    let mapping = ClockMapping { own: T, host: T, rate: ClockMapping::EQUAL, error: 0 };
    let clock = Changed::Clock { stream: GUEST, vm: VM, mapping };
    let reading = |state, clock| {
        let told = VcpuState { vm: VM, vcpu: 1, index: Some(1), state, clock: Split(clock), preempted_by: 0 };
        EventKind::VcpuState(told)
    };
    let mut h = History::default();
    h.at(0, reading(Guest, [0; 5]));
    for fingerprint in [1, 2] {
        h.at(1_000, EventKind::Print(Print { fingerprint, print: fingerprint }));
    }
    h.packet(700_000, Point::HostRx, 1, NIC)
        .matched(710_000, Point::TapEnqueue, 1, TAP, m(7, Role::Request))
        .packet(720_000, Point::TapDequeue, 1, TAP);
    let signal = Interrupt {
        delivery: Delivery::Suppressed,
        state: Some(Guest),
        clock: Split([300_000, 0, 0, 0, 500_000]),
        vector: 0,
        ..interrupt(730_000)
    };
    h.at(800_000, EventKind::Interrupt(signal));
    let kicked = Split([1_250_000, 0, 0, 0, 550_000]);
    h.response(1_800_000, 2, m(7, Role::Final)).at(1_900_000, reading(Guest, [1_350_000, 0, 0, 0, 550_000]));
    for event in &mut h.0 {
        if let EventKind::Kick(k) = &mut event.kind {
            k.clock = kicked;
        }
    }
    let print = 1;
    for (at, kind) in [
        (900_000, guest::EventKind::Received { print, interrupted: 0 }),
        (1_000_000, guest::EventKind::Queued { print, backlog: 0 }),
        (1_200_000, guest::EventKind::Read { print, tid: 40, woken: 0, running: 0, woken_by: 0 }),
        (1_700_000, guest::EventKind::Sent { print: 2, tid: 40, began: T + 1_600_000 }),
    ] {
        h.0.push(Event { ts: T + at, stream: GUEST, cpu: 1, kind: EventKind::Guest(kind) });
    }
    h.0.sort_by_key(|event| event.ts);
    let mut analyzer = Analyzer::new(&meta(Matching::Echo), Options { seed: 1, ..Options::default() });
    let mut requests = Vec::new();
    let items =
        [Item::Change(Change { ts: T, what: clock })].into_iter().chain(h.0.into_iter().map(Item::Event));
    for item in items {
        analyzer.take(item, &mut |joined| requests.push(joined.request.clone()));
    }
    analyzer.finish(Counters { ended: T + EVERY, ..Counters::default() }, &mut |joined| {
        requests.push(joined.request.clone())
    });
    let [request] = &requests[..] else { panic!("{requests:?}") };
    let host = request.stages[Stage::Guest as usize].split.unwrap();
    assert_eq!((host.get(Guest), host.get(Run)), (950_000, 50_000));
    let parts = request.inside.unwrap().splits.map(Option::unwrap);
    assert_eq!(parts.iter().map(|split| split.get(Run)).sum::<u64>(), 50_000, "{parts:?}");
}

#[test]
fn the_cause_is_what_the_readers_vcpu_did() {
    let socket = |state| Slow { state, ..SOCKET };
    let app = Slow { state: Guest, in_app: true, ..SOCKET };
    for (slow, cause, part, state) in [
        (socket(Asleep), Cause::PacketWaitsForHaltedVcpu, GuestPart::SocketWait, Some(Asleep)),
        (socket(Ready), Cause::VcpuWaitsForCpu, GuestPart::SocketWait, Some(Ready)),
        (socket(Poll), Cause::VcpuPolls, GuestPart::SocketWait, Some(Poll)),
        (socket(Guest), Cause::ReaderWaitsInGuest, GuestPart::SocketWait, Some(Guest)),
        (socket(Run), Cause::VcpuExits, GuestPart::SocketWait, Some(Run)),
        // Nobody waited for the packet: the reader waits for something else.
        (Slow { woken: false, ..SOCKET }, Cause::GuestHalts, GuestPart::SocketWait, Some(Asleep)),
        (app, Cause::Application, GuestPart::App, Some(Guest)),
        (Slow { new_thread: true, ..app }, Cause::ThreadPerRequest, GuestPart::App, Some(Guest)),
    ] {
        let report = report(slow);
        let vm = &report.vms[0];
        println!("{}", vm.line());
        let first = &vm.findings[0];
        assert_eq!((first.cause, vm.findings.len()), (cause, 1), "{:#?}", vm.findings);
        assert!(first.share > 0.9 && first.share <= 1.0, "{first:?}");
        let evidence = &first.evidence[0];
        assert_eq!((evidence.stage, evidence.part, evidence.state), (Stage::Guest, Some(part), state));
        let named: Vec<_> = first.preempted_by.iter().map(|p| p.tid).collect();
        assert_eq!(named, if cause == Cause::VcpuWaitsForCpu { vec![HOG] } else { vec![] });
    }
}

/// A thread that starts on another vCPU than the one on which the packet was read: what these did meanwhile is not known, but
/// not why it took so long.
#[test]
fn a_thread_for_the_request_is_the_cause_wherever_it_starts() {
    let slow = Slow { state: Guest, in_app: true, new_thread: true, claims: 77, ..SOCKET };
    let report = report(slow);
    assert_eq!(splits(&report)[GuestPart::App as usize], None);
    let first = &report.vms[0].findings[0];
    assert_eq!((first.cause, first.evidence[0].state), (Cause::ThreadPerRequest, None), "{first:?}");
    let other = self::report(Slow { new_thread: false, ..slow });
    assert_eq!(other.vms[0].findings[0].cause, Cause::GuestTime);
}

/// A report that is missing shows by the next one: what was in between is not known, and nothing is guessed.
#[test]
fn what_was_lost_is_not_known() {
    for lost in 0..3 {
        let slow = Slow { state: Ready, lost: Some(lost), ..SOCKET };
        let report = report(slow);
        let of = splits(&report);
        assert_eq!(of.map(|split| split.is_some())[..2], [true; 2]);
        // The last one ends the request before: of the first request everything is known.
        assert_eq!(of[GuestPart::SocketWait as usize].is_some(), lost == 2, "{lost}: {of:?}");
        assert_eq!(report.vms[0].findings[0].cause, Cause::GuestTime, "{lost}");
    }
}

/// A guest that numbers its CPUs otherwise, or lies, spoils its own figures only: the host knows who had a CPU.
#[test]
fn a_guest_that_claims_another_vcpu_is_contradicted() {
    let (honest, lies) = (report(SOCKET), report(Slow { claims: TAKES.1, ..SOCKET }));
    let inside = lies.vms[0].inside.as_ref().unwrap();
    assert_eq!((inside.contradictions, splits(&lies)), (REQUESTS, [None; GuestPart::COUNT]));
    assert_eq!(lies.vms[0].findings[0].cause, Cause::GuestTime);
    assert_eq!(honest.vms[0].inside.as_ref().unwrap().contradictions, 0);
    assert_eq!((&lies.vms[0].stages, &lies.vms[0].total), (&honest.vms[0].stages, &honest.vms[0].total));
    // One that claims a CPU that the VM does not have says nothing.
    let unknown = report(Slow { claims: 77, ..SOCKET });
    assert_eq!(splits(&unknown).map(|split| split.is_some()), [true, true, false, false, true]);
}
