//! Commands on the lab host, from this side: a pool of ports, and a [`Child`] per running command that holds
//! a port until the command has ended.

use std::{
    fs::File,
    io::Write,
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    error::{Doing, Error, Result},
    host::Output,
    machine::{Emulator, PORTS},
    patience::Patience,
    proto::{self, End, FromAgent, Request, Size, ToAgent},
};

/// How long the lab host's agent may take to start a command, and to say that one that was killed has ended: it does so
/// at once unless the whole machine hangs.
const GRACE: Duration = Duration::from_secs(60);
/// How long a port of a lab host whose agent answers at another may take to answer before it is connected again.
const REST: Duration = Duration::from_secs(5);
/// How long it may take until an emulator that has closed its ports has ended.
const END_GRACE: Duration = Duration::from_secs(2);
/// How often it is looked whether a limit is over.
const LOOK: Duration = Duration::from_millis(200);

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reach() -> String {
    "reach the lab host's agent".to_owned()
}

/// Connects to port `n` of the emulator.
fn connect(emulator: &Emulator, n: usize) -> Result<UnixStream> {
    let folder = emulator.folder();
    let dir = File::open(folder).doing(|| format!("open {}", folder.display()))?;
    // By descriptor, as the path of a socket is limited to 107 bytes.
    let path = format!("/proc/self/fd/{}/p{n}.sock", dir.as_raw_fd());
    UnixStream::connect(&path).doing(|| format!("connect to port {n} of the lab host"))
}

fn send_ping(port: &mut UnixStream) -> Result<()> {
    proto::send(port, &ToAgent::Ping).doing(reach)
}

