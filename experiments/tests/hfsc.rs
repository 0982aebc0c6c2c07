//! Channels on a kernel without BPF qdiscs, in the lab in virtual time: planned, applied, changed, killed and rolled
//! back with teiji, and measured. One CPU, so that times are correct.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use teiji_experiments::edf_delay::net;
use teiji_experiments::edf_delay::{LINK, MARGIN, TestChannel, WIRE, Workload, traffic};
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Kernel, LabHost};
use teiji_model::qdisc::MAX_CHANNELS;

const TEIJI: &str = "ip netns exec a /tmp/teiji";
const PLACE: &str = "--state /tmp/state --pins /tmp/bpf/teiji";
const LINK_SECTION: &str = "[link.va]\nrate = \"50mbit\"\nmax_packet = \"1514b\"\n";

static HOST: Shared<LabHost> = Shared::new("the lab", || {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hfsc");
    let host = net::boot_kernel(&out, net::TIMED, Kernel::Stable).unwrap();
    host.put("/tmp/six.toml", policy(&six()).as_bytes()).unwrap();
    host.put("/tmp/kinds.toml", kinds().as_bytes()).unwrap();
    host
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        the_former_root_is_put_back,
        a_missing_module_changes_nothing,
        packets_find_their_channels,
        what_others_change_is_told,
        a_killed_apply_is_whole,
        as_many_channels_as_a_host_may_have,
        no_packet_is_later_than_printed,
    ];
    harness::run(&tests, || HOST.if_made(LabHost::end))
}

/// The lab host without channels, which a failed test may have left.
fn fresh() -> &'static LabHost {
    let clear = format!("{TEIJI} rollback --force {PLACE}; ip netns exec a tc qdisc del dev va root; true");
    HOST.run(&clear).unwrap();
    &HOST
}

/// Channels that reserve most of the link; some send several packets at once.
fn six() -> Workload {
    let channel = |(ms, mbit, burst): (u64, u64, u64)| TestChannel {
        deadline_us: ms * 1000,
        rate: mbit * 1_000_000,
        burst,
    };
    let all = [(3, 2, 1), (4, 1, 2), (5, 2, 2), (8, 4, 3), (10, 12, 8), (15, 8, 4), (20, 4, 6)];
    Workload { name: "HFSC", channels: all.map(channel).to_vec(), slack_us: None, seconds: 4 }
}

fn policy(plan: &Workload) -> String {
    let mut t = LINK_SECTION.to_owned();
    for (i, c) in plan.channels.iter().enumerate() {
        let (port, burst) = (6000 + i, c.burst * WIRE + MARGIN);
        let _ = write!(
            t,
            "[channel.c{i}]\nto = \"10.88.0.2:{port}\"\nproto = \"udp\"\ndeadline = \"{}us\"\nmin_rate = \"{}bit\"\n\
             burst = \"{burst}b\"\n",
            c.deadline_us, c.rate
        );
    }
    t
}

/// Channels with every kind of address and port.
fn kinds() -> String {
    let mut t = LINK_SECTION.to_owned();
    for (name, ends) in [
        ("net", "to = \"10.88.0.0/24\""),
        ("six", "to = \"fd88::/64\""),
        ("tagged", "to = \"10.90.0.2\""),
        ("any-port", "to = \"10.88.0.0/24:6000\""),
        ("udp-port", "to = \"10.88.0.2:6001\"\nproto = \"udp\""),
    ] {
        let _ = write!(
            t,
            "[channel.{name}]\n{ends}\ndeadline = \"20ms\"\nmin_rate = \"1mbit\"\nburst = \"2kb\"\n"
        );
    }
    t
}

/// Runs teiji in namespace a; it must exit with this code.
#[track_caller]
fn teiji(host: &LabHost, line: &str, code: i32) -> String {
    let output = host.run(&format!("{TEIJI} {line} {PLACE} 2>&1")).unwrap();
    assert_eq!(output.code, code, "teiji {line}: {}", output.text());
    output.text()
}

fn root(host: &LabHost) -> String {
    host.run("ip netns exec a tc qdisc show dev va root").unwrap().ok().unwrap()
}

/// The root qdisc as `teiji plan` shows it, for a policy that asks for another one; null if it asks for none.
fn present(host: &LabHost, wanting: &str) -> Value {
    let printed = host.run(&format!("{TEIJI} plan {wanting} --json {PLACE}")).unwrap().ok().unwrap();
    let plan: Value = serde_json::from_str(&printed).unwrap();
    let steps = plan["steps"].as_array().unwrap();
    let queue = steps.iter().find(|s| s["setting"]["queue"].is_object());
    queue.map_or(Value::Null, |step| step["present"]["queue"].clone())
}

