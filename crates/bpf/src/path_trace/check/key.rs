//! Which datagrams have a key at a place in their payload, and which keys are equal: against a reference.

use super::types::role;
use super::{DATAGRAM, Frame, address, ask, load_matching};
use proptest::prelude::*;
use std::collections::HashMap;
use teiji_model::flow::{Flow, Key, Matching};

/// A datagram.
#[derive(Clone, Debug)]
struct Sent {
    frame: Frame,
    payload: Vec<u8>,
}

impl Sent {
    fn bytes(&self) -> Vec<u8> {
        let f = &self.frame;
        let mut b = f.bytes();
        let ip = 14 + 4 * usize::from(f.vlans);
        let (l4, length, before) = if f.v6 { (ip + 40, ip + 4, 0) } else { (ip + 20, ip + 2, 20) };
        b.truncate(l4 + 8);
        let all = 8 + self.payload.len() as u16;
        b[l4 + 4..l4 + 6].copy_from_slice(&all.to_be_bytes());
        b[length..length + 2].copy_from_slice(&(all + before).to_be_bytes());
        b.extend(&self.payload);
        b.extend([0x77; 4]); // as a short frame is padded
        b
    }
}

prop_compose! {
    /// Few payloads, so that keys are often equal.
    fn sent()(
        vlans in 0u8..3, v6: bool, src in 0u8..3, dst in 4u8..7, sport in 1u16..3, dport in 1u16..3, to_guest: bool,
        payload in prop::collection::vec(0u8..2, 0..24),
    ) -> Sent {
        let frame = Frame {
            vlans, v6, src, dst, proto: 17, sport, dport, options: 0, fragment: 0, payload: 0, to_guest,
        };
        Sent { frame, payload }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn datagrams_with_the_same_bytes_at_the_place_have_the_same_key(
        offset in 0u16..12, len in 1u8..=16, datagrams in prop::collection::vec(sent(), 60),
    ) {
        let object = load_matching(&Flow::default(), Matching::Key(Key::new(offset, len).unwrap())).0;
        let (mut keys, mut common) = (HashMap::new(), HashMap::new());
        for d in &datagrams {
            let found = ask(&object, &d.bytes(), d.frame.to_guest).unwrap();
            let at = usize::from(offset);
            let Some(bytes) = d.payload.get(at..at + usize::from(len)) else {
                prop_assert_eq!(role(found.role.into()), role::ROLE_NONE, "{:?}", d);
                continue;
            };
            prop_assert_eq!(role(found.role.into()), role::ROLE_EITHER, "{:?}", d);
            let f = &d.frame;
            let mut ends = [(address(f.v6, f.src), f.sport), (address(f.v6, f.dst), f.dport)];
            ends.sort();
            let right = (ends, bytes.to_vec());
            prop_assert_eq!(*keys.entry(right.clone()).or_insert(found.key), found.key, "{:?}", d);
            prop_assert_eq!(common.entry(found.key).or_insert(right.clone()), &right, "{:?}", d);
        }
    }
}

#[test]
fn every_byte_of_a_key_counts_and_no_other() {
    let object = load_matching(&Flow::default(), Matching::Key(Key::new(3, 16).unwrap())).0;
    let frame = DATAGRAM;
    let key =
        |payload: Vec<u8>| ask(&object, &Sent { frame: frame.clone(), payload }.bytes(), true).unwrap().key;
    let plain = key(vec![0; 30]);
    for at in 0..30 {
        for bit in 0..8 {
            let mut other = vec![0; 30];
            other[at] = 1 << bit;
            assert_eq!(key(other) != plain, (3..19).contains(&at), "bit {bit} of byte {at}");
        }
    }
    assert_eq!(key(vec![0; 19]), plain);
}
