//! `teiji completions`: the completions for a shell.

use crate::args::{Args, Completions};
use crate::output;
use anyhow::Result;
use clap::CommandFactory;

/// Prints the completions.
pub(super) fn run(args: &Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "teiji", &mut script);
    output::bytes(&script)
}
