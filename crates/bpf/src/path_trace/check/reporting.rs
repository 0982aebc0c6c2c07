//! Connections by which guests report are not followed; everything else is, as before.

use super::super::targets::add_end;
use super::super::{bytes_of, map};
use super::*;
use std::net::SocketAddr;
use teiji_model::stream::StreamId;

/// A host on which guests report on these ends.
fn reporting(flow: &Flow, ends: &[SocketAddr]) -> Object {
    let object = load(flow);
    let mut followed = Box::new(types::followed::default());
    assert!(ends.iter().all(|end| add_end(&mut followed, *end)));
    let names: Vec<_> = object.maps().map(|m| m.name().to_string_lossy().into_owned()).collect();
    let place = map(&object, names.iter().find(|name| name.ends_with(".bss.followed")).unwrap()).unwrap();
    place.update(&0u32.to_ne_bytes(), bytes_of(followed.as_ref()), MapFlags::ANY).unwrap();
    object
}

/// Whether a frame is one of such a connection.
fn reports(frame: &Frame, ends: &[SocketAddr]) -> bool {
    let (host, port) = if frame.to_guest { (frame.dst, frame.dport) } else { (frame.src, frame.sport) };
    let guest = SocketAddr::new(address(frame.v6, host), port);
    frame.proto == 6 && !frame.later_fragment() && ends.contains(&guest)
}

prop_compose! {
    fn end_of_guest()(v6: bool, host in 0u8..8, port in 1u16..4) -> SocketAddr {
        SocketAddr::new(address(v6, host), port)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_a_guest_reports_by_is_left_out_and_nothing_else(
        flow in flow(),
        ends in prop::collection::vec(end_of_guest(), 1..9),
        frames in prop::collection::vec(frame(), 50),
    ) {
        let object = reporting(&flow, &ends);
        for frame in &frames {
            let passed = ask(&object, &frame.bytes(), frame.to_guest).is_some();
            let should = frame.passes(&flow) && !reports(frame, &ends);
            prop_assert_eq!(passed, should, "{} {:?} {:?}", flow, ends, frame);
        }
    }
}

/// Both directions of one connection, and others that differ from it in one thing.
#[test]
fn only_the_guests_end_counts() {
    let ends = [SocketAddr::new(address(false, 2), 3)];
    let object = reporting(&Flow::default(), &ends);
    let request = Frame { proto: 6, dst: 2, dport: 3, sport: 1, src: 1, to_guest: true, ..DATAGRAM };
    let answer = Frame { src: 2, sport: 3, dst: 1, dport: 1, to_guest: false, ..request.clone() };
    let followed = |frame: &Frame| ask(&object, &frame.bytes(), frame.to_guest).is_some();
    assert!(!followed(&request) && !followed(&answer));
    for other in [
        Frame { to_guest: false, ..request.clone() },
        Frame { to_guest: true, ..answer.clone() },
        Frame { dport: 2, ..request.clone() },
        Frame { dst: 3, ..request.clone() },
        Frame { v6: true, ..request.clone() },
        Frame { proto: 17, ..request.clone() },
    ] {
        assert!(followed(&other), "{other:?}");
    }
}

#[test]
fn there_is_room_for_every_guest_that_can_report() {
    let mut followed = Box::new(types::followed::default());
    let ends = (1..).map(|port| SocketAddr::new(address(true, 2), port));
    let added = ends.take_while(|end| add_end(&mut followed, *end)).count();
    assert_eq!(added, StreamId::MOST - 1);
}
