//! What can go wrong in the lab.
//!
//! A message about what this machine lacks says what therefore does not work and what to do about it. One about the lab host
//! has its last words with it, and its console stays in the cache (see [`crate::cache`]).

use std::{io, time::Duration};

/// Result with the lab's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the lab itself (a command that merely exits with another code than 0 is not one).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that the machine must have is not there.
    #[error("{what} is missing: {therefore}; {fix}")]
    Missing {
        /// The thing that is not there.
        what: String,
        /// What therefore does not work.
        therefore: String,
        /// What to do.
        fix: String,
    },
    /// A system call or file operation failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried, as a verb phrase.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A command ended with another code than 0 where 0 was needed.
    #[error("`{command}` ended with code {code}: {stderr}")]
    Failed {
        /// The command, as given.
        command: String,
        /// Its exit code; 128 + n if signal n ended it.
        code: i32,
        /// What it said.
        stderr: String,
    },
    /// A command was killed because it took too long.
    #[error(
        "`{command}` did not end within {limit:?} and was killed with all it had started; it had said: {said}"
    )]
    Timeout {
        /// The command, as given.
        command: String,
        /// The limit it had.
        limit: Duration,
        /// The end of what it had written.
        said: String,
    },
    /// The lab host did not boot, or ended.
    #[error("the lab host {0}")]
    Host(String),
    /// A nested guest did not start, or ended.
    #[error("guest {name} {why}")]
    Guest {
        /// Its name.
        name: String,
        /// What happened.
        why: String,
    },
    /// The agent and this program do not understand each other.
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
