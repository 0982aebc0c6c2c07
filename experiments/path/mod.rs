//! Experiment `path`: every stage right, the right one blamed, nothing lost. See README.md beside this file.

pub mod accuracy;
pub mod blame;
pub mod flood;
pub mod table;
pub mod throng;

use anyhow::ensure;
use teiji_model::report::{Report, VmReport};

/// How much of the experiment is run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Requests of each accuracy case.
    pub requests: u64,
    /// Runs of each induced situation.
    pub runs: u32,
    /// Requests in each of them.
    pub situation: u64,
    /// Seconds at each rate with several VMs.
    pub seconds: u64,
    /// Rates to try, packets a second each way to each VM.
    pub rates: &'static [f64],
    /// VMs traced at once.
    pub vms: u32,
    /// Packets sent at the local kernel.
    pub flood: u64,
}

/// What the claims are made for.
pub const FULL: Extent = Extent {
    requests: 1200,
    runs: 5,
    situation: 300,
    seconds: 5,
    rates: &[50.0, 100.0, 200.0, 300.0, 400.0, 600.0, 800.0, 1200.0],
    vms: 4,
    flood: 2_000_000,
};

/// The short form that tests run.
pub const SHORT: Extent = Extent {
    requests: 300,
    runs: 3,
    situation: 200,
    seconds: 3,
    rates: &[50.0, 100.0],
    vms: 2,
    flood: 100_000,
};

/// The one VM of a report.
pub fn only(report: &Report) -> anyhow::Result<&VmReport> {
    match &report.vms[..] {
        [vm] => Ok(vm),
        vms => anyhow::bail!("the report has {} VMs, not one", vms.len()),
    }
}

/// Most memory that teiji may use, kB.
pub const MEMORY_KB: u64 = 100_000;

/// Events of a trace that did not fit its buffer.
pub fn lost(report: &Report) -> u64 {
    report.counters.lost.iter().sum()
}

/// Events that the trace may lack though its buffer lost none: runs of probes that the kernel left out, and events that
/// came too late.
pub fn unseen(report: &Report) -> u64 {
    report.counters.missed + report.late
}

/// How many requests of the only VM the events may have cost that are [`unseen`]; none if there were none.
///
/// # Errors
/// If the report is not of one VM.
pub fn cost_of_missed(report: &Report) -> anyhow::Result<u64> {
    Ok(match unseen(report) {
        0 => 0,
        unseen => unseen + throng::spoilt(only(report)?),
    })
}

/// [`cost_of_missed`] as an excuse.
///
/// # Errors
/// If they are so many that it says little: more than a quarter of what was seen.
pub fn excused(report: &Report) -> anyhow::Result<u64> {
    let (excused, seen) = (cost_of_missed(report)?, only(report)?.requests.seen);
    ensure!(excused * 4 <= seen, "missed runs of probes and late events excuse {excused} of {seen} requests");
    Ok(excused)
}

/// Whether what teiji told is what was counted elsewhere, or at most `excused` less.
///
/// # Errors
/// If it is not.
pub fn agrees(what: &str, told: u64, counted: u64, excused: u64) -> anyhow::Result<()> {
    ensure!(
        told <= counted && told + excused >= counted,
        "{what}: {told} of {counted}, at most {excused} excused"
    );
    Ok(())
}
