//! Listening sockets of vsock and TCP, and connections of either kind.
//!
//! Over vsock the address says who connects: the host has context id 2, which no guest can have. Everybody else is refused.
//! Over TCP a token has to ([`teiji_model::guest::Token`]).
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrStorage, VsockAddr, accept4, bind,
    getpeername, getsockname, listen, recv, send, setsockopt, socket, sockopt,
};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The context id of the host.
const HOST: u32 = libc::VMADDR_CID_HOST;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {on}: {hint}")]
pub struct Error {
    on: String,
    hint: &'static str,
    #[source]
    source: io::Error,
}

/// A socket that hosts connect to.
pub struct Listener {
    socket: OwnedFd,
    tcp: bool,
    on: String,
}

impl Listener {
    /// On a port of vsock.
    ///
    /// # Errors
    /// If the kernel or the machine has no vsock, or the port is taken.
    pub fn vsock(port: u32) -> Result<Listener, Error> {
        let on = format!("vsock port {port}");
        let hint = "the VM needs a vsock device (QEMU: -device vhost-vsock-pci), and the kernel its driver";
        let failed = |e: Errno| Error { on: on.clone(), hint, source: e.into() };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Vsock, SockType::Stream, flags, None).map_err(failed)?;
        bind(socket.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, port)).map_err(failed)?;
        listen(&socket, Backlog::new(8).unwrap_or(Backlog::MAXCONN)).map_err(failed)?;
        Ok(Listener { socket, tcp: false, on })
    }

    /// On an address of TCP.
    ///
    /// # Errors
    /// If the address is not this machine's, or the port is taken.
    pub fn tcp(address: SocketAddr) -> Result<Listener, Error> {
        let made = TcpListener::bind(address).and_then(|l| l.set_nonblocking(true).map(|()| l));
        let hint = "it has to be an address of this machine, and a port that is free";
        let listener = made.map_err(|source| Error { on: format!("TCP {address}"), hint, source })?;
        let on = listener.local_addr().map_or_else(|_| format!("TCP {address}"), |a| format!("TCP {a}"));
        Ok(Listener { socket: listener.into(), tcp: true, on })
    }

    /// The next connection; `None` if there is none, or if it is not the host's.
    pub fn accept(&self) -> Option<Connection> {
        let fd = accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK).ok()?;
        // SAFETY: the kernel has just returned it, so it is open and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let peer: SockaddrStorage = getpeername(fd).ok()?;
        if !self.tcp {
            let cid = peer.as_vsock_addr().map(VsockAddr::cid);
            if cid != Some(HOST) {
                eprintln!("teiji-guest: refused a connection from vsock context {cid:?}: it is not the host");
                return None;
            }
        } else {
            // Frames are small, and a clock reading that waits for others is worth less.
            let _ = setsockopt(&socket, sockopt::TcpNoDelay, &true);
        }
        let own = own_end(&socket);
        Some(Connection { socket, needs_token: self.tcp, own, peer: peer.to_string() })
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.on)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connection of a host, or of somebody who says so.
pub struct Connection {
    socket: OwnedFd,
    /// Whether the peer has to prove that it is the host.
    pub needs_token: bool,
    own: Option<SocketAddr>,
    peer: String,
}

/// This end of a connection of TCP, as its packets have it; `None` of another connection.
fn own_end(socket: &OwnedFd) -> Option<SocketAddr> {
    let own: SockaddrStorage = getsockname(socket.as_raw_fd()).ok()?;
    let own: SocketAddr = match (own.as_sockaddr_in(), own.as_sockaddr_in6()) {
        (Some(v4), _) => SocketAddr::V4((*v4).into()),
        (_, Some(v6)) => SocketAddr::V6((*v6).into()),
        _ => return None,
    };
    // A socket of IPv6 may take connections of IPv4.
    Some(SocketAddr::new(own.ip().to_canonical(), own.port()))
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.peer)
    }
}

/// What can be read.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    /// As many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The peer has closed, or the connection has broken.
    Closed,
}

impl Connection {
    /// A connection over a socket, which has to be non-blocking.
    pub fn over(socket: OwnedFd, needs_token: bool) -> Connection {
        let own = own_end(&socket);
        Connection { socket, needs_token, own, peer: "a socket".into() }
    }

    /// The end of this machine, over TCP: the packets of the connection pass the probes as others do.
    pub fn own(&self) -> Option<SocketAddr> {
        self.own
    }

    /// Waits at most `timeout` until there is something to read.
    pub fn wait(&self, timeout: Duration) {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        // A signal only makes the wait shorter.
        let _ = poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO));
    }

    /// Reads what there is.
    pub fn read(&self, buffer: &mut [u8]) -> Incoming {
        match recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => Incoming::Closed,
            Ok(n) => Incoming::Bytes(n),
            Err(Errno::EAGAIN | Errno::EINTR) => Incoming::Nothing,
            Err(_) => Incoming::Closed,
        }
    }

    /// Writes all; gives up after `patience`.
    ///
    /// # Errors
    /// If the connection has broken, or the peer does not read.
    pub fn write(&self, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
        let until = Instant::now() + patience;
        while !bytes.is_empty() {
            match send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT) {
                Ok(n) => bytes = &bytes[n..],
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "the host does not read"));
                    }
                    let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
                    let left = left.max(Duration::from_millis(1));
                    let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}
