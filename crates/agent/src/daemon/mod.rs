//! `teiji agent`: keeps deadlines and the policy in force, and answers on a Unix socket.
//!
//! | thread or process | has | does |
//! | --- | --- | --- |
//! | thread `heartbeat` | no privilege | starts first, writes to a mapped page four times a second, depends on no file and waits for nothing |
//! | thread `main` | root | is woken by signals; checks every 2 s whether the pins are still there; tells systemd that it is alive, as long as all of these threads are |
//! | thread `reconciler` | root | recovers from a killed apply, then compares the host with the policy in force whenever something has changed |
//! | thread `front`, threads `order` | root | start the front and carry out its orders |
//! | thread `front-check` | root | asks the front something every 10 s, and kills one that does not answer |
//! | thread `reload`, during a reload | root | waits until the reconciler has looked at the host, and then tells systemd so |
//! | threads `trace`, one for each trace that it has started | root | wait for the end of the trace's process |
//! | process `teiji front` | user nobody | reads what clients send to the socket, checks who they are, hands on orders |
//!
//! So a write to the host that hangs, a damaged file, a client or a crash of one of them never stops the heartbeat.
//!
//! ```text
//!          nothing pinned                            this build's, or loaded
//!  start ──────────────────► load, register, pin ──► send, reconcile, answer ──► SIGTERM ──► end
//!    │      another build's, no link has it ▲                                       last one out: unpin
//!    ├── another build's, links have it ──► send for it ──(no link has it any more)─┘
//!    │                                      and reconcile its links, if its maps are the same
//!    ├── pins are missing, links may have it ──► reconcile, answer ──(they are as they should be)──► send for it
//!    └── the kernel has no BPF qdiscs ──► reconcile, answer
//! ```
//! (`send`: send the heartbeat.) Channels live in the kernel, not here: if the agent is killed, links fall back to FIFO
//! after 2 s; when the next agent starts, they keep deadlines again at once.
//!
//! | module | holds |
//! | --- | --- |
//! | here | start and end |
//! | `heartbeat` | the heartbeat |
//! | `qdisc` | the qdisc, as long as this agent has it |
//! | `pin_watch` | what is done about pins that somebody removes |
//! | `reconciler` | keeps the policy in force |
//! | `vcpus` | the scheduler of VMs whose threads go by the deadlines of packets |
//! | `reload` | the looks that SIGHUP asks for, one at a time |
//! | `schedule` | when the reconciler looks at the host |
//! | `backoff` | when it tries again what it could not do |
//! | [`protocol`] | what can be asked of an agent, and who may ask |
//! | [`front`] | the process that clients talk to |
//! | `claim` | only one agent keeps a state directory |
//! | `supervisor` | starts the front, again if it ends |
//! | `child` | how the agent starts the front and traces |
//! | `orders` | carries out what the front asks for |
//! | [`detached`] | traces that go on without the terminal that asked for them |
//! | [`client`] | asks an agent |
//! | `wire` | the form of messages |

mod backoff;
mod child;
pub(crate) mod claim;
pub mod client;
pub mod detached;
pub mod front;
mod heartbeat;
mod orders;
mod pin_watch;
pub mod protocol;
mod qdisc;
mod reconciler;
mod reload;
mod schedule;
mod supervisor;
mod vcpus;
mod wire;

use claim::Claim;
use detached::Traces;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use orders::Orders;
use qdisc::{Qdisc, links_have};
use reconciler::Reconciler;
use reload::Reload;
use sd_notify::NotifyState;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};
use supervisor::Supervisor;
use teiji_bpf::qdisc_edf::QdiscOwner;

/// How long the end waits for threads that are changing settings; what they leave undone, the next agent undoes.
const RECONCILER_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two checks of what others may remove: pins, the socket; and of the heartbeat.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The qdisc; also if another agent keeps it.
    #[error(transparent)]
    Qdisc(#[from] teiji_bpf::Error),
    /// No thread can be started.
    #[error("cannot start a thread, so nobody would keep deadlines or the policy")]
    Thread(#[source] std::io::Error),
    /// The pins belong to another process, and no link has the qdisc of this one.
    #[error(
        "{} has the pins of another process, and no link has the qdisc of this agent: this agent stops; stop the other process, \
         or start this one with another --pins", .0.display()
    )]
    Replaced(PathBuf),
}

