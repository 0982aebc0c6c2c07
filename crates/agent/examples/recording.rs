//! Writes a recording of simulated requests to a VM whose guest reports, to look at large reports:
//!
//! ```console
//! cargo run --release -p teiji-agent --example recording -- 100000 /tmp/large.teiji
//! teiji replay /tmp/large.teiji --format html --out /tmp/large.html
//! ```
//! Requests come every 2 ms or so; each 5 s a burst of 40 comes, and each 20 s the vCPUs lose their CPU for 30 ms. The numbers are
//! always the same.

use std::fs::File;
use std::io::BufWriter;
use teiji_model::event::*;
use teiji_model::flow::{Matching, Watch};
use teiji_model::guest;
use teiji_model::host::{DataPlane, Nic, Vcpu, Vm, Worker};
use teiji_model::recording::Writer;
use teiji_model::report::{Counters, Meta};
use teiji_model::stage::{Split, ThreadState};
use teiji_model::stream::{Change, Changed, ClockMapping, StreamId};

const T: u64 = 1_000_000_000;
const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const VM: u32 = 4240;
const WORKER: u32 = 4244;
const TAP: u32 = 5;
const NIC: u32 = 2;
const HOG: u32 = 900;
const GUEST: StreamId = StreamId(1);

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most.max(1)
    }

    /// Mostly little, sometimes much more.
    fn tail(&mut self, typical: u64) -> u64 {
        let exponent = self.below(1000).trailing_zeros().min(5);
        typical / 2 + self.below(typical << exponent)
    }
}

/// A thread of the VM and its clock.
struct Thread {
    tid: u32,
    vcpu: Option<u16>,
    nth: u32,
    state: ThreadState,
    since: u64,
    clock: Split,
}

impl Thread {
    fn new(tid: u32, vcpu: Option<u16>) -> Thread {
        Thread { tid, vcpu, nth: 0, state: ThreadState::Asleep, since: T, clock: Split::default() }
    }

    fn goes(&mut self, at: u64, state: ThreadState) {
        self.clock.0[self.state as usize] += at - self.since;
        (self.since, self.state) = (at, state);
    }

    /// Its clock at a time that is not before its last change.
    fn reading(&self, at: u64) -> Split {
        let mut clock = self.clock;
        clock.0[self.state as usize] += at - self.since;
        clock
    }

    fn told(&mut self, at: u64, state: ThreadState) -> EventKind {
        self.goes(at, state);
        let vcpu = self.vcpu.unwrap_or_default();
        EventKind::VcpuState(VcpuState {
            vm: VM,
            vcpu: vcpu.into(),
            index: Some(vcpu),
            state,
            clock: self.clock,
            preempted_by: HOG,
        })
    }

    fn start(&mut self, left: u64, woken: u64, waker: Waker) -> EventKind {
        self.nth += 1;
        let vcpu = self.vcpu.map(u32::from);
        EventKind::Start(Start {
            tid: self.tid,
            vm: VM,
            vcpu,
            left,
            slept: true,
            woken: Some(woken),
            waker,
            nth: self.nth,
        })
    }
}

fn meta() -> Meta {
    let vcpu = |index: u16| Vcpu {
        index,
        kvm_id: Some(index.into()),
        tid: 4242 + u32::from(index),
        cpus: "0-3".into(),
        last_cpu: 1,
    };
    let worker = Worker {
        tid: WORKER,
        comm: "vhost-4240".into(),
        kernel_thread: false,
        cpus: "0-3".into(),
        last_cpu: 2,
    };
    let nic = Nic {
        tap: "tap0".into(),
        ifindex: TAP,
        mac: None,
        bridge: Some("br0".into()),
        data_plane: DataPlane::VhostNet,
        queues: 1,
    };
    let vm = Vm {
        name: "sip1".into(),
        pid: VM,
        vcpus: vec![vcpu(0), vcpu(1)],
        workers: vec![worker],
        nics: vec![nic],
        memory: Some(512 << 20),
        memory_nodes: vec![512 << 20],
        given: Vec::new(),
    };
    Meta {
        teiji: env!("CARGO_PKG_VERSION").into(),
        host: "simulated".into(),
        kernel: "none".into(),
        started_unix: 1_790_000_000,
        started: T,
        watch: Watch { flow_text: "udp port 5060".into(), matching: Matching::Echo, ..Watch::default() },
        vms: vec![vm],
        devices: vec![(NIC, "eth0".into())],
    }
}

