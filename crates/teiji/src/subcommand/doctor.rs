//! `teiji doctor`: what this host supports, what is missing, and what does not work without it.

use crate::args::Print;
use crate::{output, style};
use anyhow::Result;
use std::process::ExitCode;
use teiji_agent::service::Service;
use teiji_render::json;
use teiji_render::text::doctor::table;

/// Prints the requirements; the exit code is 0 if VMs with vhost-net NICs can be traced.
pub(super) fn run(print: &Print, service: &Service) -> Result<ExitCode> {
    let found = service.doctor();
    if print.json {
        output::json(&json::Doctor::new(&found.requirements, found.works))?;
    } else {
        output::stdout(&table(&found.requirements, &style::stdout()))?;
    }
    Ok(if found.works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
