//! Which messages the kernel takes for queries and responses of DNS, and what it gives them in common: against a reference.

use super::types::role;
use super::{DATAGRAM, Frame, Object, ask, load_matching};
use proptest::prelude::*;
use std::collections::HashMap;
use teiji_model::flow::{Flow, Matching};

/// A frame with a datagram between the guest and one client: from it, or to it.
fn frame(v6: bool, from_client: bool, payload: &[u8]) -> Vec<u8> {
    let (src, dst, sport, dport) = if from_client { (1, 2, 40_000, 53) } else { (2, 1, 53, 40_000) };
    let whole = Frame { v6, src, dst, sport, dport, to_guest: from_client, ..DATAGRAM };
    let mut bytes = whole.bytes();
    let (l4, ip_length, before) = if v6 { (54, 18, 0) } else { (34, 16, 20) };
    bytes.truncate(l4 + 8);
    let length = 8 + payload.len() as u16;
    bytes[l4 + 4..l4 + 6].copy_from_slice(&length.to_be_bytes());
    bytes[ip_length..ip_length + 2].copy_from_slice(&(length + before).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A message with one question. `flags`: with QR and opcode.
fn message(id: u16, flags: u16, labels: &[Vec<u8>], tail: [u16; 2]) -> Vec<u8> {
    let mut m = Vec::new();
    [id, flags, 1, 0, 0, 1].iter().for_each(|n| m.extend(n.to_be_bytes()));
    for label in labels {
        m.push(label.len() as u8);
        m.extend(label);
    }
    m.push(0);
    tail.iter().for_each(|n| m.extend(n.to_be_bytes()));
    m.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]); // EDNS
    m
}

/// Whether a message is a response, and what it has in common with its counterpart; `None` if it takes part in no request.
fn reference(m: &[u8]) -> Option<(bool, Vec<u8>)> {
    let word = |at: usize| Some(u16::from_be_bytes(m.get(at..at + 2)?.try_into().ok()?));
    if m.len() < 12 || word(4)? != 1 || word(2)? & 0x7800 != 0 {
        return None;
    }
    let mut at = 12;
    loop {
        let length = usize::from(*m.get(at)?);
        if at - 12 >= 255 || length > 63 {
            return None;
        }
        at += 1 + length;
        if length == 0 {
            break;
        }
    }
    let common = [&m[..2], &m[12..at].to_ascii_lowercase(), m.get(at..at + 4)?].concat();
    Some((word(2)? & 0x8000 != 0, common))
}

/// The kernel's answer for a message: its role, and its key.
fn part(object: &Object, v6: bool, from_client: bool, m: &[u8]) -> (role, u64) {
    let found = ask(object, &frame(v6, from_client, m), from_client).unwrap();
    (role(found.role.into()), found.key)
}

fn dns() -> Object {
    load_matching(&Flow::default(), Matching::Dns).0
}

fn label() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop::sample::select(b"aAzZ@[`{0-\0\x01\xc1\xe1".to_vec());
    prop_oneof![9 => prop::collection::vec(byte, 1..4), 1 => prop::collection::vec(any::<u8>(), 50..64)]
}

prop_compose! {
    fn any_message()(
        id in 0u16..2, response: bool, labels in prop::collection::vec(label(), 0..5), kind in prop::sample::select(vec![1u16, 65, 97]),
        class in 1u16..3, cut in prop::option::weighted(0.2, 0usize..60), edit in prop::option::weighted(0.3, (2usize..40, any::<u8>())),
    ) -> Vec<u8> {
        let mut m = message(id, if response { 0x8180 } else { 0x0100 }, &labels, [kind, class]);
        if let Some((at, byte)) = edit && at < m.len() { m[at] = byte }
        m.truncate(cut.unwrap_or(m.len()));
        m
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Two messages have one key exactly if the reference says that they have the same in common.
    #[test]
    fn the_kernel_matches_what_the_reference_does(messages in prop::collection::vec(any_message(), 100), v6: bool) {
        let object = dns();
        let (mut keys, mut common) = (HashMap::new(), HashMap::new());
        for m in &messages {
            let expected = reference(m);
            for from_client in [true, false] {
                let (found, key) = part(&object, v6, from_client, m);
                match &expected {
                    None => prop_assert_eq!(found, role::ROLE_NONE, "{:x?}", m),
                    Some((response, same)) => {
                        let right = if *response { role::ROLE_FINAL } else { role::ROLE_REQUEST };
                        prop_assert_eq!(found, right, "{:x?}", m);
                        prop_assert_eq!(*keys.entry(same.clone()).or_insert(key), key, "{:x?}", m);
                        prop_assert_eq!(common.entry(key).or_insert(same.clone()), same, "{:x?}", m);
                    }
                }
            }
        }
    }

    #[test]
    fn no_bytes_are_refused_by_the_verifier_or_taken_for_others(m in prop::collection::vec(any::<u8>(), 0..600), v6: bool) {
        let object = dns();
        prop_assert_eq!(part(&object, v6, true, &m).0 == role::ROLE_NONE, reference(&m).is_none(), "{:x?}", m);
    }
}

#[test]
fn the_longest_name_is_read_and_no_longer_one() {
    let object = dns();
    let named = |lengths: &[usize]| {
        let labels: Vec<Vec<u8>> = lengths.iter().map(|n| vec![b'x'; *n]).collect();
        message(7, 0, &labels, [1, 1])
    };
    let ends = [named(&[63, 63, 63, 61]), named(&[1; 127]), named(&[])];
    for m in &ends {
        assert_eq!(part(&object, false, true, m).0, role::ROLE_REQUEST, "{} bytes", m.len());
        // Every byte of it counts.
        for at in (0..2).chain(12..m.len() - 11) {
            let mut other = m.clone();
            other[at] ^= 0x80;
            assert_ne!(part(&object, false, true, &other), part(&object, false, true, m), "byte {at}");
        }
    }
    for m in [named(&[63, 63, 63, 62]), named(&[1; 128]), named(&[64])] {
        assert_eq!(part(&object, false, true, &m).0, role::ROLE_NONE, "{} bytes", m.len());
    }
    // A name that is compressed, and one of which the rest is missing.
    let mut pointer = named(&[3]);
    pointer[12] = 0xc0;
    assert_eq!(part(&object, false, true, &pointer).0, role::ROLE_NONE);
    let whole = named(&[3, 3]);
    for cut in 0..whole.len() {
        let complete = cut >= whole.len() - 11;
        assert_eq!(
            part(&object, false, true, &whole[..cut]).0 == role::ROLE_REQUEST,
            complete,
            "{cut} bytes"
        );
    }
}

#[test]
fn the_same_question_of_others_is_another_request() {
    let object = dns();
    let m = message(7, 0, &[b"example".to_vec()], [1, 1]);
    let of = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = frame(false, true, &m);
        change(&mut bytes);
        ask(&object, &bytes, true).unwrap().key
    };
    let keys =
        [of(&|_| {}), of(&|b| b[29] ^= 1), of(&|b| b[33] ^= 1), of(&|b| b[35] ^= 1), of(&|b| b[37] ^= 1)];
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key), "{i}");
    }
}
