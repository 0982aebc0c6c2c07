//! One history for each reason for which a request is not complete.

mod common;

use common::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::report::{Counters, Outcome, Reason};
use teiji_model::stage::{Split, ThreadState};
use teiji_model::stream::StreamId;

const REQ: Option<Match> =
    Some(Match { key: 1, role: Role::Request, group: 0, group_role: GroupRole::Within });
const FIN: Option<Match> = Some(Match { key: 1, role: Role::Final, group: 0, group_role: GroupRole::Within });
const S: u64 = 1_000_000_000;

fn whole() -> History {
    let mut h = History::default();
    h.request(0, 7, REQ).response(100_000, 8, FIN);
    h
}

/// The history continues for so long that nothing of it is on its path any more.
fn long_after(mut h: History) -> History {
    h.packet(20 * S, Point::HostRx, 99, NIC).packet(40 * S, Point::HostRx, 98, NIC);
    h
}

/// The first `n` events of a request and its response, and nothing more.
fn first(n: usize) -> Run {
    let mut h = whole();
    h.0.truncate(n);
    long_after(h).run()
}

fn without(gone: impl Fn(&EventKind) -> bool) -> Run {
    let mut h = whole();
    h.0.retain(|e| !gone(&e.kind));
    long_after(h).run()
}

fn at(point: Point) -> impl Fn(&EventKind) -> bool {
    move |k| matches!(k, EventKind::Packet(p) if p.point == point)
}

#[test]
fn a_request_that_ends_on_its_way_says_where() {
    use Outcome::{Incomplete, Unanswered};
    assert_eq!(first(2).reason(), (Unanswered, Reason::NotTaken));
    assert_eq!(first(3).reason(), (Unanswered, Reason::NotSignalled));
    assert_eq!(first(4).reason(), (Unanswered, Reason::NotEntered));
    assert_eq!(first(5).reason(), (Unanswered, Reason::NoAnswer));
    assert_eq!(first(7).reason(), (Incomplete, Reason::NotForwarded));
    assert_eq!(first(8).reason(), (Incomplete, Reason::NotHandedOver));
    assert_eq!(first(9).reason(), (Incomplete, Reason::NotHandedOver));
}

#[test]
fn an_answered_request_names_the_point_that_is_missing() {
    use Outcome::Incomplete;
    assert_eq!(without(at(Point::TapDequeue)).reason(), (Incomplete, Reason::NotTaken));
    assert_eq!(
        without(|k| matches!(k, EventKind::Interrupt(_))).reason(),
        (Incomplete, Reason::NotSignalled)
    );
    assert_eq!(without(|k| matches!(k, EventKind::GuestEntry(_))).reason(), (Incomplete, Reason::NotEntered));
    assert_eq!(without(at(Point::DevQueue)).reason(), (Incomplete, Reason::NotForwarded));
    assert_eq!(without(at(Point::DevXmit)).reason(), (Incomplete, Reason::NotHandedOver));
}

/// A datagram that is split has no point any more. A large one that leaves whole is like others.
#[test]
fn an_answer_that_the_host_may_have_split_is_said_so() {
    use Outcome::Incomplete;
    let large = |segments: u16, n: usize| {
        let mut h = History::default();
        h.request(0, 7, REQ)
            .kick(100_000)
            .matched(110_000, Point::TapSend, 8, TAP, FIN)
            .of_segments(segments);
        h.packet(120_000, Point::DevQueue, 8, NIC).packet(140_000, Point::DevXmit, 8, NIC);
        h.0.truncate(h.0.len() - n);
        long_after(h).run()
    };
    for (segments, left, handed) in
        [(1, Reason::NotForwarded, Reason::NotHandedOver), (2, Reason::LargePacket, Reason::LargePacket)]
    {
        assert_eq!(large(segments, 2).reason(), (Incomplete, left), "{segments}");
        assert_eq!(large(segments, 1).reason(), (Incomplete, handed), "{segments}");
        assert_eq!(large(segments, 0).counts(), [1, 1, 0, 0, 0], "{segments}");
    }
    // One that the kernel dropped is no other's.
    let mut h = History::default();
    h.request(0, 7, REQ).kick(100_000).matched(110_000, Point::TapSend, 8, TAP, FIN).of_segments(30);
    let d = Dropped { tap: 0, ..dropped(8, TAP) };
    h.at(120_000, EventKind::Dropped(d));
    assert_eq!(long_after(h).run().reason(), (Incomplete, Reason::DroppedOut));
}

