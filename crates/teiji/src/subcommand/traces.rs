//! `teiji traces`: the traces that the agent runs, their reports, and their end.

use super::messages::print_line;
use crate::args::{Format, OfTraces, ReportArgs, Traces};
use crate::format::{self, Kept};
use crate::{output, style};
use anyhow::Result;
use std::time::{SystemTime, UNIX_EPOCH};
use teiji_agent::output::Rights;
use teiji_agent::service::{Service, Shown};
use teiji_render::json;
use teiji_render::text::traces::table;

/// Lists, shows, ends or removes traces.
pub(super) fn run(args: &Traces, service: &Service) -> Result<()> {
    match &args.what {
        None => {
            let all = service.traces()?;
            if args.print.json {
                return output::json(&json::Traces::new(&all));
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            output::stdout(&table(&all, now, &style::stdout()))
        }
        Some(OfTraces::Show { number, report }) => show(*number, report, service),
        Some(OfTraces::Stop { number }) => Ok(service.stop_trace(*number)?),
        Some(OfTraces::Remove { number }) => Ok(service.remove_trace(*number)?),
    }
}

fn show(number: u32, args: &ReportArgs, service: &Service) -> Result<()> {
    format::check(args)?;
    let out = output::Destination::to(args.out.as_deref(), Rights::Kept)?;
    let mut kept = Kept::new(args.format());
    let shown = Shown { timelines: args.format() == Format::Perfetto, at: None };
    let replayed = service.trace_report(number, shown, &mut |joined| kept.keep(joined))?;
    if !replayed.complete {
        print_line(&format!("trace {number} is not complete: the report shows what there is"));
    }
    if args.suggest {
        format::suggest(&replayed.report, None)
    } else {
        format::print(args, out, &[(String::new(), replayed.report)], &kept)
    }
}
