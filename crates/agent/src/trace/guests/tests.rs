//! Guests over TCP: one that knows the token is asked; whatever else is at its address spoils nothing but its reports.

use super::super::guest_address::tests::nobody_listens;
use super::*;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use teiji_model::guest::{Challenge, Event, EventKind as GuestEventKind, Nonce, Pong, Proof, Refused};
use teiji_model::host::GivenNic;
use teiji_model::stream::ClockMapping;

fn token(text: &str) -> Token {
    Token::read(text.as_bytes(), 0o600).unwrap()
}

const RIGHT: &str = "correct horse battery staple";
const GUESTS: Nonce = [9; NONCE];

fn vm(name: &str, pid: u32) -> Vm {
    Vm { name: name.into(), pid, ..Vm::default() }
}

/// A trace that asks the guest of the VM `a` at this address.
fn asking(address: SocketAddr) -> Guests {
    let tcp = vec![TcpGuest { vm: "a".into(), address, token: token(RIGHT) }];
    let mut guests = Guests::new(&Watch::default(), AskGuests { tcp, ..AskGuests::default() });
    guests.add(&vm("a", 7), GuestAccess::default());
    guests
}

/// What came of a guest.
#[derive(Debug, Default)]
struct Heard {
    /// How often it was given a secret.
    secrets: usize,
    clocks: Vec<ClockMapping>,
    events: usize,
}

impl Heard {
    fn take(&mut self, news: News) -> bool {
        match news {
            News::Secret(pid, Some(_)) => {
                assert_eq!(pid, 7);
                self.secrets += 1;
            }
            News::Secret(_, None) => {}
            News::Changed(Changed::Clock { vm, mapping, .. }) => {
                assert_eq!(vm, 7);
                self.clocks.push(mapping);
            }
            News::Changed(other) => panic!("{other:?}"),
            News::Event(_) => self.events += 1,
        }
        true
    }

