//! Histories made by hand: traces that are put together event by event.
#![allow(dead_code)] // Each test file uses a part of it.

use teiji_analysis::{Analyzer, Losses, Options};
use teiji_model::event::*;
use teiji_model::flow::{Matching, Watch};
use teiji_model::host::{DataPlane, Nic, Vm};
use teiji_model::report::{Counters, Joined, LeftOut, Meta, Outcome, Reason, Report, RequestCounts};
use teiji_model::stage::{Split, Stage, ThreadState};
use teiji_model::stream::StreamId;

/// Taps of VM 0 and VM 1, and other devices.
pub const TAP: u32 = 5;
pub const TAP2: u32 = 6;
pub const NIC: u32 = 2;
pub const VETH: u32 = 3;
pub const VLAN: u32 = 10;
pub const VM: u32 = 70;
pub const VM2: u32 = 71;
pub const WORKER: u32 = 900;
/// When histories begin, ns.
pub const T: u64 = 1_000_000_000;

pub fn vm(pid: u32, ifindex: u32) -> Vm {
    Vm {
        name: format!("vm{pid}"),
        pid,
        vcpus: vec![],
        workers: vec![],
        nics: vec![Nic {
            tap: format!("tap{ifindex}"),
            ifindex,
            mac: None,
            bridge: None,
            data_plane: DataPlane::VhostNet,
            queues: 1,
        }],
        memory: None,
        memory_nodes: vec![],
        given: Vec::new(),
    }
}

pub fn meta(matching: Matching) -> Meta {
    Meta {
        vms: vec![vm(VM, TAP), vm(VM2, TAP2)],
        watch: Watch { matching, ..Watch::default() },
        ..Meta::default()
    }
}

/// A match without a group.
pub fn m(key: u64, role: Role) -> Option<Match> {
    Some(Match { key, role, group: 0, group_role: GroupRole::Within })
}

pub fn packet(point: Point, fingerprint: u64, ifindex: u32) -> Packet {
    Packet {
        point,
        fingerprint,
        matching: None,
        ifindex,
        len: 100,
        tid: WORKER,
        queue: (point == Point::TapSend).then_some(0),
        depth: 0,
        worker: None,
        preempted_by: 0,
    }
}

/// A history under construction. Times are ns after [`T`].
#[derive(Clone, Default)]
pub struct History(pub Vec<Event>);

impl History {
    pub fn at(&mut self, after: u64, kind: EventKind) -> &mut Self {
        self.0.push(Event { ts: T + after, stream: StreamId::HOST, cpu: 0, kind });
        self
    }

    pub fn on(&mut self, after: u64, cpu: u16, kind: EventKind) -> &mut Self {
        self.0.push(Event { ts: T + after, stream: StreamId::HOST, cpu, kind });
        self
    }

    pub fn packet(&mut self, after: u64, point: Point, fingerprint: u64, ifindex: u32) -> &mut Self {
        self.at(after, EventKind::Packet(packet(point, fingerprint, ifindex)))
    }

    pub fn matched(
        &mut self,
        after: u64,
        point: Point,
        fp: u64,
        ifindex: u32,
        matching: Option<Match>,
    ) -> &mut Self {
        self.at(after, EventKind::Packet(Packet { matching, ..packet(point, fp, ifindex) }))
    }

    /// The last packet stands for so many segments of 1448 bytes.
    pub fn of_segments(&mut self, n: u16) -> &mut Self {
        match self.0.last_mut().map(|e| &mut e.kind) {
            Some(EventKind::Packet(p)) => (p.depth, p.len) = (n, 66 + 1448 * u32::from(n)),
            other => panic!("no packet: {other:?}"),
        }
        self
    }

    pub fn interrupt(&mut self, after: u64, signalled: u64, delivery: Delivery) -> &mut Self {
        self.at(after, EventKind::Interrupt(Interrupt { delivery, ..interrupt(signalled) }))
    }

    pub fn entry(&mut self, after: u64, upto: u64, vector: u8) -> &mut Self {
        self.at(after, EventKind::GuestEntry(GuestEntry { vector, ..entry(upto) }))
    }

    pub fn kick(&mut self, after: u64) -> &mut Self {
        self.at(after, EventKind::Kick(kick()))
    }

    /// A request that arrives at `t`, in steps of 10 µs: every stage up to the guest takes 10 µs.
    pub fn request(&mut self, t: u64, fp: u64, matching: Option<Match>) -> &mut Self {
        self.packet(t, Point::HostRx, fp, NIC)
            .matched(t + 10_000, Point::TapEnqueue, fp, TAP, matching)
            .packet(t + 20_000, Point::TapDequeue, fp, TAP)
            .interrupt(t + 40_000, t + 30_000, Delivery::Accepted)
            .entry(t + 50_000, t + 45_000, 40)
    }

    /// Its response, with a kick at `t`: every stage takes 10 µs, including a qdisc.
    pub fn response(&mut self, t: u64, fp: u64, matching: Option<Match>) -> &mut Self {
        self.kick(t)
            .matched(t + 10_000, Point::TapSend, fp, TAP, matching)
            .packet(t + 20_000, Point::DevQueue, fp, NIC)
            .packet(t + 30_000, Point::QdiscDequeue, fp, NIC)
            .packet(t + 40_000, Point::DevXmit, fp, NIC)
    }

