//! The guests that report events themselves: connects to `teiji-guest` in them, and takes what they send.
//!
//! ```text
//!             connected, over TCP: Challenge          Proof          Welcome              Events, Pong, Lost
//!  trying ──────────────────► meeting ───────► proving ────► asked ────────► reporting ────────────────► the trace
//!    ▲  │                        │                │            ▲ │               │ closed, nonsense, silent
//!    │  └────────────────────────│────────────────│────────────┘ │ refused, closed, nonsense
//!    │     connected, over vsock │ closed, wrong  │              │               │
//!    └──── later ────────────────┴────────────────┴──────────────┴───────────────┘
//! ```
//! The host connects, over vsock, to the context id that is on the VMM's command line. The kernel gives an id to one VM at a
//! time; a VMM may claim that of another VM, so guests are asked only if no two VMs claim the same one. Over TCP it connects to
//! the address that the operator has given for the VM, and nothing is asked of whoever does not know the VM's token. What a
//! guest sends is used for that guest alone, and joined by a secret of the connection.
//!
//! A guest is not trusted. Each time, at most [`AT_ONCE`] bytes of all guests together are read, of one guest after the other, so
//! that reading the host's own events is not held up; a guest has [`RATE`] events a second. Frames are bounded, and a guest that does not keep to the
//! protocol is not asked again. One that cannot be reached is tried again less and less often, as it may still boot; so is an
//! address where something else answers, as the guest may have it later.

use super::guest_address::{Address, AskGuests, TcpGuest, connected, means};
use super::guest_clock::GuestClock;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};
use teiji_host::guest::GuestAccess;
use teiji_host::tsc;
use teiji_model::event::{self, EventKind};
use teiji_model::flow::{Matching, Watch};
use teiji_model::guest::{
    Answer, Decoder, Hello, Lost, MAX_FRAME, Message, NONCE, Nonces, PROOF, Ping, SECRET_WORDS, Secret, Side,
    ToGuest, ToHost, Token, VERSION, Welcome,
};
use teiji_model::host::Vm;
use teiji_model::stream::{Changed, StreamId};
use teiji_model::text::printable;

/// After how long a guest that cannot be reached is tried again: at first, and at most.
const TRY_AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];
/// How long a guest may take to connect and to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often its clock is measured; at first twice, so that the rate is known soon.
const MEASURE: Duration = Duration::from_secs(1);
/// How many bytes of all guests are read in a turn: some 30,000 events, a few ms.
const AT_ONCE: usize = 128 << 10;
/// How many events of a guest are used in a second, on average and at once. More are lost.
const RATE: f64 = 20_000.0;
const BURST: f64 = 20_000.0;
/// How long the guests have to send their last events. In tests all of them close, however slow the machine is.
const LAST: Duration = if cfg!(test) { Duration::from_secs(30) } else { Duration::from_millis(500) };
/// vCPUs of a guest whose events are told apart; see `model::recording`.
const MAX_CPUS: u16 = 4096;

/// What comes of the guests.
pub(super) enum News {
    /// Its packets are to get prints with this secret; `None`: no longer.
    Secret(u32, Option<Box<Secret>>),
    /// A change of the trace.
    Changed(Changed),
    /// An event of a guest. The answer to it is whether it is used.
    Event(event::Event),
}

enum State {
    /// Not connected; when it is tried.
    Trying(Instant),
    Connecting(OwnedFd, Instant),
    /// Over TCP: it has to ask for a proof.
    Meeting(Connection, Instant),
    /// Over TCP: it has to prove that it knows the token.
    Proving(Connection, Nonces, Instant),
    Asked(Connection, Instant),
    Reporting(Connection),
    /// Not tried again.
    Dropped,
}

struct Connection {
    socket: OwnedFd,
    decoder: Decoder<ToHost>,
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
    /// It has been given NICs whose packets only the guest sees.
    given: bool,
    vsock_port: u32,
    /// If it is asked over TCP.
    tcp: Option<TcpGuest>,
    state: State,
    /// The number of its stream, from the first answer to a ping on; a new connection goes on with it.
    stream: Option<StreamId>,
    /// How many events may be used now, and since when that is so.
    tokens: (f64, Instant),
    /// Events that were not used since this was last reported: how many, since when and until when, ns of the guest's clock. Those
    /// that the analysis refuses are reported at once, those above [`RATE`] with the next answer to a ping, or at the end
    /// of the VM or of the trace.
    unused: Option<event::Lost>,
    unused_until: u64,
    /// After how long it is tried again.
    again: Duration,
    /// Why it does not report, as it was last said.
    said: Option<String>,
}