    /// Takes turns until `done`. None of them waits for anybody.
    fn until(&mut self, guests: &mut Guests, done: impl Fn(&Guests, &Heard) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !done(guests, self) {
            assert!(Instant::now() < end, "{self:?}, said: {:?}", guests.guests[0].said);
            let begun = Instant::now();
            guests.turn(&mut |news| self.take(news));
            assert!(begun.elapsed() < Duration::from_secs(2), "a turn waits");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The end of a trace.
fn stop(guests: &mut Guests, hear: &mut dyn FnMut(News) -> bool) {
    guests.ask_to_stop();
    while guests.take_last(hear) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What is at the guest's address.
struct Peer {
    stream: TcpStream,
    decoder: Decoder<ToGuest>,
}

impl Peer {
    fn say(&mut self, message: &ToHost) {
        self.stream.write_all(&message.frame().unwrap()).unwrap();
    }

    /// The next message; `None` when the host has closed.
    fn hear(&mut self) -> Option<ToGuest> {
        loop {
            if let Some(message) = self.decoder.next().unwrap() {
                return Some(message);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.decoder.feed(&buffer[..n]),
            }
        }
    }

    /// Asks the host for its proof, and returns it with the nonces.
    fn challenge(&mut self) -> (Answer, Nonces) {
        self.say(&ToHost::Challenge(Challenge { nonce: GUESTS }));
        let Some(ToGuest::Answer(answer)) = self.hear() else { panic!("no answer") };
        (answer, Nonces { guest: GUESTS, host: answer.nonce })
    }
}

/// Listens, and lets `f` talk to who connects first; others are not accepted.
fn peer<T: Send + 'static>(f: impl FnOnce(Peer) -> T + Send + 'static) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let talk = move || {
        let stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        f(Peer { stream, decoder: Decoder::default() })
    };
    (address, std::thread::spawn(talk))
}

fn pong(number: u64) -> ToHost {
    ToHost::Pong(Pong { number, tsc_before: 1, clock: 1_000_000_000 + number, tsc_after: 2 })
}

/// The host sees the packets of all NICs but those that it has given to the VM.
#[test]
fn a_guest_matches_requests_only_if_the_host_does_not_see_them() {
    let asked = |given: bool, matching| {
        let (address, guest) = peer(|mut guest| {
            let (_, nonces) = guest.challenge();
            guest.say(&ToHost::Proof(Proof { proof: token(RIGHT).proof(Side::Guest, &nonces) }));
            let Some(ToGuest::Hello(hello)) = guest.hear() else { panic!("no hello") };
            hello.watch.matching
        });
        let tcp = vec![TcpGuest { vm: "a".into(), address, token: token(RIGHT) }];
        let watch = Watch { matching, ..Watch::default() };
        let mut guests = Guests::new(&watch, AskGuests { tcp, ..AskGuests::default() });
        let given = given.then(GivenNic::default).into_iter().collect();
        guests.add(&Vm { given, ..vm("a", 7) }, GuestAccess::default());
        Heard::default().until(&mut guests, |_, heard| heard.secrets > 0);
        guest.join().unwrap()
    };
    assert_eq!(asked(true, Matching::Echo), Matching::Echo);
    assert_eq!(asked(false, Matching::Echo), Matching::None);
    assert_eq!([Matching::Sip, Matching::Tcp].map(|matching| asked(true, matching)), [Matching::None; 2]);
}

#[test]
fn a_guest_that_knows_the_token_is_asked_and_reports() {
    let (address, guest) = peer(|mut guest| {
        let (answer, nonces) = guest.challenge();
        assert!(token(RIGHT).is_proof(&answer.proof, Side::Host, &nonces));
        guest.say(&ToHost::Proof(Proof { proof: token(RIGHT).proof(Side::Guest, &nonces) }));
        let Some(ToGuest::Hello(hello)) = guest.hear() else { panic!("no hello") };
        let welcome =
            Welcome { version: VERSION, teiji: "0".into(), kernel: "6".into(), cpus: 1, missing: vec![] };
        guest.say(&ToHost::Welcome(welcome));
        let Some(ToGuest::Ping(ping)) = guest.hear() else { panic!("no ping") };
        guest.say(&pong(ping.number));
        let event = Event { ts: 1_000_000_001, cpu: 0, kind: GuestEventKind::Handed { print: 3 } };
        guest.say(&ToHost::Events(vec![event; 5]));
        // It answers until the host stops.
        while let Some(message) = guest.hear() {
            match message {
                ToGuest::Ping(ping) => guest.say(&pong(ping.number)),
                ToGuest::Stop => guest.say(&ToHost::Events(vec![event; 2])),
                other => panic!("{other:?}"),
            }
            if matches!(message, ToGuest::Stop) {
                break;
            }
        }
        hello.secret
    });
    let mut guests = asking(address);
    let mut heard = Heard::default();
    heard.until(&mut guests, |_, heard| heard.events >= 5);
    assert_eq!((heard.secrets, heard.clocks.is_empty()), (1, false));
    // Half of the round trip over the loopback device: measured, not assumed.
    assert!(heard.clocks.iter().all(|clock| clock.error > 0 && clock.error < 1_000_000_000), "{heard:?}");
    assert_eq!(guests.guests[0].said, None);
    stop(&mut guests, &mut |news| heard.take(news));
    assert_eq!(heard.events, 7, "the last ones");
    guest.join().unwrap();
}

/// Is tried again, was given nothing, and says why.
fn left(guests: &mut Guests, heard: &mut Heard, why: &str) {
    heard.until(guests, |guests, _| guests.guests[0].said.is_some());
    let guest = &guests.guests[0];
    let said = guest.said.as_ref().unwrap();
    assert!(said.contains(why), "{why}: {said}");
    assert!(
        !said.contains(RIGHT) && matches!(guest.state, State::Trying(at) if at > Instant::now()),
        "{said}"
    );
    assert_eq!((heard.secrets, heard.events), (0, 0));
}

#[test]
fn a_guest_with_another_token_is_told_from_one_that_does_not_run() {
    // As teiji-guest does it: it closes, without a word.
    let (address, guest) = peer(|mut guest| {
        let (answer, nonces) = guest.challenge();
        let own = token("another token of this length");
        assert!(!own.is_proof(&answer.proof, Side::Host, &nonces));
        assert!(!format!("{answer:?}").contains("correct horse"));
    });
    left(&mut asking(address), &mut Heard::default(), "the token differs: --guest-token");
    guest.join().unwrap();
    let (_bound, address) = nobody_listens();
    left(&mut asking(address), &mut Heard::default(), "start `teiji-guest serve --tcp 127.0.0.1:");
}

#[test]
fn what_is_not_the_guest_is_asked_nothing() {
    type Says = fn(&mut Peer);
    let cases: [(&str, Says); 10] = [
        ("has closed the connection", |_| ()),
        ("a frame of", |peer| peer.stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").unwrap()),
        ("a frame of", |peer| peer.stream.write_all(&[0xff; 64]).unwrap()),
        // Longer than anything that a stranger may say.
        ("longer than the 32", |peer| peer.stream.write_all(&[33, 0, 0, 0, 70]).unwrap()),
        ("another message than Challenge", |peer| peer.say(&pong(1))),
        ("longer than the 32", |peer| {
            peer.say(&ToHost::Refused(Refused { version: VERSION, text: "x".repeat(200) }));
        }),
        ("a wrong proof", |peer| {
            let (answer, _) = peer.challenge();
            peer.say(&ToHost::Proof(Proof { proof: answer.proof }));
            peer.hear();
        }),
        ("a wrong proof", |peer| {
            let (_, nonces) = peer.challenge();
            peer.say(&ToHost::Proof(Proof {
                proof: token("another token of this length").proof(Side::Guest, &nonces),
            }));
            peer.hear();
        }),
        ("a wrong proof", |peer| {
            let (_, nonces) = peer.challenge();
            // Of an earlier connection.
            let nonces = Nonces { host: [1; NONCE], ..nonces };
            peer.say(&ToHost::Proof(Proof { proof: token(RIGHT).proof(Side::Guest, &nonces) }));
            peer.hear();
        }),
        ("another message than Proof", |peer| {
            peer.challenge();
            // Without end: no more is kept than of one turn.
            let frame = ToHost::Challenge(Challenge { nonce: GUESTS }).frame().unwrap();
            while peer.stream.write_all(&frame.repeat(1000)).is_ok() {}
        }),
    ];
    for (why, says) in cases {
        let (address, other) = peer(move |mut peer| says(&mut peer));
        left(&mut asking(address), &mut Heard::default(), why);
        other.join().unwrap();
    }
}

/// A guest that refuses closes at once: why is said nevertheless.
#[test]
fn why_a_guest_refuses_is_said() {
    let (address, guest) = peer(|mut guest| {
        let (_, nonces) = guest.challenge();
        guest.say(&ToHost::Proof(Proof { proof: token(RIGHT).proof(Side::Guest, &nonces) }));
        let Some(ToGuest::Hello(_)) = guest.hear() else { panic!("no hello") };
        guest.say(&ToHost::Refused(Refused { version: VERSION, text: "another host is served".into() }));
    });
    let (mut guests, mut heard) = (asking(address), Heard::default());
    heard.until(&mut guests, |guests, _| guests.guests[0].said.is_some());
    assert_eq!(guests.guests[0].said.as_deref(), Some("it refuses: another host is served"));
    guest.join().unwrap();
}

/// A port that is open but says nothing, and one that nobody takes connections of: no turn waits, and nothing is sent.
#[test]
fn nobody_is_waited_for() {
    let (address, other) = peer(|mut silent| silent.hear().is_none());
    let mut guests = asking(address);
    let mut heard = Heard::default();
    heard.until(&mut guests, |guests, _| matches!(guests.guests[0].state, State::Meeting(..)));
    for _ in 0..20 {
        let begun = Instant::now();
        guests.turn(&mut |news| heard.take(news));
        assert!(begun.elapsed() < Duration::from_secs(2), "a turn waits");
    }
    assert!(matches!(guests.guests[0].state, State::Meeting(..)) && heard.secrets == 0);
    drop(guests);
    assert!(other.join().unwrap(), "it was sent nothing");
}

/// At the end of a trace its own events go on being taken while a guest that says nothing may still send its last ones.
#[test]
fn a_silent_guest_is_not_waited_for_at_the_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut guests = asking("127.0.0.1:1".parse().unwrap());
    guests.guests[0].state = State::Reporting(connection(ours));
    let begun = Instant::now();
    guests.ask_to_stop();
    for _ in 0..10 {
        assert!(guests.take_last(&mut |_| panic!("it says nothing")), "it may still send something");
    }
    assert!(begun.elapsed() < LAST / 2, "a turn waits");
    drop(theirs);
    assert!(!guests.take_last(&mut |_| panic!("it says nothing")));
}

/// The operator's address is that of the VM with this name, not of a second one that calls itself so.
#[test]
fn an_address_is_that_of_one_vm() {
    let mut guests = asking("127.0.0.1:1".parse().unwrap());
    let tcp = |guests: &Guests| guests.guests.iter().map(|g| (g.pid, g.tcp.is_some())).collect::<Vec<_>>();
    guests.add(&vm("b", 8), GuestAccess::default());
    guests.add(&vm("a", 9), GuestAccess::default());
    assert_eq!(tcp(&guests), [(7, true), (8, false), (9, false)]);
    guests.remove(7, &mut |_| panic!("nothing was unused"));
    guests.add(&vm("a", 10), GuestAccess::default());
    assert_eq!(tcp(&guests), [(8, false), (9, false), (10, true)], "started again");
}

/// VMs that claim one context id are not asked over it; one of them that has an address is asked there.
#[test]
fn a_context_id_that_is_claimed_twice_does_not_matter_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut guests = asking(listener.local_addr().unwrap());
    let access = GuestAccess { cid: Some(3), ..GuestAccess::default() };
    guests.add(&vm("a", 7), access);
    guests.add(&vm("b", 8), access);
    let mut heard = Heard::default();
    heard.until(&mut guests, |guests, _| matches!(guests.guests[1].state, State::Dropped));
    assert!(guests.guests[1].said.as_ref().unwrap().contains("claims its vsock context id"));
    assert!(!matches!(guests.guests[0].state, State::Dropped));
}

fn connection(ours: UnixStream) -> Connection {
    ours.set_nonblocking(true).unwrap();
    Connection {
        socket: ours.into(),
        decoder: Decoder::default(),
        secret: Box::new(secret().unwrap()),
        ping: None,
        pings: 0,
        pinged: Instant::now(),
        clock: GuestClock::default(),
    }
}

/// A replay gets nothing of an event that was refused but the loss: if that came later, requests that are complete by then would look
/// other than they did live.
#[test]
fn what_is_refused_is_told_before_anything_else_can_come() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut guests = asking("127.0.0.1:1".parse().unwrap());
    guests.guests[0].state = State::Reporting(connection(ours));
    guests.guests[0].stream = Some(StreamId(1));
    // What is used: when, and of a loss since when and how many.
    let mut used = Vec::new();
    let mut hear = |news: News| {
        let News::Event(event) = news else { return true };
        let loss = match event.kind {
            EventKind::Lost(lost) => Some((lost.since, lost.count)),
            _ => None,
        };
        let uses = loss.is_some() || event.ts >= 150;
        if uses {
            used.push((event.ts, loss));
        }
        uses
    };
    let mut say = |times: &[u64]| {
        let event = |ts: &u64| Event { ts: *ts, cpu: 0, kind: GuestEventKind::Handed { print: 3 } };
        let frame = ToHost::Events(times.iter().map(event).collect()).frame().unwrap();
        theirs.write_all(&frame).unwrap();
    };
    say(&[160, 100, 70, 200]);
    say(&[300]);
    say(&[80]);
    guests.turn(&mut hear);
    // One too many: a flood is told of seldom.
    guests.guests[0].tokens = (0.0, Instant::now() + Duration::from_secs(3600));
    say(&[400]);
    guests.turn(&mut hear);
    guests.guests[0].tokens = (1.0, Instant::now());
    say(&[500]);
    guests.turn(&mut hear);
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    stop(&mut guests, &mut hear);
    let expected = [
        (160, None),
        (200, None),
        (100, Some((70, 2))),
        (300, None),
        (80, Some((80, 1))),
        (500, None),
        (400, Some((400, 1))),
    ];
    assert_eq!(used, expected);
}

