//! What is told of a worker's signal for which the guest wants no interrupt, on signals made for it: also if the kernel skipped the
//! probe after the write, as it does while another worker is preempted within that probe on the same CPU.

use super::clock;
use super::threads::{HOG, Happening, Host, TOLD, TOLD_WORKER, US, records, telling};
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

/// The only signal that is told, and the time of its event.
fn ends(host: &Host) -> (u64, Interrupt) {
    host.happens(Happening::Signalled, 0, TOLD_WORKER, 0);
    let told = records(&host.object).into_iter().filter_map(|(ts, kind)| match kind {
        EventKind::Interrupt(i) => Some((ts, i)),
        _ => None,
    });
    let told: Vec<_> = told.collect();
    let [told] = told[..] else { panic!("{told:?}") };
    assert_eq!((told.1.vm, told.1.vcpu, told.1.index, told.1.vector), (7, INDEX, Some(3), 0));
    told
}

/// The vCPU does not run until the signal ends: the guest receives the packets with its next entry, whenever they were written.
#[test]
fn a_guest_that_does_not_run_receives_the_packets_later() {
    for seen in [true, false] {
        let mut host = host();
        host.sleeps(0, TOLD, HOG);
        let began = begins(&mut host);
        host.passes(10 * US);
        if seen {
            host.happens(Happening::Written, 0, TOLD_WORKER, 0);
        }
        let written = host.now;
        host.passes(180 * US);
        let (at, told) = ends(&host);
        assert_eq!((told.delivery, told.state), (Delivery::Suppressed, Some(ThreadState::Asleep)), "{seen}");
        assert_eq!((told.signalled, at), (began, if seen { written } else { host.now }), "{seen}");
    }
}

/// It ran meanwhile, so it may have received them at any time.
#[test]
fn a_guest_that_ran_meanwhile_received_the_packets_at_an_unknown_time() {
    for seen in [true, false] {
        let mut host = host();
        let began = begins(&mut host);
        host.passes(180 * US);
        host.sleeps(0, TOLD, HOG);
        if seen {
            host.happens(Happening::Written, 0, TOLD_WORKER, 0);
        }
        let (at, told) = ends(&host);
        assert_eq!((told.delivery, told.state), (Delivery::Unknown, Some(ThreadState::Asleep)), "{seen}");
        assert_eq!((at, told.signalled), (began, host.now), "{seen}");
    }
}
