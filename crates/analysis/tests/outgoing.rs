//! Requests that a guest itself sends: one history for each way in which they go, or do not.

mod common;

use common::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::{Direction, Matching, Watch};
use teiji_model::host::DataPlane;
use teiji_model::report::{Blame, Counters, Outcome, Outgoing, OutgoingStage, Reason};

const S: u64 = 1_000_000_000;
const REQ: Option<Match> =
    Some(Match { key: 1, role: Role::Request, group: 0, group_role: GroupRole::Within });
const FIN: Option<Match> = Some(Match { key: 1, role: Role::Final, group: 0, group_role: GroupRole::Within });
const ECHO: Option<Match> =
    Some(Match { key: 1, role: Role::Either, group: 0, group_role: GroupRole::Within });

/// The guest kicks at 0 and has the answer at 150 µs: each stage takes 10 µs, and 60 µs are spent outside.
fn whole(request: Option<Match>, answer: Option<Match>) -> History {
    let mut h = History::default();
    h.response(0, 7, request).request(100_000, 8, answer);
    h
}

/// The history continues for so long that nothing of it is on its path any more.
fn long_after(mut h: History) -> History {
    h.packet(40 * S, Point::HostRx, 99, NIC).packet(80 * S, Point::HostRx, 98, NIC);
    h
}

fn outgoing(r: &Run) -> &Outgoing {
    r.report.vms[0].outgoing.as_ref().expect("the guest has sent requests")
}

/// Seen, complete, incomplete, ambiguous, unanswered.
fn counts(r: &Run) -> [u64; 5] {
    let r = outgoing(r).requests;
    [r.seen, r.complete, r.incomplete, r.ambiguous, r.unanswered]
}

/// The only reason for which a request is not complete.
fn reason(r: &Run) -> (Outcome, Reason) {
    let all = &outgoing(r).left_out;
    assert_eq!(all.len(), 1, "{all:?}");
    (all[0].outcome, all[0].reason)
}

/// The time of each stage of the only complete request, µs.
fn stages(r: &Run) -> Vec<u64> {
    assert_eq!(outgoing(r).requests.complete, 1, "{:?}", outgoing(r));
    outgoing(r).stages.iter().map(|s| s.dist.max / 1000).collect()
}

/// Nothing of a request to the guest.
fn none_to_the_guest(r: &Run) {
    assert_eq!((r.counts(), r.joined.len(), r.report.vms[0].left_out.len()), ([0; 5], 0, 0));
}

fn without(h: &History, gone: impl Fn(&EventKind) -> bool) -> Run {
    let mut h = h.clone();
    h.0.retain(|e| !gone(&e.kind));
    long_after(h).run()
}

/// A packet of the request (7) or of the answer (8) at a point.
fn of(fp: u64, point: Point) -> impl Fn(&EventKind) -> bool {
    move |k| matches!(k, EventKind::Packet(p) if p.point == point && p.fingerprint == fp)
}

#[test]
fn every_stage_from_the_kick_to_the_guest_entry_is_known() {
    for (request, answer) in [(REQ, FIN), (ECHO, ECHO)] {
        let r = whole(request, answer).run();
        assert_eq!(stages(&r), [10, 10, 10, 10, 60, 10, 10, 10, 10, 10, 0]);
        let o = outgoing(&r);
        assert_eq!((o.total.unwrap().max, o.host.unwrap().max, o.to_other_vms), (150_000, 90_000, 0));
        assert_eq!(o.outside_share(), Some(0.4));
        none_to_the_guest(&r);
    }
}

#[test]
fn a_guest_without_requests_of_its_own_has_no_such_section() {
    let mut h = History::default();
    h.request(0, 7, REQ).response(100_000, 8, FIN);
    let r = h.run();
    assert_eq!((r.counts(), r.report.vms[0].outgoing.is_none()), ([1, 1, 0, 0, 0], true));
    let json = serde_json::to_value(&r.report).unwrap();
    assert!(json["vms"][0].get("outgoing").is_none() && json["vms"][0].get("inbound").is_some());
}

