//! Random policies: written and parsed again, broken in all ways, and random text.

use super::hostile::decent;
use super::*;
use proptest::prelude::*;
use std::fmt::Write as _;

/// Lines of one section, each with the key first, and the part of the policy that they become.
#[derive(Clone, Debug)]
struct Written<T> {
    lines: Vec<String>,
    means: T,
}

fn at<T>(value: T) -> Located<T> {
    Located { value, location: SourceLocation::default() }
}

/// `value` in one of the units that divide it, chosen by `which`.
fn amount(of: &units::Quantity, value: u64, which: usize) -> String {
    let fits: Vec<_> = of.units.iter().filter(|(_, factor)| value.is_multiple_of(*factor)).collect();
    match fits.get(which % fits.len().max(1)) {
        Some((name, factor)) => format!("\"{}{name}\"", value / factor),
        None => format!("\"{}\"", of.write(value)),
    }
}

fn cpus() -> impl Strategy<Value = CpuSet> {
    prop::collection::btree_set(0u32..teiji_model::cpus::MAX_CPUS, 1..6)
        .prop_map(|set| set.into_iter().collect())
}

fn line<T>(lines: &mut Vec<String>, key: &str, value: &Option<T>, text: impl Fn(&T) -> String) {
    lines.extend(value.as_ref().map(|value| format!("{key} = {}", text(value))));
}

prop_compose! {
    fn host()(
        halt in prop::option::of(0u64..=10_000_000),
        latency in prop::option::of(prop_oneof![Just(Latency::Any), Just(Latency::None), (1u32..i32::MAX as u32).prop_map(Latency::AtMost)]),
        on in prop::option::of(cpus()),
        users in prop::option::of(prop::collection::vec("[a-z][a-z0-9_-]{0,9}|[0-9]{1,6}", 1..4)),
        unit in 0usize..9,
    ) -> Written<HostPolicy> {
        let on = on.filter(|_| latency.is_some());
        let mut lines = Vec::new();
        line(&mut lines, "halt_poll", &halt, |ns| if *ns == 0 { "\"off\"".into() } else { amount(&units::DURATION, *ns, unit) });
        line(&mut lines, "cpu_latency", &latency, |latency| match latency {
            Latency::Any => "\"any\"".into(),
            Latency::None => "\"none\"".into(),
            Latency::AtMost(us) => amount(&units::DURATION, u64::from(*us) * 1000, unit),
        });
        line(&mut lines, "cpu_latency_cpus", &on, |on| format!("\"{on}\""));
        line(&mut lines, "vm_users", &users, |users| format!("\"{}\"", users.join(", ")));
        Written { lines, means: HostPolicy { halt_poll: halt.map(at), cpu_latency: latency.map(at), cpu_latency_cpus: on.map(at), vm_users: users.map(at) } }
    }
}

prop_compose! {
    fn link()(
        irq in prop::option::of(cpus()),
        rate in prop::option::of(1000u64..=teiji_model::qdisc::MAX_RATE),
        slack in prop::option::of(prop::option::of(0u64..=3_600_000_000_000)),
        max_packet in prop::option::of(60u32..=65_550),
        realtime_max in prop::option::of(1000u64..=teiji_model::qdisc::MAX_RATE),
        unit in 0usize..9,
    ) -> Written<LinkPolicy> {
        let slack = slack.map(|slack| slack.map_or(Auto::Auto, Auto::Nanoseconds));
        let mut lines = Vec::new();
        line(&mut lines, "irq_cpus", &irq, |irq| format!("\"{irq}\""));
        line(&mut lines, "rate", &rate, |rate| amount(&units::RATE, *rate, unit));
        line(&mut lines, "slack", &slack, |slack| match slack {
            Auto::Auto => "\"auto\"".into(),
            Auto::Nanoseconds(ns) => amount(&units::DURATION, *ns, unit),
        });
        line(&mut lines, "max_packet", &max_packet, |bytes| amount(&units::SIZE, u64::from(*bytes), unit));
        line(&mut lines, "realtime_max", &realtime_max, |rate| amount(&units::RATE, *rate, unit));
        let means = LinkPolicy {
            name: at(String::new()),
            irq_cpus: irq.map(at),
            rate: rate.map(at),
            slack: slack.map(at),
            max_packet: max_packet.map(at),
            realtime_max: realtime_max.map(at),
        };
        Written { lines, means }
    }
}

