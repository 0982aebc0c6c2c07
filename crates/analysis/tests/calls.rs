//! SIP calls: the times of their messages, and requests that are sent again.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::guest;
use teiji_model::report::{Call, CallMessage, Counters, Groups, Joined, Outcome, Reason, Report, SentAgain};
use teiji_model::stream::{Change, Changed, ClockMapping, Item, StreamId};

const MS: u64 = 1_000_000;
const GUEST: StreamId = StreamId(1);
/// How long after a request of [`History::request`] has come it is in the guest, ns.
const ENTERS: u64 = 50_000;

/// A message of call `call`: part 1 is INVITE, 2 is BYE.
fn sip(call: u64, part: u64, role: Role) -> Option<Match> {
    let group_role = if part == 1 { GroupRole::Begins } else { GroupRole::Ends };
    Some(Match { key: call * 10 + part, role, group: call, group_role })
}

fn groups(report: &Report) -> &Groups {
    report.vms[0].groups.as_ref().unwrap()
}

/// The messages of the only call: which, µs after the INVITE, copies.
fn steps(report: &Report) -> Vec<(CallMessage, u64, u8)> {
    let [call] = &groups(report).slowest[..] else { panic!("{report:?}") };
    call.messages.iter().map(|step| (step.message, step.at / 1000, step.copies)).collect()
}

/// A packet that the host receives and gives to the guest, which does not answer it.
fn one_way(h: &mut History, t: u64, fp: u64, matching: Option<Match>) {
    h.packet(t, Point::HostRx, fp, NIC).matched(t + 10_000, Point::TapEnqueue, fp, TAP, matching).packet(
        t + 20_000,
        Point::TapDequeue,
        fp,
        TAP,
    );
}

fn ack(call: u64) -> Option<Match> {
    Some(Match { group_role: GroupRole::Within, ..sip(call, 1, Role::OneWay).unwrap() })
}

/// A call with each of its messages.
fn call() -> History {
    let mut h = History::default();
    h.request(0, 1, sip(7, 1, Role::Request));
    h.matched(200_000, Point::TapSend, 2, TAP, sip(7, 1, Role::Trying));
    h.matched(300_000, Point::TapSend, 3, TAP, sip(7, 1, Role::Provisional));
    h.response(400_000, 4, sip(7, 1, Role::Final));
    one_way(&mut h, 600_000, 5, ack(7));
    h.request(1_000_000, 6, sip(7, 2, Role::Request));
    h.response(1_200_000, 8, sip(7, 2, Role::Final));
    h
}

fn sorted(h: &History) -> Vec<Event> {
    let mut events = h.0.clone();
    events.sort_by_key(|event| event.ts);
    events
}

#[test]
fn every_message_of_a_call_has_its_time() {
    let report = run(&meta(Matching::Sip), &call().0).report;
    use CallMessage::*;
    let wanted = [
        (Invite, 0, 1),
        (Trying, 200, 1),
        (Provisional, 300, 1),
        // When it is handed to the host, 10 µs after the kick.
        (Final, 410, 1),
        (Ack, 600, 1),
        (Bye, 1000, 1),
        (ByeFinal, 1210, 1),
    ];
    assert_eq!(steps(&report), wanted);
    let groups = groups(&report);
    let of_all: Vec<_> = groups.messages.iter().map(|m| (m.message, m.at.max / 1000, m.copies)).collect();
    assert_eq!(of_all, wanted.map(|(message, at, copies)| (message, at, u64::from(copies) - 1)));
    let [Call { start, total, outside, .. }] = groups.slowest[..] else { panic!("{groups:?}") };
    assert_eq!((start, total, outside), (T, 1_240_000, 1_000_000 - 440_000));
}

