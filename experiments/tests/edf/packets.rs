//! Packets: their deadlines, their shares of the link, and the channels they belong to.

use super::*;
use teiji_model::qdisc::{OVERHEAD, TIMER_ERROR};

pub fn six_channels_keep_their_deadlines() {
    deadlines_are_kept(&six(3));
}

pub fn many_channels_keep_their_deadlines() {
    deadlines_are_kept(&many(3));
}

/// Set up with `teiji agent` and `teiji apply`.
fn deadlines_are_kept(plan: &Workload) {
    let o = traffic::run(TIMED.without_driver(), "teiji_edf", plan).unwrap();
    assert_eq!(o.flows.iter().filter_map(|f| f.misses).sum::<u64>(), 0, "missed in the queue: {o:?}");
    assert_eq!(o.flows.iter().filter_map(|f| f.excess).sum::<u64>(), 0, "over their rate: {o:?}");
    assert_eq!(o.failed(), 0, "late or lost from sender to receiver: {o:?}");
    let within = |f: &traffic::Flow| f.max_us > 0.0 && f.bound_us.is_some_and(|bound| f.max_us <= bound);
    assert!(o.flows.iter().all(within), "later than `teiji plan` guarantees: {o:?}");
    assert!(o.sent() > 2500 && o.best_effort >= 0.95, "{o:?}");
}