fn class() -> impl Strategy<Value = VmClass> {
    let times = ([1024u64..1 << 40, 1024..1 << 40, 1024..1 << 40], any::<bool>());
    let times = times.prop_map(|(mut times, packets)| {
        times.sort_unstable();
        let [runtime, deadline, period] = times;
        if packets {
            VmClass::Packets(PacketClass { runtime, deadline, period })
        } else {
            VmClass::Threads(Scheduling::Deadline { runtime, deadline, period })
        }
    });
    let fifo = (1u8..=98).prop_map(|priority| VmClass::Threads(Scheduling::Fifo { priority }));
    prop_oneof![1 => Just(VmClass::Threads(Scheduling::Other { nice: 0 })), 1 => fifo, 2 => times]
}

prop_compose! {
    fn vm()(
        class in prop::option::of(class()),
        vcpus in prop::option::of(cpus()),
        workers in prop::option::of(cpus()),
        weight in prop::option::of(1u32..=10_000),
        quota in prop::option::of(prop::option::of(10u32..=8_192_000)),
        unit in 0usize..9,
    ) -> Written<VmPolicy> {
        let pinned = !matches!(class, Some(VmClass::Threads(Scheduling::Deadline { .. })));
        let (vcpus, workers) = (vcpus.filter(|_| pinned), workers.filter(|_| pinned));
        let mut lines = Vec::new();
        match &class {
            Some(VmClass::Threads(Scheduling::Fifo { priority })) => {
                lines.push("class = \"realtime\"".to_owned());
                // 10 is the default.
                lines.extend((*priority != 10).then(|| format!("priority = {priority}")));
            }
            Some(
                VmClass::Packets(PacketClass { runtime, deadline, period })
                | VmClass::Threads(Scheduling::Deadline { runtime, deadline, period }),
            ) => {
                let word = if pinned { "packets" } else { "deadline" };
                lines.push(format!("class = \"{word}\""));
                lines.push(format!("runtime = {}", amount(&units::DURATION, *runtime, unit)));
                lines.extend((deadline != period).then(|| format!("deadline = {}", amount(&units::DURATION, *deadline, unit))));
                lines.push(format!("period = {}", amount(&units::DURATION, *period, unit)));
            }
            Some(_) => lines.push("class = \"fair\"".to_owned()),
            None => {}
        }
        line(&mut lines, "vcpu_cpus", &vcpus, |cpus| format!("\"{cpus}\""));
        line(&mut lines, "worker_cpus", &workers, |cpus| format!("\"{cpus}\""));
        line(&mut lines, "weight", &weight, u32::to_string);
        line(&mut lines, "quota", &quota, |quota| match quota {
            None => "\"none\"".into(),
            Some(thousandths) => format!("\"{}.{}%\"", thousandths / 10, thousandths % 10),
        });
        let means = VmPolicy {
            name: at(String::new()),
            class: class.map(at),
            vcpu_cpus: vcpus.map(at),
            worker_cpus: workers.map(at),
            weight: weight.map(at),
            quota: quota.map(at),
        };
        Written { lines, means }
    }
}

fn endpoint(v6: bool) -> impl Strategy<Value = Endpoint> {
    (any::<u128>(), 0u8..=128, prop::option::of(1u16..)).prop_map(move |(bits, prefix, port)| {
        let (address, prefix) = if v6 {
            (IpAddr::V6(bits.into()), prefix)
        } else {
            (IpAddr::V4((bits as u32).into()), prefix % 33)
        };
        Endpoint { address: teiji_model::flow::masked(address, prefix), prefix, port }
    })
}

fn written(endpoint: &Endpoint) -> String {
    let Endpoint { address, prefix, port } = endpoint;
    let net = match *prefix == teiji_model::flow::bits(*address) {
        true => address.to_string(),
        false => format!("{address}/{prefix}"),
    };
    match (address, port) {
        (_, None) => format!("\"{net}\""),
        (IpAddr::V4(_), Some(port)) => format!("\"{net}:{port}\""),
        (IpAddr::V6(_), Some(port)) => format!("\"[{net}]:{port}\""),
    }
}

