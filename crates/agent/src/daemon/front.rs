//! The front: a process without privileges that serves the agent's socket.
//!
//! ```text
//!  client ──► front (user nobody) ── orders ──► privileged part
//!         ◄── replies ───────────── ◄── answers ──
//! ```
//! Whatever clients send, it is read here. The front checks who sends it and hands on what may be asked for. It is
//! started by the agent: its standard input is the socket to the privileged part, its standard output the listening
//! socket. It ends when the privileged part does.
//!
//! Each connection has a thread of its own, so a silent or slow client holds up nobody else; the number of connections is
//! bounded, for each user and in all. Requests of users other than root take turns, and each turn takes a while: however
//! often they ask, root is answered, and the host is not kept busy.

use super::protocol::{Answer, Numbered, Order, Refusal, Reply, Request, VERSION};
use super::wire::{self, MAX_ANSWER, MAX_REQUEST};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{geteuid, getuid};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};
use teiji_host::privilege;

/// Most connections at a time, in all and of one user other than root.
const MAX_CONNECTIONS: usize = 64;
const MAX_CONNECTIONS_OF_USER: usize = 16;
/// How many requests of users other than root are handed on at a time, and how long each of these turns takes at least.
const TURNS: usize = 2;
const TURN: Duration = Duration::from_millis(100);
/// How long a request waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// When a turn ends that is not given back yet: later than any turn, which takes [`ORDER_TIMEOUT`] at most.
const UNTIL_GIVEN_BACK: Duration = Duration::from_secs(86_400);
/// How long a client may be silent between two requests, and may take to send one or to take an answer.
const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const CLIENT_IO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the privileged part may take to read an order.
const ORDER_SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the privileged part may take to carry out an order. No order waits for another process, only for reads of the host
/// and for the disk; a disk may take long to free a recording of a week.
const ORDER_TIMEOUT: Duration = Duration::from_secs(120);

/// Serves until the privileged part is gone.
///
/// # Errors
/// If the two sockets are not there, or privileges cannot be given up: nothing is served then.
pub fn run() -> io::Result<()> {
    let (orders, listener) = sockets()?;
    become_nobody()?;
    let front = Arc::new(Front {
        orders: Mutex::new(orders.try_clone()?),
        waiting: Mutex::default(),
        connections: Mutex::default(),
        turns: Turns::default(),
    });
    let answers = Arc::clone(&front);
    Builder::new().name("answers".into()).spawn(move || answers.hand_on(&orders))?;
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors: some will be closed.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        Arc::clone(&front).accept(stream);
    }
    Ok(())
}

/// Clients are read by nobody but nobody: root without capabilities can still write what belongs to root.
fn become_nobody() -> io::Result<()> {
    privilege::become_nobody().map_err(io::Error::other)?;
    if geteuid().is_root() || getuid().is_root() {
        return Err(io::Error::other(
            "the part of the agent that clients talk to cannot stop being root, so nobody is answered: give the agent \
             CAP_SETUID and CAP_SETGID, as dist/teiji-agent.service does",
        ));
    }
    Ok(())
}

/// The sockets that the agent has given to this process, so that no child of it gets them.
fn sockets() -> io::Result<(UnixStream, UnixListener)> {
    let own = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned();
    let orders: OwnedFd = own(&io::stdin())?;
    let listener: OwnedFd = own(&io::stdout())?;
    for fd in [&orders, &listener] {
        // Fails if somebody starts this by hand.
        getsockopt(fd, sockopt::SockType).map_err(|_| {
            io::Error::other("this command is a part of `teiji agent`, which starts it; start that one")
        })?;
    }
    Ok((orders.into(), listener.into()))
}

/// Who waits for an answer, by the number of the order.
type Waiting = BTreeMap<u64, SyncSender<Result<Answer, Refusal>>>;

struct Front {
    orders: Mutex<UnixStream>,
    waiting: Mutex<(u64, Waiting)>,
    /// How many connections each user has.
    connections: Mutex<BTreeMap<u32, usize>>,
    /// For the requests of users other than root.
    turns: Turns,
}

/// Turns that are taken and given back; one that is given back early can be taken again only when its time is over.
#[derive(Default)]
struct Turns(Mutex<Vec<Instant>>);

/// A turn that is taken.
struct Turn<'a>(&'a Turns, Instant);

impl Turns {
    /// Waits for a turn, at most so long.
    fn take(&self, within: Duration) -> Option<Turn<'_>> {
        let begun = Instant::now();
        loop {
            let now = Instant::now();
            {
                // Each entry is a turn: until when it takes at least; the far future while it is taken.
                let mut turns = locked(&self.0);
                turns.retain(|end| *end > now);
                if turns.len() < TURNS {
                    turns.push(now + UNTIL_GIVEN_BACK);
                    return Some(Turn(self, now));
                }
            }
            if begun.elapsed() >= within {
                return None;
            }
            std::thread::sleep(TURN / 10);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = locked(&self.0.0);
        if let Some(taken) = turns.iter_mut().find(|end| **end == self.1 + UNTIL_GIVEN_BACK) {
            *taken = self.1 + TURN;
        }
    }
}

