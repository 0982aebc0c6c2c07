//! What a plan does with channels: the queue and segments that it wants, what it guarantees, and why it refuses.
#![allow(clippy::unwrap_used)]

mod common;

use common::{at, channel, host, link, nic};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use teiji_control::plan::plan;
use teiji_model::plan::{DeadlineSupport, Held, Hold, LinkGuarantee, LinkKind, Observed, ObservedLink, Plan};
use teiji_model::policy::{Auto, ChannelPolicy, Endpoint, LinkPolicy, Policy, Problem};
use teiji_model::queue::{Deadlines, Device, MAX_CHANNELS, MAX_NAME, MAX_SHAPES, Queue, Scheduler};
use teiji_model::setting::{Setting, Value};

const MS: u64 = 1_000_000;
const MBIT: u64 = 1_000_000;

/// eth0 with 1 Gbit/s and an MTU of 1,500, the host's own.
fn one() -> Observed {
    host("0-3", Vec::new(), vec![nic("eth0", Vec::new())])
}

fn with(change: impl FnOnce(&mut ObservedLink)) -> Observed {
    let mut link = nic("eth0", Vec::new());
    change(&mut link);
    host("0-3", Vec::new(), vec![link])
}

fn channels(channels: Vec<ChannelPolicy>) -> Policy {
    Policy { links: vec![link("eth0", 1)], channels, ..Policy::default() }
}

/// A SIP channel of 2 Mbit/s within 3 ms, on lines 20 to 22.
fn sip() -> ChannelPolicy {
    channel("sip", 20, 5060, 3 * MS, 2 * MBIT)
}

fn ok(policy: &Policy, observed: &Observed) -> Plan {
    plan(policy, observed, &Held::default()).unwrap_or_else(|e| panic!("{e:#?}"))
}

#[track_caller]
fn refused(policy: &Policy, observed: &Observed, place: &str, parts: &[&str]) {
    let problems = plan(policy, observed, &Held::default()).expect_err("should have been refused");
    let text: Vec<String> = problems.iter().map(Problem::to_string).collect();
    assert_eq!(text.len(), 1, "{text:#?}");
    assert!(text[0].starts_with(&format!("p.toml:{place}: ")), "{place}: {text:#?}");
    for part in parts {
        assert!(text[0].contains(part), "{part:?} is not in: {}", text[0]);
    }
    assert!(!text[0].chars().any(char::is_control), "{text:?}");
}

/// The wanted queue of the only step that is one.
fn queue(plan: &Plan) -> Deadlines {
    let wanted = plan.steps.iter().filter_map(|s| match &s.wanted {
        Value::Queue(Queue::Deadlines(d)) => Some((**d).clone()),
        _ => None,
    });
    let [only] = &wanted.collect::<Vec<_>>()[..] else { panic!("{:#?}", plan.steps) };
    only.clone()
}

fn segment(plan: &Plan) -> Option<u32> {
    plan.steps.iter().find_map(|s| match s.wanted {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    })
}

