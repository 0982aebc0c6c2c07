//! An upgrade from release 0.1.0, whose program is kept in `experiments/former`: it gives a link channels and holds a
//! setting, and then this release takes over, while packets are sent.

use super::*;

static FORMER: &[u8] = include_bytes!("../../former/teiji-0.1.0.gz");

/// What is pinned, what is held and what links have stays in use, and no deadline is missed. Afterwards nothing of the
/// former release is left.
pub fn from_0_1_0() {
    let host = CONCURRENT.without_driver();
    host.put("/tmp/former.gz", FORMER).unwrap();
    host.put("/tmp/policy.toml", POLICY.as_bytes()).unwrap();
    host.put("/tmp/faster.toml", POLICY.replace("1mbit", "1200kbit").as_bytes()).unwrap();
    // All in one script, because the lab's clock runs ahead while it waits for this machine.
    let script = r#"
        zcat /tmp/former.gz >/tmp/former; chmod +x /tmp/former
        rm -rf /tmp/upgrade; mkdir /tmp/upgrade; P="--state /tmp/upgrade/state --pins /tmp/bpf/upgrade"
        in_a="ip netns exec a"; once() { $in_a /tmp/edf /tmp/bpf/upgrade once "$@"; }
        latency=/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us; chosen=$(cat $latency)
        up() {
          $in_a $1 agent $P >$2 2>&1 & agent=$!
          for n in $(seq 500); do grep -q "keeps deadlines" $2 && break; sleep 0.01; done
        }
        maps() { for m in slots matches beat users; do bpftool map show pinned /tmp/bpf/upgrade/edf/$m | sed 's/:.*//;q'; done; }

        told version /tmp/former --version
        up /tmp/former /tmp/upgrade/first
        told former $in_a /tmp/former apply --wait 60s $P /tmp/policy.toml
        told latency cat $latency
        before=$(maps)
        $in_a /tmp/teiji-lab udp-flows --for 16 --flow 10.88.0.2:6000,rate=900000,size=1470 \
          --flow 10.88.0.2:7000,rate=2000000,size=1470 >/tmp/upgrade/sent & load=$!
        sleep 1
        # As a package does: the program is replaced, and the service started again.
        kill -TERM $agent; wait $agent
        up /tmp/teiji /tmp/upgrade/second
        told agent cat /tmp/upgrade/second
        sleep 2
        told status $in_a /tmp/teiji status $P
        told plan $in_a /tmp/teiji plan $P /tmp/policy.toml
        told faster $in_a /tmp/teiji apply --wait 60s $P /tmp/faster.toml
        told same [ "$before" = "$(maps)" ]
        told stats once stats va
        wait $load; sleep 0.5
        told end once stats va
        told sent tail -n 1 /tmp/upgrade/sent
        told back $in_a /tmp/teiji rollback --wait 60s $P
        told root $in_a tc qdisc show dev va root
        told restored [ "$(cat $latency)" = "$chosen" ]
        for n in $(seq 500); do grep -q "keeps its own" /tmp/upgrade/second && break; sleep 0.01; done
        told renewed cat /tmp/upgrade/second
        told own $in_a /tmp/teiji apply --wait 60s $P /tmp/policy.toml
        told other [ "$before" != "$(maps)" ]
        told away $in_a /tmp/teiji rollback --wait 60s $P
        kill -TERM $agent; wait $agent
        told left ls /tmp/bpf/upgrade

        # A change by the former release that waits for a confirmation is undone by this one.
        up /tmp/former /tmp/upgrade/third
        $in_a /tmp/former apply --confirm-within 300s --wait 60s $P /tmp/policy.toml >/tmp/upgrade/waits 2>&1 & waits=$!
        for n in $(seq 500); do once stats va 2>/dev/null | grep -q packets && [ $(cat $latency) = 20 ] && break; sleep 0.01; done
        sleep 1
        told waits cat /tmp/upgrade/waits
        kill -9 $waits $agent; wait $waits $agent
        told undone $in_a /tmp/teiji rollback $P
        told again [ "$(cat $latency)" = "$chosen" ]
        told clear $in_a tc qdisc show dev va root
        told nothing $in_a /tmp/teiji status $P
        rm -rf /tmp/bpf/upgrade"#;
    let before = received(host);
    let told = Told(host.run(&format!("{TELL}{script}")).unwrap().text());
    let is = |name: &str, code: i32, part: &str| told.is(name, code, part);
    is("version", 0, "0.1.0");
    is("former", 0, "");
    is("latency", 0, "20");

    is("agent", 0, "1 link has the qdisc of another build of teiji, with the same maps");
    is("status", 0, "EDF, 4mbit, slack");
    is("plan", 0, "");
    is("faster", 0, "");
    is("same", 0, "");
    let stats = |name: &str| serde_json::from_str::<Value>(&told.line(name).1).unwrap();
    let [changed, end] = ["stats", "end"].map(stats);
    assert!(of(&changed, "c", "packets") > 50, "{changed}");
    assert!(of(&end, "c", "packets") > of(&changed, "c", "packets") + 50, "{changed} {end}");
    assert_eq!((of(&end, "c", "misses"), of(&end, "c", "drops")), (0, 0), "{end}");
    assert_eq!((&end["fallbacks"], &end["fallback_packets"]), (&0.into(), &0.into()), "{end}");
    assert_eq!((&end["rt_drops"], &end["be_drops"]), (&0.into(), &0.into()), "{end}");
    let sent: Vec<Value> = serde_json::from_str(&told.line("sent").1).unwrap();
    let sent: u64 = sent.iter().map(|s| s["sent"].as_u64().unwrap()).sum();
    assert!(received(host) - before >= sent, "packets were lost: {sent} sent, {end}");

    is("back", 0, "");
    is("root", 0, "noqueue");
    is("restored", 0, "");
    is("renewed", 0, "the agent keeps its own");
    is("own", 0, "");
    is("other", 0, "");
    is("away", 0, "");
    assert_ne!(told.line("left").0, 0, "{}", told.0);

    is("undone", 0, "");
    is("again", 0, "");
    is("clear", 0, "noqueue");
    is("nothing", 0, "");
}
