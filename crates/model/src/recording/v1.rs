//! The types of format version 1, and their conversion into the present ones.
//!
//! Version 1 had one number for a vCPU: the VMM's index for threads, and KVM's number in the kernel's reports. It had
//! no queues and did not count missed runs of probes. Its events are read as if every tap had one queue and both
//! numbers of a vCPU were equal, as the teiji of that version assumed.

use crate::event::{self, Delivery, Lost, Match, Point, ThreadName};
use crate::flow::Watch;
use crate::host::{self, Nic, Worker};
use crate::report;
use crate::stage::{Split, ThreadState};
use crate::stream::StreamId;
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Meta {
    teiji: String,
    host: String,
    kernel: String,
    started_unix: u64,
    started: u64,
    watch: Watch,
    vms: Vec<Vm>,
    devices: Vec<(u32, String)>,
}

#[derive(Deserialize)]
struct Vm {
    name: String,
    pid: u32,
    vcpus: Vec<Vcpu>,
    workers: Vec<Worker>,
    nics: Vec<Nic>,
    memory: Option<u64>,
    memory_nodes: Vec<u64>,
}

#[derive(Deserialize)]
struct Vcpu {
    index: u16,
    tid: u32,
    cpus: String,
    last_cpu: u32,
}

#[derive(Deserialize)]
pub(super) struct Counters {
    ended: u64,
    events: u64,
    lost: Vec<u64>,
    unidentified: u64,
    vanished: Vec<u32>,
}

#[derive(Deserialize)]
pub(super) struct Event {
    ts: u64,
    cpu: u16,
    kind: EventKind,
}

#[derive(Deserialize)]
enum EventKind {
    Packet(Packet),
    Interrupt(Interrupt),
    GuestEntry(GuestEntry),
    Kick(Kick),
    ThreadName(ThreadName),
    Lost(Lost),
}

#[derive(Deserialize)]
struct Packet {
    point: Point,
    fingerprint: u64,
    matching: Option<Match>,
    ifindex: u32,
    len: u32,
    tid: u32,
    depth: u16,
    worker: Option<Split>,
    preempted_by: u32,
}

#[derive(Deserialize)]
struct Interrupt {
    signalled: u64,
    ifindex: u32,
    tid: u32,
    delivery: Delivery,
    vm: u32,
    vcpu: u16,
    vector: u8,
    state: Option<ThreadState>,
    clock: Split,
}

#[derive(Deserialize)]
struct GuestEntry {
    vm: u32,
    vcpu: u16,
    vector: u8,
    upto: u64,
    clock: Split,
    preempted_by: u32,
}

#[derive(Deserialize)]
struct Kick {
    ifindex: u32,
    vm: u32,
    vcpu: u16,
    clock: Split,
    worker: Option<Split>,
    preempted_by: u32,
}

impl From<Meta> for report::Meta {
    fn from(m: Meta) -> Self {
        let Meta { teiji, host, kernel, started_unix, started, watch, vms, devices } = m;
        let vms = vms.into_iter().map(host::Vm::from).collect();
        report::Meta { teiji, host, kernel, started_unix, started, watch, vms, devices }
    }
}

impl From<Vm> for host::Vm {
    fn from(v: Vm) -> Self {
        let Vm { name, pid, vcpus, workers, nics, memory, memory_nodes } = v;
        let vcpu = |Vcpu { index, tid, cpus, last_cpu }| host::Vcpu {
            index,
            kvm_id: Some(index.into()),
            tid,
            cpus,
            last_cpu,
        };
        let vcpus = vcpus.into_iter().map(vcpu).collect();
        host::Vm { name, pid, vcpus, workers, nics, memory, memory_nodes, given: Vec::new() }
    }
}

impl From<Counters> for report::Counters {
    fn from(c: Counters) -> Self {
        let Counters { ended, events, lost, unidentified, vanished } = c;
        report::Counters { ended, events, lost, missed: 0, unidentified, vanished }
    }
}

impl From<Event> for event::Event {
    fn from(e: Event) -> Self {
        let kind = match e.kind {
            EventKind::Packet(Packet {
                point,
                fingerprint,
                matching,
                ifindex,
                len,
                tid,
                depth,
                worker,
                preempted_by,
            }) => event::EventKind::Packet(event::Packet {
                point,
                fingerprint,
                matching,
                ifindex,
                len,
                tid,
                queue: (point == Point::TapSend).then_some(0),
                depth,
                worker,
                preempted_by,
            }),
            EventKind::Interrupt(Interrupt {
                signalled,
                ifindex,
                tid,
                delivery,
                vm,
                vcpu,
                vector,
                state,
                clock,
            }) => event::EventKind::Interrupt(event::Interrupt {
                signalled,
                ifindex,
                tid,
                delivery,
                vm,
                vcpu: vcpu.into(),
                index: Some(vcpu),
                vector,
                state,
                clock,
            }),
            EventKind::GuestEntry(GuestEntry { vm, vcpu, vector, upto, clock, preempted_by }) => {
                let (vcpu, index) = (vcpu.into(), vcpu);
                event::EventKind::GuestEntry(event::GuestEntry {
                    vm,
                    vcpu,
                    index,
                    vector,
                    upto,
                    clock,
                    preempted_by,
                })
            }
            EventKind::Kick(Kick { ifindex, vm, vcpu, clock, worker, preempted_by }) => {
                let vcpu = vcpu.into();
                event::EventKind::Kick(event::Kick {
                    ifindex,
                    queue: 0,
                    vm,
                    vcpu,
                    clock,
                    worker,
                    preempted_by,
                })
            }
            EventKind::ThreadName(task) => event::EventKind::ThreadName(task),
            EventKind::Lost(lost) => event::EventKind::Lost(lost),
        };
        event::Event { ts: e.ts, stream: StreamId::HOST, cpu: e.cpu, kind }
    }
}
