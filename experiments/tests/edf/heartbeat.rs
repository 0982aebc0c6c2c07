//! The queue without its agent.

use super::*;

/// First the driver stops its heartbeat and resumes it; then it is killed.
pub fn without_a_heartbeat_it_is_a_fifo() {
    let host = CONCURRENT.without_driver();
    let driver = Driver::start(host).unwrap();
    driver.line("link va rate=2000000").unwrap();
    driver.line("channel va c to=10.88.0.2/32:6000 deadline_us=5000 rate=1000000 burst=1700").unwrap();
    driver.line("silence").unwrap();
    let before = received(host);
    // 8 Mbit/s for 4 s on a link of 2 Mbit/s. After 2 s the queue falls back: the packets in it are sent, and new ones
    // as they arrive.
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
    // Another driver continues with the same channels; their token buckets and statistics go on.
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
    // Nothing is left in the kernel, which frees the maps some time later.
    let maps = "for i in $(seq 60); do n=$(bpftool map show | grep -c 'name states'); [ $n = 0 ] && break; sleep 1; done; \
                echo $n";
    assert_eq!(host.run(maps).unwrap().text(), "0");
}

/// `teiji agent` under load.
pub fn the_agent_may_die() {
    let host = CONCURRENT.without_driver();
    // All in one script, because the lab's clock runs ahead while it waits for this machine.
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
        beats=$(grep -lx heartbeat /proc/$agent/task/*/comm); front=$(cat /proc/$agent/task/*/children)
        told caps grep -hE '^(Cap|NoNewPrivs)' ${beats%comm}status /proc/$(echo $front)/status
        told user grep -h '^Uid' /proc/$(echo $front)/status
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
        # On SIGTERM the agent leaves links as they are. Without links it also removes its pins.
        kill -TERM $agent; wait $agent; echo "ended $?"
        told stays ls /tmp/bpf/teiji/edf
        up; once detach va; kill -TERM $agent; wait $agent; echo "ended again $?"
        told cleared ls /tmp/bpf/teiji"#;
    let before = received(host);
    let printed = host.run(script).unwrap().text();
    let line = |name: &str| {
        let found = printed.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        let (code, rest) =
            found.and_then(|l| l.split_once(' ')).unwrap_or_else(|| panic!("{name}: {printed}"));
        (code.parse::<i32>().unwrap(), rest.to_owned())
    };
    let stats = |name: &str| serde_json::from_str::<Value>(&line(name).1).unwrap();
    let other = line("other");
    assert!(other.0 == 1 && other.1.contains("serves these pins"), "{other:?}");
    // The heartbeat's thread and the process that clients talk to have five empty capability sets each.
    let caps = line("caps").1;
    let count = |value: &str| caps.split_whitespace().filter(|word| *word == value).count();
    assert_eq!((count("0000000000000000"), count("1")), (10, 2), "it keeps privileges: {caps}");
    assert_eq!(line("user").1.split_whitespace().nth(1), Some("65534"), "{printed}");

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
    assert!(printed.contains("ended 0") && printed.contains("ended again 0"), "{printed}");
    assert_eq!(line("stays").0, 0, "a link has it: {printed}");
    assert_ne!(line("cleared").0, 0, "{printed}");
}
