//! The lab's remote shell: `teiji-lab agent`, which runs commands in a lab machine for the lab. It is not the daemon
//! `teiji agent`.
//!
//! In the lab host it serves every virtio-serial port named `teiji.<n>`, each with one command at a time. In a guest it
//! accepts vsock connections with one command each. If the lab host's agent gets a request for a guest, it forwards it
//! to the guest's agent.

mod call;
mod command;
mod relay;
mod witness;

pub use call::call;

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd},
    path::PathBuf,
    thread,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, VsockAddr, accept, bind, connect, listen, socket,
    },
};

use crate::{
    error::{Doing, Error, Result},
    proto::{self, FromAgent, ToAgent},
};

/// In the kernel's command line: the agent has to see whether the CPUs run.
pub(crate) const WITNESS: &str = "teiji.witness=1";

/// The option of a vsock socket that limits `connect`, which otherwise fails after 2 s (linux/vm_sockets.h; libc lacks it).
const SO_VM_SOCKETS_CONNECT_TIMEOUT: libc::c_int = 6;

/// Serves the lab host's ports until the machine ends.
///
/// # Errors
/// If there are no ports.
pub fn serve_ports() -> Result<()> {
    let ports = ports().doing(|| "list the virtio ports".into())?;
    if ports.is_empty() {
        return Err(Error::Missing {
            what: "a virtio port of the lab".into(),
            therefore: "the agent has nobody to serve".into(),
            fix: "start it in a lab host only".into(),
        });
    }
    // In virtual time the CPUs take turns, and additional threads would change what is measured.
    if fs::read_to_string("/proc/cmdline").is_ok_and(|line| line.contains(WITNESS)) {
        witness::start();
    }
    let threads: Vec<_> = ports
        .into_iter()
        .map(|path| {
            thread::spawn(move || {
                loop {
                    if let Err(e) = serve_port(&path) {
                        eprintln!("agent: {}: {e}", path.display());
                    }
                    // Nobody is connected to the other side of the port.
                    thread::sleep(Duration::from_millis(20));
                }
            })
        })
        .collect();
    for t in threads {
        let _ = t.join();
    }
    Ok(())
}

fn ports() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/class/virtio-ports")?.flatten() {
        let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim().starts_with("teiji.") {
            found.push(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    Ok(found)
}

fn serve_port(path: &PathBuf) -> io::Result<()> {
    let mut port = OpenOptions::new().read(true).write(true).open(path)?;
    serve(&mut port)
}

/// Serves guests' vsock connections until the machine ends.
///
/// # Errors
/// If vsock is missing.
pub fn serve_vsock() -> Result<()> {
    let listener = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
        .doing(|| "make a vsock socket".into())?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&listener);
    bind(fd, &VsockAddr::new(libc::VMADDR_CID_ANY, proto::VSOCK_PORT))
        .doing(|| "bind the vsock port".into())?;
    let backlog = Backlog::new(64).doing(|| "listen on vsock".into())?;
    listen(&listener, backlog).doing(|| "listen on vsock".into())?;
    loop {
        let raw = accept(fd).doing(|| "accept a vsock connection".into())?;
        // SAFETY: accept has just made this descriptor, so nothing else owns it.
        let mut stream = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        let _ = nix::fcntl::fcntl(&stream, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC));
        thread::spawn(move || {
            if let Err(e) = serve(&mut stream) {
                eprintln!("agent: {e}");
            }
        });
    }
}

/// Connects to the agent of the guest with context id `cid`, which has `patience` to answer.
pub(crate) fn dial(cid: u32, patience: Duration) -> io::Result<File> {
    let s = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // The `timeval` of a 64-bit kernel.
    let timeout = [patience.as_secs() as i64, i64::from(patience.subsec_micros())];
    // SAFETY: `timeout` has the given size and outlives the call.
    let r = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&s),
            libc::AF_VSOCK,
            SO_VM_SOCKETS_CONNECT_TIMEOUT,
            (&raw const timeout).cast(),
            size_of_val(&timeout) as libc::socklen_t,
        )
    };
    nix::Error::result(r)?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&s), &VsockAddr::new(cid, proto::VSOCK_PORT))?;
    // SAFETY: the descriptor is owned by `s`, which gives it up here.
    Ok(unsafe { File::from_raw_fd(s.into_raw_fd()) })
}

/// Serves commands one after the other until the other side disconnects.
fn serve(stream: &mut File) -> io::Result<()> {
    while let Some(message) = proto::receive::<ToAgent>(stream)? {
        match message {
            ToAgent::Ping => {
                proto::send(stream, &FromAgent::Pong { version: proto::VERSION, kernel: kernel() })?
            }
            ToAgent::Run(mut request) => {
                let done = match request.guest.take() {
                    Some(cid) => relay::run(stream, cid, request),
                    None => command::run(stream, &request),
                };
                match done {
                    Ok(()) => {}
                    Err(command::Failure::Start(why)) => proto::send(stream, &FromAgent::Refused(why))?,
                    Err(command::Failure::Stream(e)) => return Err(e),
                }
            }
            // Sent for a command that had ended in the meantime.
            ToAgent::Stdin(_) | ToAgent::StdinEnd | ToAgent::Kill | ToAgent::Resize(_) => {}
        }
    }
    Ok(())
}

fn kernel() -> String {
    nix::sys::utsname::uname().map(|u| u.release().to_string_lossy().into_owned()).unwrap_or_default()
}

/// Waits until one of `fds` can be read or has hung up, or until the limit.
fn wait_readable(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let timeout = match limit {
        // Rounded up, so that the caller does not spin through its last millisecond.
        Some(d) => PollTimeout::try_from(d.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX),
        None => PollTimeout::NONE,
    };
    match poll(fds, timeout) {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn readable(fd: &PollFd<'_>) -> bool {
    fd.revents().is_some_and(|r| r.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR))
}

fn watch<F: AsFd>(fd: &F) -> PollFd<'_> {
    PollFd::new(fd.as_fd(), PollFlags::POLLIN)
}
