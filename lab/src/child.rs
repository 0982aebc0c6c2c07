//! Runs commands on the lab host: each running command is a [`Child`], which uses a port of the [`Pool`] until the
//! command has ended.

use std::{
    io::Write,
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{
    error::{Doing, Error, Result},
    host::Output,
    ports::{Lost, Pool, lock},
    proto::{self, End, FromAgent, RunRequest, Size, ToAgent},
    stopwatch::Stopwatch,
};

/// How often a limit is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(200);

impl Pool {
    /// Starts a command; another thread passes its output to `sink` immediately. [`Child::wait`] waits for it for at
    /// most `limit`.
    pub(crate) fn start(
        self: &Arc<Pool>,
        request: RunRequest,
        limit: Option<Duration>,
        mut sink: Sink,
    ) -> Result<Child> {
        let shown = show(&request);
        let mut port = self.acquire()?;
        let lost = Lost(self);
        let mut port_in = port.try_clone().doing(|| "share a port".into())?;
        let shared = Arc::new(Shared::default());
        proto::send(&mut port, &ToAgent::Run(request))
            .map_err(|e| self.gone(&format!("send it `{shown}`"), &e))?;
        let child = Child {
            shared: shared.clone(),
            writer: Mutex::new(port),
            command: shown,
            limit,
            stopwatch: Stopwatch::begin(&self.emulator),
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
                    // The answer to a ping that was sent twice.
                    Ok(Some(FromAgent::Pong { .. })) => {}
                    Ok(Some(FromAgent::Refused(why))) => break Err(Broken::Refused(why)),
                    Ok(None) => break Err(Broken::Lost("it closed the port".into())),
                    Err(e) => break Err(Broken::Lost(e.to_string())),
                }
            };
            let usable = !matches!(result, Err(Broken::Lost(_)));
            lock(&shared.state).result = Some(result);
            shared.changed.notify_all();
            if usable {
                pool.release(port_in);
            } else {
                pool.mark_lost();
            }
        });
        Ok(child)
    }
}

/// The destination of a command's output.
pub(crate) enum Sink {
    /// It is kept for [`Child::wait`].
    Keep,
    /// This process's standard output and error.
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
            // If these are closed, nobody can be told.
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

/// A command that runs in the lab host or in a guest. Dropping it kills the command and all processes that it started.
pub struct Child {
    shared: Arc<Shared>,
    writer: Mutex<UnixStream>,
    command: String,
    limit: Option<Duration>,
    stopwatch: Stopwatch,
    pool: Arc<Pool>,
}

impl Child {
    /// The command's process id in its machine; the process leads the process group of that number.
    ///
    /// # Errors
    /// If it could not be started.
    pub fn id(&self) -> Result<u32> {
        let stopwatch = Stopwatch::begin(&self.pool.emulator);
        let mut state = lock(&self.shared.state);
        loop {
            match (&state.pid, &state.result) {
                (Some(pid), _) => return Ok(*pid),
                (None, Some(Err(b))) => return Err(self.broken(b)),
                (None, Some(Ok(_))) => {
                    return Err(Error::Protocol("never said which process it started".into()));
                }
                (None, None) => {
                    state = self.wait_change(state, &stopwatch, Some(self.pool.limits.response))?
                }
            }
        }
    }

    /// Waits until the command's standard output contains `text`; returns all standard output so far.
    ///
    /// # Errors
    /// If the command ends first, or `limit` is exceeded.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<String> {
        let stopwatch = Stopwatch::begin(&self.pool.emulator);
        let mut state = lock(&self.shared.state);
        loop {
            let printed = String::from_utf8_lossy(&state.stdout);
            if printed.contains(text) {
                return Ok(printed.into_owned());
            }
            if let Some(result) = &state.result {
                return Err(match result {
                    Err(b) => self.broken(b),
                    Ok(end) => Error::Failed {
                        command: self.command.clone(),
                        code: end.code,
                        stderr: format!(
                            "ended before it said {text:?}: {}{}",
                            tail(&state.stdout),
                            tail(&state.stderr)
                        ),
                    },
                });
            }
            state = self.wait_change(state, &stopwatch, Some(limit))?;
        }
    }

    /// Waits until the command has ended; returns its output.
    ///
    /// # Errors
    /// If the limit is exceeded (then the command and all processes that it started are killed), it could not be
    /// started, or the lab host has ended.
    pub fn wait(self) -> Result<Output> {
        let (stopwatch, limit) = (self.stopwatch.clone(), self.limit);
        self.wait_as(&stopwatch, limit)
    }

