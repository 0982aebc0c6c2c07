//! Channels that a link can keep: settings, segments, guarantees.

use super::*;

#[test]
fn a_channel_is_a_queue_and_a_guarantee() {
    let plan = ok(&channels(vec![sip()]), &one());
    let text: Vec<String> =
        plan.steps.iter().map(|s| format!("{}: {} -> {}", s.setting, s.present, s.wanted)).collect();
    // A tenth of 3 ms is 300 µs: 37 kB at 1 Gbit/s, and 32,768 bytes in frames of the MTU are less.
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
    // The slack is the smallest sufficient one; the rest of the deadline may be used by best effort.
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
    // The host's TCP may put two frames into one packet, whatever its limit is.
    assert!(plan.warnings[0].contains("`ip link set dev eth0 gso_max_segs 1` prevents that"), "{plan:#?}");
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
    // Not smaller than two frames of the MTU, whatever the deadline.
    assert_eq!(of(MS / 4, &observed), Some(3000));
    let mut small = one();
    let setting = Resource::SegmentSize(Device { name: "eth0".into(), index: 2 });
    small.settings.insert(setting.clone(), Value::Bytes(2000));
    let plan = ok(&channels(vec![channel("a", 20, 1, MS / 2, MBIT)]), &small);
    assert_eq!((segment(&plan), plan.links[0].largest), (None, 3018));
    // If the value cannot be read, the kernel's default is assumed, with a warning.
    small.settings.record(setting.clone(), Err(ResourceError::NotPermitted("it needs CAP_X".into())));
    let plan = ok(&channels(vec![sip()]), &small);
    assert_eq!((segment(&plan), plan.links[0].largest), (None, 65_554));
    let [warning] = &plan.warnings[..] else { panic!("{plan:#?}") };
    assert!(
        warning.contains("needs CAP_X") && warning.contains("so segments of 64 KiB are assumed"),
        "{warning}"
    );
}

#[test]
fn segments_become_larger_only_after_the_queue_allows_for_them() {
    let setting = Resource::SegmentSize(Device { name: "eth0".into(), index: 2 });
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
    // And back: the queue comes first.
    let queue = queue(&plan(&policy, &observed, &held).unwrap());
    let setting = Resource::RootQdisc(Device { name: "eth0".into(), index: 2 });
    let value = Value::RootQdisc(RootQdisc::Deadline(Box::new(queue)));
    observed.settings.insert(setting.clone(), value.clone());
    let mut held = held;
    let original = Value::RootQdisc(common::existing());
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
        &["eth0: the deadlines cannot all be kept: within 500 µs", "`max_packet`", "host_tso4"],
    );
    // A link whose limit for the host is above 64 KiB is limited to 64 KiB.
    let mut big = with(|l| l.guests = true);
    big.settings.insert(Resource::SegmentSize(big.links[0].device()), Value::Bytes(200_000));
    let plan = ok(&channels(vec![channel("a", 20, 1, 10 * MS, MBIT)]), &big);
    assert_eq!(segment(&plan), Some(65_536));
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

#[test]
fn a_step_from_queue_to_queue_says_what_changes() {
    let first = ok(&channels(vec![sip(), channel("b", 30, 7, 9 * MS, MBIT)]), &one());
    let mut observed = one();
    for step in first.steps {
        observed.settings.insert(step.setting, step.wanted);
    }
    let cost = |policy: &Policy| {
        let plan = ok(policy, &observed);
        plan.steps.iter().find(|s| matches!(s.setting, Resource::RootQdisc(_))).unwrap().cost.clone()
    };
    let other = ChannelPolicy { min_rate: at(3 * MBIT, 22), ..sip() };
    assert_eq!(
        cost(&channels(vec![other, channel("c", 40, 8, 9 * MS, MBIT)])),
        "channels: 1 new, 1 changed, 1 removed; no packet is lost; the link sends at most 999mbit"
    );
    let mut slower = channels(vec![sip(), channel("b", 30, 7, 9 * MS, MBIT)]);
    slower.links[0].rate = Some(at(800 * MBIT, 2));
    assert_eq!(cost(&slower), "no channel changes; the link sends at most 800mbit");
}

#[test]
fn without_an_agent_the_plan_says_what_to_do_first() {
    let mut observed = one();
    observed.deadline_support = DeadlineSupport::NoAgent("start the agent\u{1b}[2J".into());
    let policy = channels(vec![sip()]);
    let plan = ok(&policy, &observed);
    let with_agent = ok(&policy, &one());
    assert_eq!(plan.first, ["start the agent\\u{1b}[2J"]);
    assert_eq!((&plan.steps, &plan.links), (&with_agent.steps, &with_agent.links));
    assert_eq!(with_agent.first, Vec::<String>::new());
    assert_eq!(ok(&Policy { channels: Vec::new(), ..policy }, &observed).first, Vec::<String>::new());
}
