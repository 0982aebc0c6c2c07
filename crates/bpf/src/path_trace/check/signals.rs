//! What is told of a worker's signals, on signals made for it: also if the kernel skipped runs of the probes, as it does while
//! another worker is preempted within such a probe on the same CPU.

use super::threads::{
    HOG, Happening, Host, MS, TICK, TOLD, TOLD_WORKER, US, records, telling, telling_without_writes,
};
use super::{clock, types};
use teiji_model::event::{Delivery, EventKind, Interrupt, Wait};
use teiji_model::stage::ThreadState;

/// Of the vCPU [`TOLD`].
const INDEX: u32 = 3;

/// A host with a vCPU in guest mode, which has taken an interrupt of its worker.
fn host() -> Host {
    with_an_interrupt(telling())
}

fn with_an_interrupt(mut host: Host) -> Host {
    clock(&host.object, "meet_worker", TOLD_WORKER, 0);
    enters(&host);
    host.passes(100 * US);
    takes(&host, 0);
    begins(&mut host);
    accepted(&host, INDEX);
    host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
    assert_eq!(told(&host).len(), 1);
    host.passes(100 * US);
    host
}

/// The worker takes a packet; it has used so many buffers of the guest's ring by then.
fn takes(host: &Host, used: u32) {
    host.happens(Happening::Takes, 0, TOLD_WORKER, used);
}

/// A vCPU accepts an interrupt of the worker.
fn accepted(host: &Host, vcpu: u32) {
    host.happens(Happening::Accepted, types::wake_context::CONTEXT_THREAD.0, TOLD_WORKER, vcpu);
}

fn enters(host: &Host) {
    host.happens(Happening::Enters, 0, TOLD, 0);
}

fn begins(host: &mut Host) -> u64 {
    host.passes(10 * US);
    host.happens(Happening::Signals, 0, TOLD_WORKER, 0);
    host.now
}

/// The signals that are told, and the times of their events.
fn told(host: &Host) -> Vec<(u64, Interrupt)> {
    let signal = |(ts, kind)| match kind {
        EventKind::Interrupt(i) => Some((ts, i)),
        _ => None,
    };
    records(&host.object).into_iter().filter_map(signal).collect()
}

/// The only signal that is told, and the time of its event.
fn ends(host: &Host) -> (u64, Interrupt) {
    host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
    let told = told(host);
    let [told] = told[..] else { panic!("{told:?}") };
    assert_eq!((told.1.vm, told.1.vcpu, told.1.index), (7, INDEX, Some(3)));
    told
}

/// What a vCPU does while its worker signals, µs after the beginning, and what it does at the end.
struct Case {
    /// It sleeps when the signal begins; otherwise it is in guest mode.
    asleep: bool,
    /// Then, in this order.
    does: &'static [(Happening, u64)],
    /// When the signal ends.
    ends: u64,
    state: ThreadState,
    /// Whether it is known when the guest received the packets: if the probe after the write ran, and if it was skipped.
    known: [bool; 2],
}

const fn case(
    asleep: bool,
    does: &'static [(Happening, u64)],
    ends: u64,
    state: ThreadState,
    known: [bool; 2],
) -> Case {
    Case { asleep, does, ends, state, known }
}

use Happening::{Enters, Exits, Preempted, WentToSleep};
use ThreadState::{Asleep, Guest, Ready, Run};

const CASES: [Case; 11] = [
    // It does not run: it receives the packets with its next entry, whenever they were written.
    case(true, &[], 10, Asleep, [true, true]),
    case(true, &[], 180, Asleep, [true, true]),
    // It ran for long enough to have received them, or not.
    case(false, &[], 10, Guest, [true, true]),
    case(false, &[], 180, Guest, [false, false]),
    case(true, &[(Enters, 10)], 180, Guest, [false, false]),
    // It ran, and halted: it has handled them if they were there.
    case(false, &[(WentToSleep, 5)], 10, Asleep, [false, false]),
    // It may have handled them before its exit, or before it lost its CPU, but hardly right after the write.
    case(false, &[(Exits, 5)], 10, Run, [true, false]),
    case(false, &[(Preempted, 5)], 10, Ready, [true, false]),
    case(false, &[(Exits, 5)], 180, Run, [false, false]),
    // It may have handled them in between.
    case(false, &[(Exits, 5), (Enters, 8)], 10, Guest, [true, false]),
    case(true, &[(Enters, 5)], 10, Guest, [true, false]),
];

