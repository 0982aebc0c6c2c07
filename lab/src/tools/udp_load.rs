//! `udp-load`: sends numbered datagrams to an echo server at a constant rate and measures the round trips.
//!
//! Each datagram begins with its number (8 bytes, little endian), followed by random bytes, so that no two are equal.
//! Sending obeys its schedule independently of the answers (an open loop), unless a limit of unanswered requests is
//! given.

use std::{
    collections::HashMap,
    net::{SocketAddrV4, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::now_ns;
use crate::error::{Doing, Error, Result};

/// What to send.
#[derive(Debug, Clone)]
pub struct Load {
    /// Server.
    pub to: SocketAddrV4,
    /// Requests per second.
    pub rate: f64,
    /// Number of requests.
    pub count: u64,
    /// Payload, bytes (at least 8).
    pub size: usize,
    /// Greatest number of unanswered requests; 0 is no limit. A request that would exceed it is sent when an answer
    /// comes, or one has been missing for `linger` and is taken for lost.
    pub outstanding: usize,
    /// How long to wait for answers after the last request, and for an answer that holds back the next request.
    pub linger: Duration,
    /// Answers that take longer count as late.
    pub in_time: Duration,
    /// Sending port; 0 is any.
    pub from_port: u16,
}

/// The results; times in ns from sending to receiving, in user space.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Requests sent.
    pub sent: u64,
    /// Requests answered in time.
    pub received: u64,
    /// Requests answered later than that, of which no time is counted.
    pub late: u64,
    /// Answers to unknown requests, and repeated answers.
    pub strange: u64,
    /// Seconds from the first to the last request.
    pub seconds: f64,
    /// Shortest round trip, ns.
    pub min_ns: u64,
    /// Median round trip, ns.
    pub p50_ns: u64,
    /// 90th percentile, ns.
    pub p90_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// 99.9th percentile, ns.
    pub p999_ns: u64,
    /// Longest round trip, ns.
    pub max_ns: u64,
    /// Mean round trip, ns.
    pub mean_ns: f64,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |ns: u64| ns as f64 / 1e6;
        write!(
            f,
            "sent {}  received {}  late {}  lost {}  round trip ms: min {:.3}  p50 {:.3}  p90 {:.3}  p99 {:.3}  max {:.3}",
            self.sent,
            self.received,
            self.late,
            self.sent.saturating_sub(self.received + self.late),
            ms(self.min_ns),
            ms(self.p50_ns),
            ms(self.p90_ns),
            ms(self.p99_ns),
            ms(self.max_ns)
        )
    }
}

/// A small generator (xorshift64*): the bytes only have to differ.
struct Random(u64);

