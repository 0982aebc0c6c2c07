//! `udp-echo`: answers every datagram with itself, after so many microseconds of work.

use std::{net::UdpSocket, time::Duration};

use super::now_ns;
use crate::error::{Doing, Result};

/// Serves `port` for ever; `work` is spent computing before each answer.
///
/// # Errors
/// If the port is in use.
pub fn serve(port: u16, work: Duration) -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", port)).doing(|| format!("serve UDP port {port}"))?;
    println!("serving UDP port {port}");
    let mut datagram = [0; 65536];
    loop {
        // Errors here are of earlier answers that did not arrive.
        let Ok((n, from)) = socket.recv_from(&mut datagram) else { continue };
        let begun = now_ns();
        while now_ns() - begun < work.as_nanos() as u64 {
            std::hint::spin_loop();
        }
        let _ = socket.send_to(&datagram[..n], from);
    }
}
