//! Pins that were removed while no agent ran. Whichever it was: `teiji rollback --force` takes the channels from the link,
//! and the agent then keeps a set of pins of its own.

use super::*;

const POLICY: &str = r#"
[link.va]
rate = "4mbit"
max_packet = "1514b"
[channel.c]
link = "va"
to = "10.88.0.2:6000"
deadline = "10ms"
min_rate = "1mbit"
"#;

pub fn a_rollback_needs_no_pin() {
    let host = CONCURRENT.without_driver();
    host.put("/tmp/policy.toml", POLICY.as_bytes()).unwrap();
    let script = r#"
        rm -rf /tmp/damage; mkdir /tmp/damage; P="--state /tmp/damage/state --pins /tmp/bpf/damage"
        in_a="ip netns exec a"; log=/tmp/damage/log
        # The log is emptied here, not by the agent: what the one before has said would be taken for this one's.
        up() { : >$log; $in_a /tmp/teiji agent $P >>$log 2>&1 & agent=$!; for n in $(seq 500); do grep -q "the agent keeps" $log && break; sleep 0.02; done; }
        told() { name=$1; shift; said=$("$@" 2>&1); echo "$name $? $(echo $said)"; }
        up; told first $in_a /tmp/teiji apply $P /tmp/policy.toml; pins=$(ls /tmp/bpf/damage/edf); echo pins $pins
        for pin in $pins; do
          told $pin.before $in_a tc qdisc show dev va root
          kill -9 $agent; wait $agent; rm /tmp/bpf/damage/edf/$pin
          up
          told $pin.agent cat $log
          told $pin.back $in_a /tmp/teiji rollback --force $P
          told $pin.after $in_a tc qdisc show dev va root
          # As the agent says, if it cannot know that no link has the qdisc any more.
          grep -q "rm -r /tmp/bpf/damage/edf" $log && rm -r /tmp/bpf/damage/edf
          for n in $(seq 20); do $in_a /tmp/teiji apply $P /tmp/policy.toml >/tmp/damage/again 2>&1; again=$?; [ $again = 0 ] && break; sleep 0.5; done
          echo $pin.again $again $(cat /tmp/damage/again)
          told $pin.has $in_a tc qdisc show dev va root
        done
        told end $in_a /tmp/teiji rollback $P; kill -TERM $agent; wait $agent; told left ls /tmp/bpf/damage"#;
    let printed = host.run(script).unwrap().text();
    let said = |name: &str| {
        let found = printed.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("{name}: {printed}"))
    };
    let pins: Vec<&str> = said("pins").split_whitespace().collect();
    assert!(pins.len() > 5, "{printed}");
    for pin in pins {
        let is = |what: &str, begin: &str, part: &str| {
            let line = said(&format!("{pin}.{what}"));
            assert!(line.starts_with(begin) && line.contains(part), "{pin}.{what}: {printed}");
        };
        is("before", "0 ", "teiji_edf");
        // Without these two it cannot serve the links that there are.
        let needed = pin == "users" || pin.starts_with("beat");
        is("agent", "0 ", if needed { "rm -r /tmp/bpf/damage/edf" } else { "the agent keeps deadlines" });
        is("back", "0 ", "");
        is("after", "0 ", "noqueue");
        is("again", "0 ", "");
        is("has", "0 ", "teiji_edf");
    }
    assert!(said("end").starts_with("0 ") && !said("left").starts_with("0 "), "{printed}");
}
