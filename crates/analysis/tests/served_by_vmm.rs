//! Taps that the VMM serves itself: its thread takes the packets, and signals them by an interrupt that may be one of any of
//! its devices.

mod common;

use common::*;
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::host::DataPlane;
use teiji_model::report::{Meta, Outcome, Reason};
use teiji_model::stage::ThreadState;

const S: u64 = 1_000_000_000;

fn served_by_vmm() -> Meta {
    let mut meta = meta(Matching::Echo);
    meta.vms[0].nics[0].data_plane = DataPlane::Userspace;
    meta
}

fn request(key: u64) -> Option<Match> {
    m(key, Role::Request)
}

fn answer(key: u64) -> Option<Match> {
    m(key, Role::Final)
}

/// A request on the tap, taken off it 10 µs later.
fn taken(h: &mut History, t: u64, key: u64) {
    h.packet(t, Point::HostRx, key, NIC)
        .matched(t + 10_000, Point::TapEnqueue, key, TAP, request(key))
        .packet(t + 20_000, Point::TapDequeue, key, TAP);
}

/// Nothing is on its path any more.
fn long_after(h: &mut History) {
    h.packet(20 * S, Point::HostRx, 99, NIC).packet(40 * S, Point::HostRx, 98, NIC);
}

#[test]
fn a_request_is_followed_to_the_guest_and_back() {
    let mut h = History::default();
    h.request(0, 1, request(1)).response(100_000, 2, answer(1));
    assert_eq!(run(&served_by_vmm(), &h.0).stages(), [10, 10, 10, 10, 10, 50, 10, 10, 10, 10, 0]);
}

#[test]
fn packets_taken_before_one_interrupt_are_joined_with_it() {
    let mut h = History::default();
    taken(&mut h, 0, 1);
    taken(&mut h, 30_000, 2);
    h.interrupt(80_000, 70_000, Delivery::Accepted).entry(90_000, 85_000, 40);
    h.response(200_000, 11, answer(1)).response(300_000, 12, answer(2));
    let o = run(&served_by_vmm(), &h.0);
    assert_eq!(o.counts(), [2, 2, 0, 0, 0]);
    let rx: Vec<u64> = o.joined.iter().map(|j| j.request.stages[2].ns / 1000).collect();
    assert_eq!(rx, [50, 20], "from the time at which each was taken to the one signal");
    assert_eq!(o.report.vms[0].bursts.as_ref().unwrap().signals.max, 2);
}

/// The packet is in the ring, and the guest wants no interrupt: it has the packet if its vCPU runs, else when it runs.
#[test]
fn without_an_interrupt_the_state_of_the_vcpu_decides() {
    for (state, entered) in [(ThreadState::Guest, 30), (ThreadState::Ready, 60)] {
        let mut h = History::default();
        taken(&mut h, 0, 1);
        let suppressed =
            Interrupt { delivery: Delivery::Suppressed, vector: 0, state: Some(state), ..interrupt(30_000) };
        h.at(30_000, EventKind::Interrupt(suppressed)).entry(60_000, 55_000, 0);
        h.response(100_000, 11, answer(1));
        let o = run(&served_by_vmm(), &h.0);
        assert_eq!(o.stages()[5], 100 - entered, "{state:?}");
    }
}

/// An interrupt of which it is not known whose it is ends what is known of the packets.
#[test]
fn an_interrupt_that_may_be_another_devices_is_joined_with_nothing() {
    for (vm, reason) in [(VM, Reason::NotLearnt), (0, Reason::NoInterrupt)] {
        let mut h = History::default();
        taken(&mut h, 0, 1);
        let unknown = Interrupt { delivery: Delivery::Unknown, vm, state: None, ..interrupt(30_000) };
        h.at(30_000, EventKind::Interrupt(unknown));
        // The next packet's interrupt is not that of the first.
        taken(&mut h, 40_000, 2);
        h.interrupt(80_000, 70_000, Delivery::Accepted).entry(90_000, 85_000, 40);
        h.response(200_000, 11, answer(1)).response(300_000, 12, answer(2));
        long_after(&mut h);
        let o = run(&served_by_vmm(), &h.0);
        assert_eq!(o.counts(), [2, 1, 1, 0, 0]);
        assert_eq!(o.reason(), (Outcome::Incomplete, reason));
    }
}
