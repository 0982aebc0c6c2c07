//! Messages survive the way over a connection, whatever its pieces; nothing else becomes a message.

use super::*;
use crate::flow::{Direction, Flow, Matching};
use proptest::prelude::*;

fn hello() -> Hello {
    let flow_text = "udp port 5060 and host 10.0.0.2".to_owned();
    let watch = Watch {
        flow: Flow::parse(&flow_text).unwrap(),
        flow_text,
        direction: Direction::Both,
        matching: Matching::Echo,
    };
    Hello { version: VERSION, secret: Secret([[7; SECRET_WORDS], [u64::MAX; SECRET_WORDS]]), watch }
}

fn welcome() -> Welcome {
    let missing = Missing { hook: "skb_consume_udp".into(), without: "reads are not seen".into() };
    Welcome {
        version: VERSION,
        teiji: "1.2.3".into(),
        kernel: "6.12.1".into(),
        cpus: 4,
        missing: vec![missing; 3],
    }
}

/// Events as a guest's probes make them.
fn event() -> impl Strategy<Value = Event> {
    let times = (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(a, b, c)| {
        let mut t = [a.max(1), b.max(1), c.max(1)];
        t.sort_unstable();
        t
    });
    (times, any::<(u64, u16, u32, u32, [u8; 16], bool)>(), 0..6).prop_map(
        |([first, second, ts], (print, cpu, a, b, comm, known), which)| {
            let or_none = |n: u64| if known { n } else { 0 };
            let tid = a.max(1);
            let kind = match which {
                0 => EventKind::Received { print, interrupted: or_none(first) },
                1 => EventKind::Queued { print, backlog: a },
                2 => EventKind::Read {
                    print,
                    tid,
                    woken: or_none(first),
                    running: or_none(second),
                    woken_by: b,
                },
                3 => EventKind::Sent { print, tid, began: or_none(first) },
                4 => EventKind::Handed { print },
                _ => EventKind::Thread {
                    tid,
                    process: b,
                    parent: if known { b } else { 0 },
                    comm,
                    started: or_none(first),
                },
            };
            Event { ts, cpu, kind }
        },
    )
}

fn to_host() -> impl Strategy<Value = ToHost> {
    prop_oneof![
        any::<Nonce>().prop_map(|nonce| ToHost::Challenge(Challenge { nonce })),
        any::<[u8; PROOF]>().prop_map(|proof| ToHost::Proof(Proof { proof })),
        Just(ToHost::Welcome(welcome())),
        any::<(u64, u64, u64)>().prop_map(|(number, clock, tsc)| {
            ToHost::Pong(Pong { number, tsc_before: tsc / 2, clock, tsc_after: tsc })
        }),
        prop::collection::vec(event(), 1..MAX_EVENTS).prop_map(ToHost::Events),
        any::<(u64, u64)>().prop_map(|(t, count)| ToHost::Lost(Lost { since: t / 2, until: t, count })),
        ".{0,200}".prop_map(|text| ToHost::Refused(Refused { version: VERSION, text })),
    ]
}

fn to_guest() -> impl Strategy<Value = ToGuest> {
    prop_oneof![
        any::<(Nonce, [u8; PROOF])>().prop_map(|(nonce, proof)| ToGuest::Answer(Answer { nonce, proof })),
        Just(ToGuest::Hello(Box::new(hello()))),
        any::<u64>().prop_map(|number| ToGuest::Ping(Ping { number })),
        Just(ToGuest::Stop),
    ]
}

/// The messages of a stream that comes in pieces of these lengths, again and again.
fn read<M: Message>(stream: &[u8], pieces: &[usize]) -> Result<Vec<M>, Error> {
    let mut decoder = Decoder::default();
    let mut all = Vec::new();
    let mut at = 0;
    for piece in pieces.iter().cycle() {
        let end = (at + piece).min(stream.len());
        decoder.feed(&stream[at..end]);
        while let Some(message) = decoder.next()? {
            all.push(message);
        }
        if end == stream.len() {
            return Ok(all);
        }
        at = end;
    }
    unreachable!("there is a piece")
}

fn stream<M: Message>(messages: &[M]) -> Vec<u8> {
    messages.iter().flat_map(|m| m.frame().unwrap()).collect()
}

