//! Experiment `path`: every stage is measured correctly, the right one is blamed, and no event is lost uncounted. See
//! README.md beside this file.

pub mod accuracy;
pub mod blame;
pub mod flood;
pub mod in_doubt;
pub mod late;
pub mod many_vms;
pub mod out_of_order;
pub mod outgoing;
pub mod preemptors;
pub mod stalled;
pub mod table;

use crate::load::Figures;
use crate::tracing::Traced;
use anyhow::{Context, Result, bail, ensure};
use std::ops::RangeInclusive;
use teiji_model::report::{Report, VmReport};

/// How much of the experiment is run.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Requests of each accuracy case.
    pub requests: u64,
    /// Runs of each situation.
    pub runs: u32,
    /// Requests in each run.
    pub situation: u64,
    /// Seconds at each rate, with several VMs.
    pub seconds: u64,
    /// Rates to try, packets per second in each direction for each VM.
    pub rates: &'static [f64],
    /// VMs traced at the same time.
    pub vms: u32,
    /// Packets of the flood.
    pub flood: u64,
}

/// The extent that the README's claims are made for.
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
pub fn only(report: &Report) -> Result<&VmReport> {
    match &report.vms[..] {
        [vm] => Ok(vm),
        vms => bail!("the report has {} VMs, not one", vms.len()),
    }
}

/// The most memory that teiji may use, kB.
pub const MEMORY_KB: u64 = 100_000;

/// Events of a trace that did not fit in its buffer.
pub fn lost(report: &Report) -> u64 {
    report.counters.lost.iter().sum()
}

/// Events that the trace may lack although its buffer lost none: runs of probes that the kernel skipped, and events that
/// came too late. The trace's recording has to show that these did: see [`late`].
///
/// # Errors
/// If the report has more late events than the recording shows, or has late events and the trace did not record.
pub fn unseen(traced: &Traced) -> Result<u64> {
    Ok(traced.report.counters.missed + late::late(&traced.report, traced.recording.as_deref())?)
}

/// How many requests of the VMs may be incomplete through no fault of teiji's: because of [`unseen`] events, because they were
/// on their path at that time, because a worker lost its CPU while it handed them to the guest, or because the guest answered
/// before the guest entry. The trace's recording has to show all of it: see [`late`], [`in_doubt`], [`stalled`] and
/// [`out_of_order`].
///
/// # Errors
/// If it does not.
pub fn may_be_incomplete(traced: &Traced) -> Result<u64> {
    skips_agree(traced)?;
    shown_to_be_incomplete(traced)
}

/// The same without a comparison with the kernel's count of skipped probes: see [`skips_agree`].
///
/// # Errors
/// As [`may_be_incomplete`].
pub fn shown_to_be_incomplete(traced: &Traced) -> Result<u64> {
    let recording = traced.recording.as_deref();
    let of_unseen = match unseen(traced)? {
        // What did not fit into the buffer is never excused.
        0 => 0,
        unseen => unseen + in_doubt::in_doubt(&traced.report, recording)?,
    };
    let without_an_event =
        stalled::stalled(&traced.report, recording)? + out_of_order::out_of_order(&traced.report, recording)?;
    Ok(of_unseen + without_an_event)
}

/// Checks that teiji tells of no more signals with a skipped probe than the kernel has skipped runs of these probes, and the first
/// signal of each tap, which may have begun before its probe was attached: that excuses requests. Nothing is compared if the trace ended
/// by itself, as the kernel then forgets its count.
///
/// # Errors
/// If it tells of more.
pub fn skips_agree(traced: &Traced) -> Result<()> {
    let Some(skipped_runs) = traced.skipped_runs else { return Ok(()) };
    let taps = traced.report.meta.vms.iter().map(|vm| vm.nics.len() as u64).sum::<u64>();
    let told = traced.report.skipped_signals;
    ensure!(
        told <= skipped_runs + taps,
        "{told} signals are said to have a skipped probe, but the kernel has skipped {skipped_runs} runs of these probes"
    );
    Ok(())
}

/// Whether these are at most a quarter of all requests: if more are excused, a comparison means little.
pub fn is_few(excused: u64, all: u64) -> bool {
    excused * 4 <= all
}

