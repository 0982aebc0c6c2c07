use super::*;
use crate::event::*;
use crate::flow::{Key, Matching, Watch};
use crate::guest;
use crate::host::{DataPlane, GivenNic, Nic, Vcpu, VirtualFunction, Vm, Worker};
use crate::report::{Counters, Meta};
use crate::stage::{Split, ThreadState};
use crate::stream::{Change, Changed, ClockMapping, Item, StreamId};
use proptest::prelude::*;
use samples::{observed, sample};

mod samples;

fn meta() -> Meta {
    Meta {
        teiji: "0.1.0".into(),
        host: "h".into(),
        kernel: "6.1".into(),
        started_unix: 1,
        started: 2,
        watch: Watch::default(),
        vms: vec![Vm {
            name: "sip1".into(),
            pid: 7,
            vcpus: vec![Vcpu { index: 0, kvm_id: Some(0), tid: 8, cpus: "0-3".into(), last_cpu: 1 }],
            workers: vec![Worker {
                tid: 9,
                comm: "vhost-7".into(),
                kernel_thread: true,
                cpus: "0-3".into(),
                last_cpu: 2,
            }],
            nics: vec![Nic {
                tap: "tap0".into(),
                ifindex: 5,
                mac: None,
                bridge: None,
                data_plane: DataPlane::VhostNet,
                queues: 1,
            }],
            memory: None,
            memory_nodes: vec![],
            given: Vec::new(),
        }],
        devices: vec![(1, "lo".into()), (2, "eth0".into())],
    }
}

fn packet(ts: u64) -> Event {
    Event {
        ts,
        stream: StreamId::HOST,
        cpu: 3,
        kind: EventKind::Packet(Packet {
            point: Point::TapDequeue,
            fingerprint: ts.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            matching: Some(Match { key: ts, role: Role::Request, group: 0, group_role: GroupRole::Within }),
            ifindex: 5,
            len: 100,
            tid: 9,
            queue: None,
            depth: 2,
            worker: Some(Split([0, 0, ts, 1, 2])),
            preempted_by: 0,
        }),
    }
}

fn small() -> Vec<u8> {
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    w.push(packet(1)).unwrap();
    w.push(Event {
        ts: 2,
        stream: StreamId::HOST,
        cpu: 0,
        kind: EventKind::ThreadName(ThreadName { tid: 9, comm: *b"vhost-7\0\0\0\0\0\0\0\0\0" }),
    })
    .unwrap();
    w.push(Event {
        ts: 3,
        stream: StreamId::HOST,
        cpu: 0,
        kind: EventKind::Lost(Lost { since: 1, count: 4 }),
    })
    .unwrap();
    w.observed(&observed()).unwrap();
    w.sample(&sample(1)).unwrap();
    w.sample(&sample(2)).unwrap();
    w.finish(&Counters { ended: 9, events: 3, lost: vec![0, 4], unidentified: 1, ..Counters::default() })
        .unwrap()
}

#[test]
fn what_is_written_is_read() {
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    let events: Vec<Event> = (0..3 * u64::from(MAX_EVENTS) + 5).map(packet).collect();
    for e in &events {
        w.push(*e).unwrap();
    }
    let counters = Counters { ended: 1, events: events.len() as u64, lost: vec![], ..Counters::default() };
    let file = w.finish(&counters).unwrap();
    let mut r = Reader::new(&file[..]).unwrap();
    assert_eq!(r.meta(), &meta());
    for e in &events {
        assert_eq!(r.counters(), None);
        assert_eq!(r.next().unwrap(), Some(Item::Event(*e)));
    }
    assert_eq!(r.next().unwrap(), None);
    assert_eq!(r.counters(), Some(&counters));
    assert_eq!(r.next().unwrap(), None);
}

#[test]
fn a_recording_without_events_is_whole() {
    let file = Writer::new(Vec::new(), &meta()).unwrap().finish(&Counters::default()).unwrap();
    assert_eq!(fuzz(&file).unwrap(), 0);
}

