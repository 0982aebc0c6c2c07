//! Requests of TCP: turns of connections, with segments that are lost, late, sent again and dropped on their way.

mod common;

use common::*;
use proptest::prelude::*;
use teiji_model::event::{Delivery, Dropped, EventKind, Match, Point, Segment};
use teiji_model::flow::Matching;
use teiji_model::report::{Connections, LargePackets, Outcome, Reason};

const MS: u64 = 1_000_000;

fn segment(connection: u64, seq: u32, ack: u32, payload: u16, flags: u8) -> Option<Match> {
    let flags = flags | Segment::ACK;
    Some(Match::of_segment(connection, Segment { seq, ack, payload, flags }))
}

fn data(seq: u32, ack: u32, payload: u16) -> Option<Match> {
    segment(7, seq, ack, payload, 0)
}

/// A history of segments, one each millisecond.
#[derive(Default)]
struct World {
    history: History,
    fingerprint: u64,
}

impl World {
    /// The time of the next segment.
    fn next(&mut self) -> u64 {
        self.fingerprint += 1;
        self.fingerprint * MS
    }

    /// A segment to the guest.
    fn asks(&mut self, matching: Option<Match>) -> u64 {
        let t = self.next();
        self.history.request(t, self.fingerprint, matching);
        t
    }

    /// One that is dropped on the guest's tap.
    fn dropped(&mut self, matching: Option<Match>) {
        let (t, fp) = (self.next(), self.fingerprint);
        self.history.packet(t, Point::HostRx, fp, NIC).matched(
            t + 10_000,
            Point::TapEnqueue,
            fp,
            TAP,
            matching,
        );
        self.history.dropped(t + 20_000, fp, TAP, matching);
    }

    /// One that vhost takes off the guest's tap, and discards.
    fn discarded(&mut self, matching: Option<Match>) {
        let (t, fp) = (self.next(), self.fingerprint);
        let location = teiji_model::event::padded("tun_do_read");
        let discarded = Dropped { matching, unspecified: true, location, ..dropped(fp, TAP) };
        self.history
            .packet(t, Point::HostRx, fp, NIC)
            .matched(t + 10_000, Point::TapEnqueue, fp, TAP, matching)
            .packet(t + 15_000, Point::TapDequeue, fp, TAP)
            .at(t + 20_000, EventKind::Dropped(discarded));
    }

    /// A segment of the guest; returns when it leaves the host.
    fn says(&mut self, matching: Option<Match>) -> u64 {
        let t = self.next();
        self.history.response(t, self.fingerprint, matching);
        t + 40_000
    }

    /// Opens a connection whose client's first byte is `client` + 1, and the server's 201.
    fn opens(&mut self, connection: u64, client: u32) {
        let t = self.next();
        let syn = Segment { seq: client, ack: 0, payload: 0, flags: Segment::SYN };
        let syn = Match::of_segment(connection, syn);
        self.history.request(t, self.fingerprint, Some(syn));
        self.says(segment(connection, 200, client.wrapping_add(1), 0, Segment::SYN));
        self.asks(segment(connection, client.wrapping_add(1), 201, 0, 0));
    }

    fn run(&self) -> Run {
        run(&meta(Matching::Tcp), &self.history.0)
    }
}

/// Start and time of each complete request.
fn times(run: &Run) -> Vec<(u64, u64)> {
    run.joined.iter().map(|j| (j.request.start - T, j.request.total)).collect()
}

#[test]
fn a_request_lasts_from_its_first_segment_to_the_first_of_its_answer() {
    let mut w = World::default();
    w.opens(7, 100);
    let start = w.asks(data(101, 201, 1448));
    w.asks(data(1549, 201, 500));
    w.asks(data(1549, 201, 500));
    w.says(data(201, 2049, 0));
    let end = w.says(data(201, 2049, 1448));
    w.says(data(1649, 2049, 1448));
    w.asks(data(2049, 3097, 0));
    w.says(data(1649, 2049, 1448));
    let o = w.run();
    assert_eq!(times(&o), [(start, end - start)]);
    assert_eq!(o.counts(), [1, 1, 0, 0, 0]);
    assert_eq!(o.report.vms[0].requests.retransmitted, 1);
    let right = Connections { seen: 1, segments: 2, of_several_segments: 1, ..Connections::default() };
    assert_eq!(o.report.vms[0].connections, Some(right));
    assert_eq!(o.report.vms[1].connections, None);
}

