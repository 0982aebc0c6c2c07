//! Queues of links that are added, changed and removed, even if the program that changes them is killed.

use super::*;

pub fn the_former_qdisc_is_put_back(host: &LabHost, driver: &Driver) {
    let tc = |line: &str| host.run(&format!("ip netns exec a tc {line}")).unwrap();
    let untouched = root(host, "va");
    driver.line("link va rate=50000000").unwrap();
    assert!(root(host, "va").contains("teiji_edf"));
    driver.line("detach va").unwrap();
    assert_eq!(root(host, "va"), untouched);
    for chosen in ["fq limit 1234 flow_limit 77", "pfifo limit 321", "fq_codel limit 555 target 7ms"] {
        tc(&format!("qdisc replace dev va root {chosen}")).ok().unwrap();
        let options = |shown: String| shown.split_once(" root ").map(|(_, o)| o.to_owned()).unwrap();
        let before = options(root(host, "va"));
        driver.line("link va rate=50000000").unwrap();
        driver.line("detach va").unwrap();
        assert_eq!(options(root(host, "va")), before);
    }
    tc("qdisc replace dev va root handle 1: htb default 1").ok().unwrap();
    let refused = driver.try_line("link va rate=50000000").unwrap();
    assert!(refused.contains("could not be restored"), "{refused}");
    assert!(root(host, "va").contains("htb"));
    tc("qdisc del dev va root").ok().unwrap();
    // Adding it with tc is refused.
    assert_ne!(tc("qdisc add dev va root teiji_edf").code, 0);
}

pub fn channels_change_without_a_drop(host: &LabHost, driver: &Driver) {
    driver.line("link va rate=50000000").unwrap();
    let flow = "--flow 10.88.0.2:6000,rate=4000000,size=1470";
    // The lab's clock runs ahead while it waits for this machine, so the load goes on until the test ends it.
    let load = host
        .spawn(&format!(
            "until [ -e /tmp/enough ]; do ip netns exec a /tmp/teiji-lab udp-flows --for 1 {flow} | tail -n 1; done"
        ))
        .unwrap();
    for n in 1..=40 {
        driver
            .line(&format!(
                "channel va c to=10.88.0.2/32:6000 deadline_us={} rate=8000000 burst=4000",
                n * 1000
            ))
            .unwrap();
        driver.line(&format!("channel va wide{n} to=10.88.0.0/{} deadline_us=9000", 8 + n % 8)).unwrap();
        driver.line(&format!("link va rate=50000000 slack_us={}", n * 100)).unwrap();
        driver.line(&format!("remove va wide{n}")).unwrap();
        if n % 2 == 0 {
            driver.line("remove va c").unwrap();
        }
    }
    host.run("touch /tmp/enough").unwrap().ok().unwrap();
    let printed = load.wait().unwrap().ok().unwrap();
    let sent = |line: &str| serde_json::from_str::<Vec<Value>>(line).unwrap()[0]["sent"].as_u64().unwrap();
    let sent: u64 = printed.lines().map(sent).sum();
    driver.line("channel va c to=10.88.0.2/32:6000 deadline_us=3000 rate=8000000 burst=4000").unwrap();
    let more = send(host, 1.0, flow)[0];
    let stats = driver.stats("va").unwrap();
    let passed = stats["rt_packets"].as_u64().unwrap() + stats["be_packets"].as_u64().unwrap();
    assert!(sent > 300 && passed >= sent + more, "{sent} and {more}: {stats}");
    assert_eq!((stats["rt_drops"].as_u64(), stats["be_drops"].as_u64()), (Some(0), Some(0)), "{stats}");
    assert_eq!(of(&stats, "c", "packets"), more, "{stats}");
    let missing = driver.try_line("remove va nobody").unwrap();
    assert!(missing.contains("has none of that name"), "{missing}");
    driver.line("detach va").unwrap();
}