proptest! {
    #[test]
    fn what_a_guest_says_arrives(all in prop::collection::vec(to_host(), 1..5), pieces in prop::collection::vec(1usize..5000, 1..9)) {
        prop_assert_eq!(read::<ToHost>(&stream(&all), &pieces).unwrap(), all);
    }

    #[test]
    fn what_a_host_says_arrives(all in prop::collection::vec(to_guest(), 1..5), pieces in prop::collection::vec(1usize..5000, 1..9)) {
        prop_assert_eq!(read::<ToGuest>(&stream(&all), &pieces).unwrap(), all);
    }

    #[test]
    fn random_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..3000), kind in prop_oneof![1u8..6, 64u8..73]) {
        fuzz(&data);
        fuzz(&[&(data.len() as u32).to_le_bytes()[..], &[kind], &data].concat());
    }

    #[test]
    fn mutations_never_panic(
        heard in prop::collection::vec(to_host(), 1..4),
        said in prop::collection::vec(to_guest(), 1..4),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        for mut bytes in [stream(&heard), stream(&said)] {
            for (i, b) in &edits {
                let i = i.index(bytes.len());
                bytes[i] = *b;
            }
            fuzz(&bytes);
        }
    }

    /// What is decoded could have been encoded: nobody who uses a message meets what no honest guest sends.
    #[test]
    fn what_is_decoded_is_consistent(events in prop::collection::vec(event(), 1..20), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let mut frame = ToHost::Events(events).frame().unwrap();
        for (i, b) in edits {
            let i = 5 + i.index(frame.len() - 5);
            frame[i] = b;
        }
        let mut decoder = Decoder::<ToHost>::default();
        decoder.feed(&frame);
        if let Ok(Some(message)) = decoder.next() {
            prop_assert!(message.frame().is_ok());
        }
    }
}

fn framed(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_le_bytes()[..], &[kind], payload].concat()
}

fn first<M: Message>(bytes: &[u8]) -> Result<Option<M>, Error> {
    let mut decoder = Decoder::default();
    decoder.feed(bytes);
    decoder.next()
}

#[test]
fn forged_frames_are_refused() {
    let number = |n: u64| postcard::to_stdvec(&n).unwrap();
    let bad = Event { ts: 1, cpu: 0, kind: EventKind::Received { print: 1, interrupted: 2 } };
    let events = |all: &[Event]| postcard::to_stdvec(all).unwrap();
    let good = Event { ts: 1, cpu: 0, kind: EventKind::Handed { print: 1 } };
    for (kind, payload, part) in [
        (67, number(u32::MAX.into()), "more events"),
        (67, number(1), "more events"),
        (67, number(0), "no events"),
        (67, vec![], "no count"),
        (67, [vec![1], vec![0xff; 40]].concat(), "not an event"),
        (67, events(&[bad]), "contradict"),
        (67, events(&[good; MAX_EVENTS + 1]), "more events"),
        (67, [events(&[good]), vec![0]].concat(), "after the last event"),
        (66, [number(1), number(9), number(5), number(8)].concat(), "read before"),
        (68, [number(9), number(8), number(1)].concat(), "ends before"),
        (69, [number(1), number(u64::MAX)].concat(), "cannot be decoded"),
        (69, postcard::to_stdvec(&(1u16, "x".repeat(2000))).unwrap(), "1024 bytes"),
        (65, [number(1), vec![0, 0, 4], number(u64::MAX)].concat(), "cannot be decoded"),
        (65, vec![], "no version"),
        (4, vec![], "not known"),
        (200, vec![], "not known"),
    ] {
        let message = first::<ToHost>(&framed(kind, &payload)).unwrap_err().to_string();
        assert!(message.contains(part), "{kind}: {message}");
    }
    let mut many = welcome();
    many.missing = vec![many.missing[0].clone(); Welcome::MAX_MISSING + 1];
    assert!(ToHost::Welcome(many.clone()).frame().is_err());
    assert!(first::<ToHost>(&framed(65, &postcard::to_stdvec(&many).unwrap())).is_err());
    let mut flow = hello();
    flow.watch.flow.version = Some(5);
    let message = first::<ToGuest>(&framed(2, &postcard::to_stdvec(&flow).unwrap())).unwrap_err().to_string();
    assert!(message.contains("neither 4 nor 6"), "{message}");
    assert!(first::<ToGuest>(&framed(4, &[0])).is_err());
    for (kind, len) in [(70, NONCE), (71, PROOF)] {
        assert!(first::<ToHost>(&framed(kind, &vec![7; len])).is_ok());
        for wrong in [0, len - 1, len + 1] {
            assert!(first::<ToHost>(&framed(kind, &vec![7; wrong])).is_err(), "{kind}: {wrong} bytes");
        }
    }
    for wrong in [0, NONCE, NONCE + PROOF - 1, NONCE + PROOF + 1] {
        assert!(first::<ToGuest>(&framed(1, &vec![7; wrong])).is_err(), "an answer of {wrong} bytes");
    }
}

#[test]
fn another_version_is_named_whatever_follows() {
    for (kind, host) in [(2, false), (65, true), (69, true)] {
        let bytes = framed(kind, &[VERSION as u8 + 1, 0xff, 0xff]);
        let found = if host { first::<ToHost>(&bytes).err() } else { first::<ToGuest>(&bytes).err() };
        assert_eq!(found, Some(Error::Version { found: VERSION + 1 }));
    }
}

