//! c. Several VMs traced at the same time, at rates that increase until the lab cannot keep up.

use super::{Extent, shown_to_be_incomplete, skips_agree, unseen};
use crate::load;
use crate::tracing::{Lab, Trace};
use anyhow::Result;
use serde::Serialize;
use std::time::Duration;
use teiji_lab::{Child, Guest};
use teiji_model::report::{LeftOut, Outcome, Reason};

/// Minimum share of the requests that must be answered, and of the requested rate that must be sent.
const SUSTAINED_SHARE: f64 = 0.95;

/// One rate.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// Requested rate, requests per second, all VMs together.
    pub asked: f64,
    /// Actual rate, requests per second.
    pub sent: f64,
    /// Share of these requests that were answered.
    pub answered: f64,
    /// Requests sent, answered in time, and answered later; see [`load::in_time`].
    #[serde(skip)]
    pub called: [u64; 3],
}

/// Results.
#[derive(Clone, Debug, Serialize)]
pub struct ManyVms {
    /// Number of VMs.
    pub vms: usize,
    /// The rates tried, in order.
    pub levels: Vec<Level>,
    /// The highest rate that was sent and answered, requests per second.
    pub sustained_per_s: f64,
    /// What did not keep up at the next rate: the load generator or the guests; or that all rates were reached.
    pub limit: &'static str,
    /// Events that teiji took in.
    pub events: u64,
    /// Events that did not fit in the buffer, over all rates.
    pub lost: u64,
    /// Events that are [`unseen`].
    pub unseen: u64,
    /// Requests that are [`shown_to_be_incomplete`].
    pub excused: u64,
    /// Signals of which teiji says that a probe was skipped.
    pub skipped_signals: u64,
    /// How often the kernel says that it skipped such a probe.
    pub skipped_runs: u64,
    /// Whether [`skips_agree`].
    pub skips_agree: bool,
    /// Requests that reached the host and are left out for a reason for which nothing is excused.
    pub left_out_otherwise: u64,
    /// Requests by the load generator: sent, answered in time, and answered later.
    pub called: [u64; 3],
    /// Requests by teiji: seen, and complete.
    pub requests: [u64; 2],
    /// teiji's peak memory, kB.
    pub peak_kb: u64,
}

/// Traces all `guests` while each of them receives requests at each rate.
///
/// # Errors
/// If a tool fails.
pub fn run(lab: &Lab, guests: &[&Guest<'_>], extent: &Extent) -> Result<ManyVms> {
    let names: Vec<String> = guests.iter().map(|g| format!("--vm {}", g.name())).collect();
    let arguments = format!("{} --flow 'udp port {}'", names.join(" "), load::ECHO_PORT);
    // It records, because only the recording shows which events were late.
    let trace = Trace::start(lab, "many-vms", &arguments, true)?;
    let mut levels: Vec<Level> = Vec::new();
    let (mut sustained_per_s, mut limit) = (0.0, "none of the rates");
    for &rate in extent.rates {
        let level = level(lab, guests, rate, extent.seconds)?;
        crate::say(&format!(
            "{} VMs, {:.0} requests/s asked: {:.0} sent, {:.1} % answered",
            guests.len(),
            level.asked,
            level.sent,
            level.answered * 100.0
        ));
        let slow = level.sent < SUSTAINED_SHARE * level.asked;
        let deaf = level.answered < SUSTAINED_SHARE;
        if slow || deaf {
            limit = if slow { "the load generator" } else { "the guests" };
            levels.push(level);
            break;
        }
        sustained_per_s = level.sent;
        levels.push(level);
    }
    std::thread::sleep(Duration::from_secs(1));
    let traced = trace.stop()?;
    let report = &traced.report;
    Ok(ManyVms {
        vms: report.vms.len(),
        called: [0, 1, 2].map(|i| levels.iter().map(|l| l.called[i]).sum()),
        levels,
        sustained_per_s,
        limit,
        events: report.counters.events,
        lost: report.counters.lost.iter().sum(),
        unseen: unseen(&traced)?,
        excused: shown_to_be_incomplete(&traced)?,
        skipped_signals: report.skipped_signals,
        skipped_runs: traced.skipped_runs.unwrap_or_default(),
        skips_agree: skips_agree(&traced).is_ok(),
        left_out_otherwise: report
            .vms
            .iter()
            .flat_map(|vm| &vm.left_out)
            .filter(may_not_be_left_out)
            .map(|l| l.count)
            .sum(),
        requests: [
            report.vms.iter().map(|v| v.requests.seen).sum(),
            report.vms.iter().map(|v| v.requests.complete).sum(),
        ],
        peak_kb: traced.peak_kb,
    })
}

/// Whether requests may not be left out for this reason. What the guest did not answer is compared with the load generator's count.
fn may_not_be_left_out(left_out: &&LeftOut) -> bool {
    let excused = matches!(
        left_out.reason,
        Reason::EventsLost | Reason::ArrivalUnknown | Reason::OutOfOrder | Reason::TraceEnded
    );
    left_out.outcome != Outcome::Unanswered && !excused
}

fn level(lab: &Lab, guests: &[&Guest<'_>], rate: f64, seconds: u64) -> Result<Level> {
    let count = (rate * seconds as f64) as u64;
    let callers: Vec<Child> = guests
        .iter()
        .map(|g| lab.host.spawn(&load::echo_command(g, rate, count)))
        .collect::<Result<_, _>>()?;
    let (mut sent, mut per_second, mut received, mut late) = (0, 0.0, 0, 0);
    for caller in callers {
        let f = load::figures(&caller.wait()?.ok()?)?;
        sent += f.sent;
        received += f.received;
        late += f.late;
        per_second += f.sent as f64 / f.seconds.max(1e-9);
    }
    Ok(Level {
        asked: rate * guests.len() as f64,
        sent: per_second,
        answered: received as f64 / sent.max(1) as f64,
        called: [sent, received, late],
    })
}
