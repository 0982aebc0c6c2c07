//! Tests of the policy: problems and their places, the meaning of valid policies, and that the table of keys, the
//! schema and docs/policy.md agree.

mod agreement;
mod generated;
mod hostile;
mod layers;
mod malformed;

use super::*;
use std::net::IpAddr;
use teiji_model::cpus::CpuSet;
use teiji_model::policy::*;
use teiji_model::resource::{Latency, Scheduling};
use teiji_model::units;

/// Parses one file, `p.toml`.
fn read(text: &str) -> Result<Policy, Vec<Problem>> {
    parse(&[Source { name: "p.toml".into(), text: text.into() }])
}

/// A policy as text without its places, to compare the meaning of two.
fn meaning(policy: &Policy) -> String {
    // Nothing but places.
    let policy = Policy { completed: Vec::new(), ..policy.clone() };
    let text = format!("{policy:?}");
    let mut parts = text.split(", location: SourceLocation {");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| out + part.split_once('}').map_or("", |(_, rest)| rest))
}

/// The example of docs/policy.md.
fn example() -> &'static str {
    let doc = include_str!("../../../../docs/policy.md");
    let (_, rest) = doc.split_once("```toml\n").unwrap();
    rest.split_once("```").unwrap().0
}

#[test]
fn the_documents_example_means_what_it_says() {
    let policy = read(example()).unwrap();
    let location = |line, column| SourceLocation { file: "p.toml".into(), line, column };
    let line = |start: &str| 1 + example().lines().position(|l| l.starts_with(start)).unwrap();
    assert_eq!(policy.host.halt_poll.unwrap().value, 50_000);
    assert_eq!(policy.host.cpu_latency.unwrap().value, Latency::AtMost(20));
    assert_eq!(policy.host.cpu_latency_cpus.unwrap().value.to_string(), "2-5");
    assert_eq!(
        policy.links[0].name,
        Located { value: "eth0".into(), location: location(line("[link.eth0]"), 7) }
    );
    assert_eq!(
        policy.links[0].rate,
        Some(Located { value: 1_000_000_000, location: location(line("rate"), 16) })
    );
    assert_eq!(policy.links[0].slack.as_ref().unwrap().value, Auto::Nanoseconds(2_000_000));
    let names: Vec<&str> = policy.vms.iter().map(|vm| vm.name.value.as_str()).collect();
    assert_eq!(names, ["sip1", "media.1", "pid:4711"]);
    assert_eq!(
        policy.vms[0].class.as_ref().unwrap().value,
        VmClass::Threads(Scheduling::Fifo { priority: 20 })
    );
    assert_eq!(policy.vms[0].quota.as_ref().unwrap().value, Some(1500));
    let scheduling = policy.vms[1].class.as_ref().unwrap().value;
    let expected = Scheduling::Deadline { runtime: 2_000_000, deadline: 5_000_000, period: 10_000_000 };
    assert_eq!(scheduling, VmClass::Threads(expected));
    assert_eq!(policy.vms[2].class.as_ref().unwrap().value, VmClass::Threads(Scheduling::Other { nice: 0 }));
    assert_eq!(policy.vms[2].quota.as_ref().unwrap().value, None);
    let channel = &policy.channels[0];
    let from = Endpoint { address: "10.0.0.2".parse().unwrap(), prefix: 32, port: Some(5060) };
    assert_eq!(channel.from.as_ref().unwrap().value, from);
    let to = Endpoint { address: "10.0.1.0".parse().unwrap(), prefix: 24, port: None };
    assert_eq!(channel.to.as_ref().unwrap().value, to);
    assert_eq!(channel.proto.as_ref().unwrap().value, 17);
    assert_eq!((channel.deadline.value, channel.min_rate.value), (3_000_000, 2_000_000));
    assert_eq!(channel.burst.as_ref().unwrap().value, 3000);
    let of = Located { value: "eth0".to_owned(), location: location(line("link "), 12) };
    assert_eq!(channel.link, Some(of));
    assert_eq!(policy.links[0].max_packet.as_ref().unwrap().value, 1514);
    assert_eq!(policy.links[0].realtime_max.as_ref().unwrap().value, 900_000_000);
}

#[test]
fn a_virtual_function_has_the_places_of_its_link_and_number() {
    let policy = read("\n[vf.eth1.3]\nhard = \"400mbit\"\n").unwrap();
    let location = |column| SourceLocation { file: "p.toml".into(), line: 2, column };
    assert_eq!(policy.vfs[0].link, Located { value: "eth1".into(), location: location(2) });
    assert_eq!(policy.vfs[0].index, Located { value: 3, location: location(10) });
    assert_eq!(policy.vfs[0].hard.as_ref().unwrap().value, 400_000_000);
}

#[test]
fn nothing_asks_for_nothing() {
    for text in ["", "\n", "# only a comment\n", "\u{feff}", "[vm.a]\n", "[host]"] {
        let policy = read(text).unwrap();
        assert_eq!(policy.host, HostPolicy::default(), "{text:?}");
        assert!(policy.vms.iter().all(|vm| vm.class.is_none()), "{text:?}");
    }
    assert_eq!(parse(&[]), Ok(Policy::default()));
}

#[test]
fn sections_keep_their_order_across_files() {
    let file = |name: &str, text: &str| Source { name: name.into(), text: text.into() };
    let policy = parse(&[
        file("10.toml", "[vf.b.1]\n[vf.a.0]\n[vf.b.0]\n[vm.z]\n[vm.a]\n"),
        file("20.toml", "vm.k.weight = 3\n[vm.c]\n[vf.a.1]\n"),
    ])
    .unwrap();
    let vms: Vec<String> =
        policy.vms.iter().map(|vm| format!("{} {}", vm.name.value, vm.name.location)).collect();
    assert_eq!(vms, ["z 10.toml:4:5", "a 10.toml:5:5", "k 20.toml:1:4", "c 20.toml:2:5"]);
    let vfs: Vec<(&str, u32)> =
        policy.vfs.iter().map(|vf| (vf.link.value.as_str(), vf.index.value)).collect();
    assert_eq!(vfs, [("b", 1), ("a", 0), ("b", 0), ("a", 1)]);
}