/// As the kernel does where a link splits large packets: in the queue there is one packet, the device gets its segments, the
/// first of which has the packet's fingerprint; of a request that a tap splits likewise.
#[test]
fn a_large_packet_that_the_host_splits_is_followed_by_its_first_segment() {
    let mut w = World::default();
    w.opens(7, 100);
    let (start, fp) = (w.next(), w.fingerprint);
    w.history
        .packet(start, Point::HostRx, fp, NIC)
        .matched(start + 10_000, Point::TapEnqueue, fp, TAP, data(101, 201, 1448))
        .packet(start + 20_000, Point::TapDequeue, fp, TAP)
        .interrupt(start + 40_000, start + 30_000, Delivery::Accepted)
        .entry(start + 50_000, start + 45_000, 40);
    // Nothing was seen of its other segments before the tap. However many they are, the reports of others are missed if missing.
    for n in 0..30 {
        let (t, fp) = (w.next(), w.fingerprint);
        w.history
            .matched(t, Point::TapEnqueue, fp, TAP, data(1549 + 20 * n, 201, 20))
            .packet(t + 20_000, Point::TapDequeue, fp, TAP)
            .interrupt(t + 40_000, t + 30_000, Delivery::Accepted)
            .entry(t + 50_000, t + 45_000, 40);
    }
    let (t, fp) = (w.next(), w.fingerprint);
    w.history
        .kick(t)
        .matched(t + 10_000, Point::TapSend, fp, TAP, data(201, 2101, 14_480))
        .of_segments(10)
        .packet(t + 20_000, Point::DevQueue, fp, NIC)
        .packet(t + 30_000, Point::QdiscDequeue, fp, NIC)
        .packet(t + 40_000, Point::DevXmit, fp, NIC);
    for n in 1..10 {
        w.history.packet(t + 40_000 + n, Point::DevXmit, 1000 + n, NIC);
    }
    let o = w.run();
    assert_eq!(times(&o), [(start, t + 40_000 - start)]);
    assert_eq!(o.counts(), [1, 1, 0, 0, 0]);
    let large = o.report.vms[0].outbound.large;
    assert_eq!(large, LargePackets { packets: 1, segments: 10, largest: 10 });
    assert_eq!(o.report.vms[0].inbound.large, LargePackets::default());
    assert_eq!(o.report.vms[0].inbound.incomplete, 30);
}

/// Its first segment would be seen, unless it is too short for that.
#[test]
fn a_large_packet_of_tcp_that_does_not_leave_was_not_split() {
    for (claimed, reason) in [(10, Reason::NotHandedOver), (40, Reason::LargePacket)] {
        let mut w = World::default();
        w.opens(7, 100);
        w.asks(data(101, 201, 100));
        let (t, fp) = (w.next(), w.fingerprint);
        w.history
            .kick(t)
            .matched(t + 10_000, Point::TapSend, fp, TAP, data(201, 201, 14_480))
            .of_segments(10);
        if let Some(EventKind::Packet(p)) = w.history.0.last_mut().map(|e| &mut e.kind) {
            p.depth = claimed;
        }
        w.history.packet(t + 20_000, Point::DevQueue, fp, NIC);
        let (t, fp) = (40_000 * MS, w.fingerprint + 1);
        w.history.packet(t, Point::HostRx, fp, NIC);
        let o = w.run();
        assert_eq!((o.counts(), o.reason()), ([1, 0, 1, 0, 0], (Outcome::Incomplete, reason)), "{claimed}");
    }
}

/// What a guest claims is counted as what it claims.
#[test]
fn large_packets_are_counted_by_direction() {
    let mut w = World::default();
    w.opens(7, 100);
    let (t, fp) = (w.next(), w.fingerprint);
    w.history.packet(t, Point::HostRx, fp, NIC);
    w.history.matched(t + 10_000, Point::TapEnqueue, fp, TAP, data(101, 201, 20_000)).of_segments(14);
    for (n, segments) in [(0, 1), (1, 2), (2, u16::MAX), (3, 0)] {
        w.history.packet(t + 20_000 + n, Point::TapSend, 2000 + n, TAP).of_segments(segments);
        // Nothing is known of segments anywhere else.
        w.history.packet(t + 30_000 + n, Point::TapDequeue, 3000 + n, TAP).of_segments(9);
        w.history.packet(t + 40_000 + n, Point::DevQueue, 2000 + n, NIC).of_segments(9);
    }
    w.history.packet(t + 50_000, Point::TapSend, 4000, TAP2).of_segments(3);
    let o = w.run();
    let large = |packets, segments, largest| LargePackets { packets, segments, largest };
    let of = |vm: usize| [o.report.vms[vm].inbound.large, o.report.vms[vm].outbound.large];
    assert_eq!(of(0), [large(1, 14, 14), large(2, 65_537, 65_535)]);
    assert_eq!(of(1), [large(0, 0, 0), large(1, 3, 3)]);
    // Besides the four, the two segments that open the connection were taken off the tap.
    let depth = o.report.vms[0].depth.unwrap();
    assert_eq!((depth.count, depth.max), (4 + 2, 9));
}

