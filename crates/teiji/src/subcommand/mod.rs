//! The subcommands, one file each.

mod agent;
mod apply;
mod completions;
mod doctor;
mod man;
mod observe;
mod plan;
mod policy;
mod replay;
mod signals;
mod status;
mod trace;
mod vms;

pub use trace::select;

use crate::args::{Args, Command};
use anyhow::Result;
use std::process::ExitCode;
use teiji_host::Root;

/// Does what was asked; the exit code says whether all is well.
///
/// # Errors
/// What went wrong; [`crate::args::Usage`] if it is how the command was used.
pub fn run(args: &Args) -> Result<ExitCode> {
    let root = args.root.as_ref().map_or_else(Root::default, Root::new);
    let made_up = args.root.is_some();
    match &args.command {
        Command::Doctor(print) => return doctor::run(print, &root, made_up),
        Command::Vms(print) => vms::run(print, &root)?,
        Command::Trace(trace) => trace::run(trace, &root, made_up)?,
        Command::Replay(replay) => replay::run(replay)?,
        Command::Plan(args) => plan::run(args, &root)?,
        Command::Observe(state) => observe::run(state, &root)?,
        Command::Apply(args) => apply::run(args, &root, made_up)?,
        Command::Confirm(state) => apply::confirm(state)?,
        Command::Rollback(args) => apply::rollback(args)?,
        Command::Status(args) => return status::run(args),
        Command::Agent(state) => agent::run(state, made_up)?,
        Command::Policy(what) => policy::run(what)?,
        Command::Completions(completions) => completions::run(completions)?,
        Command::Man(man) => man::run(man)?,
    }
    Ok(ExitCode::SUCCESS)
}