fn the_former_root_is_put_back() {
    let host = fresh();
    let options = |shown: String| shown.split_once(" root ").map(|(_, o)| o.trim().to_owned()).unwrap();
    let untouched = root(host);
    let printed = teiji(host, "plan /tmp/six.toml", 0);
    for part in [
        "va: HFSC, 50mbit, 66 % reserved",
        "no BPF qdiscs (no struct_ops Qdisc_ops)",
        "admits fewer channels",
    ] {
        assert!(printed.split_whitespace().collect::<Vec<_>>().join(" ").contains(part), "{part}: {printed}");
    }
    eprintln!("{printed}");
    for chosen in [None, Some("fq limit 1234 flow_limit 77"), Some("pfifo limit 321")] {
        if let Some(chosen) = chosen {
            host.run(&format!("ip netns exec a tc qdisc replace dev va root {chosen}"))
                .unwrap()
                .ok()
                .unwrap();
        }
        let before = root(host);
        teiji(host, "apply /tmp/six.toml", 0);
        assert!(root(host).starts_with("qdisc htb 7e13:"), "{}", root(host));
        assert!(teiji(host, "plan /tmp/six.toml", 0).contains("as the policy asks"), "applied twice");
        // A policy with other channels, and the first one again.
        teiji(host, "apply /tmp/kinds.toml", 0);
        assert!(root(host).starts_with("qdisc htb 7e15:"), "{}", root(host));
        teiji(host, "apply /tmp/six.toml", 0);
        teiji(host, "rollback", 0);
        assert_eq!(options(root(host)), options(before));
        assert_eq!(host.run("ls /tmp/state").unwrap().text().matches("hfsc-").count(), 0);
    }
    host.run("ip netns exec a tc qdisc del dev va root").unwrap().ok().unwrap();
    assert_eq!(root(host), untouched);
}

fn a_missing_module_changes_nothing() {
    let host = fresh();
    let before = root(host);
    let hide = "echo install cls_flower /bin/false >/etc/modprobe.d/hfsc.conf && modprobe -r cls_flower";
    host.run(hide).unwrap().ok().unwrap();
    let printed = teiji(host, "apply /tmp/six.toml", 1);
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        printed.contains("the kernel refuses the filter of channel `c0`: it does not have that kind"),
        "{printed}"
    );
    assert!(printed.contains("install the kernel modules sch_htb, sch_hfsc and cls_flower"), "{printed}");
    assert_eq!(root(host), before);
    host.run("rm /etc/modprobe.d/hfsc.conf").unwrap().ok().unwrap();
}

/// Packets that the queue of each channel has sent, in the order of the names. (tc's JSON output of this is wrong.)
fn sent(host: &LabHost) -> Vec<u64> {
    let printed = host.run("ip netns exec a tc -s qdisc show dev va").unwrap().ok().unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    let below = |pair: &[&str]| {
        let class = pair[0].split_once(" parent 7e14:")?.1.split(' ').next()?;
        let packets = pair[1].trim().strip_prefix("Sent ")?.split(' ').nth(2)?;
        Some((u64::from_str_radix(class, 16).ok()?, packets.parse().ok()?))
    };
    let mut all: Vec<(u64, u64)> = lines.windows(2).filter_map(below).collect();
    all.sort_unstable();
    assert_eq!(all.len(), 6, "{printed}");
    // The first class is best effort, with what the host itself sends: ARP, neighbour discovery.
    all.into_iter().skip(1).map(|(_, packets)| packets).collect()
}

fn packets_find_their_channels() {
    let host = fresh();
    host.run(
        "for n in a:va:1:2 b:vb:2:1; do IFS=: read ns dev me other <<E\n$n\nE\n\
         ip -n $ns link add link $dev $dev.5 type vlan id 5; ip -n $ns link set $dev.5 up\n\
         ip -n $ns address add 10.90.0.$me/24 dev $dev.5\n\
         done; ip -n a neighbour replace 10.90.0.2 lladdr 52:54:00:88:00:02 nud permanent dev va.5",
    )
    .unwrap()
    .ok()
    .unwrap();
    teiji(host, "apply /tmp/kinds.toml", 0);
    // In the order of the names: any-port, net, six, tagged, udp-port.
    let each = |before: &[u64], after: &[u64]| -> Vec<u64> {
        after.iter().zip(before).map(|(a, b)| a - b).collect()
    };
    let count = |what: &str| {
        let before = sent(host);
        host.run(&format!("ip netns exec a {what}; sleep 0.2")).unwrap().ok().unwrap();
        each(&before, &sent(host))
    };
    let udp = |port: u16| {
        format!("/tmp/teiji-lab udp-flows --for 1 --flow 10.88.0.2:{port},rate=100000,size=100 >/dev/null")
    };
    assert_eq!(count("ping -c 3 -i 0.1 10.88.0.2"), [0, 3, 0, 0, 0]);
    // Neighbour discovery also uses IPv6.
    assert!((3..9).contains(&count("ping -c 3 -i 0.1 fd88:0::2")[2]));
    assert_eq!(count("ping -c 3 -i 0.1 10.90.0.2")[3], 3);
    let of_port = |port| count(&udp(port)).iter().map(|n| *n > 20).collect::<Vec<bool>>();
    assert_eq!(of_port(6000), [true, false, false, false, false]);
    assert_eq!(of_port(6001), [false, false, false, false, true]);
    assert_eq!(of_port(6002), [false, true, false, false, false]);
    teiji(host, "rollback", 0);
    host.run("ip -n a link del va.5; ip -n b link del vb.5").unwrap().ok().unwrap();
}

