//! What is learnt, in the kernel, of the queues of a tap that the VMM serves itself.

use super::threads::{Happening, Host, TOLD, TOLD_WORKER, US, records, telling};
use super::{PROBED, clock, load_all, types};
use libbpf_rs::{Object, ProgramInput};
use teiji_model::event::{Delivery, EventKind};

fn words(words: [u64; 3]) -> Vec<u8> {
    words.map(u64::to_ne_bytes).as_flattened().to_vec()
}

fn answers(object: &Object, program: &str, context: [u64; 3]) -> bool {
    let program = object.progs_mut().find(|p| p.name() == program).unwrap();
    let mut context = words(context);
    let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
    program.test_run(input).unwrap().return_value == 1
}

/// An interrupt or doorbell is seen in a queue's place: whether it is known to be the queue's.
fn learns(object: &Object, seen: u64) -> bool {
    answers(object, "learns", [seen, 0, 0])
}

/// A doorbell is rung at a time, none if it is 0: the only one since another time, 0 if there are none or several.
fn ring(object: &Object, doorbell: u64, at: u64, since: u64) -> u32 {
    let program = object.progs_mut().find(|p| p.name() == "ring").unwrap();
    let event = words([doorbell, at, since]);
    let input = ProgramInput { data_in: Some(&event), ..ProgramInput::default() };
    program.test_run(input).unwrap().return_value
}

#[test]
fn what_is_seen_twice_in_a_row_is_the_queues() {
    let object = load_all(PROBED);
    let known = |seen: &[u64]| seen.iter().map(|s| learns(&object, *s)).collect::<Vec<_>>();
    assert_eq!(known(&[7, 7, 7]), [false, true, true]);
    // One that comes in between, again and again, is another queue's or device's.
    assert_eq!(known(&[8, 7, 8, 7, 8, 7]), [false, true, false, true, false, true]);
    assert_eq!(known(&[8, 9, 8, 9]), [false; 4]);
    // The guest has moved the interrupt: the former one is not taken for it any more.
    assert_eq!(known(&[9, 9, 7, 9]), [true, true, false, true]);
    assert_eq!(known(&[7, 7]), [false, true]);
}

#[test]
fn an_interrupt_that_comes_without_packets_more_often_is_another_devices() {
    let object = load_all(PROBED);
    let [alone, after_packets] =
        [1, 0].map(|alone| move |object: &Object, id| answers(object, "others", [id, alone, 0]));
    const DISK: u64 = 7;
    const TAP: u64 = 8;
    for _ in 0..3 {
        assert!(alone(&object, DISK));
    }
    for _ in 0..2 {
        assert!(after_packets(&object, DISK), "the guest wanted no interrupt for the packets");
        assert!(!after_packets(&object, TAP));
    }
    // A packet that was not seen: the probe before it was read did not run.
    assert!(!alone(&object, TAP));
    assert!(!after_packets(&object, TAP));
    // The guest has moved the interrupts: the disk's number is the tap's now.
    for _ in 0..1_000 {
        assert!(alone(&object, DISK));
    }
    let others = (0..10).filter(|_| after_packets(&object, DISK)).count();
    assert!(others < 5, "{others} of 10 are taken for another device's");
    // It was met for the first time then.
    const MET_ALONE: u64 = 9;
    assert!(alone(&object, MET_ALONE));
    assert!(!after_packets(&object, MET_ALONE));
}

#[test]
fn a_frame_is_put_down_to_a_doorbell_if_it_was_the_only_one() {
    let object = load_all(PROBED);
    let asked = |since| ring(&object, 0, 0, since);
    assert_eq!(asked(0), 0);
    assert_eq!(ring(&object, 7, 100, 50), 7);
    assert_eq!(asked(100), 0, "it was rung before");
    assert_eq!(ring(&object, 7, 200, 150), 7);
    assert_eq!(asked(50), 7, "twice, and no other");
    assert_eq!(ring(&object, 8, 300, 250), 8);
    assert_eq!(asked(150), 0, "both");
    assert_eq!(ring(&object, 7, 310, 305), 7);
    assert_eq!(asked(250), 0, "both, and the first of them is the last");
    assert_eq!(asked(299), 0);
    assert_eq!(asked(300), 7);
    // Two vCPUs ring at once, and the later one is noted first.
    assert_eq!(ring(&object, 8, 309, 305), 0);
}

/// The interrupt of the receive queue, and that of a disk which the same thread serves.
const TAP: u32 = 8;
const DISK: u32 = 7;

/// A host with a thread of a VMM that serves a tap, and a vCPU in guest mode.
fn serving() -> Host {
    let host = telling();
    clock(&host.object, "meet_worker", TOLD_WORKER, 0);
    host.happens(Happening::Enters, 0, TOLD, 0);
    host
}

/// The thread looks for a packet, which is there or not.
fn looks(host: &mut Host, packet: bool) {
    host.passes(10 * US);
    host.happens(Happening::Looks, 0, TOLD_WORKER, packet.into());
}

/// It gets one that is there by now; whether that was not seen.
fn has_read(host: &mut Host) -> bool {
    host.passes(10 * US);
    host.happens(Happening::HasRead, 0, TOLD_WORKER, 0) == 1
}

/// It tells KVM to send an interrupt, which the vCPU accepts.
fn signals(host: &mut Host, interrupt: u32) {
    host.passes(10 * US);
    host.happens(Happening::VmmSignals, 0, TOLD_WORKER, interrupt);
    host.happens(Happening::Accepted, types::wake_context::CONTEXT_THREAD.0, TOLD_WORKER, 3);
}

/// A packet that is seen is taken and signalled, and then there is none.
fn serves_a_packet(host: &mut Host, interrupt: u32) {
    looks(host, true);
    has_read(host);
    signals(host, interrupt);
    looks(host, false);
}

