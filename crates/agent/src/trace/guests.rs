//! The guests that report events themselves: connects to `teiji-guest` in them, and takes what they send.
//!
//! ```text
//!             connected          Welcome              Events, Pong, Lost
//!  trying ─────────────► asked ───────────► reporting ─────────────────► the trace
//!    ▲                     │ refused, closed, nonsense    │ closed, nonsense, silent
//!    └──── later ──────────┴──────────────────────────────┘
//! ```
//! The host connects, by vsock, to the context id of the VM: so it knows whom it talks to, and what a guest sends is taken
//! for that guest's alone. It is not trusted: each time only [`AT_ONCE`] bytes of a guest are read, frames are bounded, and
//! a guest that sends nonsense is dropped for the rest of the trace. A guest without the program is asked again now and then,
//! as it may still boot.

use super::guest_clock::GuestClock;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, VsockAddr, connect, getsockopt, recv, send, socket, sockopt,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use teiji_host::guest::GuestAccess;
use teiji_host::tsc;
use teiji_model::event::{self, EventKind};
use teiji_model::flow::Watch;
use teiji_model::guest::{
    Decoder, Hello, Lost, Message, PORT, Ping, SECRET_WORDS, Secret, ToGuest, ToHost, VERSION, Welcome,
};
use teiji_model::host::Vm;
use teiji_model::stream::{Changed, StreamId};
use teiji_model::text::printable;

/// How often a guest that cannot be reached is tried.
const TRY_AGAIN: Duration = Duration::from_secs(3);
/// How long a guest may take to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often its clock is measured; at first twice, so that the rate is known soon.
const MEASURE: Duration = Duration::from_secs(1);
/// How many bytes of a guest are read at once, so that one that floods takes no time from others.
const AT_ONCE: usize = 256 << 10;
/// vCPUs of a guest whose events are told apart; see `model::recording`.
const MAX_CPUS: u16 = 4096;

/// What comes of the guests.
pub(super) enum News {
    /// Its packets are to get prints with this secret; `None`: no longer.
    Secret(u32, Option<Box<Secret>>),
    /// A change of the trace.
    Changed(Changed),
    /// An event of a guest.
    Event(event::Event),
}

enum State {
    /// Not connected; when it is tried.
    Trying(Instant),
    Connecting(OwnedFd, Instant),
    Asked(Connection, Instant),
    Reporting(Connection),
    /// Not tried again.
    Dropped,
}

struct Connection {
    socket: OwnedFd,
    decoder: Decoder<ToHost>,
    stream: StreamId,
    secret: Box<Secret>,
    /// The ping that has no answer yet: its number, and when it was sent, ns.
    ping: Option<(u64, u64)>,
    pings: u64,
    pinged: Instant,
    clock: GuestClock,
}

struct Guest {
    pid: u32,
    name: String,
    access: GuestAccess,
    state: State,
    /// Whether it was said that it cannot be reached.
    told: bool,
}

/// See the module.
pub(super) struct Guests {
    watch: Watch,
    first: tsc::Reading,
    streams: u16,
    guests: Vec<Guest>,
}

/// Why a guest is left.
enum Leave {
    /// It may be back later.
    Gone(String),
    /// It does not keep to the protocol.
    Nonsense(String),
}

impl From<teiji_model::guest::Error> for Leave {
    fn from(error: teiji_model::guest::Error) -> Leave {
        Leave::Nonsense(error.to_string())
    }
}

impl Guests {
    pub(super) fn new(watch: &Watch) -> Guests {
        Guests { watch: watch.clone(), first: tsc::read(), streams: 0, guests: Vec::new() }
    }

    /// A VM has come.
    pub(super) fn add(&mut self, vm: &Vm, access: GuestAccess) {
        if let Some(known) = self.guests.iter_mut().find(|guest| guest.pid == vm.pid) {
            // The offset of the TSC is known once KVM has made the vCPUs.
            known.access = access;
            return;
        }
        let state = State::Trying(Instant::now());
        self.guests.push(Guest { pid: vm.pid, name: vm.name.clone(), access, state, told: false });
    }

    /// A VM has ended.
    pub(super) fn remove(&mut self, pid: u32) {
        self.guests.retain(|guest| guest.pid != pid);
    }

