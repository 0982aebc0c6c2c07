//! What is told of a worker's signal for which the guest wants no interrupt, on signals made for it: also if the kernel skipped the
//! probe after the write, as it does while another worker is preempted within that probe on the same CPU.

use super::threads::{HOG, Happening, Host, TOLD, TOLD_WORKER, US, records, telling};
use super::{clock, types};
use teiji_model::event::{Delivery, EventKind, Interrupt};
use teiji_model::stage::ThreadState;

/// Of the vCPU [`TOLD`].
const INDEX: u32 = 3;

/// A host with a vCPU that has been in guest mode, and its worker.
fn host() -> Host {
    let mut host = telling();
    clock(&host.object, "meet_worker", TOLD_WORKER, 0);
    enters(&host);
    host.passes(100 * US);
    host
}

fn enters(host: &Host) {
    host.happens(Happening::Enters, 0, TOLD, 0);
}

fn begins(host: &mut Host) -> u64 {
    host.passes(10 * US);
    host.happens(Happening::Signals, 0, TOLD_WORKER, INDEX);
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
    /// When the guest received the packets is known if the probe after the write ran at the end; and if it was skipped.
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

const CASES: [Case; 9] = [
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
];

/// The kernel skips the probe after the write while another worker is preempted within it on the same CPU.
#[test]
fn when_the_guest_received_packets_is_told_as_far_as_it_is_known() {
    for (n, case) in CASES.iter().enumerate() {
        for (seen, known) in [true, false].into_iter().zip(case.known) {
            let mut host = host();
            if case.asleep {
                host.sleeps(0, TOLD, HOG);
            }
            let began = begins(&mut host);
            for (what, at) in case.does {
                host.now = began + at * US;
                host.happens(*what, 0, TOLD, HOG);
            }
            host.now = began + case.ends * US;
            if seen {
                host.happens(Happening::Written, 0, TOLD_WORKER, 0);
            }
            let (at, told) = ends(&host);
            let delivery = if known { Delivery::Suppressed } else { Delivery::Unknown };
            assert_eq!((told.delivery, told.state), (delivery, Some(case.state)), "case {n}, {seen}");
            let times = if known { (host.now, began) } else { (began, host.now) };
            assert_eq!((at, told.signalled), times, "case {n}, {seen}");
        }
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
fn an_interrupt_that_the_worker_did_not_send_is_not_its() {
    let (interrupt, thread) = (types::wake_context::CONTEXT_INTERRUPT, types::wake_context::CONTEXT_THREAD);
    let mut host = host();
    host.sleeps(0, TOLD, HOG);
    let began = begins(&mut host);
    for (context, vcpu) in [(interrupt, 5), (thread, INDEX)] {
        host.passes(US);
        host.happens(Happening::Accepted, context.0, TOLD_WORKER, vcpu);
    }
    let accepted = host.now;
    host.passes(US);
    let (at, told) = ends(&host);
    assert_eq!((told.delivery, told.signalled, at), (Delivery::Accepted, began, accepted));
}

/// Whether a signal is one of which a probe's run was skipped.
fn is_skipped(i: &Interrupt) -> bool {
    i.is_of_unknown_arrival() && (i.vm, i.state, i.vector) == (0, None, Interrupt::SKIPPED)
}

/// The kernel skipped the probe at the beginning: nothing is known of the signal but that it covers what the worker took.
#[test]
fn a_signal_whose_beginning_was_skipped_is_told_at_its_end() {
    let mut host = host();
    for takes in [true, false] {
        host.passes(10 * US);
        if takes {
            host.happens(Happening::Takes, 0, TOLD_WORKER, 0);
        }
        host.happens(Happening::Written, 0, TOLD_WORKER, 0);
        host.happens(Happening::Accepted, types::wake_context::CONTEXT_THREAD.0, TOLD_WORKER, INDEX);
        host.passes(10 * US);
        host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
        let told = told(&host);
        assert_eq!(told.len(), usize::from(takes), "{told:?}");
        assert!(
            told.iter().all(|(at, i)| is_skipped(i) && (*at, i.signalled) == (host.now, host.now)),
            "{told:?}"
        );
    }
}

/// That at the end: its packets are not taken for those of the next signal. An interrupt that was sent has been told already.
#[test]
fn a_signal_whose_end_was_skipped_is_told_when_the_next_one_begins() {
    for sent in [false, true] {
        let mut host = host();
        host.sleeps(0, TOLD, HOG);
        let began = begins(&mut host);
        host.happens(Happening::Written, 0, TOLD_WORKER, 0);
        if sent {
            let context = types::wake_context::CONTEXT_THREAD.0;
            host.happens(Happening::Accepted, context, TOLD_WORKER, INDEX);
        }
        host.passes(100 * US);
        begins(&mut host);
        let told = told(&host);
        let [(at, first)] = told[..] else { panic!("{told:?}") };
        if sent {
            assert_eq!((first.delivery, first.signalled), (Delivery::Accepted, began));
        } else {
            assert!(is_skipped(&first) && (at, first.signalled) == (began, began), "{first:?}");
        }
        host.happens(Happening::Written, 0, TOLD_WORKER, 0);
        assert_eq!(ends(&host).1.delivery, Delivery::Suppressed);
    }
}
