//! What the agent offers the command. A stand-in until the agent is there: it traces nothing.

use teiji_model::flow::Flow;

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("unknown word `{word}` in filter\n  {text}\n  {caret:>width$}", caret = "^", width = at + 1)]
pub struct FlowError {
    text: String,
    word: String,
    at: usize,
}

/// Reads a filter.
///
/// # Errors
/// If it is not one.
pub fn parse_flow(text: &str) -> Result<Flow, FlowError> {
    match text
        .split_whitespace()
        .find(|w| !["udp", "tcp", "port", "icmp"].contains(w) && w.parse::<u16>().is_err())
    {
        None => Ok(Flow::default()),
        Some(word) => {
            Err(FlowError { text: text.to_owned(), word: word.to_owned(), at: text.find(word).unwrap_or(0) })
        }
    }
}

/// Tracing.
pub mod trace {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;
    use teiji_model::flow::Watch;
    use teiji_model::host::{Capability, Vm};
    use teiji_model::report::{Joined, Report};

    /// What to trace.
    pub struct Spec {
        /// Which packets.
        pub watch: Watch,
        /// Which VMs.
        pub vms: Vec<Vm>,
        /// For how long; until told to stop if `None`.
        pub duration: Option<Duration>,
        /// Where to keep the events.
        pub record: Option<PathBuf>,
        /// Size of the event buffer, bytes.
        pub buffer_bytes: usize,
    }

    /// How far a trace has come.
    pub struct Progress {
        /// Since its start.
        pub elapsed: Duration,
        /// Events taken.
        pub events: u64,
        /// Requests complete.
        pub complete: u64,
        /// Events lost.
        pub lost: u64,
    }

    /// Why there is no report.
    #[derive(Debug, thiserror::Error)]
    pub enum Error {
        /// Not built in.
        #[error("this build cannot trace")]
        Unsupported,
        /// Not a recording.
        #[error("{0} is not a recording of teiji")]
        NotARecording(PathBuf),
        /// Not readable.
        #[error("cannot read {0}")]
        Read(PathBuf, #[source] std::io::Error),
    }

    /// Traces until `stop` or the end of the duration.
    ///
    /// # Errors
    /// If tracing cannot start or fails.
    pub fn run(
        _spec: Spec,
        _stop: &AtomicBool,
        _progress: &mut dyn FnMut(&Progress),
        _joined: &mut dyn FnMut(&Joined),
    ) -> Result<Report, Error> {
        Err(Error::Unsupported)
    }

    /// Makes the report of a recording.
    ///
    /// # Errors
    /// If it is not a recording.
    pub fn replay(path: &Path, _joined: &mut dyn FnMut(&Joined)) -> Result<Report, Error> {
        std::fs::read(path).map_err(|e| Error::Read(path.into(), e))?;
        Err(Error::NotARecording(path.into()))
    }

    /// Which kernel hooks exist.
    pub fn capabilities() -> Vec<Capability> {
        Vec::new()
    }
}
