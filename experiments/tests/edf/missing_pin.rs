//! One pin was removed while no agent ran. Whichever it was, `teiji rollback --force` takes the channels from the link, and a later
//! apply gives them again, after `rm -r` of the other pins where the agent asks for it.

use super::*;

pub fn a_rollback_works_whichever_pin_is_missing() {
    let host = CONCURRENT.without_driver();
    host.put("/tmp/policy.toml", POLICY.as_bytes()).unwrap();
    let script = r#"
        rm -rf /tmp/damage; mkdir /tmp/damage; P="--state /tmp/damage/state --pins /tmp/bpf/damage"
        in_a="ip netns exec a"; log=/tmp/damage/log
        # The log is emptied here, not by the agent: what the one before has said would be taken for this one's.
        up() { : >$log; $in_a /tmp/teiji agent $P >>$log 2>&1 & agent=$!; for n in $(seq 500); do grep -q "the agent keeps" $log && break; sleep 0.02; done; }
        up; told first $in_a /tmp/teiji apply --wait 60s $P /tmp/policy.toml; pins=$(ls /tmp/bpf/damage/edf); told pins echo $pins
        for pin in $pins; do
          told $pin.before $in_a tc qdisc show dev va root
          kill -9 $agent; wait $agent; rm /tmp/bpf/damage/edf/$pin
          up
          told $pin.agent cat $log
          told $pin.back $in_a /tmp/teiji rollback --force --wait 60s $P
          told $pin.after $in_a tc qdisc show dev va root
          # As the agent says, if it cannot know that no link has the qdisc any more.
          grep -q "rm -r /tmp/bpf/damage/edf" $log && rm -r /tmp/bpf/damage/edf
          for n in $(seq 20); do again=$(told $pin.again $in_a /tmp/teiji apply --wait 60s $P /tmp/policy.toml); [[ $again = "$pin.again 0 "* ]] && break; sleep 0.5; done
          echo "$again"
          told $pin.has $in_a tc qdisc show dev va root
        done
        told end $in_a /tmp/teiji rollback --wait 60s $P; kill -TERM $agent; wait $agent; told left ls /tmp/bpf/damage"#;
    let told = Told(host.run(&format!("{TELL}{script}")).unwrap().text());
    let pins = told.line("pins").1;
    assert!(pins.split_whitespace().count() > 5, "{}", told.0);
    for pin in pins.split_whitespace() {
        let is = |what: &str, part: &str| told.is(&format!("{pin}.{what}"), 0, part);
        is("before", "teiji_edf");
        // Without these two it cannot serve the links that there are.
        let needed = pin == "users" || pin.starts_with("beat");
        is("agent", if needed { "rm -r /tmp/bpf/damage/edf" } else { "the agent keeps deadlines" });
        is("back", "");
        is("after", "noqueue");
        is("again", "");
        is("has", "teiji_edf");
    }
    told.is("end", 0, "");
    assert_ne!(told.line("left").0, 0, "{}", told.0);
}