fn what_others_change_is_told() {
    let host = fresh();
    for change in [
        "tc filter del dev va parent 7e14: protocol ip prio 1",
        "tc class change dev va parent 7e14: classid 7e14:11 hfsc rt m2 1mbit ls m2 1mbit",
        "tc class change dev va parent 7e13: classid 7e13:1 htb rate 40mbit",
        "tc qdisc replace dev va parent 7e14:10 pfifo limit 3",
    ] {
        teiji(host, "apply /tmp/six.toml", 0);
        host.run(&format!("ip netns exec a {change}")).unwrap().ok().unwrap();
        let printed = teiji(host, "plan /tmp/six.toml", 0);
        let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            printed.contains("was changed by someone else from HFSC, 7 channels, 50mbit to htb"),
            "{change}: {printed}"
        );
        teiji(host, "rollback --force", 0);
        assert!(!root(host).contains("htb"), "{change}");
    }
}

/// After a kill at any instant the link has the former root or the new one.
fn a_killed_apply_is_whole() {
    let host = fresh();
    let kill = |policy: &str, round: u32| {
        // Spread over the time that a whole apply takes.
        let after = 10 + round * 37 % 400;
        let line = format!("timeout -s KILL 0.{after:03} {TEIJI} apply {policy} {PLACE} >/dev/null 2>&1");
        host.run(&line).unwrap();
    };
    let stock = |p: &Value| p["stock"]["kind"] == "noqueue" || p["stock"]["kind"] == "noop";
    let channels = |p: &Value| p["deadlines"]["channels"].as_object().map(serde_json::Map::len);
    let mut seen = [0; 4];
    for round in 0..10 {
        kill("/tmp/six.toml", round);
        let now = present(host, "/tmp/kinds.toml");
        assert!(stock(&now) || channels(&now) == Some(7), "round {round}: {now}");
        seen[usize::from(!stock(&now))] += 1;
        teiji(host, "rollback", 0);
        assert!(!root(host).contains("htb"));
    }
    for round in 0..10 {
        teiji(host, "apply /tmp/six.toml", 0);
        kill("/tmp/kinds.toml", round);
        // Planned for both policies: the one that applies has no step.
        let now = [present(host, "/tmp/kinds.toml"), present(host, "/tmp/six.toml")];
        let changed = now[0].is_null();
        let whole = if changed { channels(&now[1]) == Some(5) } else { channels(&now[0]) == Some(7) };
        assert!(whole && (changed != now[1].is_null()), "round {round}: {now:?}");
        seen[2 + usize::from(changed)] += 1;
        teiji(host, "rollback", 0);
        assert!(!root(host).contains("htb"));
    }
    eprintln!("killed: {seen:?} (left alone, given channels; left alone, changed)");
}

fn as_many_channels_as_a_host_may_have() {
    let host = fresh();
    let mut t = LINK_SECTION.to_owned();
    for i in 0..MAX_CHANNELS {
        let _ = write!(
            t,
            "[channel.n{i}]\nto = \"10.88.{}.{}:{}\"\nproto = \"udp\"\ndeadline = \"2s\"\nmin_rate = \"1kbit\"\nburst = \"84b\"\n",
            i / 256,
            i % 256,
            1000 + i
        );
    }
    host.put("/tmp/most.toml", t.as_bytes()).unwrap();
    teiji(host, "apply /tmp/most.toml", 0);
    let classes =
        host.run("ip netns exec a tc class show dev va | grep -c 'class hfsc .* rt '").unwrap().text();
    assert_eq!(classes, MAX_CHANNELS.to_string());
    assert!(teiji(host, "plan /tmp/most.toml", 0).contains("as the policy asks"));
    teiji(host, "rollback", 0);
    assert!(!root(host).contains("htb"));
}

fn no_packet_is_later_than_printed() {
    let (host, plan) = (fresh(), &six());
    let printed = host.run(&format!("{TEIJI} plan /tmp/six.toml --json {PLACE}")).unwrap().ok().unwrap();
    let printed: Value = serde_json::from_str(&printed).unwrap();
    let bounds: Vec<u64> = printed["links"][0]["channels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["bound"].as_u64().unwrap())
        .collect();
    teiji(host, "apply /tmp/six.toml", 0);
    let mut bounded = plan.clone();
    for (c, bound) in bounded.channels.iter_mut().zip(&bounds) {
        assert!(*bound <= c.deadline_us * 1000);
        c.deadline_us = bound / 1000;
    }
    let outcome = traffic::measure(host, "hfsc", &bounded).unwrap();
    for flow in &outcome.flows {
        eprintln!("{} sent, bound {} us, longest {} us", flow.sent, flow.deadline_us, flow.max_us);
    }
    assert_eq!(outcome.failed(), 0, "late or lost: {outcome:?}");
    assert!(outcome.sent() > 2500 && outcome.best_effort >= 0.9, "{outcome:?}");
    assert!(outcome.used < 1.02, "faster than the link of {LINK}: {outcome:?}");
    teiji(host, "rollback", 0);
}
