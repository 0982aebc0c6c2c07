//! `udp-flows`: sends several paced flows of stamped datagrams, and measures their delays at the receiver.
//!
//! A datagram begins with the time of sending (CLOCK_MONOTONIC, ns) and its number (8 bytes each, little endian).
//! Sender and receiver are on one machine, in different network namespaces, so they use the same clock.
//!
//! A flow obeys a token bucket: it sends its burst at once, and the next burst not before the bucket is full again after the last
//! datagram, however late that was. All flows begin at the same time, which is the worst case for a scheduler.

use std::{
    io,
    net::{SocketAddrV4, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    str::FromStr,
    time::Duration,
};

use hdrhistogram::Histogram;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{setsockopt, sockopt},
    time::{ClockId, ClockNanosleepFlags, clock_nanosleep},
};
use serde::Serialize;

use super::{clock_difference, now_ns, ns_of};
use crate::error::{Doing, Error, Result};

/// Bytes on an Ethernet wire in addition to the payload: UDP 8, IPv4 20, Ethernet 14, check sequence 4, preamble 8, gap
/// 12.
pub const FRAMING: usize = 66;
/// The size of the send buffer, bytes: the measurement must not be limited by the socket.
const BUFFER: usize = 64 << 20;

/// A flow to send: `address:port,rate=bit/s,size=bytes[,burst=datagrams][,deadline_us=µs]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flow {
    /// Receiver.
    pub to: SocketAddrV4,
    /// The rate on the wire, bit/s, including framing.
    pub rate: f64,
    /// Payload, bytes (at least 16).
    pub size: usize,
    /// How many datagrams are sent at once.
    pub burst: u32,
    /// The time in which they have to be sent, µs. The kernel gets it with each datagram (SO_TXTIME in deadline mode,
    /// for the qdisc etf); 0: it gets none.
    pub deadline_us: u64,
}

impl FromStr for Flow {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Flow, String> {
        let mut parts = text.split(',');
        let to = parts.next().unwrap_or_default().parse().map_err(|e| format!("{e}: {text}"))?;
        let mut flow = Flow { to, rate: 1e6, size: 1470, burst: 1, deadline_us: 0 };
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is not key=value"))?;
            let bad = || format!("`{value}` is no value of {key}");
            match key {
                "rate" => flow.rate = value.parse().ok().filter(|r| *r > 0.0).ok_or_else(bad)?,
                "size" => {
                    flow.size = value.parse().ok().filter(|s| (16..=1472).contains(s)).ok_or_else(bad)?;
                }
                "burst" => flow.burst = value.parse().ok().filter(|b| *b > 0).ok_or_else(bad)?,
                "deadline_us" => flow.deadline_us = value.parse().map_err(|_| bad())?,
                _ => return Err(format!("`{key}` is none of rate, size, burst, deadline_us")),
            }
        }
        Ok(flow)
    }
}

/// What a flow has sent.
#[derive(Debug, Clone, Serialize)]
pub struct Sent {
    /// Receiver's port.
    pub port: u16,
    /// Datagrams that the kernel accepted.
    pub sent: u64,
    /// Datagrams that the kernel refused.
    pub refused: u64,
}

/// Sends for `length`; with `limit`, at most this many datagrams of each flow.
///
/// # Errors
/// If a socket cannot be made.
pub fn send(flows: &[Flow], length: Duration, limit: Option<u64>) -> Result<Vec<Sent>> {
    super::stay_in_memory();
    // Timers that are 50 µs late are of no use here; this fails only for an invalid number.
    let _ = nix::sys::prctl::set_timerslack(1);
    let mut open = Vec::new();
    let begun = now_ns() + 1_000_000;
    for flow in flows {
        let doing = || format!("send to {}", flow.to);
        let socket = UdpSocket::bind("0.0.0.0:0").doing(doing)?;
        socket.connect(flow.to).doing(doing)?;
        socket.set_nonblocking(true).doing(doing)?;
        setsockopt(&socket, sockopt::SndBufForce, &BUFFER).map_err(io::Error::from).doing(doing)?;
        if flow.deadline_us > 0 {
            enable_txtime(&socket).doing(doing)?;
        }
        let period = f64::from(flow.burst) * (flow.size + FRAMING) as f64 * 8e9 / flow.rate;
        open.push((begun, period as u64, flow, socket, Sent { port: flow.to.port(), sent: 0, refused: 0 }));
    }
    let end = begun + length.as_nanos() as u64;
    let mut payload = vec![0x5a; 1472];
    loop {
        let next = open
            .iter_mut()
            .filter(|(.., sent)| limit.is_none_or(|l| sent.sent + sent.refused < l))
            .min_by_key(|(due, ..)| *due);
        let Some((due, period, flow, socket, sent)) = next else { break };
        if *due >= end {
            break;
        }
        if *due > now_ns() {
            let until = Duration::from_nanos(*due).into();
            // A signal would wake it up early, but there are none.
            let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &until);
        }
        for _ in 0..flow.burst {
            let stamp = now_ns();
            // From the last datagram of the burst, however long this program had to wait for a CPU since the first.
            *due = stamp + *period;
            payload[..8].copy_from_slice(&stamp.to_le_bytes());
            payload[8..16].copy_from_slice(&(sent.sent + sent.refused).to_le_bytes());
            let by = (flow.deadline_us > 0).then(|| ns_of(ClockId::CLOCK_TAI) + flow.deadline_us * 1000);
            match give(socket, &payload[..flow.size], by) {
                Ok(_) => sent.sent += 1,
                Err(_) => sent.refused += 1,
            }
        }
    }
    Ok(open.into_iter().map(|(.., sent)| sent).collect())
}