#[test]
fn an_interrupt_that_no_vcpu_took_is_said_so() {
    let vcpu = Some(ThreadState::Run);
    for (delivery, state, vm, signalled, reason) in [
        (Delivery::Unknown, None, VM, 30_000, Reason::NoInterrupt),
        (Delivery::Accepted, vcpu, VM2, 30_000, Reason::NoInterrupt),
        (Delivery::Accepted, vcpu, VM, 41_000, Reason::OutOfOrder),
    ] {
        let mut h = whole();
        for e in &mut h.0 {
            if let EventKind::Interrupt(i) = &mut e.kind {
                *i = Interrupt { delivery, vm, state, ..interrupt(signalled) };
            }
        }
        assert_eq!(h.run().reason(), (Outcome::Incomplete, reason));
    }
    // Taken off the tap, but the worker slept before it took the next one: its signal was not seen.
    let mut h = History::default();
    for (i, t) in [(1u64, 0u64), (2, 500_000)] {
        h.request(t, i, m(i, Role::Request)).response(t + 100_000, 10 + i, m(i, Role::Final));
    }
    h.0.retain(|e| !(e.ts < T + 100_000 && matches!(e.kind, EventKind::Interrupt(_))));
    for (e, asleep) in h.0.iter_mut().filter(|e| e.ts % 500_000 == 20_000).zip([1000, 2000]) {
        let EventKind::Packet(p) = &mut e.kind else { panic!() };
        p.worker = Some(Split([0, 0, asleep, 0, 0]));
        assert_eq!(p.worker.unwrap().get(ThreadState::Asleep), asleep);
    }
    assert_eq!(h.run().reason(), (Outcome::Incomplete, Reason::NotSignalled));
}

/// An event is lost at this time.
fn lost(h: &mut History, after: u64) {
    h.at(after, EventKind::Lost(Lost { since: T + after - 1, count: 1 }));
    h.0.sort_by_key(|e| e.ts);
}

/// As the history, but the worker lost its CPU while it handed packets over: the event is of when it began to, and tells when
/// it had.
fn stalled(mut h: History, took: u64) -> History {
    for e in &mut h.0 {
        if let EventKind::Interrupt(i) = &mut e.kind {
            e.ts = i.signalled;
            let state = Some(ThreadState::Run);
            *i = Interrupt { delivery: Delivery::Unknown, state, signalled: i.signalled + took, ..*i };
        }
    }
    h
}

#[test]
fn when_a_guest_received_packets_of_a_stalled_worker_is_not_known() {
    for took in [10_000, 100_000, 5_000_000] {
        assert_eq!(stalled(whole(), took).run().reason(), (Outcome::Incomplete, Reason::ArrivalUnknown));
    }
    let mut skipped = stalled(whole(), 0);
    for e in &mut skipped.0 {
        if let EventKind::Interrupt(i) = &mut e.kind {
            (i.state, i.vm, i.vector) = (None, 0, Interrupt::SKIPPED);
        }
    }
    assert_eq!(skipped.run().reason(), (Outcome::Incomplete, Reason::ArrivalUnknown));
    // It did receive them.
    let unanswered = || {
        let mut h = whole();
        h.0.truncate(5);
        long_after(stalled(h, 100_000))
    };
    assert_eq!(unanswered().run().reason(), (Outcome::Unanswered, Reason::NoAnswer));
    let mut h = unanswered();
    lost(&mut h, 3 * S);
    assert_eq!(h.run().reason(), (Outcome::Unanswered, Reason::EventsLost));
}

#[test]
fn what_is_usual_and_missing_is_said_so() {
    let mut h = History::default();
    for i in 0..20 {
        let t = i * 1_000_000;
        h.request(t, 100 + i, m(i, Role::Request)).response(t + 100_000, 200 + i, m(i, Role::Final));
    }
    h.0.remove(19 * 10); // The reception of the last one.
    assert_eq!(h.run().reason(), (Outcome::Incomplete, Reason::NotReceived));

    let mut h = History::default();
    for i in 0..4u64 {
        let (t, fp) = (i * 1_000_000, 100 + i);
        if i < 3 {
            h.packet(t, Point::HostRx, fp, NIC);
        }
        h.request(t + 1000, fp, m(i, Role::Request)).response(t + 100_000, 200 + i, m(i, Role::Final));
    }
    assert_eq!(h.run().reason(), (Outcome::Incomplete, Reason::FewerReports));

    let mut h = whole();
    h.packet(5_000, Point::HostRx, 7, VETH);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().reason(), (Outcome::Incomplete, Reason::NotLearnt));
}

