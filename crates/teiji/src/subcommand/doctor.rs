//! `teiji doctor`: what this host can do, what is missing, and what therefore does not work.

use crate::args::Print;
use crate::{output, style};
use anyhow::Result;
use std::process::ExitCode;
use teiji_agent::service::Service;
use teiji_render::json;
use teiji_render::text::doctor::table;

/// Looks and prints; the exit code is 0 if a VM with vhost-net NICs can be traced.
pub(super) fn run(print: &Print, service: &Service) -> Result<ExitCode> {
    let found = service.doctor();
    if print.json {
        output::json(&json::Doctor::new(&found.capabilities, found.works))?;
    } else {
        output::stdout(&table(&found.capabilities, &style::stdout()))?;
    }
    Ok(if found.works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