/// The answer is in the guest before it is known that nothing more comes of the request's packet; or long after.
#[test]
fn the_two_packets_may_come_to_their_end_in_either_order() {
    for pause in [100_000, 30_000_000, 4 * S] {
        let mut h = History::default();
        h.response(0, 7, REQ).packet(pause / 2, Point::HostRx, 99, NIC).request(pause, 8, FIN);
        let r = h.run();
        assert_eq!(stages(&r)[OutgoingStage::Outside as usize], pause / 1000 - 40);
    }
}

#[test]
fn a_qdisc_that_is_bypassed_takes_no_time_and_one_that_is_not_seen_is_unattributed() {
    let bypassed = without(&whole(REQ, FIN), of(7, Point::QdiscDequeue));
    assert_eq!(stages(&bypassed), [10, 10, 0, 20, 60, 10, 10, 10, 10, 10, 0]);
    let mut h = whole(REQ, FIN);
    h.0.retain(|e| !of(7, Point::QdiscDequeue)(&e.kind));
    h.0.iter_mut().filter(|e| of(7, Point::DevXmit)(&e.kind)).for_each(|e| e.cpu = 3);
    assert_eq!(stages(&h.run()), [10, 10, 0, 0, 60, 10, 10, 10, 10, 10, 20]);
}

/// A frame that a running worker takes up has no kick of its own.
#[test]
fn time_begins_where_the_host_gets_a_frame_whose_kick_was_coalesced() {
    let mut h = History::default();
    h.kick(0);
    h.matched(10_000, Point::TapSend, 5, TAP, None).packet(12_000, Point::DevQueue, 5, NIC);
    h.packet(13_000, Point::DevXmit, 5, NIC);
    h.matched(20_000, Point::TapSend, 7, TAP, REQ).packet(30_000, Point::DevQueue, 7, NIC);
    h.packet(40_000, Point::QdiscDequeue, 7, NIC).packet(50_000, Point::DevXmit, 7, NIC);
    h.request(100_000, 8, FIN);
    let r = h.run();
    assert_eq!(stages(&r), [0, 10, 10, 10, 50, 10, 10, 10, 10, 10, 0]);
    assert_eq!(outgoing(&r).total.unwrap().max, 130_000);
}

#[test]
fn what_is_not_answered_is_said_to_be_so_and_where_it_ended() {
    let first = |n: usize| {
        let mut h = whole(REQ, FIN);
        h.0.truncate(n);
        long_after(h).run()
    };
    assert_eq!(reason(&first(5)), (Outcome::Unanswered, Reason::NoAnswer));
    assert_eq!(outgoing(&first(5)).left_out[0].blame, Blame::Outside);
    // Received by the host and lost before the tap: nothing says so.
    assert_eq!(reason(&first(6)), (Outcome::Unanswered, Reason::NoAnswer));
    assert_eq!(reason(&first(2)), (Outcome::Unanswered, Reason::NotForwarded));
    assert_eq!(reason(&first(3)), (Outcome::Unanswered, Reason::NotHandedOver));
    assert_eq!(reason(&first(7)), (Outcome::Incomplete, Reason::NotTaken));
    assert_eq!(reason(&first(8)), (Outcome::Incomplete, Reason::NotSignalled));
    assert_eq!(reason(&first(9)), (Outcome::Incomplete, Reason::NotEntered));
    // The trace ends first.
    let mut h = whole(REQ, FIN);
    h.0.truncate(5);
    assert_eq!(reason(&h.run()), (Outcome::Unanswered, Reason::TraceEnded));
}

