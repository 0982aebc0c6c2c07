//! The deadline qdisc in the lab, in virtual time: every promise that is not a figure of the experiment `edf-delay`,
//! and its short form. Two labs: one of several CPUs, and one of a single CPU for what is timed.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use teiji_experiments::edf_delay::net::{self, Driver};
use teiji_experiments::edf_delay::{Plan, many, six, traffic};
use teiji_lab::Host;
use teiji_lab::suite::{self, Shared};
use teiji_model::queue::MAX_LINKS;

/// A lab host and the driver of the qdisc in it, if one runs.
struct Stage {
    host: Host,
    driver: Mutex<Option<Driver>>,
}

static CONCURRENT: Shared<Stage> = Shared::new("the lab of several CPUs", || Stage::boot(net::CONCURRENT));
/// One lab host at a time: the first ends when this one is needed.
static TIMED: Shared<Stage> = Shared::new("the lab of one CPU", || {
    CONCURRENT.if_made(|stage| stage.host.end());
    Stage::boot(net::TIMED)
});

impl Stage {
    fn boot(cpus: u32) -> Stage {
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("edf");
        Stage { host: net::boot(&out, cpus).unwrap(), driver: Mutex::new(None) }
    }

    fn driver(&self) -> MutexGuard<'_, Option<Driver>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a driver that runs, and no link with channels: a test that failed may have left some.
    fn with_driver(&self, test: impl FnOnce(&Host, &Driver)) {
        let mut driver = self.driver();
        // It is started again where it has ended, or does not answer.
        if driver.as_ref().is_none_or(|d| d.try_line("tidy").is_err()) {
            *driver = None;
            *driver = Some(Driver::start(&self.host).unwrap());
        }
        let driver = driver.as_ref().unwrap();
        for dev in ["va", "wa"] {
            // Refused where there is nothing to detach.
            driver.try_line(&format!("detach {dev}")).unwrap();
        }
        test(&self.host, driver);
    }

    /// Ends the driver and removes what it pinned.
    fn without_driver(&self) -> &Host {
        if let Some(driver) = self.driver().take() {
            driver.kill().unwrap();
        }
        self.host.run("rm -rf /tmp/bpf/driver").unwrap().ok().unwrap();
        &self.host
    }
}

/// Tests that are given a lab host and a driver that runs there.
macro_rules! on {
    ($stage:ident: $($test:ident),+ $(,)?) => {
        vec![$((stringify!($test), (|| $stage.with_driver($test)) as fn())),+]
    };
}

fn main() -> ExitCode {
    let tests = [
        on![CONCURRENT:
            the_verifier_accepts_every_program,
            the_former_qdisc_is_put_back,
            channels_change_without_a_drop,
            packets_are_told_apart,
            real_time_is_bounded,
            devices_are_put_back,
            uplinks_bonds_and_taps_have_channels,
            slots_are_given_anew,
            a_killed_change_is_whole,
        ],
        teiji_lab::tests![without_a_beat_it_is_a_fifo, the_agent_may_die].to_vec(),
        on![TIMED: excess_is_in_nobodys_way, best_effort_is_shared, two_links_at_once, the_last_bit_counts],
        teiji_lab::tests![six_channels_keep_their_deadlines, many_channels_keep_their_deadlines].to_vec(),
    ];
    suite::run(&tests.concat(), || {
        for stage in [&CONCURRENT, &TIMED] {
            stage.if_made(|s| s.host.end());
        }
    })
}

fn six_channels_keep_their_deadlines() {
    deadlines_are_kept(&six(3));
}

fn many_channels_keep_their_deadlines() {
    deadlines_are_kept(&many(3));
}

/// By the product's own agent.
fn deadlines_are_kept(plan: &Plan) {
    let o = traffic::run(TIMED.without_driver(), "teiji_edf", plan).unwrap();
    assert_eq!(o.flows.iter().filter_map(|f| f.misses).sum::<u64>(), 0, "missed in the queue: {o:?}");
    assert_eq!(o.flows.iter().filter_map(|f| f.excess).sum::<u64>(), 0, "over their rate: {o:?}");
    assert_eq!(o.failed(), 0, "late or lost from sender to receiver: {o:?}");
    let within = |f: &traffic::Flow| f.max_us > 0.0 && f.bound_us.is_some_and(|bound| f.max_us <= bound);
    assert!(o.flows.iter().all(within), "later than `teiji plan` guarantees: {o:?}");
    assert!(o.sent() > 2500 && o.best_effort >= 0.95, "{o:?}");
}

