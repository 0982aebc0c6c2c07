//! `docs/json.md` names every field of what `--json` and `teiji observe` print.
#![allow(clippy::unwrap_used)]

mod common;

use serde_json::Value as Json;
use std::collections::BTreeSet;
use teiji_model::finding::Cause;
use teiji_model::observation::{self, Observation};
use teiji_model::observed::*;
use teiji_model::plan::*;
use teiji_model::policy::{Endpoint, KeyLocation, Line, Overridden, PacketClass, SourceLocation};
use teiji_model::qdisc::{Channel, DeadlineQdisc, Device, ExistingQdisc, RootQdisc, Scheduler};
use teiji_model::report::{Report, SCHEMA};
use teiji_model::resource::*;
use teiji_model::status::*;
use teiji_render::json;

fn keys(value: &Json, all: &mut BTreeSet<String>) {
    match value {
        Json::Object(map) => map.iter().for_each(|(key, value)| {
            all.insert(key.clone());
            keys(value, all);
        }),
        Json::Array(values) => values.iter().for_each(|v| keys(v, all)),
        _ => {}
    }
}

/// Every field has to be in the document.
#[track_caller]
fn documented(value: &impl serde::Serialize) {
    let docs = include_str!("../../../docs/json.md");
    let mut all = BTreeSet::new();
    keys(&serde_json::to_value(value).unwrap(), &mut all);
    let missing: Vec<&String> = all
        .iter()
        .filter(|key| !docs.contains(&format!("`{key}`")) && !docs.contains(&format!("`\"{key}\"`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_field_is_documented() {
    documented(&common::proxy());
}

#[test]
fn every_cause_is_documented() {
    let docs = include_str!("../../../docs/json.md");
    for cause in Cause::ALL {
        assert!(docs.contains(&format!("| `{}` | ", cause.name())), "{}", cause.name());
    }
    let schema = format!("version of this form, now {SCHEMA} |");
    assert!(docs.contains(&schema), "{schema}");
}

/// A report of schema 2: its verdict contained what the first finding contains now.
#[test]
fn a_report_of_before_is_still_read() {
    let mut old = serde_json::to_value(common::contended()).unwrap();
    old["schema"] = 2.into();
    let vm = &mut old["vms"][0];
    vm.as_object_mut().unwrap().remove("findings");
    let verdict = vm["verdict"].as_object_mut().unwrap();
    for (key, value) in [("stage", "tap_queue".into()), ("state", "ready".into()), ("share", 0.92.into())] {
        verdict.insert(key.into(), value);
    }
    verdict
        .insert("behind".into(), serde_json::json!([{"tid": 812, "name": "stress-ng-cpu", "share": 0.71}]));
    let report: Report = serde_json::from_value(old).unwrap();
    assert!(report.vms[0].findings.is_empty() && report.vms[0].blamed_stage().is_none());
    assert_eq!(report.vms[0].verdict, common::contended().vms[0].verdict);
}

#[test]
fn every_reason_is_documented() {
    let docs = include_str!("../../../docs/json.md");
    for reason in teiji_model::report::Reason::ALL {
        let blame = serde_json::to_value(reason.blame()).unwrap();
        let row = format!("| `{}` | {} | {} |", reason.name(), blame.as_str().unwrap(), reason.text());
        assert!(docs.contains(&row), "{row}");
    }
}

#[test]
fn a_report_survives_json() {
    let report = common::contended();
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

/// A step, or a hold, for every kind of resource.
fn settings() -> Vec<(Resource, Value)> {
    let (task, device) = (Task { id: 7, started: 9 }, Device { name: "eth0".into(), index: 2 });
    let cpus = || Value::Cpus("0-1".parse().unwrap());
    let scheduling = [
        Scheduling::Other { nice: 0 },
        Scheduling::Batch { nice: 0 },
        Scheduling::Fifo { priority: 1 },
        Scheduling::RoundRobin { priority: 1 },
        Scheduling::Deadline { runtime: 1, deadline: 2, period: 3 },
        Scheduling::Ext { nice: 0 },
    ];
    let stock = ExistingQdisc { kind: "fq".into(), chosen: true, options: vec![1] };
    let queues = [RootQdisc::Existing(Box::new(stock)), RootQdisc::Deadline(Box::new(channels()))];
    let quota = Quota { quota_us: 1, period_us: 2 };
    let mut all: Vec<(Resource, Value)> = vec![
        (Resource::ThreadCpus(task), cpus()),
        (Resource::IrqCpus(3), cpus()),
        (Resource::Group(task), Value::Group("/a".into())),
        (Resource::GroupWeight("/a".into()), Value::Weight(100)),
        (Resource::GroupQuota("/a".into()), Value::Quota(Some(quota))),
        (Resource::HaltPoll, Value::Nanoseconds(1)),
        (Resource::CpuLatency(1), Value::Latency(Latency::AtMost(2))),
        (Resource::SegmentSize(device.clone()), Value::Bytes(9000)),
        (Resource::ReceiveCpus(device.clone(), 0), cpus()),
        (Resource::Governor(0), Value::Word("performance".into())),
    ];
    all.extend(scheduling.map(|s| (Resource::ThreadScheduling(task), Value::Scheduling(s))));
    all.extend(queues.map(|queue| (Resource::RootQdisc(device.clone()), Value::RootQdisc(queue))));
    let kinds: BTreeSet<ResourceKind> = all.iter().map(|(resource, _)| resource.kind()).collect();
    assert_eq!(kinds.len(), RESOURCE_KINDS.len());
    all
}

/// The name of the channel is a word of the document.
fn channels() -> DeadlineQdisc {
    let end = Endpoint { address: "10.0.0.2".parse().unwrap(), prefix: 32, port: Some(5060) };
    let channel =
        Channel { from: Some(end.clone()), to: Some(end), proto: Some(17), deadline: 1, rate: 8, burst: 84 };
    DeadlineQdisc {
        scheduler: Scheduler::Edf,
        rate: 8,
        slack: 0,
        realtime_max: 0,
        channels: [("name".to_owned(), channel)].into(),
    }
}

const CLASS: PacketClass = PacketClass { runtime: 1, deadline: 2, period: 2 };

fn steps() -> Vec<Step> {
    let step = |(setting, value): (Resource, Value)| Step {
        setting,
        whose: "the host".into(),
        present: value.clone(),
        wanted: value,
        reason: "vm.sip1.class".into(),
        cost: String::new(),
    };
    settings().into_iter().map(step).collect()
}

fn hold(value: Value) -> Hold {
    Hold { whose: "the host".into(), original: value.clone(), value, since: 1, reason: "host".into() }
}

#[test]
fn every_field_of_a_plan_is_documented() {
    let location = SourceLocation { file: "p.toml".into(), line: 1, column: 1 };
    let line = Line { text: "weight = 200".into(), location: location.clone() };
    let from_kick = Some(KickGuarantee { vm: "a".into(), within: 9, burst: 2 });
    let channel = ChannelGuarantee { name: "a".into(), rate: 1, burst: 2, deadline: 3, bound: 3, from_kick };
    let priority = KeyLocation { key: "priority".into(), location: location.clone() };
    let asked = Asked { location, with: vec![priority] };
    let plan = Plan {
        first: vec!["start the agent".into()],
        steps: steps(),
        warnings: vec!["irqbalance is running".into()],
        links: vec![LinkGuarantee {
            link: "eth0".into(),
            scheduler: Scheduler::Edf,
            rate: 1,
            slack: 1,
            largest: 1,
            reserved: 1,
            channels: vec![channel],
        }],
        packet_vms: vec![PacketVm {
            name: "a".into(),
            process: Task { id: 7, started: 9 },
            class: CLASS,
            deadlines: Some(PacketDeadlines::Guaranteed { cpu: 1 }),
            handed_over: Some(HandedOver::Within(6)),
        }],
        asked: [("vm.sip1.class".to_owned(), asked)].into(),
        overridden: vec![Overridden { section: "vm.a".into(), holds: line.clone(), over: vec![line] }],
    };
    documented(&json::Plan::new(&plan));
}

#[test]
fn every_field_of_a_status_is_documented() {
    let held = |(setting, value): (Resource, Value)| HeldStatus {
        setting,
        hold: hold(value.clone()),
        present: Ok(value),
        changed: false,
    };
    let mut held: Vec<HeldStatus> = settings().into_iter().map(held).collect();
    let errors: [fn(String) -> ResourceError; 5] = [
        ResourceError::Gone,
        ResourceError::Unsupported,
        ResourceError::NotPermitted,
        ResourceError::Refused,
        ResourceError::Offline,
    ];
    for (held, error) in held.iter_mut().zip(errors) {
        held.present = Err(error("it".into()));
    }
    let transaction = Some(Unfinished {
        pid: 1,
        time: 1,
        rollback: false,
        steps: steps(),
        begun: 1,
        applied: true,
        confirm_left: Some(1),
    });
    let link = LinkStatus {
        link: "eth0".into(),
        index: 2,
        settings: channels(),
        stats: LinkStats::default(),
        channels: [("name".to_owned(), ChannelStats::default())].into(),
    };
    let links = LinksStatus { links: vec![link], ..LinksStatus::default() };
    let vm = PacketVmStatus {
        name: "a".into(),
        class: CLASS,
        threads: 1,
        packets: 1,
        expired: 0,
        before_others: 1,
        by_weight: 0,
        exhausted: 0,
        turns: 1,
        overruns: 0,
        waits: vec![1],
    };
    let agent = AgentStatus { packet_vms: vec![vm], ..AgentStatus::default() };
    documented(&json::Status::new(
        &Status { held, transaction, ..Status::default() },
        &links,
        Some(&agent),
        Some("why"),
        Some(&["/etc/p.toml".into()]),
    ));
}

#[test]
fn every_field_of_a_trace_is_documented() {
    documented(&json::Traces::new(&[teiji_model::status::TraceStatus::default()]));
}

#[test]
fn every_field_of_an_observation_is_documented() {
    let task = Task { id: 7, started: 9 };
    let identity = common::of_root();
    let vm = ObservedVm {
        vm: common::vm("sip1", 7),
        identity,
        process: task,
        vcpus: vec![task],
        workers: vec![task],
        group: Some("/a".into()),
        group_shared: false,
    };
    let link = ObservedLink {
        name: "eth0".into(),
        index: 2,
        kind: LinkKind::Nic,
        irqs: vec![3],
        speed: Some(1),
        mtu: 1500,
        guests: true,
    };
    let manager =
        Manager { name: "tuned".into(), advice: "stop it".into(), touches: Vec::new(), vm: Some(task) };
    for (deadline_support, sched_ext) in [
        (DeadlineSupport::NoAgent("start it".into()), SchedExt::Usable),
        (DeadlineSupport::Hfsc("no BPF qdiscs".into()), SchedExt::Taken("lavd".into())),
        (DeadlineSupport::None("not now".into()), SchedExt::None("too old".into())),
        (DeadlineSupport::Edf, SchedExt::NoAgent("start it".into())),
    ] {
        let observed = Observed {
            vms: vec![vm.clone()],
            links: vec![link.clone()],
            settings: settings().into_iter().collect(),
            managers: vec![manager.clone()],
            deadline_support,
            sched_ext,
            ..Observed::default()
        };
        let held = settings().into_iter().map(|(setting, value)| (setting, hold(value)));
        documented(&Observation {
            kind: observation::KIND.into(),
            schema: observation::SCHEMA,
            teiji: "0.1.0".into(),
            host: "lab1".into(),
            kernel: "7.3.4".into(),
            taken: 1,
            observed,
            held: Held { settings: held.collect() },
            unseen: Vec::new(),
        });
    }
}
