//! `teiji status`: the settings that teiji holds, since when, what someone else has changed since, and the packet
//! statistics of links with channels.

use super::messages::print_messages;
use crate::args::Status as Arguments;
use crate::{output, style};
use anyhow::Result;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use teiji_agent::service::Service;
use teiji_render::json;
use teiji_render::text::{links, status::table};

/// The exit code is 1 if something has changed since teiji set it.
pub(super) fn run(args: &Arguments, service: &Service) -> Result<ExitCode> {
    let found = service.status()?;
    print_messages(&found.messages);
    if args.print.json {
        output::json(&json::Status::new(&found.status, &found.links))?;
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let style = style::stdout();
        output::stdout(&(table(&found.status, now, &style) + &links::table(&found.links, &style)))?;
    }
    Ok(if found.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
