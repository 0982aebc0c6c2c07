//! `udp-echo`: sends every datagram back, after some computation.

use std::{net::UdpSocket, time::Duration};

use super::now_ns;
use crate::error::{Doing, Result};

/// Serves `port` for ever; computes for `work` before each answer.
///
/// # Errors
/// If the port is in use.
pub fn serve(port: u16, work: Duration) -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", port)).doing(|| format!("serve UDP port {port}"))?;
    println!("serving UDP port {port}");
    let mut datagram = [0; 65536];
    loop {
        // Errors here are about earlier answers that did not arrive.
        let Ok((n, from)) = socket.recv_from(&mut datagram) else { continue };
        let begun = now_ns();
        while now_ns() - begun < work.as_nanos() as u64 {
            std::hint::spin_loop();
        }
        let _ = socket.send_to(&datagram[..n], from);
    }
}
