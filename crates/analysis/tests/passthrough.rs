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
/// The guest's previous interrupt was so long before that of a request, ns.
const PREVIOUS: u64 = 5_000_000;
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
    interrupt_with(VECTOR, t)
}

fn interrupt_with(vector: u8, t: u64) -> [Item; 2] {
    let i = DeviceInterrupt {
        began: T + t,
        irq: 30,
        delivery: Delivery::Accepted,
        vm: VM,
        vcpu: 1,
        vector,
        by_hardware: false,
    };
    let e = GuestEntry { vector, ..entry(t + 10 * US) };
    [host(t + 10 * US, EventKind::DeviceInterrupt(i)), host(t + 30 * US, EventKind::GuestEntry(e))]
}

/// A packet of a request `n`, or of its answer, at the device.
fn matched(n: u64, sent: bool, interrupted: Option<u64>, own: bool) -> guest::EventKind {
    guest::EventKind::Matched(Matched {
        print: 2 * n + u64::from(sent),
        key: n,
        role: Role::Either,
        sent,
        interrupted: interrupted.map_or(0, |after| T + after),
        previous: interrupted.map_or(0, |after| T + after - PREVIOUS),
        own: own && interrupted.is_some(),
        vendor: IDS.0,
        device: IDS.1,
    })
}

