//! `teiji agent`: registers teiji's qdisc and says four times a second that somebody looks after it.
//!
//! ```text
//!          nothing pinned                            this version's, or loaded
//!  start ──────────────────► load, register, pin ──► beat, without any privilege ──► SIGTERM ──► end
//!    │      another version's, no link has it ▲                                       last one out: unpin
//!    └── another version's, links have it ──► beat for it ──(no link has it any more)─┘
//! ```
//! Channels live in the kernel, not here: whoever kills the agent has links fall back to FIFO after 2 s, and the next
//! agent has them keep deadlines again, at once.
//!
//! | thread | does |
//! | --- | --- |
//! | heartbeat | begins first, writes to a mapped page, depends on no file and waits for nobody |
//! | recovery | clears up after a killed apply, and ends; what it cannot read it reports and leaves to the operator |
//! | main | waits for the signal; looks once a second whether the pins are still there |
//!
//! ## Pins that somebody removes
//! Links keep their qdisc and the maps, and the heartbeat in these goes on, so no deadline is missed. But commands find no
//! channels any more. The agent holds all that was pinned and pins it again, if the folder is free: a kernel whose
//! channels nobody can change or remove is of no use to anyone, and whoever wants them gone has `teiji rollback`. If the
//! folder has another process's pins it says so, and goes on for the links that have its own qdisc.

use crate::apply::{self, Engine};
use crate::machine::Machine;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use teiji_bpf::qdisc_edf::{Keep, Pinned, Pulse};
use teiji_host::{Root, privilege};
use teiji_model::status::Unfinished;

/// Between two beats: a fraction of what is safe ([`teiji_bpf::qdisc_edf::BEAT_EVERY`]), and how long a signal may wait.
const BEAT: Duration = Duration::from_millis(250);
/// Between two looks at the pins.
const LOOK: Duration = Duration::from_secs(1);