/// A request that comes at `t`, and `late` ns late to its vCPU. Returns its events, and when all threads sleep again.
fn request(n: u64, t: u64, late: u64, random: &mut Random, threads: &mut [Thread; 3]) -> (Vec<Event>, u64) {
    let [worker, takes, reads] = threads;
    let mut all = Vec::new();
    let mut host = |at: u64, kind| all.push(Event { ts: at, stream: StreamId::HOST, cpu: 0, kind });
    let (request, response) = (2 * n + 1, 2 * n + 2);
    let packet = |point, fingerprint, ifindex, matching: Option<Role>, clock: Option<Split>| {
        EventKind::Packet(Packet {
            point,
            fingerprint,
            matching: matching.map(|role| Match {
                key: n + 1,
                role,
                group: 0,
                group_role: GroupRole::Within,
            }),
            ifindex,
            len: 400,
            tid: WORKER,
            queue: (point == Point::TapSend).then_some(0),
            depth: 0,
            worker: clock,
            preempted_by: 0,
        })
    };
    use ThreadState::{Asleep, Guest, Ready, Run};
    host(t, packet(Point::HostRx, request, NIC, None, None));
    let put = t + 5 * US + random.below(5 * US);
    host(put, packet(Point::TapEnqueue, request, TAP, Some(Role::Request), Some(worker.reading(put))));
    host(put, EventKind::Print(Print { fingerprint: request, print: request }));
    // The worker.
    let (left, woken) = (worker.since, put + 3 * US);
    let ran = woken + random.tail(20 * US);
    worker.goes(ran, Run);
    host(ran, worker.start(left, woken, Waker::Interrupt));
    let taken = ran + 4 * US;
    host(taken, packet(Point::TapDequeue, request, TAP, None, Some(worker.reading(taken))));
    let signalled = taken + 6 * US + random.below(10 * US);
    let accepted = signalled + 3 * US;
    host(
        accepted,
        EventKind::Interrupt(Interrupt {
            signalled,
            ifindex: TAP,
            tid: WORKER,
            delivery: Delivery::Accepted,
            vm: VM,
            vcpu: 0,
            index: Some(0),
            vector: 40,
            state: Some(Asleep),
            clock: takes.reading(accepted),
        }),
    );
    worker.goes(accepted + 10 * US, Asleep);
    // The vCPU of the interrupt.
    let (left, woken) = (takes.since, accepted + 2 * US);
    host(woken + US, takes.told(woken + US, Ready));
    let ran = woken + random.tail(40 * US) + late;
    host(ran, takes.start(left, woken, Waker::Thread(WORKER)));
    let entered = ran + 8 * US;
    host(ran + US, takes.told(ran + US, Guest));
    let (vm, preempted_by) = (VM, if late > 0 { HOG } else { 0 });
    let (clock, upto) = (takes.reading(entered), accepted);
    host(
        entered,
        EventKind::GuestEntry(GuestEntry { vm, vcpu: 0, index: 0, vector: 40, upto, clock, preempted_by }),
    );
    let received = entered + 10 * US + random.tail(8 * US);
    let queued = received + 5 * US + random.tail(4 * US);
    host(queued + 20 * US, takes.told(queued + 20 * US, Asleep));
    // That of the application.
    let (left, woken) = (reads.since, queued + 6 * US);
    host(woken + US, reads.told(woken + US, Ready));
    let ran = (woken + random.tail(60 * US)).max(queued + 21 * US);
    host(ran, reads.start(left, woken, Waker::Thread(4242)));
    host(ran + US, reads.told(ran + US, Guest));
    let (reader_woken, reader_ran) = (queued + 4 * US, ran + 10 * US);
    let read = reader_ran + 5 * US;
    let began = read + random.tail(150 * US);
    let kicked = began + 15 * US + random.below(10 * US);
    let kick = Kick {
        ifindex: TAP,
        queue: 0,
        vm: VM,
        vcpu: 1,
        clock: reads.reading(kicked),
        worker: Some(worker.reading(kicked)),
        preempted_by: 0,
    };
    host(kicked, EventKind::Kick(kick));
    // The worker again.
    let (left, woken) = (worker.since, kicked + 2 * US);
    let ran = woken + random.tail(15 * US);
    worker.goes(ran, Run);
    host(ran, worker.start(left, woken, Waker::Thread(4243)));
    let sent = ran + 8 * US;
    host(sent, packet(Point::TapSend, response, TAP, Some(Role::Final), Some(worker.reading(sent))));
    host(sent, EventKind::Print(Print { fingerprint: response, print: response }));
    for (after, point) in [(4, Point::DevQueue), (5, Point::QdiscDequeue), (8, Point::DevXmit)] {
        host(sent + after * US, packet(point, response, NIC, None, None));
    }
    let end = sent + 20 * US;
    worker.goes(end, Asleep);
    host(end, reads.told(end, Asleep));
    let mut guest =
        |at: u64, cpu, kind| all.push(Event { ts: at, stream: GUEST, cpu, kind: EventKind::Guest(kind) });
    guest(received, 0, guest::EventKind::Received { print: request, interrupted: entered + 2 * US });
    guest(queued, 0, guest::EventKind::Queued { print: request, backlog: 0 });
    let (woken, running) = (reader_woken, reader_ran);
    guest(read, 1, guest::EventKind::Read { print: request, tid: 311, woken, running, woken_by: 0 });
    guest(kicked - 5 * US, 1, guest::EventKind::Sent { print: response, tid: 311, began });
    all.sort_by_key(|event| event.ts);
    (all, end)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(count), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("give a number of requests and a file".into());
    };
    let count: u64 = count.parse()?;
    let mut writer = Writer::new(BufWriter::new(File::create(path)?), &meta())?;
    let mapping = ClockMapping { own: T, host: T, rate: ClockMapping::EQUAL, error: 310 };
    writer.change(&Change { ts: T, what: Changed::Clock { stream: GUEST, vm: VM, mapping } })?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut threads = [Thread::new(WORKER, None), Thread::new(4242, Some(0)), Thread::new(4243, Some(1))];
    let (mut at, mut events, mut held) = (T + 10 * MS, 0, Vec::new());
    let names = [(HOG, "stress-ng-cpu"), (WORKER, "vhost-4240"), (4242, "CPU 0/KVM"), (4243, "CPU 1/KVM")];
    for (tid, name) in names {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        held.push(Event {
            ts: T,
            stream: StreamId::HOST,
            cpu: 0,
            kind: EventKind::ThreadName(ThreadName { tid, comm }),
        });
    }
    let comm = *b"sipp\0\0\0\0\0\0\0\0\0\0\0\0";
    let reader = guest::EventKind::Thread { tid: 311, process: 311, parent: 0, comm, started: 0 };
    held.push(Event { ts: T + 1, stream: GUEST, cpu: 1, kind: EventKind::Guest(reader) });
    for thread in &mut threads[1..] {
        held.push(Event { ts: T, stream: StreamId::HOST, cpu: 0, kind: thread.told(T, ThreadState::Asleep) });
    }
    for n in 0..count {
        let seconds = (at - T) / T;
        let burst = (at - T) % (5 * T) < 40 * MS;
        let late = if seconds % 20 == 13 && (at - T) % T < 30 * MS { 30 * MS - (at - T) % T } else { 0 };
        let (of_request, end) = request(n, at, late, &mut random, &mut threads);
        held.extend(of_request);
        // Frames of a recording have the events of one stream, in about the order of time, as a trace drains them.
        if held.len() > 2000 || n + 1 == count {
            held.sort_by_key(|event| {
                let kind = match event.kind {
                    _ if !event.stream.is_host() => 3,
                    EventKind::VcpuState(_) => 1,
                    EventKind::Start(_) => 2,
                    _ => 0,
                };
                (kind, event.ts)
            });
            events += held.iter().filter(|event| event.stream.is_host()).count() as u64;
            for event in held.drain(..) {
                writer.push(event)?;
            }
        }
        let gap = if burst { 30 * US } else { MS + random.below(2 * MS) };
        at = (at + gap).max(end + 30 * US);
    }
    writer.finish(&Counters { ended: at + T, events, ..Counters::default() })?;
    Ok(())
}