pub fn excess_is_in_nobodys_way(host: &LabHost, driver: &Driver) {
    driver.line("link va rate=50000000 slack_us=2000").unwrap();
    driver.line("channel va greedy to=10.88.0.2/32:6000 deadline_us=3000 rate=2000000 burst=1700").unwrap();
    driver.line("channel va modest to=10.88.0.2/32:6001 deadline_us=5000 rate=2000000 burst=1700").unwrap();
    // Forty times the channel's rate, and more than the link's rate.
    let sent = send(
        host,
        2.0,
        "--flow 10.88.0.2:6000,rate=80000000,size=1470 --flow 10.88.0.2:6001,rate=1990000,size=1470",
    );
    let stats = driver.stats("va").unwrap();
    assert_eq!((of(&stats, "modest", "misses"), of(&stats, "modest", "excess")), (0, 0), "{stats}");
    assert_eq!(of(&stats, "modest", "packets"), sent[1], "{stats}");
    assert_eq!(of(&stats, "greedy", "misses"), 0, "{stats}");
    let kept = of(&stats, "greedy", "bytes") as f64 * 8.0 / 2.0;
    assert!((1.9e6..=2.1e6).contains(&kept), "{kept} bit/s of the greedy channel kept its deadline");
    let (packets, excess) = (of(&stats, "greedy", "packets"), of(&stats, "greedy", "excess"));
    assert_eq!(packets + excess, sent[0], "{stats}");
    let histogram: u64 =
        stats["channels"]["modest"]["delay"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(histogram, sent[1]);
    driver.line("detach va").unwrap();
}

pub fn packets_are_told_apart(host: &LabHost, driver: &Driver) {
    driver.line("link va rate=0").unwrap();
    for (name, ends) in [
        ("exact", "from=10.88.0.1/32 to=10.88.0.2/32:6000 proto=17"),
        ("net", "to=10.88.0.0/24:6001"),
        ("any", "to=10.88.0.0/16"),
        ("elsewhere", "to=10.99.0.0/16"),
        ("six", "to=fd88:0::/64:6000"),
        ("vlan", "to=10.90.0.2/32:6000"),
        ("qinq", "to=10.91.0.2/32:6000"),
    ] {
        driver
            .line(&format!("channel va {name} {ends} deadline_us=5000 rate=40000000 burst=100000"))
            .unwrap();
    }
    let vlans = "ip -n a link add va.7 link va type vlan id 7; ip -n a link set va.7 up
        ip -n a address add 10.90.0.1/24 dev va.7
        ip -n a neighbour replace 10.90.0.2 lladdr 52:54:00:88:00:02 nud permanent dev va.7
        ip -n a link add va.7.9 link va.7 type vlan id 9; ip -n a link set va.7.9 up
        ip -n a address add 10.91.0.1/24 dev va.7.9
        ip -n a neighbour replace 10.91.0.2 lladdr 52:54:00:88:00:02 nud permanent dev va.7.9";
    host.run(vlans).unwrap().ok().unwrap();
    let flow = |to: &str| format!("--flow {to},rate=1000000,size=100");
    for to in ["10.88.0.2:6000", "10.88.0.2:6001", "10.88.0.2:6002", "10.90.0.2:6000", "10.91.0.2:6000"] {
        assert_eq!(send(host, 5.0, &format!("{} --count 10", flow(to))), [10], "{to}");
    }
    let v6 = "for i in 1 2 3 4 5 6 7 8 9 10; do echo hi >/dev/udp/fd88:0::2/6000; done";
    host.run(&format!("ip netns exec a bash -c '{v6}'")).unwrap().ok().unwrap();
    let stats = driver.stats("va").unwrap();
    for (name, packets) in
        [("exact", 10), ("net", 10), ("any", 10), ("elsewhere", 0), ("six", 10), ("vlan", 10), ("qinq", 10)]
    {
        assert_eq!(of(&stats, name, "packets"), packets, "{name}: {stats}");
    }
    host.run("ip -n a link del va.7").unwrap().ok().unwrap();
    driver.line("detach va").unwrap();
}

/// How many queues of best-effort flows the only link with channels has used since it got them: it has slot 0, and
/// the state of a slot is zeroed when a link gets it.
fn queues(host: &LabHost) -> u64 {
    let count = "bpftool -j map lookup pinned /tmp/bpf/driver/edf/states key 0 0 0 0 | \
                 jq '[.formatted.value.flow[] | select(.finish > 0)] | length'";
    host.run(count).unwrap().ok().unwrap().parse().unwrap()
}

pub fn best_effort_is_shared(host: &LabHost, driver: &Driver) {
    // Three flows whose rates differ by a factor of four, each above its fair share, and one below its share.
    let flows: Vec<String> = [(7001, 40), (7002, 20), (7003, 10), (7004, 2)]
        .iter()
        .map(|(port, mbit)| format!("--flow 10.88.0.2:{port},rate={mbit}000000,size=1470"))
        .collect();
    let ports = "7001,7002,7003,7004";
    // The kernel draws the hash of each socket, and flows with the same hash share a queue (LIMITATIONS.md): two of
    // four do so 1 time in 171. Then other sockets send.
    let attempt = || {
        driver.line("link va rate=20000000").unwrap();
        let before = received(host);
        let arrivals = host
            .spawn(&format!("ip netns exec b /tmp/teiji-lab udp-arrivals --ports {ports} --idle 2"))
            .unwrap();
        arrivals.wait_for("receiving", std::time::Duration::from_secs(60)).unwrap();
        let sent = send(host, 4.0, &flows.join(" "));
        let printed = arrivals.wait().unwrap().ok().unwrap();
        let arrived: Vec<Value> = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
        let got: Vec<u64> = arrived.iter().map(|a| a["received"].as_u64().unwrap()).collect();
        assert!(received(host) > before);
        // The host itself sends a few packets, such as router solicitations: each may have a queue of its own.
        let stats = driver.stats("va").unwrap();
        let all: u64 = ["be_packets", "be_drops"].iter().map(|what| stats[what].as_u64().unwrap()).sum();
        let others = all.saturating_sub(sent.iter().sum());
        let apart = queues(host) >= flows.len() as u64 + others;
        driver.line("detach va").unwrap();
        apart.then_some((sent, got))
    };
    let (sent, got) = (0..4).find_map(|_| attempt()).expect("each of the four flows has a queue of its own");
    assert_eq!(got[3], sent[3], "a flow below its share lost packets: {got:?} of {sent:?}");
    let (least, most) = (got[..3].iter().min().unwrap(), got[..3].iter().max().unwrap());
    // The queue's contents at the end are not shared equally: one flow may have up to a third of the 4 MiB more than
    // another.
    assert!(*most as f64 <= *least as f64 * 1.6, "shares {got:?}");
    assert!(got[0] + got[1] + got[2] > 5000, "{got:?}");
}

/// On an idle link each packet leaves the queue at once, and its last bit is sent 3.07 ms later.
pub fn the_last_bit_counts(host: &LabHost, driver: &Driver) {
    driver.line("link va rate=4000000").unwrap();
    driver.line("channel va late to=10.88.0.2/32:6000 deadline_us=2000 rate=1000000 burst=1700").unwrap();
    driver.line("channel va kept to=10.88.0.2/32:6001 deadline_us=4000 rate=1000000 burst=1700").unwrap();
    for (name, port, missed) in [("late", 6000, true), ("kept", 6001, false)] {
        let sent = send(host, 1.0, &format!("--flow 10.88.0.2:{port},rate=900000,size=1470"));
        let stats = driver.stats("va").unwrap();
        assert!(sent[0] > 20 && of(&stats, name, "packets") == sent[0], "{stats}");
        assert_eq!(of(&stats, name, "misses"), if missed { sent[0] } else { 0 }, "{stats}");
        let longest = of(&stats, name, "delay_max");
        assert!((3_072_000..4_000_000).contains(&longest), "{stats}");
    }
    driver.line("detach va").unwrap();
}

/// Pairs of packets on an idle link. The second one leaves before the wire has sent the first, to make up for the idle time,
/// but its delay ends with its own last bit. The kernel's trace points say between which times each packet was queued.
pub fn packets_back_to_back_wait_for_the_wire(host: &LabHost, driver: &Driver) {
    const TX_US: f64 = 3072.0;
    driver.line("link va rate=4000000").unwrap();
    driver.line("channel va c to=10.88.0.2/32:6000 deadline_us=60000 rate=1000000 burst=3400").unwrap();
    let traced = "/sys/kernel/tracing/instances/edf";
    let begin = format!(
        "(mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing) && mkdir {traced} && \
         cd {traced} && echo mono >trace_clock && echo 1 >events/net/net_dev_queue/enable && \
         echo 1 >events/qdisc/qdisc_enqueue/enable && ip netns exec a cat /sys/class/net/va/ifindex"
    );
    let index = host.run(&begin).unwrap().ok().unwrap();
    let sent = send(host, 2.0, "--flow 10.88.0.2:6000,rate=900000,size=1470,burst=2");
    let trace = host.run(&format!("cat {traced}/trace")).unwrap().ok().unwrap();
    host.run(&format!("rmdir {traced}")).unwrap().ok().unwrap();
    let stats = driver.stats("va").unwrap();
    assert!(sent[0] > 100 && of(&stats, "c", "packets") == sent[0], "{stats}");

    // Each packet that was queued on va: a time before it was queued and one after it, µs. No other packet comes between.
    let mut queued: Vec<(f64, f64)> = Vec::new();
    let mut before = None;
    for line in trace.lines() {
        let time = |end: &str| line.split(end).next()?.split_whitespace().next_back()?.parse::<f64>().ok();
        if line.contains("net_dev_queue: dev=va skbaddr=") && line.contains(" len=1512") {
            before = time(": net_dev_queue");
        } else if line.contains(&format!(": qdisc_enqueue: enqueue ifindex={} ", index.trim())) {
            queued.extend(before.take().zip(time(": qdisc_enqueue")).map(|(b, a)| (b * 1e6, a * 1e6)));
        }
    }
    assert_eq!(queued.len() as u64, sent[0], "{trace}");
    // The wire begins the first of a pair when it is queued at the earliest, and then sends both. The stamps are in µs.
    let waits = queued.chunks_exact(2).map(|pair| pair[0].0 + 2.0 * TX_US - pair[1].1 - 2.0);
    let longest = waits.fold(0.0, f64::max);
    let reported = of(&stats, "c", "delay_max") as f64 / 1000.0;
    assert!(longest > TX_US && reported >= longest, "{reported} µs, but {longest} µs by the trace: {stats}");
    driver.line("detach va").unwrap();
}

pub fn two_links_at_once(host: &LabHost, driver: &Driver) {
    driver.line("link va rate=10000000").unwrap();
    driver.line("link wa rate=20000000").unwrap();
    driver.line("channel va c to=10.88.0.2/32:6000 deadline_us=5000 rate=1000000 burst=1700").unwrap();
    driver.line("channel wa c to=10.89.0.2/32:6000 deadline_us=7000 rate=1000000 burst=1700").unwrap();
    // What the links have sent, at a time just before and one just after. In one script, as the lab's clock runs ahead while the lab
    // host waits for this machine; and no program is started between a counter and the clock.
    let counts = |dev: &str| {
        format!(
            "cd /sys/class/net/{dev}/statistics; $before; read -r b <tx_bytes; read -r p <tx_packets; $after; echo $b $p $t; "
        )
    };
    let now = "t=${EPOCHREALTIME/[.,]/}";
    let snap = |before: &str, after: &str| {
        ["va", "wa"].map(counts).concat().replace("$before", before).replace("$after", after)
    };
    let printed = host
        .run(&format!(
            "ip netns exec a bash -c '{} \
             /tmp/teiji-lab udp-flows --for 2 --flow 10.88.0.2:6000,rate=990000 --flow 10.89.0.2:6000,rate=990000 \
             --flow 10.88.0.2:7000,rate=30000000 --flow 10.89.0.2:7000,rate=30000000; {}'; sleep 0.1",
            snap(now, ":"),
            snap(":", now)
        ))
        .unwrap()
        .ok()
        .unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    let [va, wa, sent, va_after, wa_after] = lines[..] else { panic!("{printed}") };
    let sent: Vec<Value> = serde_json::from_str(sent).unwrap();
    let sent: Vec<u64> = sent.iter().map(|s| s["sent"].as_u64().unwrap()).collect();
    let difference = |before: &str, after: &str| -> [f64; 3] {
        let numbers = |line: &str| -> Vec<f64> { line.split(' ').map(|n| n.parse().unwrap()).collect() };
        let (before, after) = (numbers(before), numbers(after));
        std::array::from_fn(|i| after[i] - before[i])
    };
    let passed = [difference(va, va_after), difference(wa, wa_after)];
    for (dev, rate, n, [bytes, packets, us]) in
        [("va", 10e6, sent[0], passed[0]), ("wa", 20e6, sent[1], passed[1])]
    {
        let stats = driver.stats(dev).unwrap();
        assert_eq!((of(&stats, "c", "packets"), of(&stats, "c", "misses")), (n, 0), "{dev}: {stats}");
        let bits = 8.0 * (stats["rt_bytes"].as_f64().unwrap() + stats["be_bytes"].as_f64().unwrap());
        // The statistics are read some time later, when what was queued has left, too.
        assert!(bits / 2.0 / rate >= 0.9, "{dev} sent {bits} bits in 2 s");
        // Beside its rate, the queue makes up for an idle time of TIMER_ERROR at most, and one packet is on the wire at the end.
        let wire = 8.0 * (bytes + f64::from(OVERHEAD) * packets);
        let ahead = rate * TIMER_ERROR as f64 / 1e9 + 8.0 * 1538.0;
        assert!(wire <= rate * us / 1e6 * 1.01 + ahead, "{dev} sent {wire} bits in {us} us");
    }
    driver.line("detach va").unwrap();
    assert!(root(host, "wa").contains("teiji_edf"));
    driver.line("detach wa").unwrap();
}

pub fn real_time_is_bounded(host: &LabHost, driver: &Driver) {
    // The bursts of both together are the burst of real time.
    driver.line("link va rate=10000000 rt_rate=4000000").unwrap();
    driver.line("channel va a to=10.88.0.2/32:6000 deadline_us=5000 rate=8000000 burst=3200").unwrap();
    driver.line("channel va b to=10.88.0.2/32:6001 deadline_us=5000 rate=8000000 burst=3200").unwrap();
    send(host, 2.0, "--flow 10.88.0.2:6000,rate=7900000 --flow 10.88.0.2:6001,rate=7900000");
    let stats = driver.stats("va").unwrap();
    let real_time = stats["rt_bytes"].as_f64().unwrap() * 8.0 / 2.0;
    assert!((3.6e6..=4.3e6).contains(&real_time), "{real_time} bit/s of real time: {stats}");
    assert!(stats["capped"].as_u64().unwrap() > 100, "{stats}");
    driver.line("detach va").unwrap();
}
