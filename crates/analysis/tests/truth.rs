//! Simulated hosts with a known history: every reported pair is compared with it.
//!
//! The simulation obeys the rules of a real host (a worker serves its tap in order and does not sleep before it has
//! signalled its packets; an entry covers the interrupts accepted before it) and is otherwise arbitrary: packets
//! overlap, overtake each other, are dropped, come twice, are identical, have equal keys; CPUs' buffers are drained out
//! of order; events are lost.
//!
//! `PROPTEST_CASES` sets how many hosts each test tries; without it a test takes some seconds. The seed of a host that
//! fails is stored in `truth.regressions` and tried first from then on: commit it together with the fix.

mod common;

use common::*;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::{BTreeMap, HashMap};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::report::Reason;
use teiji_model::stage::{Split, Stage, ThreadState};
use teiji_model::stream::StreamId;

/// Probabilities of difficult events, in 1000.
#[derive(Clone, Copy, Debug, Default)]
struct Adversity {
    /// A packet has a fingerprint from a small pool.
    alike: u64,
    /// A request has a key from a small pool.
    same_key: u64,
    /// A packet comes twice.
    twice: u64,
    /// A packet is dropped before the tap, after the guest, or not answered.
    dropped: u64,
    /// Whether there are two devices on the way out.
    vlan: bool,
    /// The smallest and greatest time between packets, ns.
    gap: (u64, u64),
    /// How much later than it knows a worker may report at most that an interrupt is suppressed, ns: it loses its CPU.
    held_up: u64,
}

