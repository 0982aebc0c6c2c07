//! One history for each rule of the join.

mod common;

use common::*;
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::stage::{Split, Stage, ThreadState};
use teiji_model::stream::StreamId;

const REQ: Option<Match> =
    Some(Match { key: 1, role: Role::Request, group: 0, group_role: GroupRole::Within });
const FIN: Option<Match> = Some(Match { key: 1, role: Role::Final, group: 0, group_role: GroupRole::Within });

/// switch_in, tap_queue, vhost_rx, irq, vcpu_wake, guest, vhost_tx, switch_out, qdisc, wire_out, unattributed.
const TENS: [u64; 11] = [10, 10, 10, 10, 10, 50, 10, 10, 10, 10, 0];

fn whole() -> History {
    let mut h = History::default();
    h.request(0, 7, REQ).response(100_000, 8, FIN);
    h
}

#[test]
fn a_request_is_followed_through_every_stage() {
    let o = whole().run();
    assert_eq!(o.stages(), TENS);
    let r = &o.joined[0].request;
    assert_eq!(
        (r.key, r.start, r.total, r.vcpu, r.vcpu_state),
        (1, T, 140_000, 1, Some(ThreadState::Asleep))
    );
    assert!(!r.coalesced_kick);
    assert_eq!(o.counts(), [1, 1, 0, 0, 0]);
    let vm = &o.report.vms[0];
    assert_eq!((vm.inbound.packets, vm.inbound.incomplete, vm.outbound.packets), (1, 0, 1));
    assert_eq!(vm.inbound.stages.len(), 5);
    assert_eq!(vm.outbound.stages.len(), 4);
    assert_eq!(vm.slowest.len(), 1);
    assert_eq!(vm.depth.unwrap().count, 1);
    assert_eq!(o.report.vms[1].requests, Default::default());
}

#[test]
fn the_first_of_repeated_reports_counts() {
    let mut h = History::default();
    for i in 0..3 {
        let (t, fp, key) = (i * 1_000_000, 100 + i, i);
        h.packet(t, Point::HostRx, fp, NIC).packet(t + 1000, Point::HostRx, fp, NIC);
        h.packet(t + 2000, Point::HostRx, fp, VETH);
        let mut rest = History::default();
        rest.request(t, fp, m(key, Role::Request)).response(t + 100_000, 200 + i, m(key, Role::Final));
        h.0.extend(&rest.0[1..]);
    }
    // That two devices report a packet is only known from the second packet on.
    let o = h.run();
    assert_eq!(o.counts(), [3, 2, 1, 0, 0]);
    assert!(o.joined.iter().all(|j| j.request.stages[0].ns == 10_000));
}

#[test]
fn more_reports_than_usual_are_two_packets_and_fewer_a_hole() {
    for (device, extra, expected) in [(NIC, 1, [4, 3, 0, 1, 0]), (VETH, 1, [4, 3, 1, 0, 0])] {
        let mut h = History::default();
        for i in 0..4u64 {
            let (t, fp) = (i * 1_000_000, 100 + i);
            if i == 3 {
                // Another identical packet, which is dropped before the tap.
                for _ in 0..extra {
                    h.packet(t - 900_000, Point::HostRx, fp, device);
                }
            }
            h.request(t, fp, m(i, Role::Request)).response(t + 100_000, 200 + i, m(i, Role::Final));
        }
        assert_eq!(h.run().counts(), expected);
    }
    let mut h = History::default();
    for i in 0..4u64 {
        let (t, fp) = (i * 1_000_000, 100 + i);
        if i < 3 {
            h.packet(t, Point::HostRx, fp, NIC); // The fourth has lost one of its two reports.
        }
        h.request(t + 1000, fp, m(i, Role::Request)).response(t + 100_000, 200 + i, m(i, Role::Final));
    }
    assert_eq!(h.run().counts(), [4, 3, 1, 0, 0]);
}

#[test]
fn a_local_packet_starts_at_the_tap_but_not_where_all_others_are_received() {
    let mut local = whole();
    local.0.remove(0);
    assert_eq!(local.run().stages()[0], 0);

    let mut h = History::default();
    for i in 0..20 {
        let t = i * 1_000_000;
        h.request(t, 100 + i, m(i, Role::Request)).response(t + 100_000, 200 + i, m(i, Role::Final));
    }
    h.0.remove(19 * 10); // The HostRx of the last one.
    assert_eq!(h.run().counts(), [20, 19, 1, 0, 0]);
}