#[test]
fn what_is_alike_is_told_from_requests_with_one_key() {
    let mut h = whole();
    h.packet(11_000, Point::HostRx, 7, NIC).matched(12_000, Point::TapEnqueue, 7, TAP, m(2, Role::Request));
    h.packet(21_000, Point::TapDequeue, 7, TAP).response(200_000, 9, m(2, Role::Final));
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().reason(), (Outcome::Ambiguous, Reason::Alike));
    let mut h = whole();
    h.request(60_000, 6, REQ).response(150_000, 9, FIN);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().reason(), (Outcome::Ambiguous, Reason::SameKey));
}

#[test]
fn a_packet_on_too_many_taps_is_said_so() {
    let mut m = meta(Matching::Echo);
    m.vms.extend((0..4).map(|i| vm(80 + i, 50 + i)));
    let mut h = History::default();
    h.packet(0, Point::HostRx, 7, NIC);
    for (i, tap) in [TAP2, 50, 51, 52, TAP].into_iter().enumerate() {
        h.matched(1000 + i as u64, Point::TapEnqueue, 7, tap, REQ);
    }
    let report = run(&m, &h.0).report;
    assert_eq!(report.vms[0].left_out[0].reason, Reason::TooManyTaps);
    assert_eq!(report.vms[1].left_out[0].reason, Reason::Alike, "the others can no longer be told apart");
}

#[test]
fn what_was_lost_explains_what_was_not_seen() {
    let mut h = whole();
    lost(&mut h, 45_000);
    assert_eq!(h.run().reason(), (Outcome::Incomplete, Reason::EventsLost));
    let mut h = whole();
    h.0.retain(|e| !matches!(e.kind, EventKind::Interrupt(_)));
    lost(&mut h, 200_000);
    assert_eq!(h.run().reason(), (Outcome::Incomplete, Reason::EventsLost));
    // The event of its acceptance was lost, and the report of the signal says so.
    let mut h = whole();
    for e in &mut h.0 {
        if let EventKind::Interrupt(i) = &mut e.kind {
            (i.delivery, i.state) = (Delivery::Unknown, None);
        }
    }
    lost(&mut h, 45_000);
    assert_eq!(h.run().reason(), (Outcome::Incomplete, Reason::EventsLost));
    // The lost event may be that of the answer, at any time while an answer would have been accepted.
    let mut h = whole();
    h.0.truncate(5);
    let mut h = long_after(h);
    lost(&mut h, 3 * S);
    assert_eq!(h.run().reason(), (Outcome::Unanswered, Reason::EventsLost));
}

/// A CPU took the time of an event and was stopped before it handed the event over.
#[test]
fn what_comes_too_late_is_waited_for_and_then_counted() {
    const MS: u64 = 1_000_000;
    for (preempted_by, late) in [(400, 0), (600, 1)] {
        let mut h = History::default();
        for i in 0..100 {
            let (key, t) = (i + 1, 10 * i * MS);
            h.request(t, 1000 + i, m(key, Role::Request)).response(t + MS, 5000 + i, m(key, Role::Final));
        }
        h.0.sort_by_key(|e| e.ts);
        let after = |h: &History, ts| h.0.iter().position(|e| e.ts > ts).unwrap();
        let mut stopped = h.0.remove(after(&h, T + 100 * MS + 40_000));
        assert!(matches!(stopped.kind, EventKind::GuestEntry(_)));
        stopped.cpu = 1;
        let handed_over = after(&h, stopped.ts + preempted_by * MS);
        h.0.insert(handed_over, stopped);
        let o = h.run();
        assert_eq!((o.report.late, o.report.late_no_room, o.report.lost_or_missed()), (late, 0, late));
        if late == 0 {
            assert_eq!(o.counts(), [100, 100, 0, 0, 0]);
        } else {
            // The request of that event was joined without it. Requests of the 100 ms by which it is late are left out
            // too.
            let of = |lost: bool| {
                let all = o.report.vms[0].left_out.iter();
                all.filter(|l| (l.reason == Reason::EventsLost) == lost).map(|l| l.count).sum::<u64>()
            };
            assert_eq!(of(false), 1, "{:?}", o.report.vms[0].left_out);
            assert!((1..=12).contains(&of(true)), "{:?}", o.report.vms[0].left_out);
        }
    }
}

/// At a million events per second only some 260 ms of them can wait.
#[test]
fn what_is_late_for_lack_of_room_is_told_apart() {
    for (behind, late) in [(200_000, (0, 0)), (300_000, (1, 1)), (700_000, (1, 0))] {
        let mut h = History::default();
        for us in 0..1_000_000 {
            h.kick(us * 1000);
        }
        h.on((1_000_000 - behind) * 1000, 1, EventKind::Kick(kick()));
        let o = h.run();
        assert_eq!((o.losses.late, o.losses.late_no_room), late, "{behind} µs behind");
        assert_eq!((o.report.late, o.report.late_no_room), late, "{behind} µs behind");
    }
}

