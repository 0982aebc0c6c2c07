//! `teiji agent`: registers teiji's qdisc and sends a heartbeat to it four times a second.
//!
//! ```text
//!          nothing pinned                            this version's, or loaded
//!  start ──────────────────► load, register, pin ──► send, without any privilege ──► SIGTERM ──► end
//!    │      another version's, no link has it ▲                                       last one out: unpin
//!    └── another version's, links have it ──► send for it ──(no link has it any more)─┘
//! ```
//! (`send`: send the heartbeat.) Channels live in the kernel, not here: if the agent is killed, links fall back to FIFO
//! after 2 s; when the next agent starts, they keep deadlines again at once.
//!
//! | thread | does |
//! | --- | --- |
//! | heartbeat | starts first, writes to a mapped page, depends on no file and waits for nothing |
//! | recovery | recovers from a killed apply, and ends; reports a file that it cannot read, for the operator |
//! | main | waits for the signal; checks once a second whether the pins are still there |
//!
//! ## Pins that somebody removes
//! Links keep their qdisc and the maps, and the heartbeat in these continues, so no deadline is missed. But commands
//! find no channels any more. The agent holds everything that was pinned and pins it again if the folder is free:
//! channels that nobody can change or remove are of no use, and `teiji rollback` is the way to remove them. If the
//! folder has pins of another process, the agent says so and continues for the links that have its own qdisc.

use crate::apply::{self, Engine};
use crate::backend::HostBackend;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use teiji_bpf::qdisc_edf::{PinState, QdiscOwner, SharedNumbers};
use teiji_host::{Root, privilege};
use teiji_model::status::Unfinished;

