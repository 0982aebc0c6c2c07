//! VMs that come, change and end during a trace, numbers that are used again, and guests that report events themselves.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::guest;
use teiji_model::host::Vm;
use teiji_model::report::{Counters, Report};
use teiji_model::stage::Stage;
use teiji_model::stream::{Change, Changed, ClockMapping, Item, StreamId};

const S: u64 = 1_000_000_000;
/// A tap and a VM that are not there at the start.
const TAP3: u32 = 7;
const VM3: u32 = 72;

/// A request to the VM with this process id by this tap, complete, from `t` on, ns after [`T`].
fn request(t: u64, key: u64, tap: u32, pid: u32) -> Vec<Event> {
    let mut h = History::default();
    h.request(t, key + 1, m(key, Role::Request)).response(t + 200_000, !key, m(key, Role::Final));
    h.redirect(0, pid, tap);
    h.0
}

fn change(t: u64, what: Changed) -> Item {
    Item::Change(Change { ts: T + t, what })
}

fn comes(t: u64, vm: Vm) -> Item {
    change(t, Changed::Vm(Box::new(vm)))
}

fn report(items: impl IntoIterator<Item = Item>, ended: u64) -> Report {
    let mut meta = meta(Matching::Echo);
    meta.started = T;
    let mut analyzer = Analyzer::new(&meta, Options { seed: 1, ..Options::default() });
    for item in items {
        analyzer.take(item, &mut |_| ());
    }
    analyzer.finish(Counters { ended: T + ended, ..Counters::default() }, &mut |_| ())
}

fn events(of: Vec<Event>) -> impl Iterator<Item = Item> {
    of.into_iter().map(Item::Event)
}

/// Process id, seen, complete, when it came and ended.
type Seen = (u32, u64, u64, Option<u64>, Option<u64>);

fn vms(report: &Report) -> Vec<Seen> {
    let each = |vm: &teiji_model::report::VmReport| {
        (vm.pid, vm.requests.seen, vm.requests.complete, vm.came, vm.ended)
    };
    report.vms.iter().map(each).collect()
}

#[test]
fn a_vm_that_comes_later_is_in_the_report() {
    let items = events(request(0, 1, TAP3, VM3)) // Nobody's tap.
        .chain([comes(S, vm(VM3, TAP3))])
        .chain(events(request(2 * S, 2, TAP3, VM3)))
        .chain(events(request(3 * S, 3, TAP, VM)));
    let report = report(items, 4 * S);
    assert_eq!(vms(&report), [(VM, 1, 1, None, None), (VM2, 0, 0, None, None), (VM3, 1, 1, Some(S), None)]);
    assert_eq!(report.meta.vms.len(), 3);
}

#[test]
fn a_process_id_and_a_tap_that_are_used_again_are_not_the_former_ones() {
    let items = events(request(0, 1, TAP, VM))
        .chain([change(S, Changed::Ended { pid: VM })])
        .chain(events(request(S + S / 2, 2, TAP, VM))) // A tap without a VM.
        .chain([comes(2 * S, Vm { name: "another".into(), ..vm(VM, TAP) })])
        .chain(events(request(3 * S, 3, TAP, VM)))
        .chain(events(request(4 * S, 4, TAP, VM)));
    let report = report(items, 5 * S);
    assert_eq!(
        vms(&report),
        [(VM, 1, 1, None, Some(S)), (VM2, 0, 0, None, None), (VM, 2, 2, Some(2 * S), None)]
    );
    assert_eq!(report.vms[2].name, "another");
}

/// An answer of the former VM's guest is no answer to a request to the new one, and the other way round.
#[test]
fn a_request_that_is_open_when_its_vm_ends_is_not_answered_by_the_next_one() {
    let (asked, answered) = (request(0, 1, TAP, VM), request(3 * S, 1, TAP, VM));
    let items = events(asked[..5].to_vec())
        .chain([change(S, Changed::Ended { pid: VM }), comes(2 * S, vm(VM, TAP))])
        .chain(events(answered[5..].to_vec()));
    let report = report(items, 4 * S);
    assert_eq!(report.vms[0].requests.unanswered, 1);
    assert_eq!((report.vms[0].requests.complete, report.vms[2].requests.seen), (0, 0));
}

