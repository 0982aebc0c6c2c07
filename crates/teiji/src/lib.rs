//! The teiji command: parses what the user asks, has it done, prints what came of it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`args`] | the command line |
//! | [`subcommand`] | one file per subcommand |
//! | [`format`](mod@format) | a report in the format asked for |
//! | [`output`] | where reports go: standard output, or a file put in place whole |
//! | [`progress`] | the line on standard error while a trace runs |
//! | [`style`] | what the terminal can show |
#![forbid(unsafe_code)]

pub mod args;
pub mod format;
pub mod output;
pub mod progress;
pub mod style;
pub mod subcommand;