#[test]
fn a_segment_that_the_host_drops_costs_its_request() {
    for (which, by_vhost) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut w = World::default();
        w.opens(7, 100);
        for (i, s) in [data(101, 201, 10), data(111, 201, 10)].into_iter().enumerate() {
            if i == which && by_vhost {
                w.discarded(s);
            } else if i == which {
                w.dropped(s);
            } else {
                w.asks(s);
            }
        }
        w.asks(data(if which == 0 { 101 } else { 111 }, 201, 10));
        w.says(data(201, 121, 10));
        // The next one is none the worse.
        let start = w.asks(data(121, 211, 10));
        let end = w.says(data(211, 131, 10));
        let o = w.run();
        assert_eq!(times(&o), [(start, end - start)], "{which} {by_vhost}");
        assert_eq!(o.counts(), [2, 1, 1, 0, 0]);
        assert_eq!(o.reason(), (Outcome::Incomplete, Reason::DroppedIn));
        assert_eq!(o.report.vms[0].requests.retransmitted, 1);
    }
    // Before it comes to the tap: its copy is no further request.
    let mut w = World::default();
    w.opens(7, 100);
    let (t, fp) = (w.next(), w.fingerprint);
    w.history.packet(t, Point::HostRx, fp, NIC).dropped(t + 1000, fp, TAP, data(101, 201, 10));
    w.asks(data(101, 201, 10));
    w.says(data(201, 111, 10));
    let o = w.run();
    assert_eq!((o.counts(), o.reason()), ([1, 0, 1, 0, 0], (Outcome::Incomplete, Reason::DroppedIn)));
}

#[test]
fn an_answer_that_the_host_drops_is_no_other_ones() {
    let mut w = World::default();
    w.opens(7, 100);
    w.asks(data(101, 201, 10));
    let (t, fp) = (w.next(), w.fingerprint);
    w.history.kick(t).matched(t + 10_000, Point::TapSend, fp, TAP, data(201, 111, 10));
    w.history.packet(t + 20_000, Point::DevQueue, fp, NIC).at(
        t + 30_000,
        teiji_model::event::EventKind::Dropped(teiji_model::event::Dropped { tap: 0, ..dropped(fp, NIC) }),
    );
    w.says(data(201, 111, 10));
    let o = w.run();
    assert_eq!((o.counts(), o.reason()), ([1, 0, 1, 0, 0], (Outcome::Incomplete, Reason::DroppedOut)));
}

#[test]
fn a_connection_that_ends_leaves_its_request_unanswered() {
    for flags in [Segment::RST, Segment::FIN] {
        let mut w = World::default();
        w.opens(7, 100);
        w.asks(data(101, 201, 10));
        w.says(segment(7, 201, 111, 0, flags));
        let o = w.run();
        assert_eq!((o.counts(), o.reason()), ([1, 0, 0, 0, 1], (Outcome::Unanswered, Reason::Closed)));
    }
}

#[test]
fn sides_that_speak_at_the_same_time_have_no_requests() {
    let mut w = World::default();
    w.opens(7, 100);
    let start = w.asks(data(101, 201, 10));
    let end = w.says(data(201, 111, 10));
    w.says(data(211, 111, 10));
    w.asks(data(111, 211, 10)); // it has not received the rest
    w.says(data(221, 121, 10));
    w.asks(data(121, 231, 10));
    w.says(data(231, 131, 10));
    let o = w.run();
    assert_eq!(times(&o), [(start, end - start)]);
    assert_eq!((o.counts(), o.reason()), ([3, 1, 0, 2, 0], (Outcome::Ambiguous, Reason::Interleaved)));
    assert_eq!(o.report.vms[0].connections.unwrap().interleaved, 1);
}

/// What happens to a segment of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    /// It arrives, and is sent again.
    Twice,
    /// It is lost before the host, and arrives after the others of its turn.
    Late,
    /// The host drops it on the tap, and it is sent again after the others of its turn.
    Dropped,
}

