//! Who had a thread's CPU while that thread waited for it: each thread is named as often as it deserves.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use teiji_model::event::*;
use teiji_model::stage::{Split, Stage, ThreadState};

/// A thread that has the CPU for long, and one that has it briefly and last.
const HOG: u32 = 31;
const TICK: u32 = 32;
const LONG: u64 = 9_000_000;
const BRIEF: u64 = 1_000_000;
const PAIRS: u64 = 400;

/// Sum of the waits that are said to be behind a thread, and of all, ns.
fn named(run: &Run, stage: Stage, thread: u32) -> (u64, u64) {
    let (mut behind, mut all) = (0, 0);
    for joined in &run.joined {
        let waited = joined.request.stages[stage as usize].split.map_or(0, |s| s.get(ThreadState::Ready));
        let names: Vec<u32> =
            joined.preempted_by.iter().filter(|(at, _)| *at == stage).map(|(_, tid)| *tid).collect();
        assert_eq!(names.len(), usize::from(waited > 0), "{joined:?}");
        all += waited;
        behind += if names == [thread] { waited } else { 0 };
    }
    (behind, all)
}

/// Nine tenths of what the first request of each pair waits are behind [`HOG`]; then the clock is read, for the second one. The rest,
/// behind [`TICK`], comes after that. `first` reads the clock at the beginning of both waits, and `last` at their end.
fn overlapping(
    first: impl Fn(&mut History, u64, u64, Split),
    between: impl Fn(&mut History, u64, u64, Split, u32),
    last: impl Fn(&mut History, u64, u64, Split, u32),
) -> Run {
    let (mut h, mut clock) = (History::default(), Split::default());
    for i in 0..PAIRS {
        let mut at = 1_000_000 + i * 50_000_000;
        first(&mut h, i, at, clock);
        at += LONG;
        clock.0[ThreadState::Ready as usize] += LONG;
        between(&mut h, i, at, clock, HOG);
        at += BRIEF;
        clock.0[ThreadState::Ready as usize] += BRIEF;
        last(&mut h, i, at, clock, TICK);
    }
    h.run()
}

fn carried(point: Point, fp: u64, matching: Option<Match>, worker: Option<Split>, by: u32) -> EventKind {
    EventKind::Packet(Packet { matching, worker, preempted_by: by, ..packet(point, fp, TAP) })
}

fn arrives(h: &mut History, key: u64, at: u64, clock: Split) {
    h.packet(at - 40_000, Point::HostRx, 1_000 + key, NIC);
    h.at(at - 30_000, carried(Point::TapEnqueue, 1_000 + key, m(key, Role::Request), None, 0));
    h.at(at - 20_000, carried(Point::TapDequeue, 1_000 + key, None, None, 0));
    h.at(at, EventKind::Interrupt(Interrupt { clock, ..interrupt(at - 10_000) }));
}

fn leaves(h: &mut History, key: u64, at: u64, worker: Option<Split>, by: u32) {
    h.at(at, carried(Point::TapSend, 9_000 + key, m(key, Role::Final), worker, by));
    h.packet(at + 2_000, Point::DevQueue, 9_000 + key, NIC);
    h.packet(at + 5_000, Point::DevXmit, 9_000 + key, NIC);
}

/// The shares are those of the time, although the clock is read while the first of two requests waits.
#[track_caller]
fn is_fair(run: &Run, stage: Stage) {
    assert_eq!(run.counts()[..2], [2 * PAIRS, 2 * PAIRS]);
    let ((hog, all), (tick, _)) = (named(run, stage, HOG), named(run, stage, TICK));
    assert_eq!(hog + tick, all);
    let share = tick as f64 / all as f64;
    let deserved = tick_of(run, stage) as f64 / all as f64;
    assert!(
        (share - deserved).abs() < 0.05,
        "{share} of the waits are behind the brief thread, not {deserved}"
    );
}

/// What all requests waited behind [`TICK`]: the first of each pair and, if that waits at all in this stage, the second.
fn tick_of(run: &Run, stage: Stage) -> u64 {
    let waits = |j: &&teiji_model::report::Joined| {
        j.request.stages[stage as usize].split.is_some_and(|s| s.get(ThreadState::Ready) > 0)
    };
    run.joined.iter().filter(waits).count() as u64 * BRIEF
}