impl Random {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            let word = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

struct Shared {
    waiting: Mutex<HashMap<u64, u64>>,
    all_sent: AtomicBool,
}

/// Sends and receives; returns when all requests are answered, or `linger` after the last request.
///
/// # Errors
/// If the server cannot be reached at all.
pub fn run(load: &Load) -> Result<Figures> {
    let doing = || format!("send to {}", load.to);
    let socket = UdpSocket::bind(("0.0.0.0", load.from_port)).doing(doing)?;
    socket.connect(load.to).doing(doing)?;
    socket.set_read_timeout(Some(Duration::from_millis(20))).doing(doing)?;
    let receiving = socket.try_clone().doing(doing)?;
    let shared = Arc::new(Shared { waiting: Mutex::new(HashMap::new()), all_sent: AtomicBool::new(false) });
    let receiver = {
        let (shared, load) = (shared.clone(), load.clone());
        thread::spawn(move || receive(&receiving, &shared, &load))
    };
    let mut random = Random(now_ns() | 1);
    let mut payload = vec![0; load.size.max(8)];
    let gap = 1e9 / load.rate.max(0.001);
    let begun = now_ns();
    for number in 0..load.count {
        let due = begun + (number as f64 * gap) as u64;
        if let Some(rest) = due.checked_sub(now_ns()) {
            thread::sleep(Duration::from_nanos(rest));
        }
        while load.outstanding > 0 && outstanding(&shared, load) >= load.outstanding {
            thread::sleep(Duration::from_micros(200));
        }
        payload[..8].copy_from_slice(&number.to_le_bytes());
        random.fill(&mut payload[8..]);
        lock(&shared.waiting).insert(number, now_ns());
        // Refused by the other side: this counts as lost.
        let _ = socket.send(&payload);
    }
    let seconds = (now_ns() - begun) as f64 / 1e9;
    shared.all_sent.store(true, Ordering::Release);
    let Received { times: histogram, late, strange } =
        receiver.join().map_err(|_| Error::Protocol("lost its receiving thread".into()))??;
    let at = |q: f64| histogram.value_at_quantile(q);
    Ok(Figures {
        sent: load.count,
        received: histogram.len(),
        late,
        strange,
        seconds,
        min_ns: histogram.min(),
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: histogram.max(),
        mean_ns: histogram.mean(),
    })
}

/// How many requests are unanswered and not taken for lost.
fn outstanding(shared: &Shared, load: &Load) -> usize {
    let (now, linger) = (now_ns(), load.linger.as_nanos() as u64);
    lock(&shared.waiting).values().filter(|sent| now.saturating_sub(**sent) < linger).count()
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`Figures`].
struct Received {
    times: Histogram<u64>,
    late: u64,
    strange: u64,
}

fn receive(socket: &UdpSocket, shared: &Shared, load: &Load) -> Result<Received> {
    let times = Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
        .map_err(|e| Error::Protocol(format!("cannot make a histogram: {e}")))?;
    let mut received = Received { times, late: 0, strange: 0 };
    let [linger, in_time] = [load.linger, load.in_time].map(|d| d.as_nanos() as u64);
    let mut datagram = [0; 65536];
    let mut end = None;
    loop {
        if shared.all_sent.load(Ordering::Acquire) {
            let now = now_ns();
            let end = *end.get_or_insert(now + linger);
            if now >= end || lock(&shared.waiting).is_empty() {
                return Ok(received);
            }
        }
        let Ok(n) = socket.recv(&mut datagram) else { continue };
        let now = now_ns();
        let number = datagram[..n].first_chunk().map(|b| u64::from_le_bytes(*b));
        match number.and_then(|number| lock(&shared.waiting).remove(&number)) {
            Some(sent) if now - sent > in_time => received.late += 1,
            Some(sent) => received.times.saturating_record(now - sent),
            None => received.strange += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To a server on this machine, of which an answer may take 5 s.
    fn load(port: u16) -> Load {
        let five = Duration::from_secs(5);
        Load {
            to: SocketAddrV4::new([127, 0, 0, 1].into(), port),
            rate: 1.0,
            count: 1,
            size: 64,
            outstanding: 0,
            linger: five,
            in_time: five,
            from_port: 0,
        }
    }

    #[test]
    fn an_echo_server_answers_every_request() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut b = [0; 2048];
            while let Ok((n, from)) = server.recv_from(&mut b) {
                let _ = server.send_to(&b[..n], from);
            }
        });
        let figures = run(&Load { rate: 2000.0, count: 200, ..load(port) }).unwrap();
        assert_eq!((figures.sent, figures.received, figures.strange), (200, 200, 0));
        assert!(
            figures.min_ns > 1000 && figures.min_ns <= figures.p50_ns && figures.p50_ns <= figures.max_ns
        );
    }

    /// The port of a server that answers the first request after the second.
    fn in_reverse() -> u16 {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut first, mut second) = ([0; 64], [0; 64]);
            let (n, from) = server.recv_from(&mut first).unwrap();
            server.recv_from(&mut second).unwrap();
            server.send_to(&second, from).unwrap();
            server.send_to(&first[..n], from).unwrap();
        });
        port
    }

    #[test]
    fn an_answer_that_takes_too_long_is_late() {
        let in_time = Duration::from_secs(2);
        let figures = run(&Load { rate: 0.25, count: 2, in_time, ..load(in_reverse()) }).unwrap();
        assert_eq!((figures.sent, figures.received, figures.late, figures.strange), (2, 1, 1, 0));
    }

    #[test]
    fn an_answer_that_is_missing_does_not_hold_back_the_next_request_for_ever() {
        let in_time = Duration::from_secs(2);
        let closed = Load { rate: 1000.0, count: 2, outstanding: 1, in_time, ..load(in_reverse()) };
        let figures = run(&closed).unwrap();
        assert_eq!((figures.sent, figures.received, figures.late, figures.strange), (2, 1, 1, 0));
        assert!(figures.seconds >= closed.linger.as_secs_f64(), "{figures:?}");
    }
}
