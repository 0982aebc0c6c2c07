//! `replay --suggest` as people run it: the policy on standard output, the report on standard error.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;
use teiji_model::event::*;
use teiji_model::flow::{Matching, Watch};
use teiji_model::host::{DataPlane, Nic, Vm};
use teiji_model::policy::{Source, VmClass};
use teiji_model::recording::Writer;
use teiji_model::report::{Counters, Meta};
use teiji_model::resource::Scheduling;
use teiji_model::stage::{Split, ThreadState};
use teiji_model::stream::StreamId;
use teiji_policy::parse;

const TAP: u32 = 5;
const NIC: u32 = 2;
const PID: u32 = 70;
const WORKER: u32 = 900;
const REQUESTS: u64 = 30;
/// The time from one request to the next, ns.
const GAP: u64 = 10_000_000;
/// When the trace begins, ns.
const T: u64 = 1_000_000_000;

fn meta(name: &str) -> Meta {
    let nic = Nic {
        tap: "tap0".into(),
        ifindex: TAP,
        mac: None,
        bridge: None,
        data_plane: DataPlane::VhostNet,
        queues: 1,
    };
    let vm = Vm {
        name: name.into(),
        pid: PID,
        vcpus: vec![],
        workers: vec![],
        nics: vec![nic],
        memory: None,
        memory_nodes: vec![],
        given: Vec::new(),
    };
    Meta {
        started: T,
        vms: vec![vm],
        watch: Watch { matching: Matching::Echo, ..Watch::default() },
        ..Meta::default()
    }
}

/// A request every [`GAP`]; its interrupt waits 2 ms until the vCPU is back on a CPU.
fn events() -> Vec<Event> {
    let mut events = Vec::new();
    let mut waited = Split::default();
    for i in 0..REQUESTS {
        let begin = T + i * GAP;
        let mut at = |us: u64, kind| {
            events.push(Event { ts: begin + us * 1000, stream: StreamId::HOST, cpu: 0, kind })
        };
        let packet = |point, fingerprint, ifindex, matching| {
            EventKind::Packet(Packet {
                point,
                fingerprint,
                matching,
                ifindex,
                len: 100,
                tid: WORKER,
                depth: 0,
                queue: Some(0),
                worker: None,
                preempted_by: 0,
            })
        };
        let matching = |role| Some(Match { key: i, role, group: 0, group_role: GroupRole::Within });
        let (request, response) = (1000 + i, 2000 + i);
        at(0, packet(Point::HostRx, request, NIC, None));
        at(10, packet(Point::TapEnqueue, request, TAP, matching(Role::Request)));
        at(20, packet(Point::TapDequeue, request, TAP, None));
        let signalled = begin + 30_000;
        let interrupt = Interrupt {
            signalled,
            ifindex: TAP,
            tid: WORKER,
            delivery: Delivery::Accepted,
            vm: PID,
            vcpu: 1,
            index: Some(1),
            vector: 40,
            state: Some(ThreadState::Ready),
            clock: waited,
        };
        at(40, EventKind::Interrupt(interrupt));
        waited.0[ThreadState::Ready as usize] += 2_000_000;
        let entry = GuestEntry {
            vm: PID,
            vcpu: 1,
            index: 1,
            vector: 40,
            upto: begin + 45_000,
            clock: waited,
            preempted_by: 31,
        };
        at(2040, EventKind::GuestEntry(entry));
        waited.0[ThreadState::Guest as usize] += 50_000;
        let kick =
            Kick { ifindex: TAP, queue: 0, vm: PID, vcpu: 1, clock: waited, worker: None, preempted_by: 0 };
        at(2090, EventKind::Kick(kick));
        at(2100, packet(Point::TapSend, response, TAP, matching(Role::Final)));
        at(2110, packet(Point::DevQueue, response, NIC, None));
        at(2120, packet(Point::QdiscDequeue, response, NIC, None));
        at(2130, packet(Point::DevXmit, response, NIC, None));
    }
    events
}

fn replay(name: &str, args: &[&str]) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let mut writer = Writer::new(fs::File::create(&path).unwrap(), &meta(name)).unwrap();
    for event in events() {
        writer.push(event).unwrap();
    }
    writer.finish(&Counters { ended: T + REQUESTS * GAP, ..Counters::default() }).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_teiji")).arg("replay").arg(&path).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(output.stderr));
    (text(output.stdout), text(output.stderr))
}

#[test]
fn standard_output_is_a_policy_and_standard_error_the_report() {
    let (out, err) = replay("sip1", &["--suggest"]);
    let policy = parse(&[Source { name: "fix.toml".into(), text: out.clone() }]).unwrap();
    assert_eq!(policy.vms.len(), 1, "{out}");
    assert_eq!(policy.vms[0].name.value, "sip1");
    assert_eq!(
        policy.vms[0].class.as_ref().unwrap().value,
        VmClass::Threads(Scheduling::Fifo { priority: 10 })
    );
    assert!(out.contains("# sip1 (pid 70): ") && out.contains("vCPU waits for a CPU (vcpu_wake): "), "{out}");
    let (report, nothing) = replay("sip1", &[]);
    assert_eq!((report.as_str(), nothing.as_str()), (err.as_str(), ""));
    assert!(report.contains("what would help") && report.contains("   class = \"realtime\"\n"), "{report}");
}

#[test]
fn a_hostile_name_stays_a_name() {
    let (out, err) = replay("x\"]\n[host]\nhalt_poll = \"off\" # \x1b[2J", &["--suggest"]);
    let policy = parse(&[Source { name: "fix.toml".into(), text: out.clone() }]).unwrap();
    assert_eq!((policy.vms[0].name.value.as_str(), policy.host), ("pid:70", Default::default()), "{out}");
    assert!(!out.contains('\x1b') && !err.contains('\x1b'));
}