#[test]
fn a_tap_that_is_plugged_in_and_out_is_followed_while_it_is_there() {
    let both = |pid| {
        let mut vm = vm(pid, TAP);
        vm.nics.extend(common::vm(pid, TAP3).nics);
        vm
    };
    let items = events(request(0, 1, TAP3, VM))
        .chain([comes(S, both(VM))])
        .chain(events(request(2 * S, 2, TAP3, VM)))
        .chain(events(request(3 * S, 3, TAP, VM)))
        .chain([comes(4 * S, vm(VM, TAP))])
        .chain(events(request(5 * S, 4, TAP3, VM)))
        .chain(events(request(6 * S, 5, TAP, VM)));
    let report = report(items, 7 * S);
    assert_eq!(vms(&report)[0], (VM, 3, 3, None, None));
}

proptest! {
    /// A change applies to the events from its time on, whatever was read first: the recording of a process that was found
    /// late may have its events before it.
    #[test]
    fn the_time_of_a_change_counts_not_when_it_is_read(early in 0usize..9, late in 0usize..9) {
        let all = [request(S, 1, TAP3, VM3), request(2 * S, 2, TAP3, VM3), request(3 * S, 3, TAP3, VM3)].concat();
        let come = comes(S + S / 2, vm(VM3, TAP3));
        let end = change(2 * S + S / 2, Changed::Ended { pid: VM3 });
        let mut items: Vec<Item> = events(all).collect();
        // Within the 500 ms that the analysis waits for events that are late.
        items.insert(18 + late.min(8), end);
        items.insert(early.min(8), come);
        let report = report(items, 4 * S);
        prop_assert_eq!(vms(&report)[2], (VM3, 1, 1, Some(S + S / 2), Some(2 * S + S / 2)));
    }

    /// Events of the host in a guest's stream, and whatever clocks guests have: the host's view stays the same.
    #[test]
    fn guests_have_no_events_of_the_host(
        lies in prop::collection::vec((0usize..28, any::<u16>(), prop_oneof![any::<u64>(), T..T + 5 * S], any::<u16>(), 0usize..9), 0..60),
        clocks in prop::collection::vec((0usize..28, any::<u16>(), any::<u64>(), any::<u64>(), any::<u64>()), 0..5)) {
        let honest: Vec<Event> = (0..3).flat_map(|n| request(n * S, n, TAP, VM)).collect();
        let mut items = Vec::new();
        for (n, event) in honest.iter().enumerate() {
            for (_, stream, own, host, rate) in clocks.iter().filter(|(at, ..)| *at == n) {
                let mapping = ClockMapping { own: *own, host: *host, rate: *rate, error: 7 };
                items.push(change(0, Changed::Clock { stream: StreamId(stream % 400), vm: VM, mapping }));
            }
            for (_, stream, ts, cpu, which) in lies.iter().filter(|(at, ..)| *at == n) {
                let stream = StreamId(stream % 300 + 1);
                items.push(Item::Event(Event { ts: *ts, stream, cpu: cpu % 4096, ..honest[*which] }));
            }
            items.push(Item::Event(*event));
        }
        let told = report(items, 4 * S);
        let alone = report(events(honest), 4 * S);
        let hosts_view = |mut report: Report| {
            report.guests.clear();
            report.vms.iter_mut().for_each(|vm| vm.inside = None);
            report
        };
        prop_assert!(hosts_view(told) == alone);
    }

    /// A guest reports what it likes, of its own packets and of those of another guest, whose prints it knows: of the other one nothing
    /// changes. Of its own, only where the time in the guest ends may.
    #[test]
    fn what_a_guest_reports_changes_nothing_of_another(
        lies in prop::collection::vec((0usize..56, 0u64..4 * S, any::<u16>(), any_report()), 0..60)) {
        let mapping = ClockMapping { own: T - BEHIND, host: T, rate: ClockMapping::EQUAL, error: 1_000 };
        let other = StreamId(2);
        let mut honest = Vec::new();
        for (n, key) in KEYS[0].into_iter().zip(KEYS[1]) .enumerate().map(|(n, keys)| (n as u64, keys)) {
            honest.extend(reports(n * S, key.0, [60, 75, 80, 110, 130, 170]));
            honest.extend(printed(n * S, key.0));
            honest.extend(reports(n * S + S / 2, key.1, [60, 75, 80, 110, 130, 170]).into_iter().map(|item| of(item, other)));
            honest.extend(printed(n * S + S / 2, key.1).into_iter().map(to_vm2));
        }
        let clocks = [(GUEST, VM), (other, VM2)].map(|(stream, vm)| change(0, Changed::Clock { stream, vm, mapping }));
        let mut items = clocks.to_vec();
        for (n, item) in honest.iter().enumerate() {
            for (_, ts, cpu, kind) in lies.iter().filter(|(at, ..)| *at == n) {
                items.push(of_guest(*ts, *cpu, *kind));
            }
            items.push(item.clone());
        }
        let told = report(items, 4 * S);
        let alone = report(clocks.into_iter().chain(honest), 4 * S);
        prop_assert_eq!(alone.vms[1].inside.as_ref().unwrap().divided, 3);
        prop_assert_eq!(&told.vms[1], &alone.vms[1]);
        let [told, alone] = [&told.vms[0], &alone.vms[0]];
        prop_assert_eq!(&told.requests, &alone.requests);
        prop_assert_eq!(&told.total, &alone.total);
        for (told, alone) in told.stages.iter().zip(&alone.stages) {
            let may = [Stage::Guest, Stage::VhostTx].contains(&told.stage);
            prop_assert!(may || told.dist == alone.dist, "{:?}", told.stage);
        }
    }
}

