//! The kernel's hashes: against a reference, against pairs of packets that are made to collide, and against what changes on
//! a packet's way.

use super::types::role;
use super::{DATAGRAM, Frame, Identity, ask, frame, load, load_reading, types};
use proptest::prelude::*;
use std::net::IpAddr;
use teiji_model::flow::{Flow, Matching};

/// Where the words of a packet have their secrets.
const WHAT: usize = 8;
const ID: usize = 10;
const BODY: usize = 12;

type Secret = [[u64; 28]; 2];

/// The two sums of pair-multiply-shift.
#[derive(Clone)]
struct Sums<'a>(&'a Secret, [u64; 2]);

impl Sums<'_> {
    fn add(&mut self, offset: usize, even: u32, odd: u32) {
        for (secret, sum) in self.0.iter().zip(&mut self.1) {
            let product = secret[offset]
                .wrapping_add(odd.into())
                .wrapping_mul(secret[offset + 1].wrapping_add(even.into()));
            *sum = sum.wrapping_add(product);
        }
    }

    fn ends(&mut self, first: IpAddr, last: IpAddr) {
        let both = [words(first), words(last)].concat();
        both.chunks(2).enumerate().for_each(|(i, w)| self.add(2 * i, w[0], w[1]));
    }

    fn hash(&self) -> u64 {
        let [a, b] = self.1;
        a >> 32 << 32 | b >> 32
    }
}

/// An address as it lies in a packet.
fn words(addr: IpAddr) -> Vec<u32> {
    let octets = match addr {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    };
    octets.chunks(4).map(|c| u32::from_ne_bytes(c.try_into().unwrap())).collect()
}

/// What the kernel should say of a whole frame.
fn reference(secret: &Secret, frame: &Frame) -> Identity {
    let bytes = frame.bytes();
    let h = frame.headers();
    let (src, dst) = (h.src, h.dst);
    let ip = 14 + 4 * usize::from(frame.vlans);
    let l4 = ip + if frame.v6 { 40 } else { 20 + 4 * usize::from(frame.options) };
    let be16 = |at: usize| u32::from(u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap()));
    let ne16 = |at: usize| u32::from(u16::from_ne_bytes(bytes[at..at + 2].try_into().unwrap()));
    let ne32 = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    let (version, len, id) = if frame.v6 {
        (6, be16(ip + 4), ne32(ip) & 0x000f_ffff_u32.to_be())
    } else {
        (4, be16(ip + 2), ne16(ip + 4) << 16 | ne16(ip + 6) & u32::from(0x1fff_u16.to_be()))
    };

    // Of long segments of TCP, what all but the last segment of a large packet do not have in common with it is left out.
    let long = frame.proto == 6 && !frame.later_fragment() && bytes.len() - l4 > 255;
    let mut sums = Sums(secret, [0; 2]);
    let (mut ports, mut flags, mut key, mut part) = (0, 0, 0, role::ROLE_NONE);
    let key_of = |ports: Option<(u16, u16)>, what: u32, id: u32, mut sums: Sums<'_>| {
        let (sport, dport) = ports.unwrap_or_default();
        let less = (words(src), sport) < (words(dst), dport);
        let (first, last) = if less { ((src, sport), (dst, dport)) } else { ((dst, dport), (src, sport)) };
        sums.ends(first.0, last.0);
        sums.add(WHAT, what, u32::from(first.1) << 16 | u32::from(last.1));
        sums.add(ID, id, 0);
        sums.hash()
    };
    match frame.proto {
        _ if frame.later_fragment() => {}
        17 => {
            let mut payload = [0; 64];
            let n = usize::from(frame.payload).min(64);
            payload[..n].copy_from_slice(&bytes[l4 + 8..][..n]);
            for (i, pair) in payload.chunks(8).enumerate() {
                let word = |at: usize| u32::from_ne_bytes(pair[at..at + 4].try_into().unwrap());
                sums.add(BODY + 2 * i, word(0), word(4));
            }
            ports = be16(l4) << 16 | be16(l4 + 2);
            key = key_of(Some((frame.sport, frame.dport)), 17 << 16 | ne16(l4 + 4), 0, sums.clone());
            part = role::ROLE_EITHER;
        }
        6 => {
            ports = be16(l4) << 16 | be16(l4 + 2);
            flags = ne16(l4 + 12);
            if long {
                flags &= !u32::from(0x0009_u16.to_be());
            }
            sums.add(BODY, ne32(l4 + 4), ne32(l4 + 8));
        }
        1 | 58 => {
            let (kind, code) = (u32::from(bytes[l4]), u32::from(bytes[l4 + 1]));
            flags = kind << 24 | code << 16 | ne16(l4 + 2);
            ports = ne16(l4 + 4) << 16 | ne16(l4 + 6);
            if if frame.proto == 1 { [0, 8].contains(&kind) } else { [128, 129].contains(&kind) } {
                key = key_of(None, 1 << 16, ports, sums.clone());
                part = if [8, 128].contains(&kind) { role::ROLE_REQUEST } else { role::ROLE_FINAL };
            }
        }
        _ => {}
    }
    sums.ends(src, dst);
    sums.add(WHAT, version << 28 | u32::from(frame.proto) << 16 | if long { 0 } else { len }, ports);
    sums.add(ID, id, flags);
    Identity { fingerprint: sums.hash().max(1), key, role: part.0 as u8 }
}