/// Where an agent keeps its state, and where clients find it.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// The state directory.
    pub state: &'a Path,
    /// The folder of the pins.
    pub pins: &'a Path,
    /// The socket.
    pub socket: &'a Path,
}

/// What signals have asked for.
#[derive(Clone, Copy, Debug)]
pub struct Signals<'a> {
    /// The agent is to end.
    pub stop: &'a AtomicBool,
    /// It is to compare the host with the policy at once.
    pub reload: &'a AtomicBool,
    /// Gets a byte after either is set, so that nobody has to look at them again and again. Its reading end, which does not
    /// block.
    pub wake: &'a UnixStream,
}

/// Runs the agent until signals ask for its end.
///
/// # Errors
/// If another agent keeps the pins. Errors in the state directory, pins that are missing, and a kernel that does not accept the
/// qdisc although it has BPF qdiscs, are logged.
pub fn run(places: Places<'_>, signals: Signals<'_>) -> Result<(), Error> {
    let mut qdisc = Qdisc::acquire(places.pins)?;
    let claim = Arc::new(Claim::on(places.state));
    let reconciler =
        Arc::new(Reconciler::new(places.state, places.pins, Arc::clone(&claim)).map_err(Error::Thread)?);
    let reconciling = {
        let reconciler = Arc::clone(&reconciler);
        Builder::new().name("reconciler".into()).spawn(move || reconciler.run()).map_err(Error::Thread)?
    };
    let orders = Orders::new(Arc::clone(&reconciler), Traces::of(places.state));
    let supervisor =
        Supervisor::start(places.socket, Arc::clone(&orders), Arc::clone(&claim)).map_err(Error::Thread)?;
    announce(qdisc.owner());
    let reload = Reload::default();
    let mut watchdog = Watchdog::default();
    let mut check_at = Instant::now();
    let done = loop {
        if signals.stop.load(Ordering::SeqCst) {
            break Ok(());
        }
        if signals.reload.swap(false, Ordering::SeqCst) {
            reload.ask(&reconciler);
        }
        if check_at <= Instant::now() {
            check_at = Instant::now() + CHECK_INTERVAL;
            supervisor.check();
            if let Err(error) = qdisc.check(Instant::now()) {
                break Err(error);
            }
            reconciler.no_qdisc(qdisc.problem());
            reconciler.check_vcpus();
            let [front, front_check] = supervisor.threads();
            let reconciler = ("reconciler", !reconciling.is_finished());
            let threads = [("heartbeat", qdisc.lives()), reconciler, front, front_check];
            // Without a watchdog in the unit systemd ignores it.
            watchdog.feed(&threads, || drop(sd_notify::notify(&[NotifyState::Watchdog])));
        }
        wait_until(check_at, signals.wake);
    };
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    supervisor.stop();
    reconciler.stop();
    // Those of a directory that another agent keeps are not this one's.
    if claim.is_ours().unwrap_or(false) {
        orders.end_traces(&mut || drop(sd_notify::notify(&[NotifyState::Watchdog])));
    }
    let begun = Instant::now();
    while !reconciling.is_finished() && begun.elapsed() < RECONCILER_END_TIMEOUT {
        std::thread::sleep(Duration::from_millis(10));
    }
    done?;
    qdisc.end()
}

/// Tells systemd that the agent is well for as long as all of its threads run; if one does not, systemd restarts the agent.
#[derive(Default)]
struct Watchdog {
    /// The thread that was reported.
    dead: Option<&'static str>,
}

