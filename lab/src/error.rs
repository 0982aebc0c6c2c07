//! The errors of the lab.
//!
//! A message about something that this machine lacks says what does not work without it and what to do. A message about
//! the lab host includes the last lines of its console, whose log stays in the cache (see [`crate::cache`]).

use std::{io, time::Duration};

/// Result with the lab's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the lab itself (a command that exits with a code other than 0 is not one).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that the machine must have is missing.
    #[error("{what} is missing: {therefore}; {fix}")]
    Missing {
        /// What is missing.
        what: String,
        /// What does not work without it.
        therefore: String,
        /// What to do.
        fix: String,
    },
    /// A system call or file operation failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried, as a verb phrase.
        doing: String,
        /// The cause.
        source: io::Error,
    },
    /// A command ended with a code other than 0, but had to succeed.
    #[error("`{command}` ended with code {code}: {stderr}")]
    Failed {
        /// The command, as given.
        command: String,
        /// Its exit code; 128 + n if signal n ended it.
        code: i32,
        /// Its standard error.
        stderr: String,
    },
    /// A command was killed because it exceeded its limit.
    #[error(
        "`{command}` did not end within {limit:?} and was killed with all it had started; it had said: {printed}"
    )]
    Timeout {
        /// The command, as given.
        command: String,
        /// The limit it had.
        limit: Duration,
        /// The end of its output.
        printed: String,
    },
    /// The lab host did not boot, or has ended.
    #[error("the lab host {0}")]
    LabHost(String),
    /// A nested guest did not start, or has ended.
    #[error("guest {name} {why}")]
    Guest {
        /// Its name.
        name: String,
        /// What happened.
        why: String,
    },
    /// The agent sent something unexpected.
    #[error("the lab's agent {0}")]
    Protocol(String),
}

/// Adds what was being done to an I/O error.
pub(crate) trait Doing<T> {
    /// `doing` completes "cannot …".
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { doing: doing(), source })
    }
}

impl<T> Doing<T> for nix::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::Io { doing: doing(), source: e.into() })
    }
}