/// Why there is no agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The qdisc; also if another agent keeps it.
    #[error(transparent)]
    Qdisc(#[from] teiji_bpf::Error),
    /// Privileges that it does not need would stay.
    #[error(
        "the agent ends, as it could not give up its privileges: deadlines are not kept; start it by the systemd unit, or as root with all capabilities"
    )]
    Privilege(#[from] privilege::Error),
    /// There is no thread to beat in.
    #[error("cannot start a thread, so nobody would keep deadlines")]
    Thread(#[source] std::io::Error),
    /// The pins are another process's, and no link has the qdisc of this one.
    #[error("{} has the pins of another process, and no link has the qdisc of this agent: it ends; end the other process, or start this one with another --pins", .0.display())]
    Replaced(PathBuf),
}

impl Error {
    /// Whether it would be the same if the agent were started again: the kernel lacks what it needs. Another agent that
    /// runs may end.
    pub fn lasts(&self) -> bool {
        matches!(self, Error::Qdisc(teiji_bpf::Error::Missing { .. } | teiji_bpf::Error::NoBtf))
    }
}

/// Keeps deadlines going until `stop`. Needs root for the start only; no capability is kept, but root's user, to whom the
/// pins belong.
///
/// # Errors
/// If another one runs, or the kernel does not take the qdisc. What is wrong in the state directory is logged.
pub fn run(state: &Path, pins: &Path, stop: &AtomicBool) -> Result<(), Error> {
    let mut keep = Keep::take(pins)?;
    let mut heart = Heart::start(keep.pulse())?;
    warn_of_other(&keep);
    let mut recovery = Some(recover(state, pins)?);
    let (mut confined, mut told) = (false, false);
    let mut watch = Watch::new(pins);
    while !stop.load(Ordering::Relaxed) {
        match &recovery {
            Some(done) if done.recv_timeout(BEAT) == Err(RecvTimeoutError::Disconnected) => recovery = None,
            Some(_) => {}
            None => std::thread::sleep(BEAT),
        }
        if recovery.is_none() {
            if !keep.is_current() && keep.users() == 0 {
                // The lock of the former goes with it; its heartbeat goes on until there is another.
                drop(keep);
                keep = Keep::take(pins)?;
                heart = Heart::start(keep.pulse())?;
                tracing::info!("no link has the other version's qdisc any more; the agent keeps its own");
            }
            if keep.is_current() && !confined {
                privilege::give_up()?;
                heart.without_privileges();
                privilege::confirm()?;
                confined = true;
            }
            if !told {
                told = true;
                tracing::info!("the agent keeps deadlines; {} links have channels", keep.users());
            }
        }
        watch.look(&mut keep)?;
    }
    let users = keep.users();
    // Between the look and the removal a link may get the qdisc: `unpin` looks again, under the writers' lock.
    match keep.unpin() {
        Ok(()) => tracing::info!("no link has channels; the qdisc is unregistered"),
        Err(teiji_bpf::Error::Refused { .. }) => tracing::warn!(
            "{users} links still have channels; {} s from now their packets leave in the order of arrival: start the agent \
             again, or remove the channels by `teiji rollback`",
            teiji_bpf::qdisc_edf::BEAT_LIMIT.as_secs()
        ),
        Err(error) => return Err(error.into()),
    }
    drop(heart);
    Ok(())
}

fn warn_of_other(keep: &Keep) {
    if !keep.is_current() {
        tracing::warn!(
            "{} links have channels of another version of teiji: the agent keeps them going as they are; \
             `teiji rollback --force` and `teiji apply` replace them",
            keep.users()
        );
    }
}

/// The heartbeat: a thread without privileges that beats until this is dropped.
struct Heart {
    stop: Arc<AtomicBool>,
    /// Disconnected once its privileges are gone.
    confined: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Heart {
    fn start(pulse: Arc<Pulse>) -> Result<Heart, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (done, confined) = channel::<()>();
        let beat = move || {
            pulse.beat();
            if let Err(error) = privilege::give_up() {
                // `confirm` says it again; meanwhile deadlines are kept.
                tracing::error!("the heartbeat: {error}");
            }
            drop(done);
            while !stopped.load(Ordering::Relaxed) {
                pulse.beat();
                std::thread::park_timeout(BEAT);
            }
        };
        let thread = Builder::new().name("heartbeat".into()).spawn(beat).map_err(Error::Thread)?;
        Ok(Heart { stop, confined, thread: Some(thread) })
    }

    /// Waits until the thread has given up its privileges.
    fn without_privileges(&self) {
        let _ = self.confined.recv();
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Clears up after an apply or a rollback that was killed, as `teiji status` does, in a thread of its own. What is returned
/// is disconnected when it is done, and the thread has no privileges any more then.
fn recover(state: &Path, pins: &Path) -> Result<Receiver<()>, Error> {
    let (done, end) = channel();
    let (state, pins) = (state.to_owned(), pins.to_owned());
    let work = move || {
        match catch_unwind(|| clear_up(&state, &pins)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let cause = std::error::Error::source(&error).map(|c| format!(": {c}")).unwrap_or_default();
                tracing::error!(
                    "{error}{cause}. Deadlines are kept all the same; what teiji changed before stays as it is until the \
                     file is mended or moved away: see `teiji status`"
                );
            }
            Err(_) => tracing::error!("recovery failed; deadlines are kept all the same; see `teiji status`"),
        }
        if let Err(error) = privilege::give_up() {
            tracing::error!("recovery: {error}");
        }
        drop(done);
    };
    Builder::new().name("recovery".into()).spawn(work).map_err(Error::Thread)?;
    Ok(end)
}

fn clear_up(state: &Path, pins: &Path) -> Result<(), apply::Error> {
    let engine = Engine::open(state, Machine::new(Root::default(), pins, state))?;
    let status = engine.status()?;
    let waits = |t: &Unfinished| t.applied && t.confirm_left.is_some_and(|ms| ms > 0);
    if status.busy || status.transaction.as_ref().is_some_and(waits) {
        return Ok(());
    }
    match engine.recover(Duration::ZERO) {
        Ok(notes) => notes.iter().for_each(|note| tracing::warn!("{note}")),
        // Somebody is at it.
        Err(apply::Error::Busy(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Looks whether commands find what the agent keeps.
struct Watch<'a> {
    pins: &'a Path,
    last: Instant,
    /// What is wrong, as it was told.
    trouble: Option<String>,
}

impl<'a> Watch<'a> {
    fn new(pins: &'a Path) -> Watch<'a> {
        Watch { pins, last: Instant::now(), trouble: None }
    }

    fn look(&mut self, keep: &mut Keep) -> Result<(), Error> {
        if self.last.elapsed() < LOOK {
            return Ok(());
        }
        self.last = Instant::now();
        let pins = self.pins.display();
        let meanwhile = "deadlines of present channels are kept, but no command can see or change them";
        let trouble = match keep.look() {
            Ok(Pinned::Ours) => None,
            Ok(Pinned::Missing) => match keep.pin_again() {
                Ok(()) => {
                    tracing::warn!(
                        "somebody removed what the agent had pinned in {pins}: it is pinned again, and channels are as \
                         they were; `teiji rollback` removes them"
                    );
                    None
                }
                Err(error) => Some(format!(
                    "what the agent had pinned in {pins} is gone: {meanwhile}; {error}; it tries again"
                )),
            },
            Ok(Pinned::Others) if keep.users() == 0 => return Err(Error::Replaced(self.pins.to_owned())),
            Ok(Pinned::Others) => Some(format!(
                "{pins} has the pins of another process: {meanwhile} ({} links); end that process, remove its pins, and \
                 this agent pins its own again",
                keep.users()
            )),
            Err(error) => Some(format!("it is not known whether commands find the channels: {error}")),
        };
        if trouble != self.trouble {
            match &trouble {
                Some(text) => tracing::error!("{text}"),
                None => tracing::info!("commands find the channels in {pins} again"),
            }
            self.trouble = trouble;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_can_be_pinned_the_agent_says_so_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let pins = dir.path().join("pins");
        let refused = run(dir.path(), &pins, &AtomicBool::new(true)).unwrap_err();
        assert!(matches!(refused, Error::Qdisc(_)), "{refused}");
        assert!(!pins.exists());
    }
}