/// A value whose holder may have panicked: each of them is valid at any time.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Front {
    /// Hands on the answers of the privileged part; ends the process when that part is gone.
    fn hand_on(&self, orders: &UnixStream) {
        loop {
            match wire::receive::<Numbered<Result<Answer, Refusal>>>(orders, MAX_ANSWER, None, ORDER_TIMEOUT)
            {
                Ok(Some(answer)) => {
                    if let Some(client) = locked(&self.waiting).1.remove(&answer.number) {
                        let _ = client.try_send(answer.content);
                    }
                }
                Ok(None) => std::process::exit(0),
                Err(error) => {
                    tracing::error!("the front ends, as it cannot read answers: {error}");
                    std::process::exit(1);
                }
            }
        }
    }

    /// Serves a connection in a thread of its own, unless there are too many.
    fn accept(self: Arc<Self>, stream: UnixStream) {
        let Ok(peer) = getsockopt(&stream, sockopt::PeerCredentials) else { return };
        let user = peer.uid();
        {
            let mut connections = locked(&self.connections);
            let all: usize = connections.values().sum();
            let own = connections.entry(user).or_default();
            let full = all >= MAX_CONNECTIONS || *own >= MAX_CONNECTIONS_OF_USER;
            // Root's requests are answered however many others there are.
            if user != 0 && full || *own >= MAX_CONNECTIONS {
                let reply = Reply { version: VERSION, result: Err(Refusal::Busy) };
                let _ = wire::send(&stream, &reply, Duration::from_millis(100));
                return;
            }
            *own += 1;
        }
        let front = Arc::clone(&self);
        let serve = move || {
            front.serve(&stream, user);
            front.closed(user);
        };
        if Builder::new().name("client".into()).spawn(serve).is_err() {
            self.closed(user);
        }
    }

    fn closed(&self, user: u32) {
        let mut connections = locked(&self.connections);
        if let Some(own) = connections.get_mut(&user) {
            *own -= 1;
            if *own == 0 {
                connections.remove(&user);
            }
        }
    }

    fn serve(&self, stream: &UnixStream, user: u32) {
        let (idle, within) = (Some(CLIENT_IDLE_TIMEOUT), CLIENT_IO_TIMEOUT);
        while let Ok(Some(request)) = wire::receive::<Request>(stream, MAX_REQUEST, idle, within) {
            let reply = Reply { version: VERSION, result: self.answer(request, user) };
            if wire::send(stream, &reply, CLIENT_IO_TIMEOUT).is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: Request, user: u32) -> Result<Answer, Refusal> {
        let order = check(request, user)?;
        let _turn = match user {
            0 => None,
            _ => Some(self.turns.take(TURN_TIMEOUT).ok_or(Refusal::Busy)?),
        };
        let (sender, answer) = sync_channel(1);
        let number = {
            let mut waiting = locked(&self.waiting);
            waiting.0 += 1;
            let number = waiting.0;
            waiting.1.insert(number, sender);
            number
        };
        let order = Numbered { number, content: order };
        let sent = wire::send(&locked(&self.orders), &order, ORDER_SEND_TIMEOUT);
        let answer = match sent {
            Ok(()) => answer.recv_timeout(ORDER_TIMEOUT).map_err(|e| match e {
                RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected => Refusal::Silent,
            }),
            // A part of it may have been sent, after which no further order can be: the agent starts another front.
            Err(error) => {
                tracing::error!("the front ends, as it cannot send orders: {error}");
                std::process::exit(1);
            }
        };
        locked(&self.waiting).1.remove(&number);
        answer?
    }
}

/// The order of a request, if this user may give it.
fn check(request: Request, user: u32) -> Result<Order, Refusal> {
    if request.version != VERSION {
        return Err(Refusal::Version(VERSION));
    }
    let order: Order = serde_json::from_value(request.order).map_err(|e| Refusal::Unknown(e.to_string()))?;
    if order.changes() && user != 0 { Err(Refusal::NotRoot) } else { Ok(order) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn others_take_turns_that_take_a_while() {
        let turns = Turns::default();
        let begun = Instant::now();
        let (one, other) = (turns.take(Duration::ZERO), turns.take(Duration::ZERO));
        assert!(one.is_some() && other.is_some() && turns.take(TURN * 3).is_none());
        drop((one, other));
        // Both have taken long enough.
        assert!(turns.take(Duration::ZERO).is_some());
        drop(turns.take(Duration::ZERO));
        let third = turns.take(Duration::from_secs(60));
        assert!(third.is_some() && begun.elapsed() >= TURN * 3);
        let looping = Instant::now();
        let count = (0..20).filter(|_| turns.take(Duration::from_secs(60)).is_some()).count();
        assert!(count == 20 && looping.elapsed() >= TURN * 9, "{:?}", looping.elapsed());
    }

    #[test]
    fn only_root_may_change_anything() {
        let ask = |order| Request { version: VERSION, order };
        assert_eq!(check(ask(json!("status")), 1000), Ok(Order::Status));
        for order in [json!({"stop-trace": 1}), json!({"remove-trace": 1})] {
            assert_eq!(check(ask(order.clone()), 1000), Err(Refusal::NotRoot));
            assert!(check(ask(order), 0).is_ok());
        }
        assert!(matches!(check(ask(json!("reboot")), 0), Err(Refusal::Unknown(_))));
        let newer = Request { version: VERSION + 1, order: json!("status") };
        assert_eq!(check(newer, 0), Err(Refusal::Version(VERSION)));
    }
}
