//! Each cause is found in a history that was made for it, and in no other.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use teiji_model::event::*;
use teiji_model::finding::{Cause, Confidence};
use teiji_model::stage::{Split, Stage, ThreadState};

use Stage::{Guest, Irq, Qdisc, SwitchIn, SwitchOut, TapQueue, VcpuWake, VhostRx, VhostTx, WireOut};
use ThreadState::{Asleep, Poll, Ready, Run};

/// A thread that has the CPU while other threads wait.
const HOG: u32 = 31;
/// The length of the part that a history is about, ns; every other stage takes [`SHORT`].
const LONG: u64 = 4_000_000;
const SHORT: u64 = 5_000;
const REQUESTS: u64 = 60;

/// A part of the path: a stage, and the state of its thread, if known.
type Part = (Stage, Option<ThreadState>);

/// Causes that only what a guest reports can show: tests/inside.rs has their histories.
const INSIDE: [Cause; 4] =
    [Cause::PacketWaitsForHaltedVcpu, Cause::ReaderWaitsInGuest, Cause::Application, Cause::ThreadPerRequest];

/// Every other cause except `unattributed` (stages made from events add up), with all parts in which it can be seen.
const CAUSES: [(Cause, &[Part]); Cause::ALL.len() - 1 - INSIDE.len()] = [
    (Cause::VcpuWaitsForCpu, &[(VcpuWake, Some(Ready)), (Guest, Some(Ready))]),
    (Cause::VcpuExits, &[(VcpuWake, Some(Run)), (Guest, Some(Run))]),
    (Cause::VcpuWakeUp, &[(VcpuWake, Some(Asleep))]),
    (Cause::VcpuPolls, &[(VcpuWake, Some(Poll))]),
    (Cause::InterruptNotTaken, &[(VcpuWake, Some(ThreadState::Guest))]),
    (Cause::InterruptWaits, &[(VcpuWake, None)]),
    (Cause::GuestRuns, &[(Guest, Some(ThreadState::Guest))]),
    (Cause::GuestHalts, &[(Guest, Some(Asleep)), (Guest, Some(Poll))]),
    (Cause::GuestTime, &[(Guest, None)]),
    (Cause::WorkerWaitsForCpu, &[(TapQueue, Some(Ready)), (VhostTx, Some(Ready))]),
    (Cause::WorkerWakeUp, &[(TapQueue, Some(Asleep)), (VhostTx, Some(Asleep))]),
    (Cause::WorkerBusy, &[(TapQueue, Some(Run)), (VhostTx, Some(Run))]),
    (Cause::PacketsWaitForWorker, &[(TapQueue, None)]),
    (Cause::FramesWaitForWorker, &[(VhostTx, None)]),
    (Cause::ReceivePath, &[(SwitchIn, None)]),
    (Cause::RingFill, &[(VhostRx, None)]),
    (Cause::InterruptDelivery, &[(Irq, None)]),
    (Cause::TransmitPath, &[(SwitchOut, None)]),
    (Cause::LinkQueue, &[(Qdisc, None)]),
    (Cause::DriverHandOver, &[(WireOut, None)]),
];

/// Requests that spend [`LONG`] in one part: all of them, or every fifth.
fn history(part: Part, all: bool) -> History {
    let mut h = History::default();
    let (mut vcpu, mut worker) = (Split::default(), Split::default());
    for i in 0..REQUESTS {
        let mut at = i * 5 * LONG;
        let pass = |at: &mut u64, stage: Stage, clock: Option<&mut Split>| {
            let its = stage == part.0;
            let ns = if its && (all || i.is_multiple_of(5)) { LONG } else { SHORT };
            let usual = match stage {
                Guest => ThreadState::Guest,
                VcpuWake => Asleep,
                _ => Run,
            };
            // For a part without a known state the clock does not move.
            if let (Some(clock), Some(state)) = (clock, if its { part.1 } else { Some(usual) }) {
                clock.0[state as usize] += ns;
            }
            *at += ns;
        };
        let carried = |point, fp, ifindex, matching, worker| {
            EventKind::Packet(Packet {
                matching,
                worker: Some(worker),
                preempted_by: HOG,
                ..packet(point, fp, ifindex)
            })
        };
        let (request, response) = (1000 + i, 2000 + i);
        h.packet(at, Point::HostRx, request, NIC);
        pass(&mut at, SwitchIn, None);
        h.at(at, carried(Point::TapEnqueue, request, TAP, m(i, Role::Request), worker));
        pass(&mut at, TapQueue, Some(&mut worker));
        h.at(at, carried(Point::TapDequeue, request, TAP, None, worker));
        pass(&mut at, VhostRx, None);
        let signalled = at;
        pass(&mut at, Irq, None);
        h.at(at, EventKind::Interrupt(Interrupt { clock: vcpu, ..interrupt(signalled) }));
        let accepted = at;
        pass(&mut at, VcpuWake, Some(&mut vcpu));
        h.at(
            at,
            EventKind::GuestEntry(GuestEntry { clock: vcpu, preempted_by: HOG, ..entry(accepted + 1000) }),
        );
        pass(&mut at, Guest, Some(&mut vcpu));
        h.at(at, EventKind::Kick(Kick { clock: vcpu, worker: Some(worker), preempted_by: HOG, ..kick() }));
        pass(&mut at, VhostTx, Some(&mut worker));
        h.at(at, carried(Point::TapSend, response, TAP, m(i, Role::Final), worker));
        pass(&mut at, SwitchOut, None);
        h.packet(at, Point::DevQueue, response, NIC);
        pass(&mut at, Qdisc, None);
        h.packet(at, Point::QdiscDequeue, response, NIC);
        pass(&mut at, WireOut, None);
        h.packet(at, Point::DevXmit, response, NIC);
    }
    h
}

