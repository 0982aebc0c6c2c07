//! Packets through a bridge with two taps: `uplink` takes the place of the host's NIC, `guest` is a VM's.
//!
//! ```text
//! to the guest:    write(uplink) ─► bridge ─► guest's queue and ring ─► read(guest)
//! from the guest:  write(guest)  ─► bridge ─► uplink's queue and ring ─► read(uplink)
//! ```
//! A frame written to a tap is received by the host in the writer's context. So one thread does everything, and the
//! measured time contains no sender's stack.

use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::Instant;

mod ioctl {
    #![allow(missing_docs, reason = "made by a macro")]
    nix::ioctl_write_ptr_bad!(set_tap, libc::TUNSETIFF, libc::ifreq);
}

/// The guest's hardware address.
pub const GUEST: [u8; 6] = [0x52, 0x54, 0, 0x66, 0, 1];
/// Hardware address of a host on the uplink's side.
pub(super) const PEER: [u8; 6] = [0x52, 0x54, 0, 0x66, 0, 2];
/// The guest's port.
pub const PORT: u16 = 6000;
/// Payload, bytes.
const SIZE: usize = 100;

/// The bridge, with its two taps open.
pub struct Bridge {
    uplink: File,
    guest: File,
    /// Interface index of the guest's tap.
    pub tap: u32,
}

impl Bridge {
    /// Creates the bridge and its taps. The taps are removed when the process ends; the bridge remains.
    ///
    /// # Errors
    /// Without root, or if the bridge exists already.
    pub fn new() -> Result<Bridge> {
        let (uplink, guest) = (open("cost-up")?, open("cost-vm")?);
        let mac = |m: &[u8; 6]| m.map(|b| format!("{b:02x}")).join(":");
        let script = format!(
            "set -e
             ip link add cost-br type bridge forward_delay 0 mcast_snooping 0
             for dev in cost-br cost-up cost-vm; do echo 1 > /proc/sys/net/ipv6/conf/$dev/disable_ipv6; done
             ip link set cost-up master cost-br up; ip link set cost-vm master cost-br up; ip link set cost-br up
             bridge fdb replace {} dev cost-vm master static; bridge fdb replace {} dev cost-up master static",
            mac(&GUEST),
            mac(&PEER)
        );
        let done = Command::new("sh").args(["-c", &script]).output().context("cannot run sh")?;
        if !done.status.success() {
            bail!("the bridge could not be made: {}", String::from_utf8_lossy(&done.stderr));
        }
        let tap = nix::net::if_::if_nametoindex("cost-vm").context("the tap is gone")?;
        Ok(Bridge { uplink, guest, tap })
    }

    /// Passes this many packets to the guest or from it; returns ns per packet.
    ///
    /// # Errors
    /// If a packet does not arrive at once.
    pub fn pass(&mut self, to_guest: bool, count: u32) -> Result<f64> {
        let frame = frame(to_guest, NET);
        let (from, to) =
            if to_guest { (&mut self.uplink, &mut self.guest) } else { (&mut self.guest, &mut self.uplink) };
        let mut buffer = [0; 2048];
        // Packets that the bridge itself has sent.
        while to.read(&mut buffer).is_ok() {}
        let begun = Instant::now();
        for _ in 0..count {
            from.write_all(&frame).context("the tap does not take a packet")?;
            let n = to.read(&mut buffer).context("a packet did not pass the bridge")?;
            if n != frame.len() {
                bail!("another packet than the one that was sent came through the bridge");
            }
        }
        Ok(begun.elapsed().as_nanos() as f64 / f64::from(count))
    }
}

/// A tap of this name; it exists while the file is open.
///
/// # Errors
/// Without root.
pub fn open(name: &str) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .context("cannot open /dev/net/tun")?;
    // SAFETY: the structure consists of integers and arrays of integers; all zeros are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, and the request outlives the call, which reads it.
    unsafe { ioctl::set_tap(file.as_raw_fd(), &request) }
        .with_context(|| format!("cannot make the tap {name}"))?;
    Ok(file)
}

/// Network of the guest's address.
pub const NET: [u8; 3] = [10, 66, 0];

/// A UDP datagram between the addresses 1, the guest, and 2 of a network.
pub(super) fn frame(to_guest: bool, net: [u8; 3]) -> Vec<u8> {
    let (dst, src) = if to_guest { (GUEST, PEER) } else { (PEER, GUEST) };
    let (to, from, dport, sport) = if to_guest { (1, 2, PORT, 7000) } else { (2, 1, 7000, PORT) };
    let mut ip = vec![0x45, 0];
    ip.extend((28 + SIZE as u16).to_be_bytes());
    let [a, b, c] = net;
    ip.extend([0, 1, 0x40, 0, 64, 17, 0, 0, a, b, c, from, a, b, c, to]);
    let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut f = [&dst[..], &src[..], &[8, 0], &ip[..]].concat();
    for word in [sport, dport, 8 + SIZE as u16, 0] {
        f.extend(word.to_be_bytes());
    }
    f.extend((0..SIZE).map(|i| i as u8));
    f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frames_have_right_lengths_and_sums() {
        for to_guest in [true, false] {
            let f = frame(to_guest, NET);
            assert_eq!(f.len(), 14 + 20 + 8 + SIZE);
            let sum: u32 = f[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
            assert_eq!(f[if to_guest { 0 } else { 6 }..][..6], GUEST);
        }
    }
}
