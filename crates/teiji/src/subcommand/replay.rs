//! `teiji replay`: the report of one or more recordings, without root.

use super::messages::print_line;
use crate::args::{Format, Replay, Usage};
use crate::format::{self, Kept};
use crate::output;
use anyhow::Result;
use teiji_agent::output::Rights;
use teiji_agent::service::{Service, Shown};

/// Reads the recordings and prints their reports.
pub(super) fn run(args: &Replay) -> Result<()> {
    format::check(&args.report)?;
    let several = args.files.len() > 1;
    if several && args.report.format() == Format::Perfetto {
        return Err(Usage("a Perfetto trace shows one recording: give one".into()).into());
    }
    if several && args.report.suggest {
        return Err(Usage("a suggestion is for the host of one recording: give one recording".into()).into());
    }
    if args.labels.len() > args.files.len() {
        let text = format!("{} labels for {} recordings", args.labels.len(), args.files.len());
        return Err(Usage(text).into());
    }
    let out = output::Destination::to(args.report.out.as_deref(), Rights::Kept)?;
    let mut kept = Kept::new(args.report.format());
    let mut reports = Vec::new();
    let shown = Shown { timelines: args.report.format() == Format::Perfetto, at: args.at };
    for (i, file) in args.files.iter().enumerate() {
        let label = match args.labels.get(i) {
            Some(label) => label.clone(),
            None if several => file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            None => String::new(),
        };
        if args.unfinished {
            let replayed = Service::replay_unfinished(file, shown, &mut |joined| kept.keep(joined))?;
            if !replayed.complete {
                print_line(&format!("{} is not complete: the report shows what there is", file.display()));
            }
            reports.push((label, replayed.report));
        } else {
            reports.push((label, Service::replay(file, shown, &mut |joined| kept.keep(joined))?));
        }
    }
    match &reports[..] {
        [(_, report)] if args.report.suggest => format::suggest(report, None),
        _ => format::print(&args.report, out, &reports, &kept),
    }
}
