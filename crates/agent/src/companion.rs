//! A process that keeps a few privileges beside one that gives up all of its own.
//!
//! ```text
//!  trace (nobody)  ◄── a pair of sockets ──►  companion (root, the capabilities that its one task needs)
//!        │ ends, however ─► the socket closes ─► the companion ends
//! ```
//! It is made by fork(2) and goes on in a copy of the calling thread. It has no other descriptor than those that it is given,
//! ignores the terminal's signals, and gets no privilege back.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rustix::thread::CapabilitySet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use teiji_host::privilege;

/// How long the process may take to end.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest message, bytes, and some more.
const BUFFER: usize = 256 << 10;

/// Handle of the process. Dropping it ends the process, and waits until it has ended, two seconds at most.
#[derive(Debug)]
pub(crate) struct Companion {
    /// Closed before the process is waited for.
    socket: Option<OwnedFd>,
    process: Pid,
}

impl Companion {
    /// Starts a process with this name, which keeps only these capabilities and, besides its end of the sockets, this
    /// descriptor. `life` is what it does with its socket, or with the reason why it could not give up the rest; it returns
    /// the exit code.
    ///
    /// # Errors
    /// If the kernel makes no process.
    #[allow(unsafe_code)]
    pub(crate) fn start(
        name: &CStr,
        kept: CapabilitySet,
        descriptor: Option<RawFd>,
        life: impl FnOnce(Result<OwnedFd, io::Error>) -> i32,
    ) -> io::Result<Companion> {
        // Messages keep their boundaries, and neither side reads half of one.
        let flags = SockFlag::SOCK_CLOEXEC;
        let (socket, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        // Where the host's limit is lower, longer messages are left out.
        let _ = setsockopt(&there, sockopt::SndBuf, &BUFFER);
        // SAFETY: the child goes on in a copy of this thread alone. It takes no lock that another thread may have held,
        // and returns to none of the callers: system calls and memory are all that it uses, and glibc's allocator can be
        // used in the child of a process with several threads.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Companion { socket: Some(socket), process: child }),
            ForkResult::Child => {
                drop(socket);
                let code = life(prepare(name, kept, descriptor, there));
                // SAFETY: ends the process at once, without what is to be done at the end of the other one.
                unsafe { nix::libc::_exit(code) }
            }
        }
    }

    /// This side's socket.
    pub(crate) fn socket(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.socket = None;
        // One that hangs in the kernel must not keep this process from its work: init takes it over then.
        let until = Instant::now() + PATIENCE;
        while let Ok(WaitStatus::StillAlive) = waitpid(self.process, Some(WaitPidFlag::WNOHANG)) {
            if Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Gives up what the process does not need.
fn prepare(
    name: &CStr,
    kept: CapabilitySet,
    descriptor: Option<RawFd>,
    socket: OwnedFd,
) -> io::Result<OwnedFd> {
    // Ctrl-C is meant for the other process, which decides when this one ends.
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let _ = nix::sys::prctl::set_name(name);
    let mut open: Vec<u32> = descriptor.into_iter().chain([socket.as_raw_fd()]).map(|fd| fd as u32).collect();
    open.sort_unstable();
    close_others(&open)?;
    privilege::keep_only(kept).map_err(io::Error::other)?;
    Ok(socket)
}

/// Closes all descriptors but these, so that no terminal, pipe or BPF program stays open until this process ends.
#[allow(unsafe_code)]
fn close_others(open: &[u32]) -> nix::Result<()> {
    let mut first = 0;
    for next in open.iter().copied().chain([u32::MAX]) {
        if first < next {
            // SAFETY: takes numbers only, of descriptors that nothing in this process uses any more.
            let closed = unsafe { nix::libc::syscall(nix::libc::SYS_close_range, first, next - 1, 0) };
            Errno::result(closed)?;
        }
        first = next.saturating_add(1);
    }
    Ok(())
}
