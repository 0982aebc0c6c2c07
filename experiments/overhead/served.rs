//! Requests to a UDP server of this machine: they come in by a tap, which takes the place of a guest's NIC, and a thread
//! answers them.
//!
//! ```text
//! write(NIC) ─► stack ─► socket's queue ─► the server's thread: recv, send ─► stack ─► read(NIC)
//! ```

use super::packets::{GUEST, PEER, PORT, frame, open};
use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Instant;

/// Addresses: the server's, and the client's beyond the NIC.
const NET: [u8; 3] = [10, 67, 0];

/// The NIC, behind which a server answers. Its thread ends with the process.
pub struct Server {
    nic: File,
    request: Vec<u8>,
}

impl Server {
    /// Makes the NIC, and starts the server.
    ///
    /// # Errors
    /// Without root.
    pub fn new() -> Result<Server> {
        let nic = open("cost-nic")?;
        let colons = |m: &[u8; 6]| m.map(|b| format!("{b:02x}")).join(":");
        let [a, b, c] = NET;
        let script = format!(
            "set -e
             echo 1 > /proc/sys/net/ipv6/conf/cost-nic/disable_ipv6
             ip link set cost-nic address {} up; ip addr add {a}.{b}.{c}.1/24 dev cost-nic
             ip neigh replace {a}.{b}.{c}.2 lladdr {} dev cost-nic",
            colons(&GUEST),
            colons(&PEER)
        );
        let done = Command::new("sh").args(["-c", &script]).output().context("cannot run sh")?;
        if !done.status.success() {
            bail!("the server's NIC could not be made: {}", String::from_utf8_lossy(&done.stderr));
        }
        let socket = UdpSocket::bind((std::net::Ipv4Addr::new(a, b, c, 1), PORT))?;
        std::thread::Builder::new().name("cost-server".into()).spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((n, from)) = socket.recv_from(&mut buffer) {
                if socket.send_to(&buffer[..n], from).is_err() {
                    return;
                }
            }
        })?;
        Ok(Server { nic, request: frame(true, NET) })
    }

    /// Lets it answer this many requests; returns ns for each.
    ///
    /// # Errors
    /// If a request is not answered.
    pub fn serve(&mut self, count: u32) -> Result<f64> {
        let mut buffer = [0; 2048];
        // Packets that the stack itself has sent.
        while self.nic.read(&mut buffer).is_ok() {}
        let begun = Instant::now();
        for _ in 0..count {
            self.nic.write_all(&self.request).context("the tap does not take a packet")?;
            let n = self.answer(&mut buffer).context("a request was not answered")?;
            if n != self.request.len() || buffer[42..n] != self.request[42..] {
                bail!("another packet than the answer came from the server");
            }
        }
        Ok(begun.elapsed().as_nanos() as f64 / f64::from(count))
    }

    fn answer(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            match self.nic.read(buffer) {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    let mut fds = [PollFd::new(self.nic.as_fd(), PollFlags::POLLIN)];
                    if poll(&mut fds, PollTimeout::from(60_000u16))? == 0 {
                        bail!("no answer within a minute");
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}