#[test]
fn an_interrupt_covers_what_was_taken_before_it() {
    // Two packets taken; the second one after the worker began to signal the first.
    let mut h = History::default();
    for (i, t) in [(1u64, 0u64), (2, 1000)] {
        h.packet(t, Point::HostRx, i, NIC).matched(
            t + 10_000,
            Point::TapEnqueue,
            i,
            TAP,
            m(i, Role::Request),
        );
    }
    h.packet(20_000, Point::TapDequeue, 1, TAP);
    h.packet(31_000, Point::TapDequeue, 2, TAP);
    h.interrupt(32_000, 30_000, Delivery::Accepted);
    h.entry(35_000, 34_000, 40);
    h.interrupt(42_000, 40_000, Delivery::Accepted);
    h.entry(50_000, 49_000, 40);
    h.response(100_000, 11, m(1, Role::Final)).response(200_000, 12, m(2, Role::Final));
    let o = h.run();
    let rx: Vec<_> = o.joined.iter().map(|j| j.request.stages[2].ns).collect();
    let wake: Vec<_> = o.joined.iter().map(|j| j.request.stages[4].ns).collect();
    assert_eq!((rx, wake), (vec![10_000, 9_000], vec![3_000, 8_000]));
}

#[test]
fn another_workers_or_taps_interrupt_is_not_ones_own() {
    let mut h = whole();
    let other = EventKind::Interrupt(Interrupt { tid: WORKER + 1, ..interrupt(25_000) });
    let tap = EventKind::Interrupt(Interrupt { ifindex: TAP2, ..interrupt(25_000) });
    h.on(26_000, 1, other).on(27_000, 1, tap);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().stages(), TENS);
}

#[test]
fn an_entry_must_be_of_the_vcpu_and_vector_and_cover_the_interrupt() {
    let mut h = whole();
    let of = |e: GuestEntry| EventKind::GuestEntry(e);
    h.at(46_000, of(GuestEntry { vcpu: 0, ..entry(45_000) }));
    h.at(47_000, of(GuestEntry { vector: 41, ..entry(45_000) }));
    h.at(48_000, of(GuestEntry { vm: VM2, ..entry(45_000) }));
    h.at(49_000, of(entry(39_999)));
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().stages(), TENS);
}

fn delivered(delivery: Delivery, state: ThreadState, entry: Option<u8>) -> Run {
    let mut h = whole();
    h.0.retain(|e| !matches!(e.kind, EventKind::Interrupt(_) | EventKind::GuestEntry(_)));
    h.at(40_000, EventKind::Interrupt(Interrupt { delivery, state: Some(state), ..interrupt(30_000) }));
    if let Some(vector) = entry {
        h.entry(50_000, 45_000, vector);
    }
    h.0.sort_by_key(|e| e.ts);
    h.run()
}

#[test]
fn what_the_guest_sees_at_once_needs_no_entry() {
    let at_once = [10, 10, 10, 10, 0, 60, 10, 10, 10, 10, 0];
    assert_eq!(delivered(Delivery::Posted, ThreadState::Guest, None).stages(), at_once);
    assert_eq!(delivered(Delivery::Suppressed, ThreadState::Guest, None).stages(), at_once);
}

#[test]
fn a_suppressed_interrupt_waits_for_an_entry_with_vector_0() {
    assert_eq!(delivered(Delivery::Suppressed, ThreadState::Run, Some(0)).stages(), TENS);
    assert_eq!(delivered(Delivery::Suppressed, ThreadState::Run, Some(40)).counts(), [1, 0, 1, 0, 0]);
    assert_eq!(delivered(Delivery::Accepted, ThreadState::Run, Some(0)).counts(), [1, 0, 1, 0, 0]);
    assert_eq!(delivered(Delivery::Unknown, ThreadState::Run, Some(40)).counts(), [1, 0, 1, 0, 0]);
}

