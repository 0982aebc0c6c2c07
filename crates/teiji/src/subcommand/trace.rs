//! `teiji trace`: follows packets until told to stop, then reports.

use super::signals;
use crate::args::{Trace, Usage};
use crate::format::{self, Kept};
use crate::output;
use crate::progress::ProgressLine;
use anyhow::{Result, bail};
use teiji_agent::output::Rights;
use teiji_agent::service::Service;
use teiji_agent::trace::TraceSpec;
use teiji_model::flow::{Flow, Watch};

/// Traces and prints the report.
pub(super) fn run(args: &Trace, service: &Service) -> Result<()> {
    format::check(&args.report)?;
    let flow = Flow::parse(&args.flow).map_err(|e| Usage(format!("cannot read --flow:\n{e}")))?;
    let selected = service.select(&args.vms, &args.taps)?;
    for note in &selected.notes {
        eprintln!("{note}");
    }
    service.may_trace()?;
    let watch = Watch {
        flow,
        flow_text: args.flow.trim().to_owned(),
        direction: args.direction.into(),
        matching: args.matching.into(),
    };
    let spec = TraceSpec {
        watch,
        vms: selected.vms,
        duration: args.duration,
        record: args.record.clone(),
        buffer_bytes: args.buffer,
        confine: true,
    };
    // Both are done before the trace gives up the privileges that they need.
    let out = output::Destination::to(args.report.out.as_deref(), Rights::GivenUp)?;
    let observed = args.report.suggest.then(|| service.observed()).transpose()?;
    let stop = signals::stop_flag()?;
    let mut kept = Kept::new(args.report.format());
    let mut line = ProgressLine::new(args.duration);
    let traced = Service::trace(spec, &stop, &mut |p| line.show(p), &mut |joined| kept.keep(joined));
    line.clear();
    let traced = traced?;
    if args.report.suggest {
        format::suggest(&traced.outcome.report, observed.as_ref())?;
    } else {
        format::print(&args.report, out, &[(String::new(), traced.outcome.report)], &kept)?;
    }
    if let Some(error) = traced.outcome.recording_failed {
        return Err(error.into());
    }
    if traced.vanished {
        bail!("a traced VM ended before the trace did: the report shows what was seen until then");
    }
    Ok(())
}
