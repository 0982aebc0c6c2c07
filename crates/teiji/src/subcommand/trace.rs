//! `teiji trace`: follows packets until told to stop, then reports.

use super::messages::print_line;
use super::signals;
use crate::args::{Format, Trace, Usage, Watched};
use crate::format::{self, Kept};
use crate::output;
use crate::progress::ProgressLine;
use anyhow::{Result, bail};
use std::cell::RefCell;
use std::io::Read;
use std::sync::atomic::Ordering;
use teiji_agent::output::Rights;
use teiji_agent::service::{GuestsWanted, Service, TraceOrder};
use teiji_agent::trace::{Progress, TraceSpec};
use teiji_model::flow::{Flow, Matching, Watch};
use teiji_model::snapshot::Snapshot;

/// Traces and prints the report.
pub(super) fn run(args: &Trace, service: &Service) -> Result<()> {
    format::check(&args.report)?;
    if args.every.is_some() {
        format::check_every(&args.report)?;
    }
    if args.detach {
        return detach(args, matching(&args.watched, &parse(&args.watched.flow)?), service);
    }
    // Before anything that takes time: a signal that comes meanwhile asks for the end, too.
    let of_agent = args.of_agent.then(signals::patient_stop_flag).transpose()?;
    if args.of_agent {
        wait_to_be_known(std::io::stdin())?;
    }
    let timelines = args.report.format() == Format::Perfetto;
    let spec = TraceSpec {
        every: args.every,
        record: args.record.clone(),
        only_recorded: args.of_agent,
        timelines,
        ..spec(&args.watched, service)?
    };
    // Both are done before the trace gives up the privileges that they need.
    let out = output::Destination::to(args.report.out.as_deref(), Rights::GivenUp)?;
    let observed = args.report.suggest.then(|| service.observed()).transpose()?;
    // Not before the output is open: that may wait for the reader of a pipe, which a signal has to end.
    let stop = of_agent.map_or_else(signals::stop_flag, Ok)?;
    let mut kept = Kept::new(args.report.format());
    let mut line = ProgressLine::new(args.watched.duration);
    // Both the progress and the snapshots print; a snapshot removes the line first.
    let line = RefCell::new(&mut line);
    let mut unprinted = None;
    let mut snapshot = |snapshot: &Snapshot| {
        line.borrow_mut().clear();
        if let Err(error) = format::snapshot(&args.report, &snapshot.report) {
            // Nobody reads it any more: there is no use in going on.
            unprinted.get_or_insert(error);
            stop.store(true, Ordering::Relaxed);
        }
    };
    let progress = &mut |p: &Progress| line.borrow_mut().show(p);
    let traced = Service::trace(spec, &stop, progress, &mut snapshot, &mut |joined| kept.keep(joined));
    line.borrow_mut().clear();
    if let Some(error) = unprinted {
        return Err(error);
    }
    let traced = traced?;
    if args.report.suggest {
        format::suggest(&traced.outcome.report, observed.as_ref())?;
    } else if args.every.is_some() && args.report.format() == Format::Json && args.report.out.is_none() {
        format::snapshot(&args.report, &traced.outcome.report)?;
    } else {
        format::print(&args.report, out, &[(String::new(), traced.outcome.report)], &kept)?;
    }
    if let Some(error) = traced.outcome.recording_failed {
        return Err(error.into());
    }
    if traced.vanished {
        bail!(
            "a traced VM ended before the trace did, and did not come back: the report shows what was seen until then"
        );
    }
    Ok(())
}

/// Waits until the agent has noted which process this trace is: one that no agent knows of could not be listed or ended.
fn wait_to_be_known(mut agent: impl Read) -> Result<()> {
    if let Err(error) = agent.read_exact(&mut [0]) {
        bail!("the agent that started this trace ended before it had noted it ({error}): start it again");
    }
    Ok(())
}

fn parse(flow: &str) -> Result<Flow> {
    Ok(Flow::parse(flow).map_err(|e| Usage(format!("cannot read --flow:\n{e}")))?)
}

/// How requests are matched: as asked for, or else as the filter says.
fn matching(args: &Watched, flow: &Flow) -> Matching {
    args.matching.unwrap_or_else(|| Matching::of(flow))
}

/// What to trace, as the service takes it: without snapshots and recording. Looks for the VMs.
pub(super) fn spec(args: &Watched, service: &Service) -> Result<TraceSpec> {
    let flow = parse(&args.flow)?;
    let matching = matching(args, &flow);
    let selected = service.select(&args.vms, &args.taps)?;
    for note in &selected.notes {
        eprintln!("{note}");
    }
    service.may_trace()?;
    let asked = args.guest || args.guest_vsock_port.is_some() || !args.guest_tcp.is_empty();
    // The tokens are read before the trace gives up the privileges that this needs.
    let guests = asked.then(|| Service::ask_guests(&selected.vms, &guests_wanted(args))).transpose()?;
    let watch =
        Watch { flow, flow_text: args.flow.trim().to_owned(), direction: args.direction.into(), matching };
    Ok(TraceSpec {
        watch,
        vms: selected.vms,
        following: selected.following,
        guests,
        duration: args.duration,
        every: None,
        record: None,
        only_recorded: false,
        timelines: false,
        buffer_bytes: args.buffer,
        confine: true,
    })
}

fn guests_wanted(args: &Watched) -> GuestsWanted {
    GuestsWanted {
        vsock_port: args.guest_vsock_port.unwrap_or(teiji_model::guest::PORT),
        addresses: args.guest_tcp.iter().map(|guest| (guest.vm.clone(), guest.address)).collect(),
        tokens: args.guest_token.clone(),
    }
}

/// Has the agent trace.
fn detach(args: &Trace, matching: Matching, service: &Service) -> Result<()> {
    // Rounded up: a trace of less than a second would end before anything is seen.
    let seconds = args.watched.duration.map(|d| d.as_secs() + u64::from(d.subsec_nanos() > 0));
    let order = TraceOrder {
        vms: args.watched.vms.clone(),
        flow: args.watched.flow.trim().to_owned(),
        direction: args.watched.direction.into(),
        matching,
        seconds,
    };
    let number = service.start_trace(order)?;
    print_line(&format!(
        "trace {number} runs; `teiji traces show {number}` prints its report, `teiji traces stop {number}` ends it"
    ));
    Ok(())
}