#[test]
fn an_answered_request_names_the_point_that_is_missing() {
    let incomplete = |fp, point, why| {
        assert_eq!(
            reason(&without(&whole(REQ, FIN), of(fp, point))),
            (Outcome::Incomplete, why),
            "{point:?}"
        );
    };
    incomplete(7, Point::DevQueue, Reason::NotForwarded);
    incomplete(7, Point::DevXmit, Reason::NotHandedOver);
    incomplete(8, Point::TapDequeue, Reason::NotTaken);
    let r = without(&whole(REQ, FIN), |k| matches!(k, EventKind::GuestEntry(_)));
    assert_eq!(reason(&r), (Outcome::Incomplete, Reason::NotEntered));
    // The answer is older than the request.
    let mut h = whole(REQ, FIN);
    h.0.iter_mut().filter(|e| of(8, Point::HostRx)(&e.kind)).for_each(|e| e.ts = T + 35_000);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(reason(&h.run()), (Outcome::Incomplete, Reason::OutOfOrder));
}

#[test]
fn events_that_were_lost_explain_what_was_not_seen() {
    let lost = |h: &mut History, at: u64| {
        h.at(at, EventKind::Lost(Lost { since: T + at - 1, count: 1 }));
        h.0.sort_by_key(|e| e.ts);
    };
    for at in [5_000, 70_000, 145_000] {
        let mut h = whole(REQ, FIN);
        lost(&mut h, at);
        assert_eq!(reason(&h.run()), (Outcome::Incomplete, Reason::EventsLost), "at {at}");
    }
    let mut h = whole(REQ, FIN);
    h.0.truncate(5);
    lost(&mut h, S);
    assert_eq!(reason(&long_after(h).run()), (Outcome::Unanswered, Reason::EventsLost));
}

#[test]
fn a_request_or_an_answer_that_the_host_drops_is_the_hosts() {
    let drop = |fp, ifindex, matching| EventKind::Dropped(Dropped { matching, ..dropped(fp, ifindex) });
    // The request in the link's queue. No answer is waited for: the key is free.
    let mut h = History::default();
    h.response(0, 7, REQ);
    h.0.truncate(3);
    h.at(30_000, drop(7, NIC, REQ)).response(1_000_000, 6, REQ).request(1_100_000, 8, FIN);
    let r = h.run();
    assert_eq!(counts(&r), [2, 1, 1, 0, 0]);
    assert_eq!(reason(&r), (Outcome::Incomplete, Reason::DroppedOut));
    // The answer on its tap, or before it.
    let mut h = whole(REQ, FIN);
    h.0.truncate(7);
    h.at(115_000, drop(8, TAP, FIN));
    assert_eq!(reason(&h.run()), (Outcome::Incomplete, Reason::DroppedIn));
    for (request, answer) in [(REQ, FIN), (ECHO, ECHO)] {
        for matching in [Matching::Echo, Matching::Dns] {
            let mut h = whole(request, answer);
            h.0.truncate(6);
            h.at(105_000, drop(8, TAP, answer));
            let r = run(&meta(matching), &h.0);
            assert_eq!(reason(&r), (Outcome::Incomplete, Reason::DroppedIn), "{matching}");
            none_to_the_guest(&r);
        }
    }
}

#[test]
fn two_requests_with_one_key_are_not_told_apart() {
    let mut h = History::default();
    h.response(0, 7, ECHO).response(50_000, 6, ECHO).request(100_000, 8, ECHO).request(200_000, 9, ECHO);
    // When both are answered, a third one is told from them.
    h.response(1_000_000, 17, ECHO).request(1_100_000, 18, ECHO);
    let r = h.run();
    assert_eq!((counts(&r), reason(&r)), ([3, 1, 0, 2, 0], (Outcome::Ambiguous, Reason::SameKey)));
    assert_eq!(stages(&r)[OutgoingStage::Outside as usize], 60);
    none_to_the_guest(&r);
}

