//! What single segments are, and random connections against what their two sides did.

use super::*;
use proptest::prelude::*;

const SYN: u8 = Segment::SYN;
const ACK: u8 = Segment::ACK;
const FIN: u8 = Segment::FIN;
const RST: u8 = Segment::RST;

/// A connection whose segments are told one after another.
struct Told {
    connections: Connections,
    lost: LostWindows,
    now: u64,
    /// The guest is the client; otherwise it is the server.
    guest_is_client: bool,
}

impl Told {
    fn new() -> Told {
        let connections = Connections::new(Seeded::new(1));
        Told { connections, lost: LostWindows::default(), now: 0, guest_is_client: false }
    }

    /// A segment of the client, or of the server.
    fn flags(&mut self, of_client: bool, seq: u32, ack: u32, payload: u16, flags: u8) -> SegmentOutcome {
        self.now += 1_000_000;
        let s = Segment { seq, ack, payload, flags };
        self.connections.segment(self.now, (0, 7), &s, of_client != self.guest_is_client, &self.lost)
    }

    /// A segment of the client.
    fn asks(&mut self, seq: u32, ack: u32, payload: u16) -> Part {
        self.flags(true, seq, ack, payload, ACK).part
    }

    /// A segment of the server.
    fn says(&mut self, seq: u32, ack: u32, payload: u16) -> Part {
        self.flags(false, seq, ack, payload, ACK).part
    }

    /// The client's first byte is 101, the server's 201.
    fn open() -> Told {
        let mut t = Told::new();
        assert_eq!(t.flags(true, 100, 0, 0, SYN).news, Some(News::Seen { client: true }));
        t.flags(false, 200, 101, 0, SYN | ACK);
        assert_eq!(t.asks(101, 201, 0), Part::None);
        t
    }
}

/// The client acknowledges beyond it: its sequence numbers show that it has sent a request that did not come.
#[test]
fn a_request_that_was_lost_before_the_host_begins_with_its_copy() {
    let mut t = Told::open();
    assert_eq!(t.asks(101, 201, 10), begins(1));
    assert_eq!(t.says(201, 111, 20), answers(1));
    assert_eq!(t.asks(121, 221, 0), Part::None);
    assert_eq!(t.asks(111, 221, 10), begins(2));
    assert_eq!(t.says(221, 121, 20), answers(2));
    // One that came unseen: the server has acknowledged it.
    assert_eq!(t.asks(121, 241, 0), Part::None);
    t.says(241, 131, 0);
    assert_eq!(t.asks(131, 241, 0), Part::None);
    assert_eq!(t.asks(131, 241, 10), begins(3));
}

/// The first request to the guest.
fn no_answer(why: NoAnswer) -> Ended {
    Ended { vm: 0, key: 1, guest_is_client: false, why }
}

fn begins(key: u64) -> Part {
    Part::Begins { key, validity: Validity::Valid }
}

fn answers(key: u64) -> Part {
    Part::Answers { key, validity: Validity::Valid }
}

fn interleaved() -> Validity {
    Validity::ambiguous(Reason::Interleaved)
}

fn missing() -> Validity {
    Validity::incomplete(Reason::SegmentMissing)
}

#[test]
fn sides_that_take_turns_have_requests_and_answers() {
    let mut t = Told::open();
    assert_eq!(t.asks(101, 201, 10), begins(1));
    assert_eq!(t.says(201, 111, 0), Part::None, "an acknowledgement alone");
    assert_eq!(t.says(201, 111, 50), answers(1));
    assert_eq!(t.says(251, 111, 50), Part::None, "more of it");
    assert_eq!(t.asks(111, 251, 0), Part::None);
    assert_eq!(t.asks(111, 301, 5), begins(2));
    // Two segments, the second while the first is being acknowledged.
    let more = Part::Continues { key: 2, validity: Validity::Valid, second: true };
    assert_eq!(t.asks(116, 301, 1000), more);
    assert_eq!(t.says(301, 116, 0), Part::None);
    assert_eq!(t.asks(1116, 301, 1000), Part::Continues { key: 2, validity: Validity::Valid, second: false });
    // An answer that begins before all of it has been received.
    assert_eq!(t.says(301, 1116, 9), answers(2));
}

#[test]
fn a_server_that_speaks_first_answers_nothing() {
    let mut t = Told::open();
    assert_eq!(t.says(201, 101, 40), Part::None);
    assert_eq!(t.asks(101, 241, 10), begins(1));
    assert_eq!(t.says(201, 101, 40), Part::None, "its greeting again");
    assert_eq!(t.says(241, 111, 40), answers(1));
}

