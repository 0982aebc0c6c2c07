//! Runs one command. Its output goes to the caller immediately. When the caller disconnects or asks for it, the command
//! and all processes that it started are killed as a group.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Child, Command, Stdio},
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    pty::{Winsize, openpty},
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use super::{readable, wait_readable, watch};
use crate::proto::{self, End, FromAgent, RunRequest, Size, ToAgent};

/// Why a request did not end regularly.
pub(super) enum Failure {
    /// The command did not start; the caller is told.
    Start(String),
    /// The caller has disconnected, or sent something that cannot be decoded.
    Stream(io::Error),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        Failure::Stream(e)
    }
}

struct Running {
    child: Child,
    group: Pid,
    out: Option<File>,
    err: Option<File>,
    stdin: Option<Sender<Option<Vec<u8>>>>,
    terminal: Option<File>,
}

/// Runs `request` for the caller behind `stream`.
pub(super) fn run(stream: &mut File, request: &RunRequest) -> Result<(), Failure> {
    let mut running = start(request).map_err(|e| {
        Failure::Start(format!("cannot start {}: {e}", request.argv.first().map_or("", String::as_str)))
    })?;
    let result = attend(stream, &mut running);
    if result.is_err() {
        running.kill();
        let _ = running.child.wait();
    }
    result
}

fn start(request: &RunRequest) -> io::Result<Running> {
    let (program, arguments) = request
        .argv
        .split_first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(request.env.iter().map(|(k, v)| (k, v)))
        .current_dir(request.cwd.as_deref().unwrap_or("/root"));
    match request.terminal {
        Some(size) => start_on_terminal(command, size),
        None => {
            command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            let out = child.stdout.take().map(|f| File::from(OwnedFd::from(f)));
            let err = child.stderr.take().map(|f| File::from(OwnedFd::from(f)));
            let stdin = child.stdin.take().map(|f| feed(File::from(OwnedFd::from(f))));
            running(child, out, err, stdin, None)
        }
    }
}

fn start_on_terminal(mut command: Command, size: Size) -> io::Result<Running> {
    let pty = openpty(Some(&winsize(size)), None)?;
    let (ours, theirs) = (File::from(pty.master), File::from(pty.slave));
    fcntl(&ours, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    // SAFETY: only system calls that are safe after fork; they do not access this process's memory.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = command.spawn()?;
    // The command has copies of the terminal's other end: only these must stay open.
    drop(command);
    let stdin = feed(ours.try_clone()?);
    running(child, Some(ours.try_clone()?), None, Some(stdin), Some(ours))
}

fn running(
    child: Child,
    out: Option<File>,
    err: Option<File>,
    stdin: Option<Sender<Option<Vec<u8>>>>,
    terminal: Option<File>,
) -> io::Result<Running> {
    for f in [&out, &err].into_iter().flatten() {
        if terminal.is_none() {
            fcntl(f, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
    }
    Ok(Running { group: Pid::from_raw(child.id() as i32), child, out, err, stdin, terminal })
}

/// Writes to `file` from a separate thread, so that a command that does not read does not block its output.
fn feed(mut file: File) -> Sender<Option<Vec<u8>>> {
    let (to, from) = channel::<Option<Vec<u8>>>();
    thread::spawn(move || {
        while let Ok(Some(bytes)) = from.recv() {
            if file.write_all(&bytes).is_err() {
                break;
            }
        }
    });
    to
}

fn winsize(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Running {
    fn kill(&self) {
        // It fails only if all of the processes have ended.
        let _ = killpg(self.group, Signal::SIGKILL);
    }
}

fn attend(stream: &mut File, running: &mut Running) -> Result<(), Failure> {
    proto::send(stream, &FromAgent::Started { pid: running.group.as_raw() as u32 })?;
    let ended = pidfd(running.group)?;
    let mut incoming = Vec::new();
    let mut chunk = vec![0; proto::CHUNK];
    loop {
        let (caller, end, out, err) = {
            let mut fds = vec![watch(stream), watch(&ended)];
            fds.extend([&running.out, &running.err].into_iter().flatten().map(watch));
            wait_readable(&mut fds, None)?;
            let mut at = fds[2..].iter().map(readable);
            let out = running.out.is_some() && at.next().unwrap_or(false);
            let err = running.err.is_some() && at.next().unwrap_or(false);
            (readable(&fds[0]), readable(&fds[1]), out, err)
        };
        if out && !pass(&mut running.out, &mut chunk, stream, FromAgent::Stdout)? {
            running.out = None;
        }
        if err && !pass(&mut running.err, &mut chunk, stream, FromAgent::Stderr)? {
            running.err = None;
        }
        if end {
            // All that the command itself has written can be read now. Output of processes that it left in the
            // background is not waited for.
            drain(running, &mut chunk, stream)?;
            let status = running.child.wait()?;
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            return Ok(proto::send(stream, &FromAgent::Done(End { code }))?);
        }
        if caller {
            obey(stream, &mut incoming, &mut chunk, running)?;
        }
    }
}

/// Reads the caller's messages and carries them out.
fn obey(
    stream: &mut File,
    incoming: &mut Vec<u8>,
    chunk: &mut [u8],
    running: &mut Running,
) -> io::Result<()> {
    let n = stream.read(chunk)?;
    if n == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    incoming.extend_from_slice(&chunk[..n]);
    while let Some(message) = proto::take::<ToAgent>(incoming)? {
        match message {
            ToAgent::Kill => running.kill(),
            ToAgent::Stdin(bytes) => {
                if let Some(to) = &running.stdin {
                    // The writer thread has ended if the command has closed its input.
                    let _ = to.send(Some(bytes));
                }
            }
            ToAgent::StdinEnd => running.stdin = None,
            ToAgent::Resize(size) => {
                if let Some(t) = &running.terminal {
                    let size = winsize(size);
                    // SAFETY: the descriptor is open and `size` outlives the call.
                    unsafe { libc::ioctl(t.as_raw_fd(), libc::TIOCSWINSZ, &size) };
                }
            }
            ToAgent::Ping | ToAgent::Run(_) => {}
        }
    }
    Ok(())
}

/// Passes on one chunk; `false` if the file has ended.
fn pass(
    file: &mut Option<File>,
    chunk: &mut [u8],
    stream: &mut File,
    wrap: fn(Vec<u8>) -> FromAgent,
) -> io::Result<bool> {
    let Some(f) = file else { return Ok(false) };
    match f.read(chunk) {
        Ok(0) => Ok(false),
        Ok(n) => proto::send(stream, &wrap(chunk[..n].to_vec())).map(|()| true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::Interrupted => Ok(true),
        // A terminal whose other end is closed returns EIO.
        Err(_) => Ok(false),
    }
}

fn drain(running: &mut Running, chunk: &mut [u8], stream: &mut File) -> io::Result<()> {
    for (file, wrap) in [
        (&mut running.out, FromAgent::Stdout as fn(Vec<u8>) -> FromAgent),
        (&mut running.err, FromAgent::Stderr),
    ] {
        // A pipe cannot have more than this in it when the command ends.
        for _ in 0..(1 << 20) / chunk.len() + 1 {
            let Some(f) = file else { break };
            let mut fds = [watch(f)];
            wait_readable(&mut fds, Some(Duration::ZERO))?;
            if !readable(&fds[0]) || !pass(file, chunk, stream, wrap)? {
                break;
            }
        }
    }
    Ok(())
}

/// A descriptor that becomes readable when `pid`, a child that has not been waited for, has ended.
fn pidfd(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes a number and flags; `pid` is a child of this process, so its id is not reused.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor, so nothing else owns it; it is close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