/// The keys of the requests to each of two VMs.
const KEYS: [[u64; 3]; 2] = [[1, 2, 3], [11, 12, 13]];

/// A report of a packet of [`KEYS`], or of another one.
fn any_report() -> impl Strategy<Value = guest::EventKind> {
    let keys: Vec<u64> = KEYS.concat();
    let known = (prop::sample::select(keys), any::<bool>())
        .prop_map(|(key, response)| if response { !key ^ 0xabc } else { (key + 1) ^ 0xabc });
    let print = prop_oneof![4 => known, 1 => any::<u64>()];
    let ts = || prop_oneof![Just(0), T - BEHIND..T + 4 * S, any::<u64>()];
    (print, 0u8..6, any::<u32>(), ts(), ts()).prop_map(|(print, which, tid, a, b)| match which {
        0 => guest::EventKind::Received { print, interrupted: a },
        1 => guest::EventKind::Queued { print, backlog: tid },
        2 => guest::EventKind::Read { print, tid, woken: a, running: b, woken_by: tid },
        3 => guest::EventKind::Sent { print, tid, began: a },
        4 => guest::EventKind::Handed { print },
        _ => guest::EventKind::Thread { tid, process: tid, parent: 1, comm: [7; 16], started: a },
    })
}

/// The same of another stream.
fn of(item: Item, stream: StreamId) -> Item {
    match item {
        Item::Event(event) => Item::Event(Event { stream, ..event }),
        change => change,
    }
}

/// The same at the second VM.
fn to_vm2(item: Item) -> Item {
    let Item::Event(event) = item else { return item };
    let mut h = History(vec![event]);
    h.redirect(0, VM2, TAP2);
    Item::Event(h.0[0])
}