impl Watchdog {
    /// `threads`: those that end only when the agent does, and whether each runs.
    fn feed(&mut self, threads: &[(&'static str, bool)], feed: impl FnOnce()) {
        let dead = threads.iter().find(|(_, runs)| !runs).map(|(name, _)| *name);
        match dead {
            None => feed(),
            Some(name) if self.dead != dead => tracing::error!(
                "the thread `{name}` of the agent has ended, which is a fault of teiji: systemd restarts the agent now; without \
                 systemd, restart it"
            ),
            Some(_) => {}
        }
        self.dead = dead;
    }
}

/// Waits until then, or until a signal wakes it.
fn wait_until(then: Instant, wake: &UnixStream) {
    // Rounded up: a wait that ends early would be repeated.
    let ms = then.saturating_duration_since(Instant::now()).as_millis() + 1;
    let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(wake.as_fd(), PollFlags::POLLIN)], timeout) {
        Ok(0) | Err(Errno::EINTR) => {}
        Ok(_) if drain(wake) => {}
        // The writing end is closed, so `poll` would return at once for ever: the flags are looked at nevertheless.
        Ok(_) => std::thread::sleep(then.saturating_duration_since(Instant::now())),
        Err(error) => {
            tracing::error!("cannot wait for signals: {error}");
            std::thread::sleep(CHECK_INTERVAL);
        }
    }
}

/// Reads all that is there; false if there was nothing, and nothing can come.
fn drain(mut wake: &UnixStream) -> bool {
    let mut any = false;
    loop {
        match wake.read(&mut [0; 64]) {
            Ok(1..) => any = true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
            Ok(0) | Err(_) => return any,
        }
    }
}

fn announce(owner: Option<&QdiscOwner>) {
    match owner {
        Some(owner) => {
            let (links, have) = links_have(owner.link_count());
            tracing::info!("the agent keeps deadlines; {links} {have} channels")
        }
        None => tracing::info!("the agent keeps the policy"),
    }
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn wake() -> (UnixStream, UnixStream) {
        let (wake, woken) = UnixStream::pair().unwrap();
        wake.set_nonblocking(true).unwrap();
        (wake, woken)
    }

    #[test]
    fn a_signal_ends_the_wait_and_the_next_wait_is_one() {
        let (wake, mut woken) = wake();
        woken.write_all(&[0; 100]).unwrap();
        wait_until(Instant::now() + Duration::from_secs(3600), &wake);
        let left = { &wake }.read(&mut [0; 8]).unwrap_err();
        assert_eq!(left.kind(), ErrorKind::WouldBlock, "all of them are read");
        let then = Instant::now() + Duration::from_millis(20);
        wait_until(then, &wake);
        assert!(Instant::now() >= then);
    }

    #[test]
    fn the_watchdog_is_fed_while_every_thread_runs() {
        let mut watchdog = Watchdog::default();
        let names = ["heartbeat", "reconciler", "front", "front-check"];
        let mut fed = |running: [bool; 4]| {
            let mut fed = false;
            let threads: Vec<_> = names.into_iter().zip(running).collect();
            watchdog.feed(&threads, || fed = true);
            (fed, watchdog.dead)
        };
        assert_eq!(fed([true; 4]), (true, None));
        for (dead, name) in names.into_iter().enumerate() {
            // The one that has ended is the one that is named.
            assert_eq!(fed(std::array::from_fn(|thread| thread != dead)), (false, Some(name)));
        }
        assert_eq!(fed([true; 4]), (true, None));
    }

    #[test]
    fn where_no_signal_can_come_the_wait_is_as_long() {
        let (wake, mut woken) = wake();
        woken.write_all(&[0]).unwrap();
        drop(woken);
        wait_until(Instant::now() + Duration::from_secs(3600), &wake);
        let then = Instant::now() + Duration::from_millis(200);
        wait_until(then, &wake);
        assert!(Instant::now() >= then, "it does not spin");
    }

    /// In a folder that is not in a BPF file system. Needs root.
    #[test]
    fn where_nothing_can_be_pinned_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (pins, socket) = (dir.path().join("pins"), dir.path().join("agent.sock"));
        // Not a directory, so that no front is started: this program is the test.
        let state = dir.path().join("state");
        std::fs::write(&state, "").unwrap();
        let places = Places { state: &state, pins: &pins, socket: &socket };
        let (stop, reload) = (AtomicBool::new(true), AtomicBool::new(false));
        let (wake, _) = UnixStream::pair().unwrap();
        let ran = run(places, Signals { stop: &stop, reload: &reload, wake: &wake });
        // It keeps the policy without the qdisc, whether or not the kernel has BPF qdiscs.
        assert!(ran.is_ok(), "{ran:?}");
        assert!(!pins.exists() && !socket.exists());
    }
}
