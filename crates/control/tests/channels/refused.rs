//! Why a plan with channels is refused, and at which place this is reported.

use super::*;

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
        &["eth0 reports no speed", "rate = \"1gbit\" below [link.eth0]"],
    );
    for kind in [LinkKind::Tap, LinkKind::Nic] {
        assert!(ok(&policy, &with(|l| l.kind = kind)).warnings.is_empty());
    }
    for (kind, phrase) in [(LinkKind::Bond, "is a bond"), (LinkKind::Virtual, "is a virtual device")] {
        let warnings = ok(&policy, &with(|l| l.kind = kind)).warnings;
        assert!(warnings[0].contains(phrase), "{warnings:?}");
    }
    let mut observed = one();
    observed.deadline_support = DeadlineSupport::None("no teiji agent keeps them: start one\u{1b}[2J".into());
    refused(
        &policy,
        &observed,
        "20:1",
        &["deadlines cannot be kept: no teiji agent keeps them: start one\\u{1b}"],
    );
    // None of this matters to a policy without channels.
    assert!(plan(&Policy { channels: Vec::new(), ..policy.clone() }, &observed, &Held::default()).is_ok());
    let mut observed = one();
    let why = ResourceError::Unsupported("it is htb, which may hold classes".into());
    observed.settings.record(Resource::RootQdisc(Device { name: "eth0".into(), index: 2 }), Err(why));
    refused(
        &policy,
        &observed,
        "20:1",
        &["root qdisc of eth0 (eth0) cannot be read, so it could not be restored", "it is htb"],
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
        &["eth0 reports a speed of only 1gbit", "write \"999mbit\" or less"],
    );
    let warned = |rate| ok(&policy(rate), &one()).warnings;
    assert!(warned(1000 * MBIT)[0].contains("leaves no margin for clocks that differ"));
    assert!(warned(999 * MBIT).is_empty());
    // For a device that reports no speed, the policy's rate is used.
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
            "eth0: the deadlines cannot all be kept: within 120 µs the link would have to send ",
            "the channels would fit with a link of ",
            "up to 3000 bytes",
        ],
    );
    // Of several deadlines, the one is named at which the demand exceeds the link most.
    let mut policy = many(3, 10 * MS, MBIT);
    policy.channels[1].deadline.value = 120_000;
    refused(&policy, &one(), "26:1", &["within 120 µs"]);
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
        &[
            "`twin\\u{202e}` has the same endpoints and protocol as `sip` (p.toml:20:1)",
            "make their endpoints differ",
        ],
    );
    // An endpoint that matches everything counts as none.
    let open = Endpoint { address: [0, 0, 0, 0].into(), prefix: 0, port: None };
    let a = ChannelPolicy { from: Some(at(open, 24)), ..sip() };
    let b = ChannelPolicy { name: at("b".into(), 30), ..sip() };
    refused(&channels(vec![a, b]), &one(), "30:1", &["the same endpoints"]);
    let long = ChannelPolicy { name: at("é".repeat(MAX_NAME / 2 + 1), 20), ..sip() };
    refused(&channels(vec![long]), &one(), "20:1", &["name has 64 bytes; give it one of at most 63"]);
    let tight = ChannelPolicy { burst: Some(at(30, 23)), ..sip() };
    refused(
        &channels(vec![tight]),
        &one(),
        "23:1",
        &["a burst of 30b is less than one frame: write \"84b\" or more"],
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
    // A channel with open endpoints counts for IPv4 and for IPv6.
    let open = ChannelPolicy { to: None, ..channel("open", 90, 1, 50 * MS, 1000) };
    let mut all = most;
    all[15] = open;
    refused(&channels(all), &one(), "90:1", &["kinds of endpoints"]);
    let many = |n: usize| {
        let one = |i: usize| ChannelPolicy {
            burst: Some(at(84, 20)),
            ..channel(&format!("c{i}"), i, i as u16, 1000 * MS, 8)
        };
        channels((1..=n).map(one).collect())
    };
    assert_eq!(ok(&many(MAX_CHANNELS), &one()).links[0].channels.len(), MAX_CHANNELS);
    refused(
        &many(MAX_CHANNELS + 1),
        &one(),
        "4097:1",
        &["4097 channels are more than the limit of 4096 per host"],
    );
}