    /// Ends all connections: the guests detach their probes.
    pub(super) fn stop(&mut self) {
        for guest in &mut self.guests {
            if let State::Reporting(connection) = &guest.state {
                let _ = connection.send(&ToGuest::Stop);
            }
            guest.state = State::Dropped;
        }
    }

    /// Takes what there is.
    pub(super) fn turn(&mut self, news: &mut dyn FnMut(News)) {
        for guest in &mut self.guests {
            let state = std::mem::replace(&mut guest.state, State::Dropped);
            guest.state = match guest.go_on(state, &self.watch, &self.first, &mut self.streams, news) {
                Ok(state) => state,
                Err(leave) => guest.leave(leave, news),
            };
        }
    }
}

impl Guest {
    fn go_on(
        &mut self,
        state: State,
        watch: &Watch,
        first: &tsc::Reading,
        streams: &mut u16,
        news: &mut dyn FnMut(News),
    ) -> Result<State, Leave> {
        let now = Instant::now();
        match state {
            State::Trying(at) if at <= now => {
                let Some(cid) = self.access.cid else {
                    return Err(Leave::Gone("the VM has no vsock device (-device vhost-vsock-pci)".into()));
                };
                Ok(State::Connecting(dial(cid).map_err(gone)?, now))
            }
            State::Connecting(socket, since) => {
                if !ready(&socket) {
                    return waiting(State::Connecting(socket, since), since);
                }
                match getsockopt(&socket, sockopt::SocketError) {
                    Ok(0) => {}
                    Ok(errno) => return Err(gone(Errno::from_raw(errno))),
                    Err(errno) => return Err(gone(errno)),
                }
                if usize::from(*streams) + 1 >= StreamId::MOST {
                    return Err(Leave::Nonsense("too many guests report in one trace".into()));
                }
                *streams += 1;
                let secret = Box::new(secret().map_err(|e| Leave::Gone(e.to_string()))?);
                let connection = Connection {
                    socket,
                    decoder: Decoder::default(),
                    stream: StreamId(*streams),
                    secret,
                    ping: None,
                    pings: 0,
                    pinged: now,
                    clock: GuestClock::new(self.access.tsc_offset, *first),
                };
                // The host's packets have prints before the guest's are reported.
                news(News::Secret(self.pid, Some(connection.secret.clone())));
                let hello = Hello { version: VERSION, secret: *connection.secret, watch: watch.clone() };
                connection.send(&ToGuest::Hello(Box::new(hello)))?;
                Ok(State::Asked(connection, now))
            }
            State::Asked(mut connection, since) => {
                connection.receive()?;
                match connection.decoder.next()? {
                    Some(ToHost::Welcome(welcome)) => {
                        tracing::info!("the guest of VM {:?} reports its part of the path", self.name);
                        self.told = false;
                        tell_missing(&self.name, &welcome);
                        connection.ping()?;
                        Ok(State::Reporting(connection))
                    }
                    Some(ToHost::Refused(refused)) => {
                        Err(Leave::Gone(format!("it refuses: {}", printable(&refused.text))))
                    }
                    Some(_) => Err(Leave::Nonsense("it does not begin with Welcome".into())),
                    None => waiting(State::Asked(connection, since), since),
                }
            }
            State::Reporting(mut connection) => {
                connection.receive()?;
                let got = tsc::read();
                while let Some(message) = connection.decoder.next()? {
                    connection.take(self.pid, message, &got, news)?;
                }
                let measure = if connection.pings < 4 { MEASURE / 4 } else { MEASURE };
                if connection.ping.is_none() && connection.pinged.elapsed() >= measure {
                    connection.ping()?;
                } else if connection.pinged.elapsed() >= PATIENCE {
                    return Err(Leave::Gone("it does not answer any more".into()));
                }
                Ok(State::Reporting(connection))
            }
            state => Ok(state),
        }
    }

    fn leave(&mut self, leave: Leave, news: &mut dyn FnMut(News)) -> State {
        news(News::Secret(self.pid, None));
        let (why, state) = match leave {
            Leave::Gone(why) => (why, State::Trying(Instant::now() + TRY_AGAIN)),
            Leave::Nonsense(why) => (format!("{why}; it is not asked again"), State::Dropped),
        };
        if !self.told {
            self.told = true;
            tracing::warn!(
                "the guest of VM {:?} reports nothing, so its part of the path is seen from the host only: {why}",
                self.name
            );
        }
        state
    }
}