/// How the packets taken since this was last asked were signalled.
fn deliveries(host: &Host) -> Vec<Delivery> {
    let delivery = |(_, kind)| match kind {
        EventKind::Interrupt(i) => Some(i.delivery),
        _ => None,
    };
    records(&host.object).into_iter().filter_map(delivery).collect()
}

/// The tap is looked at in vain, and a packet comes before it is read: at once, or long after, if the thread has lost its CPU.
#[test]
fn a_packet_that_comes_after_the_look_is_not_taken_for_the_last_of_several() {
    let mut host = serving();
    serves_a_packet(&mut host, TAP);
    assert_eq!(deliveries(&host), [Delivery::Unknown], "the interrupt is not known");
    // The guest wants no interrupt for a packet, and one for the next.
    looks(&mut host, true);
    has_read(&mut host);
    looks(&mut host, false);
    has_read(&mut host);
    signals(&mut host, TAP);
    looks(&mut host, false);
    assert_eq!(deliveries(&host), [Delivery::Unknown]);
    serves_a_packet(&mut host, TAP);
    assert!(matches!(deliveries(&host)[..], [Delivery::Accepted | Delivery::Posted]), "it is known");
    // This VMM has not been seen to signal several packets at once: for this one it has sent none.
    looks(&mut host, true);
    has_read(&mut host);
    looks(&mut host, false);
    assert_eq!(deliveries(&host), [Delivery::Suppressed]);
}

#[test]
fn interrupts_for_packets_that_come_after_the_look_are_not_another_devices() {
    let mut host = serving();
    for looks_again in [false, true, true, false] {
        looks(&mut host, false);
        has_read(&mut host);
        if looks_again {
            looks(&mut host, false);
        }
        signals(&mut host, TAP);
        looks(&mut host, false);
        signals(&mut host, DISK);
    }
    for _ in 0..2 {
        serves_a_packet(&mut host, TAP);
    }
    assert!(matches!(deliveries(&host)[..], [Delivery::Unknown, Delivery::Accepted | Delivery::Posted]));
    serves_a_packet(&mut host, DISK);
    assert_eq!(deliveries(&host), [Delivery::Suppressed], "the disk's is not taken for the tap's");
}

/// Takes two packets, and signals them after a look in vain.
fn serves_two(host: &mut Host, interrupt: u32) {
    takes_two(host);
    looks(host, false);
    signals(host, interrupt);
}

fn takes_two(host: &mut Host) {
    for _ in 0..2 {
        looks(host, true);
        assert!(!has_read(host));
    }
}

#[track_caller]
fn are_delivered(host: &Host) {
    let deliveries = deliveries(host);
    assert!(matches!(deliveries[..], [Delivery::Accepted | Delivery::Posted]), "{deliveries:?}");
}

#[test]
fn packets_signalled_together_are_followed_also_with_one_that_was_not_seen() {
    let mut host = serving();
    serves_two(&mut host, TAP);
    serves_two(&mut host, TAP);
    deliveries(&host);
    serves_two(&mut host, TAP);
    are_delivered(&host);
    for _ in 0..3 {
        looks(&mut host, false);
        signals(&mut host, DISK);
    }
    for looks_again in [true, false] {
        takes_two(&mut host);
        looks(&mut host, false);
        assert!(has_read(&mut host));
        if looks_again {
            looks(&mut host, false);
        }
        // The disk's says nothing against the one that follows.
        signals(&mut host, DISK);
        signals(&mut host, TAP);
        are_delivered(&host);
    }
}

/// The guest's ring is full: it signals without another look.
#[test]
fn a_vmm_whose_ring_was_full_at_first_is_known_to_signal_several_packets_later() {
    let mut host = serving();
    for _ in 0..3 {
        takes_two(&mut host);
        signals(&mut host, TAP);
    }
    for _ in 0..6 {
        serves_two(&mut host, TAP);
    }
    deliveries(&host);
    serves_two(&mut host, TAP);
    are_delivered(&host);
}

/// Before the queue's interrupt is known, the guest wants none for its packets, and the disk's are sent after them.
#[test]
fn how_another_devices_interrupts_come_says_nothing_of_the_queues() {
    let mut host = serving();
    for _ in 0..3 {
        looks(&mut host, true);
        has_read(&mut host);
        looks(&mut host, false);
        signals(&mut host, DISK);
    }
    for _ in 0..2 {
        serves_a_packet(&mut host, TAP);
    }
    deliveries(&host);
    looks(&mut host, true);
    has_read(&mut host);
    looks(&mut host, false);
    assert_eq!(deliveries(&host), [Delivery::Suppressed]);
}

#[test]
fn the_interrupt_after_a_frame_is_not_that_of_the_packets_before_it() {
    const TRANSMIT: u32 = 9;
    let mut host = serving();
    for _ in 0..3 {
        looks(&mut host, true);
        has_read(&mut host);
        looks(&mut host, false);
        host.happens(Happening::VmmSends, 0, TOLD_WORKER, 0);
        signals(&mut host, TRANSMIT);
        assert_eq!(deliveries(&host), [Delivery::Unknown]);
    }
}

#[test]
fn a_packet_whose_look_was_skipped_is_not_taken_for_the_one_before() {
    let mut host = serving();
    serves_a_packet(&mut host, TAP);
    serves_a_packet(&mut host, TAP);
    deliveries(&host);
    looks(&mut host, true);
    assert!(!has_read(&mut host));
    assert!(has_read(&mut host), "the kernel skipped the probe before it");
    signals(&mut host, TAP);
    assert_eq!(deliveries(&host), [Delivery::Unknown]);
}
