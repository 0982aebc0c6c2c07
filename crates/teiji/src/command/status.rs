//! `teiji status`: what teiji holds, since when, what someone else has changed since, and what has become of the
//! packets of links with channels.
//!
//! It also clears up after a teiji that was killed, unless what that has applied can still be confirmed.

use super::apply::{open, tell};
use crate::args::Status as Arguments;
use crate::terminal::{Style, Tone, printable, shorten, wrap};
use crate::{output, units};
use anyhow::Result;
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use teiji_agent::apply::{Error, Status};
use teiji_agent::machine::LinksNow;
use teiji_model::resource::ResourceError;

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
    let orphan = |t: &teiji_agent::apply::Unfinished| !(t.applied && t.confirm_left.is_some_and(|ms| ms > 0));
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
    let links = engine.host().links();
    if args.print.json {
        let json = Json { schema: 1, status: &status, deadlines: &links };
        output::stdout(&(serde_json::to_string_pretty(&json)? + "\n"))?;
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let style = Style::stdout();
        output::stdout(&(table(&status, now, &style) + &super::links_table(&links, &style)))?;
    }
    let well = status.held.iter().all(|h| !h.changed) && (status.transaction.is_none() || status.busy);
    let well = well && links.trouble.is_none() && status.damaged.is_none();
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The status as text of at most 100 columns; `now` in seconds since 1970.
pub fn table(status: &Status, now: u64, style: &Style) -> String {
    let mut out = String::new();
    if let Some(why) = status.hidden.as_ref().or(status.damaged.as_ref()) {
        return wrap(&printable(why), 100).join("\n") + "\n";
    }
    if let Some(t) = &status.transaction {
        let what = if t.rollback { "rollback" } else { "apply" };
        let state = match (status.busy, t.confirm_left) {
            (true, Some(ms)) => {
                format!("waits for `teiji confirm`, {} left", units::count(ms.div_ceil(1000), "second"))
            }
            (true, None) => {
                format!("is under way, {} of {} begun", t.begun, units::count(t.steps.len() as u64, "step"))
            }
            (false, Some(ms)) if ms > 0 && t.applied => format!(
                "ended while it waited; `teiji confirm` keeps it within {}, any other change undoes it",
                units::count(ms.div_ceil(1000), "second")
            ),
            (false, _) => "ended before it was done; `teiji rollback --unfinished` clears it up".to_owned(),
        };
        let text = format!("{what} (pid {}, {} ago) {state}", t.pid, age(now, t.time));
        out +=
            &(wrap(&text, 100).iter().map(|l| style.paint(Tone::Strong, l)).collect::<Vec<_>>().join("\n")
                + "\n");
    } else if status.busy {
        out += "another teiji is changing settings\n";
    }
    if status.other_boot {
        out += "what teiji held before the last boot is void, because the kernel has forgotten it\n";
    }
    if status.held.is_empty() {
        return out + "teiji holds nothing: every setting is somebody else's\n";
    }
    out += &format!("teiji holds {}\n", units::count(status.held.len() as u64, "setting"));
    let text =
        |value: &dyn std::fmt::Display, width| shorten(&style.ascii(&printable(&value.to_string())), width);
    for held in &status.held {
        let hold = &held.hold;
        let whose = style.paint(Tone::Strong, &format!("{:<24}", text(&hold.whose, 24)));
        let first = format!("  {whose}  {:<30}  {}", text(&held.setting, 30), text(&hold.value, 38));
        out += &format!("{}\n", first.trim_end());
        let why =
            format!("was {}; since {} ago, because of {}", hold.original, age(now, hold.since), hold.reason);
        for line in wrap(&style.ascii(&printable(&why)), 96) {
            out += &format!("    {}\n", style.paint(Tone::Faint, &line));
        }
        let trouble = match &held.present {
            Ok(found) if held.changed => Some(format!("changed by someone else to {found}")),
            Ok(_) => None,
            Err(why @ ResourceError::Gone(_)) => Some(why.to_string()),
            Err(why) => Some(format!("cannot be read: {why}")),
        };
        for line in trouble.iter().flat_map(|t| wrap(&style.ascii(&printable(t)), 96)) {
            out += &format!("    {}\n", style.paint(Tone::Bad, &line));
        }
    }
    out
}

/// How long ago, in the greatest unit that fits.
fn age(now: u64, then: u64) -> String {
    let seconds = now.saturating_sub(then);
    let (n, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    units::count(n, unit)
}