/// Goes on waiting, but not for ever.
fn waiting(state: State, since: Instant) -> Result<State, Leave> {
    if since.elapsed() < PATIENCE { Ok(state) } else { Err(Leave::Gone("it does not answer".into())) }
}

fn gone(errno: Errno) -> Leave {
    Leave::Gone(match errno {
        Errno::ECONNREFUSED | Errno::ECONNRESET => "no teiji-guest runs in it (`teiji-guest serve`)".into(),
        Errno::ENODEV | Errno::ENETUNREACH | Errno::EHOSTUNREACH => {
            "it cannot be reached by vsock (is vhost_vsock loaded, has the guest booted?)".into()
        }
        errno => errno.to_string(),
    })
}

/// What is not seen of a guest.
fn tell_missing(name: &str, welcome: &Welcome) {
    for missing in &welcome.missing {
        let (hook, without) = (printable(&missing.hook), printable(&missing.without));
        tracing::warn!("the guest of VM {name:?} has no {hook}: {without}");
    }
}

/// Begins to connect.
fn dial(cid: u32) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &VsockAddr::new(cid, PORT)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Whether a connection has been made, or has failed.
fn ready(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
}

/// Of one guest, known to nobody else.
fn secret() -> io::Result<Secret> {
    let mut words = [[0; SECRET_WORDS]; 2];
    for word in words.iter_mut().flatten() {
        *word = getrandom::u64().map_err(io::Error::other)?;
    }
    Ok(Secret(words))
}

impl Connection {
    /// Frames to the guest are short, and few: one that does not take them is gone.
    fn send(&self, message: &ToGuest) -> Result<(), Leave> {
        let frame = message.frame()?;
        match send(self.socket.as_raw_fd(), &frame, MsgFlags::MSG_NOSIGNAL) {
            Ok(n) if n == frame.len() => Ok(()),
            Ok(_) | Err(Errno::EAGAIN) => Err(Leave::Gone("it does not take what it is sent".into())),
            Err(errno) => Err(gone(errno)),
        }
    }

    fn ping(&mut self) -> Result<(), Leave> {
        self.pings += 1;
        let sent = tsc::read();
        self.send(&ToGuest::Ping(Ping { number: self.pings }))?;
        (self.ping, self.pinged) = (Some((self.pings, sent.ns)), Instant::now());
        Ok(())
    }

    /// Takes what has come, up to [`AT_ONCE`].
    fn receive(&mut self) -> Result<(), Leave> {
        let mut buffer = [0; 16 << 10];
        for _ in 0..AT_ONCE / buffer.len() {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) => return Err(Leave::Gone("it has closed the connection".into())),
                Ok(n) => self.decoder.feed(&buffer[..n]),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(gone(errno)),
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        vm: u32,
        message: ToHost,
        got: &tsc::Reading,
        news: &mut dyn FnMut(News),
    ) -> Result<(), Leave> {
        let stream = self.stream;
        match message {
            ToHost::Pong(pong) => {
                let Some((_, sent)) = self.ping.take_if(|(number, _)| *number == pong.number) else {
                    return Err(Leave::Nonsense("it answers what it was not asked".into()));
                };
                let mapping = self.clock.measure(&pong, sent, got.ns, got);
                news(News::Changed(Changed::Clock { stream, vm, mapping }));
            }
            ToHost::Events(events) => {
                for e in events {
                    let (ts, cpu) = (e.ts, e.cpu.min(MAX_CPUS - 1));
                    news(News::Event(event::Event { ts, stream, cpu, kind: EventKind::Guest(e.kind) }));
                }
            }
            ToHost::Lost(Lost { since, until, count }) => {
                let kind = EventKind::Lost(event::Lost { since, count });
                news(News::Event(event::Event { ts: until, stream, cpu: 0, kind }));
            }
            ToHost::Refused(refused) => return Err(Leave::Gone(printable(&refused.text).to_string())),
            ToHost::Welcome(_) => return Err(Leave::Nonsense("a second Welcome".into())),
        }
        Ok(())
    }
}
