//! The process that gives a file its name after the process that writes the file has given up its privileges.

use super::Names;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use rustix::thread::CapabilitySet;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use teiji_host::privilege;

/// The only command.
const RENAME: u8 = b'k';
/// To write to a folder of another user, and to replace a file of another user in a sticky folder.
const NEEDED: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER);

/// Handle of the process, for the process that writes the file.
#[derive(Debug)]
pub(super) struct Renamer {
    /// Closed before the process is waited for.
    socket: Option<UnixStream>,
    process: Pid,
}

impl Renamer {
    /// Forks; the child serves until the socket is closed.
    #[allow(unsafe_code)]
    pub(super) fn start(names: Names) -> io::Result<Renamer> {
        let (socket, there) = UnixStream::pair()?;
        // SAFETY: the child goes on in a copy of this thread alone. It takes no lock that another thread may have held,
        // and returns to none of the callers: system calls and short-lived memory are all that it uses, and glibc's
        // allocator can be used in the child of a process with several threads.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Renamer { socket: Some(socket), process: child }),
            ForkResult::Child => {
                drop(socket);
                let code = serve(&names, there);
                // SAFETY: ends the process at once, without what is to be done at the end of the other one.
                unsafe { nix::libc::_exit(code) }
            }
        }
    }

    /// Lets it give the file its name.
    pub(super) fn persist(mut self) -> io::Result<()> {
        let mut answer = [0; 4];
        let Some(socket) = &mut self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        socket.write_all(&[RENAME])?;
        socket.read_exact(&mut answer).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::other("the process that was to name the file was killed")
            }
            _ => e,
        })?;
        match i32::from_ne_bytes(answer) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl Drop for Renamer {
    fn drop(&mut self) {
        self.socket = None;
        let _ = waitpid(self.process, None);
    }
}

/// The life of the process; returns its exit code.
fn serve(names: &Names, mut socket: UnixStream) -> i32 {
    // Ctrl-C is meant for the other process, which decides what happens to the file.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let _ = nix::sys::prctl::set_name(c"teiji-rename");
    let others = close_others(names.folder.as_raw_fd() as u32, socket.as_raw_fd() as u32);
    if others.is_err() || privilege::keep_only(NEEDED).is_err() {
        let _ = names.remove();
        return 1;
    }
    let mut command = [0];
    let received = loop {
        match socket.read(&mut command) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            received => break received,
        }
    };
    if !matches!(received, Ok(1)) || command[0] != RENAME {
        let _ = names.remove();
        return 0;
    }
    let done = names.rename();
    if done.is_err() {
        let _ = names.remove();
    }
    let answer = done.err().map_or(0, |e: Errno| e as i32);
    let _ = socket.write_all(&answer.to_ne_bytes());
    0
}

/// Closes all other descriptors, so that no terminal, pipe or BPF program stays open until this process ends.
#[allow(unsafe_code)]
fn close_others(one: u32, other: u32) -> nix::Result<()> {
    let (low, high) = (one.min(other), one.max(other));
    for range in [0..low, low + 1..high, high + 1..u32::MAX] {
        if !range.is_empty() {
            // SAFETY: takes numbers only, of descriptors that nothing in this process uses any more.
            let closed =
                unsafe { nix::libc::syscall(nix::libc::SYS_close_range, range.start, range.end - 1, 0) };
            Errno::result(closed)?;
        }
    }
    Ok(())
}