#[test]
fn the_error_of_a_guests_clock_and_its_events_are_told() {
    let stream = StreamId(3);
    let clock = |own, error| {
        let mapping = ClockMapping { own, host: T + own, rate: ClockMapping::EQUAL, error };
        change(own, Changed::Clock { stream, vm: VM, mapping })
    };
    let of_guest = |ts| Item::Event(Event { ts, stream, ..request(0, 9, TAP, VM)[0] });
    let items = [of_guest(5), clock(0, 300), of_guest(5), clock(S, 200), of_guest(2 * S)]
        .into_iter()
        .chain(events(request(3 * S, 1, TAP, VM)))
        .chain(events(request(4 * S, 2, TAP, VM)))
        .chain([of_guest(S)]); // Later than the analysis waits.
    let report = report(items, 5 * S);
    let [guest] = report.guests[..] else { panic!("{:?}", report.guests) };
    assert_eq!((guest.pid, guest.events, guest.lost, guest.clock_error), (VM, 2, 0, 300));
    assert_eq!(report.late, 0, "a guest's events are no loss of the host's");
}

/// What a guest reports of a request and its response, on its own clock, which is `BEHIND` ns behind the host's.
const BEHIND: u64 = 700_000_000;
const GUEST: StreamId = StreamId(1);

fn of_guest(after: u64, cpu: u16, kind: guest::EventKind) -> Item {
    Item::Event(Event { ts: T + after - BEHIND, stream: GUEST, cpu, kind: EventKind::Guest(kind) })
}

/// The request of [`request`] with `key` to the first VM at `t`, with its prints; the guest entry is at `t` + 50 µs and the
/// kick at `t` + 200 µs.
fn printed(t: u64, key: u64) -> Vec<Item> {
    let mut items = Vec::new();
    for event in request(t, key, TAP, VM) {
        if let EventKind::Packet(p) = event.kind
            && matches!(p.point, Point::TapEnqueue | Point::TapSend)
        {
            let print = Print { fingerprint: p.fingerprint, print: p.fingerprint ^ 0xabc };
            items.push(Item::Event(Event { kind: EventKind::Print(print), ..event }));
        }
        items.push(Item::Event(event));
    }
    items
}

/// The guest's reports, µs after `t`: received, queued, woken, running, read, began to send.
fn reports(t: u64, key: u64, [received, queued, woken, running, read, began]: [u64; 6]) -> Vec<Item> {
    let (request, response) = ((key + 1) ^ 0xabc, !key ^ 0xabc);
    let at = |us: u64| T + t + us * 1000 - BEHIND;
    vec![
        of_guest(t + received * 1000, 0, guest::EventKind::Received { print: request, interrupted: 0 }),
        of_guest(t + queued * 1000, 0, guest::EventKind::Queued { print: request, backlog: 2 }),
        of_guest(
            t + read * 1000,
            1,
            guest::EventKind::Read {
                print: request,
                tid: 40,
                woken: at(woken),
                running: at(running),
                woken_by: 0,
            },
        ),
        of_guest(
            t + (began + 10) * 1000,
            1,
            guest::EventKind::Sent { print: response, tid: 41, began: at(began) },
        ),
    ]
}

fn clocked(error: u64) -> Item {
    let mapping = ClockMapping { own: T - BEHIND, host: T, rate: ClockMapping::EQUAL, error };
    change(0, Changed::Clock { stream: GUEST, vm: VM, mapping })
}

#[test]
fn a_guest_divides_its_part_of_the_path() {
    let thread = guest::EventKind::Thread {
        tid: 41,
        process: 40,
        parent: 40,
        comm: [0; 16],
        started: T + 135_000 - BEHIND,
    };
    let items = [clocked(1_000), of_guest(136_000, 1, thread)]
        .into_iter()
        .chain(reports(0, 1, [60, 75, 80, 110, 130, 170]))
        .chain(printed(0, 1));
    let report = report(items, 4 * S);
    let inside = report.vms[0].inside.as_ref().unwrap();
    assert_eq!((inside.divided, inside.undivided, inside.violations), (1, 0, 0));
    let one = report.vms[0].slowest[0].inside.unwrap();
    assert_eq!(one.parts.map(|ns| ns / 1000), [10, 15, 55, 40, 30]);
    let guest_stage = report.vms[0].slowest[0].stages.iter().find(|s| s.stage == Stage::Guest).unwrap().ns;
    assert_eq!(one.parts.iter().sum::<u64>(), guest_stage);
    assert_eq!((one.reader, one.sender, one.woken, one.backlog), (40, 41, Some(30_000), 2));
    assert!(one.moved && one.new_thread);
    assert_eq!((inside.asleep, inside.moved, inside.new_threads), (1, 1, 1));
}

