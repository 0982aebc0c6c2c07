//! Requests by NICs that were given to VMs: histories made by hand.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::guest::{self, Matched};
use teiji_model::host::GivenNic;
use teiji_model::report::{
    Counters, Outcome, Passthrough, PassthroughRequest, PassthroughRequests, Reason, Report,
};
use teiji_model::stage::{Split, ThreadState};
use teiji_model::stream::{Change, Changed, ClockMapping, Item, StreamId};

const GUEST: StreamId = StreamId(1);
const ERROR: u64 = 1_000;
const IDS: (u16, u16) = (0x8086, 0x10ca);
const VECTOR: u8 = 41;
/// µs, in ns.
const US: u64 = 1_000;

/// A VM with a given NIC, whose guest reports.
fn begin() -> Vec<Item> {
    let mapping = ClockMapping { own: T, host: T, rate: ClockMapping::EQUAL, error: ERROR };
    let clock = Changed::Clock { stream: GUEST, vm: VM, mapping };
    let nic = GivenNic { vendor: IDS.0, device: IDS.1, ..GivenNic::default() };
    let given = Changed::Given { pid: VM, nics: vec![nic] };
    let state = EventKind::VcpuState(VcpuState {
        vm: VM,
        vcpu: 1,
        index: Some(1),
        state: ThreadState::Guest,
        clock: Split::default(),
        preempted_by: 0,
    });
    let event = Event { ts: T, stream: StreamId::HOST, cpu: 0, kind: state };
    vec![
        Item::Change(Change { ts: T, what: clock }),
        Item::Change(Change { ts: T, what: given }),
        Item::Event(event),
    ]
}

fn host(after: u64, kind: EventKind) -> Item {
    Item::Event(Event { ts: T + after, stream: StreamId::HOST, cpu: 0, kind })
}

fn of_guest(after: u64, kind: guest::EventKind) -> Item {
    Item::Event(Event { ts: T + after, stream: GUEST, cpu: 1, kind: EventKind::Guest(kind) })
}

/// An interrupt whose handler begins at `t`, and the guest entry with it 30 µs later.
fn interrupt(t: u64) -> [Item; 2] {
    let i = DeviceInterrupt {
        began: T + t,
        irq: 30,
        delivery: Delivery::Accepted,
        vm: VM,
        vcpu: 1,
        index: Some(1),
        vector: VECTOR,
        state: Some(ThreadState::Asleep),
        clock: Split::default(),
    };
    let e = GuestEntry { vector: VECTOR, ..entry(t + 10 * US) };
    [host(t + 10 * US, EventKind::DeviceInterrupt(i)), host(t + 30 * US, EventKind::GuestEntry(e))]
}

/// A packet of a request `n`, or of its answer, at the device.
fn matched(n: u64, sent: bool, interrupted: Option<u64>, first: bool) -> guest::EventKind {
    guest::EventKind::Matched(Matched {
        print: 2 * n + u64::from(sent),
        key: n,
        role: Role::Either,
        sent,
        interrupted: interrupted.map_or(0, |after| T + after),
        first,
        vendor: IDS.0,
        device: IDS.1,
    })
}

/// What a guest reports of request `n` that it receives at `t`, up to the answer 100 µs later.
fn handled(n: u64, t: u64, interrupted: Option<u64>, first: bool) -> Vec<Item> {
    use guest::EventKind::*;
    let (print, answer) = (2 * n, 2 * n + 1);
    vec![
        of_guest(t, Received { print, interrupted: interrupted.map_or(0, |after| T + after) }),
        of_guest(t, matched(n, false, interrupted, first)),
        of_guest(t + 10 * US, Queued { print, backlog: 0 }),
        of_guest(t + 30 * US, Read { print, tid: 9, woken: 0, running: 0, woken_by: 0 }),
        of_guest(t + 60 * US, Sent { print: answer, tid: 9, began: T + t + 50 * US }),
        of_guest(t + 100 * US, Handed { print: answer }),
        of_guest(t + 100 * US, matched(n, true, None, false)),
    ]
}

/// A request whose interrupt comes at `t`: received 50 µs later.
fn request(n: u64, t: u64) -> Vec<Item> {
    let mut all = interrupt(t).to_vec();
    all.extend(handled(n, t + 50 * US, Some(t + 40 * US), true));
    all
}

fn run(items: Vec<Item>) -> (Vec<PassthroughRequest>, Report) {
    let mut analyzer =
        Analyzer::new(&meta(Matching::Echo), Options { passthrough: true, ..Options::default() });
    let ended = items.iter().filter_map(Item::event).map(|e| e.ts).max().unwrap() + 10_000_000_000;
    items.into_iter().for_each(|item| analyzer.take(item, &mut |_| {}));
    let counters = Counters { ended, ..Counters::default() };
    analyzer.end(&counters, &mut |_| {});
    let all = analyzer.passthrough();
    (all, analyzer.finish(counters, &mut |_| {}))
}

fn passthrough(report: &Report) -> &Passthrough {
    report.vms[0].passthrough.as_ref().unwrap()
}

fn requests(report: &Report) -> &PassthroughRequests {
    passthrough(report).requests.as_ref().unwrap()
}

/// The only reason for which a request is not complete.
fn reason(report: &Report) -> (Outcome, Reason) {
    let all = &requests(report).left_out;
    assert_eq!(all.len(), 1, "{all:?}");
    (all[0].outcome, all[0].reason)
}

fn chain(parts: impl IntoIterator<Item = Vec<Item>>) -> Vec<Item> {
    begin().into_iter().chain(parts.into_iter().flatten()).collect()
}