#[test]
fn what_was_there_before_is_no_request() {
    let mut t = Told::open();
    assert_eq!(t.asks(101, 201, 10), begins(1));
    assert_eq!(t.asks(101, 201, 10), Part::Again { key: Some(1) });
    assert_eq!(t.says(201, 111, 5), answers(1));
    assert_eq!(t.asks(101, 201, 10), Part::Again { key: None }, "after the answer");
    assert_eq!(t.says(201, 111, 5), Part::None, "the answer again");
    // Keep-alive probes: no payload, or the last byte.
    assert_eq!(t.asks(110, 206, 0), Part::None);
    assert_eq!(t.asks(110, 206, 1), Part::None);
    assert_eq!(t.says(205, 111, 1), Part::None);
    assert_eq!(t.asks(111, 206, 10), begins(2));
    // Sent again with more.
    assert_eq!(t.asks(111, 206, 20), Part::Continues { key: 2, validity: Validity::Valid, second: true });
    // A window of 0 is probed with the first byte of what follows.
    assert_eq!(t.says(206, 131, 1), answers(2));
    assert_eq!(t.asks(131, 207, 1), begins(3));
    assert_eq!(t.says(207, 131, 0), Part::None);
    assert_eq!(t.asks(131, 207, 1), Part::Again { key: Some(3) });
    assert_eq!(t.asks(131, 207, 30), Part::Continues { key: 3, validity: Validity::Valid, second: true });
    assert_eq!(t.says(207, 161, 1), answers(3));
}

#[test]
fn segments_out_of_order_are_known_as_such() {
    let mut t = Told::open();
    assert_eq!(t.asks(111, 201, 10), Part::Begins { key: 1, validity: missing() });
    assert_eq!(t.asks(101, 201, 10), Part::None, "late, not again");
    assert_eq!(t.asks(101, 201, 10), Part::Again { key: Some(1) });
    assert_eq!(t.says(201, 121, 10), answers(1));
    // The second of three is missing, then comes in two pieces.
    assert_eq!(t.asks(121, 211, 10), begins(2));
    assert_eq!(t.asks(151, 211, 10), Part::Continues { key: 2, validity: missing(), second: true });
    assert_eq!([t.asks(141, 211, 10), t.asks(131, 211, 10)], [Part::None; 2]);
    // The beginning of the answer is missing.
    assert_eq!(t.says(221, 161, 10), Part::Answers { key: 2, validity: missing() });
}

#[test]
fn sides_that_do_not_take_turns_are_found_out() {
    // The client has not received the whole answer.
    let mut t = Told::open();
    assert_eq!(
        [t.asks(101, 201, 10), t.says(201, 111, 10), t.says(211, 111, 10)][..2],
        [begins(1), answers(1)]
    );
    let outcome = t.flags(true, 111, 211, 10, ACK);
    assert_eq!(outcome.part, Part::Begins { key: 2, validity: interleaved() });
    assert_eq!(outcome.news, Some(News::Interleaved));
    // From then on nothing is certain: this may answer what the first or the second answer left out.
    assert_eq!(t.says(221, 121, 10), answers(2));
    assert_eq!(t.asks(121, 231, 10), Part::Begins { key: 3, validity: interleaved() });
    // The server has not received all that was asked.
    let mut t = Told::open();
    assert_eq!([t.asks(101, 201, 10), t.asks(111, 201, 10)][0], begins(1));
    assert_eq!(t.says(201, 111, 10), answers(1));
    assert_eq!(t.asks(121, 211, 10), Part::Begins { key: 2, validity: interleaved() });
    // The server speaks on its own account while a request is on its way.
    let mut t = Told::open();
    assert_eq!(t.asks(101, 201, 10), begins(1));
    assert_eq!(t.says(201, 101, 10), Part::Doubts { key: 1, validity: interleaved() });
    assert_eq!(t.says(211, 111, 10), answers(1));
}

#[test]
fn a_connection_ends_with_its_request() {
    let close = |t: &mut Told, to_guest, seq, ack, flags| t.flags(to_guest, seq, ack, 0, flags).ended;
    for (to_guest, seq, ack, flags, ended) in [
        (false, 201, 111, FIN | ACK, true),
        (false, 201, 111, RST | ACK, true),
        (false, 77, 111, RST, false), // not one that the client accepts
        (true, 111, 201, RST, true),
        (true, 9, 201, RST, false),
        (true, 111, 201, FIN | ACK, false), // it may still be answered
        (true, 5000, 0, SYN, true),         // its ports are used again
        (true, 100, 0, SYN, false),         // a late copy of its first segment
    ] {
        let mut t = Told::open();
        t.asks(101, 201, 10);
        let found = close(&mut t, to_guest, seq, ack, flags);
        assert_eq!(found, ended.then_some(no_answer(NoAnswer::Closed)), "{to_guest} {seq} {flags:#x}");
    }
    // A request that comes after the client's last byte was announced, and an answer to it.
    let mut t = Told::open();
    assert_eq!(t.flags(true, 101, 201, 10, ACK | FIN).part, begins(1));
    assert_eq!(t.says(201, 112, 10), answers(1));
    // The answer is all that the server says.
    let mut t = Told::open();
    assert_eq!(t.asks(101, 201, 10), begins(1));
    assert_eq!(t.flags(false, 201, 111, 10, ACK | FIN), SegmentOutcome::from(answers(1)));
    // A request that crosses the server's end.
    assert_eq!(t.asks(111, 211, 10), begins(2));
}