/// A worker that is held up while it signals reports that later than the analysis waits. Only its packets are in doubt.
#[test]
fn a_signal_that_is_reported_too_late_costs_its_own_packets_only() {
    let mut h = History::default();
    h.request(0, 7, REQ);
    let late = h.0.remove(3);
    assert!(matches!(late.kind, EventKind::Interrupt(_)));
    h.0.truncate(3);
    // Meanwhile the other VM is asked.
    let of_other = |p: Packet| EventKind::Packet(Packet { tid: WORKER + 1, ..p });
    let signal = Interrupt { tid: WORKER + 1, ifindex: TAP2, vm: VM2, ..interrupt(100_030_000) };
    h.packet(100_000_000, Point::HostRx, 2, NIC)
        .matched(100_010_000, Point::TapEnqueue, 2, TAP2, m(2, Role::Request))
        .at(100_020_000, of_other(packet(Point::TapDequeue, 2, TAP2)))
        .at(100_040_000, EventKind::Interrupt(signal))
        .at(100_050_000, EventKind::GuestEntry(GuestEntry { vm: VM2, ..entry(100_045_000) }))
        .matched(100_100_000, Point::TapSend, 12, TAP2, m(2, Role::Final))
        .packet(100_110_000, Point::DevQueue, 12, NIC)
        .packet(100_120_000, Point::DevXmit, 12, NIC)
        .packet(2 * S, Point::HostRx, 98, NIC);
    h.0.push(late);
    h.response(2 * S + 100_000, 8, FIN);
    let o = long_after(h).run();
    assert_eq!(o.losses.late, 1);
    let (asked, other) = (&o.report.vms[0], &o.report.vms[1]);
    assert_eq!((other.requests.seen, other.requests.complete), (1, 1), "{:?}", other.left_out);
    assert_eq!((asked.requests.seen, asked.requests.incomplete), (1, 1));
    assert_eq!(asked.left_out[0].reason, Reason::EventsLost);
    assert_eq!(o.report.skipped_signals, 0);
}

#[test]
fn a_skipped_signal_that_is_reported_too_late_is_counted_as_skipped() {
    let mut h = History::default();
    h.request(0, 7, REQ);
    let EventKind::Interrupt(signal) = h.0[3].kind else { panic!("{:?}", h.0[3]) };
    h.0[3].kind = EventKind::Interrupt(Interrupt {
        delivery: Delivery::Unknown,
        vector: Interrupt::SKIPPED,
        state: None,
        ..signal
    });
    let late = h.0.remove(3);
    h.packet(2 * S, Point::HostRx, 98, NIC);
    h.0.push(late);
    let o = long_after(h).run();
    assert_eq!((o.losses.late, o.report.skipped_signals), (1, 1));
}

#[test]
fn what_is_on_its_way_when_the_trace_ends_is_nobodys_fault() {
    let mut h = whole();
    h.0.truncate(5);
    assert_eq!(h.run().reason(), (Outcome::Unanswered, Reason::TraceEnded));
    h.0.push(Event { ts: T + 110_000, stream: StreamId::HOST, cpu: 2, kind: whole().0[6].kind });
    assert_eq!(h.run().reason(), (Outcome::Incomplete, Reason::TraceEnded));
    // The trace continues for longer than its events.
    h.0.truncate(5);
    let mut analyzer = Analyzer::new(&meta(Matching::Echo), Options::default());
    for e in &h.0 {
        analyzer.push(*e, &mut |_| ());
    }
    let counters = Counters { ended: T + 2 * S, ..Counters::default() };
    assert_eq!(analyzer.finish(counters, &mut |_| ()).vms[0].left_out[0].reason, Reason::NoAnswer);
}

#[test]
fn what_had_to_make_room_is_said_so() {
    let mut h = History::default();
    for i in 0..70_000 {
        h.request(i, 1000 + i, m(i, Role::Request));
    }
    h.0.retain(|e| matches!(e.kind, EventKind::Packet(p) if p.point == Point::TapEnqueue));
    h.0.sort_by_key(|e| e.ts);
    let o = h.run();
    let evicted = o.report.vms[0].left_out.iter().find(|l| l.reason == Reason::Evicted).unwrap();
    assert!(evicted.count >= 70_000 - (1 << 16), "{:?}", o.report.vms[0].left_out);
}