#[test]
fn a_request_is_followed_from_the_interrupt_to_the_guests_driver() {
    let (all, report) = run(chain([request(1, 10_000_000), request(2, 20_000_000)]));
    let of = requests(&report);
    assert_eq!((of.counts.seen, of.counts.complete, of.polled), (2, 2, 0), "{of:?}");
    for (request, start) in all.iter().zip([10_000_000, 20_000_000]) {
        assert_eq!((request.vm, request.start, request.total), (0, T + start, 150 * US));
        let stages: Vec<u64> = request.stages.iter().map(|ns| ns.unwrap() / US).collect();
        assert_eq!(stages, [10, 20, 20, 10, 20, 20, 50]);
    }
    assert_eq!(of.total.unwrap().max, of.total.unwrap().p50);
    let given = passthrough(&report);
    assert_eq!((given.interrupts, given.not_accepted, given.nics.len()), (2, 0, 1));
    // Requests by taps are something else.
    assert_eq!(report.vms[0].requests.seen, 0);
    assert!(report.vms[1].passthrough.is_none());
}

#[test]
fn a_packet_that_a_poll_found_begins_when_the_guest_received_it() {
    // The second packet of a poll, and one that the driver found when it looked once more.
    for interrupted in [Some(40 * US), None] {
        let items = chain([interrupt(0).to_vec(), handled(1, 60 * US, interrupted, false)]);
        let (all, report) = run(items);
        let of = requests(&report);
        assert_eq!((of.counts.complete, of.polled), (1, 1), "{of:?}");
        assert!(of.total.is_none() && of.stages.is_empty() && of.polled_total.is_some());
        assert_eq!((all[0].start, all[0].total), (T + 60 * US, 100 * US));
        let unseen: Vec<bool> = all[0].stages.iter().map(Option::is_none).collect();
        assert_eq!(unseen, [true, true, true, false, false, false, false]);
    }
}

#[test]
fn an_interrupt_that_is_not_certain_is_not_guessed() {
    // None was seen; one that the clocks cannot tell from it; that of the request before.
    let unseen = chain([handled(1, 10_000_000, Some(9_990_000), true)]);
    let mut close = interrupt(0).to_vec();
    close.extend(interrupt(10_000_000));
    let close = chain([close, handled(1, 10_050_000, Some(10_030_000 + ERROR / 2), true)]);
    let used = chain([request(1, 10_000_000), handled(2, 20_000_000, Some(19_990_000), true)]);
    for (items, complete) in [(unseen, 0), (close, 0), (used, 1)] {
        let (_, report) = run(items);
        assert_eq!(requests(&report).counts.complete, complete);
        assert_eq!(reason(&report), (Outcome::Incomplete, Reason::InterruptUnknown));
    }
}

#[test]
fn a_report_that_is_missing_is_said_to_be() {
    let complete = request(1, 10_000_000);
    for missing in 4..=6 {
        let mut items = complete.clone();
        items.remove(missing);
        let (_, report) = run(chain([items]));
        assert_eq!(reason(&report), (Outcome::Incomplete, Reason::ReportMissing), "{missing}");
    }
    let mut unanswered = complete.clone();
    unanswered.pop();
    assert_eq!(reason(&run(chain([unanswered])).1), (Outcome::Unanswered, Reason::NoAnswer));
    let lost = host(10_020_000, EventKind::Lost(Lost { since: T + 10_000_000, count: 1 }));
    let (_, report) = run(chain([complete, vec![lost]]));
    assert_eq!(reason(&report), (Outcome::Incomplete, Reason::EventsLost));
}

#[test]
fn requests_with_the_same_key_at_once_are_ambiguous() {
    let (first, second) = (request(1, 10_000_000), request(1, 10_060_000));
    let (_, report) = run(chain([first, second]));
    let of = requests(&report);
    assert_eq!((of.counts.seen, of.counts.ambiguous, of.counts.complete), (2, 2, 0), "{of:?}");
}

#[test]
fn what_the_guest_itself_asks_and_what_other_devices_have_is_no_request_by_the_nic() {
    let asks = vec![of_guest(1_000, matched(1, true, None, false))];
    let answered = handled(1, 10_000_000, Some(9_990_000), true);
    let (_, report) = run(chain([asks, answered[..2].to_vec()]));
    assert!(passthrough(&report).requests.is_none(), "{report:?}");

    let mut other = request(1, 10_000_000);
    for item in &mut other {
        if let Item::Event(Event { kind: EventKind::Guest(guest::EventKind::Matched(m)), .. }) = item {
            m.device += 1;
        }
    }
    let (_, report) = run(chain([other]));
    assert!(passthrough(&report).requests.is_none(), "{report:?}");
}

/// Without a program in the guest the interrupts are seen all the same.
#[test]
fn interrupts_are_counted_and_timed_without_the_guest() {
    let mut items = interrupt(0).to_vec();
    items.extend(interrupt(1_000_000));
    let unknown = |kind| match kind {
        EventKind::DeviceInterrupt(i) => {
            EventKind::DeviceInterrupt(DeviceInterrupt { delivery: Delivery::Unknown, ..i })
        }
        other => other,
    };
    let Item::Event(last) = interrupt(2_000_000)[0].clone() else { unreachable!() };
    items.push(Item::Event(Event { kind: unknown(last.kind), ..last }));
    // Two before one guest entry.
    let [first, entered] = interrupt(3_000_000);
    items.extend([first, interrupt(2_980_000)[0].clone(), entered]);
    let (_, report) = run(chain([items]));
    let given = passthrough(&report);
    assert_eq!((given.interrupts, given.not_accepted), (5, 1));
    let delivery = given.delivery.unwrap();
    assert_eq!((delivery.count, delivery.min / US, delivery.max / US), (4, 30, 50));
    assert!(given.requests.is_none());
}
