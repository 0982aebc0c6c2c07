//! What happens on one connection.
//!
//! ```text
//!           Answer, over TCP        Hello                        Stop, close, silence, error
//! accepted ───────────────► known ───────► loaded ──► Welcome ──► streaming ───────► detached, closed
//!     │ wrong, or not within 5 s  │ another host is served, not permitted, the kernel refuses
//!     └──────► closed             └──────► Refused, closed
//! ```
//! Over TCP, Challenge is sent before, and Proof once the host is known.
//!
//! While it streams, the buffer of the probes is emptied every 5 to 50 ms, depending on how fast it fills. If the host does
//! not read, nothing is kept for it: the buffer fills, and what does not fit is counted as lost.
use crate::check::release;
use crate::guest_trace::{Counts, Kernel, Tracer};
use crate::listen::{Connection, Incoming};
use crate::{Error, clock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use teiji_model::guest::{
    Challenge, Decoder, Event, Hello, Lost, MAX_FRAME, Message, NONCE, Nonces, PROOF, Proof, Refused,
    SILENT_MS, Side, ToGuest, ToHost, Token, VERSION, Welcome,
};

/// Within which a host has to say what it wants.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a host may not read.
const PATIENCE: Duration = Duration::from_secs(10);
/// The shortest and longest time between two looks into the buffer.
const INTERVALS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(50)];
/// Events of one look, above which the next comes sooner, and below which it comes later.
const BUSY: usize = 2000;
const IDLE: usize = 500;
/// Events of a frame: few enough that the answer to a Ping need not wait long for them.
const EVENTS: usize = 256;

/// What all connections share.
pub struct Shared {
    /// What the kernel offers.
    pub kernel: Kernel,
    /// What a host has to know over TCP.
    pub token: Option<Token>,
    /// Held while a host is served.
    pub serving: Mutex<()>,
    /// Set to end all.
    pub ends: AtomicBool,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The host has said so, or closed the connection.
    #[error("the host has stopped")]
    Stopped,
    /// This program ends.
    #[error("teiji-guest ends")]
    Terminated,
    /// The peer may not ask.
    #[error("it did not prove that it knows the token")]
    Stranger,
    /// The peer did not say in time what it wants.
    #[error("it did not say within {} s what it wants", HANDSHAKE.as_secs())]
    Late,
    /// The host is gone.
    #[error("it has said nothing for {} s", SILENT_MS / 1000)]
    Silent,
    /// There is another host.
    #[error("another host is connected: only one is served at a time")]
    Busy,
    /// It does not speak the protocol.
    #[error(transparent)]
    Protocol(#[from] teiji_model::guest::Error),
    /// A message at the wrong place.
    #[error("a message that does not belong there")]
    OutOfPlace,
    /// The probes.
    #[error(transparent)]
    Probes(#[from] Error),
    /// The connection.
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
}

struct Session<'a> {
    connection: Connection,
    decoder: Decoder<ToGuest>,
    shared: &'a Shared,
    heard: Instant,
}

/// Serves a connection until it ends. `welcomed` is called when the probes are attached, with what the host asked for.
pub fn run(connection: Connection, shared: &Shared, welcomed: impl FnOnce(&Hello)) -> End {
    let mut session = Session { connection, decoder: Decoder::default(), shared, heard: Instant::now() };
    let end = match session.serve(welcomed) {
        Ok(()) => End::Stopped,
        Err(end) => end,
    };
    // A stranger learns nothing.
    if !matches!(end, End::Stopped | End::Stranger | End::Late | End::Silent | End::Broken(_)) {
        let text: String = end.to_string().chars().take(250).collect();
        let _ = session.send(&ToHost::Refused(Refused { version: VERSION, text }), Duration::from_secs(1));
    }
    end
}

impl Session<'_> {
    fn serve(&mut self, welcomed: impl FnOnce(&Hello)) -> Result<(), End> {
        let until = Instant::now() + HANDSHAKE;
        if self.connection.needs_token {
            self.acquaint(until)?;
            self.decoder.limit(MAX_FRAME);
        }
        let hello = match self.next(until)? {
            Some(ToGuest::Hello(hello)) => hello,
            Some(_) => return Err(End::OutOfPlace),
            None => return Err(End::Late),
        };
        let Ok(_serving) = self.shared.serving.try_lock() else { return Err(End::Busy) };
        let mut tracer =
            Tracer::start(&self.shared.kernel, &hello.secret, &hello.watch, self.connection.own())?;
        self.send(&ToHost::Welcome(welcome(&self.shared.kernel)), PATIENCE)?;
        welcomed(&hello);
        self.stream(&mut tracer)
    }

