//! `udp-burst`: measures the cost per packet of a network device's queue, on a machine whose clock counts instructions.
//!
//! ```text
//! window:  burst of datagrams, as fast as they can be sent ── a fixed number of iterations of an empty loop
//! ```
//! With a single CPU, everything that the kernel does in the meantime, including timers and softirqs, makes the window
//! longer. So the difference between two windows with the same datagrams and iterations is exactly the difference in
//! cost of two queues. The loop gives a paced queue the time to empty, in which the CPU would be idle; without pacing
//! no iterations are needed.
//!
//! Channels and other senders take turns, one socket each, datagram by datagram.

use std::{
    fs, io,
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use nix::time::ClockId;
use serde::Serialize;

use super::{now_ns, udp_flows};
use crate::error::{Doing, Error, Result};

/// The port of the first channel; the first port of other senders is [`OTHERS`].
pub const CHANNELS: u16 = 6000;
/// The port of the first sender that is not a channel.
pub const OTHERS: u16 = 20_000;
/// The size of the send buffer, bytes: the measurement must not be limited by the socket.
const BUFFER: usize = 64 << 20;

/// What to send.
#[derive(Debug, Clone)]
pub struct Load {
    /// Receiver.
    pub to: Ipv4Addr,
    /// The device by which the datagrams leave; it has to send all of them within the window.
    pub device: String,
    /// The number of channels, 1 to 10,000.
    pub channels: u16,
    /// The number of other senders, 1 to 10,000.
    pub others: u16,
    /// Payload, bytes (1 to 1472).
    pub size: usize,
    /// Datagrams in a window.
    pub burst: u32,
    /// The number of windows.
    pub windows: u32,
    /// Iterations of the loop.
    pub turns: u64,
    /// The time in which a window's datagrams have to be sent, µs, as in [`udp_flows::Flow`]; 0: the kernel gets none.
    pub deadline_us: u64,
}

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct Taken {
    /// Length of each window, ns.
    pub windows: Vec<u64>,
    /// Datagrams that the kernel refused, or that had not left the device when their window ended.
    pub missing: u64,
}

/// Sends the bursts.
///
/// # Errors
/// If a socket cannot be made, or there is no such device.
pub fn run(load: &Load) -> Result<Taken> {
    if load.channels == 0 || load.others == 0 || load.channels.max(load.others) > 10_000 {
        return Err(Error::Protocol("channels and others are 1 to 10,000 each".into()));
    }
    if !(1..=1472).contains(&load.size) {
        return Err(Error::Protocol("a payload has 1 to 1472 bytes".into()));
    }
    let open = |first: u16, n: u16| (0..n).map(|i| socket(load, first + i)).collect::<Result<Vec<_>>>();
    let (channels, others) = (open(CHANNELS, load.channels)?, open(OTHERS, load.others)?);
    let payload = vec![0x5a; load.size];
    let mut taken = Taken { windows: Vec::new(), missing: 0 };
    // The first datagram of a socket, and a queue's first one of a flow, differ from the others: the first round is not
    // measured.
    let all = u32::from(load.channels.max(load.others)) * 2;
    for window in 0..=load.windows {
        let before = sent_by(&load.device)?;
        let count = if window == 0 { all } else { load.burst };
        let begun = now_ns();
        let mut refused = 0;
        let due = super::ns_of(ClockId::CLOCK_TAI) + load.deadline_us * 1000;
        for i in 0..count as usize {
            let (turn, other) = (i / 2, i % 2 == 1);
            let from = if other { &others[turn % others.len()] } else { &channels[turn % channels.len()] };
            // Each is a little later than the one before: etf drops a packet that is due before the one that it sent
            // last.
            let by = (load.deadline_us > 0).then_some(due + i as u64);
            refused += u64::from(udp_flows::give(from, &payload, by).is_err());
        }
        for i in 0..load.turns {
            std::hint::black_box(i);
        }
        let ns = now_ns() - begun;
        if window == 0 {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        let left = sent_by(&load.device)?.saturating_sub(before);
        taken.windows.push(ns);
        taken.missing += refused.max(u64::from(count).saturating_sub(left));
    }
    Ok(taken)
}

fn socket(load: &Load, port: u16) -> Result<UdpSocket> {
    let doing = || format!("send to {}:{port}", load.to);
    let socket = UdpSocket::bind("0.0.0.0:0").doing(doing)?;
    socket.connect((load.to, port)).doing(doing)?;
    socket.set_nonblocking(true).doing(doing)?;
    setsockopt(&socket, sockopt::SndBufForce, &BUFFER).map_err(io::Error::from).doing(doing)?;
    if load.deadline_us > 0 {
        udp_flows::enable_txtime(&socket).doing(doing)?;
    }
    Ok(socket)
}

/// The number of packets that the device has sent.
fn sent_by(device: &str) -> Result<u64> {
    let path = format!("/sys/class/net/{device}/statistics/tx_packets");
    let doing = || format!("read {path}");
    let text = fs::read_to_string(&path).doing(doing)?;
    text.trim().parse().map_err(|_| Error::Protocol(format!("{path} is no number: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_is_timed_and_what_did_not_leave_is_missing() {
        let mut load = Load {
            to: Ipv4Addr::LOCALHOST,
            device: "lo".into(),
            channels: 3,
            others: 2,
            size: 100,
            burst: 50,
            windows: 4,
            turns: 100,
            deadline_us: 0,
        };
        let taken = run(&load).unwrap();
        assert_eq!((taken.windows.len(), taken.missing), (4, 0), "{taken:?}");
        assert!(taken.windows.iter().all(|ns| *ns > 50 * 100), "{taken:?}");
        load.device = "no-such-device".into();
        assert!(run(&load).is_err());
        load = Load { device: "lo".into(), channels: 0, ..load };
        assert!(run(&load).is_err());
    }
}
