//! `teiji diagnose`: what is wrong with VMs, by the kernel's own counters.

use super::messages::print_line;
use super::signals;
use crate::args::{Diagnose, Usage};
use crate::{output, style};
use anyhow::Result;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use teiji_agent::service::Service;
use teiji_model::diagnosis::VmDiagnosis;
use teiji_model::text::duration;
use teiji_render::json;
use teiji_render::text::diagnosis::text;

/// Prints what is wrong; with `--watch` again and again. The exit code says whether something is, or whether that cannot be told.
pub(super) fn run(args: &Diagnose, service: &Service) -> Result<ExitCode> {
    if args.length.is_zero() {
        return Err(Usage("--for must be greater than 0".to_owned()).into());
    }
    let stop = signals::stop_flag()?;
    if !args.watch {
        print_line(&format!("observing for {}", duration(args.length.as_nanos() as f64)));
    }
    let mut well = true;
    loop {
        let (diagnosis, notes) = service.diagnose(&args.vms, args.length, &stop)?;
        let stopped = stop.load(Ordering::Relaxed);
        // One that was cut short says little.
        if !args.watch || !stopped {
            notes.iter().for_each(|note| print_line(note));
            let json = json::Diagnosis::new(&diagnosis);
            match (args.print.json, args.watch) {
                (true, true) => output::stdout(&(serde_json::to_string(&json)? + "\n"))?,
                (true, false) => output::json(&json)?,
                (false, _) => output::stdout(&text(&diagnosis, &style::stdout()))?,
            }
            well = !diagnosis.vms.is_empty() && diagnosis.vms.iter().all(VmDiagnosis::is_well);
        }
        if !args.watch || stopped {
            return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
}
