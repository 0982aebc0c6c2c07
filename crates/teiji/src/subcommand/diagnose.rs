//! `teiji diagnose`: what is wrong with VMs, by the kernel's own counters.

use super::messages::print_line;
use super::signals;
use crate::args::{Diagnose, Level, Usage};
use crate::{output, style};
use anyhow::Result;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use teiji_agent::service::{Observer, Service, Timing};
use teiji_model::diagnosis::{Diagnosis, VmDiagnosis};
use teiji_model::text::duration;
use teiji_render::json;
use teiji_render::text::diagnosis::text;

/// Prints what is wrong; with `--watch` again and again. The exit code says whether something is, or whether that cannot be told.
pub(super) fn run(args: &Diagnose, service: &Service) -> Result<ExitCode> {
    if let Some(file) = &args.replay {
        return replay(args, file);
    }
    if args.length.is_zero() {
        return Err(Usage("--for must be greater than 0".to_owned()).into());
    }
    if args.every.is_zero() {
        return Err(Usage("--every must be greater than 0".to_owned()).into());
    }
    let stop = signals::stop_flag()?;
    let census = args.level == Level::Census;
    let timing = Timing { length: args.length, every: args.every, census, only_whole: args.watch };
    let mut observer = service.observer(&args.vms, timing, args.record.as_deref())?;
    if !args.watch {
        print_line(&format!("observing for {}", duration(args.length.as_nanos() as f64)));
    }
    let observed = observe(args, &mut observer, &stop);
    // What was recorded is worth keeping also if the VM has ended or nobody reads what is printed.
    let finished = observer.finish();
    let well = observed?;
    finished?;
    Ok(exit_code(well))
}

/// Observes once, or until it is stopped; returns whether all was well at last, `None` if no observation was completed.
fn observe(args: &Diagnose, observer: &mut Observer<'_>, stop: &AtomicBool) -> Result<Option<bool>> {
    let mut well = None;
    loop {
        // With `--watch`, one that was cut short says little.
        if let Some((diagnosis, notes)) = observer.observe(stop)? {
            notes.iter().for_each(|note| print_line(note));
            print(args, args.watch, &diagnosis)?;
            well = Some(is_well(&diagnosis));
        }
        if !args.watch || stop.load(Ordering::Relaxed) {
            return Ok(well);
        }
    }
}

/// Prints what was wrong in each observation of a recording.
fn replay(args: &Diagnose, file: &Path) -> Result<ExitCode> {
    // As of `--watch`: that of the last one.
    let (mut well, mut printed) = (None, Ok(()));
    let complete = Service::replay_diagnosis(file, &args.vms, args.unfinished, &mut |diagnosis| {
        well = Some(is_well(diagnosis));
        if printed.is_ok() {
            printed = print(args, true, diagnosis);
        }
    })?;
    printed?;
    if !complete {
        print_line(&format!("{} is not complete: this is what there is", file.display()));
    }
    Ok(exit_code(well))
}

/// `several`: one of them, so that as JSON each is a line.
fn print(args: &Diagnose, several: bool, diagnosis: &Diagnosis) -> Result<()> {
    let json = json::Diagnosis::new(diagnosis);
    match (args.print.json, several) {
        (true, true) => output::stdout(&(serde_json::to_string(&json)? + "\n")),
        (true, false) => output::json(&json),
        (false, _) => output::stdout(&text(diagnosis, &style::stdout())),
    }
}

fn is_well(diagnosis: &Diagnosis) -> bool {
    !diagnosis.vms.is_empty() && diagnosis.vms.iter().all(VmDiagnosis::is_well)
}

fn exit_code(well: Option<bool>) -> ExitCode {
    if well.is_none() {
        print_line("no observation was completed, so nothing can be told");
    }
    if well == Some(true) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
