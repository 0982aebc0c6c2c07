//! How many bytes a packet takes on a link, including framing.
//!
//! A packet larger than a frame of the MTU is split by the NIC (GSO), and each of its frames has its own headers and
//! framing. Admission control counts in this way, and so does HFSC, by a size table.

use super::OVERHEAD;

/// Ethernet header, bytes.
pub const HEADER: u32 = 14;
/// A VLAN tag, bytes.
pub const TAG: u32 = 4;
/// The longest IP and TCP headers, which the NIC repeats in every frame of a segment: 40 bytes of IPv6 and 60 of TCP.
const REPEATED: u32 = 100;

/// The largest frame of the MTU, bytes, without the link's overhead.
pub fn full(mtu: u32) -> u32 {
    mtu.saturating_add(HEADER + TAG)
}

/// Bytes that a frame takes on the wire, without the overhead of its last frame on the wire. If it is longer than the
/// MTU allows, it becomes full segments of the MTU, each with its own headers.
pub fn on_wire(frame: u32, mtu: u32) -> u32 {
    if frame <= full(mtu) {
        return frame;
    }
    let payload = mtu.saturating_sub(REPEATED).max(1);
    let more = (frame - HEADER).saturating_sub(REPEATED).div_ceil(payload).saturating_sub(1);
    frame.saturating_add(more.saturating_mul(REPEATED + HEADER + TAG + OVERHEAD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_takes_more_than_its_bytes() {
        assert_eq!(on_wire(1514, 1500), 1514);
        assert_eq!(on_wire(1518, 1500), 1518);
        // 64 KiB of IPv4 with TCP's timestamps: 46 frames with 1,448 bytes of payload and 90 bytes of headers and
        // framing each.
        let usual = 65_536 + 14 + 45 * (52 + 14 + 24);
        let allowed = on_wire(65_550, 1500);
        assert!((usual..usual + usual / 20).contains(&allowed), "{allowed}");
        // Any MTU can be calculated with.
        for mtu in [0, 68, 100, 9000, u32::MAX] {
            assert!(on_wire(65_550, mtu) >= 65_550);
        }
        assert_eq!((full(1500), full(u32::MAX)), (1518, u32::MAX));
    }
}