/// What a guest reports of request `n` that it receives at `t`, up to the answer 100 µs later.
fn handled(n: u64, t: u64, interrupted: Option<u64>, own: bool) -> Vec<Item> {
    use guest::EventKind::*;
    let (print, answer) = (2 * n, 2 * n + 1);
    vec![
        of_guest(t, Received { print, interrupted: interrupted.map_or(0, |after| T + after) }),
        of_guest(t, matched(n, false, interrupted, own)),
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
    for item in items {
        analyzer.take(item, &mut |_| {});
    }
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
    assert_eq!((of.counts.seen, of.counts.complete, of.without_interrupt), (2, 2, 0), "{of:?}");
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
    for interrupted in [Some(10_040_000), None] {
        let items = chain([interrupt(10_000_000).to_vec(), handled(1, 10_060_000, interrupted, false)]);
        let (all, report) = run(items);
        let of = requests(&report);
        assert_eq!((of.counts.complete, of.without_interrupt), (1, 1), "{of:?}");
        assert!(of.total.is_none() && of.stages.is_empty() && of.without_interrupt_total.is_some());
        assert_eq!((all[0].start, all[0].total), (T + 10_060_000, 100 * US));
        let unseen: Vec<bool> = all[0].stages.iter().map(Option::is_none).collect();
        assert_eq!(unseen, [true, true, true, false, false, false, false]);
    }
}

#[test]
fn an_interrupt_that_is_not_certain_is_not_guessed() {
    // None was seen; one that the clocks cannot tell from the guest's previous interrupt; that of a request before; one from before the
    // previous interrupt, which may have been of another device.
    let unseen = chain([handled(1, 10_000_000, Some(9_990_000), true)]);
    let close =
        chain([interrupt(10_000_000).to_vec(), handled(1, 16_000_000, Some(15_030_000 + ERROR / 2), true)]);
    let used = chain([request(1, 10_000_000), handled(2, 20_000_000, Some(19_990_000), true)]);
    let old = chain([interrupt(10_000_000).to_vec(), handled(1, 16_000_000, Some(15_900_000), true)]);
    for (items, complete) in [(unseen, 0), (close, 0), (used, 1), (old, 0)] {
        let (_, report) = run(items);
        assert_eq!(requests(&report).counts.complete, complete);
        assert_eq!(reason(&report), (Outcome::Incomplete, Reason::InterruptUnknown));
    }
}

/// An entry is told by its vector, and the guest takes one interrupt with it.
#[test]
fn interrupts_of_two_devices_on_one_vcpu_are_told_apart() {
    let items = chain([
        interrupt_with(VECTOR + 1, 10_000_000).to_vec(),
        handled(1, 10_300_000, Some(10_290_000), true),
        interrupt(10_250_000).to_vec(),
    ]);
    // The guest was interrupted by the first one at 10.04 ms.
    let (all, _) = run(with_previous(items, 10_040_000));
    assert_eq!(all[0].start, T + 10_250_000);
}

/// All requests, with another time of the guest's previous interrupt.
fn with_previous(mut items: Vec<Item>, after: u64) -> Vec<Item> {
    for item in &mut items {
        if let Item::Event(Event { kind: EventKind::Guest(guest::EventKind::Matched(m)), .. }) = item
            && !m.sent
        {
            m.previous = T + after;
        }
    }
    items
}

/// Where hardware delivers them, the entry does not say which it was with.
#[test]
fn interrupts_of_several_vectors_that_hardware_delivers_are_not_told_apart() {
    let with = |vector: u8| {
        let mut items = interrupt(10_000_000).to_vec();
        items.insert(0, interrupt_with(vector, 10_000_000 - US)[0].clone());
        for item in &mut items {
            match item {
                Item::Event(Event { kind: EventKind::DeviceInterrupt(i), .. }) => i.by_hardware = true,
                Item::Event(Event { kind: EventKind::GuestEntry(e), .. }) => e.vector = 0,
                _ => {}
            }
        }
        run(chain([items, handled(1, 10_050_000, Some(10_040_000), true)]))
    };
    assert_eq!(with(VECTOR).0[0].start, T + 10_000_000 - US);
    assert_eq!(reason(&with(VECTOR + 1).1), (Outcome::Incomplete, Reason::InterruptUnknown));
}

/// Another interrupt may have been the guest's.
#[test]
fn around_an_interrupt_that_no_vcpu_was_seen_to_accept_none_is_certain() {
    let mut items = request(1, 10_000_000);
    let Item::Event(unknown) = interrupt(9_900_000)[0].clone() else { unreachable!() };
    let EventKind::DeviceInterrupt(i) = unknown.kind else { unreachable!() };
    let kind = EventKind::DeviceInterrupt(DeviceInterrupt { delivery: Delivery::Unknown, ..i });
    items.insert(0, Item::Event(Event { kind, ..unknown }));
    items.extend(request(2, 1_000_000_000));
    let (all, report) = run(chain([items]));
    assert_eq!(all.iter().map(|r| r.key).collect::<Vec<_>>(), [2]);
    assert_eq!(reason(&report), (Outcome::Incomplete, Reason::InterruptUnknown));
}

/// Its guest entry was not seen, or it had none.
#[test]
fn an_interrupt_that_waits_for_too_long_belongs_to_no_entry() {
    let [stale, _] = interrupt(10_000_000);
    let (all, report) = run(chain([vec![stale], request(1, 6_000_000_000)]));
    assert_eq!((all[0].start, all[0].total), (T + 6_000_000_000, 150 * US));
    assert_eq!(passthrough(&report).until_guest_entry.unwrap().count, 1);
}

#[test]
fn an_entry_is_remembered_until_a_slow_request_is_answered() {
    let mut items = request(1, 10_000_000);
    let answered = items.split_off(6);
    for n in 1..6_000 {
        items.extend(interrupt(11_000_000 + n * 100 * US));
    }
    let slow = |item: Item| match item {
        Item::Event(event) => Item::Event(Event { ts: T + 1_000_000_000, ..event }),
        other => other,
    };
    items.extend(answered.into_iter().map(slow));
    let (all, report) = run(chain([items]));
    assert_eq!((all.len(), all[0].start), (1, T + 10_000_000), "{:?}", requests(&report));
}

#[test]
fn reports_of_an_answer_that_was_left_out_are_not_taken_for_the_next_one() {
    // Of the first request the interrupt is not known. The second is equal to it.
    let first = handled(1, 10_000_000, Some(9_990_000), true);
    let (all, _) = run(chain([first, request(1, 20_000_000)]));
    assert_eq!((all.len(), all[0].total), (1, 150 * US));
    // The first one's answer comes too late.
    let mut first = request(1, 10_000_000);
    let late = |item: Item| match item {
        Item::Event(event) => Item::Event(Event { ts: event.ts + 6_000_000_000, ..event }),
        other => other,
    };
    let answer: Vec<Item> = first.split_off(6).into_iter().map(late).collect();
    let mut items = chain([first, interrupt(5_500_000_000).to_vec(), answer, request(1, 6_500_000_000)]);
    for item in &mut items {
        if let Item::Event(Event { kind: EventKind::Guest(guest::EventKind::Matched(m)), .. }) = item {
            m.role = if m.sent { Role::Final } else { Role::Request };
        }
    }
    let (all, report) = run(items);
    assert_eq!((all.len(), all[0].total), (1, 150 * US), "{:?}", requests(&report));
}

/// A packet that another PCI device has received is no new one of the NIC.
#[test]
fn what_another_device_receives_does_not_end_a_request() {
    let mut items = request(1, 10_000_000);
    let Item::Event(Event { kind: EventKind::Guest(guest::EventKind::Matched(m)), .. }) = items[3] else {
        unreachable!()
    };
    let other = guest::EventKind::Matched(Matched { device: m.device + 1, ..m });
    items.insert(6, of_guest(10_085_000, other));
    let (all, _) = run(chain([items]));
    assert_eq!((all.len(), all[0].total), (1, 150 * US));
}

/// The table of one guest is full; that of the other is not.
#[test]
fn a_guest_that_floods_costs_no_request_of_another() {
    const OTHER: StreamId = StreamId(2);
    let mapping = ClockMapping { own: T, host: T, rate: ClockMapping::EQUAL, error: ERROR };
    let pid = meta(Matching::Echo).vms[1].pid;
    let nic = GivenNic { vendor: IDS.0, device: IDS.1, ..GivenNic::default() };
    let mut items = vec![
        Item::Change(Change { ts: T, what: Changed::Clock { stream: OTHER, vm: pid, mapping } }),
        Item::Change(Change { ts: T, what: Changed::Given { pid, nics: vec![nic] } }),
    ];
    let mut slow = request(1, 10_000_000);
    let answer: Vec<Item> = slow
        .split_off(8)
        .into_iter()
        .map(|item| match item {
            Item::Event(event) => Item::Event(Event { ts: event.ts + 1_000_000_000, ..event }),
            other => other,
        })
        .collect();
    items.extend(slow);
    for n in 0..70_000 {
        let kind = EventKind::Guest(matched(n, false, None, false));
        items.push(Item::Event(Event { ts: T + 100_000_000 + n * US, stream: OTHER, cpu: 0, kind }));
    }
    items.extend(answer);
    let (all, report) = run(chain([items]));
    assert_eq!(all.iter().map(|r| (r.vm, r.key)).collect::<Vec<_>>(), [(0, 1)]);
    let other = report.vms[1].passthrough.as_ref().unwrap().requests.as_ref().unwrap();
    assert!(other.left_out.iter().any(|l| l.reason == Reason::Evicted), "{other:?}");
}

/// A recording may say anything.
#[test]
fn an_interrupt_that_begins_after_the_answer_is_out_of_order() {
    let mut items = request(1, 10_000_000);
    if let Item::Event(Event { kind: EventKind::DeviceInterrupt(i), .. }) = &mut items[0] {
        i.began = T + 3_000_000_000;
    }
    for item in &mut items {
        let Item::Event(event) = item else { continue };
        event.ts = T + 10_010_000;
        if let EventKind::Guest(guest::EventKind::Sent { began, .. }) = &mut event.kind {
            *began = event.ts;
        }
    }
    let (all, _) = run(chain([items]));
    assert!(all.is_empty());
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
    // The answer may have been among reports that were lost.
    let mut unanswered = complete.clone();
    unanswered.pop();
    unanswered.push(Item::Event(Event {
        ts: T + 10_100_000,
        stream: GUEST,
        cpu: 0,
        kind: EventKind::Lost(Lost { since: T + 10_090_000, count: 1 }),
    }));
    assert_eq!(reason(&run(chain([unanswered])).1), (Outcome::Unanswered, Reason::ReportMissing));
    let lost = host(10_020_000, EventKind::Lost(Lost { since: T + 10_000_000, count: 1 }));
    let (_, report) = run(chain([complete, vec![lost.clone()]]));
    assert_eq!(reason(&report), (Outcome::Incomplete, Reason::EventsLost));
    // Also if the interrupt is what was lost.
    let (_, report) = run(chain([handled(1, 10_050_000, Some(10_040_000), true), vec![lost]]));
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
    let delivery = given.until_guest_entry.unwrap();
    assert_eq!((delivery.count, delivery.min / US, delivery.max / US), (4, 30, 50));
    assert!(given.requests.is_none());
}

/// A client that always sends the same: what the guest sends once more is an answer, and no request of its own.
#[test]
fn an_answer_that_is_sent_twice_hides_no_equal_request() {
    let mut items = begin();
    for t in [10_000, 20_000, 30_000].map(|after| after * US) {
        items.extend(request(1, t));
        items.push(of_guest(t + 160 * US, matched(1, true, None, false)));
    }
    let (_, report) = run(items);
    let counts = requests(&report).counts;
    assert_eq!((counts.seen, counts.complete), (3, 3));
}

#[test]
fn requests_by_a_nic_that_was_taken_away_stay_in_the_report() {
    let mut items = begin();
    items.extend(handled(1, 50 * US, None, false));
    let taken = Changed::Given { pid: VM, nics: Vec::new() };
    items.push(Item::Change(Change { ts: T + 1_000 * US, what: taken }));
    let (_, report) = run(items);
    assert_eq!((passthrough(&report).nics.len(), requests(&report).without_interrupt), (0, 1));
}