#[test]
fn every_truncation_is_told_with_its_place() {
    let file = small();
    assert!(matches!(fuzz(&[]), Err(Error::NotARecording)));
    for cut in 1..file.len() {
        match fuzz(&file[..cut]) {
            Err(Error::Truncated { at }) => assert_eq!(at, cut as u64),
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let file = small();
    assert_eq!(fuzz(&file).unwrap(), 3);
    for byte in 0..file.len() {
        for bit in 0..8 {
            let mut bad = file.clone();
            bad[byte] ^= 1 << bit;
            assert!(fuzz(&bad).is_err(), "bit {bit} of byte {byte} goes unnoticed");
        }
    }
}

#[test]
fn other_versions_are_named() {
    let with = |version: u16, reader: u16| {
        let mut file = small();
        file[8..16].copy_from_slice(&preamble(version, reader));
        file
    };
    let message = fuzz(&with(VERSION + 2, VERSION + 1)).unwrap_err().to_string();
    assert!(
        message.contains(&format!("version {}", VERSION + 1))
            && message.contains(&format!("reads versions 1 to {VERSION}"))
            && message.contains("newer"),
        "{message}"
    );
    let mut file = small();
    file[8] = 0;
    assert!(fuzz(&file).unwrap_err().to_string().contains("older"));
    // A later version that this one can read.
    assert_eq!(fuzz(&with(VERSION + 1, VERSION)).unwrap(), 3);
    let mut file = with(VERSION + 1, VERSION);
    file[10] = 1;
    assert!(matches!(fuzz(&file), Err(Error::Checksum { at: 8 })));
}

#[test]
fn unknown_frames_are_skipped_if_they_may_be() {
    let events = (EVENTS, [vec![1], postcard::to_stdvec(&packet(1)).unwrap()].concat());
    let end = (END, postcard::to_stdvec(&Counters::default()).unwrap());
    let with =
        |kind| forged(&[header(&meta()), (kind, vec![1, 2, 3]), events.clone(), (kind, vec![]), end.clone()]);
    assert_eq!(fuzz(&with(MIGRATIONS + 1)).unwrap(), 1);
    assert_eq!(fuzz(&with(u8::MAX)).unwrap(), 1);
    assert!(fuzz(&with(OPTIONAL - 1)).is_err());
}

fn vcpu_state(ts: u64) -> Event {
    let state = VcpuState {
        vm: 7,
        vcpu: 4,
        index: Some(3),
        state: ThreadState::Ready,
        clock: Split([3, 2, ts, 4, 6]),
        preempted_by: 13,
    };
    Event { kind: EventKind::VcpuState(state), ..packet(ts) }
}

fn start(ts: u64) -> Event {
    let start = Start {
        tid: 71,
        vm: 7,
        vcpu: Some(4),
        left: 1,
        slept: true,
        woken: Some(ts),
        waker: Waker::Thread(13),
        nth: 5,
    };
    Event { kind: EventKind::Start(start), ..packet(ts) }
}

/// What vCPUs did, and when threads started, is in frames of their own, in the order in which it came; former readers skip
/// what they do not know.
#[test]
fn states_and_starts_are_skipped_by_a_former_reader() {
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    let events = [
        packet(1),
        vcpu_state(2),
        vcpu_state(1),
        packet(3),
        of_guest(4, 1),
        vcpu_state(5),
        start(6),
        start(5),
    ];
    for event in events {
        w.push(event).unwrap();
    }
    w.push(nic_loss(7)).unwrap();
    w.push(wait(8)).unwrap();
    let file = w.finish(&Counters { ended: 9, events: 8, ..Counters::default() }).unwrap();
    let read = |file: &[u8]| {
        let (mut reader, mut items) = (Reader::new(file).unwrap(), Vec::new());
        while let Some(item) = reader.next().unwrap() {
            items.push(item);
        }
        items
    };
    let all = events.into_iter().chain([nic_loss(7), wait(8)]);
    assert_eq!(read(&file), all.map(Item::Event).collect::<Vec<_>>());
    // What a former reader requires of the preamble, and how it reads the rest.
    assert_eq!(file[10..12], 3u16.to_le_bytes());
    let mut former = file;
    former[8..16].copy_from_slice(&preamble(6, 3));
    assert_eq!(
        read(&former),
        [&events[..], &[nic_loss(7)]].concat().iter().map(|e| Item::Event(*e)).collect::<Vec<_>>()
    );
    former[8..16].copy_from_slice(&preamble(5, 3));
    assert_eq!(read(&former), events.map(Item::Event));
    former[8..16].copy_from_slice(&preamble(4, 3));
    assert_eq!(read(&former), events[..6].iter().map(|e| Item::Event(*e)).collect::<Vec<_>>());
    former[8..16].copy_from_slice(&preamble(3, 3));
    assert_eq!(read(&former), [packet(1), packet(3), of_guest(4, 1)].map(Item::Event));
}

fn wait(ts: u64) -> Event {
    let wait = Wait {
        tid: 71,
        vm: 7,
        vcpu: Some(4),
        state: ThreadState::Ready,
        clock: Split([1, 2, 3, ts, 5]),
        preempted_by: 13,
    };
    Event { kind: EventKind::Wait(wait), ..packet(ts) }
}

fn nic_loss(ts: u64) -> Event {
    let loss = NicLoss { ifindex: 2, counter: NicCounter::RxMissedErrors, packets: 1 << 40 };
    Event { ts, stream: StreamId::HOST, cpu: 0, kind: EventKind::NicLoss(loss) }
}

/// What is recorded of a NIC that was given to a VM: an interrupt, a packet as the guest tells of it, the NIC.
fn of_given(ts: u64) -> ([Event; 2], Change) {
    let interrupt = DeviceInterrupt {
        began: ts - 1,
        irq: 40,
        delivery: Delivery::Accepted,
        vm: 70,
        vcpu: 4,
        vector: 35,
        by_hardware: true,
    };
    let matched = guest::Matched {
        print: 1 << 60,
        key: 7,
        role: Role::Either,
        sent: false,
        interrupted: ts - 1,
        previous: ts - 2,
        own: true,
        vendor: 0x8086,
        device: 0x10ca,
    };
    let function = VirtualFunction { physical: "0000:01:00.0".into(), link: Some("eth1".into()), number: 2 };
    let (address, function) = ("0000:01:10.4".to_owned(), Some(function));
    let nics = vec![GivenNic { address, vendor: 0x8086, device: 0x10ca, function }];
    let events = [
        Event { kind: EventKind::DeviceInterrupt(interrupt), ..packet(ts) },
        Event { kind: EventKind::Guest(guest::EventKind::Matched(matched)), ..of_guest(ts, 1) },
    ];
    (events, Change { ts, what: Changed::Given { pid: 70, nics } })
}

#[test]
fn what_came_by_given_nics_is_skipped_by_a_former_reader() {
    let (events, given) = of_given(5);
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    w.push(packet(1)).unwrap();
    w.change(&given).unwrap();
    for event in [events[0], of_guest(6, 1), events[1], packet(7)] {
        w.push(event).unwrap();
    }
    let mut file = w.finish(&Counters::default()).unwrap();
    let all = |file: &[u8]| {
        let mut reader = Reader::new(file).unwrap();
        std::iter::from_fn(|| reader.next().unwrap()).collect::<Vec<_>>()
    };
    let event = Item::Event;
    let (known, change) = ([packet(1), of_guest(6, 1), packet(7)].map(event), Item::Change(given));
    let [interrupt, matched] = events.map(event);
    let [first, second, third] = known.clone();
    assert_eq!(all(&file), [first, change, interrupt, second, matched, third]);
    assert_eq!(file[10..12], 3u16.to_le_bytes());
    file[8..16].copy_from_slice(&preamble(6, 3));
    assert_eq!(all(&file), known);
    // A NIC without a tap is in the header; a reader that does not expect that must not read it.
    let mut without_tap = meta();
    without_tap.vms[0].nics[0].ifindex = 0;
    assert_eq!(super::reader_of(&without_tap), 7);
}

fn of_guest(ts: u64, stream: u16) -> Event {
    Event { stream: StreamId(stream), ..packet(ts) }
}

fn changes() -> [Change; 3] {
    let vm = Vm { pid: 70, ..meta().vms[0].clone() };
    let mapping = ClockMapping { own: 5, host: 9, rate: ClockMapping::EQUAL, error: 3 };
    [
        Change { ts: 4, what: Changed::Vm(Box::new(vm)) },
        Change { ts: 5, what: Changed::Clock { stream: StreamId(2), vm: 70, mapping } },
        Change { ts: 6, what: Changed::Ended { pid: 7 } },
    ]
}

#[test]
fn changes_and_guests_events_are_read_with_the_hosts() {
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    w.push(packet(1)).unwrap();
    w.push(of_guest(700, 2)).unwrap();
    w.push(of_guest(900, 1)).unwrap();
    w.push(packet(2)).unwrap();
    for change in changes() {
        w.change(&change).unwrap();
    }
    w.push(of_guest(800, 2)).unwrap();
    w.push(packet(3)).unwrap();
    let counters = Counters { ended: 9, events: 3, ..Counters::default() };
    let file = w.finish(&counters).unwrap();
    let mut r = Reader::new(&file[..]).unwrap();
    let mut items = Vec::new();
    while let Some(item) = r.next().unwrap() {
        items.push(item);
    }
    let [come, clock, end] = changes().map(Item::Change);
    let event = Item::Event;
    let first = [event(packet(1)), event(of_guest(700, 2)), event(of_guest(900, 1)), event(packet(2))];
    let last = [come, clock, end, event(of_guest(800, 2)), event(packet(3))];
    assert_eq!(items, first.into_iter().chain(last).collect::<Vec<_>>());
    // The end of an unfinished trace is a time of the host.
    let cut = unfinished(&file[..file.len() - 1]).unwrap();
    assert_eq!((cut.0, cut.1.ended), (6, 3));
}

#[test]
fn what_a_reader_would_refuse_is_not_written() {
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    let refused = |done: Result<(), Error>| matches!(done, Err(Error::Malformed { .. }));
    assert!(refused(w.push(of_guest(1, StreamId::MOST as u16))));
    assert!(refused(w.push(Event { cpu: 4096, ..of_guest(1, 1) })));
    let [come, ..] = changes();
    let Changed::Vm(mut vm) = come.what else { unreachable!() };
    vm.nics[0].ifindex = 0;
    assert!(refused(w.change(&Change { ts: 1, what: Changed::Vm(vm) })));
    let mapping = ClockMapping::IDENTITY;
    assert!(refused(
        w.change(&Change { ts: 1, what: Changed::Clock { stream: StreamId::HOST, vm: 1, mapping } })
    ));
    let end = (END, postcard::to_stdvec(&Counters::default()).unwrap());
    let with = |kind, payload: Vec<u8>| fuzz(&forged(&[header(&meta()), (kind, payload), end.clone()]));
    let events = [vec![1], postcard::to_stdvec(&packet(1)).unwrap()].concat();
    assert_eq!(with(OF_STREAM, [vec![2], events.clone()].concat()).unwrap(), 1);
    for malformed in [
        [vec![0], events.clone()].concat(),
        [vec![StreamId::MOST as u8], events].concat(),
        vec![],
        vec![2],
        vec![2, 9],
    ] {
        assert!(with(OF_STREAM, malformed).is_err());
    }
    assert!(with(CHANGE, vec![1, 2, 3]).is_err());
}

/// What is read of a recording that is not complete: the number of events, and the counters.
fn unfinished(file: &[u8]) -> Result<(u64, Counters, bool), Error> {
    let mut reader = Reader::unfinished(file)?;
    let mut events = 0;
    while let Some(item) = reader.next()? {
        events += u64::from(item.event().is_some());
    }
    Ok((events, reader.counters().cloned().unwrap(), reader.is_cut()))
}

#[test]
fn an_unfinished_recording_is_read_as_far_as_it_goes() {
    let so_far = |ended, events| Counters { ended, events, ..Counters::default() };
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    let mut ends = vec![w.written()];
    for n in 1..=3 {
        w.push(packet(n * 10)).unwrap();
        w.sync(&so_far(n * 10 + 5, n)).unwrap();
        ends.push(w.written());
    }
    w.push(packet(99)).unwrap();
    let file = w.finish(&so_far(100, 4)).unwrap();
    assert_eq!(fuzz(&file).unwrap(), 4);
    assert_eq!(unfinished(&file).unwrap(), (4, so_far(100, 4), false));
    for cut in 0..file.len() {
        let whole = ends.iter().filter(|end| **end <= cut).count();
        match unfinished(&file[..cut]) {
            Err(Error::NotARecording | Error::Truncated { .. }) => assert_eq!(whole, 0, "{cut}"),
            Err(error) => panic!("{cut}: {error}"),
            Ok((events, counters, is_cut)) => {
                let n = whole as u64 - 1;
                assert!(is_cut && (n..=n + 1).contains(&events), "{cut}");
                // An event that came after the last counters makes the trace as long as that.
                let ended = if events > n {
                    [10, 20, 30, 99][n as usize]
                } else if n == 0 {
                    0
                } else {
                    n * 10 + 5
                };
                assert_eq!((counters.events, counters.ended), (n, ended), "{cut}");
            }
        }
        if cut > 0 {
            assert!(fuzz(&file[..cut]).is_err());
        }
    }
}

/// Files that teijis of former format versions wrote, with an event of each kind.
#[test]
fn recordings_of_versions_2_to_8_are_read() {
    let files = [
        &include_bytes!("data/version-2.teiji")[..],
        include_bytes!("data/version-3.teiji"),
        include_bytes!("data/version-4.teiji"),
        include_bytes!("data/version-5.teiji"),
        include_bytes!("data/version-6.teiji"),
        include_bytes!("data/version-7.teiji"),
        include_bytes!("data/version-8.teiji"),
    ];
    for (version, file) in (2..).zip(files) {
        let mut old = Reader::new(file).unwrap();
        let mut new = Reader::new(&include_bytes!("data/version-9.teiji")[..]).unwrap();
        assert_eq!(old.meta(), new.meta());
        loop {
            let new = || new.next().unwrap();
            let a = old.next().unwrap();
            let is_new = |item: &Option<Item>| match item {
                Some(Item::Event(e)) => match e.kind {
                    EventKind::VcpuState(_) => version < 4,
                    EventKind::Start(_) => version < 5,
                    EventKind::NicLoss(_) => version < 6,
                    EventKind::DeviceInterrupt(_)
                    | EventKind::Guest(guest::EventKind::Matched(_))
                    | EventKind::Wait(_) => version < 7,
                    _ => false,
                },
                Some(Item::Change(change)) => matches!(change.what, Changed::Given { .. }) && version < 7,
                Some(Item::Observed(_) | Item::Sample(_)) => version < 8,
                None => false,
            };
            let mut b = std::iter::repeat_with(new).find(|item| !is_new(item)).unwrap();
            if let Some(Item::Sample(sample)) = &mut b
                && version < 9
            {
                sample.rate_limits.clear();
                sample.migrations.clear();
            }
            assert_eq!(a, b);
            if a.is_none() {
                break;
            }
        }
        assert_eq!(old.counters(), new.counters());
    }
}

/// A teiji of format version 3 reads what has nothing new in it, and refuses the rest by name instead of failing within.
#[test]
fn a_recording_asks_for_no_more_than_it_has() {
    let with = |matching| {
        let mut m = meta();
        m.watch.matching = matching;
        let file = Writer::new(Vec::new(), &m).unwrap().finish(&Counters::default()).unwrap();
        assert_eq!(Reader::new(&file[..]).unwrap().meta(), &m);
        u16::from_le_bytes([file[10], file[11]])
    };
    assert_eq!([Matching::Echo, Matching::None].map(with), [3; 2]);
    let key = Matching::Key(Key::new(2, 4).unwrap());
    assert_eq!(with(Matching::Dns), 4);
    assert_eq!([Matching::Sip, Matching::Tcp, key].map(with), [5; 3]);
    let of = |plane| {
        let mut m = meta();
        m.vms[0].nics[0].data_plane = plane;
        super::reader_of(&m)
    };
    assert_eq!([DataPlane::VhostNet, DataPlane::Userspace].map(of), [3; 2]);
    assert_eq!([DataPlane::VhostMacvtap, DataPlane::Passthrough, DataPlane::VhostUser].map(of), [5; 3]);
}

/// The format consists of the serialized data types: a change of a type changes the format. [`VERSION`] then has to be
/// incremented, and the former types kept, as those of version 1 are.
#[test]
fn what_is_written_has_not_changed_without_a_new_version() {
    let mut w = Writer::new(Vec::new(), &meta()).unwrap();
    let mut version_1 = Reader::new(VERSION_1).unwrap();
    // Events of each kind, as version 1 has them.
    while let Some(item) = version_1.next().unwrap() {
        w.push(*item.event().unwrap()).unwrap();
    }
    w.push(packet(100)).unwrap();
    w.push(vcpu_state(101)).unwrap();
    w.push(start(102)).unwrap();
    w.push(nic_loss(103)).unwrap();
    let (events, given) = of_given(104);
    events.into_iter().for_each(|event| w.push(event).unwrap());
    w.change(&given).unwrap();
    w.push(wait(107)).unwrap();
    w.observed(&observed()).unwrap();
    let plain = w.written();
    // How well they are compressed is free.
    w.sample(&sample(1)).unwrap();
    w.sample(&sample(2)).unwrap();
    let counters =
        Counters { ended: 9, events: 7, lost: vec![0, 4], missed: 3, unidentified: 1, vanished: vec![7] };
    let file = w.finish(&counters).unwrap();
    let kept: &[u8] = include_bytes!("data/version-9.teiji");
    assert_eq!(kept[8..10], VERSION.to_le_bytes(), "keep a file of the new version");
    let changed = || format!("version {VERSION} is no longer written as it was: {}", hex(&file));
    assert!(file.get(..plain) == kept.get(..plain), "{}", changed());
    assert!(all(&file) == all(kept), "{}", changed());
}

/// All items of a recording, and its counters.
fn all(file: &[u8]) -> (Vec<Item>, Counters) {
    let mut reader = Reader::new(file).unwrap();
    let items = std::iter::from_fn(|| reader.next().unwrap()).collect();
    (items, reader.counters().cloned().unwrap())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A file that a teiji of format version 1 wrote, with an event of each kind.
const VERSION_1: &[u8] = include_bytes!("data/version-1.teiji");

#[test]
fn a_recording_of_version_1_is_read() {
    let mut r = Reader::new(VERSION_1).unwrap();
    let vm = &r.meta().vms[0];
    assert_eq!((vm.name.as_str(), vm.nics[0].tap.as_str(), vm.memory), ("sip1", "tap0", Some(1 << 29)));
    assert_eq!((vm.vcpus[0].index, vm.vcpus[0].kvm_id, vm.vcpus[0].tid), (3, Some(3), 8));
    assert_eq!(r.meta().devices, [(1, "lo".into()), (2, "eth0".into())]);
    let worker = Some(Split([0, 0, 5, 1, 2]));
    let matching = Some(Match { key: 77, role: Role::Final, group: 1, group_role: GroupRole::Ends });
    let kinds = [
        EventKind::Packet(Packet {
            point: Point::TapSend,
            fingerprint: 0x1234_5678_9abc_def0,
            matching,
            ifindex: 5,
            len: 100,
            tid: 9,
            queue: Some(0),
            depth: 2,
            worker,
            preempted_by: 11,
        }),
        EventKind::Interrupt(Interrupt {
            signalled: 1,
            ifindex: 5,
            tid: 9,
            delivery: Delivery::Suppressed,
            vm: 7,
            vcpu: 3,
            index: Some(3),
            vector: 40,
            state: Some(ThreadState::Asleep),
            clock: Split([1, 2, 3, 4, 5]),
        }),
        EventKind::GuestEntry(GuestEntry {
            vm: 7,
            vcpu: 3,
            index: 3,
            vector: 40,
            upto: 3,
            clock: Split([2, 2, 3, 4, 6]),
            preempted_by: 12,
        }),
        EventKind::Kick(Kick {
            ifindex: 5,
            queue: 0,
            vm: 7,
            vcpu: 3,
            clock: Split([3, 2, 3, 4, 6]),
            worker: Some(Split([0, 0, 6, 1, 2])),
            preempted_by: 13,
        }),
        EventKind::ThreadName(ThreadName { tid: 9, comm: *b"vhost-7\0\0\0\0\0\0\0\0\0" }),
        EventKind::Lost(Lost { since: 1, count: 4 }),
    ];
    for (i, kind) in kinds.into_iter().enumerate() {
        let event = Event { ts: 10 + i as u64, stream: StreamId::HOST, cpu: 1, kind };
        assert_eq!(r.next().unwrap(), Some(Item::Event(event)));
    }
    assert_eq!(r.next().unwrap(), None);
    let counters =
        Counters { ended: 99, events: 6, lost: vec![0, 4], missed: 0, unidentified: 1, vanished: vec![7] };
    assert_eq!(r.counters(), Some(&counters));
}

#[test]
fn bytes_after_the_end_are_refused() {
    let mut file = small();
    let at = file.len() as u64;
    file.push(0);
    assert!(matches!(fuzz(&file), Err(Error::Trailing { at: a }) if a == at));
}

/// A file with a header, then `frames`, each with a correct checksum.
fn forged(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend(preamble(VERSION, VERSION));
    for (kind, payload) in frames {
        let len = payload.len() as u32;
        file.push(*kind);
        file.extend(len.to_le_bytes());
        file.extend(checksum(*kind, len, payload).to_le_bytes());
        file.extend(payload);
    }
    file
}

fn header(m: &Meta) -> (u8, Vec<u8>) {
    (HEADER, postcard::to_stdvec(m).unwrap())
}

#[test]
fn forged_headers_are_refused() {
    let mut many = meta();
    many.vms = (0..1025).map(|i| Vm { pid: i, nics: vec![], ..meta().vms[0].clone() }).collect();
    let mut twice = meta();
    twice.vms.push(Vm { pid: 70, ..meta().vms[0].clone() });
    let mut long = meta();
    long.host = "x".repeat(257);
    let mut devices = meta();
    devices.devices.push((1, "again".into()));
    let mut flow = meta();
    flow.watch.flow.version = Some(5);
    for bad in [many, twice, long, devices, flow] {
        assert!(matches!(fuzz(&forged(&[header(&bad)])), Err(Error::Malformed { at: 16, .. })));
        assert!(matches!(Writer::new(Vec::new(), &bad), Err(Error::Malformed { .. })));
    }
}

#[test]
fn forged_frames_are_refused() {
    let good = header(&meta());
    for (frame, part) in [
        ((EVENTS, postcard::to_stdvec(&u32::MAX).unwrap()), "more events"),
        ((EVENTS, postcard::to_stdvec(&1u32).unwrap()), "more events"),
        ((EVENTS, vec![0]), "no events"),
        ((EVENTS, vec![]), "no count"),
        ((EVENTS, [vec![1], vec![0xff; 40]].concat()), "not an event"),
        ((EVENTS, postcard::to_stdvec(&(1u32, packet(1), 0u8)).unwrap()), "after the last event"),
        ((END, postcard::to_stdvec(&(Counters::default(), 0u8)).unwrap()), "after its contents"),
        (good.clone(), "second Header"),
        ((9, vec![]), "unknown type"),
        ((SO_FAR, vec![0xff]), "cannot be decoded"),
    ] {
        let message = fuzz(&forged(&[good.clone(), frame])).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    assert!(fuzz(&forged(&[(EVENTS, vec![0])])).unwrap_err().to_string().contains("first frame"));
    let mut huge = forged(&[good]);
    huge.extend([EVENTS, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert!(matches!(fuzz(&huge), Err(Error::TooLarge { len: u32::MAX, .. })));
}

#[test]
fn io_errors_keep_their_source() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("disc on fire"))
        }
    }
    let Err(e) = Reader::new(Broken) else { panic!("reads") };
    let source = std::error::Error::source(&e).unwrap();
    assert_eq!(source.to_string(), "disc on fire");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = fuzz(&data);
        let old = |frames: &[(u8, Vec<u8>)]| {
            let mut file = forged(frames);
            file.drain(10..16);
            file[8] = 1;
            fuzz(&file)
        };
        let _ = old(&[(HEADER, data.clone())]);
        let _ = old(&[(EVENTS, data.clone())]);
        let _ = fuzz(&forged(&[(HEADER, data.clone())]));
        let _ = fuzz(&forged(&[header(&meta()), (EVENTS, data.clone()), (END, data)]));
    }

    #[test]
    fn mutations_never_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        // The checksums are corrected afterwards, so that the decoder sees the mutations.
        let mut m = postcard::to_stdvec(&meta()).unwrap();
        let mut e = postcard::to_stdvec(&vec![packet(1), packet(1 << 40), packet(77)]).unwrap();
        for (i, b) in edits {
            let i = i.index(m.len() + e.len());
            if i < m.len() { m[i] = b } else { let i = i - m.len(); e[i] = b }
        }
        let _ = fuzz(&forged(&[(HEADER, m), (EVENTS, e.clone())]));
        let _ = fuzz(&forged(&[header(&meta()), (EVENTS, e)]));
    }
}
