//! The ports to the lab host: which are free, and whether its agent answers.
//!
//! ```text
//! free --(acquire)--> in use by a command --(release)--> free
//!                          |
//!                          +--(mark_lost: it closed, or the end of its command was not reported)--> lost
//! ```

use std::{
    fmt::Display,
    io,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    child::CHECK_INTERVAL,
    error::{Doing, Error, Result},
    machine::{Emulator, PORTS},
    proto::{self, FromAgent, ToAgent},
    stopwatch::Stopwatch,
};

/// How long the lab host's agent may take to start a command, and to report the end of a command that was killed: it
/// does both immediately, unless the whole machine hangs.
const RESPONSE_LIMIT: Duration = Duration::from_secs(60);
/// How often it is asked whether it is there while somebody waits for a command: the limit of a command may be long.
const ASK_INTERVAL: Duration = Duration::from_secs(60);
/// How long a port may take to answer, if the agent answers at another port, before it is connected again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// How long it may take until an emulator that has closed its ports has ended.
pub(crate) const EXIT_LIMIT: Duration = Duration::from_secs(2);
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reach() -> String {
    "reach the lab host's agent".to_owned()
}

/// Connects to port `n` of the emulator.
fn connect(emulator: &Emulator, n: usize) -> Result<UnixStream> {
    emulator.connect(&format!("p{n}.sock")).doing(|| format!("connect to port {n} of the lab host"))
}

fn send_ping(port: &mut UnixStream) -> Result<()> {
    proto::send(port, &ToAgent::Ping).doing(reach)
}

/// Reads the answer to a ping: the version of the agent's kernel.
fn pong(port: &mut UnixStream) -> Result<String> {
    port.set_read_timeout(Some(RESPONSE_LIMIT)).doing(reach)?;
    let answer = proto::receive::<FromAgent>(port).doing(reach)?;
    port.set_read_timeout(None).doing(reach)?;
    match answer {
        Some(FromAgent::Pong { version: proto::VERSION, kernel }) => Ok(kernel),
        Some(FromAgent::Pong { version, .. }) => Err(Error::Protocol(format!(
            "speaks version {version}, not {}: build teiji-lab again",
            proto::VERSION
        ))),
        other => Err(Error::Protocol(format!("answered a ping with {other:?}"))),
    }
}

/// The free ports to the lab host.
pub(crate) struct Pool {
    free: Mutex<Free>,
    returned: Condvar,
    pub(crate) emulator: Arc<Emulator>,
    pub(crate) limits: Limits,
}

/// How long an agent may be silent.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// For what it does immediately unless the whole machine hangs.
    pub(crate) response: Duration,
    /// Until it is asked again whether it is there, while somebody waits for a command.
    pub(crate) ask: Duration,
}

struct Free {
    /// When the agent was asked last.
    asked: Instant,
    ports: Vec<UnixStream>,
    /// How many ports are in use and may come back.
    used: usize,
    /// Why the lab host hangs, if it does: its agent did not answer, and will not answer anything else.
    hangs: Option<String>,
}

