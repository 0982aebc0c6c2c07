//! Requests that the guest itself sends to a server outside, compared with captures.
//!
//! ```text
//! peer ─ eth0 ══ uplink0 ─ bridge ─ tap ─ guest
//!  │      │         │                │      │
//!  server within  the capture      around  client
//! ```
//!
//! `outside` begins when the request is handed to the uplink, and ends when the answer is received there. Every packet passes
//! the three places in one order, whatever is preempted and for how long: no `outside` is shorter than the time within, or longer
//! than the one around. So neither is the shortest, the longest, or, if all requests are complete, the mean. The median
//! agrees with the capture at the uplink.

use super::accuracy::{Capture, Case};
use super::{only, stalled, unseen};
use crate::numbers::quantile;
use crate::pcap::{self, Side};
use crate::tracing::{Lab, Trace};
use anyhow::{Context, Result};
use teiji_lab::Guest;
use teiji_model::report::{Outgoing, Reason, RequestCounts};

/// Times of the exchanges of a capture, ns.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Exchanges.
    pub count: u64,
    /// The shortest, the mean, the median, the longest.
    pub min: f64,
    /// See `min`.
    pub mean: f64,
    /// See `min`.
    pub median: f64,
    /// See `min`.
    pub max: f64,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// By teiji.
    pub outgoing: Outgoing,
    /// teiji's counts of requests to the guest.
    pub to_guest: RequestCounts,
    /// Within, at the uplink, around.
    pub captured: [Times; 3],
    /// Segments of TCP that the guest sent again, by the capture at its tap.
    pub sent_again_at_tap: u64,
    /// Packets that the captures dropped.
    pub capture_dropped: u64,
    /// How many requests may be incomplete through no fault of teiji's.
    pub excused: u64,
}

/// Traces a guest while `load` runs in it.
///
/// # Errors
/// If a tool or the load fails.
pub fn run(lab: &Lab, guest: &Guest<'_>, case: &Case, load: impl FnOnce() -> Result<()>) -> Result<Found> {
    let _quiet = crate::load::polling(&lab.host, 0)?;
    let trace = Trace::start(lab, case.name, &format!("--vm {} {}", guest.name(), case.arguments), true)?;
    let tap = guest.taps().into_iter().next().context("the guest has no tap")?;
    let captures = [
        (Capture::start(lab, case, "within", "ip netns exec peer", "eth0")?, Side::Uplink),
        (Capture::start(lab, case, "at", "", "uplink0")?, Side::Downlink),
        (Capture::start(lab, case, "around", "", &tap)?, Side::Uplink),
    ];
    load()?;
    let (mut capture_dropped, mut sent_again) = (0, Vec::new());
    let mut captured = Vec::new();
    for (capture, side) in captures {
        let (file, counts) = capture.stop(lab)?;
        capture_dropped += counts.dropped;
        let packets = pcap::packets(&file)?;
        sent_again.push(pcap::out_of_order(&packets, lab.host.peer_ip()).behind);
        let pairs = pcap::pair(&packets, lab.host.peer_ip(), case.pairing, side);
        captured.push(times(&pairs.exchanges.iter().map(|e| e.total as f64).collect::<Vec<_>>()));
    }
    let traced = trace.stop()?;
    let vm = only(&traced.report)?;
    let outgoing = vm.outgoing.clone().with_context(|| format!("no request of the guest: {vm:?}"))?;
    let left_out_for =
        |reason| -> u64 { outgoing.left_out.iter().filter(|l| l.reason == reason).map(|l| l.count).sum() };
    let of_unseen = match unseen(&traced)? {
        0 => 0,
        unseen => unseen + left_out_for(Reason::EventsLost),
    };
    let of_stalled = stalled::shown(left_out_for(Reason::ArrivalUnknown), traced.recording.as_deref())?;
    Ok(Found {
        outgoing,
        to_guest: vm.requests,
        captured: captured.try_into().ok().context("not three captures")?,
        sent_again_at_tap: sent_again[2],
        capture_dropped,
        excused: of_unseen + of_stalled,
    })
}

fn times(all: &[f64]) -> Times {
    Times {
        count: all.len() as u64,
        min: quantile(all, 0.0),
        mean: all.iter().sum::<f64>() / all.len() as f64,
        median: quantile(all, 0.5),
        max: quantile(all, 1.0),
    }
}
