//! `teiji agent`: registers teiji's qdisc and says twice a second that somebody looks after it.
//!
//! ```text
//!          nothing pinned                            this version's, or loaded
//!  start ──────────────────► load, register, pin ──► beat, without any privilege ──► SIGTERM ──► end
//!    │      another version's, no link has it ▲                                       last one out: unpin
//!    └── another version's, links have it ──► beat for it ──(no link has it any more)─┘
//! ```
//! Channels live in the kernel, not here: whoever kills the agent has links fall back to FIFO after 2 s, and the next
//! agent has them keep deadlines again, at once.

use crate::apply::store::{Directory, Store};
use crate::apply::{self, Engine};
use crate::machine::Machine;
use crate::privilege;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use teiji_bpf::qdisc_edf::{self as edf, Edf, Opened, Pulse};
use teiji_host::Root;

/// Between two beats: a fraction of what is safe ([`edf::BEAT_EVERY`]), and how long a signal may wait.
const BEAT: Duration = Duration::from_millis(250);
/// Below the state directory: who holds its lock is the agent.
const OWN: &str = "agent";

/// Why there is no agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One at a time.
    #[error("another teiji agent is running{}: one keeps all links", .pid.map(|p| format!(" (pid {p})")).unwrap_or_default())]
    Running {
        /// Its process id, if it is known.
        pid: Option<u32>,
    },
    /// The state directory cannot be used.
    #[error("cannot lock {path}, so that a second agent could not be told from this one")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// What an apply left behind cannot be cleared up.
    #[error(transparent)]
    State(#[from] apply::Error),
    /// The qdisc.
    #[error(transparent)]
    Qdisc(#[from] teiji_bpf::Error),
    /// Privileges that it does not need would stay.
    #[error("{0}; the agent does not run with more privileges than it needs")]
    Privilege(String),
}

/// Keeps deadlines going until `stop`. Needs root for the start only.
///
/// # Errors
/// If another one runs, the kernel does not take the qdisc, or an unfinished transaction cannot be cleared up.
pub fn run(state: &Path, pins: &Path, stop: &AtomicBool) -> Result<(), Error> {
    let own = Directory::new(&state.join(OWN));
    let locked = own.lock().map_err(|source| Error::Lock { path: state.join(OWN), source })?;
    let Some(_only) = locked else {
        return Err(Error::Running { pid: own.holder().ok().flatten().flatten() });
    };
    let (mut pulse, mut current) = take_up(pins)?;
    pulse.beat();
    recover(state, pins)?;
    if current {
        relinquish()?;
    }
    tracing::info!("the agent keeps deadlines; {} links have channels", pulse.users());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(BEAT);
        pulse.beat();
        if !current && pulse.users() == 0 {
            (pulse, current) = take_up(pins)?;
            relinquish()?;
            tracing::info!("no link has the other version's qdisc any more; the agent keeps its own");
        }
    }
    // Between the look and the removal a link may get the qdisc: `unpin` looks again, under the writers' lock.
    match edf::unpin(pins) {
        Ok(()) => tracing::info!("no link has channels; the qdisc is unregistered"),
        Err(teiji_bpf::Error::Refused { .. }) => tracing::warn!(
            "{} links still have channels, which leave in the order of their arrival from 2 s on; start the agent \
             again, or `teiji rollback`",
            pulse.users()
        ),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The pulse of what is pinned, and whether it is of this version. Loads the qdisc if no link has another.
fn take_up(pins: &Path) -> Result<(Pulse, bool), Error> {
    let loaded = |(edf, _): (Edf, _)| (edf.into_pulse(), true);
    match Opened::of(pins)? {
        Opened::Current(edf) => Ok((edf.into_pulse(), true)),
        Opened::Absent => Ok(Edf::load(pins).map(loaded)?),
        Opened::Other(pulse) if pulse.users() == 0 => {
            drop(pulse);
            edf::unpin(pins)?;
            Ok(Edf::load(pins).map(loaded)?)
        }
        Opened::Other(pulse) => {
            tracing::warn!(
                "{} links have channels of another version of teiji: the agent keeps them going as they are; \
                 `teiji rollback --force` and `teiji apply` replace them",
                pulse.users()
            );
            Ok((pulse, false))
        }
    }
}

/// Clears up after an apply or a rollback that was killed, as `teiji status` does.
fn recover(state: &Path, pins: &Path) -> Result<(), Error> {
    let engine = Engine::open(state, Machine::new(Root::default(), pins, state))?;
    let status = engine.status()?;
    let waits = |t: &apply::Unfinished| t.applied && t.confirm_left.is_some_and(|ms| ms > 0);
    if status.busy || status.transaction.as_ref().is_some_and(waits) {
        return Ok(());
    }
    match engine.recover(Duration::ZERO) {
        Ok(notes) => notes.iter().for_each(|note| tracing::warn!("{note}")),
        // Somebody is at it.
        Err(apply::Error::Busy(_)) => {}
        // Deadlines are kept whether it could be or not; `teiji status` says it again.
        Err(error) => tracing::error!("{error}"),
    }
    Ok(())
}

fn relinquish() -> Result<(), Error> {
    privilege::drop_but(&[]).map_err(Error::Privilege)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_agent() {
        let dir = tempfile::tempdir().unwrap();
        let own = Directory::new(&dir.path().join(OWN));
        let held = own.lock().unwrap().unwrap();
        let pins = dir.path().join("pins");
        let second = run(dir.path(), &pins, &AtomicBool::new(true)).unwrap_err().to_string();
        assert!(second.contains(&format!("pid {}", std::process::id())), "{second}");
        drop(held);
        // The next one gets as far as the kernel, which refuses what is no BPF file system if not the qdisc itself.
        let third = run(dir.path(), &pins, &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(third, Error::Qdisc(_)), "{third}");
        assert!(!pins.exists());
    }
}
