//! The subcommands, one file each.

mod completions;
mod doctor;
mod man;
mod replay;
mod signals;
mod trace;
mod vms;

pub use doctor::table as doctor_table;
pub use trace::select;
pub use vms::table as vms_table;

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
        Command::Completions(completions) => completions::run(completions)?,
        Command::Man(man) => man::run(man)?,
    }
    Ok(ExitCode::SUCCESS)
}