/// How many requests [`may_be_incomplete`], and how many were seen of the VM with the fewest.
fn excused_and_seen(traced: &Traced) -> Result<(u64, u64)> {
    let fewest = traced.report.vms.iter().map(|vm| vm.requests.seen).min();
    Ok((may_be_incomplete(traced)?, fewest.context("the report has no VM")?))
}

/// [`may_be_incomplete`], for use as a tolerance.
///
/// # Errors
/// Like [`may_be_incomplete`], or if it is more than [few](is_few) of the requests seen of any VM: see [`comparable`].
pub fn excused(traced: &Traced) -> Result<u64> {
    let (excused, seen) = excused_and_seen(traced)?;
    ensure!(
        is_few(excused, seen),
        "missed runs of probes, late events, stalled workers and answers before the guest entry excuse {excused} of {seen} requests"
    );
    Ok(excused)
}

/// Whether [few](is_few) requests are excused, of a trace of which the caller knows how many were sent and answered: a check for
/// [`comparable`].
///
/// # Errors
/// Like [`may_be_incomplete`]; or, as nothing excuses it, if the trace lost events, counts more requests than were sent, or other
/// complete ones than were answered and are not excused.
pub fn few_excused(traced: &Traced, sent: u64, answered: RangeInclusive<u64>) -> Result<bool> {
    let counts = || traced.report.vms.iter().map(|vm| vm.requests);
    let (all, complete): (u64, u64) = (counts().map(|r| r.seen).sum(), counts().map(|r| r.complete).sum());
    let (excused, seen) = excused_and_seen(traced)?;
    ensure!(lost(&traced.report) == 0, "events lost: {:?}", traced.report.counters);
    agrees("seen", all, 0..=sent, 0)?;
    agrees("complete", complete, answered, excused)?;
    Ok(is_few(excused, seen))
}

/// [`few_excused`] of a trace while a load was answered so.
///
/// # Errors
/// Like [`few_excused`].
pub fn few((traced, called): &(Traced, Figures)) -> Result<bool> {
    few_excused(traced, called.sent, called.answered())
}

/// Checks that a server answered at least a quarter of the requests in time: one that is slower than they come in answers few, of
/// which a comparison says little. How many it answers is no matter of the trace.
///
/// # Errors
/// If it answered fewer.
pub fn enough(answered: u64, sent: u64) -> Result<()> {
    ensure!(
        answered * 4 >= sent,
        "{answered} of {sent} requests were answered in time: too few to say anything"
    );
    Ok(())
}

/// How often [`comparable`] tries.
const ATTEMPTS: u32 = 3;

/// Makes a trace, or a comparison with one, and makes it again if more than [few](is_few) requests are excused: one event that a
/// busy machine brings late puts half a second in doubt, which may be most of a short load. `few` says whether they are few
/// ([`few_excused`], [`accuracy::Agreement::few_excused`]). It checks each attempt for what nothing excuses, above all that the
/// recording shows why requests are left out.
///
/// # Errors
/// If `few` fails, or too many are excused in each attempt.
pub fn comparable<T>(mut make: impl FnMut() -> T, few: impl Fn(&T) -> Result<bool>) -> Result<T> {
    for attempt in 1..=ATTEMPTS {
        let made = make();
        if few(&made)? {
            return Ok(made);
        }
        crate::say(&format!("attempt {attempt}: too many requests are excused for a comparison"));
    }
    bail!("in each of {ATTEMPTS} attempts more than a quarter of the requests are excused")
}

/// The least and the most that teiji should count, by a count made elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Counted(u64, u64);

impl From<u64> for Counted {
    fn from(count: u64) -> Counted {
        Counted(count, count)
    }
}

impl From<RangeInclusive<u64>> for Counted {
    fn from(counts: RangeInclusive<u64>) -> Counted {
        Counted(*counts.start(), *counts.end())
    }
}

/// Checks that a count of teiji's equals a count made elsewhere, or is less by at most `excused`.
///
/// # Errors
/// If it does not.
pub fn agrees(what: &str, reported: u64, counted: impl Into<Counted>, excused: u64) -> Result<()> {
    let Counted(least, most) = counted.into();
    ensure!(
        reported <= most && reported + excused >= least,
        "{what}: teiji counts {reported}, expected {least} to {most}, or up to {excused} fewer"
    );
    Ok(())
}