/// Other state of a device: the qdiscs of its queues, and the size of packets that it accepts.
pub fn devices_are_put_back(host: &LabHost, driver: &Driver) {
    let run = |line: &str| host.run(&format!("ip netns exec a {line}")).unwrap();
    run("ip link add qa numtxqueues 4 numrxqueues 4 type veth peer name qb").ok().unwrap();
    run("ip link set qa up").ok().unwrap();
    run("tc qdisc replace dev qa root mq").ok().unwrap();
    let kinds = || {
        let shown = run("tc qdisc show dev qa").text();
        let words = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        shown.lines().map(words).collect::<Vec<_>>()
    };
    let before = kinds();
    assert!(before.len() == 5 && before[0] == "qdisc mq", "{before:?}");
    driver.line("link qa rate=50000000").unwrap();
    assert_eq!(kinds(), ["qdisc teiji_edf"]);
    driver.line("detach qa").unwrap();
    assert_eq!(kinds(), before);
    // A child qdisc that somebody has chosen could not be restored.
    let handle = run("tc qdisc show dev qa root").text().split_whitespace().nth(2).unwrap().to_owned();
    run(&format!("tc qdisc replace dev qa parent {handle}2 pfifo limit 7")).ok().unwrap();
    let refused = driver.try_line("link qa rate=50000000").unwrap();
    assert!(refused.contains("could not be restored"), "{refused}");
    let size = || {
        let shown = run("ip -d -o link show qa").text();
        let mut words = shown.split_whitespace().skip_while(|w| *w != "gso_max_size");
        words.nth(1).unwrap().to_owned()
    };
    assert_eq!((driver.line("gso qa 4096").unwrap(), size()), ("65536 bytes".into(), "4096".into()));
    assert_eq!((driver.line("gso qa 65536").unwrap(), size()), ("4096 bytes".into(), "65536".into()));
    run("ip link del qa").ok().unwrap();
    let gone = driver.try_line("detach qa").unwrap();
    assert!(gone.contains("no interface"), "{gone}");
}

/// Packets that a bridge forwards pass the queue of its uplink, and packets sent over a bond pass the queue of the
/// bond. The queue of a tap is changed and restored like any other.
pub fn uplinks_bonds_and_taps_have_channels(host: &LabHost, driver: &Driver) {
    let layout = "ip netns add c
        ip link add up9 netns a type veth peer name out9 netns b
        ip link add port9 netns a type veth peer name nic9 netns c
        ip -n a link add br9 type bridge
        ip -n a link set br9 up
        for dev in up9 port9; do ip -n a link set $dev master br9 up; done
        ip -n b address add 10.92.0.2/24 dev out9; ip -n b link set out9 up
        ip -n c address add 10.92.0.1/24 dev nic9; ip -n c link set nic9 up
        ip -n a link add bond9 type bond mode active-backup
        ip link add slave9 netns a type veth peer name end9 netns b
        ip -n a link set slave9 master bond9; ip -n a link set bond9 up
        ip -n a address add 10.93.0.1/24 dev bond9
        ip -n b address add 10.93.0.2/24 dev end9; ip -n b link set end9 up
        ip netns exec a ip tuntap add tap9 mode tap; ip -n a link set tap9 up";
    host.run(&format!("set -e\n{layout}")).unwrap().ok().unwrap();
    for (dev, from, to) in [("up9", "c", "10.92.0.2"), ("bond9", "a", "10.93.0.2")] {
        let before = root(host, dev);
        driver.line(&format!("link {dev} rate=50000000")).unwrap();
        driver.line(&format!("channel {dev} c to={to}/32:6000 deadline_us=5000")).unwrap();
        let flow = format!("--flow {to}:6000,rate=1000000,size=100 --count 10");
        let printed = host
            .run(&format!("ip netns exec {from} /tmp/teiji-lab udp-flows --for 5 {flow}; sleep 0.1"))
            .unwrap();
        let sent: Vec<Value> = serde_json::from_str(&printed.ok().unwrap()).unwrap();
        let stats = driver.stats(dev).unwrap();
        assert_eq!((sent[0]["sent"].as_u64(), of(&stats, "c", "packets")), (Some(10), 10), "{dev}: {stats}");
        driver.line(&format!("detach {dev}")).unwrap();
        assert_eq!(root(host, dev), before, "{dev}");
    }
    let before = root(host, "tap9");
    driver.line("link tap9 rate=50000000").unwrap();
    assert!(root(host, "tap9").contains("teiji_edf"));
    driver.line("detach tap9").unwrap();
    assert_eq!(root(host, "tap9"), before);
    for dev in ["up9", "port9", "br9", "bond9", "slave9", "tap9"] {
        host.run(&format!("ip -n a link del {dev}")).unwrap().ok().unwrap();
    }
    host.run("ip netns del c").unwrap().ok().unwrap();
}