#[test]
fn every_missing_point_but_a_kick_and_a_dequeue_is_a_hole() {
    let all = whole();
    for i in 0..all.0.len() {
        let mut h = all.clone();
        let gone = h.0.remove(i).kind;
        let counts = h.run().counts();
        let expected = match gone {
            EventKind::Packet(p) => match p.point {
                Point::HostRx | Point::QdiscDequeue => [1, 1, 0, 0, 0],
                Point::TapEnqueue => [0, 0, 0, 0, 0],
                Point::TapSend => [1, 0, 0, 0, 1],
                _ => [1, 0, 1, 0, 0],
            },
            EventKind::Kick(_) => [1, 1, 0, 0, 0],
            _ => [1, 0, 1, 0, 0],
        };
        assert_eq!(counts, expected, "without {gone:?}");
    }
}

#[test]
fn a_worker_that_slept_has_signalled() {
    let clock = |asleep| Some(Split([0, 0, asleep, 0, 0]));
    let mut h = History::default();
    for (i, t) in [(1u64, 0u64), (2, 500_000)] {
        h.request(t, i, m(i, Role::Request)).response(t + 100_000, 10 + i, m(i, Role::Final));
    }
    h.0.retain(|e| !(e.ts < T + 100_000 && matches!(e.kind, EventKind::Interrupt(_))));
    for (e, asleep) in h.0.iter_mut().filter(|e| e.ts % 500_000 == 20_000).zip([1000, 2000]) {
        let EventKind::Packet(p) = &mut e.kind else { panic!() };
        p.worker = clock(asleep);
    }
    let o = h.run();
    assert_eq!(o.counts(), [2, 1, 1, 0, 0]);
    assert_eq!(o.joined[0].request.key, 2);
    assert_eq!(o.report.vms[0].inbound.packets, 1, "the first must not take the second's interrupt");
}

#[test]
fn a_vcpu_is_joined_by_kvms_number_and_shown_by_its_index() {
    let mut h = whole();
    for e in &mut h.0 {
        match &mut e.kind {
            // not known yet when the interrupt is accepted
            EventKind::Interrupt(i) => (i.vcpu, i.index, i.state) = (4, None, None),
            EventKind::GuestEntry(g) => (g.vcpu, g.index) = (4, 3),
            EventKind::Kick(k) => k.vcpu = 4,
            _ => {}
        }
    }
    let o = h.run();
    assert_eq!(o.counts(), [1, 1, 0, 0, 0]);
    assert_eq!((o.joined[0].request.vcpu, o.joined[0].request.vcpu_state), (3, None));
    assert_eq!(o.split(Stage::VcpuWake), None, "a clock that is not known was read");
    assert_eq!(o.losses.splits_dropped, 0);
}

#[test]
fn an_interrupt_that_needs_no_entry_is_shown_by_its_vcpus_index() {
    let mut h = whole();
    h.0.retain(|e| !matches!(e.kind, EventKind::GuestEntry(_)));
    for e in &mut h.0 {
        if let EventKind::Interrupt(i) = &mut e.kind {
            (i.vcpu, i.index, i.delivery, i.state) = (4, Some(3), Delivery::Posted, Some(ThreadState::Guest));
        }
    }
    assert_eq!(h.run().joined[0].request.vcpu, 3);
}

#[test]
fn without_a_kick_of_its_own_the_guests_part_lasts_until_the_frame_is_sent() {
    let mut h = whole();
    h.0.retain(|e| !matches!(e.kind, EventKind::Kick(_)));
    h.kick(49_000);
    h.0.sort_by_key(|e| e.ts);
    let o = h.run();
    assert_eq!(o.stages()[5..7], [60, 0]);
    assert!(o.joined[0].request.coalesced_kick);
    assert_eq!(o.split(Stage::Guest), None);
    assert_eq!(o.split(Stage::VhostTx), Some(Split::default()));
}

/// Sets the clocks of the whole history: states by ns at each reading.
fn clocked(kick_vcpu: u32) -> History {
    let mut h = whole();
    for e in &mut h.0 {
        match &mut e.kind {
            EventKind::Packet(p) => {
                p.worker = match p.point {
                    Point::TapEnqueue => Some(Split([0, 0, 100, 0, 0])),
                    Point::TapDequeue => Some(Split([0, 0, 4100, 6000, 0])),
                    Point::TapSend => Some(Split([0, 0, 4100, 6000, 10_500])),
                    _ => None,
                };
                p.preempted_by = 333;
            }
            EventKind::Interrupt(i) => i.clock = Split([5, 5, 5, 5, 5]),
            EventKind::GuestEntry(g) => {
                g.clock = Split([5, 5, 3005, 7005, 5]);
                g.preempted_by = 444;
            }
            EventKind::Kick(k) => {
                k.clock = Split([48_005, 5, 3005, 7005, 2005]);
                k.vcpu = kick_vcpu;
                k.worker = Some(Split([0, 0, 4100, 6000, 500]));
                k.preempted_by = 555;
            }
            _ => {}
        }
    }
    h
}