#[test]
fn a_guest_that_has_two_requests_at_once() {
    let run = overlapping(
        |h, i, at, clock| {
            arrives(h, 2 * i, at, clock);
            h.at(at, EventKind::GuestEntry(GuestEntry { clock, ..entry(at) }));
        },
        |h, i, at, clock, by| {
            arrives(h, 2 * i + 1, at, clock);
            h.at(at, EventKind::GuestEntry(GuestEntry { clock, preempted_by: by, ..entry(at) }));
        },
        |h, i, at, clock, by| {
            h.at(at, EventKind::Kick(Kick { clock, preempted_by: by, ..kick() }));
            leaves(h, 2 * i, at + 10_000, None, 0);
            h.at(at + 20_000, EventKind::Kick(Kick { clock, preempted_by: by, ..kick() }));
            leaves(h, 2 * i + 1, at + 30_000, None, 0);
        },
    );
    is_fair(&run, Stage::VcpuWake);
}

#[test]
fn a_worker_that_takes_two_requests_at_once() {
    let run = overlapping(
        |h, i, at, clock| {
            for key in [2 * i, 2 * i + 1] {
                h.packet(at - 10_000, Point::HostRx, 1_000 + key, NIC);
                h.at(at, carried(Point::TapEnqueue, 1_000 + key, m(key, Role::Request), Some(clock), 0));
            }
        },
        |h, i, at, clock, by| {
            h.at(at, carried(Point::TapDequeue, 1_000 + 2 * i, None, Some(clock), by));
        },
        |h, i, at, clock, by| {
            h.at(at, carried(Point::TapDequeue, 1_000 + 2 * i + 1, None, Some(clock), by));
            h.at(at + 10_000, EventKind::Interrupt(interrupt(at + 5_000)));
            h.at(at + 20_000, EventKind::GuestEntry(entry(at + 10_000)));
            for (key, at) in [(2 * i, at + 30_000), (2 * i + 1, at + 50_000)] {
                h.at(at, EventKind::Kick(kick()));
                leaves(h, key, at + 10_000, None, 0);
            }
        },
    );
    let ((hog, all), (tick, _)) = (named(&run, Stage::TapQueue, HOG), named(&run, Stage::TapQueue, TICK));
    assert_eq!((hog + tick, all), (all, PAIRS * (2 * LONG + BRIEF)));
    let share = tick as f64 / all as f64;
    let deserved = PAIRS as f64 * BRIEF as f64 / all as f64;
    assert!(
        (share - deserved).abs() < 0.03,
        "{share} of the waits are behind the brief thread, not {deserved}"
    );
}

/// A thread that waits when the second request of each pair comes: what was before that is told then, and is a wait of the first alone.
fn joins_a_wait(h: &mut History, at: u64, clock: Split, tid: u32, vcpu: Option<u32>, preempted_by: u32) {
    let state = ThreadState::Ready;
    h.at(at, EventKind::Wait(Wait { tid, vm: VM, vcpu, state, clock, preempted_by }));
}

#[test]
fn a_packet_that_comes_while_the_worker_waits() {
    let comes = |h: &mut History, key: u64, at: u64, clock: Split| {
        h.packet(at - 10_000, Point::HostRx, 1_000 + key, NIC);
        h.at(at, carried(Point::TapEnqueue, 1_000 + key, m(key, Role::Request), Some(clock), 0));
    };
    let run = overlapping(
        |h, i, at, clock| comes(h, 2 * i, at, clock),
        |h, i, at, clock, by| {
            joins_a_wait(h, at, clock, WORKER, None, by);
            comes(h, 2 * i + 1, at, clock);
        },
        |h, i, at, clock, by| {
            for key in [2 * i, 2 * i + 1] {
                h.at(at, carried(Point::TapDequeue, 1_000 + key, None, Some(clock), by));
            }
            h.at(at + 10_000, EventKind::Interrupt(interrupt(at + 5_000)));
            h.at(at + 20_000, EventKind::GuestEntry(entry(at + 10_000)));
            for (key, at) in [(2 * i, at + 30_000), (2 * i + 1, at + 50_000)] {
                h.at(at, EventKind::Kick(kick()));
                leaves(h, key, at + 10_000, None, 0);
            }
        },
    );
    is_fair(&run, Stage::TapQueue);
}

#[test]
fn an_interrupt_that_comes_while_the_vcpu_waits() {
    let run = overlapping(
        |h, i, at, clock| arrives(h, 2 * i, at, clock),
        |h, i, at, clock, by| {
            joins_a_wait(h, at, clock, 99, Some(1), by);
            arrives(h, 2 * i + 1, at, clock);
        },
        |h, i, at, clock, by| {
            h.at(at, EventKind::GuestEntry(GuestEntry { clock, preempted_by: by, ..entry(at) }));
            for (key, at) in [(2 * i, at + 30_000), (2 * i + 1, at + 50_000)] {
                h.at(at, EventKind::Kick(Kick { clock, ..kick() }));
                leaves(h, key, at + 10_000, None, 0);
            }
        },
    );
    is_fair(&run, Stage::VcpuWake);
}