    /// Has the host prove that it knows the token, and does the same.
    fn acquaint(&mut self, until: Instant) -> Result<(), End> {
        let token = self.shared.token.as_ref().ok_or(End::Stranger)?;
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce).map_err(std::io::Error::other)?;
        self.send(&ToHost::Challenge(Challenge { nonce }), HANDSHAKE)?;
        // No more than an answer is kept for a stranger.
        self.decoder.limit(NONCE + PROOF);
        let Ok(Some(ToGuest::Answer(answer))) = self.next(until) else { return Err(End::Stranger) };
        let nonces = Nonces { guest: nonce, host: answer.nonce };
        if !token.is_proof(&answer.proof, Side::Host, &nonces) {
            return Err(End::Stranger);
        }
        self.send(&ToHost::Proof(Proof { proof: token.proof(Side::Guest, &nonces) }), HANDSHAKE)
    }

    /// The next message; `None` if there is none in time.
    fn next(&mut self, until: Instant) -> Result<Option<ToGuest>, End> {
        loop {
            if let Some(message) = self.decoder.next()? {
                return Ok(Some(message));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if self.shared.ends.load(Ordering::Relaxed) {
                return Err(End::Terminated);
            }
            self.connection.wait(left.min(Duration::from_millis(200)));
            if self.receive(4096) == Incoming::Closed {
                return Err(End::Stopped);
            }
        }
    }

    /// Takes at most as many bytes.
    fn receive(&mut self, most: usize) -> Incoming {
        let mut buffer = [0; 4096];
        let most = most.min(buffer.len());
        let incoming = self.connection.read(&mut buffer[..most]);
        if let Incoming::Bytes(n) = incoming {
            self.decoder.feed(&buffer[..n]);
            self.heard = Instant::now();
        }
        incoming
    }

    fn send(&self, message: &ToHost, patience: Duration) -> Result<(), End> {
        Ok(self.connection.write(&message.frame()?, patience)?)
    }

    fn stream(&mut self, tracer: &mut Tracer) -> Result<(), End> {
        let [shortest, longest] = INTERVALS;
        let mut interval = shortest;
        let (mut looked, mut counts) = (clock::monotonic(), tracer.counts()?);
        let mut next = Instant::now() + interval;
        loop {
            if self.shared.ends.load(Ordering::Relaxed) {
                return Err(End::Terminated);
            }
            if self.heard.elapsed() > Duration::from_millis(SILENT_MS) {
                return Err(End::Silent);
            }
            self.connection.wait(next.saturating_duration_since(Instant::now()));
            let incoming = self.receive(4096);
            let mut stops = incoming == Incoming::Closed;
            while let Some(message) = self.decoder.next()? {
                match message {
                    ToGuest::Ping(ping) => self.send(&ToHost::Pong(clock::read(ping.number)), PATIENCE)?,
                    ToGuest::Stop => stops = true,
                    ToGuest::Answer(_) | ToGuest::Hello(_) => return Err(End::OutOfPlace),
                }
            }
            if stops {
                tracer.stop();
            } else if Instant::now() < next {
                continue;
            }
            let events = self.hand_on(tracer)?;
            self.say_lost(tracer, &mut looked, &mut counts)?;
            if stops {
                return Ok(());
            }
            interval = match events {
                BUSY.. => shortest,
                0..IDLE => (interval * 2).min(longest),
                _ => interval,
            };
            next = Instant::now() + interval;
        }
    }

    /// Sends what is in the buffer; returns how many events that were. What comes while it is sent waits for the next look,
    /// after a while.
    fn hand_on(&self, tracer: &mut Tracer) -> Result<usize, End> {
        let mut events: Vec<Event> = Vec::new();
        let mut sent = 0;
        for _ in 0..16 {
            let more = tracer.drain(&mut |event| events.push(event))?;
            for some in events.chunks(EVENTS) {
                self.send(&ToHost::Events(some.to_vec()), PATIENCE)?;
            }
            sent += events.len();
            events.clear();
            if !more {
                break;
            }
        }
        Ok(sent)
    }

    /// Says what was lost since the last look.
    fn say_lost(&self, tracer: &Tracer, looked: &mut u64, counts: &mut Counts) -> Result<(), End> {
        let now = tracer.counts()?;
        let until = clock::monotonic();
        if now.lost > counts.lost {
            let lost = Lost { since: *looked, until, count: now.lost - counts.lost };
            self.send(&ToHost::Lost(lost), PATIENCE)?;
        }
        (*looked, *counts) = (until, now);
        Ok(())
    }
}

/// What the host is told of this guest.
fn welcome(kernel: &Kernel) -> Welcome {
    // The kernel's release is a text of at most 64 bytes.
    let name = |text: String| text.chars().filter(char::is_ascii).take(64).collect();
    Welcome {
        version: VERSION,
        teiji: name(env!("CARGO_PKG_VERSION").into()),
        kernel: name(release()),
        cpus: std::thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX)),
        missing: kernel.missing(),
    }
}