#[test]
fn splits_are_differences_of_clocks() {
    let o = clocked(1).run();
    assert_eq!(o.split(Stage::TapQueue), Some(Split([0, 0, 4000, 6000, 0])));
    assert_eq!(o.split(Stage::VcpuWake), Some(Split([0, 0, 3000, 7000, 0])));
    assert_eq!(o.split(Stage::Guest), Some(Split([48_000, 0, 0, 0, 2000])));
    assert_eq!(o.split(Stage::VhostTx), Some(Split([0, 0, 0, 0, 10_000])));
    assert_eq!(o.split(Stage::SwitchIn), None);
    // A preempting thread counts only if there was a wait.
    assert_eq!(o.joined[0].preempted_by, [(Stage::TapQueue, 333), (Stage::VcpuWake, 444)]);
    assert_eq!(o.losses.splits_dropped, 0);
    let wake = &o.report.vms[0].stages[Stage::VcpuWake as usize];
    assert_eq!(wake.parts[ThreadState::Ready as usize].mean, 7000.0);
}

#[test]
fn what_a_preempted_guest_waits_for_a_cpu_is_vcpu_wakes() {
    let mut h = clocked(1);
    for e in &mut h.0 {
        if let EventKind::Kick(k) = &mut e.kind {
            // of the guest's 50 µs, 30 waiting while thread 555 had the CPU
            k.clock.0[ThreadState::Guest as usize] -= 30_000;
            k.clock.0[ThreadState::Ready as usize] += 30_000;
            k.preempted_by = 555;
        }
    }
    let o = h.run();
    assert_eq!(o.split(Stage::VcpuWake), Some(Split([0, 0, 3000, 37_000, 0])));
    assert_eq!(o.split(Stage::Guest), Some(Split([18_000, 0, 0, 0, 2000])));
    let r = &o.joined[0].request;
    assert_eq!(r.preempted, 30_000);
    assert_eq!(r.stages.iter().map(|s| s.ns).sum::<u64>(), r.total);
    // One is named for both waits: that of the longer part as often as that is longer (preempted_by.rs).
    let named = &o.joined[0].preempted_by;
    assert_eq!(named.iter().map(|(stage, _)| *stage).collect::<Vec<_>>(), [Stage::TapQueue, Stage::VcpuWake]);
    assert!([444, 555].contains(&named[1].1), "{named:?}");
}

#[test]
fn another_vcpus_kick_gives_no_split_of_the_guests_part() {
    assert_eq!(clocked(0).run().split(Stage::Guest), None);
}

/// A frame that passes the stack in another thread's context has no worker, and a kick may come before its worker is known.
#[test]
fn without_a_reading_of_the_worker_at_both_ends_vhost_tx_is_not_divided() {
    for at_kick in [true, false] {
        let mut h = clocked(1);
        for e in &mut h.0 {
            match &mut e.kind {
                EventKind::Kick(k) if at_kick => k.worker = None,
                EventKind::Packet(p) if !at_kick && p.point == Point::TapSend => p.worker = None,
                _ => {}
            }
        }
        let o = h.run();
        assert_eq!(o.split(Stage::VhostTx), None, "{at_kick}");
        assert_eq!(o.joined[0].request.stages[Stage::VhostTx as usize].ns, 10_000);
        assert!(o.split(Stage::TapQueue).is_some());
    }
}

#[test]
fn a_split_that_does_not_fit_is_dropped_and_counted() {
    let mut h = clocked(1);
    for e in &mut h.0 {
        if let EventKind::GuestEntry(g) = &mut e.kind {
            g.clock.0[3] += 500_000;
        }
    }
    // Later events complete the request, so that the tally includes it.
    h.packet(1_000_000_000, Point::HostRx, 99, NIC);
    h.packet(2_000_000_000, Point::HostRx, 98, NIC);
    let o = h.run();
    assert_eq!(o.split(Stage::VcpuWake), None);
    assert_eq!(o.split(Stage::Guest), None);
    assert_eq!(o.losses.splits_dropped, 2);
}