#[test]
fn a_connection_that_was_open_is_followed_once_it_is_at_rest() {
    let mut t = Told::new();
    let of_guest = Segment::PORT_OF_GUEST;
    assert_eq!(t.flags(true, 101, 201, 10, ACK | of_guest).part, Part::None);
    assert_eq!(t.flags(false, 201, 111, 10, ACK | of_guest).part, Part::None);
    assert_eq!(t.flags(true, 111, 211, 10, ACK | of_guest).part, begins(1));
    assert_eq!(t.flags(false, 211, 121, 10, ACK | of_guest).part, answers(1));
    for (flags, news) in [
        (Segment::PORT_OF_GUEST, News::Seen { client: true }),
        (Segment::PORT_OF_OTHER, News::Seen { client: true }),
        (Segment::PORT_OF_GUEST | Segment::PORT_OF_OTHER, News::Seen { client: false }),
        (0, News::Seen { client: false }),
    ] {
        let mut t = Told::new();
        assert_eq!(t.flags(false, 201, 101, 10, ACK | flags).news, Some(news), "{flags:#x}");
    }
}

#[test]
fn what_the_guest_asks_is_told_from_what_it_is_asked() {
    let mut t = Told::new();
    t.guest_is_client = true;
    t.flags(true, 100, 0, 0, SYN);
    t.flags(false, 200, 101, 0, SYN | ACK);
    t.asks(101, 201, 0);
    let asked = t.flags(true, 101, 201, 10, ACK);
    assert!(asked.guest_is_client && asked.part == begins(1), "{asked:?}");
    assert_eq!(t.asks(101, 201, 10), Part::Again { key: Some(1) });
    assert_eq!(t.asks(111, 201, 5), Part::Continues { key: 1, validity: Validity::Valid, second: true });
    let to_guest = Segment { seq: 201, ack: 0, payload: 10, flags: ACK };
    assert_eq!(t.connections.request_of(0, 7, &to_guest), None);
    let answered = t.flags(false, 201, 116, 10, ACK);
    assert!(answered.guest_is_client && answered.part == answers(1), "{answered:?}");
    assert_eq!(t.asks(116, 211, 10), begins(2));
    let closed = t.flags(false, 211, 126, 0, RST | ACK).ended;
    assert_eq!(closed, Some(Ended { vm: 0, key: 2, guest_is_client: true, why: NoAnswer::Closed }));
    // Its ports are used again, for a request to it.
    t.guest_is_client = false;
    t.flags(true, 900, 0, 0, SYN);
    t.flags(false, 700, 901, 0, SYN | ACK);
    assert_eq!([t.asks(901, 701, 10), t.says(701, 911, 10)], [begins(3), answers(3)]);
}

#[test]
fn a_request_may_come_with_the_first_segment() {
    let mut t = Told::new();
    assert_eq!(t.flags(true, 100, 0, 10, SYN).part, begins(1));
    assert_eq!(t.flags(true, 100, 0, 10, SYN).part, Part::Again { key: Some(1) });
    t.flags(false, 200, 101, 0, SYN | ACK); // the server did not take it
    assert_eq!(t.asks(101, 201, 10), Part::Again { key: Some(1) });
    assert_eq!(t.says(201, 111, 10), answers(1));
    assert_eq!(t.asks(111, 211, 10), begins(2));
}

#[test]
fn segments_that_were_not_seen_are_missed() {
    // The whole answer was not seen.
    let mut t = Told::open();
    t.asks(101, 201, 10);
    let outcome = t.flags(true, 111, 251, 10, ACK);
    assert_eq!(outcome.ended, Some(no_answer(NoAnswer::Missed)));
    assert_eq!(outcome.part, Part::Begins { key: 2, validity: missing() });
    assert_eq!(t.says(251, 121, 10), Part::Answers { key: 2, validity: missing() });
    assert_eq!(t.asks(121, 261, 10), begins(3), "then all is known again");
    // What the server acknowledged was not seen because events were lost: no fault of the client.
    let mut t = Told::open();
    t.asks(101, 201, 10);
    assert_eq!(t.says(201, 105, 10), answers(1));
    t.lost.add(t.now, t.now + 1000);
    assert_eq!(
        t.asks(111, 211, 10),
        Part::Begins { key: 2, validity: Validity::incomplete(Reason::EventsLost) }
    );
}

