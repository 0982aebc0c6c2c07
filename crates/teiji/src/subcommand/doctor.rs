//! `teiji doctor`: what this host can do, what is missing, and what therefore does not work.

use crate::args::Print;
use crate::{output, terminal};
use anyhow::Result;
use serde::Serialize;
use std::process::ExitCode;
use teiji_host::Root;
use teiji_model::host::Capability;
use teiji_render::text::doctor::table;

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    works: bool,
    capabilities: &'a [Capability],
}

/// Looks and prints; the exit code is 0 if a VM with vhost-net NICs can be traced.
pub(super) fn run(print: &Print, root: &Root, made_up: bool) -> Result<ExitCode> {
    let all = if made_up { root.capabilities() } else { teiji_agent::capabilities() };
    let works = works(&all);
    if print.json {
        let json = Json { schema: 1, works, capabilities: &all };
        output::stdout(&(serde_json::to_string_pretty(&json)? + "\n"))?;
    } else {
        output::stdout(&table(&all, &terminal::stdout()))?;
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a VM with vhost-net NICs can be traced.
fn works(all: &[Capability]) -> bool {
    all.iter().all(|c| c.present || !c.essential)
}
