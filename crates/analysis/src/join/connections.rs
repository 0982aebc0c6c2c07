//! Connections of TCP: which segment begins a request, and which its answer, by sequence numbers alone.
//!
//! The two sides take turns: the client speaks, the server answers. A *request* is what the client says until the answer
//! begins.
//!
//! ```text
//!                the server has                the client speaks                 the server speaks, and has
//!                acknowledged all                                                received some of the request
//!  [not known] ─────────────────► [at rest] ────────────────────► [asked] ──────────────────────────────► [at rest]
//!                                                                    │ RST, or FIN of the server
//!                                                                    ▼
//!                                                               no answer comes
//! ```
//!
//! A request begins with payload that is new, when both sides have received all that the other one has said before. So the
//! payload of the server that acknowledges a part of it is its answer. Before a connection is known to be at rest
//! nothing on it is a request: it was open when the trace began, or segments were not seen.
//!
//! | seen | means |
//! | --- | --- |
//! | more payload of the client before the answer | the request has several segments |
//! | payload that was there already | a retransmission; nothing if the other side has acknowledged it (a keep-alive probe) |
//! | payload beyond what comes next | a segment is missing: the request is in no figure. It may come later, out of order |
//! | payload of the client before it has received the answer, or of the server before it has received the request | the sides do not take turns: of this connection, no request is in a figure from then on |
//! | payload of the server when nothing was asked | a greeting, or more of an answer |
//!
//! Several requests that a client sends without waiting (pipelining) are one request here, if none of them is answered
//! before the last is sent; otherwise the sides do not take turns.
//!
//! The client is who opened the connection. If that was not seen, the port that the filter selects is the server's. The guest may
//! be either. Segments of the guest and to it are seen at the tap, so in the order in which they cause each other.

use crate::expiring::ExpiringMap;
use crate::hash::Seeded;
use crate::join::Validity;
use crate::lost::LostWindows;
use teiji_model::event::Segment;
use teiji_model::report::Reason;

/// Connections followed at once.
const MAX_CONNECTIONS: usize = 1 << 16;

/// What the guest is in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestRole {
    /// It is the server.
    Server,
    /// It is the client.
    Client,
    NotKnown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    NotKnown,
    AtRest,
    Asked,
}

/// See the module. Sequence numbers are those of the next byte.
#[derive(Clone)]
struct Connection {
    guest: GuestRole,
    phase: Phase,
    /// Of the SYN that opened it.
    opened: Option<u32>,
    /// What the client sends next, and what of it the server has acknowledged.
    client: Option<u32>,
    acknowledged: Option<u32>,
    /// What the server sends next.
    server: Option<u32>,
    server_ended: bool,
    /// Payload of the client that was left out and may still come.
    hole: Option<(u32, u32)>,
    /// The present request: its key, where its payload begins, whether it has several segments.
    request: u64,
    from: u32,
    several: bool,
    /// The sides do not take turns.
    interleaved: bool,
    /// When its last segment was seen, ns.
    last: u64,
}

/// What a segment is to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Nothing.
    None,
    /// It begins a request.
    Begins { key: u64, validity: Validity },
    /// It is the client's, and belongs to a request that has begun. `second`: the request has more than one segment from now on.
    Continues { key: u64, validity: Validity, second: bool },
    /// It is the server's, and makes a request that has begun uncertain.
    Doubts { key: u64, validity: Validity },
    /// It was sent before, and belongs to the present request if there is a key.
    Again { key: Option<u64> },
    /// It begins the answer to a request.
    Answers { key: u64, validity: Validity },
}

/// A request that is not answered any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) vm: u32,
    pub(super) key: u64,
    pub(super) guest_is_client: bool,
    pub(super) why: NoAnswer,
}

/// Why a request gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Its connection is closed.
    Closed,
    /// Its answer was not seen.
    Missed,
    /// Its connection was given up for another one.
    Evicted,
}

/// What is known of a connection for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It is there. `client`: who asks is known.
    Seen { client: bool },
    /// The sides do not take turns.
    Interleaved,
}

/// What follows from a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentOutcome {
    pub(super) part: Part,
    /// The guest is the client.
    pub(super) guest_is_client: bool,
    /// To be ended first.
    pub(super) ended: Option<Ended>,
    pub(super) news: Option<News>,
    /// Another connection, without an open request, was given up for this one.
    pub(super) given_up: bool,
}

impl From<Part> for SegmentOutcome {
    fn from(part: Part) -> SegmentOutcome {
        SegmentOutcome { part, guest_is_client: false, ended: None, news: None, given_up: false }
    }
}

/// Whether `a` comes after `b`; sequence numbers wrap around.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

fn later(a: u32, b: Option<u32>) -> u32 {
    b.filter(|b| after(*b, a)).unwrap_or(a)
}

/// Where a segment's payload begins and ends, and what comes next.
fn extent(s: &Segment) -> (u32, u32, u32) {
    let begin = s.seq.wrapping_add(s.has(Segment::SYN).into());
    let end = begin.wrapping_add(s.payload.into());
    (begin, end, end.wrapping_add(s.has(Segment::FIN).into()))
}