#[test]
fn a_channel_is_a_queue_and_a_guarantee() {
    let plan = ok(&channels(vec![sip()]), &one());
    let text: Vec<String> =
        plan.steps.iter().map(|s| format!("{}: {} -> {}", s.setting, s.present, s.wanted)).collect();
    // A tenth of 3 ms is 300 µs: 37 kB at a gigabit, and 32,768 bytes in frames of the MTU are less.
    assert_eq!(text[0], "gso_max_size of eth0: 65536 bytes -> 32768 bytes");
    assert!(
        text[1].starts_with("root qdisc of eth0: fq_codel -> EDF, 1 channel, 999mbit, slack "),
        "{text:?}"
    );
    assert_eq!(text.len(), 2);
    assert_eq!((plan.steps[1].whose.as_str(), plan.steps[1].reason.as_str()), ("eth0", "channel.sip"));
    assert!(
        plan.steps[0].cost.contains("smaller segments")
            && plan.steps[0].cost.contains("more CPU time per byte")
    );
    assert!(
        plan.steps[1].cost.contains("may be lost; the link sends at most 999mbit"),
        "{}",
        plan.steps[1].cost
    );
    assert_eq!(plan.warnings, Vec::<String>::new());
    let queue = queue(&plan);
    let sip = &queue.channels["sip"];
    assert_eq!((queue.rate, queue.realtime_max, queue.scheduler), (999 * MBIT, 0, Scheduler::Edf));
    assert_eq!((sip.deadline, sip.rate, sip.burst), (3 * MS, 2 * MBIT, 2 * (1518 + 24)));
    let [guarantee] = &plan.links[..] else { panic!("{:?}", plan.links) };
    assert_eq!((guarantee.link.as_str(), guarantee.largest, guarantee.reserved), ("eth0", 32_786, 2 * MBIT));
    assert_eq!((guarantee.rate, guarantee.slack), (queue.rate, queue.slack));
    let bound = guarantee.channels[0].bound;
    // Slack is what it takes; the rest of the deadline may be best effort's.
    assert!(bound <= 3 * MS && bound > 0, "{bound}");
}

#[test]
fn what_is_written_of_the_link_holds() {
    let mut policy =
        channels(vec![ChannelPolicy { burst: Some(at(3000, 23)), min_rate: at(1001, 22), ..sip() }]);
    policy.links = vec![LinkPolicy {
        rate: Some(at(500 * MBIT + 5, 2)),
        slack: Some(at(Auto::Nanoseconds(2 * MS), 3)),
        max_packet: Some(at(1514, 4)),
        realtime_max: Some(at(100 * MBIT + 7, 5)),
        ..link("eth0", 1)
    }];
    let plan = ok(&policy, &with(|l| l.guests = true));
    let queue = queue(&plan);
    assert_eq!((queue.rate, queue.slack, queue.realtime_max), (500 * MBIT, 2 * MS, 100 * MBIT));
    assert_eq!((queue.channels["sip"].rate, queue.channels["sip"].burst), (1008, 3000));
    assert_eq!((plan.links[0].largest, segment(&plan)), (1514, Some(1500)));
    // TCP of the host may put two frames into one packet, whatever it is told.
    assert!(
        plan.warnings[0].contains("`ip link set dev eth0 gso_max_segs 1` keeps it from that"),
        "{plan:#?}"
    );
}

#[test]
fn segments_are_as_large_as_the_deadlines_let_them_be() {
    let of = |deadline, observed: &Observed| {
        segment(&ok(&channels(vec![channel("a", 20, 1, deadline, MBIT)]), observed))
    };
    let observed = one();
    // 65,536 bytes take 580 µs: a tenth of 6 ms.
    assert_eq!(of(6 * MS, &observed), None);
    assert_eq!([3, 2, 1].map(|ms| of(ms * MS, &observed)), [Some(32_768), Some(16_384), Some(8192)]);
    // No smaller than two frames of the MTU, whatever the deadline.
    assert_eq!(of(MS / 4, &observed), Some(3000));
    let mut small = one();
    let setting = Setting::SegmentSize(Device { name: "eth0".into(), index: 2 });
    small.settings.insert(setting.clone(), Value::Bytes(2000));
    let plan = ok(&channels(vec![channel("a", 20, 1, MS / 2, MBIT)]), &small);
    assert_eq!((segment(&plan), plan.links[0].largest), (None, 3018));
    // What cannot be read is taken for the kernel's default, and said.
    small.settings.remove(&setting);
    small.unreadable.push("gso_max_size of eth0 needs CAP_X".into());
    let plan = ok(&channels(vec![sip()]), &small);
    assert_eq!((segment(&plan), plan.links[0].largest), (None, 65_554));
    let [warning] = &plan.warnings[..] else { panic!("{plan:#?}") };
    assert!(
        warning.contains("needs CAP_X") && warning.contains("so segments of 64 KiB are allowed for"),
        "{warning}"
    );
}