#[test]
fn the_last_device_is_the_link() {
    let mut h = whole();
    h.packet(112_000, Point::DevQueue, 8, VLAN).packet(115_000, Point::DevXmit, 8, VLAN);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().stages(), TENS);
}

#[test]
fn a_bypassed_qdisc_takes_no_time_but_one_whose_dequeue_is_not_seen_does() {
    let mut h = whole();
    h.0.retain(|e| !matches!(e.kind, EventKind::Packet(p) if p.point == Point::QdiscDequeue));
    assert_eq!(h.run().stages()[8..], [0, 20, 0]);
    h.0.last_mut().unwrap().cpu = 3; // Handed on by another CPU than the one that queued it.
    assert_eq!(h.run().stages()[8..], [0, 0, 20]);
}

#[test]
fn a_refused_hand_over_is_queue_time() {
    let mut h = whole();
    h.packet(150_000, Point::QdiscDequeue, 8, NIC).packet(151_000, Point::DevXmit, 8, NIC);
    assert_eq!(h.run().stages()[7..], [10, 30, 1, 0]);
}

#[test]
fn traced_taps_own_queues_are_no_links() {
    let mut h = whole();
    h.packet(8_000, Point::DevQueue, 7, TAP).packet(9_000, Point::DevXmit, 7, TAP);
    h.packet(111_000, Point::HostRx, 8, TAP);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().stages(), TENS);
}

#[test]
fn between_two_vms_the_path_goes_from_tap_to_tap() {
    let mut h = whole();
    h.0[0].kind = EventKind::Packet(Packet { matching: REQ, ..packet(Point::TapSend, 7, TAP2) });
    h.0.truncate(7);
    h.matched(120_000, Point::TapEnqueue, 8, TAP2, FIN).packet(130_000, Point::TapDequeue, 8, TAP2);
    let o = h.run();
    assert_eq!(o.stages(), [10, 10, 10, 10, 10, 50, 10, 10, 0, 0, 0]);
    assert_eq!(o.report.vms[1].requests.seen, 0, "the requests of VM 1 are not requests to it");
    assert_eq!(o.report.vms[1].outbound.packets, 1);
}

#[test]
fn a_packet_that_leaves_and_comes_back_by_a_router_starts_where_it_came_back() {
    let mut h = whole();
    let mut out = History(vec![]);
    out.matched(0, Point::TapSend, 7, TAP2, REQ).packet(1000, Point::DevQueue, 7, NIC);
    out.packet(2000, Point::DevXmit, 7, NIC);
    for e in &mut h.0 {
        e.ts += 100_000;
        if let EventKind::Interrupt(i) = &mut e.kind {
            i.signalled += 100_000;
        }
        if let EventKind::GuestEntry(g) = &mut e.kind {
            g.upto += 100_000;
        }
    }
    out.0.extend(h.0);
    assert_eq!(out.run().stages(), TENS);
}

#[test]
fn two_requests_alike_are_both_ambiguous() {
    // The same fingerprint on the same tap at the same time.
    let mut h = whole();
    h.packet(11_000, Point::HostRx, 7, NIC).matched(12_000, Point::TapEnqueue, 7, TAP, m(2, Role::Request));
    h.packet(21_000, Point::TapDequeue, 7, TAP).response(200_000, 9, m(2, Role::Final));
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().counts(), [2, 0, 0, 2, 0]);
    // The same key.
    let mut h = whole();
    h.request(60_000, 6, REQ).response(150_000, 9, FIN);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().counts(), [2, 0, 0, 2, 0]);
    // If they are not answered, they are ambiguous, too.
    let mut none = History::default();
    none.request(0, 7, REQ).request(60_000, 6, REQ);
    assert_eq!(none.run().counts(), [2, 0, 0, 2, 0]);
    // When both are answered, the key is free again.
    h.request(500_000, 7, REQ).response(600_000, 8, FIN);
    assert_eq!(h.run().counts(), [3, 1, 0, 2, 0]);
}

#[test]
fn two_responses_alike_are_both_ambiguous() {
    let mut h = whole();
    h.request(50_000, 6, m(2, Role::Request)).matched(125_000, Point::TapSend, 8, TAP, m(2, Role::Final));
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().counts(), [2, 0, 0, 2, 0]);
}