#[test]
fn identical_packets_are_not_told_apart() {
    // Two requests of different keys on their way to the link.
    let mut h = History::default();
    h.response(0, 7, REQ).matched(15_000, Point::TapSend, 7, TAP, m(2, Role::Request));
    h.packet(25_000, Point::DevQueue, 7, NIC).packet(45_000, Point::DevXmit, 7, NIC);
    h.request(100_000, 8, FIN).request(200_000, 9, m(2, Role::Final));
    h.0.sort_by_key(|e| e.ts);
    let r = h.run();
    assert_eq!((counts(&r), reason(&r)), ([2, 0, 0, 2, 0], (Outcome::Ambiguous, Reason::Alike)));
    // Two answers on the tap.
    let mut h = History::default();
    h.response(0, 7, REQ).response(50_000, 6, m(2, Role::Request));
    h.request(100_000, 8, FIN).packet(111_000, Point::HostRx, 8, NIC);
    h.matched(112_000, Point::TapEnqueue, 8, TAP, m(2, Role::Final));
    h.packet(121_000, Point::TapDequeue, 8, TAP);
    h.0.sort_by_key(|e| e.ts);
    let r = h.run();
    assert_eq!((counts(&r), reason(&r)), ([2, 0, 0, 2, 0], (Outcome::Ambiguous, Reason::Alike)));
}

#[test]
fn a_request_that_is_sent_again_is_one_and_timed_from_its_first_copy() {
    for matching in [Matching::Sip, Matching::Dns] {
        let mut h = History::default();
        h.response(0, 7, REQ).response(500_000, 6, REQ).response(700_000, 5, REQ);
        // Both answers come; a last copy comes after them.
        h.request(1_000_000, 8, FIN).request(1_200_000, 9, FIN).response(1_500_000, 4, REQ);
        // Another request.
        h.response(2_000_000, 17, m(2, Role::Request)).request(2_100_000, 18, m(2, Role::Final));
        let r = run(&meta(matching), &h.0);
        assert_eq!(counts(&r), [2, 2, 0, 0, 0]);
        let o = outgoing(&r);
        assert_eq!((o.requests.retransmitted, o.requests.sent_again.requests), (3, 1), "{o:?}");
        assert_eq!((o.requests.sent_again.unknown, o.total.unwrap().max), (1, 1_050_000));
        none_to_the_guest(&r);
        // In a protocol that does not send requests again there are four with this key.
        assert_eq!(counts(&h.run()), [5, 1, 0, 4, 0]);
    }
}

/// What another copy spent outside would hide that the host had dropped one.
#[test]
fn a_copy_does_not_hide_that_the_host_dropped_the_first() {
    let mut h = History::default();
    h.response(0, 7, REQ);
    h.0.truncate(3);
    h.at(30_000, EventKind::Dropped(dropped(7, NIC))).response(500_000, 6, REQ).request(1_000_000, 8, FIN);
    let r = run(&meta(Matching::Dns), &h.0);
    assert_eq!((counts(&r), reason(&r)), ([1, 0, 1, 0, 0], (Outcome::Incomplete, Reason::DroppedOut)));
    assert_eq!(outgoing(&r).requests.retransmitted, 1);
}

/// A SIP proxy forwards a request with its Call-ID and CSeq.
#[test]
fn a_proxy_has_a_request_of_either_kind_with_one_key() {
    let mut h = History::default();
    h.request(0, 1, REQ).response(100_000, 2, REQ);
    h.request(200_000, 3, FIN).response(300_000, 4, FIN);
    // The client and the proxy send theirs again, too late.
    h.request(400_000, 5, REQ).response(500_000, 6, REQ);
    let r = run(&meta(Matching::Sip), &h.0);
    assert_eq!((r.counts(), counts(&r)), ([1, 1, 0, 0, 0], [1, 1, 0, 0, 0]));
    assert_eq!(r.report.vms[0].requests.retransmitted, 1);
    assert_eq!(outgoing(&r).requests.retransmitted, 1);
    // Kick at 100 µs, answer in the guest at 250 µs; the client's request: 0 to 340 µs.
    assert_eq!((outgoing(&r).total.unwrap().max, r.joined[0].request.total), (150_000, 340_000));
}