#[test]
fn segments_become_larger_only_after_the_queue_allows_for_them() {
    let setting = Setting::SegmentSize(Device { name: "eth0".into(), index: 2 });
    let mut observed = one();
    observed.settings.insert(setting.clone(), Value::Bytes(8192));
    let hold = Hold {
        whose: "eth0".into(),
        original: Value::Bytes(65_536),
        value: Value::Bytes(8192),
        since: 1,
        reason: "channel.a".into(),
    };
    let held = Held { settings: [(setting.clone(), hold)].into() };
    let policy = channels(vec![channel("a", 20, 1, 6 * MS, MBIT)]);
    let kinds = |plan: Plan| plan.steps.iter().map(|s| s.setting.to_string()).collect::<Vec<_>>();
    let after = plan(&policy, &observed, &held).unwrap();
    assert_eq!(segment(&after), Some(65_536));
    assert_eq!(kinds(after), ["root qdisc of eth0", "gso_max_size of eth0"]);
    // And back: the queue first.
    let queue = queue(&plan(&policy, &observed, &held).unwrap());
    let setting = Setting::Queue(Device { name: "eth0".into(), index: 2 });
    let value = Value::Queue(Queue::Deadlines(Box::new(queue)));
    observed.settings.insert(setting.clone(), value.clone());
    let mut held = held;
    let original = Value::Queue(common::stock());
    let hold = Hold { whose: "eth0".into(), original, value, since: 1, reason: "channel.a".into() };
    held.settings.insert(setting, hold);
    let back = plan(&Policy::default(), &observed, &held).unwrap();
    assert_eq!(kinds(back), ["root qdisc of eth0", "gso_max_size of eth0"]);
}

#[test]
fn guests_packets_are_as_large_as_guests_like() {
    let plan = ok(&channels(vec![channel("a", 20, 1, 10 * MS, MBIT)]), &with(|l| l.guests = true));
    assert_eq!((plan.links[0].largest, segment(&plan)), (65_550, None));
    assert!(plan.warnings[0].contains("host_tso4") && plan.warnings[0].contains("`max_packet`"), "{plan:#?}");
    let short = channels(vec![channel("a", 20, 1, MS / 2, MBIT)]);
    let guests = with(|l| l.guests = true);
    refused(
        &short,
        &guests,
        "21:1",
        &["eth0: the deadlines cannot all be kept: within 500us", "`max_packet`", "host_tso4"],
    );
    // A link that allows the host more than 64 KiB is kept to that.
    let mut big = with(|l| l.guests = true);
    big.settings.insert(Setting::SegmentSize(big.links[0].device()), Value::Bytes(200_000));
    let plan = ok(&channels(vec![channel("a", 20, 1, 10 * MS, MBIT)]), &big);
    assert_eq!(segment(&plan), Some(65_536));
}

#[test]
fn a_channel_s_link_is_the_one_that_is_written_or_the_only_one() {
    let two = || vec![nic("eth0", Vec::new()), ObservedLink { index: 3, ..nic("eth1", Vec::new()) }];
    let observed = host("0-3", Vec::new(), two());
    let on = |name: &str| ChannelPolicy { link: Some(at(name.into(), 25)), ..sip() };
    let links =
        |policy: &Policy| ok(policy, &observed).links.iter().map(|l| l.link.clone()).collect::<Vec<_>>();
    assert_eq!(links(&channels(vec![sip()])), ["eth0"]);
    assert_eq!(links(&channels(vec![on("eth1"), channel("b", 30, 7, MS, MBIT)])), ["eth1", "eth0"]);
    assert_eq!(links(&Policy { channels: vec![on("eth1")], ..Policy::default() }), ["eth1"]);
    let none = Policy { channels: vec![sip()], ..Policy::default() };
    refused(
        &none,
        &observed,
        "20:1",
        &["there is no [link.NAME] that it could leave by: write which, as in link = \"eth0\""],
    );
    let both = Policy { links: vec![link("eth1", 1), link("eth0", 2)], ..channels(vec![sip()]) };
    refused(
        &both,
        &observed,
        "20:1",
        &["it could leave by any of 2 links: write which, as in link = \"eth1\""],
    );
    refused(
        &channels(vec![on("eht0")]),
        &observed,
        "25:1",
        &["there is no link `eht0`; there is `eth0`, `eth1`"],
    );
}