#[test]
fn the_same_packet_may_come_again_when_the_first_is_gone() {
    let mut h = whole();
    h.request(200_000, 7, REQ).response(300_000, 8, FIN);
    assert_eq!(h.run().counts(), [2, 2, 0, 0, 0]);
}

#[test]
fn either_way_the_first_packet_of_a_key_is_the_request() {
    let echo = m(5, Role::Either);
    let mut h = History::default();
    h.request(0, 7, echo).response(100_000, 8, echo);
    assert_eq!(h.run().stages(), TENS);
    // The guest's own request, its response, and again.
    let mut own = History::default();
    for i in 0..3 {
        own.response(i * 1_000_000, 7, echo).request(i * 1_000_000 + 100_000, 8, echo);
    }
    let o = own.run();
    assert_eq!((o.counts(), o.joined.len()), ([0; 5], 0));
    // A request whose events are lost does not exchange the two roles.
    h.response(1_000_000, 9, echo).request(2_000_000, 7, echo).response(2_100_000, 8, echo);
    assert_eq!(h.run().counts(), [2, 2, 0, 0, 0]);
}

#[test]
fn unanswered_requests_expire() {
    let mut h = History::default();
    h.request(0, 7, REQ);
    let o = h.run();
    assert_eq!(o.counts(), [1, 0, 0, 0, 1]);
    // Six seconds later, a response would belong to another request.
    h.packet(6_000_000_000, Point::HostRx, 99, NIC).response(6_100_000_000, 8, FIN);
    assert_eq!(h.run().counts(), [1, 0, 0, 0, 1]);
    let o = run(&meta(Matching::Sip), &h.0);
    assert_eq!(o.counts(), [1, 1, 0, 0, 0], "SIP waits for 32 s");
}

#[test]
fn a_packet_that_is_not_through_all_its_devices_is_not_gone() {
    let mut h = History::default();
    for (i, t) in [(0u64, 0u64), (1, 50_000_000), (2, 50_000_001)] {
        h.request(t, 100 + i, m(i, Role::Request));
    }
    h.0.sort_by_key(|e| e.ts);
    let out = |h: &mut History, t: u64, fp: u64, key: u64| {
        h.matched(t, Point::TapSend, fp, TAP, m(key, Role::Final));
        h.packet(t + 1000, Point::DevQueue, fp, VLAN).packet(t + 2000, Point::DevXmit, fp, VLAN);
    };
    out(&mut h, 100_000, 200, 0);
    h.packet(104_000, Point::DevQueue, 200, NIC).packet(105_000, Point::DevXmit, 200, NIC);
    out(&mut h, 50_100_000, 201, 1);
    out(&mut h, 50_110_000, 201, 2); // An identical packet is still above the NIC.
    assert_eq!(h.run().counts(), [3, 1, 0, 2, 0]);
}

#[test]
fn what_overlaps_a_loss_is_incomplete() {
    // While the request is in the guest: neither direction lacks an event, but the request may.
    let mut h = History::default();
    h.request(0, 7, REQ).response(300_000_000, 8, FIN);
    h.0.insert(
        5,
        Event {
            ts: T + 61_000,
            stream: StreamId::HOST,
            cpu: 9,
            kind: EventKind::Lost(Lost { since: T + 60_000, count: 1 }),
        },
    );
    let o = h.run();
    assert_eq!(o.counts(), [1, 0, 1, 0, 0]);
    assert_eq!((o.report.vms[0].inbound.packets, o.report.vms[0].outbound.packets), (1, 1));
    // While the packet is on its path.
    h.0[5] = Event {
        ts: T + 46_000,
        stream: StreamId::HOST,
        cpu: 9,
        kind: EventKind::Lost(Lost { since: T + 45_000, count: 1 }),
    };
    assert_eq!(h.run().report.vms[0].inbound.incomplete, 1);
    let mut h = whole();
    h.0.insert(
        3,
        Event {
            ts: T + 61_000,
            stream: StreamId::HOST,
            cpu: 9,
            kind: EventKind::Lost(Lost { since: T + 60_000, count: 1 }),
        },
    );
    assert_eq!(h.run().counts(), [1, 0, 1, 0, 0]);
    let mut h = whole();
    let far = 1_000_000_000;
    h.0.insert(
        3,
        Event {
            ts: T + far,
            stream: StreamId::HOST,
            cpu: 9,
            kind: EventKind::Lost(Lost { since: T + far - 1, count: 1 }),
        },
    );
    assert_eq!(h.run().counts(), [1, 1, 0, 0, 0]);
}