/// Each loss that a guest tells of is recorded, as an event is: so a flood of them is limited as one of events is, and nothing that
/// it says is forgotten.
#[test]
fn a_flood_of_losses_is_limited() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut guests = asking("127.0.0.1:1".parse().unwrap());
    guests.guests[0].state = State::Reporting(connection(ours));
    guests.guests[0].stream = Some(StreamId(1));
    let begun = Instant::now();
    guests.guests[0].tokens = (100.0, begun);
    const FRAMES: u64 = 50_000;
    let writer = std::thread::spawn(move || {
        for n in 0..FRAMES {
            let lost = Lost { since: 1_000 + n, until: 2_000 + n, count: 2 };
            theirs.write_all(&ToHost::Lost(lost).frame().unwrap()).unwrap();
        }
    });
    let mut told: Vec<(u64, u64, u64)> = Vec::new();
    let mut hear = |news: News| {
        match news {
            News::Event(event::Event { ts, kind: EventKind::Lost(lost), .. }) => {
                told.push((lost.since, ts, lost.count));
            }
            News::Secret(_, None) => {}
            _ => panic!("neither a loss nor the end"),
        }
        true
    };
    let mut turns = 0;
    while matches!(guests.guests[0].state, State::Reporting(_)) {
        turns += 1;
        assert!(turns < 30_000, "the guest has closed, and its connection is open");
        guests.turn(&mut hear);
        std::thread::sleep(Duration::from_millis(1));
    }
    writer.join().unwrap();
    stop(&mut guests, &mut hear);
    let most = 101.0 + begun.elapsed().as_secs_f64() * RATE;
    assert!(told.len() as f64 <= most, "{} losses were told, {most} may be", told.len());
    assert_eq!(told.iter().map(|(.., count)| count).sum::<u64>(), 2 * FRAMES);
    // The last ones are told by themselves if the rate allows it by then, and after them those that were too many.
    assert_eq!(told.iter().map(|(_, until, _)| *until).max(), Some(2_000 + FRAMES - 1));
}