#[test]
fn links_that_cannot_have_deadlines() {
    let policy = channels(vec![sip()]);
    refused(&policy, &with(|l| l.kind = LinkKind::Bridge), "20:1", &["eth0 is a bridge", "name its uplink"]);
    refused(
        &policy,
        &with(|l| l.speed = None),
        "20:1",
        &["eth0 says no speed", "rate = \"1gbit\" below [link.eth0]"],
    );
    for kind in [LinkKind::Tap, LinkKind::Nic] {
        assert!(ok(&policy, &with(|l| l.kind = kind)).warnings.is_empty());
    }
    for (kind, phrase) in [(LinkKind::Bond, "is a bond"), (LinkKind::Virtual, "is a virtual device")] {
        let warnings = ok(&policy, &with(|l| l.kind = kind)).warnings;
        assert!(warnings[0].contains(phrase), "{warnings:?}");
    }
    let mut observed = one();
    observed.deadlines = DeadlineSupport::None("no teiji agent keeps them: start one\u{1b}[2J".into());
    refused(
        &policy,
        &observed,
        "20:1",
        &["deadlines cannot be kept: no teiji agent keeps them: start one\\u{1b}"],
    );
    observed.deadlines = DeadlineSupport::Hfsc("its BTF has no Qdisc_ops".into());
    refused(&policy, &observed, "20:1", &["no BPF qdiscs (its BTF has no Qdisc_ops)", "Linux 6.16 or newer"]);
    // Nothing of it matters to a policy without channels.
    assert!(plan(&Policy { channels: Vec::new(), ..policy.clone() }, &observed, &Held::default()).is_ok());
    let mut observed = one();
    observed.settings.remove(&Setting::Queue(Device { name: "eth0".into(), index: 2 }));
    observed.unreadable.push("root qdisc of eth0 is htb, which may hold classes".into());
    refused(
        &policy,
        &observed,
        "20:1",
        &["root qdisc of eth0 (eth0) cannot be read, so it could not be put back", "is htb"],
    );
}

#[test]
fn rates_that_the_device_does_not_send() {
    let policy = |rate| Policy {
        links: vec![LinkPolicy { rate: Some(at(rate, 2)), ..link("eth0", 1) }],
        ..channels(vec![sip()])
    };
    refused(
        &policy(1001 * MBIT),
        &one(),
        "2:1",
        &["eth0 says that it sends 1gbit only", "write \"999mbit\" or less"],
    );
    let warned = |rate| ok(&policy(rate), &one()).warnings;
    assert!(warned(1000 * MBIT)[0].contains("leaves no room for clocks that differ"));
    assert!(warned(999 * MBIT).is_empty());
    // Of a device that says nothing what is written is believed.
    let silent = with(|l| l.speed = None);
    let sent = |rate| queue(&ok(&policy(rate), &silent)).rate;
    assert_eq!([sent(300 * MBIT + 1), sent(5000 * MBIT)], [300 * MBIT, 5000 * MBIT]);
}