/// Of a request within the call, such as another INVITE, nothing is taken for a message of the call.
#[test]
fn other_requests_of_a_call_are_none_of_its_messages() {
    let mut h = call();
    let again = |role| Some(Match { key: 79, role, group: 7, group_role: GroupRole::Within });
    h.request(700_000, 21, again(Role::Request));
    h.matched(
        760_000,
        Point::TapSend,
        22,
        TAP,
        Some(Match { group_role: GroupRole::Begins, ..again(Role::Trying).unwrap() }),
    );
    h.response(800_000, 23, Some(Match { group_role: GroupRole::Begins, ..again(Role::Final).unwrap() }));
    one_way(&mut h, 900_000, 24, again(Role::OneWay));
    let report = run(&meta(Matching::Sip), &sorted(&h)).report;
    assert_eq!(steps(&report), steps(&run(&meta(Matching::Sip), &call().0).report));
    assert_eq!(groups(&report).complete, 1);
}

#[test]
fn copies_of_each_message_are_counted() {
    let mut h = call();
    // The guest answers again as no ACK comes, and the client acknowledges again.
    h.response(500_000, 31, sip(7, 1, Role::Final));
    one_way(&mut h, 700_000, 32, ack(7));
    let report = run(&meta(Matching::Sip), &sorted(&h)).report;
    let copies: Vec<_> = steps(&report).into_iter().filter(|(.., copies)| *copies > 1).collect();
    assert_eq!(copies, [(CallMessage::Final, 410, 2), (CallMessage::Ack, 600, 2)]);
    assert_eq!((report.vms[0].requests.complete, report.vms[0].requests.retransmitted), (2, 0));
}

/// Copies 1 and 2 of a request, and how it was answered: 500 ms after the first, and 100 µs after the second.
fn twice(events: impl FnOnce(&mut History)) -> (Report, Vec<Joined>) {
    let mut h = History::default();
    events(&mut h);
    h.response(500 * MS + 150_000, 8, sip(7, 1, Role::Final));
    let out = run(&meta(Matching::Sip), &sorted(&h));
    (out.report, out.joined)
}

fn sent_again(report: &Report) -> SentAgain {
    report.vms[0].requests.sent_again
}

#[test]
fn the_copy_that_reached_the_guest_is_followed() {
    let request = || sip(7, 1, Role::Request);
    // On the tap; and before it.
    let on_tap = |h: &mut History| {
        h.packet(0, Point::HostRx, 1, NIC).matched(10_000, Point::TapEnqueue, 1, TAP, request());
        h.dropped(11_000, 1, TAP, request());
    };
    let before = |h: &mut History| {
        h.packet(0, Point::HostRx, 1, NIC).dropped(11_000, 1, TAP, request());
    };
    for (i, first) in [&on_tap as &dyn Fn(&mut History), &before].into_iter().enumerate() {
        // A copy may have the fingerprint of the first.
        for fp in [1, 2] {
            let (report, joined) = twice(|h| {
                first(h);
                h.request(500 * MS, fp, request());
            });
            let [one] = &joined[..] else { panic!("{i} {fp}: {:?}", report.vms[0].left_out) };
            assert_eq!((one.request.start, one.request.total), (T + 500 * MS, 190_000));
            assert_eq!((one.request.copies, one.request.answered), (2, Some(2)));
            assert_eq!(sent_again(&report), SentAgain { requests: 1, later: 1, ..SentAgain::default() });
        }
    }
}

#[test]
fn without_the_guests_reports_two_copies_in_it_are_not_told_apart() {
    let (report, joined) = twice(|h| {
        h.request(0, 1, sip(7, 1, Role::Request)).request(500 * MS, 2, sip(7, 1, Role::Request));
    });
    let [one] = &joined[..] else { panic!("{report:?}") };
    assert_eq!((one.request.start, one.request.copies, one.request.answered), (T, 2, None));
    assert_eq!(sent_again(&report), SentAgain { requests: 1, unknown: 1, ..SentAgain::default() });
}