/// What the kernel shows as the root of a device of namespace a.
fn root(host: &Host, dev: &str) -> String {
    host.run(&format!("ip netns exec a tc qdisc show dev {dev} root")).unwrap().ok().unwrap()
}

/// Sends flows from namespace a for some seconds, and waits for what still has a deadline in the queue; returns how many
/// datagrams of each the kernel took.
fn send(host: &Host, seconds: f64, flows: &str) -> Vec<u64> {
    let said = host
        .run(&format!("ip netns exec a /tmp/teiji-lab udp-flows --for {seconds} {flows}; sleep 0.1"))
        .unwrap()
        .ok()
        .unwrap();
    let sent: Vec<Value> = serde_json::from_str(&said).unwrap();
    sent.iter().map(|s| s["sent"].as_u64().unwrap()).collect()
}

fn of(stats: &Value, channel: &str, what: &str) -> u64 {
    stats["channels"][channel][what].as_u64().unwrap_or_else(|| panic!("no {what} of {channel} in {stats}"))
}

fn the_verifier_accepts_every_program(_: &Host, driver: &Driver) {
    let said = driver.line("verified").unwrap();
    eprintln!("instructions that the verifier walked: {said}");
    let programs: serde_json::Map<String, Value> = serde_json::from_str(&said).unwrap();
    assert_eq!(programs.len(), 5, "{said}");
    assert!(programs.values().all(|n| (1..100_000).contains(&n.as_u64().unwrap())), "{said}");
}

fn the_former_qdisc_is_put_back(host: &Host, driver: &Driver) {
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
    assert!(refused.contains("could not be put back"), "{refused}");
    assert!(root(host, "va").contains("htb"));
    tc("qdisc del dev va root").ok().unwrap();
    // By hand it is refused where nobody has set it up, and below another qdisc.
    assert_ne!(tc("qdisc add dev va root teiji_edf").code, 0);
}