/// A signal of the worker.
struct Signal {
    signalled: u64,
    accepted: u64,
    /// When the worker reports it: late if the worker loses its CPU while it signals.
    reported: u64,
    /// The vCPU's index; KVM's number is [`kvm_id`].
    vcpu: u16,
    delivery: Delivery,
    /// The vCPU's.
    state: Option<ThreadState>,
    /// The packets that it covers.
    taken: Vec<usize>,
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
    fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }
    fn chance(&mut self, of_1000: u64) -> bool {
        self.next() % 1000 < of_1000
    }
    /// Mostly short, sometimes long.
    fn delay(&mut self) -> u64 {
        if self.chance(50) { self.range(100_000, 3_000_000) } else { self.range(200, 30_000) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    Nic,
    Veth,
    Vm2,
}

/// The true history of one packet and its response.
#[derive(Clone, Debug)]
struct Truth {
    key: u64,
    fp_in: u64,
    fp_out: u64,
    via: Via,
    start: u64,
    enqueued: u64,
    dequeued: u64,
    signalled: u64,
    accepted: u64,
    entered: u64,
    sent: u64,
    queued: u64,
    qdisc: u64,
    end: u64,
}

impl Truth {
    fn stages(&self) -> [u64; 9] {
        let (queued, dequeued) =
            if self.via == Via::Vm2 { (self.end, self.end) } else { (self.queued, self.qdisc) };
        let t = [
            self.start,
            self.enqueued,
            self.dequeued,
            self.signalled,
            self.accepted,
            self.entered,
            self.sent,
            queued,
            dequeued,
            self.end,
        ];
        std::array::from_fn(|i| t[i + 1] - t[i])
    }
}

/// KVM's number of a vCPU, which differs from its index.
fn kvm_id(index: u16) -> u32 {
    u32::from(index) * 4
}

struct Simulation {
    /// In the order of draining, each with the time at which it was handed over.
    events: Vec<(u64, Event)>,
    truths: Vec<Truth>,
}

fn simulate(seed: u64, n: usize, u: Adversity) -> Simulation {
    let mut r = Rng(seed | 1);
    let mut events = Vec::new();
    let mut put =
        |ts: u64, cpu: u16, kind: EventKind| events.push(Event { ts, stream: StreamId::HOST, cpu, kind });
    let mut truths: Vec<Truth> = Vec::new();
    let mut drops = Vec::new();
    let (mut dropped_in, mut dropped_out) = (HashMap::new(), HashMap::new());
    let mut t = T;

    // Arrivals. What is usual for the devices is learnt from the first few.
    for i in 0..n {
        let calm = i < 24;
        let u = if calm { Adversity { gap: (500_000, 600_000), ..Adversity::default() } } else { u };
        t += if i == 24 { 10_000_000_000 } else { r.range(u.gap.0, u.gap.1) };
        let via = [Via::Nic, Via::Veth, Via::Vm2][if calm { i % 3 } else { r.range(0, 3) as usize }];
        let fp = |r: &mut Rng, out: u64| {
            if r.chance(u.alike) { 1000 + out * 100 + r.range(0, 3) } else { r.next() << 1 | out | 1 << 60 }
        };
        let key = if r.chance(u.same_key) { r.range(1, 4) } else { 1_000_000 + i as u64 };
        let (fp_in, fp_out) = (fp(&mut r, 0), fp(&mut r, 1));
        let copies = if r.chance(u.twice) { 2 } else { 1 };
        for copy in 0..copies {
            let start = t + copy * r.range(100, 200_000);
            let reports_over = match via {
                Via::Nic => start,
                Via::Veth => start + r.delay(),
                Via::Vm2 => start,
            };
            let enqueued = reports_over + r.delay();
            if r.chance(u.dropped) {
                dropped_in.insert(truths.len(), ());
                // In the tap's queue, before or after it is put on the tap, or of a copy.
                drops.push((enqueued, fp_in, key));
            }
            truths.push(Truth {
                key,
                fp_in,
                fp_out,
                via,
                start,
                enqueued,
                dequeued: 0,
                signalled: 0,
                accepted: 0,
                entered: 0,
                sent: 0,
                queued: 0,
                qdisc: 0,
                end: 0,
            });
            let cpu = r.range(0, 2) as u16;
            match via {
                Via::Nic => put(start, cpu, EventKind::Packet(packet(Point::HostRx, fp_in, NIC))),
                Via::Veth => {
                    put(start, cpu, EventKind::Packet(packet(Point::HostRx, fp_in, VETH)));
                    put(reports_over, 1 - cpu, EventKind::Packet(packet(Point::HostRx, fp_in, VETH)));
                }
                Via::Vm2 => {
                    let matching = m(key, Role::Request);
                    put(
                        start,
                        3,
                        EventKind::Packet(Packet { matching, ..packet(Point::TapSend, fp_in, TAP2) }),
                    );
                }
            }
        }
    }

    // The kernel reports drops; some come after the packet was put on the tap, some before.
    for (ts, fp, key) in drops {
        let matching = m(key, Role::Request);
        if r.chance(500) {
            let e = Packet { matching, ..packet(Point::TapEnqueue, fp, TAP) };
            put(ts - 1, 6, EventKind::Packet(e));
        }
        put(ts, 6, EventKind::Dropped(Dropped { matching, ..dropped(fp, TAP) }));
    }

    // The worker takes packets off the tap, signals, and sleeps if there are no more.
    let mut order: Vec<usize> = (0..truths.len()).filter(|i| !dropped_in.contains_key(i)).collect();
    order.sort_by_key(|i| truths[*i].enqueued);
    let (mut now, mut asleep, mut next) = (T, 0u64, 0);
    let mut naps: Vec<(u64, u64)> = vec![(0, 0)];
    let mut signals: Vec<Signal> = Vec::new();
    let mut dequeues: Vec<(u64, usize, u64)> = Vec::new();
    while next < order.len() {
        let first = truths[order[next]].enqueued;
        if first > now {
            let wake = first + r.delay();
            asleep += wake - now;
            naps.push((wake, asleep));
            now = wake;
        }
        let mut taken = Vec::new();
        while next < order.len() && truths[order[next]].enqueued < now && taken.len() < 64 {
            now += r.range(100, 5000);
            let i = order[next];
            truths[i].dequeued = now;
            dequeues.push((now, i, asleep));
            taken.push(i);
            next += 1;
        }
        let signalled = now + r.range(0, 3000);
        let accepted = signalled + r.range(1, 5000);
        let vcpu = r.range(0, 2) as u16;
        let (delivery, state) = match r.range(0, 10) {
            0 => (Delivery::Posted, Some(ThreadState::Guest)),
            1 => (Delivery::Suppressed, Some(ThreadState::Guest)),
            2 => (Delivery::Suppressed, Some(ThreadState::Run)),
            _ => (Delivery::Accepted, Some(ThreadState::Asleep)),
        };
        for i in &taken {
            (truths[*i].signalled, truths[*i].accepted) = (signalled, accepted);
        }
        // That no interrupt is sent is known at the end of the signal only.
        let may_be_late = delivery == Delivery::Suppressed && u.held_up > 0 && taken.iter().all(|i| *i >= 24);
        let reported = accepted + if may_be_late && r.chance(200) { r.range(1, u.held_up) } else { 0 };
        now = reported + 1;
        signals.push(Signal { signalled, accepted, reported, vcpu, delivery, state, taken });
    }
    let clock = |t: u64| {
        let (_, asleep) = naps[naps.partition_point(|(wake, _)| *wake <= t) - 1];
        Some(Split([0, 0, asleep, 0, t.saturating_sub(asleep)]))
    };
    for (ts, i, _) in &dequeues {
        let worker = clock(*ts);
        put(*ts, 2, EventKind::Packet(Packet { worker, ..packet(Point::TapDequeue, truths[*i].fp_in, TAP) }));
    }
    for i in &order {
        let matching = m(truths[*i].key, Role::Request);
        let p = packet(Point::TapEnqueue, truths[*i].fp_in, TAP);
        let worker = clock(truths[*i].enqueued);
        put(truths[*i].enqueued, r.range(0, 2) as u16, EventKind::Packet(Packet { matching, worker, ..p }));
    }

    // The vCPUs: an entry takes all interrupts of its vector that were accepted before it.
    let mut reports = Vec::new();
    for s in &signals {
        let vector = if s.delivery == Delivery::Suppressed { 0 } else { 40 };
        let i = Interrupt {
            signalled: s.signalled,
            delivery: s.delivery,
            state: s.state,
            vcpu: kvm_id(s.vcpu),
            index: Some(s.vcpu),
            vector,
            ..interrupt(0)
        };
        reports.push((
            s.reported,
            Event { ts: s.accepted, stream: StreamId::HOST, cpu: 2, kind: EventKind::Interrupt(i) },
        ));
        if s.state == Some(ThreadState::Guest) {
            s.taken.iter().for_each(|i| truths[*i].entered = s.accepted);
        }
    }
    for vcpu in 0..2 {
        for vector in [0, 40] {
            let wanted = |s: &&Signal| {
                s.vcpu == vcpu
                    && s.state != Some(ThreadState::Guest)
                    && (s.delivery == Delivery::Suppressed) == (vector == 0)
            };
            let mut upto = 0;
            for s in signals.iter().filter(wanted) {
                if s.accepted > upto {
                    upto = s.accepted + r.delay();
                    let e = GuestEntry { vcpu: kvm_id(vcpu), index: vcpu, vector, upto, ..entry(0) };
                    put(upto + 1, 4 + vcpu, EventKind::GuestEntry(e));
                }
                s.taken.iter().for_each(|i| truths[*i].entered = upto + 1);
            }
        }
    }

    // The guest answers; its frames are sent in the order of their kicks.
    let mut answers: Vec<(u64, usize)> = Vec::new();
    for i in &order {
        if r.chance(if *i < 24 { 0 } else { u.dropped }) {
            dropped_out.insert(*i, ());
        } else {
            answers.push((truths[*i].entered + r.delay(), *i));
        }
    }
    answers.sort_unstable();
    let mut last = 0;
    for (kicked, i) in answers {
        if r.chance(800) {
            put(kicked, 4, EventKind::Kick(kick()));
        }
        let sent = (kicked + r.delay()).max(last + 500);
        last = sent;
        let truth = &mut truths[i];
        truth.sent = sent;
        let fp = truth.fp_out;
        let matching = m(truth.key, Role::Final);
        put(sent, 2, EventKind::Packet(Packet { matching, ..packet(Point::TapSend, fp, TAP) }));
        if i >= 24 && r.chance(u.dropped) {
            dropped_out.insert(i, ());
            continue;
        }
        if truth.via == Via::Vm2 {
            truth.end = sent + r.delay();
            let e = Packet { matching, ..packet(Point::TapEnqueue, fp, TAP2) };
            put(truth.end, 2, EventKind::Packet(e));
            let d = Packet { tid: WORKER + 1, ..packet(Point::TapDequeue, fp, TAP2) };
            put(truth.end + r.delay(), 3, EventKind::Packet(d));
            continue;
        }
        let mut at = sent + r.range(100, 3000);
        if u.vlan {
            put(at, 2, EventKind::Packet(packet(Point::DevQueue, fp, VLAN)));
            put(at + 100, 2, EventKind::Packet(packet(Point::DevXmit, fp, VLAN)));
            at += 200;
        }
        truth.queued = at;
        put(at, 2, EventKind::Packet(packet(Point::DevQueue, fp, NIC)));
        truth.qdisc = at;
        let mut cpu = 2;
        if r.chance(500) {
            truth.qdisc = at + r.delay();
            cpu = r.range(0, 3) as u16;
            put(truth.qdisc, cpu, EventKind::Packet(packet(Point::QdiscDequeue, fp, NIC)));
        }
        truth.end = truth.qdisc + r.range(50, 2000);
        put(truth.end, cpu, EventKind::Packet(packet(Point::DevXmit, fp, NIC)));
    }
    reports.extend(events.into_iter().map(|e| (e.ts, e)));
    let events = drain(reports, &mut r);
    let mut i = 0;
    truths.retain(|_| {
        i += 1;
        !dropped_in.contains_key(&(i - 1)) && !dropped_out.contains_key(&(i - 1))
    });
    Simulation { events, truths }
}

/// Events in the order of draining: those of each CPU in the order in which they are handed over, CPU by CPU, every few
/// milliseconds.
fn drain(mut events: Vec<(u64, Event)>, r: &mut Rng) -> Vec<(u64, Event)> {
    let every = r.range(1_000, 40_000_000);
    let turn = r.next() as u16 % 8;
    events.sort_by_key(|(handed_over, e)| (handed_over / every, (e.cpu + turn) % 8, *handed_over));
    events
}

/// A request that is reported with a history that no true request has.
fn wrong(outcome: &Run, truths: &[Truth]) -> Option<String> {
    let mut by_key: BTreeMap<u64, Vec<&Truth>> = BTreeMap::new();
    for t in truths {
        by_key.entry(t.key).or_default().push(t);
    }
    let right = |j: &teiji_model::report::Joined| {
        let ns: Vec<u64> = j.request.stages.iter().map(|s| s.ns).collect();
        let guest = Stage::Guest as usize;
        // The simulation has many kicks; which of them is the boundary of the stages is tested elsewhere.
        let mut got = [0; 9];
        got[..5].copy_from_slice(&ns[..5]);
        got[5] = ns[guest] + ns[guest + 1];
        got[6..].copy_from_slice(&ns[guest + 2..guest + 5]);
        by_key.get(&j.request.key).is_some_and(|ts| {
            ts.iter().any(|t| {
                t.start == j.request.start && t.stages() == got && t.end - t.start == j.request.total
            })
        })
    };
    let bad: Vec<_> = outcome.joined.iter().filter(|j| !right(j)).collect();
    bad.first().map(|j| format!("{j:?}, but true: {:?}", by_key.get(&j.request.key)))
}

fn play(simulated: &Simulation) -> Run {
    let events: Vec<Event> = simulated.events.iter().map(|(_, e)| *e).collect();
    run(&meta(Matching::Echo), &events)
}

/// Tries `cases` hosts unless `PROPTEST_CASES` is set, and stores the seeds of failures beside this file.
fn config(cases: u32) -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { usual.cases } else { cases };
    let kept =
        FileFailurePersistence::Direct(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/truth.regressions"));
    ProptestConfig { cases, failure_persistence: Some(Box::new(kept)), ..usual }
}

/// Never, within what the analysis waits, or beyond.
fn held_up() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(400_000_000), Just(2_000_000_000)]
}