#[test]
fn a_sip_request_answered_by_another_copy_says_so() {
    let mut h = History::default();
    h.packet(0, Point::HostRx, 1, NIC).matched(10_000, Point::TapEnqueue, 1, TAP, REQ);
    h.request(500_000_000, 2, REQ).response(500_100_000, 8, FIN);
    let o = run(&meta(Matching::Sip), &h.0);
    assert_eq!(o.reason(), (Outcome::Incomplete, Reason::OtherCopy));
    // The first copy was dropped: the second one was answered.
    h.dropped(11_000, 1, TAP, REQ);
    h.0.sort_by_key(|e| e.ts);
    let o = run(&meta(Matching::Sip), &h.0);
    assert_eq!((o.counts(), o.report.vms[0].requests.retransmitted), ([1, 1, 0, 0, 0], 1));
    assert_eq!(o.report.vms[0].requests.sent_again.later, 1);
    // The response to it is dropped as well.
    h.0.retain(|e| !matches!(e.kind, EventKind::Packet(p) if p.fingerprint == 8));
    h.dropped(500_110_000, 8, TAP, FIN);
    h.0.sort_by_key(|e| e.ts);
    let o = run(&meta(Matching::Sip), &h.0);
    assert_eq!((o.counts(), o.reason().0), ([1, 0, 1, 0, 0], Outcome::Incomplete));
}

/// A request that is dropped at a tap, before or after it is put on the tap, and then an identical request that is not
/// dropped.
#[test]
fn a_dropped_request_ends_at_once_and_is_not_taken_for_its_twin() {
    for (when, after_the_tap) in [(10_500, true), (9_500, false)] {
        let mut h = History::default();
        h.packet(0, Point::HostRx, 7, NIC);
        if after_the_tap {
            h.matched(10_000, Point::TapEnqueue, 7, TAP, REQ);
        }
        h.dropped(when, 7, TAP, REQ)
            .at(when, EventKind::DropName(DropName { why: 9, name: padded("FULL_RING") }));
        h.request(60_000, 7, REQ).response(200_000, 8, FIN);
        let o = h.run();
        assert_eq!(o.counts(), [2, 1, 1, 0, 0]);
        assert_eq!(o.stages()[..5], [10; 5]);
        assert_eq!(o.reason(), (Outcome::Incomplete, Reason::DroppedIn));
        let vm = &o.report.vms[0];
        assert_eq!((vm.inbound.packets, vm.inbound.incomplete, vm.inbound.dropped), (1, 1, 1));
        assert_eq!(vm.left_out[0].explanation, "dropped by the host at tun_net_xmit (FULL_RING) on tap5");
    }
}

/// The guest's buffers are too small for a request: vhost takes it off the tap and discards it. The worker's next signal is of
/// another request.
#[test]
fn what_vhost_discards_did_not_reach_the_guest() {
    let readers =
        ["tun_do_read", "tun_put_user", "tun_recvmsg", "tap_do_read", "tap_put_user", "skb_release_data"];
    let cases = readers.into_iter().map(|reader| (reader, true, TAP)).chain([
        // Some kernels give a reason.
        ("tun_do_read", false, TAP),
        // Where a host routes to its taps, it is not known to which tap a packet is.
        ("tun_do_read", true, 0),
    ]);
    for (reader, unspecified, tap) in cases {
        let mut h = History::default();
        let discarded = Dropped { unspecified, tap, location: padded(reader), ..dropped(7, TAP) };
        h.packet(0, Point::HostRx, 7, NIC)
            .matched(1_000, Point::TapEnqueue, 7, TAP, REQ)
            .packet(2_000, Point::TapDequeue, 7, TAP)
            .at(3_000, EventKind::Dropped(discarded));
        h.request(4_000, 6, m(2, Role::Request)).response(200_000, 8, m(2, Role::Final));
        let o = long_after(h).run();
        assert_eq!((o.report.vms[0].requests.seen, o.report.vms[0].requests.complete), (2, 1), "{reader}");
        // Others free packets so that they have sent, or copies.
        let by_reader = reader.starts_with('t');
        let wanted = match by_reader {
            true => (Outcome::Incomplete, Reason::DroppedIn),
            false => (Outcome::Unanswered, Reason::NoAnswer),
        };
        assert_eq!(o.reason(), wanted, "{reader}");
        assert_eq!(o.report.vms[0].inbound.dropped, u64::from(by_reader));
    }
}