/// The worker signals, and the vCPU does what the case says, until the signal is to end. Returns when it began.
fn until_the_end(host: &mut Host, case: &Case) -> u64 {
    if case.asleep {
        host.sleeps(0, TOLD, HOG);
    }
    let began = begins(host);
    for (what, at) in case.does {
        host.now = began + at * US;
        host.happens(*what, 0, TOLD, HOG);
    }
    host.now = began + case.ends * US;
    began
}

/// The kernel skips the probe after the write while another worker is preempted within it on the same CPU.
#[test]
fn when_the_guest_received_packets_is_told_as_far_as_it_is_known() {
    for (n, case) in CASES.iter().enumerate() {
        for (seen, known) in [true, false].into_iter().zip(case.known) {
            let mut host = host();
            let began = until_the_end(&mut host, case);
            if seen {
                host.happens(Happening::Written, 0, TOLD_WORKER, 0);
            }
            let (at, told) = ends(&host);
            let delivery = if known { Delivery::Suppressed } else { Delivery::Unknown };
            assert_eq!((told.delivery, told.state), (delivery, Some(case.state)), "case {n}, {seen}");
            let times = if known { (host.now, began) } else { (began, host.now) };
            assert_eq!((at, told.signalled), times, "case {n}, {seen}");
            let vector = if seen || known { 0 } else { Interrupt::SKIPPED };
            assert_eq!(told.vector, vector, "case {n}, {seen}");
            assert_eq!(told.arrival_is_unknown(), !known, "case {n}, {seen}");
        }
    }
}

/// On such a kernel every signal lacks the probe after the write: none counts as one of which it was skipped.
#[test]
fn where_the_write_cannot_be_probed_no_probe_is_skipped() {
    for (n, case) in CASES.iter().enumerate() {
        let mut host = with_an_interrupt(telling_without_writes());
        until_the_end(&mut host, case);
        let (_, told) = ends(&host);
        assert_eq!((told.arrival_is_unknown(), told.vector), (!case.known[1], 0), "case {n}");
    }
}

/// It is the state after the write that counts: what the vCPU does later, it does with the packets.
#[test]
fn what_happens_after_the_write_changes_nothing() {
    let mut host = host();
    host.sleeps(0, TOLD, HOG);
    begins(&mut host);
    host.passes(10 * US);
    host.happens(Happening::Written, 0, TOLD_WORKER, 0);
    let written = host.now;
    host.passes(5 * US);
    enters(&host);
    host.passes(180 * US);
    let (at, told) = ends(&host);
    assert_eq!((told.delivery, told.state, at), (Delivery::Suppressed, Some(Asleep), written));
}

/// While the worker signals, an interrupt of the host has KVM interrupt another vCPU.
#[test]
fn an_interrupt_that_the_worker_did_not_send_is_not_credited_to_it() {
    let mut host = host();
    host.sleeps(0, TOLD, HOG);
    let began = begins(&mut host);
    host.passes(US);
    host.happens(Happening::Accepted, types::wake_context::CONTEXT_INTERRUPT.0, TOLD_WORKER, 5);
    host.passes(US);
    accepted(&host, INDEX);
    let accepted = host.now;
    host.passes(US);
    let (at, told) = ends(&host);
    assert_eq!((told.delivery, told.signalled, at), (Delivery::Accepted, began, accepted));
}

/// Whether a signal is one of which a probe's run was skipped, which was told at `then`, with the packets taken until `upto`.
fn is_skipped((at, i): &(u64, Interrupt), then: u64, upto: u64) -> bool {
    i.arrival_is_unknown()
        && (i.vm, i.state, i.vector) == (0, None, Interrupt::SKIPPED)
        && (*at, i.signalled) == (then, upto)
}

/// A signal that is seen, with no interrupt. Returns the only record of it.
fn suppressed(host: &mut Host) -> Interrupt {
    begins(host);
    host.passes(10 * US);
    host.happens(Happening::Written, 0, TOLD_WORKER, 0);
    host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
    let told = told(host);
    let [(_, told)] = told[..] else { panic!("{told:?}") };
    assert_eq!(told.delivery, Delivery::Suppressed);
    told
}

/// The kernel skipped the probe at the beginning: nothing is known of the signal but that it covers what the worker took, and
/// which vCPU was interrupted.
#[test]
fn a_signal_whose_beginning_was_skipped_is_told_at_its_end() {
    let mut host = host();
    for (used, takes_one) in [(1, true), (2, false)] {
        host.passes(10 * US);
        if takes_one {
            takes(&host, used);
        }
        host.happens(Happening::Written, 0, TOLD_WORKER, 0);
        accepted(&host, if takes_one { 5 } else { 6 });
        host.passes(10 * US);
        host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
        let told = told(&host);
        assert_eq!(told.len(), usize::from(takes_one), "{told:?}");
        assert!(told.iter().all(|signal| is_skipped(signal, host.now, host.now)), "{told:?}");
    }
    // Not the one that was interrupted before.
    takes(&host, 3);
    assert_eq!(suppressed(&mut host).vcpu, 5);
}

