//! Compares text reports of data made by hand with the files in `golden/`. `UPDATE_GOLDEN=1` writes these files.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use teiji_model::host::{Identity, Requirement};
use teiji_model::observed::{DeadlineSupport, LinkKind, Observed, ObservedLink};
use teiji_model::plan::{ChannelGuarantee, Held, KickGuarantee, LinkGuarantee, Plan, Step};
use teiji_model::policy::Source;
use teiji_model::qdisc::{DeadlineQdisc, Device, ExistingQdisc, RootQdisc, Scheduler};
use teiji_model::report::Report;
use teiji_model::resource::{Resource, Value};
use teiji_policy::parse;
use teiji_render::terminal::{Style, columns};
use teiji_render::text::doctor::table as doctor_table;
use teiji_render::text::plan::table as plan_table;
use teiji_render::text::vms::table as vms_table;
use teiji_render::text::{WIDTH, cells, guarantees};

const UNICODE: Style = Style { colour: false, unicode: true };

/// A report as the command prints it, with advice.
fn report(report: &Report, style: &Style) -> String {
    teiji_render::text::report(report, &common::advice(report), style)
}

fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    for line in text.lines() {
        assert!(columns(line) <= WIDTH, "{} columns: {line}", columns(line));
        assert_eq!(line, line.trim_end(), "trailing spaces");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap();
    assert!(text == wanted, "{} is not:\n{text}\n(UPDATE_GOLDEN=1 writes it)", path.display());
}

#[test]
fn contended() {
    golden("contended.txt", &report(&common::contended(), &UNICODE));
}

#[test]
fn contended_in_ascii() {
    let text = report(&common::contended(), &Style::PLAIN);
    assert!(text.is_ascii());
    golden("contended-ascii.txt", &text);
}

#[test]
fn one_way() {
    golden("one-way.txt", &report(&common::one_way(), &UNICODE));
}

/// A guest that is nothing but a client: no request to it, but its own.
#[test]
fn client() {
    golden("client.txt", &report(&common::client(), &UNICODE));
}

#[test]
fn requests_of_the_guests_own_come_after_those_to_it_and_change_nothing_of_them() {
    let (before, after) = (report(&common::contended(), &UNICODE), report(&common::proxy(), &UNICODE));
    let at = after.find("outgoing   500 sent by the guest").unwrap();
    assert!(after[..at].contains("=> vhost worker waits for a CPU"), "{after}");
    let outgoing = after.len() - before.len();
    assert_eq!(format!("{}{}", &after[..at], &after[at + outgoing..]), before);
    // Most of the time may be the host's.
    let mut own = common::client();
    let stages = &mut own.vms[0].outgoing.as_mut().unwrap().stages;
    stages[teiji_model::report::OutgoingStage::Outside as usize].time_share = 0.3;
    assert!(report(&own, &UNICODE).contains("\n   70 % of the time is spent on this host"));
    // None is complete.
    let none = own.vms[0].outgoing.as_mut().unwrap();
    (none.total, none.host, none.requests.complete) = (None, None, 0);
    none.stages.clear();
    let text = report(&own, &UNICODE);
    assert!(text.contains("500 sent by the guest, 0 complete") && !text.contains("=>"), "{text}");
}

#[test]
fn vms() {
    let mut other = common::vm("büro\x1b[31m", 77);
    other.nics.clear();
    other.vcpus.clear();
    let eve = Identity { uid: Some(1000), user: Some("e\x1bve".into()), ..common::of_root() };
    let vms = [(common::vm("sip1", 4240), common::of_root()), (other, eve)];
    golden("vms.txt", &vms_table(&vms, &UNICODE));
    let json = serde_json::to_value(teiji_render::json::Vms::new(&vms)).unwrap();
    assert_eq!(json["vms"][0]["doubt"], serde_json::Value::Null);
    assert!(json["vms"][1]["doubt"].as_str().unwrap().contains("user"), "{json}");
}

#[test]
fn a_report_says_what_the_worker_is_without_vhost() {
    let mut made_up = common::contended();
    assert!(!report(&made_up, &UNICODE).contains("vhost=off"));
    made_up.meta.vms[0].nics[0].data_plane = teiji_model::host::DataPlane::Userspace;
    let tap = made_up.meta.vms[0].nics[0].tap.clone();
    let text = report(&made_up, &UNICODE);
    assert!(text.contains(&format!("served by the VMM (vhost=off): {tap}; \"vhost worker\"")), "{text}");
}

