//! `teiji status`: what teiji holds, since when, what someone else has changed since, and what has become of the
//! packets of links with channels.
//!
//! It also clears up after a teiji that was killed, unless what that has applied can still be confirmed.

use super::apply::{open, tell};
use crate::args::Status as Arguments;
use crate::{output, terminal};
use anyhow::Result;
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use teiji_agent::apply::Error;
use teiji_model::status::{LinksNow, Status, Unfinished};
use teiji_render::text::{links, status::table};

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    #[serde(flatten)]
    status: &'a Status,
    /// Links with channels.
    deadlines: &'a LinksNow,
}

/// The exit code is 1 if something is not as teiji left it.
pub(super) fn run(args: &Arguments) -> Result<ExitCode> {
    let engine = open(&args.state)?;
    let mut status = engine.status_or_damage();
    let orphan = |t: &Unfinished| !(t.applied && t.confirm_left.is_some_and(|ms| ms > 0));
    if !status.busy && status.transaction.as_ref().is_some_and(orphan) {
        match engine.recover(Duration::ZERO) {
            Ok(notes) => {
                tell(&notes);
                status = engine.status_or_damage();
            }
            // Somebody else is about to, or this is not root: the status says what there is.
            Err(Error::Busy(_) | Error::State { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let deadlines = engine.host().links();
    if args.print.json {
        let json = Json { schema: 1, status: &status, deadlines: &deadlines };
        output::stdout(&(serde_json::to_string_pretty(&json)? + "\n"))?;
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let style = terminal::stdout();
        output::stdout(&(table(&status, now, &style) + &links::table(&deadlines, &style)))?;
    }
    let well = status.held.iter().all(|h| !h.changed) && (status.transaction.is_none() || status.busy);
    let well = well && deadlines.trouble.is_none() && status.damaged.is_none();
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
