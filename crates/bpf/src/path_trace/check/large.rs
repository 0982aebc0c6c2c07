//! Large packets (GSO, GRO): that the first segment of one of TCP has its fingerprint and no other segment has, and how many
//! segments are counted.

use super::tcp::{Sent, places, sent};
use super::{DATAGRAM, Frame, Object, ask, load};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use proptest::prelude::*;
use teiji_model::event::Segment;
use teiji_model::flow::Flow;

/// Flags that only the last segment of a large packet has from it.
const OF_LAST: u8 = Segment::FIN | PSH;
const PSH: u8 = 0x08;

fn fingerprint(object: &Object, s: &Sent) -> u64 {
    ask(object, &s.bytes(), s.frame.to_guest).unwrap().fingerprint
}

/// The segment with as much payload as a test may send; its header claims `more`.
fn long(s: Sent) -> Sent {
    let frame = Frame { payload: 255, ..s.frame };
    Sent { frame, more: 0, ..s }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn a_large_packet_has_the_fingerprint_of_its_first_segment(
        all in prop::collection::vec((sent(), 1i16..32_000), 40)
    ) {
        let object = load(&Flow::default());
        for (s, more) in all {
            let large = Sent { more, ..long(s) };
            let first = Sent { more: 0, flags: large.flags & !OF_LAST, ..large.clone() };
            prop_assert_eq!(fingerprint(&object, &large), fingerprint(&object, &first), "{:?}", large);
            // The header of a larger one than its field can tell has no length.
            let mut larger = large.bytes();
            let (_, length) = places(&large.frame);
            larger[length..length + 2].fill(0);
            let larger = ask(&object, &larger, large.frame.to_guest).unwrap();
            prop_assert_eq!(larger.fingerprint, fingerprint(&object, &first), "{:?}", large);
        }
    }

    /// Whatever else two segments differ in, they are different packets.
    #[test]
    fn different_segments_differ(
        all in prop::collection::vec((sent(), 0u8..7, 0u32..32), 40)
    ) {
        let object = load(&Flow::default());
        for (s, what, bit) in all {
            let s = Sent { options: s.options & 7, ..long(s) };
            let mut other = s.clone();
            match what {
                0 => other.seq ^= 1 << bit,
                1 => other.ack ^= 1 << bit,
                2 => other.flags ^= [0x02, 0x04, 0x10, 0x20, 0x40, 0x80][bit as usize % 6],
                3 => other.options ^= 1 << (bit % 3),
                4 => other.frame.sport ^= 1 << (bit % 16),
                5 => other.frame.src ^= 1 << (bit % 2),
                _ => {}
            }
            let mut bytes = other.bytes();
            if what == 6 {
                // IP id, or flow label
                let ip = 14 + 4 * usize::from(s.frame.vlans);
                bytes[if s.frame.v6 { ip + 2 } else { ip + 4 } + bit as usize % 2] ^= 1 << (bit % 8);
            }
            let other = ask(&object, &bytes, s.frame.to_guest).unwrap();
            prop_assert_ne!(fingerprint(&object, &s), other.fingerprint, "{} {} of {:?}", what, bit, s);
        }
    }
}

/// What follows in a connection with one sequence number, closely: an ACK, data, a FIN.
#[test]
fn short_segments_differ_by_length_and_flags() {
    let object = load(&Flow::default());
    for v6 in [false, true] {
        let of = |payload, flags| {
            let frame = Frame { v6, proto: 6, payload, ..DATAGRAM };
            let s = Sent { frame, seq: 7, ack: 9, options: 0, flags, more: 0 };
            fingerprint(&object, &s)
        };
        let ack = Segment::ACK;
        let all = [
            of(0, ack),
            of(0, ack | Segment::FIN),
            of(1, ack),
            of(1, ack | PSH),
            of(2, ack),
            of(235, ack),
            of(235, ack | PSH),
            of(236, ack),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(!all[..i].contains(a), "{i}, IPv6: {v6}");
        }
        // From there on all segments may be the first of a large packet.
        assert_eq!(of(236, ack), of(255, ack | PSH));
    }
}

/// How many segments a frame stands for that has so many bytes beyond its linear part, and segments of that size.
fn segments(object: &Object, bytes: &[u8], beyond: u32, size: u16) -> u16 {
    const SIZE: usize = 36;
    const COUNT: usize = 38;
    const BEYOND: usize = 40 + 2048 + 12;
    ask(object, bytes, true).unwrap();
    let frames = crate::object::map(object, "frames").unwrap();
    let mut value = frames.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    value[SIZE..SIZE + 2].copy_from_slice(&size.to_ne_bytes());
    value[BEYOND..BEYOND + 4].copy_from_slice(&beyond.to_ne_bytes());
    frames.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY).unwrap();
    let program = object.progs_mut().find(|p| p.name() == "check").unwrap();
    assert_eq!(program.test_run(ProgramInput::default()).unwrap().return_value, 1);
    let value = frames.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    u16::from_ne_bytes(value[COUNT..COUNT + 2].try_into().unwrap())
}

/// Whatever size of a segment a guest claims.
#[test]
fn segments_are_counted_by_the_payload() {
    let object = load(&Flow::default());
    for (vlans, v6) in [(0, false), (1, true)] {
        let of = |proto, options, beyond, size| {
            let frame = Frame { vlans, v6, proto, ..DATAGRAM };
            let bytes = match proto {
                6 => Sent { frame, seq: 1, ack: 1, options, flags: Segment::ACK, more: 0 }.bytes(),
                _ => frame.bytes(),
            };
            segments(&object, &bytes, beyond, size)
        };
        for (beyond, size, right) in [
            (0, 0, 1),
            (30_000, 0, 1),
            (1448, 1448, 1),
            (1449, 1448, 2),
            (2896, 1448, 2),
            (30_000, 1448, 21),
            (65_000, 65_535, 1),
            (65_000, 1, 65_000),
            (500_000, 1, 65_535),
        ] {
            assert_eq!(of(6, 0, beyond, size), right, "TCP, {beyond} of {size}");
            // A test's datagram has 12 bytes of payload, and its linear part has them.
            assert_eq!(of(17, 0, beyond.saturating_sub(12), size), right, "UDP, {beyond} of {size}");
        }
        // A header that claims options beyond the frame has no payload.
        assert_eq!(of(6, 10, 0, 1), 1);
        assert_eq!(of(6, 10, 41, 1), 1);
        assert_eq!(of(6, 10, 42, 1), 2);
        // What has no segments in this sense has none, whatever is claimed.
        assert_eq!(of(1, 0, 30_000, 1448), 1);
    }
}