#[test]
fn a_copy_that_comes_when_the_response_leaves_is_not_the_one_that_was_answered() {
    // It is in the guest 35 µs after the kick.
    let (report, joined) = twice(|h| {
        h.request(0, 1, sip(7, 1, Role::Request)).request(500 * MS + 135_000, 2, sip(7, 1, Role::Request));
    });
    assert_eq!((joined[0].request.start, joined[0].request.answered), (T, Some(1)));
    assert_eq!(sent_again(&report), SentAgain { requests: 1, first: 1, ..SentAgain::default() });
}

/// What a guest does with the copies of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// Its firewall drops it.
    Loses,
    /// It comes to a socket, and nobody reads it.
    Leaves,
    /// The application reads it.
    Reads,
}

/// A request whose copies come 500 ms apart; whether anything of the guest is lost.
fn in_guest(does: &[Does], prints_differ: bool, lost: bool) -> (Report, Vec<Joined>) {
    let mut analyzer = Analyzer::new(&meta(Matching::Sip), Options { seed: 1, ..Options::default() });
    let mut joined = Vec::new();
    for (_, item) in history_in_guest(does, prints_differ, lost) {
        analyzer.take(item, &mut |one| joined.push(one.clone()));
    }
    let counters = Counters { ended: T + 10_000 * MS, ..Counters::default() };
    let report = analyzer.finish(counters, &mut |one| joined.push(one.clone()));
    (report, joined)
}

/// The same by time.
fn history_in_guest(does: &[Does], prints_differ: bool, lost: bool) -> Vec<(u64, Item)> {
    let mapping = ClockMapping { own: T, host: T, rate: ClockMapping::EQUAL, error: 1_000 };
    let clock = Changed::Clock { stream: GUEST, vm: VM, mapping };
    let mut items = vec![(0, Item::Change(Change { ts: T, what: clock }))];
    let mut h = History::default();
    let mut told = |at: u64, kind| {
        let event = Event { ts: T + at, stream: GUEST, cpu: 1, kind };
        items.push((T + at, Item::Event(event)));
    };
    let print = |fp: u64| fp ^ 0xabc;
    let mut last = 0;
    for (i, does) in (0u64..).zip(does) {
        let (t, fp) = (i * 500 * MS, if prints_differ { 1 + i } else { 1 });
        h.request(t, fp, sip(7, 1, Role::Request));
        h.at(t + 10_000, EventKind::Print(Print { fingerprint: fp, print: print(fp) }));
        let print = print(fp);
        last = t + ENTERS;
        told(last + 5_000, EventKind::Guest(guest::EventKind::Received { print, interrupted: 0 }));
        if *does != Does::Loses {
            told(last + 10_000, EventKind::Guest(guest::EventKind::Queued { print, backlog: 0 }));
        }
        if *does == Does::Reads {
            let read = guest::EventKind::Read { print, tid: 40, woken: 0, running: 0, woken_by: 0 };
            told(last + 20_000, EventKind::Guest(read));
        }
    }
    if lost {
        told(last - 1_000, EventKind::Lost(Lost { since: T + last - 2_000, count: 1 }));
    }
    let sent = guest::EventKind::Sent { print: print(99), tid: 40, began: T + last + 30_000 };
    told(last + 35_000, EventKind::Guest(sent));
    h.response(last + 40_000, 99, sip(7, 1, Role::Final));
    h.at(last + 50_000, EventKind::Print(Print { fingerprint: 99, print: print(99) }));
    items.extend(h.0.iter().map(|event| (event.ts, Item::Event(*event))));
    items.sort_by_key(|(ts, _)| *ts);
    items
}