    fn wait_as(self, stopwatch: &Stopwatch, limit: Option<Duration>) -> Result<Output> {
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
                None => match self.wait_change(state, stopwatch, limit) {
                    Ok(changed) => state = changed,
                    Err(hangs @ Error::LabHost(_)) => return Err(hangs),
                    Err(late) => {
                        self.end(&late)?;
                        return Err(late);
                    }
                },
            }
        }
    }

    /// Kills the command because it is late, and waits until that is done, so that nothing of it is left afterwards.
    fn end(&self, late: &Error) -> Result<()> {
        self.kill()?;
        let stopwatch = Stopwatch::begin(&self.pool.emulator);
        let mut state = lock(&self.shared.state);
        while state.result.is_none() {
            match self.wait_change(state, &stopwatch, Some(self.pool.limits.response)) {
                Ok(changed) => state = changed,
                Err(_) => return Err(self.unkilled(late)),
            }
        }
        Ok(())
    }

    /// The error of a command that cannot be killed: either the lab host hangs, or only this command does (a process
    /// that waits in the kernel, or its guest).
    fn unkilled(&self, late: &Error) -> Error {
        self.pool.hangs(late).unwrap_or_else(|| {
            Error::Protocol(format!("has not said since that it has ended, so it may still run: {late}"))
        })
    }

    /// Whether the command has ended.
    pub fn ended(&self) -> bool {
        lock(&self.shared.state).result.is_some()
    }

    /// The exit code, once the command has ended; 128 + n if signal n ended it.
    pub fn code(&self) -> Option<i32> {
        match &lock(&self.shared.state).result {
            Some(Ok(end)) => Some(end.code),
            _ => None,
        }
    }

    /// Writes to the command's standard input.
    ///
    /// # Errors
    /// If the lab host has ended.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(proto::CHUNK).try_for_each(|c| self.tell(&ToAgent::Stdin(c.to_vec())))
    }

    /// Closes the command's standard input.
    ///
    /// # Errors
    /// If the lab host has ended.
    pub fn close_input(&self) -> Result<()> {
        self.tell(&ToAgent::StdinEnd)
    }

    /// Kills the command's process group with SIGKILL.
    ///
    /// # Errors
    /// If the lab host has ended.
    pub fn kill(&self) -> Result<()> {
        self.tell(&ToAgent::Kill)
    }

    /// Changes the size of the command's terminal.
    ///
    /// # Errors
    /// If the lab host has ended.
    pub fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        self.tell(&ToAgent::Resize(Size { rows, columns }))
    }

    fn tell(&self, message: &ToAgent) -> Result<()> {
        let mut port = lock(&self.writer);
        if self.ended() {
            return Ok(());
        }
        let reach = || format!("reach `{}`", self.command);
        proto::send(&mut *port, message).map_err(|e| self.pool.gone(&reach(), &e))
    }

    /// Waits for a change of the state.
    ///
    /// # Errors
    /// If `limit` is exceeded ([`Error::Timeout`]), or the lab host hangs.
    fn wait_change<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        stopwatch: &Stopwatch,
        limit: Option<Duration>,
    ) -> Result<MutexGuard<'a, State>> {
        // Output may come while the lab host is asked.
        drop(state);
        let waiting = format_args!("wait for `{}`", self.command);
        if let Some(hangs) = self.pool.hangs_if_due(&waiting) {
            return Err(hangs);
        }
        let state = lock(&self.shared.state);
        if state.result.is_some() {
            return Ok(state);
        }
        if let Some(limit) = limit.filter(|l| stopwatch.expired(*l)) {
            return Err(self.timeout(&state, limit));
        }
        Ok(self.shared.changed.wait_timeout(state, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0)
    }

    fn timeout(&self, state: &State, limit: Duration) -> Error {
        Error::Timeout {
            command: self.command.clone(),
            limit,
            printed: format!("{}{}", tail(&state.stdout), tail(&state.stderr)),
        }
    }

    fn broken(&self, b: &Broken) -> Error {
        match b {
            Broken::Refused(why) => Error::Protocol(format!("refused `{}`: {why}", self.command)),
            Broken::Lost(why) => self.pool.gone(&format!("wait for `{}`", self.command), why),
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

fn tail(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned()
}

fn show(request: &RunRequest) -> String {
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
    use crate::{
        machine::{Emulator, PORTS},
        ports::Limits,
    };
    use std::path::Path;

    /// More commands than there are ports, to a lab host that has ended: each is an error, and none waits for ever.
    #[test]
    fn a_dead_lab_host_is_an_error_each_time() {
        let (pool, others) = pool(PORTS);
        drop(others);
        for _ in 0..PORTS + 2 {
            let started = pool.start(crate::host::shell("true"), None, Sink::Keep);
            let why = started.and_then(Child::wait).unwrap_err().to_string();
            assert!(why.contains("the emulator ended"), "{why}");
        }
    }

    const LOCKUP: &str = "[ 99.1] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [teiji-agent:344]\n";

    /// A pool of an emulator that has ended.
    fn pool(ports: usize) -> (Arc<Pool>, Vec<UnixStream>) {
        let (pool, others) = running(ports, Path::new("/nonexistent"), Duration::MAX);
        pool.emulator.has_ended(Ok(std::os::unix::process::ExitStatusExt::from_raw(0)));
        (pool, others)
    }

    /// A pool of an emulator that runs, with its logs in `folder`; the agent is asked each `ask`.
    fn running(ports: usize, folder: &Path, ask: Duration) -> (Arc<Pool>, Vec<UnixStream>) {
        let (ports, others) = (0..ports).map(|_| UnixStream::pair().unwrap()).unzip();
        let emulator = Arc::new(Emulator::new(std::process::id(), folder));
        let limits = Limits { response: Duration::from_millis(300), ask };
        (Arc::new(Pool::of(ports, emulator, limits)), others)
    }

    /// An agent at the other end of a port: it reports that commands have started and answers pings, but does nothing
    /// else.
    fn starts_only(mut port: UnixStream) {
        thread::spawn(move || {
            while let Ok(Some(message)) = proto::receive::<ToAgent>(&mut port) {
                let kernel = String::from("7");
                let _ = match message {
                    ToAgent::Ping => {
                        proto::send(&mut port, &FromAgent::Pong { version: proto::VERSION, kernel })
                    }
                    ToAgent::Run(_) => proto::send(&mut port, &FromAgent::Started { pid: 7 }),
                    _ => Ok(()),
                };
            }
        });
    }

    /// A process that cannot be killed, or a guest that hangs, does not mean that the lab host hangs.
    #[test]
    fn what_cannot_be_killed_is_told_from_a_lab_host_that_hangs() {
        let late = || Some(Duration::from_millis(1));
        let command = || crate::host::shell("true");
        let (pool, others) = pool(3);
        others.into_iter().for_each(starts_only);
        for _ in 0..2 {
            let why = pool.start(command(), late(), Sink::Keep).unwrap().wait().unwrap_err().to_string();
            assert!(why.contains("may still run") && why.contains("within 1ms"), "{why}");
        }
        assert!(pool.start(command(), None, Sink::Keep).is_ok());

        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("console.log"), LOCKUP).unwrap();
        let (pool, _silent) = running(3, folder.path(), Duration::MAX);
        let why = pool.start(command(), late(), Sink::Keep).unwrap().wait().unwrap_err().to_string();
        assert!(why.contains("the lab host hangs") && why.contains("within 1ms"), "{why}");
        let Err(later) = pool.start(command(), None, Sink::Keep) else { panic!("a command was started") };
        assert!(later.to_string().contains("the lab host hangs"), "{later}");
    }

    /// A lab host that hangs is found before the limit of a command ends. It is the emulator's failure if the kernel in it
    /// has printed nothing about it, and counts once however many commands notice it.
    #[test]
    fn a_hang_is_found_while_a_command_runs_and_is_the_emulators_if_the_kernel_is_silent() {
        for (printed, emulators) in [("[ 1.0] teiji-lab: ready\n", true), (LOCKUP, false)] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("console.log"), printed).unwrap();
            let (pool, mut others) = running(3, folder.path(), Duration::from_millis(1));
            // Only the first commands are answered: these two run, and then the machine hangs.
            let silent = others.remove(0);
            others.into_iter().for_each(starts_only);
            let start = || pool.start(crate::host::shell("true"), Some(Duration::from_secs(600)), Sink::Keep);
            let running = [start().unwrap(), start().unwrap()];
            let counted =
                || crate::ends::failures().iter().filter(|why| why.contains("the emulator hangs")).count();
            let before = counted();
            for child in running {
                let why = child.wait().unwrap_err().to_string();
                assert!(why.contains("the lab host hangs") && why.contains("`true`"), "{why}");
                assert_eq!(why.contains("the emulator hangs"), emulators, "{why}");
            }
            assert_eq!(counted(), before + usize::from(emulators));
            drop(silent);
        }
    }

    /// The answer to a second ping may arrive when a command already uses that port.
    #[test]
    fn a_late_answer_to_a_ping_is_passed_over() {
        let (pool, mut others) = pool(1);
        let kernel = String::from("7");
        let mut other = others.remove(0);
        proto::send(&mut other, &FromAgent::Pong { version: proto::VERSION, kernel }).unwrap();
        let child = pool.start(crate::host::shell("true"), None, Sink::Keep).unwrap();
        proto::send(&mut other, &FromAgent::Started { pid: 7 }).unwrap();
        assert_eq!(child.id().unwrap(), 7);
    }
}