/// See the module.
pub(super) struct Guests {
    watch: Watch,
    ask: AskGuests,
    first: tsc::Reading,
    streams: u16,
    guests: Vec<Guest>,
    /// Whose turn it is first.
    next: usize,
    /// Until when they may send their last events.
    ends: Option<Instant>,
}

/// Why a guest is left.
enum Leave {
    /// It may be back later.
    Gone(String),
    /// It has closed the connection.
    Closed,
    /// The connection broke.
    Broke(Errno),
    /// It does not keep to the protocol.
    Nonsense(String),
}

impl From<teiji_model::guest::Error> for Leave {
    fn from(error: teiji_model::guest::Error) -> Leave {
        Leave::Nonsense(error.to_string())
    }
}

impl Guests {
    pub(super) fn new(watch: &Watch, ask: AskGuests) -> Guests {
        let watch = watch.clone();
        Guests { watch, ask, first: tsc::read(), streams: 0, guests: Vec::new(), next: 0, ends: None }
    }

    /// A VM has come.
    pub(super) fn add(&mut self, vm: &Vm, access: GuestAccess) {
        if let Some(known) = self.guests.iter_mut().find(|guest| guest.pid == vm.pid) {
            // The offset of the TSC is known once KVM has made the vCPUs.
            known.access = access;
            known.given = !vm.given.is_empty();
            return;
        }
        // An address is that of one VM: of a second one with the same name it is not known whose it is.
        let taken = |tcp: &TcpGuest| self.guests.iter().any(|g| g.address() == Address::Tcp(tcp.address));
        let tcp = self.ask.tcp.iter().find(|tcp| means(&tcp.vm, vm) && !taken(tcp)).cloned();
        let now = Instant::now();
        self.guests.push(Guest {
            pid: vm.pid,
            name: vm.name.clone(),
            access,
            given: !vm.given.is_empty(),
            vsock_port: self.ask.vsock_port,
            tcp,
            state: State::Trying(now),
            stream: None,
            tokens: (BURST, now),
            unused: None,
            unused_until: 0,
            again: TRY_AGAIN[0],
            said: None,
        });
    }

    /// A VM has ended: what of its guest was not used is reported before that is.
    pub(super) fn remove(&mut self, pid: u32, news: &mut dyn FnMut(News) -> bool) {
        for guest in self.guests.iter_mut().filter(|guest| guest.pid == pid) {
            guest.tell_unused(news);
        }
        self.guests.retain(|guest| guest.pid != pid);
    }

    /// Asks the guests to detach their probes and to send what they have still seen. [`Guests::take_last`] takes it.
    pub(super) fn ask_to_stop(&mut self) {
        for guest in &mut self.guests {
            match &guest.state {
                State::Reporting(connection) if connection.send(&ToGuest::Stop).is_ok() => {}
                _ => guest.state = State::Dropped,
            }
        }
        self.ends = Some(Instant::now() + LAST);
    }

    /// Takes what guests send that were asked to stop, within [`AT_ONCE`]. Returns whether there may be more: a guest closes its
    /// connection when it has sent everything, and has [`LAST`] to do so.
    pub(super) fn take_last(&mut self, news: &mut dyn FnMut(News) -> bool) -> bool {
        let mut budget = AT_ONCE;
        for guest in &mut self.guests {
            let state = std::mem::replace(&mut guest.state, State::Dropped);
            let State::Reporting(mut connection) = state else { continue };
            let open = connection.receive(&mut budget).is_ok();
            let taken = guest.take_all(&mut connection, &mut self.streams, news).is_ok();
            if open && taken {
                guest.state = State::Reporting(connection);
            }
        }
        let reports = |guest: &Guest| matches!(guest.state, State::Reporting(_));
        if self.guests.iter().any(reports) && self.ends.is_some_and(|ends| Instant::now() < ends) {
            return true;
        }
        for guest in &mut self.guests {
            guest.state = State::Dropped;
            guest.tell_unused(news);
        }
        false
    }