/// A turn: sizes and fates of the client's segments, sizes of the server's; whether the server acknowledges before it answers.
#[derive(Clone, Debug)]
struct Turn {
    asks: Vec<(u16, Fate)>,
    says: Vec<u16>,
    acknowledges: bool,
}

fn turn() -> impl Strategy<Value = Turn> {
    let fate = prop_oneof![
        10 => Just(Fate::Arrives), 1 => Just(Fate::Twice), 1 => Just(Fate::Late), 1 => Just(Fate::Dropped)
    ];
    let asks = prop::collection::vec((1u16..20_000, fate), 1..4);
    (asks, prop::collection::vec(1u16..20_000, 1..4), any::<bool>())
        .prop_map(|(asks, says, acknowledges)| Turn { asks, says, acknowledges })
}

/// A segment that is to be seen at the host.
#[derive(Clone, Copy, Debug)]
struct Step {
    to_guest: bool,
    matching: Option<Match>,
    dropped: bool,
    /// The turn whose request, or whose answer, begins with it; and whether the request can be followed.
    begins: Option<bool>,
}

/// The steps of a connection after it was opened.
fn steps(connection: u64, client: u32, turns: &[Turn]) -> Vec<Step> {
    let (mut seq, mut ack) = (client.wrapping_add(1), 201u32);
    let mut all = Vec::new();
    for turn in turns {
        let (mut first, mut late) = (Vec::new(), Vec::new());
        let mut good = true;
        for (i, (size, fate)) in turn.asks.iter().enumerate() {
            let matching = segment(connection, seq, ack, *size, 0);
            let step = Step { to_guest: true, matching, dropped: false, begins: None };
            match fate {
                Fate::Arrives => first.push(step),
                Fate::Twice => first.extend([step; 2]),
                Fate::Late => {
                    // Only if nothing comes after it, nobody notices.
                    good &= turn.asks[i + 1..].iter().all(|(_, fate)| *fate == Fate::Late);
                    late.push(step);
                }
                Fate::Dropped => {
                    good = false;
                    first.push(Step { dropped: true, ..step });
                    late.push(step);
                }
            }
            seq = seq.wrapping_add((*size).into());
        }
        first.extend(late);
        first[0].begins = Some(good);
        all.extend(first);
        let from_guest = |matching, begins| Step { to_guest: false, matching, dropped: false, begins };
        if turn.acknowledges {
            all.push(from_guest(segment(connection, ack, seq, 0, 0), None));
        }
        for (i, size) in turn.says.iter().enumerate() {
            all.push(from_guest(segment(connection, ack, seq, *size, 0), (i == 0).then_some(good)));
            ack = ack.wrapping_add((*size).into());
        }
    }
    all
}

proptest! {
    /// Several connections at once: each turn whose segments all reached the guest in order is a complete request, and has the
    /// time that it had in the world; each other one is counted, and nothing else is.
    #[test]
    fn each_turn_is_measured_or_counted(
        connections in prop::collection::vec((any::<u32>(), prop::collection::vec(turn(), 1..6)), 1..4),
        order in prop::collection::vec(0usize..4, 0..100),
    ) {
        let mut w = World::default();
        let mut waiting: Vec<std::vec::IntoIter<Step>> = Vec::new();
        for (i, (client, turns)) in connections.iter().enumerate() {
            w.opens(i as u64 + 1, *client);
            waiting.push(steps(i as u64 + 1, *client, turns).into_iter());
        }
        let count = waiting.len();
        let rest = (0..count).flat_map(|i| std::iter::repeat_n(i, 1000));
        let mut begun = vec![0; count];
        let (mut right, mut turns) = (Vec::new(), 0);
        for i in order.into_iter().chain(rest) {
            let Some(step) = waiting[i % count].next() else { continue };
            let at = match step {
                Step { dropped: true, .. } => {
                    w.dropped(step.matching);
                    0
                }
                Step { to_guest: true, .. } => w.asks(step.matching),
                _ => w.says(step.matching),
            };
            if step.to_guest && step.begins.is_some() {
                turns += 1;
                begun[i % count] = at;
            } else if step.begins == Some(true) {
                right.push((begun[i % count], at - begun[i % count]));
            }
        }
        let o = w.run();
        let mut found = times(&o);
        found.sort();
        right.sort();
        prop_assert_eq!(o.counts(), [turns, right.len() as u64, turns - right.len() as u64, 0, 0]);
        prop_assert_eq!(found, right);
    }
}