/// Makes the kernel accept a deadline with each datagram (SO_TXTIME in deadline mode, for the qdisc etf).
pub(super) fn enable_txtime(socket: &UdpSocket) -> io::Result<()> {
    let txtime = libc::sock_txtime { clockid: libc::CLOCK_TAI, flags: libc::SOF_TXTIME_DEADLINE_MODE };
    Ok(setsockopt(socket, sockopt::TxTime, &txtime)?)
}

/// Sends one datagram, with its deadline (ns of CLOCK_TAI) if it has one.
pub(super) fn give(socket: &UdpSocket, datagram: &[u8], by: Option<u64>) -> io::Result<usize> {
    match give_once(socket, datagram, by) {
        // The error is about an earlier datagram that had no receiver (ICMP): this datagram was not sent yet.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => give_once(socket, datagram, by),
        done => done,
    }
}

fn give_once(socket: &UdpSocket, datagram: &[u8], by: Option<u64>) -> io::Result<usize> {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let Some(by) = by else { return socket.send(datagram) };
    let parts = [io::IoSlice::new(datagram)];
    let control = [ControlMessage::TxTime(&by)];
    Ok(sendmsg::<()>(socket.as_raw_fd(), &parts, &control, MsgFlags::empty(), None)?)
}

/// What arrived at a port; delays are from just before sending, ns.
#[derive(Debug, Clone, Serialize)]
pub struct Arrived {
    /// Receiver's port.
    pub port: u16,
    /// Datagrams.
    pub received: u64,
    /// Datagrams that took longer than the port's deadline; 0 if it has no deadline.
    pub late: u64,
    /// Datagrams whose number is lower than that of an earlier one.
    pub reordered: u64,
    /// Shortest delay.
    pub min_ns: u64,
    /// Mean delay.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest delay.
    pub max_ns: u64,
    /// Longest delay until the receiver reads the datagram, which includes the receiver's wait for a CPU.
    pub read_max_ns: u64,
}

struct Port {
    socket: UdpSocket,
    port: u16,
    deadline: u64,
    late: u64,
    times: Histogram<u64>,
    highest: Option<u64>,
    reordered: u64,
    max: u64,
    read_max: u64,
}

/// Receives on these ports until no datagram has come for `idle` after the first one. The delay ends at the kernel's
/// stamp of the arrival (SO_TIMESTAMPNS). Each port may have a deadline, µs, for counting late datagrams. Datagrams for
/// `sinks` are not read and overflow.
///
/// # Errors
/// If a port cannot be used.
pub fn receive(ports: &[u16], deadlines_us: &[u64], sinks: &[u16], idle: Duration) -> Result<Vec<Arrived>> {
    listen(ports, deadlines_us, sinks, idle, |_| println!("receiving"))
}