#[test]
fn a_report_that_is_missing_leaves_the_guest_undivided() {
    for missing in 0..4 {
        let mut of = reports(0, 1, [60, 75, 80, 110, 130, 170]);
        of.remove(missing);
        let report = report([clocked(1_000)].into_iter().chain(of).chain(printed(0, 1)), 4 * S);
        let inside = report.vms[0].inside.as_ref().unwrap();
        assert_eq!((inside.divided, inside.undivided), (0, 1), "{missing}");
        assert_eq!(report.vms[0].requests.complete, 1);
    }
}

/// Within the error of the clock reports may seem to precede their causes; beyond it they are not believed.
#[test]
fn a_report_before_its_cause_is_told() {
    // The guest entry is 50 µs after the start, the kick 200 µs.
    for (times, error, divided) in [
        ([48, 75, 80, 110, 130, 170], 2_000, true),
        ([47, 75, 80, 110, 130, 170], 2_000, false),
        ([60, 75, 80, 110, 130, 196], 7_000, true),
        ([60, 75, 80, 110, 130, 225], 7_000, false),
        ([60, 59, 80, 110, 130, 170], 1_000, true),
        ([60, 57, 80, 110, 130, 170], 1_000, false),
    ] {
        let items = [clocked(error)].into_iter().chain(reports(0, 1, times)).chain(printed(0, 1));
        let report = report(items, 4 * S);
        let inside = report.vms[0].inside.as_ref().unwrap();
        assert_eq!((inside.divided, inside.violations), if divided { (1, 0) } else { (0, 1) }, "{times:?}");
        if divided {
            let one = report.vms[0].slowest[0].inside.unwrap();
            assert!([150_000, 160_000].contains(&one.parts.iter().sum::<u64>()), "{times:?}");
        }
    }
}

/// A guest that answers twice kicks once: the second answer is taken along. Only the guest knows that it was sent after the
/// kick; without its report that time would count as the worker's.
#[test]
fn a_kick_before_the_answer_was_sent_is_that_of_an_earlier_one() {
    let end = |times| {
        let items = [clocked(1_000)].into_iter().chain(reports(0, 1, times)).chain(printed(0, 1));
        let report = report(items, 4 * S);
        assert_eq!(report.vms[0].inside.as_ref().unwrap().divided, 1);
        let request = &report.vms[0].slowest[0];
        let of = |stage| request.stages.iter().find(|s| s.stage == stage).unwrap().ns / 1000;
        (
            request.coalesced_kick,
            of(Stage::Guest),
            of(Stage::VhostTx),
            request.inside.unwrap().parts[4] / 1000,
        )
    };
    // Sent 10 µs after it was begun; kicked at 200 µs, and on the tap at 210 µs.
    assert_eq!(end([60, 75, 80, 110, 130, 170]), (false, 150, 10, 30));
    assert_eq!(end([60, 75, 80, 110, 130, 195]), (true, 160, 0, 15));
}

/// What one guest reports says nothing about the packets of another, whatever prints it claims.
#[test]
fn a_guest_reports_for_itself_only() {
    let mapping = ClockMapping { own: T - BEHIND, host: T, rate: ClockMapping::EQUAL, error: 1_000 };
    let other = change(0, Changed::Clock { stream: GUEST, vm: VM2, mapping });
    let items = [other].into_iter().chain(reports(0, 1, [60, 75, 80, 110, 130, 170])).chain(printed(0, 1));
    let report = report(items, 4 * S);
    assert_eq!((report.vms[0].inside.as_ref(), report.vms[0].requests.complete), (None, 1));
}