fn excess_is_in_nobodys_way(host: &Host, driver: &Driver) {
    driver.line("link va rate=50000000 slack_us=2000").unwrap();
    driver.line("channel va greedy to=10.88.0.2/32:6000 deadline_us=3000 rate=2000000 burst=1700").unwrap();
    driver.line("channel va modest to=10.88.0.2/32:6001 deadline_us=5000 rate=2000000 burst=1700").unwrap();
    // Forty times its rate, more than the link.
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

fn channels_change_without_a_drop(host: &Host, driver: &Driver) {
    driver.line("link va rate=50000000").unwrap();
    let flow = "--flow 10.88.0.2:6000,rate=4000000,size=1470";
    // The lab's clock runs ahead while it waits for this machine, so the load goes on until it is told to end.
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
    let said = load.wait().unwrap().ok().unwrap();
    let sent = |line: &str| serde_json::from_str::<Vec<Value>>(line).unwrap()[0]["sent"].as_u64().unwrap();
    let sent: u64 = said.lines().map(sent).sum();
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

fn packets_are_told_apart(host: &Host, driver: &Driver) {
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

fn best_effort_is_shared(host: &Host, driver: &Driver) {
    driver.line("link va rate=20000000").unwrap();
    let before = received(host);
    // Three flows whose demands differ by a factor of four, each more than its share; and one that is below it.
    let flows: Vec<String> = [(7001, 40), (7002, 20), (7003, 10), (7004, 2)]
        .iter()
        .map(|(port, mbit)| format!("--flow 10.88.0.2:{port},rate={mbit}000000,size=1470"))
        .collect();
    let ports = "7001,7002,7003,7004";
    let arrivals =
        host.spawn(&format!("ip netns exec b /tmp/teiji-lab udp-arrivals --ports {ports} --idle 2")).unwrap();
    arrivals.wait_for("receiving", std::time::Duration::from_secs(60)).unwrap();
    let sent = send(host, 4.0, &flows.join(" "));
    let said = arrivals.wait().unwrap().ok().unwrap();
    let arrived: Vec<Value> = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let got: Vec<u64> = arrived.iter().map(|a| a["received"].as_u64().unwrap()).collect();
    assert!(received(host) > before);
    assert_eq!(got[3], sent[3], "a flow below its share lost packets: {got:?} of {sent:?}");
    let (least, most) = (got[..3].iter().min().unwrap(), got[..3].iter().max().unwrap());
    // What is left in the queue at the end is not equal: a third of the 4 MiB at most.
    assert!(*most as f64 <= *least as f64 * 1.6, "shares {got:?}");
    assert!(got[0] + got[1] + got[2] > 5000, "{got:?}");
    driver.line("detach va").unwrap();
}

/// On an idle link each packet leaves the queue at once, and its last bit 3.07 ms later.
fn the_last_bit_counts(host: &Host, driver: &Driver) {
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

fn received(host: &Host) -> u64 {
    let text = host.run("ip netns exec b cat /sys/class/net/vb/statistics/rx_packets").unwrap().ok().unwrap();
    text.parse().unwrap()
}

fn two_links_at_once(host: &Host, driver: &Driver) {
    driver.line("link va rate=10000000").unwrap();
    driver.line("link wa rate=20000000").unwrap();
    driver.line("channel va c to=10.88.0.2/32:6000 deadline_us=5000 rate=1000000 burst=1700").unwrap();
    driver.line("channel wa c to=10.89.0.2/32:6000 deadline_us=7000 rate=1000000 burst=1700").unwrap();
    let sent = send(
        host,
        2.0,
        "--flow 10.88.0.2:6000,rate=990000 --flow 10.89.0.2:6000,rate=990000 \
         --flow 10.88.0.2:7000,rate=30000000 --flow 10.89.0.2:7000,rate=30000000",
    );
    for (dev, rate, n) in [("va", 10e6, sent[0]), ("wa", 20e6, sent[1])] {
        let stats = driver.stats(dev).unwrap();
        assert_eq!((of(&stats, "c", "packets"), of(&stats, "c", "misses")), (n, 0), "{dev}: {stats}");
        let bits = 8.0 * (stats["rt_bytes"].as_f64().unwrap() + stats["be_bytes"].as_f64().unwrap());
        // Up to the statistics, which are read a little after the last packet was sent.
        assert!((0.9..=1.6).contains(&(bits / 2.0 / rate)), "{dev} sent {bits} bits in 2 s");
    }
    driver.line("detach va").unwrap();
    assert!(root(host, "wa").contains("teiji_edf"));
    driver.line("detach wa").unwrap();
}

fn real_time_is_bounded(host: &Host, driver: &Driver) {
    // Their bursts together are the burst of all of them.
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

/// First by silence, so that it comes back; then by death, so that nobody is there to ask.
fn without_a_beat_it_is_a_fifo() {
    let host = CONCURRENT.without_driver();
    let driver = Driver::start(host).unwrap();
    driver.line("link va rate=2000000").unwrap();
    driver.line("channel va c to=10.88.0.2/32:6000 deadline_us=5000 rate=1000000 burst=1700").unwrap();
    driver.line("silence").unwrap();
    let before = received(host);
    // 8 Mbit/s for 4 s into a link of 2: what has piled up after 2 s is sent, and the rest as it comes.
    let sent = send(host, 4.0, "--flow 10.88.0.2:7000,rate=7000000 --flow 10.88.0.2:6000,rate=990000");
    host.run("sleep 1").unwrap().ok().unwrap();
    let stats = driver.stats("va").unwrap();
    assert_eq!(stats["fallbacks"], 1, "{stats}");
    assert_eq!(
        (&stats["be_drops"], &stats["be_queued"], &stats["rt_queued"]),
        (&0.into(), &0.into(), &0.into())
    );
    assert!(stats["fallback_packets"].as_u64().unwrap() > 1000, "{stats}");
    assert!(received(host) - before >= sent.iter().sum::<u64>(), "packets were lost: {stats}");
    driver.line("speak").unwrap();
    host.run("sleep 1").unwrap().ok().unwrap();
    let kept = of(&driver.stats("va").unwrap(), "c", "packets");
    send(host, 1.0, "--flow 10.88.0.2:6000,rate=990000");
    let stats = driver.stats("va").unwrap();
    assert!(of(&stats, "c", "packets") > kept + 50, "no deadlines after the return: {stats}");

    driver.kill().unwrap();
    let before = received(host);
    let sent = send(host, 4.0, "--flow 10.88.0.2:7000,rate=7000000");
    host.run("sleep 1").unwrap().ok().unwrap();
    assert!(received(host) - before >= sent[0], "packets were lost when the agent died");
    // Another one takes over where it was: the same channels, whose token buckets and statistics go on.
    let second = Driver::start(host).unwrap();
    let again = of(&second.stats("va").unwrap(), "c", "packets");
    assert!(again > kept, "{again} packets of {kept}");
    host.run("sleep 1").unwrap().ok().unwrap();
    send(host, 1.0, "--flow 10.88.0.2:6000,rate=990000");
    let stats = second.stats("va").unwrap();
    assert!(of(&stats, "c", "packets") > again + 50, "no deadlines with the next agent: {stats}");
    second.line("detach va").unwrap();
    let all = "bpftool map dump pinned /tmp/bpf/driver/edf/matches | grep -c '\"key\"\\|^key'";
    assert_eq!(host.run(all).unwrap().text(), "0", "matches of a link that has no channels any more");
    second.kill().unwrap();
    host.run("rm -r /tmp/bpf/driver").unwrap().ok().unwrap();
    // Nothing is left in the kernel, which frees it in its own time.
    let maps = "for i in $(seq 60); do n=$(bpftool map show | grep -c 'name states'); [ $n = 0 ] && break; sleep 1; done; \
                echo $n";
    assert_eq!(host.run(maps).unwrap().text(), "0");
}

/// What holds of a device besides: qdiscs of its queues, and the size of packets that it takes.
fn devices_are_put_back(host: &Host, driver: &Driver) {
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
    // A child that somebody has chosen could not be put back.
    let handle = run("tc qdisc show dev qa root").text().split_whitespace().nth(2).unwrap().to_owned();
    run(&format!("tc qdisc replace dev qa parent {handle}2 pfifo limit 7")).ok().unwrap();
    let refused = driver.try_line("link qa rate=50000000").unwrap();
    assert!(refused.contains("could not be put back"), "{refused}");
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

/// What a bridge forwards passes its uplink's queue, what is sent over a bond the bond's. A tap's queue is changed and
/// put back as any.
fn uplinks_bonds_and_taps_have_channels(host: &Host, driver: &Driver) {
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
        let said = host
            .run(&format!("ip netns exec {from} /tmp/teiji-lab udp-flows --for 5 {flow}; sleep 0.1"))
            .unwrap();
        let sent: Vec<Value> = serde_json::from_str(&said.ok().unwrap()).unwrap();
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

/// A link more than there are slots is refused, a slot that was left is taken, and nothing in it is its former link's.
fn slots_are_given_anew(host: &Host, driver: &Driver) {
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
    // Whose device is gone holds its slot until somebody tidies.
    devices("ip link del s$i");
    assert!(driver.try_line("link va rate=0").unwrap().contains("which is the most"));
    driver.line("tidy").unwrap();
    driver.line("link va rate=0").unwrap();
    assert_eq!(driver.stats("va").unwrap()["rt_packets"], 0);
    driver.line("detach va").unwrap();
}

/// Writers killed at any instant leave what was or what was to be, and nothing that stays.
fn a_killed_change_is_whole(host: &Host, driver: &Driver) {
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
    let said = host.run(&format!("bash -c '{kills}'")).unwrap().text();
    let shown: Vec<&str> = said.lines().filter(|l| l.starts_with('{') || l.contains("error")).collect();
    let of = |wanted: &str| shown.iter().filter(|l| **l == wanted).count();
    eprintln!("killed changes: {} of {} left the second set of channels", of(&second), shown.len());
    assert_eq!((shown.len(), of(&first) + of(&second)), (25, 25), "{said}");
    driver.line("tidy").unwrap();
    let entries = "bpftool -j map dump pinned /tmp/bpf/driver/edf/matches | grep -o '\"link\":' | wc -l";
    assert_eq!(host.run(entries).unwrap().text(), "2", "matches that no link uses");
    driver.line("detach va").unwrap();

    // The same of channels that come and go, while packets pass.
    driver.line("swap va 2").unwrap();
    assert_eq!(driver.line("show va").unwrap(), second);
    driver.line("detach va").unwrap();
    let flow = "--flow 10.88.0.2:6000,rate=2000000,size=1470";
    let load = host.spawn(&format!("ip netns exec a /tmp/teiji-lab udp-flows --for 30 {flow}")).unwrap();
    let said = host.run(&format!("bash -c '{}'", kills.replace("swap", "flip"))).unwrap().text();
    let shown: Vec<&str> =
        said.lines().filter(|l| l.starts_with('{') || *l == "null" || l.contains("error")).collect();
    let of = |wanted: &str| shown.iter().filter(|l| **l == wanted).count();
    eprintln!("killed changes: {} of {} left the link without channels", of("null"), shown.len());
    assert_eq!((shown.len(), of("null") + of(&second)), (25, 25), "{said}");
    load.kill().unwrap();
    driver.line("tidy").unwrap();
    driver.line("detach va").unwrap();
    assert_eq!(host.run(entries).unwrap().text(), "0", "matches of a link without channels");
}

/// The product: `teiji agent` under load.
fn the_agent_may_die() {
    let host = CONCURRENT.without_driver();
    // In one script, for the lab's clock runs ahead while it waits for this machine.
    let script = r#"
        T="ip netns exec a /tmp/teiji"; P="--state /tmp/state --pins /tmp/bpf/teiji"
        once() { ip netns exec a /tmp/edf /tmp/bpf/teiji once "$@"; }
        up() {
          $T agent $P >/tmp/agent 2>&1 & agent=$!
          until grep -q "the agent keeps deadlines" /tmp/agent; do sleep 0.01; done
        }
        told() { name=$1; shift; said=$("$@" 2>&1); echo "$name $? $(echo $said)"; }
        up
        told other $T agent $P
        told caps grep -hE '^(Cap|NoNewPrivs)' /proc/$agent/task/*/status
        once link va rate=4000000 slack_us=4000
        once channel va c to=10.88.0.2/32:6000 deadline_us=10000 rate=1000000 burst=3200
        ip netns exec a /tmp/teiji-lab udp-flows --for 9 --flow 10.88.0.2:6000,rate=900000,size=1470 \
          --flow 10.88.0.2:7000,rate=2000000,size=1470 >/tmp/sent & load=$!
        sleep 1; told alive once stats va
        kill -9 $agent; sleep 2.5
        told dead once stats va; told silent $T status $P
        up; sleep 1
        told back once stats va
        wait $load; sleep 0.5
        told end once stats va; told sent tail -n 1 /tmp/sent; told status $T status $P
        # Asked to end, it leaves links as they are; the last one out clears up.
        kill -TERM $agent; wait $agent; echo "ended $?"
        told stays ls /tmp/bpf/teiji/edf
        up; once detach va; kill -TERM $agent; wait $agent; echo "ended again $?"
        told cleared ls /tmp/bpf/teiji"#;
    let before = received(host);
    let said = host.run(script).unwrap().text();
    let line = |name: &str| {
        let found = said.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        let (code, rest) = found.and_then(|l| l.split_once(' ')).unwrap_or_else(|| panic!("{name}: {said}"));
        (code.parse::<i32>().unwrap(), rest.to_owned())
    };
    let stats = |name: &str| serde_json::from_str::<Value>(&line(name).1).unwrap();
    let other = line("other");
    assert!(other.0 == 78 && other.1.contains("another teiji agent is running"), "{other:?}");
    // Both threads: none of five sets has anything.
    let caps = line("caps").1;
    let count = |value: &str| caps.split_whitespace().filter(|word| *word == value).count();
    assert_eq!((count("0000000000000000"), count("1")), (10, 2), "it keeps privileges: {caps}");

    let [alive, dead, back, end] = ["alive", "dead", "back", "end"].map(stats);
    assert!(of(&alive, "c", "packets") > 50 && alive["fallbacks"] == 0, "{alive}");
    assert_eq!(dead["fallbacks"], 1, "{dead}");
    assert!(dead["fallback_packets"].as_u64().unwrap() > 20, "{dead}");
    let silent = line("silent");
    assert!(silent.0 == 1 && silent.1.contains("deadlines are not kept"), "{silent:?}");

    let fifo = |s: &Value| s["fallback_packets"].as_u64().unwrap();
    assert!(
        of(&back, "c", "packets") > of(&dead, "c", "packets") + 50,
        "no deadlines within 1 s: {dead} {back}"
    );
    assert!(of(&end, "c", "packets") > of(&back, "c", "packets") + 50, "no deadlines again: {back} {end}");
    assert_eq!((fifo(&end), &end["fallbacks"]), (fifo(&back), &dead["fallbacks"]), "{back} {end}");
    assert_eq!(of(&end, "c", "misses"), 0, "{end}");
    assert_eq!((&end["rt_drops"], &end["be_drops"]), (&0.into(), &0.into()), "{end}");
    let sent: Vec<Value> = serde_json::from_str(&line("sent").1).unwrap();
    let sent: u64 = sent.iter().map(|s| s["sent"].as_u64().unwrap()).sum();
    assert!(received(host) - before >= sent, "packets were lost: {sent} sent, {end}");
    let status = line("status");
    assert!(status.0 == 0 && status.1.contains("EDF, 4mbit, slack 4.00 ms"), "{status:?}");
    assert!(said.contains("ended 0") && said.contains("ended again 0"), "{said}");
    assert_eq!(line("stays").0, 0, "a link has it: {said}");
    assert_ne!(line("cleared").0, 0, "{said}");
}
