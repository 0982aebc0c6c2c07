//! `teiji numa`: where VMs are on a host with NUMA nodes.

use super::messages::print_line;
use super::signals;
use crate::args::{Numa, NumaAdvise, NumaShow, Usage};
use crate::{output, style};
use anyhow::Result;
use std::process::ExitCode;
use std::time::Duration;
use teiji_agent::service::{Pins, Service};
use teiji_model::numa::NumaHost;
use teiji_model::text::duration;
use teiji_render::json;
use teiji_render::text::numa::{advice, text};

/// Carries out what is asked.
pub(super) fn run(what: &Numa, service: &Service) -> Result<ExitCode> {
    match what {
        Numa::Show(args) => show(args, service),
        Numa::Advise(args) => advise(args, service),
    }
}

/// The host, once it has been observed.
fn observed(service: &Service, vms: &[String], length: Duration) -> Result<NumaHost> {
    if length.is_zero() {
        return Err(Usage("--for must be greater than 0".to_owned()).into());
    }
    let stop = signals::stop_flag()?;
    print_line(&format!("observing for {}", duration(length.as_nanos() as f64)));
    let (host, notes) = service.numa(vms, length, &stop)?;
    notes.iter().for_each(|note| print_line(note));
    Ok(host)
}

fn show(args: &NumaShow, service: &Service) -> Result<ExitCode> {
    let host = observed(service, &args.vms, args.length)?;
    if args.print.json {
        output::json(&json::Numa::new(&host))?;
    } else {
        output::stdout(&text(&host, &style::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn advise(args: &NumaAdvise, service: &Service) -> Result<ExitCode> {
    let host = observed(service, &[], args.length)?;
    let found = Service::numa_advice(&host, if args.ignore_pins { Pins::Ignored } else { Pins::Kept });
    if args.print.json {
        output::json(&json::NumaAdvice::new(&found))?;
    } else {
        output::stdout(&advice(&found, &style::stdout()))?;
    }
    Ok(if found.moves.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