/// A guest's event that comes too late is not recorded: a replay knows of it by the loss that is told, and so does a live trace.
#[test]
fn an_event_that_is_refused_makes_a_difference_only_by_the_loss_that_is_told() {
    let kind = EventKind::Guest(guest::EventKind::Handed { print: 5 });
    let late = Event { ts: T, stream: GUEST, cpu: 1, kind };
    let loss = Event { kind: EventKind::Lost(Lost { since: T, count: 1 }), ..late };
    for loss_is_told in [false, true] {
        let mut history = history_in_guest(&[Does::Loses, Does::Reads], false, false);
        let second_entered = T + 500 * MS + ENTERS;
        let at = history.partition_point(|(ts, _)| *ts <= second_entered);
        let rest = history.split_off(at);
        let further = [Some(late), loss_is_told.then_some(loss)].into_iter().flatten();
        history.extend(further.map(|event| (second_entered, Item::Event(event))));
        history.extend(rest);
        let new = || Analyzer::new(&meta(Matching::Sip), Options { seed: 1, ..Options::default() });
        let (mut live, mut replay) = (new(), new());
        let mut refused = 0;
        for (_, item) in history {
            let used = live.take(item.clone(), &mut |_| ());
            refused += u32::from(!used);
            if used {
                replay.take(item, &mut |_| ());
            }
        }
        let counters = || Counters { ended: T + 10_000 * MS, ..Counters::default() };
        let reports = [live, replay].map(|analyzer| analyzer.finish(counters(), &mut |_| ()));
        assert!(refused == 1 && reports[0] == reports[1], "{refused} {loss_is_told}");
        let again = sent_again(&reports[1]);
        assert_eq!((again.later, again.unknown), if loss_is_told { (0, 1) } else { (1, 0) });
    }
}

#[test]
fn the_copy_that_the_application_took_is_followed() {
    use Does::*;
    for prints_differ in [false, true] {
        // The first was lost in the guest: the times are those of the second.
        let (report, joined) = in_guest(&[Loses, Reads], prints_differ, false);
        let [one] = &joined[..] else { panic!("{report:?}") };
        assert_eq!((one.request.start, one.request.answered), (T + 500 * MS, Some(2)), "{prints_differ}");
        assert_eq!(sent_again(&report), SentAgain { requests: 1, later: 1, ..SentAgain::default() });
        let parts = one.request.inside.unwrap().parts.map(|ns| ns / 1_000);
        assert_eq!(parts, [5, 5, 10, 10, 10], "{prints_differ}");
        // Both were read.
        let (report, joined) = in_guest(&[Reads, Reads], prints_differ, false);
        assert_eq!((joined[0].request.start, joined[0].request.answered), (T, None), "{prints_differ}");
        assert_eq!(sent_again(&report).unknown, 1);
        // A report may be missing.
        let (report, joined) = in_guest(&[Loses, Reads], prints_differ, true);
        assert_eq!((joined[0].request.start, joined[0].request.answered), (T, None), "{prints_differ}");
        assert_eq!(sent_again(&report).unknown, 1);
        // The first is not it, and either of the others may be.
        let (report, joined) = in_guest(&[Loses, Reads, Reads], prints_differ, false);
        assert_eq!(joined, []);
        let left = &report.vms[0].left_out;
        assert_eq!((left[0].outcome, left[0].reason), (Outcome::Ambiguous, Reason::OtherCopy), "{left:?}");
        assert_eq!(sent_again(&report), SentAgain { requests: 1, ..SentAgain::default() });
        // The second came when the first had been read: the first was answered.
        let (_, joined) = in_guest(&[Reads, Leaves], prints_differ, false);
        assert_eq!((joined[0].request.start, joined[0].request.answered), (T, Some(1)), "{prints_differ}");
    }
    // One that lies in the socket when another comes: what is read may be either, if they are identical.
    let answered =
        [false, true].map(|differ| in_guest(&[Leaves, Reads], differ, false).1[0].request.answered);
    assert_eq!(answered, [None, Some(2)]);
}

