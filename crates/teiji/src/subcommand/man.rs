//! `teiji man`: the manual pages, generated from the definition of the command line.

use crate::args::{Args, Man};
use crate::output;
use anyhow::{Context, Result};
use clap::CommandFactory;

/// Prints the page of `teiji`, or writes all pages into a directory.
pub(super) fn run(args: &Man) -> Result<()> {
    let command = Args::command();
    if let Some(dir) = &args.out {
        let what = || format!("cannot write manual pages into {}", dir.display());
        std::fs::create_dir_all(dir).with_context(what)?;
        return clap_mangen::generate_to(command, dir).with_context(what);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).context("cannot make the manual page")?;
    output::bytes(&page)
}
