//! Events per second through `Analyzer::push`: sorting, joining and statistics together.
//!
//! A stream like that of a busy host: 20,000 requests per second of one VM, ten events each, from four CPUs whose
//! buffers are drained in turn every 10 ms.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::host::{DataPlane, Nic, Vm};
use teiji_model::report::{Counters, Meta};
use teiji_model::stage::{Split, ThreadState};
use teiji_model::stream::StreamId;

const REQUESTS: u64 = 100_000;
const TAP: u32 = 5;
const NIC: u32 = 2;
const VM: u32 = 77;
const WORKER: u32 = 99;

fn meta() -> Meta {
    let nic = Nic {
        tap: "tap0".into(),
        ifindex: TAP,
        mac: None,
        bridge: None,
        data_plane: DataPlane::VhostNet,
        queues: 1,
    };
    let vm = Vm {
        name: "vm".into(),
        pid: VM,
        vcpus: vec![],
        workers: vec![],
        nics: vec![nic],
        memory: None,
        memory_nodes: vec![],
        given: Vec::new(),
    };
    Meta { vms: vec![vm], ..Meta::default() }
}

fn stream() -> Vec<Event> {
    let mut events = Vec::new();
    for i in 0..REQUESTS {
        // Jitter, so that requests overlap.
        let noise = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        let t = 1_000_000_000 + i * 50_000 + noise;
        let worker = Some(Split([0, 0, t, 0, t / 4]));
        let clock = Split([t, 0, t / 2, t / 8, t / 4]);
        let packet = |point, out: bool| {
            let at_tap = matches!(point, Point::TapEnqueue | Point::TapSend);
            let role = if out { Role::Final } else { Role::Request };
            EventKind::Packet(Packet {
                point,
                fingerprint: (i * 2 + u64::from(out)).wrapping_mul(0xd6e8_feb8_6659_fd93),
                matching: at_tap.then_some(Match { key: i, role, group: 0, group_role: GroupRole::Within }),
                ifindex: if matches!(point, Point::HostRx | Point::DevQueue | Point::DevXmit) {
                    NIC
                } else {
                    TAP
                },
                len: 200,
                tid: WORKER,
                queue: (point == Point::TapSend).then_some(0),
                depth: (i % 5) as u16,
                worker,
                preempted_by: 0,
            })
        };
        let interrupt = EventKind::Interrupt(Interrupt {
            signalled: t + 25_000,
            ifindex: TAP,
            tid: WORKER,
            delivery: Delivery::Accepted,
            vm: VM,
            vcpu: 0,
            index: Some(0),
            vector: 40,
            state: Some(ThreadState::Asleep),
            clock,
        });
        let entry = EventKind::GuestEntry(GuestEntry {
            vm: VM,
            vcpu: 0,
            index: 0,
            vector: 40,
            upto: t + 30_000,
            clock,
            preempted_by: 0,
        });
        let kick =
            EventKind::Kick(Kick { ifindex: TAP, queue: 0, vm: VM, vcpu: 0, clock, worker, preempted_by: 0 });
        for (after, cpu, kind) in [
            (0, 0, packet(Point::HostRx, false)),
            (4_000, 0, packet(Point::TapEnqueue, false)),
            (20_000, 1, packet(Point::TapDequeue, false)),
            (28_000, 1, interrupt),
            (45_000, 2, entry),
            (90_000, 2, kick),
            (95_000, 1, packet(Point::TapSend, true)),
            (98_000, 1, packet(Point::DevQueue, true)),
            (99_000, 1, packet(Point::QdiscDequeue, true)),
            (100_000, 1, packet(Point::DevXmit, true)),
        ] {
            events.push(Event { ts: t + after, stream: StreamId::HOST, cpu, kind });
        }
    }
    // In the order of draining: by 10 ms, then by CPU, then by time.
    events.sort_by_key(|e| (e.ts / 10_000_000, e.cpu, e.ts));
    events
}

fn join(c: &mut Criterion) {
    let (meta, events) = (meta(), stream());
    let mut group = c.benchmark_group("analyzer");
    group.throughput(Throughput::Elements(events.len() as u64)).sample_size(10);
    group.bench_function("push", |b| {
        b.iter_batched(
            || Analyzer::new(&meta, Options { seed: 7, ..Options::default() }),
            |mut analyzer| {
                let mut joined = 0;
                for e in &events {
                    analyzer.push(*e, &mut |j| joined += usize::from(black_box(j).request.total > 0));
                }
                let report = analyzer.finish(Counters::default(), &mut |_| joined += 1);
                assert_eq!(report.vms[0].requests.complete, REQUESTS);
                assert_eq!(joined as u64, REQUESTS);
                report
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, join);
criterion_main!(benches);