prop_compose! {
    fn channel()(v6 in any::<bool>())(
        from in prop::option::of(endpoint(v6)),
        to in prop::option::of(endpoint(v6)),
        proto in prop::option::of(prop::sample::select(vec![6u8, 17])),
        deadline in 1u64..=teiji_model::qdisc::MAX_DEADLINE,
        min_rate in 1u64..=teiji_model::qdisc::MAX_RATE,
        burst in prop::option::of(84u64..=1 << 30),
        link in prop::option::of("[a-z][a-z0-9.]{0,14}"),
        vm in prop::option::of("[a-z][a-z0-9. ]{0,14}"),
        unit in 0usize..9,
    ) -> Written<ChannelPolicy> {
        let mut lines = vec![
            format!("deadline = {}", amount(&units::DURATION, deadline, unit)),
            format!("min_rate = {}", amount(&units::RATE, min_rate, unit)),
        ];
        line(&mut lines, "link", &link, |name| format!("\"{name}\""));
        line(&mut lines, "vm", &vm, |name| format!("\"{name}\""));
        line(&mut lines, "from", &from, written);
        line(&mut lines, "to", &to, written);
        line(&mut lines, "proto", &proto, |proto| if *proto == 6 { "\"tcp\"".into() } else { "\"udp\"".into() });
        line(&mut lines, "burst", &burst, |bytes| amount(&units::SIZE, *bytes, unit));
        let means = ChannelPolicy {
            name: at(String::new()),
            link: link.map(at),
            from: from.map(at),
            to: to.map(at),
            proto: proto.map(at),
            deadline: at(deadline),
            min_rate: at(min_rate),
            burst: burst.map(at),
            vm: vm.map(at),
        };
        Written { lines, means }
    }
}

prop_compose! {
    fn vf()(hard in prop::option::of(1_000_000u64..=10_000_000_000_000), weight in prop::option::of(1u32..=100), unit in 0usize..9)
        -> Written<VfPolicy> {
        let mut lines = Vec::new();
        line(&mut lines, "hard", &hard, |rate| amount(&units::RATE, *rate, unit));
        line(&mut lines, "weight", &weight, u32::to_string);
        let means = VfPolicy { link: at(String::new()), index: at(0), hard: hard.map(at), weight: weight.map(at) };
        Written { lines, means }
    }
}

/// Names, some of which need quotes and escapes.
fn names(pattern: &'static str) -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_set(pattern, 0..4).prop_map(|names| {
        let names: Vec<String> = names.into_iter().filter(|n| !n.starts_with("pid:")).collect();
        // Not in the order of a map's keys.
        names.into_iter().rev().collect()
    })
}

/// A name in the form of a header.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

fn put<T>(text: &mut String, header: &str, written: &Written<T>) {
    let _ = writeln!(text, "[{header}] # {header}\n{}", written.lines.join("\n"));
}

prop_compose! {
    /// A policy as text, and its meaning.
    fn policy()(
        host in prop::option::of(host()),
        links in names("[a-zA-Z0-9._\"\\\\-]{3,15}").prop_flat_map(|n| n.into_iter().map(|n| link().prop_map(move |w| (n.clone(), w))).collect::<Vec<_>>()),
        vms in names("\\PC{0,20}[a-z]").prop_flat_map(|n| n.into_iter().map(|n| vm().prop_map(move |w| (n.clone(), w))).collect::<Vec<_>>()),
        channels in names("\\PC{0,20}[a-z]").prop_flat_map(|n| n.into_iter().map(|n| channel().prop_map(move |w| (n.clone(), w))).collect::<Vec<_>>()),
        vfs in prop::collection::btree_map(0u32..65_535, vf(), 0..4),
    ) -> (String, Policy) {
        let (mut text, mut policy) = (String::new(), Policy::default());
        for (name, mut written) in vms {
            put(&mut text, &format!("vm.{}", quoted(&name)), &written);
            written.means.name = at(name);
            policy.vms.push(written.means);
        }
        if let Some(written) = host {
            put(&mut text, "host", &written);
            policy.host = written.means;
        }
        for (name, mut written) in links {
            put(&mut text, &format!("link.{}", quoted(&name)), &written);
            written.means.name = at(name);
            policy.links.push(written.means);
        }
        for (index, mut written) in vfs.into_iter().rev() {
            put(&mut text, &format!("vf.eth1.{index}"), &written);
            (written.means.link, written.means.index) = (at("eth1".into()), at(index));
            policy.vfs.push(written.means);
        }
        for (name, mut written) in channels {
            put(&mut text, &format!("channel.{}", quoted(&name)), &written);
            written.means.name = at(name);
            policy.channels.push(written.means);
        }
        (text, policy)
    }
}

