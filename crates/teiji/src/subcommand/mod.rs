//! The subcommands, one file each.

mod agent;
mod apply;
mod completions;
mod confirm;
mod diagnose;
mod doctor;
mod front;
mod man;
mod messages;
mod numa;
mod observe;
mod plan;
mod policy;
mod replay;
mod rollback;
mod signals;
mod status;
mod top;
mod trace;
mod traces;
mod vms;

use crate::args::{Args, Command, State};
use anyhow::Result;
use std::process::ExitCode;
use teiji_agent::service::Service;

/// Runs the subcommand; the exit code says whether all is well.
///
/// # Errors
/// What went wrong; [`crate::args::Usage`] if the command was used wrongly.
pub fn run(args: &Args) -> Result<ExitCode> {
    let here = Service::new(args.root.as_deref());
    let with = |state: &State| here.clone().with(&state.dir, &state.pins);
    // teiji holds settings of this machine only, whatever `root` is.
    let this = |state: &State| Service::new(None).with(&state.dir, &state.pins);
    match &args.command {
        Command::Doctor(print) => return doctor::run(print, &here),
        Command::Vms(print) => vms::run(print, &here)?,
        Command::Numa(what) => return numa::run(what, &here),
        Command::Diagnose(args) => return diagnose::run(args, &here),
        Command::Trace(trace) => trace::run(trace, &with(&trace.state))?,
        Command::Top(top) => top::run(top, &here)?,
        Command::Traces(traces) => traces::run(traces, &this(&traces.state))?,
        Command::Replay(replay) => replay::run(replay)?,
        Command::Plan(args) => plan::run(args, &with(&args.state))?,
        Command::Observe(state) => observe::run(&with(state))?,
        Command::Apply(args) => apply::run(args, &with(&args.state))?,
        Command::Confirm(state) => confirm::run(&this(state))?,
        Command::Rollback(args) => rollback::run(args, &this(&args.state))?,
        Command::Status(args) => return status::run(args, &this(&args.state)),
        Command::Agent(state) => agent::run(&with(state))?,
        Command::Front => front::run()?,
        Command::Policy(what) => policy::run(what)?,
        Command::Completions(completions) => completions::run(completions)?,
        Command::Man(man) => man::run(man)?,
    }
    Ok(ExitCode::SUCCESS)
}