#[test]
fn nothing_is_kept_of_a_frame_that_is_too_long() {
    let mut decoder = Decoder::<ToHost>::default();
    decoder.feed(&[0xff, 0xff, 0xff, 0xff, 67]);
    let error = decoder.next().unwrap_err();
    assert_eq!(error, Error::TooLong { len: u32::MAX as usize, most: MAX_FRAME });
    decoder.feed(&[0; 100_000]);
    assert_eq!(decoder.next(), Err(error));
    let mut decoder = Decoder::<ToGuest>::default();
    decoder.limit(300);
    decoder.feed(&framed(1, &[1; 301])[..HEAD_ONLY]);
    assert!(matches!(decoder.next(), Err(Error::TooLong { len: 301, most: 300 })));
}

/// A frame without its payload.
const HEAD_ONLY: usize = 5;

/// As many events as fit by number also fit by length, however large their numbers are.
#[test]
fn a_full_batch_of_the_largest_events_fits() {
    let kind = EventKind::Read {
        print: u64::MAX,
        tid: u32::MAX,
        woken: u64::MAX,
        running: u64::MAX,
        woken_by: u32::MAX,
    };
    let event = Event { ts: u64::MAX, cpu: u16::MAX, kind };
    let thread = EventKind::Thread {
        tid: u32::MAX,
        process: u32::MAX,
        parent: u32::MAX,
        comm: [0xff; 16],
        started: u64::MAX,
    };
    for event in [event, Event { kind: thread, ..event }] {
        let frame = ToHost::Events(vec![event; MAX_EVENTS]).frame().unwrap();
        assert!(frame.len() < MAX_FRAME, "{}", frame.len());
    }
}

#[test]
fn secrets_are_not_shown() {
    let shown = format!("{:?} {:?}", hello(), Token::read(&b"open sesame, please"[..], 0o600));
    assert!(shown.contains("Secret(..)") && shown.contains("Token(..)"), "{shown}");
    assert!(!shown.contains(&u64::MAX.to_string()), "{shown}");
}

/// The protocol consists of the serialized data types: a change of a type changes it. [`VERSION`] then has to be
/// incremented.
#[test]
fn the_protocol_has_not_changed_without_a_new_version() {
    let events = [
        EventKind::Received { print: 1, interrupted: 2 },
        EventKind::Queued { print: 3, backlog: 4 },
        EventKind::Read { print: 5, tid: 6, woken: 7, running: 8, woken_by: 9 },
        EventKind::Sent { print: 10, tid: 11, began: 12 },
        EventKind::Handed { print: 13 },
        EventKind::Thread { tid: 14, process: 15, parent: 16, comm: *b"0123456789abcdef", started: 17 },
    ];
    let events = events.map(|kind| Event { ts: 20, cpu: 1, kind }).to_vec();
    assert_eq!(
        ToHost::Events(events).frame().unwrap(),
        [
            &[52, 0, 0, 0, 67, 6][..],
            &[20, 1, 0, 1, 2],
            &[20, 1, 1, 3, 4],
            &[20, 1, 2, 5, 6, 7, 8, 9],
            &[20, 1, 3, 10, 11, 12],
            &[20, 1, 4, 13],
            &[20, 1, 5, 14, 15, 16],
            b"0123456789abcdef",
            &[17]
        ]
        .concat()
    );
    let lost = ToHost::Lost(Lost { since: 1, until: 2, count: 300 }).frame().unwrap();
    assert_eq!(lost, [4, 0, 0, 0, 68, 1, 2, 0xac, 2]);
    let answer = ToGuest::Answer(Answer { nonce: [1; NONCE], proof: [2; PROOF] }).frame().unwrap();
    assert_eq!(answer, [&[64, 0, 0, 0, 1][..], &[1; 32], &[2; 32]].concat());
    let challenge = ToHost::Challenge(Challenge { nonce: [3; NONCE] }).frame().unwrap();
    assert_eq!(challenge, [&[32, 0, 0, 0, 70][..], &[3; 32]].concat());
    let proof = ToHost::Proof(Proof { proof: [4; PROOF] }).frame().unwrap();
    assert_eq!(proof, [&[32, 0, 0, 0, 71][..], &[4; 32]].concat());
    let pong = ToHost::Pong(Pong { number: 1, tsc_before: 2, clock: 3, tsc_after: 4 }).frame().unwrap();
    assert_eq!(pong, [4, 0, 0, 0, 66, 1, 2, 3, 4]);
    assert_eq!(ToGuest::Stop.frame().unwrap(), [0, 0, 0, 0, 4]);
    let refused = ToHost::Refused(Refused { version: VERSION, text: "no".into() }).frame().unwrap();
    assert_eq!(refused, [4, 0, 0, 0, 69, 1, 2, b'n', b'o']);
    let hello = ToGuest::Hello(Box::new(Hello {
        version: VERSION,
        secret: Secret([[1; SECRET_WORDS], [2; SECRET_WORDS]]),
        watch: Watch::default(),
    }));
    let words = [[1; SECRET_WORDS], [2; SECRET_WORDS]].concat();
    assert_eq!(hello.frame().unwrap(), [&[64, 0, 0, 0, 2, 1][..], &words, &[0, 0, 0, 0, 0, 2, 0]].concat());
}
