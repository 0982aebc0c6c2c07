//! Starts the front, and again whenever it ends. The listening socket is the agent's, so clients that connect meanwhile
//! wait instead of being refused.
//!
//! A front that is stopped or stuck does not end. So a second thread asks it something now and then, as any client does; if
//! it does not answer in time, it is killed, and the first thread starts another one.

use super::child::start_child;
use super::claim::Claim;
use super::orders::Orders;
use super::protocol::{Reply, Request};
use super::wire::{self, MAX_REQUEST};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, UnixAddr, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::chown;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use teiji_host::{kernel, priority};

/// Pauses between two starts: the first, and the longest.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(10);
/// A front that has run for so long has not failed at its start.
const MIN_RUN_TIME: Duration = Duration::from_secs(10);
/// How often a front is asked whether it answers, and how long it may take to. It needs nobody else for that answer.
const ASK_INTERVAL: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The names of its threads.
const FRONT: &str = "front";
const FRONT_CHECK: &str = "front-check";
/// The group whose members may read, if the host has it.
const GROUP: &str = "teiji";

/// What the thread of the supervisor shares with others.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// The process of the front, if there is one. By its id another process could be killed that has got it since.
    front: Mutex<Option<Arc<OwnedFd>>>,
    /// The inode of the socket's file; 0 if there is none.
    inode: AtomicU64,
}

