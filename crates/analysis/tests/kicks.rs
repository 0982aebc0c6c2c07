//! Which kick ends the guest's part of a request.

mod common;

use common::*;
use teiji_model::event::*;

/// A request, its response 100 µs later, kicked at 100 µs and sent 10 µs after that: the guest's part takes 50 µs.
fn whole() -> History {
    let mut h = History::default();
    h.request(0, 7, m(1, Role::Request)).response(100_000, 8, m(1, Role::Final));
    h
}

#[test]
fn the_last_kick_after_the_entry_ends_the_guests_part() {
    let mut h = whole();
    h.kick(49_000).kick(60_000).kick(101_000);
    h.at(109_000, EventKind::Kick(Kick { vm: VM2, ..kick() }))
        .at(109_500, EventKind::Kick(Kick { ifindex: TAP2, ..kick() }));
    h.kick(111_000);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().stages()[5..7], [51, 9]);
}

#[test]
fn another_queues_kick_ends_nothing() {
    let mut h = whole();
    h.at(105_000, EventKind::Kick(Kick { queue: 3, ..kick() }));
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().stages()[5..7], [50, 10]);
    // Nor is it used for a frame without a kick, or for one whose queue is not known.
    let mut none = h.clone();
    none.0.retain(|e| !matches!(e.kind, EventKind::Kick(k) if k.queue == 0));
    for e in &mut h.0 {
        if let EventKind::Packet(p) = &mut e.kind {
            p.queue = None;
        }
    }
    for history in [none, h] {
        let o = history.run();
        assert_eq!(o.stages()[5..7], [60, 0]);
        assert!(o.joined[0].request.coalesced_kick);
    }
}

#[test]
fn frames_of_another_queue_leave_a_queues_kick_alone() {
    let mut h = whole();
    h.at(104_000, EventKind::Kick(Kick { queue: 3, ..kick() }));
    h.at(106_000, EventKind::Packet(Packet { queue: Some(3), ..packet(Point::TapSend, 55, TAP) }));
    h.0.sort_by_key(|e| e.ts);
    let o = h.run();
    assert_eq!(o.stages()[5..7], [50, 10]);
    let vhost_tx = o.report.vms[0].outbound.stages[0].1;
    assert_eq!(vhost_tx.count, 1, "the frame of the other queue went nowhere");
}

/// The worker does not sleep between two frames, so the guest sends the second without a kick.
#[test]
fn a_kick_that_an_earlier_frame_had_ends_nothing() {
    let mut h = whole();
    h.0.retain(|e| !matches!(e.kind, EventKind::Kick(_)));
    h.kick(60_000).packet(70_000, Point::TapSend, 9, TAP);
    h.0.sort_by_key(|e| e.ts);
    let o = h.run();
    assert_eq!(o.stages()[5..7], [60, 0]);
    assert!(o.joined[0].request.coalesced_kick);
    // Without that frame it is not known whose the kick was; with another kick it is.
    h.0.retain(|e| !matches!(e.kind, EventKind::Packet(p) if p.fingerprint == 9));
    assert_eq!(h.run().stages()[5..7], [10, 50]);
    h.packet(70_000, Point::TapSend, 9, TAP).kick(90_000);
    h.0.sort_by_key(|e| e.ts);
    assert_eq!(h.run().stages()[5..7], [40, 20]);
}