/// Events above the rate that a guest may report are lost also if its VM ends before the next answer to a ping.
#[test]
fn what_was_not_used_of_a_vm_that_has_ended_is_told() {
    let mut guests = asking("127.0.0.1:1".parse().unwrap());
    guests.add(&vm("b", 8), GuestAccess::default());
    for (at, stream) in [(0, 1), (1, 2)] {
        guests.guests[at].stream = Some(StreamId(stream));
        guests.guests[at].not_used(200, 200, 1);
        guests.guests[at].not_used(100, 100, 1);
    }
    let mut told = Vec::new();
    let mut hear = |news: News| {
        let News::Event(event) = news else { panic!("not an event") };
        let EventKind::Lost(lost) = event.kind else { panic!("{event:?}") };
        told.push((event.stream, lost.since, event.ts, lost.count));
        true
    };
    guests.remove(8, &mut hear);
    guests.remove(8, &mut hear);
    assert_eq!(told, [(StreamId(2), 100, 200, 2)]);
    assert!(guests.guests.iter().all(|guest| guest.pid == 7 && guest.unused.is_some()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever comes before the proof, in whatever pieces: nothing is used of it, and it is not kept.
    #[test]
    fn a_stranger_is_never_believed(
        proves: bool,
        first: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in prop::sample::select(vec![1u8, 65, 66, 67, 68, 69, 70, 71]),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut guests = asking("127.0.0.1:1".parse().unwrap());
        let nonces = Nonces { guest: GUESTS, host: [4; NONCE] };
        let mut connection = connection(ours);
        connection.decoder.limit(NONCE.max(PROOF));
        guests.guests[0].state = if proves {
            State::Proving(connection, nonces, Instant::now())
        } else {
            State::Meeting(connection, Instant::now())
        };
        // Random bytes, or in a frame; or the right proof with a mistake.
        let mut sent = if proves && first {
            ToHost::Proof(Proof { proof: token(RIGHT).proof(Side::Guest, &nonces) }).frame().unwrap()
        } else {
            [&(bytes.len() as u32).to_le_bytes()[..], &[kind], &bytes].concat()
        };
        let right = sent.clone();
        for (at, byte) in edits {
            let at = at.index(sent.len());
            sent[at] ^= byte;
        }
        prop_assume!(!proves || !first || sent != right);
        let mut heard = Heard::default();
        for piece in sent.chunks(7) {
            let _ = theirs.write_all(piece);
            guests.turn(&mut |news| heard.take(news));
        }
        prop_assert_eq!((heard.secrets, heard.clocks.len(), heard.events), (0, 0, 0));
        let asked = matches!(guests.guests[0].state, State::Asked(..) | State::Reporting(..));
        prop_assert!(!asked);
    }
}