#[test]
fn channels_that_do_not_fit() {
    let many = |n: u16, deadline, rate| {
        channels(
            (0..n)
                .map(|i| channel(&format!("c{i}"), 20 + 5 * usize::from(i), i + 1, deadline, rate))
                .collect(),
        )
    };
    refused(
        &many(2, 120_000, MBIT),
        &one(),
        "26:1",
        &[
            "eth0: the deadlines cannot all be kept: within 120us the link would have to send ",
            "what would do: a link of ",
            "up to 3000 bytes",
        ],
    );
    // Of several deadlines that one is named at which the demand exceeds the link most.
    let mut policy = many(3, 10 * MS, MBIT);
    policy.channels[1].deadline.value = 120_000;
    refused(&policy, &one(), "26:1", &["within 120us"]);
    refused(
        &many(2, 10 * MS, 500 * MBIT),
        &one(),
        "20:1",
        &["rates exceed the link's, by 125000 bytes in each second"],
    );
    let mut policy = many(2, 10 * MS, 400 * MBIT);
    policy.links[0].realtime_max = Some(at(799 * MBIT, 3));
    refused(
        &policy,
        &one(),
        "3:1",
        &["the channels of eth0 are guaranteed 800mbit together, more than `realtime_max`"],
    );
    policy.links[0].realtime_max = Some(at(800 * MBIT, 3));
    assert!(plan(&policy, &one(), &Held::default()).is_ok());
    policy.links[0].slack = Some(at(Auto::Nanoseconds(1), 4));
    refused(
        &policy,
        &one(),
        "4:1",
        &["with a slack of 1ns best effort goes first for too long", "a slack of"],
    );
}

#[test]
fn channels_that_cannot_be_told_apart_or_named() {
    let twin = ChannelPolicy { name: at("twin\u{202e}".into(), 30), ..sip() };
    refused(
        &channels(vec![sip(), twin]),
        &one(),
        "30:1",
        &["`twin\\u{202e}` has the same ends and protocol as `sip` (p.toml:20:1)", "make their ends differ"],
    );
    // An end that is open is no end.
    let open = Endpoint { address: [0, 0, 0, 0].into(), prefix: 0, port: None };
    let a = ChannelPolicy { from: Some(at(open, 24)), ..sip() };
    let b = ChannelPolicy { name: at("b".into(), 30), ..sip() };
    refused(&channels(vec![a, b]), &one(), "30:1", &["the same ends"]);
    let long = ChannelPolicy { name: at("é".repeat(MAX_NAME / 2 + 1), 20), ..sip() };
    refused(&channels(vec![long]), &one(), "20:1", &["name has 64 bytes; give it one of at most 63"]);
    let tight = ChannelPolicy { burst: Some(at(30, 23)), ..sip() };
    refused(
        &channels(vec![tight]),
        &one(),
        "23:1",
        &["a burst of 30b holds no frame: write \"84b\" or more"],
    );
    let small = Policy {
        links: vec![LinkPolicy { max_packet: Some(at(1513, 2)), ..link("eth0", 1) }],
        ..channels(vec![sip()])
    };
    refused(&small, &one(), "2:1", &["`max_packet` is less than the 1514 bytes of a frame of eth0's MTU"]);
}

#[test]
fn kinds_of_ends_and_channels_are_bounded() {
    let prefixes = |n: u8| {
        let one = |i: u8| ChannelPolicy {
            to: Some(at(Endpoint { address: [0, 0, 0, 0].into(), prefix: i + 1, port: None }, 20)),
            ..channel(&format!("c{i}"), 20 + usize::from(i), 1, 50 * MS, 1000)
        };
        (0..n).map(one).collect::<Vec<_>>()
    };
    let most = prefixes(MAX_SHAPES as u8);
    assert_eq!(ok(&channels(most.clone()), &one()).links[0].channels.len(), MAX_SHAPES);
    refused(
        &channels(prefixes(MAX_SHAPES as u8 + 2)),
        &one(),
        "36:1",
        &["with `c16` the channels of eth0 have more than 16 kinds"],
    );
    // One whose ends are open is of IPv4 and of IPv6.
    let open = ChannelPolicy { to: None, ..channel("open", 90, 1, 50 * MS, 1000) };
    let mut all = most;
    all[15] = open;
    refused(&channels(all), &one(), "90:1", &["kinds of ends"]);
    let many = |n: usize| {
        let one = |i: usize| ChannelPolicy {
            burst: Some(at(84, 20)),
            ..channel(&format!("c{i}"), i, i as u16, 1000 * MS, 8)
        };
        channels((1..=n).map(one).collect())
    };
    assert_eq!(ok(&many(MAX_CHANNELS), &one()).links[0].channels.len(), MAX_CHANNELS);
    refused(&many(MAX_CHANNELS + 1), &one(), "4097:1", &["4097 channels are more than the 4096 of a host"]);
}

