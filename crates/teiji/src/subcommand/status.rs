//! `teiji status`: what the agent does, the settings that teiji holds, since when, what someone else has changed since, and
//! the packet statistics of links with channels. Changes nothing.

use crate::args::Status as Arguments;
use crate::{output, style};
use anyhow::Result;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use teiji_agent::service::Service;
use teiji_render::json;
use teiji_render::text::{agent, links, status::table};

/// The exit code is 1 if something is not as teiji left it or cannot be told; see [`StatusReport::ok`].
///
/// [`StatusReport::ok`]: teiji_agent::service::StatusReport::ok
pub(super) fn run(args: &Arguments, service: &Service) -> Result<ExitCode> {
    let found = service.status()?;
    if args.print.json {
        output::json(&json::Status::new(
            &found.status,
            &found.links,
            found.agent.as_ref(),
            found.silent.as_deref(),
            found.unkept.as_deref(),
        ))?;
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let style = style::stdout();
        let (silent, unkept) = (found.silent.as_deref(), found.unkept.as_deref());
        let agent = agent::table(found.agent.as_ref(), silent, unkept, now, &style);
        output::stdout(&(agent + &table(&found.status, now, &style) + &links::table(&found.links, &style)))?;
    }
    Ok(if found.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