/// See the module.
#[derive(Clone)]
pub(super) struct Connections {
    all: ExpiringMap<(u32, u64), Connection>,
    /// The last key of a request.
    keys: u64,
}

impl Connections {
    pub(super) fn new(hasher: Seeded) -> Self {
        Connections { all: ExpiringMap::new(MAX_CONNECTIONS, hasher), keys: 0 }
    }

    /// A segment to or from the guest of a VM.
    pub(super) fn segment(
        &mut self,
        now: u64,
        (vm, connection): (u32, u64),
        s: &Segment,
        to_guest: bool,
        lost: &LostWindows,
    ) -> SegmentOutcome {
        let at = (vm, connection);
        let opens = s.has(Segment::SYN) && !s.has(Segment::ACK);
        let mut outcome = SegmentOutcome::from(Part::None);
        let known = self.all.get(&at).filter(|c| !opens || c.opened == Some(s.seq)).is_some();
        if !known {
            if let Some(former) = self.all.remove(&at) {
                outcome.ended = former.unanswered(vm, NoAnswer::Closed);
            }
            if s.has(Segment::RST) {
                return outcome;
            }
            let new = Connection::new(now, s, to_guest, opens);
            outcome.news = Some(News::Seen { client: new.guest != GuestRole::NotKnown });
            if let Some(((vm, _), evicted)) = self.all.insert(at, new, now) {
                outcome.ended = evicted.unanswered(vm, NoAnswer::Evicted);
                outcome.given_up = outcome.ended.is_none();
            }
        }
        self.all.touch(&at, now);
        let Some(c) = self.all.get_mut(&at) else { return outcome };
        outcome.guest_is_client = c.guest == GuestRole::Client;
        let of_client = to_guest != outcome.guest_is_client;
        if s.has(Segment::RST) {
            if c.resets(s, of_client) {
                outcome.ended = c.unanswered(vm, NoAnswer::Closed);
                self.all.remove(&at);
            }
            return outcome;
        }
        if c.guest != GuestRole::NotKnown {
            let was = c.interleaved;
            if of_client {
                let next = self.keys + 1;
                c.of_client(now, vm, s, next, lost, &mut outcome);
                self.keys += u64::from(matches!(outcome.part, Part::Begins { .. }));
            } else {
                c.of_server(vm, s, &mut outcome);
            }
            if c.interleaved && !was {
                outcome.news = Some(News::Interleaved);
            }
        }
        c.last = now;
        outcome
    }
}

impl Connections {
    /// The request that is open on a connection, if the payload of a segment to the guest belongs to it.
    pub(super) fn request_of(&self, vm: u32, connection: u64, s: &Segment) -> Option<u64> {
        let asked = |c: &&Connection| c.phase == Phase::Asked && c.guest == GuestRole::Server;
        let c = self.all.get(&(vm, connection)).filter(asked)?;
        let (_, end, _) = extent(s);
        (s.payload > 0 && after(end, c.from)).then_some(c.request)
    }
}

impl Connection {
    /// The connection of a segment of which none was seen before.
    fn new(now: u64, s: &Segment, to_guest: bool, opens: bool) -> Connection {
        let port = (s.has(Segment::PORT_OF_GUEST), s.has(Segment::PORT_OF_OTHER));
        let guest = match (s.has(Segment::SYN), port) {
            (true, _) if opens == to_guest => GuestRole::Server,
            (true, _) => GuestRole::Client,
            (false, (true, false)) => GuestRole::Server,
            (false, (false, true)) => GuestRole::Client,
            (false, _) => GuestRole::NotKnown,
        };
        Connection {
            guest,
            phase: Phase::NotKnown,
            opened: opens.then_some(s.seq),
            client: None,
            acknowledged: None,
            server: None,
            server_ended: false,
            hole: None,
            request: 0,
            from: 0,
            several: false,
            interleaved: false,
            last: now,
        }
    }

    /// Its request that is not answered yet.
    fn unanswered(&self, vm: u32, why: NoAnswer) -> Option<Ended> {
        let guest_is_client = self.guest == GuestRole::Client;
        (self.phase == Phase::Asked).then_some(Ended { vm, key: self.request, guest_is_client, why })
    }

    /// Whether a RST is one that the other side accepts: that of an active reset has the next sequence number, that of an
    /// answer to a segment what that segment acknowledges.
    fn resets(&self, s: &Segment, of_client: bool) -> bool {
        let expected = if of_client { [self.client, self.acknowledged] } else { [self.server; 2] };
        let ended = u32::from(!of_client && self.server_ended);
        expected == [None; 2]
            || expected.into_iter().flatten().any(|n| s.seq == n || s.seq.wrapping_add(ended) == n)
    }