/// One link more than there are slots is refused. A freed slot is used again, and nothing of its former link is left in
/// it.
pub fn slots_are_given_anew(host: &LabHost, driver: &Driver) {
    driver.line("link va rate=0").unwrap();
    driver.line("channel va c to=10.88.0.2/32:6000 deadline_us=5000 rate=40000000 burst=100000").unwrap();
    assert_eq!(send(host, 5.0, "--flow 10.88.0.2:6000,rate=1000000 --count 10"), [10]);
    assert_eq!(driver.stats("va").unwrap()["rt_packets"], 10);
    driver.line("detach va").unwrap();

    let all = format!("$(seq 0 {MAX_LINKS})");
    let devices = |each: &str| {
        host.run(&format!("ip netns exec a sh -ec 'for i in {all}; do {each}; done'")).unwrap().ok().unwrap()
    };
    devices("ip link add s$i type dummy; ip link set s$i up");
    for i in 0..MAX_LINKS {
        driver.line(&format!("link s{i} rate={}", (i + 1) * 8000)).unwrap();
    }
    let more = format!("link s{MAX_LINKS} rate=8000");
    let refused = driver.try_line(&more).unwrap();
    assert!(refused.contains(&format!("{MAX_LINKS} links have channels, which is the most")), "{refused}");
    assert!(!root(host, &format!("s{MAX_LINKS}")).contains("teiji_edf"));
    for i in 0..MAX_LINKS {
        let stats = driver.stats(&format!("s{i}")).unwrap();
        assert_eq!(stats["rt_packets"], 0, "s{i}: {stats}");
        let shown: Value = serde_json::from_str(&driver.line(&format!("show s{i}")).unwrap()).unwrap();
        assert_eq!(shown["rate"], (i + 1) * 8000, "s{i}: {shown}");
    }
    driver.line("detach s7").unwrap();
    driver.line(&more).unwrap();
    // A link whose device is gone keeps its slot until `tidy`.
    devices("ip link del s$i");
    assert!(driver.try_line("link va rate=0").unwrap().contains("which is the most"));
    driver.line("tidy").unwrap();
    driver.line("link va rate=0").unwrap();
    assert_eq!(driver.stats("va").unwrap()["rt_packets"], 0);
    driver.line("detach va").unwrap();
}

/// A writer killed at any instant leaves the former channels or the new ones, and no garbage.
pub fn a_killed_change_is_whole(host: &LabHost, driver: &Driver) {
    driver.line("link va rate=50000000").unwrap();
    driver.line("swap va 1").unwrap();
    let first = driver.line("show va").unwrap();
    driver.line("swap va 2").unwrap();
    let second = driver.line("show va").unwrap();
    assert_ne!(first, second);
    let kills = "for i in $(seq 25); do
          timeout -s KILL 0.$((RANDOM % 40 + 10)) ip netns exec a /tmp/edf /tmp/bpf/driver once swap va 100000
          ip netns exec a /tmp/edf /tmp/bpf/driver once show va
        done 2>/dev/null";
    let printed = host.run(&format!("bash -c '{kills}'")).unwrap().text();
    let shown: Vec<&str> = printed.lines().filter(|l| l.starts_with('{') || l.contains("error")).collect();
    let of = |wanted: &str| shown.iter().filter(|l| **l == wanted).count();
    eprintln!("killed changes: {} of {} left the second set of channels", of(&second), shown.len());
    assert_eq!((shown.len(), of(&first) + of(&second)), (25, 25), "{printed}");
    driver.line("tidy").unwrap();
    let entries = "bpftool -j map dump pinned /tmp/bpf/driver/edf/matches | grep -o '\"link\":' | wc -l";
    assert_eq!(host.run(entries).unwrap().text(), "2", "matches that no link uses");
    driver.line("detach va").unwrap();

    // The same with channels that are added and removed while packets are sent.
    driver.line("swap va 2").unwrap();
    assert_eq!(driver.line("show va").unwrap(), second);
    driver.line("detach va").unwrap();
    let flow = "--flow 10.88.0.2:6000,rate=2000000,size=1470";
    let load = host.spawn(&format!("ip netns exec a /tmp/teiji-lab udp-flows --for 30 {flow}")).unwrap();
    let printed = host.run(&format!("bash -c '{}'", kills.replace("swap", "flip"))).unwrap().text();
    let shown: Vec<&str> =
        printed.lines().filter(|l| l.starts_with('{') || *l == "null" || l.contains("error")).collect();
    let of = |wanted: &str| shown.iter().filter(|l| **l == wanted).count();
    eprintln!("killed changes: {} of {} left the link without channels", of("null"), shown.len());
    assert_eq!((shown.len(), of("null") + of(&second)), (25, 25), "{printed}");
    load.kill().unwrap();
    driver.line("tidy").unwrap();
    driver.line("detach va").unwrap();
    assert_eq!(host.run(entries).unwrap().text(), "0", "matches of a link without channels");
}