fn sip(key: u64, role: Role, group_role: GroupRole) -> Option<Match> {
    Some(Match { key, role, group: 42, group_role })
}

/// A SIP call: INVITE with a provisional response, ACK, BYE; a conversation of 500 ms.
fn call() -> History {
    let mut h = History::default();
    let t = 500_000_000;
    h.request(0, 1, sip(1, Role::Request, GroupRole::Begins));
    h.matched(60_000, Point::TapSend, 2, TAP, sip(1, Role::Provisional, GroupRole::Begins));
    h.response(100_000, 3, sip(1, Role::Final, GroupRole::Begins));
    h.packet(150_000, Point::HostRx, 4, NIC);
    h.matched(160_000, Point::TapEnqueue, 4, TAP, sip(1, Role::OneWay, GroupRole::Within));
    h.packet(170_000, Point::TapDequeue, 4, TAP);
    h.request(t, 5, sip(3, Role::Request, GroupRole::Ends));
    h.response(t + 100_000, 6, sip(3, Role::Final, GroupRole::Ends));
    h
}

#[test]
fn a_call_lasts_from_invite_to_the_response_to_bye() {
    let o = run(&meta(Matching::Sip), &call().0);
    assert_eq!(o.counts(), [2, 2, 0, 0, 0]);
    let g = o.report.vms[0].groups.clone().unwrap();
    assert_eq!((g.complete, g.incomplete), (1, 0));
    assert_eq!(g.total.max, 500_140_000);
    assert_eq!(g.outside.max, 500_000_000 - 140_000);
}

#[test]
fn a_call_with_a_hole_or_without_its_beginning_is_not_counted_as_whole() {
    let mut hole = call();
    hole.0.retain(
        |e| !matches!(e.kind, EventKind::Packet(p) if p.fingerprint == 3 && p.point == Point::DevXmit),
    );
    let g = run(&meta(Matching::Sip), &hole.0).report.vms[0].groups.clone().unwrap();
    assert_eq!((g.complete, g.incomplete), (0, 1));
    let late = History(call().0.into_iter().filter(|e| e.ts > T + 400_000_000).collect());
    assert_eq!(run(&meta(Matching::Sip), &late.0).report.vms[0].groups, None);
}

#[test]
fn a_sip_request_that_comes_again_is_the_same_request() {
    // After the response, with another response; and before it.
    let mut after = call();
    after.request(600_000_000, 9, sip(3, Role::Request, GroupRole::Ends));
    after.response(600_100_000, 10, sip(3, Role::Final, GroupRole::Ends));
    let mut before = call();
    before.request(50_000, 11, sip(1, Role::Request, GroupRole::Begins));
    before.0.sort_by_key(|e| e.ts);
    for h in [after, before] {
        let o = run(&meta(Matching::Sip), &h.0);
        assert_eq!(o.counts(), [2, 2, 0, 0, 0]);
        assert_eq!(o.report.vms[0].requests.retransmitted, 1);
        assert_eq!(o.report.vms[0].groups.as_ref().unwrap().complete, 1);
        let plain = run(&meta(Matching::Sip), &call().0);
        assert_eq!(o.report.vms[0].total, plain.report.vms[0].total, "times are those of the first copy");
    }
}

#[test]
fn on_a_tap_whose_vmm_is_not_followed_a_packet_ends_on_the_tap() {
    let mut m = meta(Matching::Echo);
    m.vms[0].pid = 0;
    m.vms[0].nics[0].data_plane = teiji_model::host::DataPlane::Userspace;
    let ifindex = m.vms[0].nics[0].ifindex;
    let mut h = History::default();
    for i in 0..100u64 {
        h.packet(i * 1_000_000, Point::HostRx, i + 1, NIC);
        h.packet(i * 1_000_000 + 7000, Point::TapEnqueue, i + 1, ifindex);
    }
    let report = run(&m, &h.0).report;
    let vm = &report.vms[0];
    assert_eq!((vm.inbound.packets, vm.inbound.incomplete, vm.requests.seen), (100, 0, 0));
    assert_eq!(vm.inbound.stages.len(), 1);
    assert_eq!((vm.inbound.stages[0].0, vm.inbound.stages[0].1.max), (Stage::SwitchIn, 7000));
}