fn adversity() -> impl Strategy<Value = Adversity> {
    let gap = prop_oneof![Just((500, 5_000)), Just((1_000, 60_000)), Just((50_000, 2_000_000))];
    (0u64..400, 0u64..400, 0u64..300, 0u64..300, any::<bool>(), gap, held_up()).prop_map(
        |(alike, same_key, twice, dropped, vlan, gap, held_up)| Adversity {
            alike,
            same_key,
            twice,
            dropped,
            vlan,
            gap,
            held_up,
        },
    )
}

/// Few packets, most of which may be difficult in some way: this makes failing cases short.
fn harsh() -> impl Strategy<Value = Adversity> {
    let chance = || prop_oneof![Just(0), 0u64..200, 200u64..1000];
    let dropped = prop_oneof![Just(0), 0u64..500];
    let gap = prop_oneof![Just((500, 5_000)), Just((1_000, 60_000)), Just((50_000, 2_000_000))];
    (chance(), chance(), chance(), dropped, any::<bool>(), gap, held_up()).prop_map(
        |(alike, same_key, twice, dropped, vlan, gap, held_up)| Adversity {
            alike,
            same_key,
            twice,
            dropped,
            vlan,
            gap,
            held_up,
        },
    )
}

/// Hosts whose requests were once paired wrongly.
#[test]
fn what_was_paired_wrongly_once_is_not() {
    for (seed, n, alike, same_key, twice, dropped, vlan, gap) in [
        (12708557893654990694, 206, 128, 120, 164, 107, false, (1_000, 60_000)),
        (12708557893654990694, 206, 128, 120, 164, 107, true, (1_000, 60_000)),
        (494997372906607562, 174, 325, 153, 32, 112, false, (50_000, 2_000_000)),
        (17983922233560466774, 252, 0, 392, 68, 282, false, (1_000, 60_000)),
        (5197563412623866694, 184, 131, 276, 266, 144, true, (1_000, 60_000)),
        (10870002713299820351, 132, 43, 250, 177, 174, true, (50_000, 2_000_000)),
        (1010973046006003348, 296, 185, 23, 51, 277, true, (500, 5_000)),
        (14910591971034048388, 166, 164, 336, 21, 60, true, (50_000, 2_000_000)),
        (7875714723838725462, 53, 69, 762, 547, 234, false, (50_000, 2_000_000)),
    ] {
        let u = Adversity { alike, same_key, twice, dropped, vlan, gap, held_up: 0 };
        let simulated = simulate(seed, n, u);
        assert_eq!(wrong(&play(&simulated), &simulated.truths), None, "seed {seed}");
    }
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn without_loss_or_likeness_all_are_complete_and_right(seed in any::<u64>(), n in 1usize..300, u in adversity()) {
        let u = Adversity { vlan: u.vlan, gap: u.gap, held_up: u.held_up.min(400_000_000), ..Adversity::default() };
        let simulated = simulate(seed, n, u);
        let outcome = play(&simulated);
        prop_assert_eq!(wrong(&outcome, &simulated.truths), None);
        prop_assert_eq!(outcome.joined.len(), n);
        prop_assert_eq!(outcome.counts(), [n as u64, n as u64, 0, 0, 0]);
        prop_assert_eq!(outcome.losses.late, 0);
        prop_assert_eq!(outcome.losses.evicted, 0);
    }

    #[test]
    fn likeness_spares_what_is_not_alike(seed in any::<u64>(), vlan in any::<bool>()) {
        let u = Adversity { alike: 60, same_key: 60, twice: 60, dropped: 60, vlan, gap: (1_000, 60_000), held_up: 0 };
        let simulated = simulate(seed, 400, u);
        let outcome = play(&simulated);
        prop_assert!(outcome.joined.len() * 10 > simulated.truths.len() * 6, "{} of {}", outcome.joined.len(), simulated.truths.len());
    }

    #[test]
    fn drops_cost_only_what_is_dropped(seed in any::<u64>(), n in 1usize..300, dropped in 0u64..300, vlan in any::<bool>()) {
        let u = Adversity { dropped, vlan, gap: (1_000, 60_000), ..Adversity::default() };
        let simulated = simulate(seed, n, u);
        let outcome = play(&simulated);
        prop_assert_eq!(wrong(&outcome, &simulated.truths), None);
        prop_assert_eq!(outcome.joined.len(), simulated.truths.len());
    }

    #[test]
    fn a_drop_that_is_told_is_the_reason(seed in any::<u64>(), n in 30usize..300, dropped in 0u64..300, vlan in any::<bool>()) {
        let u = Adversity { dropped, vlan, gap: (1_000, 60_000), ..Adversity::default() };
        let simulated = simulate(seed, n, u);
        let dropped = simulated.events.iter().filter(|(_, e)| matches!(e.kind, EventKind::Dropped(_))).count() as u64;
        let outcome = play(&simulated);
        let of = |reason| -> u64 {
            outcome.report.vms[0].left_out.iter().filter(|l| l.reason == reason).map(|l| l.count).sum()
        };
        prop_assert_eq!(of(Reason::DroppedIn), dropped);
        prop_assert_eq!(outcome.counts()[0], n as u64);
        prop_assert_eq!(outcome.report.vms[0].inbound.dropped, dropped);
        prop_assert_eq!(wrong(&outcome, &simulated.truths), None);
    }

    #[test]
    fn a_loss_that_is_told_pairs_nothing_wrongly(
        seed in any::<u64>(), n in 30usize..400, u in adversity(), lose in prop::collection::vec((0u64..1000, 1u64..5_000_000), 1..4)) {
        // Events are lost in some windows of time after the calm beginning, each on one CPU.
        let mut simulated = simulate(seed, n, Adversity { same_key: 0, alike: u.alike / 4, ..u });
        let from = T + 10_000_000_000;
        let end = simulated.events.iter().map(|(_, e)| e.ts).max().unwrap_or(from).max(from);
        for (i, (at, long)) in lose.iter().enumerate() {
            let since = from + (end - from) * at / 1000;
            let (until, cpu) = (since + long, (seed >> (8 * i)) as u16 % 6);
            let before = simulated.events.len();
            simulated.events.retain(|(at, e)| e.cpu != cpu || *at < since || *at > until || matches!(e.kind, EventKind::Lost(_)));
            let count = (before - simulated.events.len()) as u64;
            // Reported with the first drain after it, before later events.
            let index = simulated.events.iter().position(|(at, _)| *at > until).unwrap_or(simulated.events.len());
            simulated.events.insert(index, (until, Event { ts: until, stream: StreamId::HOST, cpu, kind: EventKind::Lost(Lost { since, count }) }));
        }
        prop_assert_eq!(wrong(&play(&simulated), &simulated.truths), None);
    }

    #[test]
    fn a_loss_that_is_not_told_gives_no_response_to_another(
        seed in any::<u64>(), n in 30usize..300, lost in 1u64..100, vlan in any::<bool>()) {
        let u = Adversity { gap: (1_000, 60_000), vlan, ..Adversity::default() };
        let mut simulated = simulate(seed, n, u);
        let mut r = Rng(seed.rotate_left(7) | 1);
        simulated.events.retain(|(_, e)| e.ts < T + 10_000_000_000 || !r.chance(lost));
        let outcome = play(&simulated);
        let by_key: HashMap<u64, &Truth> = simulated.truths.iter().map(|t| (t.key, t)).collect();
        for j in &outcome.joined {
            let t = by_key[&j.request.key];
            // The start may be the tap, if the report before it is lost and the tap also gets packets without one.
            prop_assert!([t.start, t.enqueued].contains(&j.request.start));
            prop_assert_eq!(j.request.start + j.request.total, t.end);
            prop_assert_eq!(j.request.stages[Stage::TapQueue as usize].ns, t.dequeued - t.enqueued);
        }
    }

    #[test]
    fn nothing_panics_whatever_comes(events in prop::collection::vec(anything(), 0..300)) {
        run(&meta(Matching::Sip), &events);
    }
}

