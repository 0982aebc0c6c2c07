use super::*;
use crate::flow::Headers;
use proptest::prelude::*;

fn message(text: &str) -> String {
    Flow::parse(text).unwrap_err().to_string()
}

#[test]
fn terms_are_joined_by_and_or_by_nothing() {
    let a = Flow::parse("udp port 5060").unwrap();
    assert_eq!(a, Flow::parse("  UDP and\tport 5060 ").unwrap());
    assert_eq!(a.proto, Some(Proto::Udp));
    assert_eq!(a.ports, [Port { end: End::Any, port: 5060 }]);
    let b = Flow::parse("ip and src net 10.0.0.0/8 dst host 192.0.2.1 and dst port 53 tcp").unwrap();
    assert_eq!(b.to_string(), "ip and tcp and src net 10.0.0.0/8 and dst host 192.0.2.1 and dst port 53");
    assert_eq!(Flow::parse("").unwrap(), Flow::default());
    assert_eq!(Flow::default().to_string(), "");
    assert_eq!(Flow::parse("net 0.0.0.0/0").unwrap().nets[0].prefix, 0);
}

#[test]
fn an_error_points_at_the_word_and_names_the_nearest() {
    assert_eq!(
        message("udp prot 5060"),
        "unknown word `prot`; did you mean `port`?\n  udp prot 5060\n      ^^^^"
    );
    assert_eq!(message("udp port"), "a port number is missing after `port`\n  udp port\n          ^");
    let e = Flow::parse("host é port 1").unwrap_err();
    assert_eq!((e.at, e.len), (5, 2));
    assert!(e.to_string().ends_with("\n       ^"), "{e}");
    // In columns, of what is shown.
    assert!(
        message("host 東京 port").ends_with("\n  host 東京 port\n       ^^^^"),
        "{}",
        message("host 東京 port")
    );
    assert!(message("udp\tprot 1").ends_with("\n  udp\\tprot 1\n       ^^^^"), "{}", message("udp\tprot 1"));
}

#[test]
fn what_no_packet_can_meet_is_an_error() {
    for (text, part) in [
        ("udp tcp", "both udp and tcp"),
        ("ip ip6", "both ip and ip6"),
        ("ip host ::1", "is ip and has the address ::1"),
        ("host ::1 ip", "is ip and has the address ::1"),
        ("ip6 net 10.0.0.0/8", "is ip6 and has"),
        ("host ::1 host 10.0.0.1", "both ::1 and 10.0.0.1"),
        ("icmp port 7", "icmp has no ports"),
        ("port 7 icmp", "icmp has no ports"),
        ("src port 1 src port 2", "both port 1 and 2"),
        ("src host 10.0.0.1 src net 11.0.0.0/8", "in both"),
        ("net 10.1.2.3/8", "the prefix is 10.0.0.0/8"),
        ("net fe80::1/10", "the prefix is fe80::/10"),
        ("net 10.0.0.0/33", "from 0 to 32"),
        ("net 10.0.0.0/+8", "from 0 to 32"),
        ("net 10.0.0.0", "`host 10.0.0.0`"),
        ("host 10.0.0.0/8", "`net 10.0.0.0/8`"),
        ("host a.example", "not looked up"),
        ("port 0", "from 1 to 65535"),
        ("port 65536", "from 1 to 65535"),
        ("port sip", "from 1 to 65535"),
        ("src udp", "expected one of: host, net, port"),
        ("port 1 port 2 port 3", "at most 2 ports"),
        ("and udp", "no condition before"),
        ("udp and", "missing after `and`"),
        ("udp and and tcp", "unknown word `and`"),
        ("udp or tcp", "not supported"),
        ("(udp)", "not supported"),
        ("10.0.0.1", "`host 10.0.0.1`"),
    ] {
        let message = message(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn a_response_is_matched_with_the_ends_exchanged() {
    let flow = Flow::parse("udp dst port 53 and src host 10.0.0.1").unwrap();
    let request = Headers {
        proto: Some(Proto::Udp),
        src: "10.0.0.1".parse().unwrap(),
        dst: "10.0.0.2".parse().unwrap(),
        sport: 4000,
        dport: 53,
    };
    assert!(flow.matches(&request, true));
    assert!(flow.matches(&request.reversed(), false));
    assert!(!flow.matches(&request, false));
    assert!(!flow.matches(&request.reversed(), true));
    assert!(!flow.matches(&Headers { proto: None, ..request }, true));
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    assert!(!message("udp \u{1b}[31mport").contains('\u{1b}'));
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![Just(End::Any), Just(End::Src), Just(End::Dst)]
}

prop_compose! {
    fn net(v6: bool)(end in end(), a in any::<u128>(), prefix in 0u8..=128) -> Net {
        let (addr, prefix) = if v6 { (IpAddr::V6(a.into()), prefix) } else { (IpAddr::V4((a as u32).into()), prefix % 33) };
        Net { end, addr: masked(addr, prefix), prefix }
    }
}

fn flow() -> impl Strategy<Value = Flow> {
    let proto =
        prop_oneof![Just(None), Just(Some(Proto::Udp)), Just(Some(Proto::Tcp)), Just(Some(Proto::Icmp))];
    let ports = prop::collection::vec((end(), 1u16..), 0..3);
    let nets = any::<bool>().prop_flat_map(|v6| (Just(v6), prop::collection::vec(net(v6), 0..3)));
    (any::<bool>(), proto, nets, ports).prop_map(|(versioned, proto, (v6, nets), ports)| Flow {
        version: versioned.then_some(if v6 { 6 } else { 4 }),
        proto,
        nets,
        ports: ports.into_iter().map(|(end, port)| Port { end, port }).collect(),
    })
}

proptest! {
    #[test]
    fn display_is_read_back(flow in flow()) {
        // A flow that contradicts itself cannot be written; every other one is read back unchanged.
        if let Ok(read) = Flow::parse(&flow.to_string()) {
            prop_assert_eq!(Flow::parse(&read.to_string()), Ok(read.clone()));
            let mut nets = flow.nets.clone();
            nets.dedup();
            let mut ports = flow.ports.clone();
            ports.dedup();
            prop_assert_eq!(read, Flow { nets, ports, ..flow });
        }
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,60}") {
        if let Err(e) = Flow::parse(&text) {
            prop_assert!(e.at <= text.len());
            prop_assert!(!e.to_string().is_empty());
        }
    }

    #[test]
    fn no_sequence_of_words_panics(words in prop::collection::vec(prop_oneof![
        prop::sample::select(WORDS.to_vec()).prop_map(String::from), "[0-9./:a-f]{1,12}"], 0..12)) {
        let _ = Flow::parse(&words.join(" "));
    }

    #[test]
    fn the_mask_and_the_predicate_agree(n in net(true), a in any::<u128>()) {
        let a = IpAddr::V6(a.into());
        prop_assert_eq!(n.contains(a), masked(a, n.prefix) == n.addr);
    }
}
