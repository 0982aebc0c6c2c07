//! Taps whose frames are taken up by a thread other than the worker.

use super::{ECHO, LAB, traced, vm1};
use teiji_experiments::load;
use teiji_experiments::path::{agrees, excused, late, only};
use teiji_model::event::{Event, EventKind, Point};

/// Frames that the guest sent, from the events of a recording, and how many of these were credited to a worker.
fn frames(recording: &std::path::Path) -> (usize, usize) {
    let sent = |event: &Event| match event.kind {
        EventKind::Packet(p) if p.point == Point::TapSend => Some(p.worker.is_some()),
        _ => None,
    };
    let credited: Vec<bool> = late::events(recording).unwrap().iter().filter_map(sent).collect();
    (credited.len(), credited.iter().filter(|c| **c).count())
}

/// Steers the frames that come from the guest's tap to these CPUs, a mask; 0: to none.
fn steer(cpus: &str) -> teiji_lab::Result<String> {
    let queue = format!("/sys/class/net/{}/queues/rx-0/rps_cpus", vm1().taps()[0]);
    LAB.host.run(&format!("echo {cpus} > {queue}"))?.ok()
}

/// Steers no frames any more when dropped: other tests use the guest after this one, also if it fails.
struct Unsteered;

impl Drop for Unsteered {
    fn drop(&mut self) {
        let _ = steer("0");
    }
}

/// With receive packet steering a softirq on another CPU passes a guest's frames through the host's network stack.
pub fn frames_that_another_thread_takes_up_are_nobodys_work() {
    let _off_again = Unsteered;
    for (cpus, steered) in [("0", false), ("8", true)] {
        steer(cpus).unwrap();
        let (traced, figures, skipped) = traced("steered", ECHO, |trace| {
            let figures = load::echo(&LAB.host, vm1(), 50.0, 100).unwrap();
            // A trace does not count them: each costs no more than that one frame is credited to nobody.
            (figures, trace.skipped_runs(&["on_tun_sendmsg", "on_tun_sent"]).unwrap())
        });
        let counts = only(&traced.report).unwrap().requests;
        agrees("complete", counts.complete, figures.answered(), excused(&traced).unwrap()).unwrap();
        let (sent, credited) = frames(&traced.recording.unwrap());
        eprintln!(
            "steered: {steered}; {sent} frames, {credited} of them credited to a worker, {skipped} runs of these probes skipped"
        );
        // The recording has late events, too: only what was lost before it can be missing.
        let lost = traced.report.counters.lost_or_missed();
        assert!(sent as u64 + lost >= figures.received, "{sent} frames, {lost} events lost, {figures:?}");
        if steered {
            assert_eq!(credited, 0, "frames that the worker did not hand over itself were credited to it");
        } else {
            assert!((sent - credited) as u64 <= skipped, "the worker was not recognised");
        }
    }
}
