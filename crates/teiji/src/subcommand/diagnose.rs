//! `teiji diagnose`: what is wrong with VMs, by the kernel's own counters.

use super::messages::print_line;
use super::signals;
use crate::args::{Diagnose, Usage};
use crate::{output, style};
use anyhow::Result;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use teiji_agent::service::Service;
use teiji_model::text::duration;
use teiji_render::json;
use teiji_render::text::diagnosis::text;

/// Looks, and prints what is wrong; with `--watch` again and again. The exit code says whether something is.
pub(super) fn run(args: &Diagnose, service: &Service) -> Result<ExitCode> {
    if args.length.is_zero() {
        return Err(Usage("--for must be greater than 0".to_owned()).into());
    }
    let stop = signals::stop_flag()?;
    if !args.watch {
        print_line(&format!("looking for {}", duration(args.length.as_nanos() as f64)));
    }
    loop {
        let (diagnosis, notes) = service.diagnose(&args.vms, args.length, &stop)?;
        notes.iter().for_each(|note| print_line(note));
        match args.print.json {
            true => output::json(&json::Diagnosis::new(&diagnosis))?,
            false => output::stdout(&text(&diagnosis, &style::stdout()))?,
        }
        if !args.watch || stop.load(Ordering::Relaxed) {
            let well = diagnosis.vms.iter().all(|vm| vm.faults.is_empty());
            return Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
}