    /// Takes what there is, within [`AT_ONCE`].
    pub(super) fn turn(&mut self, news: &mut dyn FnMut(News) -> bool) {
        let mut budget = AT_ONCE;
        let n = self.guests.len();
        self.next = if n == 0 { 0 } else { (self.next + 1) % n };
        for at in (self.next..n).chain(0..self.next) {
            let claimed_twice = self.guests[at].access.cid.is_some_and(|cid| {
                self.guests.iter().filter(|guest| guest.access.cid == Some(cid)).count() > 1
            });
            let guest = &mut self.guests[at];
            let claimed_twice = claimed_twice && guest.tcp.is_none();
            let state = std::mem::replace(&mut guest.state, State::Dropped);
            let done = if claimed_twice && !matches!(state, State::Dropped) {
                Err(Leave::Nonsense("another VM claims its vsock context id".into()))
            } else {
                guest.go_on(state, &self.watch, &self.first, &mut self.streams, &mut budget, news)
            };
            let guest = &mut self.guests[at];
            guest.state = match done {
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
        budget: &mut usize,
        news: &mut dyn FnMut(News) -> bool,
    ) -> Result<State, Leave> {
        let now = Instant::now();
        match state {
            State::Trying(at) if at <= now => {
                let socket = self.address().dial().map_err(Leave::Gone)?;
                Ok(State::Connecting(socket, now))
            }
            State::Connecting(socket, since) => {
                if !connected(&socket).map_err(Leave::Broke)? {
                    return self.waiting(State::Connecting(socket, since), since);
                }
                let mut connection = Connection {
                    socket,
                    decoder: Decoder::default(),
                    secret: Box::new(secret().map_err(|e| Leave::Gone(e.to_string()))?),
                    ping: None,
                    pings: 0,
                    pinged: now,
                    clock: GuestClock::new(self.access.tsc_offset, *first),
                };
                if self.tcp.is_none() {
                    return self.ask(connection, watch, news);
                }
                // No more is kept of a stranger.
                connection.decoder.limit(NONCE.max(PROOF));
                Ok(State::Meeting(connection, now))
            }
            State::Meeting(mut connection, since) => {
                connection.receive(budget)?;
                let challenge = match connection.decoder.next().map_err(|e| stranger(&e))? {
                    Some(ToHost::Challenge(challenge)) => challenge,
                    Some(_) => return Err(stranger(&"another message than Challenge")),
                    None => return self.waiting(State::Meeting(connection, since), since),
                };
                let mut nonce = [0; NONCE];
                getrandom::fill(&mut nonce).map_err(|e| Leave::Gone(e.to_string()))?;
                let nonces = Nonces { guest: challenge.nonce, host: nonce };
                let proof = self.token()?.proof(Side::Host, &nonces);
                connection.send(&ToGuest::Answer(Answer { nonce, proof }))?;
                Ok(State::Proving(connection, nonces, now))
            }
            State::Proving(mut connection, nonces, since) => {
                let unwanted = "the token differs: --guest-token here and --token-file in the guest must have the same; or another \
                                program listens there";
                match connection.receive(budget) {
                    Err(Leave::Closed | Leave::Broke(_)) => return Err(Leave::Gone(unwanted.into())),
                    received => received?,
                }
                match connection.decoder.next().map_err(|e| stranger(&e))? {
                    Some(ToHost::Proof(shown))
                        if self.token()?.is_proof(&shown.proof, Side::Guest, &nonces) =>
                    {
                        connection.decoder.limit(MAX_FRAME);
                        self.ask(connection, watch, news)
                    }
                    Some(ToHost::Proof(_)) => Err(stranger(&"a wrong proof that it knows the token")),
                    Some(_) => Err(stranger(&"another message than Proof")),
                    None => self.waiting(State::Proving(connection, nonces, since), since),
                }
            }
            State::Asked(mut connection, since) => {
                connection.receive(budget)?;
                match connection.decoder.next()? {
                    Some(ToHost::Welcome(welcome)) => {
                        tracing::info!("the guest of VM {:?} reports its part of the path", self.name);
                        (self.said, self.again) = (None, TRY_AGAIN[0]);
                        tell_missing(&self.name, &welcome);
                        connection.ping()?;
                        Ok(State::Reporting(connection))
                    }
                    Some(ToHost::Refused(refused)) => {
                        Err(Leave::Gone(format!("it refuses: {}", printable(&refused.text))))
                    }
                    Some(_) => Err(Leave::Nonsense("it does not begin with Welcome".into())),
                    None => self.waiting(State::Asked(connection, since), since),
                }
            }
            State::Reporting(mut connection) => {
                connection.receive(budget)?;
                self.take_all(&mut connection, streams, news)?;
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

    fn address(&self) -> Address {
        match &self.tcp {
            Some(tcp) => Address::Tcp(tcp.address),
            None => Address::Vsock { cid: self.access.cid, port: self.vsock_port },
        }
    }

    fn token(&self) -> Result<&Token, Leave> {
        let tcp = self.tcp.as_ref();
        tcp.map(|tcp| &tcp.token).ok_or_else(|| Leave::Gone("it is not asked over TCP any more".into()))
    }

    /// Asks it to report: it is the guest that was meant.
    fn ask(
        &self,
        connection: Connection,
        watch: &Watch,
        news: &mut dyn FnMut(News) -> bool,
    ) -> Result<State, Leave> {
        // The host's packets have prints before the guest's are reported.
        news(News::Secret(self.pid, Some(connection.secret.clone())));
        // It has to match requests only if this host does not see them: it need not know all ways to do so that this host does.
        let matching = watch.matching;
        let matching = if self.given && matching == Matching::Echo { matching } else { Matching::None };
        let watch = Watch { matching, ..watch.clone() };
        let hello = Hello { version: VERSION, secret: *connection.secret, watch };
        connection.send(&ToGuest::Hello(Box::new(hello)))?;
        Ok(State::Asked(connection, Instant::now()))
    }

    /// Goes on waiting, but not for ever.
    fn waiting(&self, state: State, since: Instant) -> Result<State, Leave> {
        if since.elapsed() < PATIENCE { Ok(state) } else { Err(Leave::Gone(self.address().silent())) }
    }

    /// Takes all messages that are complete.
    fn take_all(
        &mut self,
        connection: &mut Connection,
        streams: &mut u16,
        news: &mut dyn FnMut(News) -> bool,
    ) -> Result<(), Leave> {
        let got = tsc::read();
        while let Some(message) = connection.decoder.next()? {
            self.take(connection, message, &got, streams, news)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        connection: &mut Connection,
        message: ToHost,
        got: &tsc::Reading,
        streams: &mut u16,
        news: &mut dyn FnMut(News) -> bool,
    ) -> Result<(), Leave> {
        match message {
            ToHost::Pong(pong) => {
                let Some((_, sent)) = connection.ping.take_if(|(number, _)| *number == pong.number) else {
                    return Err(Leave::Nonsense("it answers what it was not asked".into()));
                };
                let stream = match self.stream {
                    Some(stream) => stream,
                    None if usize::from(*streams) + 1 < StreamId::MOST => {
                        *streams += 1;
                        *self.stream.insert(StreamId(*streams))
                    }
                    None => {
                        return Err(Leave::Nonsense("64 guests report in this trace: no more can".into()));
                    }
                };
                if let Some(mapping) = connection.clock.measure(&pong, sent, got.ns, got) {
                    news(News::Changed(Changed::Clock { stream, vm: self.pid, mapping }));
                }
                self.tell_unused(news);
            }
            ToHost::Events(mut events) => {
                // A recording has these in frames of their own.
                events.sort_by_key(|e| matches!(e.kind, teiji_model::guest::EventKind::Matched(_)));
                let mut refused = false;
                for e in events {
                    let (ts, cpu) = (e.ts, e.cpu.min(MAX_CPUS - 1));
                    // Before its clock has been measured nothing can be said of its events.
                    let used = self.may_use()
                        && self.stream.is_some_and(|stream| {
                            let kind = EventKind::Guest(e.kind);
                            let used = news(News::Event(event::Event { ts, stream, cpu, kind }));
                            refused |= !used;
                            used
                        });
                    if !used {
                        self.not_used(ts, ts, 1);
                    }
                }
                // What the analysis has refused is not recorded, so nothing but this says to a replay that it is missing: the loss is
                // at the same place in the order of events for the live report and for a replay. Each refused event took a token: a
                // flood is not told more often.
                if refused {
                    self.tell_unused(news);
                }
            }
            ToHost::Lost(Lost { since, until, count }) => {
                let Some(stream) = self.stream else { return Ok(()) };
                // Every one is recorded, so they count as events do.
                if self.may_use() {
                    let kind = EventKind::Lost(event::Lost { since, count });
                    news(News::Event(event::Event { ts: until, stream, cpu: 0, kind }));
                } else {
                    self.not_used(since, until, count);
                }
            }
            ToHost::Refused(refused) => return Err(Leave::Gone(printable(&refused.text).to_string())),
            ToHost::Welcome(_) | ToHost::Challenge(_) | ToHost::Proof(_) => {
                return Err(Leave::Nonsense("a message that does not belong there".into()));
            }
        }
        Ok(())
    }

    /// So many events between these times are not used.
    fn not_used(&mut self, since: u64, until: u64, count: u64) {
        // Events of several CPUs come in no exact order.
        if let Some(unused) = &mut self.unused {
            unused.since = unused.since.min(since);
            unused.count = unused.count.saturating_add(count);
            self.unused_until = self.unused_until.max(until);
        } else {
            (self.unused, self.unused_until) = (Some(event::Lost { since, count }), until);
        }
    }

    /// Reports what was not used, once the guest has a stream.
    fn tell_unused(&mut self, news: &mut dyn FnMut(News) -> bool) {
        let Some(stream) = self.stream else { return };
        if let Some(lost) = self.unused.take() {
            let kind = EventKind::Lost(lost);
            news(News::Event(event::Event { ts: self.unused_until, stream, cpu: 0, kind }));
        }
    }

    /// Whether one more event may be used: a token bucket.
    fn may_use(&mut self) -> bool {
        let (tokens, since) = &mut self.tokens;
        if *tokens < 1.0 {
            let now = Instant::now();
            *tokens = (*tokens + now.duration_since(*since).as_secs_f64() * RATE).min(BURST);
            *since = now;
        }
        let may = *tokens >= 1.0;
        *tokens -= f64::from(u8::from(may));
        may
    }

    fn leave(&mut self, leave: Leave, news: &mut dyn FnMut(News) -> bool) -> State {
        news(News::Secret(self.pid, None));
        let address = self.address();
        let why = match leave {
            Leave::Nonsense(why) => {
                self.tell(why, "it is not asked again");
                return State::Dropped;
            }
            Leave::Gone(why) => why,
            Leave::Closed => "it has closed the connection".into(),
            Leave::Broke(errno) => address.unreachable(errno),
        };
        let again = self.again;
        self.again = (again * 2).min(TRY_AGAIN[1]);
        self.tell(why, "it is tried again");
        State::Trying(Instant::now() + again)
    }

    /// Says why it does not report, once for each reason.
    fn tell(&mut self, why: String, then: &str) {
        if self.said.as_ref() != Some(&why) {
            tracing::warn!(
                "the guest of VM {:?} does not report ({why}): its time is seen from the host only; {then}",
                self.name
            );
            self.said = Some(why);
        }
    }
}

/// Something else than `teiji-guest` is at an address of TCP, or says what it should not.
fn stranger(sent: &dyn std::fmt::Display) -> Leave {
    Leave::Gone(format!("something else than its teiji-guest listens there: it sent {sent}"))
}

/// What is not seen of a guest.
fn tell_missing(name: &str, welcome: &Welcome) {
    for missing in &welcome.missing {
        let (hook, without) = (printable(&missing.hook), printable(&missing.without));
        tracing::warn!("the guest of VM {name:?} has no {hook}: {without}");
    }
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
            Err(errno) => Err(Leave::Broke(errno)),
        }
    }

    fn ping(&mut self) -> Result<(), Leave> {
        self.pings += 1;
        let sent = tsc::read();
        self.send(&ToGuest::Ping(Ping { number: self.pings }))?;
        (self.ping, self.pinged) = (Some((self.pings, sent.ns)), Instant::now());
        Ok(())
    }

    /// Takes what has come, within the budget, of which at least one read is left for each guest. What came before the
    /// connection was closed is to be used first: it may say why.
    fn receive(&mut self, budget: &mut usize) -> Result<(), Leave> {
        let mut buffer = [0; 8 << 10];
        let mut some = false;
        loop {
            let end = match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(0) => Leave::Closed,
                Ok(n) => {
                    some = true;
                    self.decoder.feed(&buffer[..n]);
                    *budget = budget.saturating_sub(n);
                    if *budget == 0 {
                        return Ok(());
                    }
                    continue;
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(errno) => Leave::Broke(errno),
            };
            return if some { Ok(()) } else { Err(end) };
        }
    }
}

#[cfg(test)]
mod tests;