proptest! {
    /// Calls overlap, and each message may be sent again. Nothing is counted twice, and what each call has is found again.
    #[test]
    fn calls_are_what_was_sent(
        calls in prop::collection::vec((0..40u64, 1..5u64, prop::array::uniform7(0..3u8)), 1..20),
    ) {
        let mut h = History::default();
        let mut fp = 0;
        let mut wanted = Vec::new();
        let mut copies = [0; CallMessage::COUNT];
        for (number, (gap, step, again)) in (1u64..).zip(&calls) {
            let t = number * 40_000 + gap * 1_000;
            let step = step * 100_000;
            let mut steps = Vec::new();
            for (message, more) in CallMessage::ALL.into_iter().zip(again) {
                let part = if message < CallMessage::Bye { 1 } else { 2 };
                let at = message as u64 * step;
                let mut add = |at: u64| {
                    fp += 1;
                    match message {
                        CallMessage::Invite => drop(h.request(t + at, fp, sip(number, part, Role::Request))),
                        CallMessage::Bye => drop(h.request(t + at, fp, sip(number, part, Role::Request))),
                        CallMessage::Trying => drop(h.matched(t + at, Point::TapSend, fp, TAP, sip(number, part, Role::Trying))),
                        CallMessage::Provisional => drop(h.matched(t + at, Point::TapSend, fp, TAP, sip(number, part, Role::Provisional))),
                        CallMessage::Final | CallMessage::ByeFinal => {
                            // Without a kick of its own: those of calls that overlap are not told apart.
                            h.matched(t + at, Point::TapSend, fp, TAP, sip(number, part, Role::Final))
                                .packet(t + at + 10_000, Point::DevQueue, fp, NIC)
                                .packet(t + at + 20_000, Point::DevXmit, fp, NIC);
                        }
                        CallMessage::Ack => one_way(&mut h, t + at, fp, ack(number)),
                    }
                };
                add(at);
                // Copies come after the answer, and before the call ends.
                let more = if message == CallMessage::ByeFinal { 0 } else { *more };
                (0..more).for_each(|n| add(at + 10_000 + u64::from(n) * 15_000));
                steps.push((message, at, more + 1));
                copies[message as usize] += u64::from(more);
            }
            wanted.push((T + t, 6 * step + 20_000, steps));
        }
        let report = run(&meta(Matching::Sip), &sorted(&h)).report;
        let vm = &report.vms[0];
        prop_assert_eq!(vm.requests.complete, 2 * calls.len() as u64, "{:?}", vm.left_out);
        let requests = [CallMessage::Invite, CallMessage::Bye];
        prop_assert_eq!(vm.requests.retransmitted, requests.iter().map(|m| copies[*m as usize]).sum::<u64>());
        let groups = groups(&report);
        prop_assert_eq!((groups.complete, groups.incomplete), (calls.len() as u64, 0));
        let of_all: Vec<_> = groups.messages.iter().map(|m| (m.at.count, m.copies)).collect();
        prop_assert_eq!(of_all, copies.map(|copies| (calls.len() as u64, copies)));
        for call in &groups.slowest {
            let (_, total, steps) = wanted.iter().find(|(start, ..)| *start == call.start).unwrap();
            let found: Vec<_> = call.messages.iter().map(|s| (s.message, s.at, s.copies)).collect();
            prop_assert_eq!((&call.total, &found), (total, steps));
        }
    }
}

/// There is room to follow the copies of 16,384 requests at once. What is answered, or given up, leaves it to others.
#[test]
fn copies_of_earlier_requests_take_no_room() {
    let mut h = History::default();
    let (lasting, all) = (20_000, 40_000);
    for n in 0..all {
        // The first half is never answered, more than there is room for; it is given up after 32 s.
        let t = n * 100_000 + if n < lasting { 0 } else { 40_000 * MS };
        let request = m(n, Role::Request);
        h.packet(t, Point::HostRx, n * 10, NIC).dropped(t + 1_000, n * 10, TAP, request);
        h.request(t + 5_000, n * 10 + 1, request);
        if n >= lasting {
            h.response(t + 60_000, n * 10 + 2, m(n, Role::Final));
        }
    }
    let report = run(&meta(Matching::Sip), &sorted(&h)).report;
    let vm = &report.vms[0];
    assert_eq!(vm.requests.complete, all - lasting, "{:?}", vm.left_out);
    assert_eq!(
        sent_again(&report),
        SentAgain { requests: all, later: all - lasting, ..SentAgain::default() }
    );
}
