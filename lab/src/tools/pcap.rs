//! pcap files with nanosecond stamps and the direction of each packet.
//!
//! Link type LINUX_SLL2 (276): a 20-byte header whose packet type gives the direction (4 is sent by this machine), then
//! the packet from its network header on. See <https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html>.

use std::io::{self, Write};

/// Bytes of the SLL2 header.
const HEADER: usize = 20;

/// One captured packet.
#[derive(Debug)]
pub(crate) struct Packet<'a> {
    /// Seconds of CLOCK_REALTIME, stamped by the kernel.
    pub seconds: u32,
    /// Nanoseconds in addition to the seconds.
    pub nanoseconds: u32,
    /// The kernel's `sll_pkttype`.
    pub direction: u8,
    /// The index of the interface.
    pub ifindex: u32,
    /// The captured part of the Ethernet frame.
    pub frame: &'a [u8],
    /// The full length of the frame, bytes.
    pub length: u32,
}

/// Writes the file header; `snap` is the greatest length of a stored frame, bytes.
pub(crate) fn begin(to: &mut impl Write, snap: u32) -> io::Result<()> {
    for word in [0xa1b2_3c4d_u32, 4 << 16 | 2, 0, 0, snap + HEADER as u32, 276] {
        to.write_all(&word.to_le_bytes())?;
    }
    Ok(())
}

/// Writes one packet. Frames that are shorter than an Ethernet header are left out.
pub(crate) fn packet(to: &mut impl Write, p: &Packet<'_>) -> io::Result<()> {
    let Some((ethernet, payload)) = p.frame.split_first_chunk::<14>() else { return Ok(()) };
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&ethernet[12..14]);
    header[4..8].copy_from_slice(&p.ifindex.to_be_bytes());
    header[9] = 1; // ARPHRD_ETHER
    header[10] = p.direction;
    header[11] = 6;
    header[12..18].copy_from_slice(&ethernet[6..12]);
    let kept = (payload.len() + HEADER) as u32;
    let length = p.length - 14 + HEADER as u32;
    for word in [p.seconds, p.nanoseconds, kept, length] {
        to.write_all(&word.to_le_bytes())?;
    }
    to.write_all(&header)?;
    to.write_all(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_keeps_its_stamp_direction_and_lengths() {
        let mut out = Vec::new();
        begin(&mut out, 128).unwrap();
        let frame = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0, 0x45, 7];
        let p = Packet { seconds: 5, nanoseconds: 6, direction: 4, ifindex: 3, frame: &frame, length: 100 };
        packet(&mut out, &p).unwrap();
        assert_eq!(out.len(), 24 + 16 + HEADER + 2);
        assert_eq!(&out[24..40], [5, 0, 0, 0, 6, 0, 0, 0, 22, 0, 0, 0, 106, 0, 0, 0]);
        assert_eq!(out[40..42], [8, 0]);
        assert_eq!(out[40 + 10], 4);
        assert_eq!(&out[60..], [0x45, 7]);
    }
}