#[test]
fn what_has_no_effect_is_told() {
    let policy = Policy {
        links: vec![LinkPolicy { rate: Some(at(MBIT, 2)), max_packet: Some(at(1514, 3)), ..link("eth9", 1) }],
        ..Policy::default()
    };
    let plan = ok(&policy, &one());
    let of = |key: &str| format!("`link.eth9.{key}` has no effect: no channel leaves by eth9");
    assert_eq!(plan.warnings, [of("rate"), of("max_packet")]);
    assert!(plan.steps.is_empty() && plan.links.is_empty());
}

/// Whatever is asked of whatever host: what is admitted is guaranteed in time, and all that is wanted of a queue is
/// what it can keep; what is not admitted is refused with a reason and its place. Both happen.
#[test]
fn admitted_channels_are_guaranteed() {
    let (mut admitted, mut refused, mut none) = (0, 0, 0);
    let counts = std::cell::RefCell::new((&mut admitted, &mut refused, &mut none));
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() });
    let run = runner.run(&(common::any_host(), common::any_channels()), |(observed, policy)| {
        let mut counts = counts.borrow_mut();
        match plan(&policy, &observed, &Held::default()) {
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                prop_assert!(problems.iter().all(|p| p.place.file == "p.toml" && !p.message.is_empty()));
                *counts.1 += 1;
            }
            Ok(plan) => {
                let guaranteed: usize = plan.links.iter().map(|l| l.channels.len()).sum();
                prop_assert_eq!(guaranteed, policy.channels.len());
                plan.links.iter().try_for_each(|link| kept(link, &plan, &observed))?;
                *(if guaranteed > 0 { &mut *counts.0 } else { &mut *counts.2 }) += 1;
            }
        }
        Ok(())
    });
    run.unwrap();
    let all = admitted + refused + none;
    assert!(admitted * 10 > all && refused * 10 > all, "{admitted} admitted, {refused} refused of {all}");
}

/// Whether the link's queue is wanted as it was guaranteed, in the bounds of the device.
fn kept(link: &LinkGuarantee, plan: &Plan, observed: &Observed) -> Result<(), TestCaseError> {
    prop_assert!(link.channels.iter().all(|c| 0 < c.bound && c.bound <= c.deadline), "{:?}", link);
    prop_assert!(link.reserved <= link.rate && link.rate.is_multiple_of(8));
    prop_assert_eq!(link.channels.iter().map(|c| c.rate).sum::<u64>(), link.reserved);
    let device = observed.links.iter().find(|l| l.name == link.link).unwrap();
    prop_assert!(device.speed.is_none_or(|speed| link.rate <= speed));
    prop_assert!(link.largest >= device.mtu + 14);
    let wanted = plan.steps.iter().find(|s| s.setting == Setting::Queue(device.device()));
    let Some(Value::Queue(Queue::Deadlines(queue))) = wanted.map(|s| &s.wanted) else {
        return Err(TestCaseError::fail(format!("no queue for {link:?}")));
    };
    prop_assert_eq!((queue.rate, queue.slack), (link.rate, link.slack));
    prop_assert!(queue.realtime_max == 0 || queue.realtime_max >= link.reserved);
    Ok(())
}
