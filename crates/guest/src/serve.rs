//! Waits for hosts: `teiji-guest serve`. Each connection has a thread; few at a time may be without a host that is known.
use crate::guest_trace::Kernel;
use crate::guest_trace::symbols::Symbols;
use crate::listen::{self, Connection, Listener};
use crate::privilege;
use crate::session::{Shared, run};
use crate::token;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Connections of each kind at a time: the host that is served, and those that have not said yet what they want. Those of
/// TCP, which anybody can open, do not count for vsock.
const CONNECTIONS: usize = 8;

/// Where to listen.
#[derive(Clone, Debug)]
pub struct Options {
    /// The port of vsock; `None`: not there.
    pub vsock: Option<u32>,
    /// The address of TCP, and the file of the token that a host has to know there.
    pub tcp: Option<(SocketAddr, PathBuf)>,
}

/// Why nobody can be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No socket.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// No token.
    #[error(transparent)]
    Token(#[from] token::Error),
    /// Privileges remain.
    #[error(transparent)]
    Privilege(#[from] privilege::Error),
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] crate::Error),
    /// Nowhere to listen.
    #[error("nowhere to listen: give --tcp and --token-file, or leave out --no-vsock")]
    Nowhere,
}

/// Opens what needs privileges, gives these up, and looks at what the kernel offers.
///
/// # Errors
/// Any of [`Error`].
pub fn prepare(options: &Options) -> Result<(Vec<Listener>, Shared), Error> {
    let mut listeners = Vec::new();
    if let Some(port) = options.vsock {
        listeners.push(Listener::vsock(port)?);
    }
    let mut token = None;
    if let Some((address, file)) = &options.tcp {
        token = Some(token::read(file)?);
        listeners.push(Listener::tcp(*address)?);
    }
    if listeners.is_empty() {
        return Err(Error::Nowhere);
    }
    let symbols = Symbols::read();
    privilege::give_up()?;
    let kernel = Kernel::look(&symbols)?;
    Ok((listeners, Shared { kernel, token, serving: Mutex::new(()), ends: AtomicBool::new(false) }))
}

/// Serves hosts until [`Shared::ends`] is set.
pub fn serve(listeners: &[Listener], shared: &Shared) {
    let [vsock, tcp] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    std::thread::scope(|scope| {
        while !shared.ends.load(Ordering::Relaxed) {
            let mut fds: Vec<PollFd<'_>> =
                listeners.iter().map(|l| PollFd::new(l.as_fd(), PollFlags::POLLIN)).collect();
            // Looks now and then whether it should end: a signal may come just before it waits.
            let _ = poll(&mut fds, PollTimeout::from(1000u16));
            for connection in listeners.iter().filter_map(Listener::accept) {
                let open = if connection.needs_token { &tcp } else { &vsock };
                if open.load(Ordering::Relaxed) >= CONNECTIONS {
                    eprintln!("teiji-guest: refused {connection}: {CONNECTIONS} connections are open");
                    continue;
                }
                open.fetch_add(1, Ordering::Relaxed);
                scope.spawn(move || {
                    one(connection, shared);
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
    });
}

fn one(connection: Connection, shared: &Shared) {
    let peer = connection.to_string();
    let end = run(connection, shared, |hello| {
        let flow = teiji_model::text::quote(&hello.watch.flow_text);
        eprintln!("teiji-guest: {peer} follows packets; filter {flow}");
    });
    eprintln!("teiji-guest: {peer}: {end}");
}