/// Pieces that policies consist of, and pieces that break them.
const PIECES: &[&str] = &[
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    ".",
    ",",
    "\"",
    "'",
    "\"\"\"",
    "'''",
    "#",
    "\n",
    "\r\n",
    "\r",
    " ",
    "\\",
    "\\u001b",
    "\u{1b}",
    "\0",
    "\u{feff}",
    "\u{202e}",
    "é",
    "-1",
    "0x",
    "1e9",
    "inf",
    "1979-05-27",
    "true",
    "[vm.a]\n",
    "[vm]\n",
    "[vf.e.1]\n",
    "[host]\n",
    "vm.a.b.c = 1\n",
    "class = \"deadline\"\n",
    "\"3ms\"",
    "3ms",
    "a.b.c.d.e.f.g.h.i",
];

proptest! {
    #[test]
    fn what_is_written_is_read((text, expected) in policy()) {
        match read(&text) {
            Ok(read) => prop_assert_eq!(meaning(&read), meaning(&expected), "{}", text),
            Err(problems) => prop_assert!(false, "{}\n{:#?}", text, problems),
        }
    }

    #[test]
    fn broken_policies_get_decent_answers(
        (mut text, _) in policy(),
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..30, prop::sample::select(PIECES)), 1..8),
    ) {
        for (at, length, piece) in cuts {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let start = at.index(places.len());
            let end = (start + length).min(places.len() - 1);
            text.replace_range(places[start]..places[end], piece);
        }
        decent(&text);
    }

    #[test]
    fn pieces_in_any_order_get_decent_answers(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        decent(&pieces.concat());
    }

    #[test]
    fn any_text_gets_a_decent_answer(text in "(?s:.){0,200}") {
        decent(&text);
    }

    #[test]
    fn several_files_never_panic(texts in prop::collection::vec(policy(), 0..4)) {
        let file = |(at, (text, _)): (usize, (String, Policy))| Source { name: format!("{at}.toml"), text };
        let sources: Vec<Source> = texts.into_iter().enumerate().map(file).collect();
        if let Err(problems) = parse(&sources) {
            // Each section is valid on its own, but two of them may contradict each other; nothing else can be wrong.
            let contradicts = |p: &Problem| {
                ["cannot be used", "one of `from` and `to`", "is only valid with", "is longer than"]
                    .iter()
                    .any(|what| p.message.contains(what))
            };
            prop_assert!(problems.iter().all(contradicts), "{:#?}", problems);
        }
    }

    #[test]
    fn what_the_last_file_says_holds((first, _) in policy(), (last, expected) in policy()) {
        let file = |name: &str, text: String| Source { name: name.into(), text };
        let Ok(both) = parse(&[file("a", first.clone()), file("b", last.clone())]) else { return Ok(()) };
        for vm in &expected.vms {
            let Some(found) = both.vms.iter().find(|v| v.name.value == vm.name.value) else {
                return Err(TestCaseError::fail(format!("{} is missing", vm.name.value)));
            };
            let says = |what: &dyn std::fmt::Debug| format!("{what:?}");
            for (wanted, is) in [
                (vm.class.as_ref().map(|a| says(&a.value)), found.class.as_ref().map(|a| says(&a.value))),
                (vm.vcpu_cpus.as_ref().map(|a| says(&a.value)), found.vcpu_cpus.as_ref().map(|a| says(&a.value))),
                (vm.weight.as_ref().map(|a| says(&a.value)), found.weight.as_ref().map(|a| says(&a.value))),
                (vm.quota.as_ref().map(|a| says(&a.value)), found.quota.as_ref().map(|a| says(&a.value))),
            ] {
                prop_assert!(wanted.is_none() || wanted == is, "{wanted:?}, {is:?}\n{first}\n{last}");
            }
        }
    }

    #[test]
    fn a_file_beside_itself_means_the_same((text, _) in policy()) {
        let source = Source { name: "p.toml".into(), text };
        let twice = parse(&[source.clone(), source.clone()]);
        prop_assert_eq!(twice, parse(&[source]));
    }
}