#[test]
fn another_traced_vm_that_answers_is_outside() {
    let mut h = History::default();
    h.kick(0).matched(10_000, Point::TapSend, 7, TAP, ECHO).matched(20_000, Point::TapEnqueue, 7, TAP2, ECHO);
    h.packet(30_000, Point::TapDequeue, 7, TAP2);
    let to = |h: &mut History, t: u64, fp: u64, tap: u32, vm: u32| {
        let signalled = Interrupt { ifindex: tap, vm, ..interrupt(t) };
        h.at(t + 10_000, EventKind::Interrupt(signalled));
        h.at(t + 20_000, EventKind::GuestEntry(GuestEntry { vm, ..entry(t + 15_000) }));
        h.packet(t + 30_000, Point::HostRx, 1000 + fp, NIC);
    };
    to(&mut h, 40_000, 7, TAP2, VM2);
    // That VM sends the answer at 200 µs.
    h.matched(200_000, Point::TapSend, 8, TAP2, ECHO).matched(210_000, Point::TapEnqueue, 8, TAP, ECHO);
    h.packet(220_000, Point::TapDequeue, 8, TAP);
    to(&mut h, 230_000, 8, TAP, VM);
    let r = h.run();
    assert_eq!(stages(&r), [10, 10, 0, 0, 180, 10, 10, 10, 10, 10, 0], "{:?}", r.report.vms[0]);
    assert_eq!((outgoing(&r).to_other_vms, r.counts()), (1, [0; 5]));
    // To that VM it is a request.
    let other = &r.report.vms[1];
    assert_eq!((other.requests.complete, other.outgoing.is_none()), (1, true));
    assert_eq!(other.total.unwrap().max, 200_000);
}

/// Where the protocol does not tell, the first packet of a key does, until the key has been silent for long.
#[test]
fn which_side_asks_is_learnt_by_key() {
    let mut h = History::default();
    // The guest asks with key 1, others ask it with key 2, each several times.
    let theirs = m(2, Role::Either);
    for i in 0..3 {
        let t = i * 1_000_000;
        h.response(t, 10 + i, ECHO).request(t + 100_000, 20 + i, ECHO);
        h.request(t + 200_000, 30 + i, theirs).response(t + 300_000, 40 + i, theirs);
    }
    let r = h.run();
    assert_eq!((counts(&r), r.counts()), ([3, 3, 0, 0, 0], [3, 3, 0, 0, 0]));
    // A request to the guest that is not seen makes its answer no request of the guest's.
    h.response(4_000_000, 50, theirs).request(5_000_000, 51, theirs).response(5_100_000, 52, theirs);
    let r = h.run();
    assert_eq!((counts(&r), r.counts()), ([3, 3, 0, 0, 0], [4, 4, 0, 0, 0]));
}

#[test]
fn nothing_is_said_where_answers_cannot_be_seen() {
    let mut one_way = meta(Matching::Echo);
    one_way.watch = Watch { direction: Direction::Out, ..one_way.watch };
    let mut unseen = meta(Matching::Echo);
    unseen.vms[0].nics[0].data_plane = DataPlane::UserspaceMacvtap;
    for meta in [&one_way, &unseen] {
        for (request, answer) in [(REQ, FIN), (ECHO, ECHO)] {
            let r = run(meta, &whole(request, answer).0);
            assert!(r.report.vms[0].outgoing.is_none() && r.report.vms[0].outbound.packets == 1);
        }
    }
}

#[test]
fn a_late_answer_is_that_of_no_request() {
    let mut h = History::default();
    h.response(0, 7, REQ).packet(6 * S, Point::HostRx, 99, NIC).request(6 * S + 100_000, 8, FIN);
    assert_eq!(counts(&h.run()), [1, 0, 0, 0, 1]);
    assert_eq!(counts(&run(&meta(Matching::Sip), &h.0)), [1, 1, 0, 0, 0], "SIP waits for 32 s");
}