/// The kernel skipped the probe at the end: the packets are not counted with the next signal. If an interrupt was sent, there is a
/// record already.
#[test]
fn a_signal_whose_end_was_skipped_is_told_when_the_worker_does_something_else() {
    use Happening::{BeginsRound, Sends, SignalsSentFrames, Takes};
    for sent in [false, true] {
        for what in [SignalsSentFrames, Takes, Sends, BeginsRound] {
            let mut host = host();
            host.sleeps(0, TOLD, HOG);
            takes(&host, 1);
            let began = begins(&mut host);
            host.happens(Happening::Written, 0, TOLD_WORKER, 0);
            if sent {
                accepted(&host, INDEX);
            }
            host.passes(100 * US);
            host.happens(what, 0, TOLD_WORKER, 2);
            let told = told(&host);
            let [first] = told[..] else { panic!("{told:?}") };
            if sent {
                assert_eq!((first.1.delivery, first.1.signalled), (Delivery::Accepted, began));
            } else {
                assert!(is_skipped(&first, host.now - 1, began), "{first:?}");
            }
            // An interrupt for frames that it has sent says nothing of its packets.
            if matches!(what, SignalsSentFrames | Sends) {
                accepted(&host, 5);
                host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
            }
            if !matches!(what, Takes) {
                takes(&host, 2);
            }
            assert_eq!(suppressed(&mut host).vcpu, INDEX);
        }
    }
}

/// The kernel skipped the probes at both ends: the packets are not counted with the next signal, nor are its with theirs.
#[test]
fn a_signal_of_which_all_was_skipped_is_told_when_the_worker_takes_the_next_packet() {
    let mut host = host();
    takes(&host, 1);
    host.passes(10 * US);
    takes(&host, 1);
    assert_eq!(told(&host).len(), 0);
    // It has used two buffers.
    host.passes(100 * US);
    takes(&host, 3);
    let told = told(&host);
    assert!(told.len() == 1 && is_skipped(&told[0], host.now - 1, host.now - 1), "{told:?}");
    suppressed(&mut host);
}

/// After such a signal the worker is idle: the next packet may be one that no trace follows, and its interrupt is sent.
#[test]
fn a_signal_of_which_all_was_skipped_is_told_although_the_worker_slept_since() {
    use Happening::{BeginsRound, Sends, SignalsSentFrames, Takes};
    for what in [BeginsRound, Sends, SignalsSentFrames, Takes] {
        // What vhost cannot write it discards.
        for written in [true, false] {
            let mut host = host();
            takes(&host, 1);
            host.passes(10 * US);
            host.sleeps(0, TOLD_WORKER, HOG);
            host.passes(100 * US);
            host.wakes(0, TOLD_WORKER);
            host.preempts(0, HOG, TOLD_WORKER);
            host.happens(what, 0, TOLD_WORKER, if written { 2 } else { 1 });
            // An interrupt for what it has sent.
            if matches!(what, SignalsSentFrames) {
                accepted(&host, 5);
                host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
            }
            let upto = if matches!(what, Takes) { host.now - 1 } else { host.now };
            let told = told(&host);
            assert_eq!(told.len(), usize::from(written), "{told:?}");
            assert!(told.iter().all(|signal| is_skipped(signal, upto, upto)), "{told:?}");
            if !matches!(what, Takes) {
                takes(&host, 2);
            }
            assert_eq!(suppressed(&mut host).vcpu, INDEX);
        }
    }
}

/// A trace may begin within a round, so that of its packets the count of used buffers is not known; vhost discards them.
#[test]
fn nothing_is_told_of_a_round_whose_beginning_was_not_seen() {
    let mut host = host();
    takes(&host, 0);
    host.passes(100 * US);
    host.happens(Happening::BeginsFirstRound, 0, TOLD_WORKER, 500);
    takes(&host, 500);
    assert_eq!(told(&host).len(), 0);
    assert_eq!(suppressed(&mut host).vcpu, INDEX);
}

