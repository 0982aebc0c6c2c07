//! Where guests are asked: over vsock, or over TCP where the operator says so.
//!
//! Over vsock the kernel answers for who is at the other end. Over TCP anybody on the way could be: so each side proves that
//! it knows a token ([`Token`]). What listens there instead of the guest can at most report of this one VM.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrLike, SockaddrStorage, VsockAddr, connect, setsockopt, socket,
    sockopt,
};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use teiji_model::guest::{PORT, Token};
use teiji_model::host::Vm;

/// How the guests of a trace are asked. The default: all over vsock, on the port that `teiji-guest` has unless it is told
/// otherwise.
#[derive(Clone, Debug)]
pub struct AskGuests {
    /// The port of vsock.
    pub vsock_port: u32,
    /// Guests that are asked over TCP instead.
    pub tcp: Vec<TcpGuest>,
}

impl Default for AskGuests {
    fn default() -> AskGuests {
        AskGuests { vsock_port: PORT, tcp: Vec::new() }
    }
}

/// A guest that is asked over TCP.
#[derive(Clone, Debug)]
pub struct TcpGuest {
    /// Its VM, by name or as `pid:N`.
    pub vm: String,
    /// Where its `teiji-guest` listens.
    pub address: SocketAddr,
    /// What both know.
    pub token: Token,
}

/// Whether an operator means this VM by `wanted`: its name, or `pid:N`.
pub fn means(wanted: &str, vm: &Vm) -> bool {
    let pid = wanted.strip_prefix("pid:").and_then(|pid| pid.parse::<u32>().ok());
    pid.map_or_else(|| vm.name == wanted, |pid| vm.pid == pid)
}

/// Where one guest is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// The context id is not known if the VM's command line has none.
    Vsock {
        cid: Option<u32>,
        port: u32,
    },
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Vsock { port, .. } => write!(f, "vsock port {port}"),
            Address::Tcp(address) => write!(f, "TCP {address}"),
        }
    }
}

impl Address {
    /// Begins to connect; never waits.
    ///
    /// # Errors
    /// Why that is not possible, for people.
    pub(super) fn dial(self) -> Result<OwnedFd, String> {
        let failed = |errno| self.unreachable(errno);
        let (family, to): (_, Box<dyn SockaddrLike>) = match self {
            Address::Vsock { cid: None, .. } => {
                return Err("no vhost-vsock device is on the VM's command line (QEMU: -device \
                            vhost-vsock-pci,guest-cid=N); without one, give its address with --guest-tcp"
                    .into());
            }
            Address::Vsock { cid: Some(cid), port } => {
                (AddressFamily::Vsock, Box::new(VsockAddr::new(cid, port)))
            }
            Address::Tcp(address @ SocketAddr::V4(_)) => {
                (AddressFamily::Inet, Box::new(SockaddrStorage::from(address)))
            }
            Address::Tcp(address @ SocketAddr::V6(_)) => {
                (AddressFamily::Inet6, Box::new(SockaddrStorage::from(address)))
            }
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(family, SockType::Stream, flags, None).map_err(failed)?;
        if matches!(self, Address::Tcp(_)) {
            // A ping that waits for more to send measures nothing.
            setsockopt(&socket, sockopt::TcpNoDelay, &true).map_err(failed)?;
        }
        match connect(socket.as_raw_fd(), to.as_ref()) {
            Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Why nobody can be talked to there, for people.
    pub(super) fn unreachable(self, errno: Errno) -> String {
        match (self, errno) {
            (Address::Vsock { .. }, Errno::ECONNREFUSED | Errno::ECONNRESET) => {
                format!("nothing listens on {self}: start `teiji-guest serve` in it")
            }
            (Address::Vsock { .. }, Errno::ENODEV | Errno::EAFNOSUPPORT) => {
                "this host has no vsock: `modprobe vhost_vsock`".into()
            }
            (Address::Vsock { .. }, Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ETIMEDOUT) => {
                "it does not answer on vsock: it may still boot, or lack the driver vmw_vsock_virtio_transport"
                    .into()
            }
            (Address::Tcp(address), Errno::ECONNREFUSED) => format!(
                "nothing listens on {self}: start `teiji-guest serve --tcp {address} --token-file F` in it"
            ),
            (Address::Tcp(_), Errno::ECONNRESET | Errno::EPIPE) => {
                format!("the connection to {self} broke")
            }
            (Address::Tcp(_), Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ETIMEDOUT) => format!(
                "{self} cannot be reached from this host ({}): it may still boot, or have another address",
                errno.desc()
            ),
            (_, errno) => errno.desc().into(),
        }
    }

    /// Why a connection has not been made after a while, for people.
    pub(super) fn silent(self) -> String {
        match self {
            Address::Vsock { .. } => "it does not answer".into(),
            Address::Tcp(_) => {
                format!("{self} does not answer: it may still boot, or a firewall drops the connection")
            }
        }
    }
}

/// How a connection goes that was begun.
///
/// # Errors
/// If it could not be made.
pub(super) fn connected(socket: &OwnedFd) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0) {
        return Ok(false);
    }
    match nix::sys::socket::getsockopt(socket, sockopt::SocketError)? {
        0 => Ok(true),
        errno => Err(Errno::from_raw(errno)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use nix::sys::socket::{SockaddrIn, bind, getsockname};

    /// An address where nobody listens: connections to it are refused. It is kept from others as long as the socket is there, which
    /// the port of a listener that was closed is not.
    pub(in super::super) fn nobody_listens() -> (OwnedFd, SocketAddr) {
        let bound = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(bound.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
        let address = getsockname::<SockaddrIn>(bound.as_raw_fd()).unwrap().into();
        (bound, address)
    }

    fn vm(name: &str, pid: u32) -> Vm {
        Vm { name: name.into(), pid, ..Vm::default() }
    }

    #[test]
    fn a_vm_is_meant_by_its_name_or_its_process_id() {
        let own = vm("sip1", 7);
        assert!(means("sip1", &own) && means("pid:7", &own));
        assert!(!means("sip", &own) && !means("pid:8", &own) && !means("7", &own));
        assert!(means("pid:x", &vm("pid:x", 8)), "a name that only looks like one");
        assert!(!means("pid:7", &vm("pid:7", 8)), "a process id is that of the process");
    }

    /// A connection that nobody accepts is refused, and connecting never waits.
    #[test]
    fn what_cannot_be_reached_is_said() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let socket = address.dial().unwrap();
        while !connected(&socket).unwrap() {}
        let (_bound, address) = nobody_listens();
        let address = Address::Tcp(address);
        let refused = address.dial().map(|socket| {
            loop {
                match connected(&socket) {
                    Ok(true) => panic!("nobody listens"),
                    Ok(false) => {}
                    Err(errno) => return address.unreachable(errno),
                }
            }
        });
        let refused = refused.unwrap_or_else(|refused| refused);
        assert!(refused.contains("teiji-guest serve --tcp 127.0.0.1:"), "{refused}");
        let unknown = Address::Vsock { cid: None, port: 1 }.dial().unwrap_err();
        assert!(unknown.contains("--guest-tcp"), "{unknown}");
    }
}
