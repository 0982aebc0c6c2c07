//! Starts the front, and again whenever it ends. The listening socket is the agent's, so clients that connect meanwhile
//! wait instead of being refused.

use super::orders::Orders;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, chown};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use teiji_host::kernel;

/// Pauses between two starts: the first, and the longest.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(10);
/// A front that has run for so long has not failed at its start.
const RAN: Duration = Duration::from_secs(10);
/// The group whose members may read, if the host has it.
const GROUP: &str = "teiji";

/// The thread that keeps a front running.
pub(super) struct Supervisor {
    stop: Arc<AtomicBool>,
    /// The process id of the front; 0 if there is none.
    front: Arc<AtomicI32>,
    thread: JoinHandle<()>,
    socket: PathBuf,
}

impl Supervisor {
    /// # Errors
    /// If no thread can be started. A socket that cannot be made is tried again, and logged.
    pub(super) fn start(socket: &Path, orders: Arc<Orders>) -> io::Result<Supervisor> {
        let (stop, front) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI32::new(0)));
        let (stopped, pid, path) = (Arc::clone(&stop), Arc::clone(&front), socket.to_owned());
        let work = move || supervise(&path, &orders, &stopped, &pid);
        let thread = Builder::new().name("front".into()).spawn(work)?;
        Ok(Supervisor { stop, front, thread, socket: socket.to_owned() })
    }

    /// Ends the front and removes the socket.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while !self.thread.is_finished() && begun.elapsed() < RETRY_MOST {
            let pid = self.front.load(Ordering::SeqCst);
            if pid > 0 {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn supervise(socket: &Path, orders: &Arc<Orders>, stop: &AtomicBool, pid: &AtomicI32) {
    let mut pause = RETRY;
    let mut listener = None;
    while !stop.load(Ordering::SeqCst) {
        let begun = Instant::now();
        let served = listen_again(&mut listener, socket).and_then(|listener| serve(&listener, orders, pid));
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
        pause = if begun.elapsed() > RAN { RETRY } else { (pause * 2).min(RETRY_MOST) };
        let until = Instant::now() + pause;
        while Instant::now() < until && !stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The listening socket; made anew if somebody has removed its file.
fn listen_again(kept: &mut Option<UnixListener>, socket: &Path) -> io::Result<UnixListener> {
    if kept.is_none() || !socket.exists() {
        *kept = Some(listen(socket)?);
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
fn serve(listener: &UnixListener, orders: &Arc<Orders>, pid: &AtomicI32) -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut child = Command::new(kernel::own_program())
        .arg("front")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(OwnedFd::from(listener.try_clone()?)))
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .spawn()?;
    pid.store(child.id() as i32, Ordering::SeqCst);
    let served = orders.serve(ours);
    pid.store(0, Ordering::SeqCst);
    end(&mut child);
    served
}

/// The front has closed its socket, or has sent what is no order.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
