//! Experiment `path`: every stage right, the right one blamed, nothing lost. See README.md beside this file.

pub mod accuracy;
pub mod blame;
pub mod flood;
pub mod table;
pub mod throng;

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

/// Events of a trace that did not fit its buffer.
pub fn lost(report: &Report) -> u64 {
    report.counters.lost.iter().sum()
}

/// How many requests of the only VM the runs of probes may have cost that the kernel left out; none if there were none.
///
/// # Errors
/// If the report is not of one VM.
pub fn excused(report: &Report) -> anyhow::Result<u64> {
    match report.counters.missed {
        0 => Ok(0),
        missed => Ok(missed + throng::spoilt(only(report)?)),
    }
}