impl Pool {
    /// Connects to all ports of the emulator, whose sockets are in its folder; to none if it does not listen at each yet.
    ///
    /// That a socket's file is there does not mean that one can connect: the emulator makes it (bind) before it listens.
    pub(crate) fn connect(emulator: &Arc<Emulator>) -> Result<Option<Pool>> {
        let mut ports = Vec::with_capacity(PORTS);
        // The emulator makes them in the order of their numbers, so the last shows first that it is not ready.
        for n in (0..PORTS).rev() {
            match connect(emulator, n) {
                Ok(port) => ports.push(port),
                Err(Error::Io { source, .. })
                    if matches!(
                        source.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    ) =>
                {
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        }
        let limits = Limits { response: RESPONSE_LIMIT, ask: ASK_INTERVAL };
        Ok(Some(Pool::of(ports, emulator.clone(), limits)))
    }

    pub(crate) fn of(ports: Vec<UnixStream>, emulator: Arc<Emulator>, limits: Limits) -> Pool {
        let free = Mutex::new(Free { asked: Instant::now(), ports, used: 0, hangs: None });
        Pool { free, returned: Condvar::new(), emulator, limits }
    }

    /// Asks the agent by each port whether it is there; fails if one does not answer within `limit` (see [`Stopwatch`]).
    /// Returns the version of its kernel, and how many ports had to be connected again.
    ///
    /// The lab host's kernel gets messages for each port that is connected. With QEMU 11.1 and 16 ports one of these messages is
    /// lost at every boot, and the agent then waits for ever until it can write its answer to that port; with 15 none is lost. (The
    /// probable cause: QEMU drops a message while the queue of 32 messages is full.) A new connection sends a new message.
    pub(crate) fn ping(&self, limit: Duration) -> Result<(String, usize)> {
        let mut ports = std::mem::take(&mut lock(&self.free).ports);
        let mut answer = None;
        let mut again = 0;
        // The first port answers when the lab host has booted.
        for (n, port) in ports.iter_mut().rev().enumerate() {
            send_ping(port)?;
            if n > 0 && !self.answers(port, RECONNECT_AFTER)? {
                *port = connect(&self.emulator, n)?;
                // The first ping may be lost, or answered, too: a second answer is ignored when it comes.
                send_ping(port)?;
                again += 1;
            }
            if !self.answers(port, limit)? {
                return Err(Error::Protocol(format!("did not answer at port {n} within {limit:?}")));
            }
            answer = Some(pong(port)?);
        }
        lock(&self.free).ports = ports;
        answer.map(|kernel| (kernel, again)).ok_or_else(|| Error::Protocol("has no port".into()))
    }

    /// Whether something can be read from a port within `limit`.
    fn answers(&self, port: &UnixStream, limit: Duration) -> Result<bool> {
        let stopwatch = Stopwatch::begin(&self.emulator);
        loop {
            if readable(port, CHECK_INTERVAL).doing(reach)? {
                return Ok(true);
            }
            if stopwatch.expired(limit) {
                return Ok(false);
            }
        }
    }

    /// Waits for a free port.
    ///
    /// # Errors
    /// If no port is left, because each was lost with a command that the lab host did not answer; or if the lab host
    /// hangs.
    pub(crate) fn acquire(&self) -> Result<UnixStream> {
        let mut free = lock(&self.free);
        loop {
            if let Some(why) = &free.hangs {
                return Err(Error::LabHost(format!("hangs, as was said before: {why}")));
            }
            if let Some(port) = free.ports.pop() {
                free.used += 1;
                return Ok(port);
            }
            if free.used == 0 {
                return Err(self.gone("run a command", &"every port to it is lost"));
            }
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn release(&self, port: UnixStream) {
        let mut free = lock(&self.free);
        free.used -= 1;
        free.ports.push(port);
        self.returned.notify_one();
    }

    pub(crate) fn mark_lost(&self) {
        lock(&self.free).used -= 1;
        self.returned.notify_all();
    }

    /// Like [`Pool::hangs`], but asks only if nobody has for the ask interval.
    pub(crate) fn hangs_if_due(&self, doing: &dyn Display) -> Option<Error> {
        let now = Instant::now();
        let due = {
            let mut free = lock(&self.free);
            let due = now.duration_since(free.asked) >= self.limits.ask;
            if due {
                free.asked = now;
            }
            due
        };
        if due { self.hangs(doing) } else { None }
    }

    /// Asks whether the lab host hangs, for the error of what was being done: whether its agent answers at a free port. If
    /// no port is free, the agent is not asked. If it hangs, every later command fails immediately, and not after its
    /// limit.
    pub(crate) fn hangs(&self, doing: &dyn Display) -> Option<Error> {
        let error = |why: &str| Error::LabHost(format!("hangs: {doing}; {why}"));
        let mut port = {
            let mut free = lock(&self.free);
            if let Some(why) = &free.hangs {
                return Some(error(why));
            }
            let port = free.ports.pop()?;
            free.used += 1;
            port
        };
        let answers = send_ping(&mut port).is_ok()
            && self.answers(&port, self.limits.response).unwrap_or(false)
            && pong(&mut port).is_ok();
        if answers {
            self.release(port);
            return None;
        }
        self.mark_lost();
        if self.emulator.wait(EXIT_LIMIT) {
            return Some(self.gone(&doing.to_string(), &"it does not answer"));
        }
        let mut free = lock(&self.free);
        if free.hangs.is_none() {
            let (why, state) = self.emulator.hangs();
            free.hangs = Some(why.clone());
            self.returned.notify_all();
            return Some(error(&format!("{why}; {state}")));
        }
        free.hangs.as_deref().map(error)
    }

    /// The error after a port to the lab host has closed, with what was being done.
    pub(crate) fn gone(&self, doing: &str, why: &dyn Display) -> Error {
        // The emulator's ports close before its process can be waited for.
        self.emulator.wait(EXIT_LIMIT);
        Error::LabHost(format!("was lost: cannot {doing}: {why}; {}", self.emulator.how_it_ended()))
    }
}

/// When dropped, counts a port that is in use as lost.
pub(crate) struct Lost<'p>(pub(crate) &'p Pool);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        self.0.mark_lost();
    }
}

/// Whether a port can be read; waits for that for at most `limit`.
fn readable(port: &UnixStream, limit: Duration) -> nix::Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::try_from(limit.as_millis()).unwrap_or(PollTimeout::MAX)) {
        Ok(n) => Ok(n > 0),
        Err(nix::Error::EINTR) => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::{fd::AsRawFd, unix::net::UnixListener};

    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};

    /// As an emulator that starts: its last port is bound, but it does not listen there yet.
    #[test]
    fn a_port_without_a_listener_is_no_failure_but_not_ready() {
        let folder = tempfile::tempdir().unwrap();
        let emulator = Arc::new(Emulator::new(std::process::id(), folder.path()));
        let at = |n: usize| folder.path().join(format!("p{n}.sock"));
        assert!(Pool::connect(&emulator).unwrap().is_none(), "no port is there");
        let _others: Vec<_> = (0..PORTS - 1).map(|n| UnixListener::bind(at(n)).unwrap()).collect();
        let last = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(last.as_raw_fd(), &UnixAddr::new(&at(PORTS - 1)).unwrap()).unwrap();
        assert!(Pool::connect(&emulator).unwrap().is_none(), "the last port does not listen");
        listen(&last, Backlog::new(1).unwrap()).unwrap();
        assert!(Pool::connect(&emulator).unwrap().is_some());
    }
}
