//! `teiji numa`: where VMs are on a host with NUMA nodes.

use super::messages::print_line;
use super::signals;
use crate::args::{Numa, NumaAdvise, NumaBench, NumaShow, Usage};
use crate::{output, style};
use anyhow::Result;
use std::process::ExitCode;
use std::time::Duration;
use teiji_agent::service::{Pins, Service};
use teiji_model::numa::NumaHost;
use teiji_model::text::duration;
use teiji_render::json;
use teiji_render::text::{numa, numa_bench};

/// Carries out what is asked.
pub(super) fn run(what: &Numa, service: &Service) -> Result<ExitCode> {
    match what {
        Numa::Show(args) => show(args, service),
        Numa::Advise(args) => advise(args, service),
        Numa::Bench(args) => bench(args, service),
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
        output::stdout(&numa::text(&host, &style::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn advise(args: &NumaAdvise, service: &Service) -> Result<ExitCode> {
    let host = observed(service, &[], args.length)?;
    let found = Service::numa_advice(&host, if args.ignore_pins { Pins::Ignored } else { Pins::Kept });
    if args.print.json {
        output::json(&json::NumaAdvice::new(&found))?;
    } else {
        output::stdout(&numa::advice(&found, &style::stdout()))?;
    }
    Ok(if found.moves.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bench(args: &NumaBench, service: &Service) -> Result<ExitCode> {
    let mut settings = service.usual_numa_bench();
    settings.passes = args.passes;
    if !args.sizes.is_empty() {
        settings.sizes = args.sizes.iter().map(|size| *size as u64).collect();
    }
    if !args.strides.is_empty() {
        settings.strides.clone_from(&args.strides);
    }
    if let Some(wrong) = settings.strides.iter().find(|stride| **stride % 4 != 0) {
        return Err(Usage(format!("--stride {wrong} is not a multiple of 4, the size of a write")).into());
    }
    let measured = service.numa_bench(&settings, &mut |what, done, all| {
        print_line(&format!("measuring ({} of {all}): {what}", done + 1));
    })?;
    if args.print.json {
        output::json(&json::NumaBench::new(&measured))?;
    } else {
        output::stdout(&numa_bench::text(&measured, &style::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}