/// The same while another one like it waits on the same tap, or is on its way to another: a bridge floods it.
#[test]
fn what_vhost_discards_is_not_the_one_like_it_that_waits() {
    for waits_on in [TAP, TAP2] {
        let mut h = History::default();
        let discarded = Dropped { unspecified: true, location: padded("tun_do_read"), ..dropped(7, TAP) };
        h.packet(0, Point::HostRx, 7, NIC)
            .matched(1_000, Point::TapEnqueue, 7, TAP, REQ)
            .packet(2_000, Point::TapDequeue, 7, TAP)
            .packet(2_200, Point::HostRx, 7, NIC)
            .matched(2_500, Point::TapEnqueue, 7, waits_on, m(2, Role::Request))
            .at(3_000, EventKind::Dropped(discarded));
        let o = long_after(h).run();
        let vm = &o.report.vms[0];
        assert_eq!((vm.left_out_for(Reason::DroppedIn), vm.inbound.dropped), (1, 1), "{waits_on}");
        // The other one is still waiting.
        assert!(o.report.vms.iter().any(|vm| vm.left_out_for(Reason::NotTaken) == 1), "{waits_on}");
    }
}

/// Of two identical packets that are followed no further, the reader drops the one that it had taken: neither is counted again.
#[test]
fn a_packet_that_is_discarded_is_counted_once_though_another_is_like_it() {
    let mut h = History::default();
    let discarded = Dropped { unspecified: false, location: padded("tun_do_read"), ..dropped(7, TAP) };
    h.packet(0, Point::HostRx, 7, NIC).matched(1_000, Point::TapEnqueue, 7, TAP, REQ);
    h.packet(1_100, Point::HostRx, 7, NIC).matched(1_500, Point::TapEnqueue, 7, TAP, REQ);
    h.packet(2_000, Point::TapDequeue, 7, TAP).at(3_000, EventKind::Dropped(discarded));
    let o = long_after(h).run();
    assert_eq!((o.report.vms[0].inbound.incomplete, o.report.vms[0].inbound.dropped), (2, 0));
}

/// Another guest sends a packet, and perhaps a second one; one of them is dropped at the tap on which the first waits.
#[test]
fn a_drop_at_a_tap_where_another_one_like_it_waits_may_be_of_either() {
    for again in [false, true] {
        let mut h = History::default();
        h.matched(0, Point::TapSend, 7, TAP2, REQ).matched(10_000, Point::TapEnqueue, 7, TAP, REQ);
        if again {
            h.matched(12_000, Point::TapSend, 7, TAP2, REQ);
        }
        h.dropped(13_000, 7, TAP, REQ);
        // A second request has the same key. If the first was not dropped, the first response is for the second
        // request.
        h.packet(14_000, Point::HostRx, 6, NIC).matched(15_000, Point::TapEnqueue, 6, TAP, REQ);
        if again {
            h.packet(19_000, Point::TapDequeue, 7, TAP);
        }
        h.packet(20_000, Point::TapDequeue, 6, TAP).interrupt(40_000, 30_000, Delivery::Accepted);
        h.entry(50_000, 45_000, 40).response(100_000, 8, FIN);
        let o = long_after(h).run();
        if again {
            assert_eq!(o.counts(), [2, 0, 0, 2, 0]);
        } else {
            assert_eq!(o.counts(), [2, 1, 1, 0, 0], "only one was sent, and that was dropped");
            assert_eq!(o.reason(), (Outcome::Incomplete, Reason::DroppedIn));
            assert_eq!(o.joined[0].request.start, T + 14_000);
        }
    }
}

/// Another guest's packet waits at the link. Of two identical packets from the network one is dropped, and the other is
/// put on the tap. If the host sends its own packets to the tap, a packet without a report would start there.
#[test]
fn of_two_received_the_dropped_one_is_not_known_though_a_guest_has_sent_one_before() {
    let mut h = History::default();
    for i in 0..40 {
        h.matched(i * 1000, Point::TapEnqueue, 100 + i, TAP, None).packet(
            i * 1000 + 500,
            Point::TapDequeue,
            100 + i,
            TAP,
        );
    }
    h.packet(50_000, Point::HostRx, 6, NIC).matched(51_000, Point::TapEnqueue, 6, TAP, None);
    h.packet(52_000, Point::TapDequeue, 6, TAP);
    h.matched(60_000, Point::TapSend, 7, TAP2, None).packet(61_000, Point::DevQueue, 7, NIC);
    h.packet(70_000, Point::HostRx, 7, NIC)
        .packet(71_000, Point::HostRx, 7, NIC)
        .dropped(72_000, 7, TAP, REQ)
        .packet(73_000, Point::DevXmit, 7, NIC);
    // Long after the guest's packet has left.
    let t = 50_000_000;
    h.matched(t, Point::TapEnqueue, 7, TAP, REQ).packet(t + 10_000, Point::TapDequeue, 7, TAP);
    h.interrupt(t + 30_000, t + 20_000, Delivery::Accepted).entry(t + 40_000, t + 35_000, 40);
    h.response(t + 100_000, 8, FIN);
    let o = long_after(h).run();
    assert!(o.joined.is_empty(), "starts at {}", o.joined[0].request.start - T);
    assert_eq!(o.counts(), [2, 0, 1, 1, 0]);
}