/// Calls `ready` with the ports as soon as datagrams can come. Port 0 is replaced by a free one.
fn listen(
    ports: &[u16],
    deadlines_us: &[u64],
    sinks: &[u16],
    idle: Duration,
    ready: impl FnOnce(&[u16]),
) -> Result<Vec<Arrived>> {
    super::stay_in_memory();
    let bind = |port: u16| UdpSocket::bind(("0.0.0.0", port)).doing(|| format!("receive on port {port}"));
    let _sinks: Vec<UdpSocket> = sinks.iter().map(|p| bind(*p)).collect::<Result<_>>()?;
    let mut open = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let deadline = deadlines_us.get(i).map_or(u64::MAX, |us| us * 1000);
        let doing = || format!("receive on port {port}");
        let socket = bind(*port)?;
        let port = socket.local_addr().doing(doing)?.port();
        socket.set_nonblocking(true).doing(doing)?;
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).map_err(io::Error::from).doing(doing)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).map_err(io::Error::from).doing(doing)?;
        let times = Histogram::new_with_bounds(1, 3_600_000_000_000, 3)
            .map_err(|e| Error::Protocol(format!("cannot make a histogram: {e}")))?;
        let (late, reordered, max, read_max) = (0, 0, 0, 0);
        open.push(Port { socket, port, deadline, late, times, highest: None, reordered, max, read_max });
    }
    // The kernel stamps with CLOCK_REALTIME, which nobody sets during the measurement.
    let offset = clock_difference().1 as u64;
    let bound: Vec<u16> = open.iter().map(|p| p.port).collect();
    ready(&bound);
    let mut begun = false;
    loop {
        let mut polled: Vec<_> =
            open.iter().map(|p| PollFd::new(p.socket.as_fd(), PollFlags::POLLIN)).collect();
        let wait = if begun { idle } else { Duration::from_secs(3600) };
        let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        let ready = poll(&mut polled, wait).map_err(io::Error::from).doing(|| "wait for datagrams".into())?;
        if ready == 0 {
            break;
        }
        begun = true;
        let ready: Vec<bool> = polled.iter().map(|p| p.any().unwrap_or(false)).collect();
        for (port, _) in open.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            while let Some((sent, number, arrived)) = read(&port.socket, offset) {
                let delay = arrived.saturating_sub(sent);
                port.times.saturating_record(delay.max(1));
                port.late += u64::from(delay > port.deadline);
                port.max = port.max.max(delay);
                port.read_max = port.read_max.max(now_ns().saturating_sub(sent));
                port.reordered += u64::from(port.highest.is_some_and(|h| number < h));
                port.highest = port.highest.max(Some(number));
            }
        }
    }
    let arrived = |p: Port| Arrived {
        port: p.port,
        received: p.times.len(),
        late: p.late,
        reordered: p.reordered,
        min_ns: if p.times.is_empty() { 0 } else { p.times.min() },
        mean_ns: p.times.mean(),
        p50_ns: p.times.value_at_quantile(0.5),
        p99_ns: p.times.value_at_quantile(0.99),
        p999_ns: p.times.value_at_quantile(0.999),
        max_ns: p.max,
        read_max_ns: p.read_max,
    };
    Ok(open.into_iter().map(arrived).collect())
}

/// When the next datagram was sent, its number, and when it arrived; times in ns of CLOCK_MONOTONIC.
fn read(socket: &UdpSocket, offset: u64) -> Option<(u64, u64, u64)> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let mut datagram = [0u8; 2048];
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    let mut parts = [io::IoSliceMut::new(&mut datagram)];
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_DONTWAIT).ok()?;
    let stamp = message.cmsgs().ok()?.find_map(|c| match c {
        ControlMessageOwned::ScmTimestampns(t) => {
            Some(t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
        }
        _ => None,
    });
    let bytes = message.bytes;
    let word = |at: usize| {
        datagram
            .get(at..at + 8)
            .filter(|_| bytes >= 16)
            .and_then(|b| b.try_into().ok())
            .map(u64::from_le_bytes)
    };
    Some((word(0)?, word(8)?, stamp?.wrapping_sub(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_read_and_nonsense_is_refused() {
        let flow: Flow = "10.0.0.1:6000,rate=2e6,size=100,burst=3".parse().unwrap();
        assert_eq!((flow.to.port(), flow.rate, flow.size, flow.burst), (6000, 2e6, 100, 3));
        for bad in
            ["10.0.0.1", "10.0.0.1:1,rate=0", "10.0.0.1:1,size=8", "10.0.0.1:1,x=1", "10.0.0.1:1,burst"]
        {
            assert!(bad.parse::<Flow>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_sent_arrives_in_order_and_not_before_its_time() {
        let (ready, waits) = std::sync::mpsc::channel();
        let receiver = std::thread::spawn(move || {
            listen(&[0], &[0], &[], Duration::from_secs(5), move |ports| ready.send(ports[0]).unwrap())
        });
        let port = waits.recv().unwrap();
        let flow = Flow {
            to: SocketAddrV4::new([127, 0, 0, 1].into(), port),
            rate: 8e5,
            size: 34,
            burst: 2,
            deadline_us: 0,
        };
        let begun = now_ns();
        let sent = send(&[flow], Duration::from_secs(10), Some(100)).unwrap();
        // 100 bytes on the wire each, a burst of two every 2 ms
        assert!(now_ns() - begun >= 98_000_000, "sent faster than its rate");
        let arrived = receiver.join().unwrap().unwrap();
        assert_eq!((sent[0].sent, sent[0].refused), (100, 0));
        assert_eq!((arrived[0].received, arrived[0].late, arrived[0].reordered), (100, 100, 0));
        assert!(arrived[0].max_ns > 0 && arrived[0].min_ns <= arrived[0].p50_ns, "{arrived:?}");
        assert!(arrived[0].p50_ns < 1_000_000_000, "{arrived:?}");
    }
}
