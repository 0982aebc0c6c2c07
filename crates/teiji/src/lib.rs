//! The teiji command: parses what the user asks, has it done, prints what came of it.
//!
//! | module | holds |
//! | --- | --- |
//! | [`args`] | the command line |
//! | [`command`] | one file per subcommand |
//! | [`format`](mod@format) | a report in the format asked for |
//! | [`html`] | reports as one web page |
//! | [`output`] | where reports go: standard output, or a file put in place whole |
//! | [`perfetto`] | requests as a trace for the Perfetto viewer |
//! | [`progress`] | the line on standard error while a trace runs |
//! | [`table`] | columns |
//! | [`terminal`] | what the terminal can show; untrusted text |
//! | [`text`] | reports as text |
//! | [`units`] | durations, sizes and shares as people write them |
#![forbid(unsafe_code)]

pub mod args;
pub mod command;
pub mod format;
pub mod html;
pub mod output;
pub mod perfetto;
pub mod progress;
pub mod table;
pub mod terminal;
pub mod text;
pub mod units;