/// A packet was dropped at its tap; an identical one arrives at another device: a copy of it, or another packet.
#[test]
fn what_another_device_receives_after_a_drop_may_be_a_copy_of_the_dropped_one() {
    let mut h = History::default();
    h.packet(0, Point::HostRx, 7, NIC).dropped(5_000, 7, TAP, REQ).packet(6_000, Point::HostRx, 7, VETH);
    h.request(60_000, 7, REQ).response(200_000, 8, FIN);
    let o = long_after(h).run();
    assert_eq!(o.counts(), [2, 0, 1, 1, 0]);
}

/// As above, but the packet that waits was received from the network.
#[test]
fn a_drop_at_a_tap_while_another_guest_sends_one_like_that_on_it_may_be_of_either() {
    let mut h = History::default();
    h.packet(0, Point::HostRx, 7, NIC).matched(10_000, Point::TapEnqueue, 7, TAP, REQ);
    h.matched(12_000, Point::TapSend, 7, TAP2, REQ).dropped(13_000, 7, TAP, REQ);
    h.packet(14_000, Point::HostRx, 6, NIC).matched(15_000, Point::TapEnqueue, 6, TAP, REQ);
    h.packet(19_000, Point::TapDequeue, 7, TAP).packet(20_000, Point::TapDequeue, 6, TAP);
    h.interrupt(40_000, 30_000, Delivery::Accepted).entry(50_000, 45_000, 40).response(100_000, 8, FIN);
    assert_eq!(long_after(h).run().counts(), [2, 0, 0, 2, 0]);
}

/// Another guest's packet has left by the link, and a router has sent it back: it is the packet on the tap.
#[test]
fn a_packet_that_came_back_by_a_router_is_the_one_that_is_dropped_at_its_tap() {
    let mut h = History::default();
    h.matched(0, Point::TapSend, 7, TAP2, REQ);
    h.packet(1000, Point::DevQueue, 7, NIC).packet(2000, Point::DevXmit, 7, NIC);
    h.packet(5000, Point::HostRx, 7, NIC).matched(10_000, Point::TapEnqueue, 7, TAP, REQ);
    h.dropped(13_000, 7, TAP, REQ);
    h.request(60_000, 6, REQ).response(200_000, 8, FIN);
    let o = long_after(h).run();
    assert_eq!(o.counts(), [2, 1, 1, 0, 0]);
    assert_eq!(o.reason(), (Outcome::Incomplete, Reason::DroppedIn));
}

#[test]
fn a_drop_before_the_bridge_or_without_any_report_counts_when_nothing_more_is_seen() {
    // At the first device, with a reason: at once.
    let mut h = History::default();
    h.packet(0, Point::HostRx, 7, NIC).dropped(5_000, 7, NIC, REQ);
    h.request(60_000, 7, REQ).response(200_000, 8, FIN);
    assert_eq!(h.run().counts(), [2, 1, 1, 0, 0]);
    // Elsewhere, and without a reception: when it has become too old.
    for received in [true, false] {
        let mut h = History::default();
        if received {
            h.packet(0, Point::HostRx, 7, NIC);
        }
        h.dropped(5_000, 7, VLAN, REQ);
        let o = long_after(h).run();
        assert_eq!(o.counts(), [1, 0, 1, 0, 0]);
        assert_eq!(o.reason(), (Outcome::Incomplete, Reason::DroppedIn));
    }
}

#[test]
fn a_dropped_copy_harms_nothing() {
    for (when, ifindex, unspecified) in
        [(5_000, VLAN, false), (5_000, NIC, true), (11_000, TAP, true), (11_000, NIC, false)]
    {
        let mut h = whole();
        h.at(when, EventKind::Dropped(Dropped { unspecified, matching: REQ, ..dropped(7, ifindex) }));
        h.0.sort_by_key(|e| e.ts);
        let o = h.run();
        assert_eq!(o.counts(), [1, 1, 0, 0, 0], "at {when} on {ifindex}");
        assert_eq!(o.report.vms[0].inbound.dropped, 0);
    }
    // Of the response: a copy that was flooded to another tap; and a packet that the driver frees after it has sent it.
    for (when, ifindex, unspecified) in [(115_000, VETH, false), (141_000, NIC, true)] {
        let mut h = whole();
        h.at(when, EventKind::Dropped(Dropped { unspecified, tap: 0, matching: FIN, ..dropped(8, ifindex) }));
        h.0.sort_by_key(|e| e.ts);
        assert_eq!(h.run().counts(), [1, 1, 0, 0, 0], "at {when} on {ifindex}");
    }
}