impl Shared {
    fn front(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn inode_of(socket: &Path) -> Option<u64> {
    socket.symlink_metadata().ok().map(|file| file.ino())
}

/// The thread that keeps a front running.
pub(super) struct Supervisor {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    check: JoinHandle<()>,
    socket: PathBuf,
}

impl Supervisor {
    /// # Errors
    /// If no thread can be started. A socket that cannot be made is tried again, and logged.
    pub(super) fn start(socket: &Path, orders: Arc<Orders>, claim: Arc<Claim>) -> io::Result<Supervisor> {
        let shared = Arc::new(Shared::default());
        let (state, path) = (Arc::clone(&shared), socket.to_owned());
        let work = move || supervise(&path, &orders, &claim, &state);
        let thread = Builder::new().name(FRONT.into()).spawn(work)?;
        let (asked, path) = (Arc::clone(&shared), socket.to_owned());
        let check =
            Builder::new().name(FRONT_CHECK.into()).spawn(move || ask_again_and_again(&path, &asked))?;
        Ok(Supervisor { shared, thread, check, socket: socket.to_owned() })
    }

    /// Its threads, and whether each runs: both do until [`Supervisor::stop`].
    pub(super) fn threads(&self) -> [(&'static str, bool); 2] {
        [(FRONT, !self.thread.is_finished()), (FRONT_CHECK, !self.check.is_finished())]
    }

    /// Starts another front with another socket if somebody has removed or replaced the file of this one.
    pub(super) fn check(&self) {
        let inode = self.shared.inode.load(Ordering::SeqCst);
        if inode != 0 && inode_of(&self.socket) != Some(inode) {
            kill_front(&self.shared);
        }
    }

    /// Ends the front and removes the socket.
    pub(super) fn stop(self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while !self.thread.is_finished() && begun.elapsed() < RETRY_MOST {
            kill_front(&self.shared);
            std::thread::sleep(Duration::from_millis(10));
        }
        if inode_of(&self.socket) == Some(self.shared.inode.load(Ordering::SeqCst)) {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

fn kill_front(shared: &Shared) {
    if let Some(front) = &*shared.front() {
        let _ = pidfd_send_signal(front, Signal::KILL);
    }
}

/// Kills a front that does not answer. Sleeps without a look in between: the end of the agent ends this thread.
fn ask_again_and_again(socket: &Path, shared: &Shared) {
    loop {
        std::thread::sleep(ASK_INTERVAL);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let Some(front) = shared.front().clone() else { continue };
        if !answers(socket, ANSWER_TIMEOUT)
            && shared.front().as_ref().is_some_and(|now| Arc::ptr_eq(now, &front))
        {
            tracing::warn!(
                "the part of the agent that answers clients has not answered for {} s: it is replaced",
                ANSWER_TIMEOUT.as_secs()
            );
            let _ = pidfd_send_signal(&front, Signal::KILL);
        }
    }
}

/// Whether the front answers anything at all: it refuses a request of version 0 itself.
fn answers(socket: &Path, within: Duration) -> bool {
    let Ok(stream) = connect(socket, within) else { return false };
    let request = Request { version: 0, order: serde_json::Value::Null };
    // One that has too many connections answers before it has read anything.
    let _ = wire::send(&stream, &request, within);
    matches!(wire::receive::<Reply>(&stream, MAX_REQUEST, Some(within), within), Ok(Some(_)))
}

/// Waits at most so long if too many others wait to be accepted.
fn connect(socket: &Path, within: Duration) -> io::Result<UnixStream> {
    let (flags, none) = (SockFlag::SOCK_CLOEXEC, None::<SockProtocol>);
    let stream = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, flags, none)?;
    let within = TimeVal::seconds(within.as_secs() as i64);
    setsockopt(&stream, sockopt::SendTimeout, &within)?;
    nix::sys::socket::connect(stream.as_raw_fd(), &UnixAddr::new(socket)?)?;
    Ok(stream.into())
}

fn supervise(socket: &Path, orders: &Arc<Orders>, claim: &Claim, shared: &Shared) {
    let stop = &shared.stop;
    // A process inherits the priority of the thread that starts it.
    if let Err(error) = priority::ordinary_thread() {
        tracing::warn!("the part of the agent that answers clients has the priority of the agent: {error}");
    }
    let mut pause = RETRY;
    let mut listener = None;
    let mut ours = true;
    while !stop.load(Ordering::SeqCst) {
        let begun = Instant::now();
        let before = std::mem::replace(&mut ours, claim.is_ours().unwrap_or(false));
        if !ours {
            // The reconciler reports it.
            std::thread::sleep(RETRY);
            continue;
        }
        if !before {
            // The agent before this one may have ended long after the reconciler had last tried.
            orders.claimed();
        }
        let served = listen_again(&mut listener, socket, shared).and_then(|l| serve(&l, orders, shared));
        if stop.load(Ordering::SeqCst) {
            return;
        }
        match served {
            Ok(()) => {
                tracing::warn!("the part of the agent that answers clients has ended; it is started again")
            }
            Err(error) => tracing::error!(
                "the agent cannot answer on {}: {error}; deadlines and the policy are kept all the same, and it tries again",
                socket.display()
            ),
        }
        pause = if begun.elapsed() > MIN_RUN_TIME { RETRY } else { (pause * 2).min(RETRY_MOST) };
        let until = Instant::now() + pause;
        while Instant::now() < until && !stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The listening socket; made anew if somebody has removed or replaced its file.
fn listen_again(kept: &mut Option<UnixListener>, socket: &Path, shared: &Shared) -> io::Result<UnixListener> {
    if kept.is_none() || inode_of(socket) != Some(shared.inode.load(Ordering::SeqCst)) {
        *kept = Some(listen(socket)?);
        shared.inode.store(inode_of(socket).unwrap_or(0), Ordering::SeqCst);
    }
    kept.as_ref().map_or_else(|| Err(io::ErrorKind::NotConnected.into()), UnixListener::try_clone)
}

fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = socket.parent().filter(|folder| !folder.exists()) {
        std::fs::DirBuilder::new().mode(0o755).recursive(true).create(folder)?;
    }
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    // Until here the umask decides, which lets nobody else write on any ordinary host; then only root and the group.
    let group = teiji_host::group_id(GROUP);
    chown(socket, None, group.map(nix::unistd::Gid::from_raw))?;
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Runs a front until it ends.
fn serve(listener: &UnixListener, orders: &Arc<Orders>, shared: &Shared) -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = start_child(
        "the part that answers clients",
        Command::new(kernel::own_program())
            .arg("front")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(listener.try_clone()?))),
    )?;
    // It has its id until it is waited for.
    let served = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(io::Error::from);
    let served = served.and_then(|process| {
        *shared.front() = Some(Arc::new(process));
        orders.serve(ours)
    });
    *shared.front() = None;
    end(&mut child);
    served
}

/// Kills the front and waits for it.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As one that is stopped: it accepts nothing, whether or not there is room for another connection.
    #[test]
    fn a_front_that_is_stuck_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(!answers(&socket, Duration::from_secs(1)));
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        assert!(!answers(&socket, Duration::from_secs(1)));
        assert!(!answers(&dir.path().join("none"), Duration::from_secs(1)));
    }
}
