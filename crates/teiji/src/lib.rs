//! The teiji command: parses the command line, calls the agent's service, prints the result.
//!
//! | module | holds |
//! | --- | --- |
//! | [`args`] | the command line |
//! | [`subcommand`] | one file per subcommand |
//! | [`format`](mod@format) | prints a report in the requested format |
//! | [`output`] | the destination of reports: standard output, or a file that appears only when complete |
//! | [`progress`] | the line on standard error while a trace runs |
//! | [`screen`] | the terminal as a whole, for pictures that are drawn again and again |
//! | [`style`] | what the terminal can show |
#![forbid(unsafe_code)]

pub mod args;
pub mod format;
pub mod output;
pub mod progress;
pub mod screen;
pub mod style;
pub mod subcommand;