    fn of_client(
        &mut self,
        now: u64,
        vm: u32,
        s: &Segment,
        key: u64,
        lost: &LostWindows,
        outcome: &mut SegmentOutcome,
    ) {
        let (begin, end, next) = extent(s);
        let opens = s.has(Segment::SYN);
        let Some(expected) = self.client.filter(|_| self.phase != Phase::NotKnown || opens) else {
            self.client = Some(later(next, self.client));
            if opens && s.payload > 0 {
                outcome.part = self.begin(key, begin, Validity::Valid);
            }
            return;
        };
        if s.payload == 0 {
            // Beyond what is expected, payload was lost on its way to this host: its copy is the first that comes.
            let unseen = self.acknowledged.is_some_and(|a| !after(next, a));
            if unseen || !after(begin, expected) {
                self.client = Some(later(next, self.client));
            }
            return;
        }
        if !after(end, expected) {
            outcome.part = self.again(begin, end);
            self.client = Some(later(next, self.client));
            return;
        }
        if self.hole.is_some_and(|(_, last)| self.acknowledged.is_some_and(|a| !after(last, a))) {
            self.hole = None; // It has come, unseen.
        }
        let missing = after(begin, expected);
        if missing && self.hole.is_none() {
            self.hole = Some((expected, begin));
        }
        let in_doubt = if lost.touches(self.last, now) { Reason::EventsLost } else { Reason::SegmentMissing };
        let missed = s.has(Segment::ACK) && self.server.is_some_and(|server| after(s.ack, server));
        let validity = if missing || missed { Validity::incomplete(in_doubt) } else { Validity::Valid };
        self.client = Some(next);
        if self.phase == Phase::Asked && !missed {
            let second = !std::mem::replace(&mut self.several, true);
            outcome.part = Part::Continues { key: self.request, validity, second };
            return;
        }
        // The client has received an answer of which nothing was seen.
        outcome.ended = self.unanswered(vm, NoAnswer::Missed);
        let received_all = |server: u32| !after(server.wrapping_sub(self.server_ended.into()), s.ack);
        let at_rest = self.acknowledged == Some(expected) && self.server.is_some_and(received_all);
        let validity = if self.interleaved {
            Validity::ambiguous(Reason::Interleaved)
        } else if at_rest || missed || missing {
            validity
        } else if in_doubt == Reason::EventsLost {
            Validity::incomplete(in_doubt)
        } else {
            self.interleaved = true;
            Validity::ambiguous(Reason::Interleaved)
        };
        outcome.part = self.begin(key, expected, validity);
    }

    fn begin(&mut self, key: u64, from: u32, validity: Validity) -> Part {
        (self.phase, self.request, self.from, self.several) = (Phase::Asked, key, from, false);
        Part::Begins { key, validity }
    }

    /// Payload of the client that comes after later payload has come.
    fn again(&mut self, begin: u32, end: u32) -> Part {
        if let Some((first, last)) = self.hole
            && !after(first, begin)
            && !after(end, last)
        {
            // What remains of it at its larger end.
            self.hole = if begin == first { Some((end, last)) } else { Some((first, begin)) };
            self.hole = self.hole.filter(|(first, last)| first != last);
            return Part::None;
        }
        let probe = end.wrapping_sub(begin) == 1 && self.acknowledged.is_some_and(|a| !after(end, a));
        if probe {
            return Part::None;
        }
        let of_request = self.phase == Phase::Asked && after(end, self.from);
        Part::Again { key: of_request.then_some(self.request) }
    }

    fn of_server(&mut self, vm: u32, s: &Segment, outcome: &mut SegmentOutcome) {
        let (begin, end, next) = extent(s);
        let expected = self.server.unwrap_or(begin);
        if s.has(Segment::ACK) {
            self.acknowledged = Some(later(s.ack, self.acknowledged));
            // It has received what was not seen.
            if self.phase != Phase::NotKnown && self.client.is_some_and(|client| after(s.ack, client)) {
                self.client = Some(s.ack);
            }
        }
        self.server = Some(later(next, self.server));
        self.server_ended |= s.has(Segment::FIN);
        match self.phase {
            Phase::NotKnown => {
                if self.client.is_some() && self.acknowledged == self.client {
                    self.phase = Phase::AtRest;
                }
            }
            Phase::AtRest => {}
            Phase::Asked if s.payload > 0 && after(end, expected) => {
                let received = s.has(Segment::ACK) && after(s.ack, self.from);
                if !(self.interleaved || received) {
                    self.interleaved = true;
                    let validity = Validity::ambiguous(Reason::Interleaved);
                    outcome.part = Part::Doubts { key: self.request, validity };
                    return;
                }
                self.phase = Phase::AtRest;
                let validity = if after(begin, expected) {
                    Validity::incomplete(Reason::SegmentMissing)
                } else {
                    Validity::Valid
                };
                outcome.part = Part::Answers { key: self.request, validity };
            }
            Phase::Asked if s.has(Segment::FIN) => {
                outcome.ended = self.unanswered(vm, NoAnswer::Closed);
                self.phase = Phase::AtRest;
            }
            Phase::Asked => {}
        }
    }
}

#[cfg(test)]
mod tests;