/// A guest may send requests with ever new keys that nobody answers, however fast.
#[test]
fn a_flood_of_keys_is_bounded_and_counted() {
    const N: u64 = 200_000;
    let mut analyzer = Analyzer::new(&meta(Matching::Dns), Options { seed: 3, ..Options::default() });
    for i in 0..N {
        let mut h = History::default();
        let fp = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h.response(i * 10_000, fp, m(i, Role::Request));
        for e in h.0 {
            analyzer.push(e, &mut |_| ());
        }
    }
    let losses = analyzer.losses();
    let report = analyzer.finish(Counters { ended: T + 100 * S, ..Counters::default() }, &mut |_| ());
    let o = report.vms[0].outgoing.as_ref().unwrap();
    assert_eq!((o.requests.seen, o.requests.unanswered), (N, N), "{o:?}");
    let given_up: u64 = o.left_out.iter().filter(|l| l.reason == Reason::Evicted).map(|l| l.count).sum();
    assert!((100_000..N).contains(&given_up) && losses.evicted >= given_up / 2, "{given_up} {losses:?}");
}

/// A report that was written before there were such figures.
#[test]
fn an_older_report_is_read() {
    let r = whole(REQ, FIN).run();
    let mut json = serde_json::to_value(&r.report).unwrap();
    json["vms"][0].as_object_mut().unwrap().remove("outgoing").unwrap();
    let old: teiji_model::report::Report = serde_json::from_value(json).unwrap();
    assert!(old.vms[0].outgoing.is_none());
}

/// The direction of a key is forgotten if another key takes its place. A request that is open is enough to know its answer.
#[test]
fn so_many_requests_at_once_as_have_no_place_in_what_is_remembered() {
    const MANY: u64 = 30_000;
    let either = |key| m(key, Role::Either);
    let mut h = History::default();
    for n in 0..MANY {
        h.response(n * 1000, 1_000_000 + n, either(n + 1));
    }
    for n in 0..MANY {
        h.request(100_000_000 + n * 1000, 2_000_000 + n, either(n + 1));
    }
    h.0.sort_by_key(|e| e.ts);
    let r = long_after(h).run();
    assert_eq!((outgoing(&r).requests.seen, outgoing(&r).requests.unanswered, r.counts()), (MANY, 0, [0; 5]));
}

/// A connection that the guest has opened; its segments pass in steps of 1 ms.
struct Connection {
    history: History,
    passed: u64,
}

impl Connection {
    /// The guest's first byte is 101, the server's 201.
    fn opened() -> Connection {
        let mut c = Connection { history: History::default(), passed: 0 };
        c.asks(100, 0, 0, Segment::SYN);
        c.says(200, 101, 0, Segment::SYN | Segment::ACK);
        c.asks(101, 201, 0, Segment::ACK);
        c
    }

    fn next(&mut self, seq: u32, ack: u32, payload: u16, flags: u8) -> (u64, u64, Option<Match>) {
        self.passed += 1;
        let m = Match::of_segment(7, Segment { seq, ack, payload, flags });
        (self.passed * 1_000_000, self.passed, Some(m))
    }

    /// A segment of the guest; returns when its kick comes.
    fn asks(&mut self, seq: u32, ack: u32, payload: u16, flags: u8) -> u64 {
        let (t, fp, m) = self.next(seq, ack, payload, flags);
        self.history.response(t, fp, m);
        t
    }

    /// A segment of the server; returns when the guest enters with it.
    fn says(&mut self, seq: u32, ack: u32, payload: u16, flags: u8) -> u64 {
        let (t, fp, m) = self.next(seq, ack, payload, flags);
        self.history.request(t, fp, m);
        t + 50_000
    }

    /// One that the host drops before the tap.
    fn says_in_vain(&mut self, seq: u32, ack: u32, payload: u16) {
        let (t, fp, m) = self.next(seq, ack, payload, Segment::ACK);
        self.history.packet(t, Point::HostRx, fp, NIC).dropped(t + 10_000, fp, NIC, m);
    }

