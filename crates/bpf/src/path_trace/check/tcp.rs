//! What the kernel says of segments of TCP, against a reference.

use super::types::{role, segment_flag};
use super::{DATAGRAM, Frame, Object, address, ask, load_matching};
use crate::path_trace::types;
use libbpf_rs::{MapCore, MapFlags};
use proptest::prelude::*;
use std::collections::HashMap;
use teiji_model::event::Segment;
use teiji_model::flow::{End, Flow, Matching, Port};

/// A segment.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) frame: Frame,
    pub(super) seq: u32,
    pub(super) ack: u32,
    /// Words of options in the header, as it claims.
    pub(super) options: u8,
    pub(super) flags: u8,
    /// What the IP header says of the length after it, beyond what is there: less for one whose end is missing, more for
    /// one that is to be cut into segments.
    pub(super) more: i16,
}

/// Where the transport header of a frame begins, and where the IP header has its length.
pub(super) fn places(f: &Frame) -> (usize, usize) {
    let ip = 14 + 4 * usize::from(f.vlans);
    if f.v6 { (ip + 40, ip + 4) } else { (ip + 20 + 4 * usize::from(f.options), ip + 2) }
}

impl Sent {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut b = self.frame.bytes();
        let (l4, length) = places(&self.frame);
        b[l4 + 4..l4 + 8].copy_from_slice(&self.seq.to_be_bytes());
        b[l4 + 8..l4 + 12].copy_from_slice(&self.ack.to_be_bytes());
        b[l4 + 12] = (5 + self.options) << 4;
        b[l4 + 13] = self.flags;
        let said = u16::from_be_bytes([b[length], b[length + 1]]).saturating_add_signed(self.more);
        b[length..length + 2].copy_from_slice(&said.to_be_bytes());
        b
    }

    /// What the kernel should say.
    fn reference(&self, flow: &Flow) -> Segment {
        let f = &self.frame;
        // What `Frame::bytes` makes: 20 bytes, and the payload.
        let headers = if f.v6 { 0 } else { 20 + 4 * i32::from(f.options) };
        let whole = (headers + 20 + i32::from(f.payload) + i32::from(self.more)).max(0);
        let payload = (whole - headers).max(0) - 4 * (5 + i32::from(self.options));
        let (guest, other) = if f.to_guest { (f.dport, f.sport) } else { (f.sport, f.dport) };
        let mut flags = self.flags & (Segment::FIN | Segment::SYN | Segment::RST | Segment::ACK);
        if flow.ports.iter().any(|p| p.end != End::Src && p.port == guest) {
            flags |= Segment::PORT_OF_GUEST;
        }
        if flow.ports.iter().any(|p| p.end == End::Any && p.port == other) {
            flags |= Segment::PORT_OF_OTHER;
        }
        Segment { seq: self.seq, ack: self.ack, payload: payload.clamp(0, 65_535) as u16, flags }
    }
}

prop_compose! {
    pub(super) fn sent()(
        vlans in 0u8..3, v6: bool, src in 0u8..4, dst in 4u8..8, sport in 1u16..4, dport in 1u16..4, ip_options in 0u8..3,
        payload: u8, to_guest: bool, seq: u32, ack: u32, options in 0u8..11, flags: u8,
        more in prop::sample::select(vec![0i16, 0, 0, -30, 1400, 32_000]),
    ) -> Sent {
        let frame = Frame {
            vlans, v6, src, dst, proto: 6, sport, dport, options: ip_options, fragment: 0x4000, payload, to_guest,
        };
        Sent { frame, seq, ack, options, flags, more }
    }
}

/// What the kernel says of the frame that it was asked about last.
fn segment(object: &Object) -> Segment {
    const AT: usize = 40 + 2048;
    let frames = crate::object::map(object, "frames").unwrap();
    let value = frames.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    let s: types::segment = crate::object::value_of(&value[AT..]);
    Segment { seq: s.seq, ack: s.ack, payload: s.payload, flags: s.flags }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn segments_are_read_as_the_reference_reads_them(
        segments in prop::collection::vec(sent(), 40), port in 1u16..4,
        end in prop::sample::select(vec![End::Any, End::Src, End::Dst]),
    ) {
        let flow = Flow { ports: vec![Port { end, port }], ..Flow::default() };
        let object = load_matching(&flow, Matching::Tcp).0;
        let mut connections = HashMap::new();
        let mut keys = HashMap::new();
        for s in &segments {
            let found = ask(&object, &s.bytes(), s.frame.to_guest);
            prop_assert_eq!(found.is_some(), s.frame.passes(&flow), "{:?}", s);
            let Some(found) = found else { continue };
            prop_assert_eq!(role(found.role.into()), role::ROLE_SEGMENT, "{:?}", s);
            prop_assert_eq!(segment(&object), s.reference(&flow), "{:?}", s);
            // Both directions of a connection have one key, and no other connection has it.
            let f = &s.frame;
            let mut ends = [(address(f.v6, f.src), f.sport), (address(f.v6, f.dst), f.dport)];
            ends.sort();
            prop_assert_eq!(*connections.entry(ends).or_insert(found.key), found.key, "{:?}", s);
            prop_assert_eq!(*keys.entry(found.key).or_insert(ends), ends, "{:?}", s);
        }
    }
}

/// Without that matching nothing is said of segments, and of other protocols nothing with it.
#[test]
fn only_segments_are_segments() {
    let frame = |proto| Frame { proto, payload: 40, ..DATAGRAM };
    for (matching, proto, right) in [
        (Matching::Tcp, 6, role::ROLE_SEGMENT),
        (Matching::Tcp, 17, role::ROLE_NONE),
        (Matching::Tcp, 1, role::ROLE_NONE),
        (Matching::Dns, 6, role::ROLE_NONE),
        (Matching::None, 6, role::ROLE_NONE),
    ] {
        let object = load_matching(&Flow::default(), matching).0;
        let found = ask(&object, &frame(proto).bytes(), true).unwrap();
        assert_eq!(role(found.role.into()), right, "{matching} {proto}");
        assert_eq!(found.key != 0, right == role::ROLE_SEGMENT, "{matching} {proto}");
    }
    let names = [segment_flag::SEGMENT_SYN, segment_flag::SEGMENT_ACK].map(|flag| flag.0 as u8);
    assert_eq!(names, [Segment::SYN, Segment::ACK]);
}
