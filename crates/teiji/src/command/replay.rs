//! `teiji replay`: the report of a recording, without root.

use crate::args::Replay;
use crate::backend::trace;
use crate::format::{self, Kept};
use anyhow::{Context, Result};

/// Reads the recording and prints its report.
pub(super) fn run(args: &Replay) -> Result<()> {
    format::check(&args.report)?;
    let mut kept = Kept::new(args.report.format());
    let report = trace::replay(&args.file, &mut |joined| kept.keep(joined))
        .with_context(|| format!("cannot replay {}", args.file.display()))?;
    format::print(&args.report, &report, &kept)
}