/// The end of one, and the beginning of the next, to another vCPU.
#[test]
fn two_signals_with_skipped_probes_are_not_taken_for_one() {
    let mut host = host();
    takes(&host, 1);
    let began = begins(&mut host);
    host.happens(Happening::Written, 0, TOLD_WORKER, 0);
    host.passes(100 * US);
    takes(&host, 2);
    let then = host.now - 1;
    host.passes(10 * US);
    host.happens(Happening::Written, 0, TOLD_WORKER, 0);
    accepted(&host, 5);
    host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
    let told = told(&host);
    assert!(
        told.len() == 2 && is_skipped(&told[0], then, began) && is_skipped(&told[1], host.now, host.now),
        "{told:?}"
    );
}

/// An entry with an interrupt that was accepted after the time of the entry was read sorts after the interrupt.
#[test]
fn an_entry_is_later_than_the_interrupt_that_it_takes() {
    let host = host();
    assert_eq!(host.happens(Happening::EntryTime, 0, TOLD_WORKER, 5), 6);
    assert_eq!(host.happens(Happening::EntryTime, 0, TOLD_WORKER, 0), 1);
}

/// What a vCPU has waited when an interrupt comes is told, and then who is named for the rest is chosen among those of the rest.
#[test]
fn a_wait_before_an_interrupt_is_told_from_that_after_it() {
    let mut host = host();
    for _ in 0..20 {
        host.preempts(0, TOLD, HOG);
        host.passes(12 * MS);
        takes(&host, 0);
        begins(&mut host);
        records(&host.object);
        accepted(&host, INDEX);
        let told = records(&host.object);
        let waits = told.iter().filter_map(|(_, e)| if let EventKind::Wait(w) = e { Some(w) } else { None });
        let [wait] = waits.collect::<Vec<_>>()[..] else { panic!("{told:?}") };
        assert_eq!((wait.tid, wait.vm, wait.vcpu, wait.preempted_by), (TOLD, 7, Some(INDEX), HOG));
        let clock =
            told.iter().find_map(|(_, e)| if let EventKind::Interrupt(i) = e { Some(i.clock) } else { None });
        assert_eq!((clock.unwrap(), wait.state), (wait.clock, Ready));
        host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
        host.preempts(0, HOG, TICK);
        host.passes(MS);
        host.preempts(0, TICK, TOLD);
        assert_eq!(host.named(TOLD), TICK);
        // It has not waited since.
        takes(&host, 0);
        begins(&mut host);
        accepted(&host, INDEX);
        host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
        assert!(!records(&host.object).iter().any(|(_, e)| matches!(e, EventKind::Wait(_))));
    }
}

/// The waits that are told, and the times of their events.
fn waits(host: &Host) -> Vec<(u64, Wait)> {
    let wait = |(ts, kind)| match kind {
        EventKind::Wait(w) => Some((ts, w)),
        _ => None,
    };
    records(&host.object).into_iter().filter_map(wait).collect()
}

/// An interrupt comes to the vCPU while its thread waits.
fn interrupts(host: &mut Host) {
    takes(host, 0);
    begins(host);
    accepted(host, INDEX);
    host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
}

/// Other records keep half of the buffer. Who is named for a wait that had no place is chosen among those of all of it.
#[test]
fn a_wait_that_finds_no_room_is_told_with_the_next() {
    let mut host = host();
    let mut hog = 0;
    for _ in 0..200 {
        enters(&host);
        records(&host.object);
        // The buffer of these tests has 4,096 bytes; a record has a head of 8.
        for _ in 0..=2048 / (size_of::<types::rec_irq>() + 8) {
            interrupts(&mut host);
        }
        host.preempts(0, TOLD, HOG);
        host.passes(12 * MS);
        interrupts(&mut host);
        assert_eq!(waits(&host), []);
        host.preempts(0, HOG, TICK);
        host.passes(MS);
        interrupts(&mut host);
        let [(_, wait)] = waits(&host)[..] else { panic!("not one wait") };
        assert!([HOG, TICK].contains(&wait.preempted_by), "{wait:?}");
        hog += u32::from(wait.preempted_by == HOG);
        host.preempts(0, TICK, TOLD);
    }
    // 12 of 13 deserved.
    assert!((170..=195).contains(&hog), "{hog}");
}

/// Another CPU may have accounted for the thread's wait until later than the time at which the interrupt came.
#[test]
fn a_wait_is_told_at_the_time_of_its_clock() {
    let mut host = host();
    records(&host.object);
    host.preempts(0, TOLD, HOG);
    host.passes(12 * MS);
    host.preempts(0, HOG, TICK);
    let until = host.now;
    host.now -= MS;
    interrupts(&mut host);
    let [(ts, wait)] = waits(&host)[..] else { panic!("not one wait") };
    assert_eq!((ts, wait.clock.get(Ready)), (until, 12 * MS));
}