proptest! {
    #![proptest_config(config(4000))]

    #[test]
    fn likeness_duplication_and_drops_pair_nothing_wrongly(seed in any::<u64>(), n in 1usize..400, u in adversity()) {
        let simulated = simulate(seed, n, u);
        prop_assert_eq!(wrong(&play(&simulated), &simulated.truths), None);
    }

    #[test]
    fn most_alike_pair_nothing_wrongly(seed in any::<u64>(), n in 25usize..120, u in harsh()) {
        let simulated = simulate(seed, n, u);
        prop_assert_eq!(wrong(&play(&simulated), &simulated.truths), None);
    }
}

prop_compose! {
    fn anything()(ts in prop_oneof![0u64..50, any::<u64>()], cpu in 0u16..4, what in 0u8..14, fp in 0u64..4, a in 0u64..60, queue in prop::option::of(any::<u16>()),
                  ifindex in prop_oneof![Just(TAP), Just(TAP2), Just(NIC), 0u32..9], b in any::<[u64; 5]>(), flag in any::<bool>()) -> Event {
        let point = [Point::HostRx, Point::TapEnqueue, Point::TapDequeue, Point::TapSend, Point::DevQueue, Point::QdiscDequeue, Point::DevXmit];
        let role = [Role::Either, Role::Request, Role::Provisional, Role::Final, Role::OneWay][a as usize % 5];
        let group_role = [GroupRole::Begins, GroupRole::Within, GroupRole::Ends][a as usize % 3];
        let clock = Split(b);
        let vm = if flag { VM } else { VM2 };
        let kind = match what {
            0..=6 => EventKind::Packet(Packet {
                matching: Some(Match { key: fp, role, group: a % 3, group_role }),
                worker: flag.then_some(clock),
                preempted_by: a as u32,
                queue,
                ..packet(point[what as usize], fp, ifindex)
            }),
            7 | 8 => EventKind::Interrupt(Interrupt {
                signalled: a, ifindex, vm, clock,
                delivery: [Delivery::Accepted, Delivery::Posted, Delivery::Suppressed, Delivery::Unknown][a as usize % 4],
                ..interrupt(0)
            }),
            9 | 10 => EventKind::GuestEntry(GuestEntry { vm, clock, upto: b[0], ..entry(0) }),
            12 => EventKind::Dropped(Dropped {
                matching: Some(Match { key: fp, role, group: a % 3, group_role }), tap: if flag { TAP } else { ifindex },
                why: a as u32, unspecified: b[1] % 2 == 0, ..dropped(fp, ifindex)
            }),
            11 => EventKind::Kick(Kick { ifindex, queue: queue.unwrap_or(0), vm, clock, worker: Some(clock), ..kick() }),
            _ => EventKind::Lost(Lost { since: b[0], count: a }),
        };
        Event { ts, stream: StreamId::HOST, cpu, kind }
    }
}
