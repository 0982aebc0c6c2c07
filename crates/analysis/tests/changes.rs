//! VMs that come, change and end during a trace, numbers that are used again, and guests that report events themselves.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::host::Vm;
use teiji_model::report::{Counters, Report};
use teiji_model::stream::{Change, Changed, ClockMapping, Item, StreamId};

const S: u64 = 1_000_000_000;
/// A tap and a VM that are not there at the start.
const TAP3: u32 = 7;
const VM3: u32 = 72;

/// A request to the VM with this process id by this tap, complete, from `t` on, ns after [`T`].
fn request(t: u64, key: u64, tap: u32, pid: u32) -> Vec<Event> {
    let mut h = History::default();
    h.request(t, key + 1, m(key, Role::Request)).response(t + 200_000, !key, m(key, Role::Final));
    for event in &mut h.0 {
        match &mut event.kind {
            EventKind::Packet(p) if p.ifindex == TAP => p.ifindex = tap,
            EventKind::Interrupt(i) => (i.ifindex, i.vm) = (tap, pid),
            EventKind::GuestEntry(e) => e.vm = pid,
            EventKind::Kick(k) => (k.ifindex, k.vm) = (tap, pid),
            _ => {}
        }
    }
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

    /// Whatever guests report, and whatever clocks they have: the host's view stays the same.
    #[test]
    fn guests_change_nothing_of_the_hosts_view(
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
        prop_assert_eq!(Report { guests: vec![], ..told }, alone);
    }
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
        .chain([of_guest(S)]); // Later than the analysis waits.
    let report = report(items, 4 * S);
    let [guest] = report.guests[..] else { panic!("{:?}", report.guests) };
    assert_eq!((guest.vm, guest.events, guest.refused, guest.clock_error), (VM, 2, 1, 300));
    assert_eq!(report.late, 0, "a guest's events are no loss of the host's");
}
