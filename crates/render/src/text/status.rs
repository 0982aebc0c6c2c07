//! The settings that teiji holds, since when, and which of them someone else has changed since.

use crate::terminal::{Style, Tone, pad, printable, shorten, wrap};
use crate::units;
use teiji_model::resource::ResourceError;
use teiji_model::status::Status;

/// The status as text of at most 100 columns; `now` in seconds since 1970.
pub fn table(status: &Status, now: u64, style: &Style) -> String {
    let mut out = String::new();
    if let Some(why) = status.hidden.as_ref().or(status.damaged.as_ref()) {
        return wrap(&printable(why), 100).join("\n") + "\n";
    }
    if let Some(t) = &status.transaction {
        let what = if t.rollback { "rollback" } else { "apply" };
        let state = match (status.busy, t.confirm_left) {
            (_, Some(ms)) if t.can_be_confirmed() => {
                format!("waits for `teiji confirm`, {} left", units::count(ms.div_ceil(1000), "second"))
            }
            (true, _) => {
                format!("is under way, {} of {} begun", t.begun, units::count(t.steps.len() as u64, "step"))
            }
            (false, Some(_)) => {
                "was not confirmed in time; `teiji rollback --unfinished` undoes it".to_owned()
            }
            (false, None) => {
                "was interrupted; `teiji rollback --unfinished` undoes or completes it".to_owned()
            }
        };
        let text = format!("{what} (pid {}, {} ago) {state}", t.pid, age(now, t.time));
        out +=
            &(wrap(&text, 100).iter().map(|l| style.paint(Tone::Strong, l)).collect::<Vec<_>>().join("\n")
                + "\n");
    } else if status.busy {
        out += "another teiji is changing settings\n";
    }
    if status.other_boot {
        out += "teiji no longer holds settings from before the last boot, which has reset them\n";
    }
    if status.held.is_empty() {
        return out + "teiji holds nothing: it has changed no setting\n";
    }
    out += &format!("teiji holds {}\n", units::count(status.held.len() as u64, "setting"));
    let text =
        |value: &dyn std::fmt::Display, width| shorten(&style.ascii(&printable(&value.to_string())), width);
    for held in &status.held {
        let hold = &held.hold;
        let whose = style.paint(Tone::Strong, &pad(&text(&hold.whose, 24), 24));
        let first = format!("  {whose}  {}  {}", pad(&text(&held.setting, 30), 30), text(&hold.value, 38));
        out += &format!("{}\n", first.trim_end());
        let why =
            format!("was {}; since {} ago, because of {}", hold.original, age(now, hold.since), hold.reason);
        for line in wrap(&style.ascii(&printable(&why)), 96) {
            out += &format!("    {}\n", style.paint(Tone::Faint, &line));
        }
        let problem = match &held.present {
            Ok(found) if held.changed => Some(format!("changed by someone else to {found}")),
            Ok(_) => None,
            Err(why @ ResourceError::Gone(_)) => Some(why.to_string()),
            Err(why) => Some(format!("cannot be read: {why}")),
        };
        for line in problem.iter().flat_map(|t| wrap(&style.ascii(&printable(t)), 96)) {
            out += &format!("    {}\n", style.paint(Tone::Bad, &line));
        }
    }
    out
}

/// How long ago, in the largest unit that fits.
pub(super) fn age(now: u64, then: u64) -> String {
    let seconds = now.saturating_sub(then);
    let (n, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    units::count(n, unit)
}