/// A guest's kernel answers pings without any socket.
#[test]
fn what_the_guests_kernel_answers_has_no_part_of_an_application() {
    let sent = guest::EventKind::Sent { print: !1 ^ 0xabc, tid: 0, began: 0 };
    let received = guest::EventKind::Received { print: 2 ^ 0xabc, interrupted: 0 };
    let items = [clocked(1_000), of_guest(60_000, 0, received), of_guest(100_000, 0, sent)];
    let report = report(items.into_iter().chain(printed(0, 1)), 4 * S);
    let one = report.vms[0].slowest[0].inside.unwrap();
    assert_eq!(one.parts.map(|ns| ns / 1000), [10, 40, 0, 0, 100]);
}

/// Reports that came while the guest's clock was wrong by more than was known, and what a later measurement shows of it.
#[test]
fn a_request_is_not_divided_by_a_clock_that_was_wrong() {
    let measured = |t, error| {
        let mapping = ClockMapping { own: T + t - BEHIND, host: T + t, rate: ClockMapping::EQUAL, error };
        change(t, Changed::Clock { stream: GUEST, vm: VM, mapping })
    };
    let times = [60, 75, 80, 110, 130, 170];
    // 300 µs early, as after a pause; then the clock is measured again, twice.
    let early = reports(S - 300_000, 1, times).into_iter().chain(printed(S, 1));
    let while_in_doubt = reports(S + S / 2, 2, times).into_iter().chain(printed(S + S / 2, 2));
    let later = reports(3 * S, 3, times).into_iter().chain(printed(3 * S, 3));
    let items = [clocked(1_000)]
        .into_iter()
        .chain(early)
        .chain([measured(S + S / 4, 300_000)])
        .chain(while_in_doubt)
        .chain([measured(2 * S, 1_000)])
        .chain(later);
    let report = report(items, 4 * S);
    let inside = report.vms[0].inside.as_ref().unwrap();
    assert_eq!((inside.divided, inside.clock_unknown, inside.violations), (1, 2, 0));
    assert_eq!(
        inside.parts.iter().map(|part| part.dist.max / 1000).collect::<Vec<_>>(),
        [10, 15, 55, 40, 30]
    );
    assert_eq!(report.guests[0].clock_error, 300_000);
}

/// A service that creates a thread for each request, for longer than all its threads can be remembered.
#[test]
fn threads_of_any_number_of_requests_are_known() {
    const MANY: u64 = 6_000;
    let mut items = vec![clocked(1_000)];
    for n in 0..MANY {
        let (t, tid) = (n * 1_000_000, 1_000 + n as u32);
        for item in reports(t, n, [60, 75, 80, 110, 130, 170]) {
            let Item::Event(mut event) = item else { continue };
            if let EventKind::Guest(guest::EventKind::Sent { tid: of, .. }) = &mut event.kind {
                *of = tid;
                let started = T + t + 135_000 - BEHIND;
                let thread =
                    guest::EventKind::Thread { tid, process: 40, parent: 40, comm: [0; 16], started };
                items.push(of_guest(t + 136_000, 1, thread));
            }
            items.push(Item::Event(event));
        }
        items.extend(printed(t, n));
    }
    let report = report(items, MANY * 1_000_000);
    let inside = report.vms[0].inside.as_ref().unwrap();
    assert_eq!((inside.divided, inside.new_threads), (MANY, MANY));
}

/// An answer of one guest that reports is received by another one that does: it has a print of each.
#[test]
fn a_packet_between_two_guests_has_the_prints_of_both() {
    let mut items: Vec<Item> =
        [clocked(1_000)].into_iter().chain(reports(0, 1, [60, 75, 80, 110, 130, 170])).collect();
    for item in printed(0, 1) {
        items.push(item.clone());
        if let Item::Event(Event { kind: EventKind::Print(print), ts, .. }) = item {
            let print = Print { print: print.print ^ 0xfff, ..print };
            items.push(Item::Event(Event {
                ts: ts + 20_000,
                kind: EventKind::Print(print),
                stream: StreamId::HOST,
                cpu: 0,
            }));
        }
    }
    let report = report(items, 4 * S);
    assert_eq!(report.vms[0].inside.as_ref().unwrap().divided, 1);
}