/// Time between two heartbeats, a fraction of what is safe ([`teiji_bpf::qdisc_edf::HEARTBEAT_INTERVAL_MAX`]). A signal may have to
/// wait for as long.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two checks of the pins.
const PIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The qdisc; also if another agent keeps it.
    #[error(transparent)]
    Qdisc(#[from] teiji_bpf::Error),
    /// It cannot give up privileges that it does not need.
    #[error(
        "the agent ends, as it could not give up its privileges: deadlines are not kept; start it by the systemd unit, or as root with all capabilities"
    )]
    Privilege(#[from] privilege::Error),
    /// No thread can be started for the heartbeat.
    #[error("cannot start a thread, so nobody would keep deadlines")]
    Thread(#[source] std::io::Error),
    /// The pins belong to another process, and no link has the qdisc of this one.
    #[error("{} has the pins of another process, and no link has the qdisc of this agent: it ends; end the other process, or start this one with another --pins", .0.display())]
    Replaced(PathBuf),
}

impl Error {
    /// Whether a restart of the agent would fail in the same way, because the kernel lacks what it needs. (If another
    /// agent runs, that one may end.)
    pub fn lasts(&self) -> bool {
        matches!(self, Error::Qdisc(teiji_bpf::Error::Missing { .. } | teiji_bpf::Error::NoBtf))
    }
}

/// Keeps deadlines until `stop` is set. Needs root for the start only; it then keeps no capability, but stays user
/// root, who owns the pins.
///
/// # Errors
/// If another agent runs, or the kernel does not accept the qdisc. Errors in the state directory are logged.
pub fn run(state: &Path, pins: &Path, stop: &AtomicBool) -> Result<(), Error> {
    let mut owner = QdiscOwner::acquire(pins)?;
    let mut heartbeat_thread = HeartbeatThread::start(owner.shared())?;
    warn_of_other(&owner);
    let mut recovery = Some(recover(state, pins)?);
    let (mut confined, mut announced) = (false, false);
    let mut watch = PinWatch::new(pins);
    while !stop.load(Ordering::Relaxed) {
        match &recovery {
            Some(done) if done.recv_timeout(HEARTBEAT_INTERVAL) == Err(RecvTimeoutError::Disconnected) => {
                recovery = None
            }
            Some(_) => {}
            None => std::thread::sleep(HEARTBEAT_INTERVAL),
        }
        if recovery.is_none() {
            if !owner.is_current() && owner.link_count() == 0 {
                // This releases the lock on the former qdisc; its heartbeat continues until the new one starts.
                drop(owner);
                owner = QdiscOwner::acquire(pins)?;
                heartbeat_thread = HeartbeatThread::start(owner.shared())?;
                tracing::info!("no link has the other version's qdisc any more; the agent keeps its own");
            }
            if owner.is_current() && !confined {
                privilege::give_up()?;
                heartbeat_thread.without_privileges();
                privilege::confirm()?;
                confined = true;
            }
            if !announced {
                announced = true;
                tracing::info!("the agent keeps deadlines; {} links have channels", owner.link_count());
            }
        }
        watch.check(&mut owner)?;
    }
    let links = owner.link_count();
    // A link may get the qdisc before the pins are removed: `unpin` checks again, under the writers' lock.
    match owner.unpin() {
        Ok(()) => tracing::info!("no link has channels; the qdisc is unregistered"),
        Err(teiji_bpf::Error::Refused { .. }) => tracing::warn!(
            "{links} links still have channels; {} s from now their packets leave in the order of arrival: start the agent \
             again, or remove the channels by `teiji rollback`",
            teiji_bpf::qdisc_edf::HEARTBEAT_TIMEOUT.as_secs()
        ),
        Err(error) => return Err(error.into()),
    }
    drop(heartbeat_thread);
    Ok(())
}

fn warn_of_other(owner: &QdiscOwner) {
    if !owner.is_current() {
        tracing::warn!(
            "{} links have channels of another version of teiji: the agent keeps them going as they are; \
             `teiji rollback --force` and `teiji apply` replace them",
            owner.link_count()
        );
    }
}

/// The heartbeat: a thread without privileges that sends it until this value is dropped.
struct HeartbeatThread {
    stop: Arc<AtomicBool>,
    /// Disconnected once the thread has given up its privileges.
    confined: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl HeartbeatThread {
    fn start(shared: Arc<SharedNumbers>) -> Result<HeartbeatThread, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (done, confined) = channel::<()>();
        let send = move || {
            shared.send_heartbeat();
            if let Err(error) = privilege::give_up() {
                // `confirm` reports it again; meanwhile deadlines are kept.
                tracing::error!("the heartbeat: {error}");
            }
            drop(done);
            while !stopped.load(Ordering::Relaxed) {
                shared.send_heartbeat();
                std::thread::park_timeout(HEARTBEAT_INTERVAL);
            }
        };
        let thread = Builder::new().name("heartbeat".into()).spawn(send).map_err(Error::Thread)?;
        Ok(HeartbeatThread { stop, confined, thread: Some(thread) })
    }

    /// Waits until the thread has given up its privileges.
    fn without_privileges(&self) {
        let _ = self.confined.recv();
    }
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Recovers from an apply or a rollback that was killed, as `teiji status` does, in a thread of its own. The returned
/// channel is disconnected when that is done; the thread has no privileges any more then.
fn recover(state: &Path, pins: &Path) -> Result<Receiver<()>, Error> {
    let (done, end) = channel();
    let (state, pins) = (state.to_owned(), pins.to_owned());
    let work = move || {
        match catch_unwind(|| recover_from_kill(&state, &pins)) {
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

fn recover_from_kill(state: &Path, pins: &Path) -> Result<(), apply::Error> {
    let engine = Engine::open(state, HostBackend::new(Root::default(), pins, state))?;
    let status = engine.status()?;
    if status.busy || status.transaction.as_ref().is_some_and(Unfinished::can_be_confirmed) {
        return Ok(());
    }
    match engine.recover(Duration::ZERO) {
        Ok(messages) => messages.iter().for_each(|message| tracing::warn!("{message}")),
        // Another command is doing it.
        Err(apply::Error::Busy(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Checks whether commands find the pins of this agent.
struct PinWatch<'a> {
    pins: &'a Path,
    last: Instant,
    /// The problem that was reported last.
    problem: Option<String>,
}

impl<'a> PinWatch<'a> {
    fn new(pins: &'a Path) -> PinWatch<'a> {
        PinWatch { pins, last: Instant::now(), problem: None }
    }

    fn check(&mut self, owner: &mut QdiscOwner) -> Result<(), Error> {
        if self.last.elapsed() < PIN_CHECK_INTERVAL {
            return Ok(());
        }
        self.last = Instant::now();
        let pins = self.pins.display();
        let meanwhile = "deadlines of present channels are kept, but no command can see or change them";
        let problem = match owner.pin_state() {
            Ok(PinState::Ours) => None,
            Ok(PinState::Missing) => match owner.repin() {
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
            Ok(PinState::Others) if owner.link_count() == 0 => {
                return Err(Error::Replaced(self.pins.to_owned()));
            }
            Ok(PinState::Others) => Some(format!(
                "{pins} has the pins of another process: {meanwhile} ({} links); end that process, remove its pins, and \
                 this agent pins its own again",
                owner.link_count()
            )),
            Err(error) => Some(format!("it is not known whether commands find the channels: {error}")),
        };
        if problem != self.problem {
            match &problem {
                Some(text) => tracing::error!("{text}"),
                None => tracing::info!("commands find the channels in {pins} again"),
            }
            self.problem = problem;
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