    fn run(self) -> Run {
        run(&meta(Matching::Tcp), &long_after(self.history).0)
    }
}

const ACK: u8 = Segment::ACK;

#[test]
fn a_request_of_tcp_lasts_from_its_first_segment_to_the_first_of_its_answer() {
    let mut c = Connection::opened();
    let start = c.asks(101, 201, 1448, ACK);
    c.asks(1549, 201, 500, ACK);
    c.says(201, 2049, 0, ACK);
    let end = c.says(201, 2049, 1448, ACK);
    c.says(1649, 2049, 1448, ACK);
    c.asks(2049, 3097, 0, ACK);
    let o = c.run();
    assert_eq!(counts(&o), [1, 1, 0, 0, 0]);
    assert_eq!(outgoing(&o).total.unwrap().max, end - start);
    none_to_the_guest(&o);
}

/// Several on one connection, the second of which is sent again, and one that is not answered.
#[test]
fn each_turn_of_a_connection_is_a_request() {
    let mut c = Connection::opened();
    c.asks(101, 201, 10, ACK);
    c.says(201, 111, 20, ACK);
    let start = c.asks(111, 221, 10, ACK);
    c.asks(111, 221, 10, ACK);
    let end = c.says(221, 121, 20, ACK);
    c.asks(121, 241, 10, ACK);
    c.says(241, 131, 0, Segment::RST | ACK);
    let o = c.run();
    assert_eq!(counts(&o), [3, 2, 0, 0, 1]);
    assert_eq!(reason(&o), (Outcome::Unanswered, Reason::Closed));
    assert_eq!(outgoing(&o).total.unwrap().max, end - start);
    let requests = outgoing(&o).requests;
    assert_eq!((requests.retransmitted, requests.sent_again.requests), (1, 1));
}

/// The copy that comes later would hide that it waited for the server's timer.
#[test]
fn an_answer_of_tcp_that_the_host_drops_is_the_hosts() {
    let mut c = Connection::opened();
    c.asks(101, 201, 10, ACK);
    c.says_in_vain(201, 111, 20);
    c.says(201, 111, 20, ACK);
    c.asks(111, 221, 10, ACK);
    c.says(221, 121, 20, ACK);
    let o = c.run();
    assert_eq!(counts(&o), [2, 1, 1, 0, 0]);
    assert_eq!(reason(&o), (Outcome::Incomplete, Reason::DroppedIn));
}

/// Of a connection whose sides speak at the same time, no request is in a figure.
#[test]
fn a_server_that_does_not_wait_makes_requests_of_tcp_ambiguous() {
    let mut c = Connection::opened();
    c.asks(101, 201, 10, ACK);
    c.says(201, 101, 20, ACK);
    c.says(221, 111, 20, ACK);
    c.asks(111, 241, 10, ACK);
    c.says(241, 121, 20, ACK);
    let o = c.run();
    assert_eq!(counts(&o), [2, 0, 0, 2, 0]);
    assert_eq!(reason(&o), (Outcome::Ambiguous, Reason::Interleaved));
}

/// The whole answer was not seen: the guest acknowledges it.
#[test]
fn an_answer_of_tcp_that_was_not_seen_leaves_its_request_incomplete() {
    let mut c = Connection::opened();
    c.asks(101, 201, 10, ACK);
    c.asks(111, 221, 10, ACK);
    c.says(221, 121, 20, ACK);
    c.asks(121, 241, 10, ACK);
    c.says(241, 131, 20, ACK);
    let o = c.run();
    let [seen, complete, incomplete, ambiguous, unanswered] = counts(&o);
    assert_eq!((seen, complete, ambiguous, unanswered), (3, 1, 0, 0));
    assert_eq!(incomplete, 2);
    assert_eq!(reason(&o), (Outcome::Incomplete, Reason::SegmentMissing));
}