/// However many connections there are, the oldest make room, and their requests are not forgotten silently.
#[test]
fn connections_are_bounded() {
    let mut t = Told::open();
    t.asks(101, 201, 10);
    let s = Segment { seq: 1, ack: 0, payload: 0, flags: SYN };
    let (mut ended, mut given_up) = (Vec::new(), 0);
    for other in 0..2 * MAX_CONNECTIONS as u64 {
        let outcome = t.connections.segment(t.now, (0, 1000 + other), &s, true, &t.lost);
        ended.extend(outcome.ended);
        given_up += usize::from(outcome.given_up);
    }
    assert_eq!(ended, [no_answer(NoAnswer::Evicted)]);
    assert_eq!(given_up, MAX_CONNECTIONS, "those without a request are counted, too");
    assert_eq!(t.says(201, 111, 10), Part::None);
}

/// What happens in a turn: the sizes of the client's and of the server's segments; how many of them are merged into one; what
/// else is seen.
#[derive(Clone, Debug)]
struct Turn {
    asks: Vec<u16>,
    says: Vec<u16>,
    merge: [usize; 2],
    again: bool,
    probe: bool,
    acks_each: bool,
}

prop_compose! {
    fn turn()(
        asks in prop::collection::vec(1u16..3000, 1..5), says in prop::collection::vec(1u16..3000, 1..5),
        merge in [1usize..4, 1usize..4], again: bool, probe: bool, acks_each: bool,
    ) -> Turn {
        Turn { asks, says, merge, again, probe, acks_each }
    }
}

/// Segments next to each other as GRO merges them.
fn merged(sizes: &[u16], most: usize) -> Vec<u16> {
    sizes.chunks(most).map(|c| c.iter().sum()).collect()
}

proptest! {
    /// Whatever the sequence numbers begin with, and however segments are cut: each turn is one request with one answer, the
    /// first segment of each.
    #[test]
    fn each_turn_is_one_request(
        guest_is_client: bool, client: u32, server: u32, turns in prop::collection::vec(turn(), 1..8),
    ) {
        let mut t = Told::new();
        t.guest_is_client = guest_is_client;
        t.flags(true, client, 0, 0, SYN);
        t.flags(false, server, client.wrapping_add(1), 0, SYN | ACK);
        let (mut c, mut s) = (client.wrapping_add(1), server.wrapping_add(1));
        for (key, turn) in (1..).zip(&turns) {
            for (i, n) in merged(&turn.asks, turn.merge[0]).into_iter().enumerate() {
                let right = match i {
                    0 => begins(key),
                    i => Part::Continues { key, validity: Validity::Valid, second: i == 1 },
                };
                prop_assert_eq!(t.asks(c, s, n), right);
                if turn.again {
                    prop_assert_eq!(t.asks(c, s, n), Part::Again { key: Some(key) });
                }
                c = c.wrapping_add(n.into());
                if turn.acks_each {
                    prop_assert_eq!(t.says(s, c, 0), Part::None);
                }
            }
            for (i, n) in merged(&turn.says, turn.merge[1]).into_iter().enumerate() {
                prop_assert_eq!(t.says(s, c, n), if i == 0 { answers(key) } else { Part::None });
                if turn.again {
                    prop_assert_eq!(t.says(s, c, n), Part::None);
                }
                s = s.wrapping_add(n.into());
                if turn.acks_each {
                    prop_assert_eq!(t.asks(c, s, 0), Part::None);
                }
            }
            if turn.probe {
                prop_assert_eq!(t.asks(c.wrapping_sub(1), s, 1), Part::None);
                prop_assert_eq!(t.says(s.wrapping_sub(1), c, 1), Part::None);
            }
        }
    }

    /// Whatever is sent: each request begins once, and no other is answered.
    #[test]
    fn no_answer_without_a_request(segments in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..40, 0u16..8, 0u8..32), 0..300)) {
        let mut t = Told::new();
        let mut open = std::collections::HashSet::new();
        for (to_guest, seq, ack, payload, flags) in segments {
            let outcome = t.flags(to_guest, seq.wrapping_sub(20), ack.wrapping_sub(20), payload, flags);
            if let Some(Ended { key, .. }) = outcome.ended {
                prop_assert!(open.remove(&key));
            }
            let of_client = to_guest != outcome.guest_is_client;
            match outcome.part {
                Part::Begins { key, .. } => prop_assert!(of_client && open.insert(key) && open.len() == 1),
                Part::Answers { key, .. } => prop_assert!(!of_client && open.remove(&key)),
                Part::Continues { key, .. } => prop_assert!(of_client && open.contains(&key)),
                Part::Doubts { key, .. } => prop_assert!(!of_client && open.contains(&key)),
                Part::Again { key: Some(key) } => prop_assert!(open.contains(&key)),
                Part::None | Part::Again { key: None } => {}
            }
        }
    }
}