/// A datagram with as much payload as is hashed.
fn datagram(v6: bool) -> Frame {
    Frame { v6, payload: 64, ..DATAGRAM }
}

/// Where the IP header, the source's address and the payload begin.
fn offsets(v6: bool) -> [usize; 3] {
    if v6 { [14, 22, 62] } else { [14, 26, 42] }
}

/// Bit `bit` of the 64-bit number at `at`, as the kernel half reads it.
fn flip(bytes: &mut [u8], at: usize, bit: usize) {
    bytes[at + bit / 8] ^= 1 << (bit % 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_kernel_hashes_as_the_reference_does(frames in prop::collection::vec(frame(), 50), loads: bool) {
        let (object, settings) = load_reading(&Flow::default(), Matching::Echo, loads);
        let types::settings { secret, .. } = settings;
        for frame in &frames {
            let message = ask(&object, &frame.bytes(), frame.to_guest);
            prop_assert_eq!(message, Some(reference(&secret, frame)), "{:?}", frame);
        }
    }

    /// Whatever two datagrams differ in of what is hashed, they have other fingerprints, and others of their kind.
    #[test]
    fn different_datagrams_differ(v6: bool, flips in prop::collection::btree_set((0usize..3, 0usize..64, 0usize..8), 1..12)) {
        let object = load(&Flow::default());
        let whole = datagram(v6).bytes();
        let mut other = whole.clone();
        let [_, src, payload] = offsets(v6);
        let ends = if v6 { 32 } else { 8 };
        for (what, byte, bit) in flips {
            match what {
                0 => other[src + byte % ends] ^= 1 << bit,
                1 => other[src + ends + byte % 4] ^= 1 << bit,
                _ => other[payload + byte] ^= 1 << bit,
            }
        }
        // Two flips of one bit cancel each other out: bytes are taken modulo the length of a field.
        prop_assume!(whole != other);
        let (a, b) = (ask(&object, &whole, true).unwrap(), ask(&object, &other, true).unwrap());
        prop_assert_ne!(a.fingerprint, b.fingerprint);
        prop_assert_ne!(a.key, b.key);
    }
}

/// A hash that multiplies by an odd constant and folds its upper half onto its lower one carries a flip of the highest bit
/// on as one of bits 63 and 31, whatever its seed: the next word can take it back.
#[test]
fn no_two_datagrams_can_be_made_that_collide_for_every_secret() {
    for _ in 0..64 {
        let object = load(&Flow::default());
        for v6 in [false, true] {
            let whole = datagram(v6).bytes();
            let before = ask(&object, &whole, true).unwrap();
            let [_, src, payload] = offsets(v6);
            let words =
                (0..7).map(|i| payload + 8 * i).chain(v6.then_some(src)).chain(v6.then_some(src + 16));
            for at in words {
                let mut made = whole.clone();
                if at < payload {
                    // an address's first word of 32 bits was the upper half
                    for (offset, bit) in [(at, 31), (at + 8, 31), (at + 12, 31)] {
                        flip(&mut made, offset, bit);
                    }
                } else {
                    for (offset, bit) in [(at, 63), (at + 8, 63), (at + 8, 31)] {
                        flip(&mut made, offset, bit);
                    }
                }
                let after = ask(&object, &made, true).unwrap();
                assert_ne!(before.fingerprint, after.fingerprint, "byte {at} of {whole:x?}");
                assert_ne!(before.key, after.key, "byte {at} of {whole:x?}");
            }
        }
    }
}

/// Queues and policers mark packets on their way: DSCP and ECN.
#[test]
fn a_packet_that_is_marked_on_its_way_is_the_same_packet() {
    let object = load(&Flow::default());
    for v6 in [false, true] {
        let whole = datagram(v6).bytes();
        let before = ask(&object, &whole, true).unwrap();
        let [ip, ..] = offsets(v6);
        for bit in 0..8 {
            let mut marked = whole.clone();
            if v6 {
                // the traffic class lies across two bytes, after the version
                let class = 1u16 << (bit + 4);
                marked[ip] ^= (class >> 8) as u8;
                marked[ip + 1] ^= class as u8;
            } else {
                marked[ip + 1] ^= 1 << bit;
            }
            assert_eq!(
                ask(&object, &marked, true),
                Some(before),
                "bit {bit} of the traffic class, IPv6: {v6}"
            );
        }
    }
    // A flow label belongs to the packet.
    let mut labelled = datagram(true).bytes();
    labelled[16] ^= 1;
    let plain = ask(&object, &datagram(true).bytes(), true).unwrap();
    assert_ne!(ask(&object, &labelled, true).unwrap().fingerprint, plain.fingerprint);
}

#[test]
fn a_response_has_its_requests_key_and_no_other() {
    let object = load(&Flow::default());
    for v6 in [false, true] {
        let request = datagram(v6);
        let response = Frame {
            src: request.dst,
            dst: request.src,
            sport: request.dport,
            dport: request.sport,
            ..request.clone()
        };
        let of = |frame: &Frame| ask(&object, &frame.bytes(), true).unwrap();
        assert_eq!(of(&request).key, of(&response).key);
        assert_ne!(of(&request).fingerprint, of(&response).fingerprint);
        // The ends exchanged in part are others.
        let crossed = Frame { sport: request.dport, dport: request.sport, ..request.clone() };
        assert_ne!(of(&request).key, of(&crossed).key);
    }
}