    /// The events from the `first` on are those of another VM, with this process id and tap.
    pub fn redirect(&mut self, first: usize, pid: u32, tap: u32) -> &mut Self {
        for event in &mut self.0[first..] {
            match &mut event.kind {
                EventKind::Packet(p) if p.ifindex == TAP => p.ifindex = tap,
                EventKind::Interrupt(i) => (i.ifindex, i.vm) = (tap, pid),
                EventKind::GuestEntry(e) => e.vm = pid,
                EventKind::Kick(k) => (k.ifindex, k.vm) = (tap, pid),
                _ => {}
            }
        }
        self
    }

    /// The kernel drops a packet to or from VM 0.
    pub fn dropped(
        &mut self,
        after: u64,
        fingerprint: u64,
        ifindex: u32,
        matching: Option<Match>,
    ) -> &mut Self {
        self.at(after, EventKind::Dropped(Dropped { matching, ..dropped(fingerprint, ifindex) }))
    }

    pub fn run(&self) -> Run {
        run(&meta(Matching::Echo), &self.0)
    }
}

pub fn interrupt(signalled: u64) -> Interrupt {
    Interrupt {
        signalled: T + signalled,
        ifindex: TAP,
        tid: WORKER,
        delivery: Delivery::Accepted,
        vm: VM,
        vcpu: 1,
        index: Some(1),
        vector: 40,
        state: Some(ThreadState::Asleep),
        clock: Split::default(),
    }
}

pub fn entry(upto: u64) -> GuestEntry {
    GuestEntry {
        vm: VM,
        vcpu: 1,
        index: 1,
        vector: 40,
        upto: T + upto,
        clock: Split::default(),
        preempted_by: 0,
    }
}

pub fn kick() -> Kick {
    Kick { ifindex: TAP, queue: 0, vm: VM, vcpu: 1, clock: Split::default(), worker: None, preempted_by: 0 }
}

/// A drop of a packet to VM 0, with a reason.
pub fn dropped(fingerprint: u64, ifindex: u32) -> Dropped {
    let location = padded("tun_net_xmit");
    Dropped { fingerprint, matching: None, ifindex, tap: TAP, why: 9, unspecified: false, location }
}

pub struct Run {
    pub joined: Vec<Joined>,
    pub report: Report,
    pub losses: Losses,
}

impl Run {
    /// The durations of the only request's stages, in the order of the path, µs.
    pub fn stages(&self) -> Vec<u64> {
        assert_eq!(self.joined.len(), 1, "{:?}", self.report.vms);
        self.joined[0].request.stages.iter().map(|s| s.ns / 1000).collect()
    }

    pub fn split(&self, stage: Stage) -> Option<Split> {
        self.joined[0].request.stages[stage as usize].split
    }

    /// The only reason for which a request of VM 0 is not complete.
    pub fn reason(&self) -> (Outcome, Reason) {
        let all = &self.report.vms[0].left_out;
        assert_eq!(all.len(), 1, "{all:?}");
        (all[0].outcome, all[0].reason)
    }

    /// The counts of VM 0: seen, complete, incomplete, ambiguous, unanswered.
    pub fn counts(&self) -> [u64; 5] {
        let r = self.report.vms[0].requests;
        [r.seen, r.complete, r.incomplete, r.ambiguous, r.unanswered]
    }
}

pub fn run(meta: &Meta, events: &[Event]) -> Run {
    let mut joined = Vec::new();
    let mut analyzer = Analyzer::new(meta, Options { seed: 1, ..Options::default() });
    for e in events {
        analyzer.push(*e, &mut |j| joined.push(j.clone()));
    }
    let losses = analyzer.losses();
    let report = analyzer.finish(Counters::default(), &mut |j| joined.push(j.clone()));
    for j in &joined {
        let sum: u64 = j.request.stages.iter().map(|s| s.ns).sum();
        assert_eq!(sum, j.request.total, "stages do not partition the total");
        for s in &j.request.stages {
            assert!(s.split.is_none_or(|p| p.total() == s.ns), "a split does not add up");
        }
    }
    for vm in &report.vms {
        adds_up(&vm.requests, &vm.left_out);
        if let Some(o) = &vm.outgoing {
            adds_up(&o.requests, &o.left_out);
            let sum: f64 = o.stages.iter().map(|s| s.dist.mean).sum();
            assert!((sum - o.total.map_or(0.0, |total| total.mean)).abs() < 1.0, "{o:?}");
        }
        assert!(vm.inbound.dropped <= vm.inbound.incomplete && vm.outbound.dropped <= vm.outbound.incomplete);
    }
    Run { joined, report, losses }
}

/// Each request has one outcome, and if it is not complete one reason.
fn adds_up(r: &RequestCounts, left_out: &[LeftOut]) {
    assert_eq!(r.seen, r.complete + r.incomplete + r.ambiguous + r.unanswered, "{r:?}");
    for (outcome, n) in [
        (Outcome::Incomplete, r.incomplete),
        (Outcome::Ambiguous, r.ambiguous),
        (Outcome::Unanswered, r.unanswered),
    ] {
        let of = left_out.iter().filter(|l| l.outcome == outcome);
        assert_eq!(of.map(|l| l.count).sum::<u64>(), n, "{outcome:?} of {left_out:?}");
    }
    let said = |l: &LeftOut| l.count > 0 && l.dropped.is_some() == l.reason.is_drop();
    assert!(left_out.iter().all(said), "{left_out:?}");
}