#[test]
fn a_drop_without_a_reason_counts_when_no_worker_takes_the_packet() {
    let mut h = History::default();
    h.packet(0, Point::HostRx, 7, NIC).matched(10_000, Point::TapEnqueue, 7, TAP, REQ);
    h.at(11_000, EventKind::Dropped(Dropped { unspecified: true, matching: REQ, ..dropped(7, TAP) }));
    assert_eq!(long_after(h).run().reason(), (Outcome::Incomplete, Reason::DroppedIn));
}

#[test]
fn a_dropped_response_says_where() {
    // Before the host stack has it; on its way into the tap; in the link's queue; by the driver; anywhere else.
    for (events, when, ifindex) in
        [(6, 105_000, TAP), (7, 111_000, TAP), (8, 125_000, NIC), (10, 141_000, NIC), (7, 115_000, VETH)]
    {
        let mut h = whole();
        h.0.truncate(events);
        h.at(when, EventKind::Dropped(Dropped { tap: 0, matching: FIN, ..dropped(8, ifindex) }));
        let o = long_after(h).run();
        assert_eq!(o.counts(), [1, 0, 1, 0, 0], "after {events} events");
        assert_eq!(o.reason(), (Outcome::Incomplete, Reason::DroppedOut), "after {events} events");
    }
}

#[test]
fn a_response_between_two_vms_that_is_dropped_at_the_others_tap_is_dropped() {
    let mut h = whole();
    h.0[0].kind = EventKind::Packet(Packet { matching: REQ, ..packet(Point::TapSend, 7, TAP2) });
    h.0.truncate(7);
    h.matched(120_000, Point::TapEnqueue, 8, TAP2, FIN);
    h.at(121_000, EventKind::Dropped(Dropped { tap: TAP2, matching: FIN, ..dropped(8, TAP2) }));
    let o = h.run();
    assert_eq!(o.reason(), (Outcome::Incomplete, Reason::DroppedOut));
    assert_eq!((o.report.vms[0].outbound.dropped, o.report.vms[1].inbound.dropped), (1, 1));
}

/// A host that routes to its taps does not identify guests by their addresses, so a drop names no guest's tap.
#[test]
fn a_drop_at_a_full_tap_of_a_routing_host_is_one_on_the_way_in() {
    let either = m(1, Role::Either);
    for tap in [0, TAP] {
        let mut h = History::default();
        h.packet(0, Point::HostRx, 7, NIC).matched(10_000, Point::TapEnqueue, 7, TAP, either);
        h.at(11_000, EventKind::Dropped(Dropped { matching: either, tap, ..dropped(7, TAP) }));
        let run = long_after(h).run();
        assert_eq!(run.reason(), (Outcome::Incomplete, Reason::DroppedIn), "tap {tap}");
        let vm = &run.report.vms[0];
        assert_eq!((vm.inbound.dropped, vm.outbound.dropped), (1, 0), "tap {tap}");
    }
}

/// What NICs have discarded is added up by NIC and counter, also what is read after the trace has ended.
#[test]
fn what_nics_discard_is_added_up() {
    use NicCounter::{RxErrors, TxErrors};
    let mut h = History::default();
    for (at, ifindex, counter, packets) in [
        (10, NIC, RxErrors, 3),
        (20, NIC, TxErrors, 1),
        (5_000_000_000, NIC, RxErrors, 4),
        (30, VETH, RxErrors, u64::MAX),
    ] {
        h.at(at, EventKind::NicLoss(NicLoss { ifindex, counter, packets }));
    }
    h.at(40, EventKind::NicLoss(NicLoss { ifindex: VETH, counter: RxErrors, packets: 1 }));
    let mut meta = meta(Matching::Echo);
    meta.devices = vec![(NIC, "eth0".to_owned())];
    let losses = run(&meta, &h.0).report.nic_losses;
    let losses: Vec<_> = losses.iter().map(|l| (l.device.as_str(), l.counter, l.packets)).collect();
    assert_eq!(losses, [("eth0", RxErrors, 7), ("eth0", TxErrors, 1), ("device 3", RxErrors, u64::MAX)]);
}