#[test]
fn each_cause_is_found_from_its_history_and_from_no_other() {
    for (cause, parts) in CAUSES {
        for (part, all) in parts.iter().flat_map(|part| [(*part, true), (*part, false)]) {
            let of = format!("{cause:?}, {part:?}, {}", if all { "all" } else { "every fifth" });
            let run = history(part, all).run();
            assert_eq!(run.counts(), [REQUESTS, REQUESTS, 0, 0, 0], "{of}");
            let vm = &run.report.vms[0];
            println!("{of}: {}", vm.line());
            let found: Vec<Cause> = vm.findings.iter().map(|f| f.cause).collect();
            assert_eq!(found, [cause], "{of}: {:#?}", vm.findings);
            assert_eq!(vm.verdict.fluctuation, !all, "{of}");
            let finding = &vm.findings[0];
            assert!(finding.evidence.iter().all(|e| parts.contains(&(e.stage, e.state))), "{finding:#?}");
            assert!(finding.share > 0.9, "{finding:#?}");
            let headline = &vm.verdict.headline;
            let quiet = headline.starts_with("nothing stands out; most time in guest");
            // If the guest is always slow, nothing of the host stands out.
            assert!(
                headline.starts_with(&finding.title) || (quiet && all && part.0 == Guest),
                "{of}: {headline}"
            );
            let preempted_by: Vec<_> = finding.preempted_by.iter().map(|p| (p.tid, p.share)).collect();
            let waits = part.1 == Some(Ready);
            assert_eq!(preempted_by, if waits { vec![(HOG, 1.0)] } else { Vec::new() }, "{of}");
            // A wait is certain if the state of its thread was seen.
            let unseen = part.1.is_none() && part.0.actor().is_some();
            let confidence = if unseen { Confidence::Medium } else { Confidence::High };
            assert_eq!(finding.confidence, confidence, "{of}: {:?}", finding.doubts);
        }
    }
}

#[test]
fn every_cause_but_what_events_cannot_make_has_a_history() {
    let made: Vec<Cause> = CAUSES.iter().map(|(cause, _)| *cause).collect();
    let other = |c: &Cause| *c != Cause::Unattributed && !INSIDE.contains(c);
    let all: Vec<Cause> = Cause::ALL.iter().copied().filter(other).collect();
    assert_eq!(made, all);
}

/// A wait for a CPU and a sleep: both are found, the larger first, and small causes are not.
#[test]
fn findings_are_ranked_by_their_greatest_part() {
    let mut h = history((VcpuWake, Some(Ready)), true);
    let second = history((SwitchIn, None), true);
    // Other requests of the same guest, later.
    let later = REQUESTS * 5 * LONG;
    h.0.extend(second.0.into_iter().map(|mut e| {
        e.ts += later;
        match &mut e.kind {
            EventKind::Packet(p) => {
                p.fingerprint += 10_000;
                p.matching = p.matching.map(|m| Match { key: m.key + 10_000, ..m });
                // The clocks of another trace have no meaning here.
                p.worker = None;
            }
            EventKind::Interrupt(i) => i.signalled += later,
            EventKind::GuestEntry(g) => g.upto += later,
            _ => {}
        }
        e
    }));
    let run = h.run();
    let found: Vec<Cause> = run.report.vms[0].findings.iter().map(|f| f.cause).collect();
    assert!(found.contains(&Cause::VcpuWaitsForCpu) && found.contains(&Cause::ReceivePath), "{found:?}");
    let shares: Vec<f64> = run.report.vms[0].findings.iter().map(|f| f.evidence[0].share).collect();
    assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
}

#[test]
fn few_requests_and_holes_are_doubts() {
    let mut h = history((VcpuWake, Some(Ready)), true);
    // The first ten; the last three of these are never answered.
    h.0.retain(|e| e.ts < T + 10 * 5 * LONG);
    let response =
        |e: &Event| matches!(&e.kind, EventKind::Packet(p) if (2007..3000).contains(&p.fingerprint));
    h.0.retain(|e| !response(e));
    let run = h.run();
    assert_eq!(run.counts()[..2], [10, 7]);
    let finding = &run.report.vms[0].findings[0];
    assert_eq!(finding.cause, Cause::VcpuWaitsForCpu);
    assert_eq!(finding.confidence, Confidence::Low);
    assert_eq!(finding.doubts, ["only 7 requests are complete", "30 % of the requests are in no figure"]);
}