#[test]
fn vms_say_which_nics_are_not_seen_and_why() {
    use teiji_model::host::DataPlane;
    let planes = [
        (DataPlane::VhostNet, 5, None),
        (DataPlane::Userspace, 5, None),
        (DataPlane::VhostMacvtap, 5, None),
        (DataPlane::VhostNet, 0, Some("network namespace")),
        (DataPlane::UserspaceMacvtap, 5, Some("up to the tap only")),
        (DataPlane::Passthrough, 0, Some("VFIO")),
        (DataPlane::VhostUser, 0, Some("shared memory")),
    ];
    for (data_plane, ifindex, why) in planes {
        let mut vm = common::vm("sip1", 4240);
        vm.nics[0].tap = "0000:01:10.0-long".into();
        (vm.nics[0].data_plane, vm.nics[0].ifindex) = (data_plane, ifindex);
        let identity = common::of_root();
        let text = vms_table(&[(vm, identity)], &UNICODE);
        let line = text.lines().find(|line| line.contains("seen"));
        assert_eq!(line.is_some(), why.is_some(), "{text}");
        assert!(why.is_none_or(|why| line.unwrap().contains(why)), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}

#[test]
fn requests_by_a_virtual_function_are_told_with_what_is_not_seen() {
    use teiji_model::host::{GivenNic, VirtualFunction};
    use teiji_model::report::{
        LeftOut, Outcome, Passthrough, PassthroughRequests, PassthroughStage, PassthroughStageReport, Reason,
    };
    let mut made_up = common::contended();
    let function = VirtualFunction { physical: String::new(), link: Some("eth1".into()), number: 2 };
    let nic = GivenNic { address: "0000:01:10.4".into(), function: Some(function), ..GivenNic::default() };
    let dist = made_up.vms[0].total;
    let silent = Passthrough {
        nics: vec![nic],
        interrupts: 1234,
        not_accepted: 3,
        until_guest_entry: dist,
        requests: None,
    };
    made_up.vms[0].passthrough = Some(silent.clone());
    let told = |made_up: &Report| {
        let text = report(made_up, &UNICODE);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = told(&made_up);
    for part in [
        "NICs given VF 2 of eth1 (0000:01:10.4)",
        "interrupts 1234, from the host's handler to the guest entry: p50",
        "3 interrupts that no vCPU was seen to accept",
        "that needs `teiji trace --guest --match echo`",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let share = |stage| if stage == PassthroughStage::App { 0.7 } else { 0.05 };
    let stage = |stage| PassthroughStageReport {
        stage,
        dist: dist.unwrap(),
        time_share: share(stage),
        fluctuation_share: share(stage),
    };
    let mut requests = PassthroughRequests {
        without_interrupt: 2,
        without_interrupt_total: dist,
        total: dist,
        stages: PassthroughStage::ALL.into_iter().map(stage).collect(),
        ..PassthroughRequests::default()
    };
    (requests.counts.seen, requests.counts.complete, requests.counts.incomplete) = (50, 49, 1);
    requests.left_out = vec![LeftOut::of_passthrough(Outcome::Incomplete, Reason::InterruptUnknown, None, 1)];
    made_up.vms[0].passthrough = Some(Passthrough { requests: Some(requests), ..silent.clone() });
    let text = told(&made_up);
    for part in [
        "50 by these NICs, 49 complete, 1 incomplete",
        "which interrupt of the NIC it came with is not certain",
        "70 % of the time is app, in the guest",
        "the time in the NIC and on the wire is not in it",
        "2 requests without an interrupt that was certainly their own",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    made_up.vms[0].passthrough = Some(Passthrough { interrupts: 0, ..silent.clone() });
    assert!(told(&made_up).contains("posted interrupts"));
    // It was taken away while the trace ran.
    made_up.vms[0].passthrough = Some(Passthrough { nics: Vec::new(), ..silent });
    assert!(told(&made_up).contains("NICs given none at the end of the trace"));
}

#[test]
fn vms_say_which_virtual_function_a_nic_is() {
    use teiji_model::host::{DataPlane, GivenNic, VirtualFunction};
    let mut vm = common::vm("sip1", 4240);
    (vm.nics[0].tap, vm.nics[0].ifindex, vm.nics[0].bridge) = ("0000:01:10.4".into(), 0, None);
    vm.nics[0].data_plane = DataPlane::Passthrough;
    let identity = common::of_root();
    let function = |link: Option<&str>| VirtualFunction {
        physical: "0000:01:00.0".into(),
        link: link.map(str::to_owned),
        number: 2,
    };
    let shown = [
        (Some(function(Some("eth1"))), "VF 2 of eth1"),
        (Some(function(Some("\u{1b}[31m"))), r"VF 2 of \u{1b}[31m"),
        (Some(function(None)), "VF 2 of 0000:01:00.0"),
        (None, "whole NIC"),
    ];
    for (function, what) in shown {
        vm.given = vec![GivenNic { address: "0000:01:10.4".into(), function, ..GivenNic::default() }];
        let vms = [(vm.clone(), identity.clone())];
        let text = vms_table(&vms, &UNICODE);
        assert!(text.lines().any(|line| line.contains("0000:01:10.4") && line.contains(what)), "{text}");
        let json = serde_json::to_value(teiji_render::json::Vms::new(&vms)).unwrap();
        assert_eq!(json["vms"][0]["given"][0]["address"], "0000:01:10.4", "{json}");
    }
}

#[test]
fn doctor() {
    let requirement = |name: &str, present, essential| Requirement {
        name: name.into(),
        present,
        essential,
        found: format!("/sys/{name}{}", if present { "" } else { " is not there" }),
        consequence:
            "packets cannot be followed to VMs whose NICs the kernel serves, which is what most hosts have"
                .into(),
        remedy: "modprobe vhost_net".into(),
    };
    let all = [
        requirement("btf", true, true),
        requirement("vhost_net", false, true),
        requirement("debugfs", false, false),
    ];
    golden("doctor.txt", &doctor_table(&all, &UNICODE));
    assert!(doctor_table(&all[..1], &UNICODE).ends_with("can be traced here.\n"));
}

#[test]
fn colour_changes_no_text() {
    let plain = report(&common::contended(), &UNICODE);
    let coloured = report(&common::contended(), &Style { colour: true, unicode: true });
    assert_ne!(plain, coloured);
    let mut stripped = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\x1b') {
        stripped += before;
        rest = after.split_once('m').unwrap().1;
    }
    stripped += rest;
    let trimmed = |t: &str| t.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    assert_eq!(trimmed(&stripped), trimmed(&plain));
}

/// The explanation in a report without requests.
fn explanation(change: impl FnOnce(&mut Report)) -> String {
    let mut made_up = common::one_way();
    made_up.meta.watch.matching = teiji_model::flow::Matching::Echo;
    change(&mut made_up);
    report(&made_up, &UNICODE).replace('\n', " ")
}

#[test]
fn no_request_is_explained() {
    use teiji_model::flow::Direction;
    use teiji_model::report::{LeftOut, Outcome, Reason};
    let silent = |r: &mut Report| r.vms[0].inbound = Default::default();
    let message = |text: String, what: &str| assert!(text.contains(what), "{text}");
    message(explanation(silent), "No packet that fits `udp port 5060` passed its taps");
    message(explanation(|r| r.meta.watch.direction = Direction::In), "need --direction both");
    message(explanation(|_| ()), "choose another matching");
    // The paragraph is about the reason for which most requests were left out, whatever other reasons there are.
    let mostly = |reason, counters: fn(&mut Report)| {
        explanation(move |r| {
            let left_out = |reason, n| LeftOut::new(Outcome::Incomplete, reason, None, n);
            r.vms[0].left_out = vec![left_out(Reason::EventsLost, 1), left_out(reason, 3)];
            counters(r);
        })
    };
    message(mostly(Reason::NoAnswer, |_| ()), "sent nothing back");
    message(mostly(Reason::NotForwarded, |_| ()), "A point of the path was not seen");
    message(mostly(Reason::NoInterrupt, |_| ()), "follows MSI-X only");
    message(mostly(Reason::OutOfOrder, |_| ()), "before their interrupt was delivered");
    message(mostly(Reason::NotLearnt, |_| ()), "Only the first requests");
    message(mostly(Reason::DroppedIn, |r| r.counters.lost = vec![1]), "The host dropped the requests");
    message(mostly(Reason::NotEntered, |r| r.counters.lost = vec![1]), "is the VM paused");
    message(mostly(Reason::Alike, |_| ()), "Identical packets");
    message(mostly(Reason::EventsLost, |r| r.counters.lost = vec![4]), "raise --buffer");
    let missed = mostly(Reason::EventsLost, |r| r.counters.missed = 4);
    assert!(missed.contains("skipped runs of probes") && !missed.contains("--buffer"), "{missed}");
    // Only what happened is a cause.
    let late = mostly(Reason::EventsLost, |r| r.late = 1);
    assert!(late.contains("Events came too late to be used, so stages are missing"), "{late}");
    assert!(!late.contains("skipped") && !late.contains("--buffer") && !late.contains("--flow"), "{late}");
    let no_room = mostly(Reason::EventsLost, |r| (r.late, r.late_no_room) = (1, 1));
    assert!(
        no_room.contains("More events waited to be sorted") && no_room.contains("narrow --flow"),
        "{no_room}"
    );
    assert!(!no_room.contains("skipped") && !no_room.contains("Events came too late"), "{no_room}");
    let all = mostly(Reason::EventsLost, |r| {
        r.counters.lost = vec![0, u64::MAX, 1];
        (r.counters.missed, r.late, r.late_no_room) = (1, 2, 1);
    });
    for cause in ["Events were lost", "skipped runs", "Events came too late", "More events waited"] {
        assert!(all.contains(cause), "{cause}: {all}");
    }
    let unknown = mostly(Reason::EventsLost, |_| ());
    assert!(unknown.contains("not known why") && !unknown.contains("skipped"), "{unknown}");
    message(explanation(|r| r.meta.vms[0].nics.clear()), "has no tap");
    use teiji_model::host::DataPlane;
    let plane = |plane| explanation(move |r: &mut Report| r.meta.vms[0].nics[0].data_plane = plane);
    message(plane(DataPlane::UserspaceMacvtap), "vhost=on");
    assert!(!plane(DataPlane::Userspace).contains("seen up to the tap"));
    let alone = |r: &mut Report| {
        r.meta.vms[0].pid = 0;
        r.vms[0].pid = 0;
    };
    message(explanation(alone), "trace its VM");
}

#[test]
fn what_nics_lost_is_told_with_its_counter() {
    use teiji_model::event::NicCounter;
    use teiji_model::report::NicLosses;
    let lost = |counter, packets| NicLosses { device: "eth\x1b0".into(), counter, packets };
    let text = explanation(|r| {
        r.nic_losses = vec![
            lost(NicCounter::RxMissedErrors, 37),
            lost(NicCounter::TxDropped, 1),
            lost(NicCounter::RxDropped, 2),
        ];
    });
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains(
            "eth\\u{1b}0 lost 37 packets (rx_missed_errors: the driver had no free receive buffer)"
        ),
        "{text}"
    );
    assert!(text.contains("eth\\u{1b}0 lost 1 packet (tx_dropped: "), "{text}");
    let many = explanation(|r| r.nic_losses = vec![lost(NicCounter::RxDropped, 10_000_000)]);
    assert!(
        many.contains("eth\\u{1b}0 lost 10000000 packets") || many.contains("lost 10,000,000 packets"),
        "{many}"
    );
    // LLDP, for example.
    assert!(text.contains("eth\\u{1b}0 discarded 2 packets (rx_dropped: "), "{text}");
}

#[test]
fn missed_runs_of_probes_are_told_in_a_line_if_there_are_any() {
    let text = explanation(|r| r.counters.missed = 3);
    assert!(text.contains("missed 3 runs of probes") && text.contains("requests of that time"), "{text}");
    let text = explanation(|r| r.skipped_signals = 2);
    assert!(
        text.contains("skipped a probe in 2 signals of vhost workers, because")
            && text.contains("are left out"),
        "{text}"
    );
    assert!(!explanation(|_| ()).contains("missed"));
    let text = explanation(|r| r.late = 2);
    assert!(text.contains("2 events came too late") && !explanation(|_| ()).contains("too late"), "{text}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("hypervisor") && text.contains("preempted") && text.contains("share a busy CPU"),
        "{text}"
    );
    assert!(!text.contains("too many events"), "{text}");
    // They were not late because of their CPU, but because the analysis had no room to wait for them.
    let text = explanation(|r| (r.late, r.late_no_room) = (5, 3));
    assert!(text.contains("2 events came too late to be used: ") && text.contains("hypervisor"), "{text}");
    assert!(text.contains("3 events came too late to be used, as too many events"), "{text}");
    let text = explanation(|r| (r.late, r.late_no_room) = (5, 5));
    assert!(text.contains("5 events came too late") && text.contains("--flow"), "{text}");
    assert!(!text.contains("hypervisor"), "{text}");
    let json = serde_json::to_value(common::contended()).unwrap();
    assert_eq!(json["counters"]["missed"], 0);
}

#[test]
fn the_most_frequent_reasons_are_printed_and_the_rest_is_counted() {
    use teiji_model::report::{LeftOut, Outcome, Reason};
    let mut made_up = common::contended();
    let each = |(reason, n)| LeftOut::new(Outcome::Incomplete, reason, None, n);
    made_up.vms[0].left_out = Reason::ALL.iter().copied().zip(1..).map(each).collect();
    let text = report(&made_up, &UNICODE);
    let printed = text.lines().filter(|l| l.starts_with("           ") && l.contains(" incomplete: "));
    assert_eq!(printed.count(), 6, "{text}");
    let rest = Reason::ALL.len() as u64 - 6;
    let counted = format!("{} for {rest} other reasons", (1..=rest).sum::<u64>());
    assert!(text.contains(&counted) && text.contains(Reason::TraceEnded.text()), "{text}");
}

#[test]
fn a_waterfall_loses_no_column() {
    for width in 0..80 {
        for queue in [0, 1, 700, 12_345] {
            let cells = cells(&common::request(1, 0, queue), width);
            assert_eq!(cells.iter().map(|c| c.1).sum::<usize>(), width);
        }
    }
    let mut empty = common::request(1, 0, 0);
    empty.stages.clear();
    assert!(cells(&empty, 5).is_empty());
}

/// Keeps the text for a terminal below `target/`, for people to look at.
#[test]
fn a_terminal_gets_colour() {
    let text = report(&common::contended(), &Style { colour: true, unicode: true });
    assert!(text.contains("\x1b[1;31m"), "what is to blame is red");
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("contended.ansi"), text).unwrap();
}

/// A plan with a queue of `n` channels; the later ones have less time left.
fn channels(n: u64) -> Plan {
    let eth0 = Device { name: "eth0".into(), index: 2 };
    let channel = |i: u64| ChannelGuarantee {
        name: if i == 1 { "a-very-long-name\x1b[2J-that-goes-on".into() } else { format!("sip-{i:02}") },
        rate: 2_000_000 + i * 8,
        burst: 3084,
        deadline: 3_000_000,
        bound: 2_000_000 + i * 20_000,
        from_kick: (i == 2).then(|| KickGuarantee { vm: "sip1".into(), within: 12_040_000, burst: 584 }),
    };
    let existing = RootQdisc::Existing(Box::new(ExistingQdisc {
        kind: "fq_codel".into(),
        chosen: false,
        options: Vec::new(),
    }));
    let deadlines = DeadlineQdisc {
        scheduler: Scheduler::Edf,
        rate: 999_000_000,
        slack: 2_100_000,
        realtime_max: 0,
        channels: BTreeMap::new(),
    };
    let step = |setting, present, wanted, cost: &str| Step {
        setting,
        whose: "eth0".into(),
        present,
        wanted,
        reason: "channel.sip-01 and 2 others".into(),
        cost: cost.into(),
    };
    Plan {
        steps: vec![
            step(
                Resource::SegmentSize(eth0.clone()),
                Value::Bytes(65_536),
                Value::Bytes(32_768),
                "more CPU time per byte",
            ),
            step(
                Resource::RootQdisc(eth0),
                Value::RootQdisc(existing),
                Value::RootQdisc(RootQdisc::Deadline(Box::new(deadlines))),
                "packets in the old queue may be lost; the link sends at most 999mbit",
            ),
        ],
        warnings: vec!["`link.eth1.rate` has no effect: no channel leaves by eth1".into()],
        links: vec![LinkGuarantee {
            link: "eth0".into(),
            scheduler: Scheduler::Edf,
            rate: 999_000_000,
            slack: 2_100_000,
            largest: 32_786,
            reserved: 450_000_000,
            channels: (1..=n).map(channel).collect(),
        }],
        ..Plan::default()
    }
}

#[test]
fn channels_are_shown_with_what_they_are_guaranteed() {
    golden("channels.txt", &plan_table(&channels(3), &UNICODE));
    let text = plan_table(&channels(3), &Style::PLAIN);
    assert!(text.is_ascii() && text.contains("#######..."), "{text}");
    let json = serde_json::to_value(channels(3)).unwrap();
    assert_eq!(json["links"][0]["channels"][2]["bound"], 2_060_000);
}

#[test]
fn of_many_channels_those_with_the_least_room_are_shown() {
    let text = plan_table(&channels(45), &UNICODE);
    let shown: Vec<&str> =
        text.lines().filter_map(|l| l.trim().split_once("  ")).map(|(name, _)| name).collect();
    assert!(shown.contains(&"sip-06") && shown.contains(&"sip-45") && !shown.contains(&"sip-05"), "{text}");
    assert!(text.contains("and 5 more with more room (--json lists all)"), "{text}");
    assert!(!plan_table(&channels(40), &UNICODE).contains("more with more room"));
    // The widest possible values.
    let mut wide = channels(3);
    for channel in &mut wide.links[0].channels {
        (channel.rate, channel.burst) = (999_999_999_992, (1 << 30) - 1);
        (channel.deadline, channel.bound) = (59_999_999_999, 59_999_999_998);
        channel.name = "\u{1b}".repeat(63);
    }
    wide.links[0].link = "é".repeat(7);
    (wide.links[0].rate, wide.links[0].largest) = (999_999_999_992, u32::MAX);
    let text = plan_table(&wide, &UNICODE);
    assert!(text.lines().all(|l| columns(l) <= WIDTH && !l.contains('\u{1b}')), "{text}");
}

#[test]
fn the_policys_document_shows_what_is_printed() {
    let text = "[link.eth0]\n[channel.sip-signalling]\nto = \"10.0.1.0/24\"\nproto = \"udp\"\n\
                deadline = \"3ms\"\nmin_rate = \"2mbit\"\nburst = \"3kb\"\n";
    let policy = parse(&[Source { name: "p.toml".into(), text: text.into() }]).unwrap();
    let link = ObservedLink {
        name: "eth0".into(),
        index: 2,
        kind: LinkKind::Nic,
        irqs: Vec::new(),
        speed: Some(1_000_000_000),
        mtu: 1500,
        guests: false,
    };
    let existing = RootQdisc::Existing(Box::new(ExistingQdisc {
        kind: "mq".into(),
        chosen: false,
        options: Vec::new(),
    }));
    let settings = BTreeMap::from([
        (Resource::RootQdisc(link.device()), Value::RootQdisc(existing)),
        (Resource::SegmentSize(link.device()), Value::Bytes(65_536)),
    ]);
    let observed = Observed {
        links: vec![link],
        settings: settings.into(),
        deadline_support: DeadlineSupport::Edf,
        ..Observed::default()
    };
    let plan = teiji_control::plan::plan(&policy, &observed, &Held::default()).unwrap();
    let shown = guarantees::link(&plan.links[0], &UNICODE);
    let document = include_str!("../../../docs/policy.md");
    assert!(document.contains(&shown), "docs/policy.md lacks:\n{shown}");
    // HFSC has no slack.
    let observed = Observed { deadline_support: DeadlineSupport::Hfsc("it is old".into()), ..observed };
    let plan = teiji_control::plan::plan(&policy, &observed, &Held::default()).unwrap();
    let shown = guarantees::link(&plan.links[0], &UNICODE);
    assert!(shown.starts_with("eth0: HFSC, 999mbit, 0 % reserved, frames up to "), "{shown}");
}