/// Reads the answer to a ping: the version of the agent's kernel.
fn pong(port: &mut UnixStream) -> Result<String> {
    port.set_read_timeout(Some(GRACE)).doing(reach)?;
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

/// The ports to the lab host that are free.
pub(crate) struct Pool {
    free: Mutex<Free>,
    returned: Condvar,
    emulator: Arc<Emulator>,
}

#[derive(Default)]
struct Free {
    ports: Vec<UnixStream>,
    /// How many are in use and may come back.
    used: usize,
    /// It did not even answer that a command was killed: it will not do anything else.
    hangs: bool,
}

impl Pool {
    /// Connects to all ports of the emulator, whose sockets are in its folder.
    pub(crate) fn connect(emulator: &Arc<Emulator>) -> Result<Pool> {
        let ports = (0..PORTS).rev().map(|n| connect(emulator, n)).collect::<Result<_>>()?;
        let free = Mutex::new(Free { ports, used: 0, hangs: false });
        Ok(Pool { free, returned: Condvar::new(), emulator: emulator.clone() })
    }

    /// Asks the agent whether it is there, by each port; fails if one does not answer in `limit` (see [`Patience`]).
    /// Returns the version of its kernel and how many ports had to be connected again.
    ///
    /// The lab host's kernel is told by a message each which ports are connected. With QEMU 11.1 that of one port does not
    /// arrive, at every boot, and the agent then waits for ever until its answer can be written there. (Probably it finds
    /// no place: QEMU drops a message while the queue of 32 is full.) A new connection is a new message.
    pub(crate) fn ping(&self, limit: Duration) -> Result<(String, usize)> {
        let mut ports = std::mem::take(&mut lock(&self.free).ports);
        let mut answer = None;
        let mut again = 0;
        // The first one used answers when the lab host has booted.
        for (n, port) in ports.iter_mut().rev().enumerate() {
            send_ping(port)?;
            if n > 0 && !self.answers(port, REST)? {
                *port = connect(&self.emulator, n)?;
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
        let patience = Patience::begin(&self.emulator);
        loop {
            if readable(port, LOOK).doing(reach)? {
                return Ok(true);
            }
            if patience.over(limit) {
                return Ok(false);
            }
        }
    }

    /// Waits for a port that is free.
    ///
    /// # Errors
    /// If none is left: each was lost with a command that the lab host did not answer. If it hangs.
    fn take(&self) -> Result<UnixStream> {
        let mut free = lock(&self.free);
        loop {
            if free.hangs {
                return Err(Error::Host(format!("hangs: {}", self.emulator.last_words())));
            }
            if let Some(port) = free.ports.pop() {
                free.used += 1;
                return Ok(port);
            }
            if free.used == 0 {
                return Err(Error::Host("answers no more: every port to it is lost".into()));
            }
            free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give(&self, port: UnixStream) {
        let mut free = lock(&self.free);
        free.used -= 1;
        free.ports.push(port);
        self.returned.notify_one();
    }

    fn lose(&self) {
        lock(&self.free).used -= 1;
        self.returned.notify_all();
    }

    /// Every command from now on is an error at once, and not after its limit.
    fn hangs(&self) {
        lock(&self.free).hangs = true;
        self.returned.notify_all();
    }

    /// Starts a command; its output goes to `sink` as it comes, from another thread. [`Child::wait`] waits for it at
    /// most `limit`.
    pub(crate) fn start(
        self: &Arc<Pool>,
        request: Request,
        limit: Option<Duration>,
        mut sink: Sink,
    ) -> Result<Child> {
        let shown = show(&request);
        let mut port = self.take()?;
        let lost = Lost(self);
        let mut port_in = port.try_clone().doing(|| "share a port".into())?;
        let shared = Arc::new(Shared::default());
        proto::send(&mut port, &ToAgent::Run(request)).doing(|| format!("send `{shown}` to the lab host"))?;
        let child = Child {
            shared: shared.clone(),
            writer: Mutex::new(port),
            command: shown,
            limit,
            patience: Patience::begin(&self.emulator),
            pool: self.clone(),
        };
        std::mem::forget(lost);
        let pool = self.clone();
        thread::spawn(move || {
            let result = loop {
                match proto::receive::<FromAgent>(&mut port_in) {
                    Ok(Some(FromAgent::Started { pid })) => {
                        lock(&shared.state).pid = Some(pid);
                        shared.changed.notify_all();
                    }
                    Ok(Some(FromAgent::Stdout(b))) => shared.output(&mut sink, b, true),
                    Ok(Some(FromAgent::Stderr(b))) => shared.output(&mut sink, b, false),
                    Ok(Some(FromAgent::Done(end))) => break Ok(end),
                    Ok(Some(FromAgent::Refused(why))) => break Err(Broken::Refused(why)),
                    Ok(Some(other)) => break Err(Broken::Lost(format!("unexpected {other:?}"))),
                    Ok(None) => break Err(Broken::Lost("it closed the port".into())),
                    Err(e) => break Err(Broken::Lost(e.to_string())),
                }
            };
            let usable = !matches!(result, Err(Broken::Lost(_)));
            lock(&shared.state).result = Some(result);
            shared.changed.notify_all();
            if usable {
                pool.give(port_in);
            } else {
                pool.lose();
            }
        });
        Ok(child)
    }
}

/// Counts a port that is in use as lost, when it is dropped.
struct Lost<'p>(&'p Pool);

impl Drop for Lost<'_> {
    fn drop(&mut self) {
        self.0.lose();
    }
}

/// Where a command's output goes.
pub(crate) enum Sink {
    /// Kept for [`Child::wait`].
    Keep,
    /// To this process's own standard output and error.
    Through,
}

enum Broken {
    Refused(String),
    Lost(String),
}

#[derive(Default)]
struct State {
    pid: Option<u32>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    result: Option<Result<End, Broken>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn output(&self, sink: &mut Sink, bytes: Vec<u8>, out: bool) {
        match (sink, out) {
            (Sink::Keep, _) => {
                let mut state = lock(&self.state);
                let to = if out { &mut state.stdout } else { &mut state.stderr };
                to.extend_from_slice(&bytes);
                self.changed.notify_all();
            }
            // Nobody is left to be told if these are closed.
            (Sink::Through, true) => {
                let mut o = std::io::stdout().lock();
                let _ = o.write_all(&bytes).and_then(|()| o.flush());
            }
            (Sink::Through, false) => {
                let _ = std::io::stderr().write_all(&bytes);
            }
        }
    }
}

/// A command that runs in the lab host or in a guest. Dropping it kills the command and all that it started.
pub struct Child {
    shared: Arc<Shared>,
    writer: Mutex<UnixStream>,
    command: String,
    limit: Option<Duration>,
    patience: Patience,
    pool: Arc<Pool>,
}

impl Child {
    /// Process id in the machine where it runs; it leads a process group of that number.
    ///
    /// # Errors
    /// If it could not be started.
    pub fn id(&self) -> Result<u32> {
        let patience = Patience::begin(&self.pool.emulator);
        let mut state = lock(&self.shared.state);
        loop {
            match (&state.pid, &state.result) {
                (Some(pid), _) => return Ok(*pid),
                (None, Some(Err(b))) => return Err(self.broken(b)),
                (None, Some(Ok(_))) => {
                    return Err(Error::Protocol("never said which process it started".into()));
                }
                (None, None) => state = self.wait_change(state, &patience, Some(GRACE))?,
            }
        }
    }

    /// Waits until its standard output contains `text`; returns all standard output until then.
    ///
    /// # Errors
    /// If it ends first, or `limit` is over.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<String> {
        let patience = Patience::begin(&self.pool.emulator);
        let mut state = lock(&self.shared.state);
        loop {
            let said = String::from_utf8_lossy(&state.stdout);
            if said.contains(text) {
                return Ok(said.into_owned());
            }
            if let Some(result) = &state.result {
                return Err(match result {
                    Err(b) => self.broken(b),
                    Ok(end) => Error::Failed {
                        command: self.command.clone(),
                        code: end.code,
                        stderr: format!("ended before it said {text:?}: {}", tail(&state.stderr)),
                    },
                });
            }
            state = self.wait_change(state, &patience, Some(limit))?;
        }
    }

    /// Waits until it has ended and returns what it wrote.
    ///
    /// # Errors
    /// If its limit was over (it is killed then, with all that it started), it could not be started, or the lab host is
    /// gone.
    pub fn wait(self) -> Result<Output> {
        let (patience, limit) = (self.patience.clone(), self.limit);
        self.wait_as(&patience, limit)
    }

    fn wait_as(self, patience: &Patience, limit: Option<Duration>) -> Result<Output> {
        let mut state = lock(&self.shared.state);
        loop {
            match &state.result {
                Some(Ok(end)) => {
                    return Ok(Output {
                        code: end.code,
                        stdout: std::mem::take(&mut state.stdout),
                        stderr: std::mem::take(&mut state.stderr),
                        command: self.command.clone(),
                    });
                }
                Some(Err(b)) => return Err(self.broken(b)),
                None => match self.wait_change(state, patience, limit) {
                    Ok(changed) => state = changed,
                    Err(late) => {
                        self.end()?;
                        return Err(late);
                    }
                },
            }
        }
    }

    /// Kills it, and waits until that is done: what comes after it finds nothing of it.
    fn end(&self) -> Result<()> {
        self.kill()?;
        let patience = Patience::begin(&self.pool.emulator);
        let mut state = lock(&self.shared.state);
        while state.result.is_none() {
            match self.wait_change(state, &patience, Some(GRACE)) {
                Ok(changed) => state = changed,
                Err(_) => {
                    self.pool.hangs();
                    let said = self.pool.emulator.last_words();
                    return Err(Error::Host(format!("hangs: `{}` cannot be killed; {said}", self.command)));
                }
            }
        }
        Ok(())
    }

    /// Whether it has ended.
    pub fn ended(&self) -> bool {
        lock(&self.shared.state).result.is_some()
    }

    /// Its exit code, once it has ended; 128 + n if signal n ended it.
    pub fn code(&self) -> Option<i32> {
        match &lock(&self.shared.state).result {
            Some(Ok(end)) => Some(end.code),
            _ => None,
        }
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// If the lab host is gone.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(proto::CHUNK).try_for_each(|c| self.tell(&ToAgent::Stdin(c.to_vec())))
    }

    /// Closes its standard input.
    ///
    /// # Errors
    /// If the lab host is gone.
    pub fn close_input(&self) -> Result<()> {
        self.tell(&ToAgent::StdinEnd)
    }

    /// Kills it and all that it started (its process group) with SIGKILL.
    ///
    /// # Errors
    /// If the lab host is gone.
    pub fn kill(&self) -> Result<()> {
        self.tell(&ToAgent::Kill)
    }

    /// Tells a command on a terminal that this has another size now.
    ///
    /// # Errors
    /// If the lab host is gone.
    pub fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        self.tell(&ToAgent::Resize(Size { rows, columns }))
    }

    fn tell(&self, message: &ToAgent) -> Result<()> {
        let mut port = lock(&self.writer);
        if self.ended() {
            return Ok(());
        }
        proto::send(&mut *port, message).doing(|| format!("reach `{}` in the lab", self.command))
    }

    fn wait_change<'a>(
        &self,
        state: MutexGuard<'a, State>,
        patience: &Patience,
        limit: Option<Duration>,
    ) -> Result<MutexGuard<'a, State>> {
        if let Some(limit) = limit.filter(|l| patience.over(*l)) {
            return Err(self.timeout(&state, limit));
        }
        Ok(self.shared.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0)
    }

    fn timeout(&self, state: &State, limit: Duration) -> Error {
        Error::Timeout {
            command: self.command.clone(),
            limit,
            said: format!("{}{}", tail(&state.stdout), tail(&state.stderr)),
        }
    }

    fn broken(&self, b: &Broken) -> Error {
        match b {
            Broken::Refused(why) => Error::Protocol(format!("refused `{}`: {why}", self.command)),
            Broken::Lost(why) => {
                // Its ports close before its process can be waited for.
                self.pool.emulator.wait(END_GRACE);
                let said = self.pool.emulator.last_words();
                Error::Host(format!("was lost while `{}` ran: {why}; {said}", self.command))
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended() {
            let _ = self.kill();
        }
    }
}

/// Whether a port can be read, after waiting for that at most so long.
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

fn tail(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned()
}

fn show(request: &Request) -> String {
    let mut s = match &request.argv[..] {
        [_, flag, script] if flag == "-c" => script.clone(),
        all => all.join(" "),
    };
    if let Some((i, _)) = s.char_indices().nth(200) {
        s.truncate(i);
        s.push('…');
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// More commands than there are ports, to a lab host that has died: each is an error, and none waits for ever.
    #[test]
    fn a_dead_lab_host_is_an_error_each_time() {
        let pairs = (0..PORTS).map(|_| UnixStream::pair().unwrap());
        let (ports, _): (Vec<_>, Vec<_>) = pairs.unzip();
        let free = Mutex::new(Free { ports, used: 0, hangs: false });
        let emulator = Arc::new(Emulator::new(std::process::id(), Path::new("/nonexistent")));
        let pool = Arc::new(Pool { free, returned: Condvar::new(), emulator });
        for _ in 0..PORTS + 2 {
            let started = pool.start(crate::host::shell("true"), None, Sink::Keep);
            assert!(started.and_then(Child::wait).is_err());
        }
    }
}
