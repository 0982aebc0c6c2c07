//! The scheduler comes and goes, many times: `SCX_CYCLES` and `SCX_BOOTS` say how often. `make soak` sets them; without them it is a short
//! form.

use super::{
    AMPLE, BEGINS, CPU, LAB, OTHER_CPU, PROMISED, Scheduler, VM1, nothing_was_warned_of, run, state,
};
use std::time::Duration;
use teiji_experiments::load;
use teiji_lab::GuestSpec;

/// Cycles of one script; after each the kernel's log is looked at.
const AT_A_TIME: u32 = 40;
/// How long one script may take: an emulated CPU takes seconds to verify the programs.
const LIMIT: Duration = Duration::from_secs(AT_A_TIME as u64 * 60);

/// How often, from the environment.
fn times(variable: &str, default: u32) -> u32 {
    match std::env::var(variable) {
        Ok(times) => times.parse().unwrap_or_else(|_| panic!("{variable}={times} is not a number")),
        Err(_) => default,
    }
}

/// How many BPF programs, maps and links the kernel has, as soon as two counts are the same: it frees the last ones with a delay.
fn bpf_objects() -> Vec<u64> {
    let count =
        "set -o pipefail; for what in prog map link; do bpftool $what show -j | jq length || exit 1; done";
    let counted = |_| run(&format!("bash -c '{count}'")).lines().map(|n| n.parse().unwrap()).collect();
    let mut counts: Vec<Vec<u64>> = (0..1).map(counted).collect();
    for n in 1..60 {
        std::thread::sleep(Duration::from_secs(1));
        counts.push(counted(n));
        if counts[n] == counts[n - 1] {
            return counts.remove(n);
        }
    }
    panic!("they change all the time: {counts:?}")
}

/// A script that starts the scheduler, and ends it in one of three ways: by its owner, in order; with its owner killed while it schedules;
/// or with its owner killed at once when the kernel begins to change over, or at any time, perhaps while programs are being loaded. Each time
/// the kernel's own scheduler has to be there again.
fn cycles_script(count: u32) -> String {
    format!(
        r#"cat /sys/kernel/sched_ext/enable_seq
        for cycle in $(seq {count}); do
            coproc driver {{ exec /mnt/bin/vcpu-driver {AMPLE}; }}
            id=$driver_PID
            case $((cycle % 3)) in
            0 | 1)
                read -r said <&${{driver[0]}}
                [[ $said == scheduling* ]] || exit 12
                sleep 0.$((RANDOM % 5))
                if [ $((cycle % 3)) = 0 ]; then exec {{driver[1]}}>&-; else kill -9 $id; fi ;;
            2)
                if [ $((cycle % 2)) = 0 ]; then
                    until read -r state </sys/kernel/sched_ext/state; [ $state != disabled ]; do :; done
                else
                    sleep $((RANDOM % 3)).$((RANDOM % 10))
                fi
                kill -9 $id ;;
            esac
            wait $id || [ $((cycle % 3)) != 0 ] || exit 10
            for i in $(seq 600); do [ "$(cat /sys/kernel/sched_ext/state)" = disabled ] && break; sleep 0.1; done
            [ $i -lt 600 ] || exit 11
        done
        cat /sys/kernel/sched_ext/enable_seq"#
    )
}

/// Beside busy loops, with requests all the time: of each batch all but two at most are answered.
pub fn many_times_it_comes_and_goes() {
    let guest = &VM1.0;
    let _hogs = load::hogs(&LAB.host, CPU, 4).unwrap();
    let wanted = times("SCX_CYCLES", 6);
    // What the first one leaves for good is there before.
    let scheduler = Scheduler::start("");
    let during = bpf_objects();
    scheduler.stop();
    let (before, mut done, mut loaded, mut requests) = (bpf_objects(), 0, 0, 0);
    assert!(during[0] > before[0] && during[1] > before[1], "{during:?} {before:?}");
    while done < wanted {
        let count = AT_A_TIME.min(wanted - done);
        run(&format!("echo {BEGINS} >/dev/kmsg"));
        LAB.host.put("/tmp/cycles.sh", cycles_script(count).as_bytes()).unwrap();
        let child = LAB.host.spawn("exec bash /tmp/cycles.sh").unwrap();
        let begun = std::time::Instant::now();
        while !child.ended() {
            assert!(begun.elapsed() < LIMIT, "{count} cycles take longer than {LIMIT:?}");
            let answered = load::echo_one_by_one(&LAB.host, guest, 20.0, 60).unwrap();
            assert!(answered.answered().end() + 2 >= answered.sent, "{answered:?}");
            requests += answered.received;
        }
        let ended = child.wait().unwrap();
        assert_eq!(ended.code, 0, "{} {}", ended.text(), ended.err_text());
        let schedulers: Vec<u64> = ended.text().lines().map(|line| line.parse().unwrap()).collect();
        // A driver that was killed while it loaded the scheduler may not have started it.
        let started = schedulers[1] - schedulers[0];
        assert!(started <= u64::from(count) && started >= u64::from(count - (count + 1) / 3), "{started}");
        nothing_was_warned_of();
        done += count;
        loaded += started;
        eprintln!("{done} of {wanted} cycles: {loaded} schedulers, {requests} requests answered");
    }
    assert_eq!(state(), "disabled");
    assert_eq!(bpf_objects(), before);
}

/// Guests with two vCPUs and with one, in turns, beside busy loops on two of the CPUs. On Linux 7.1 hosts hung when a guest booted under a
/// different scheduler of sched_ext (sched-ext/scx#3687).
pub fn many_guests_boot() {
    // Before the CPUs are busy.
    let _ = &VM1.0;
    let _hogs = [CPU, OTHER_CPU].map(|cpu| load::hogs(&LAB.host, cpu, 1).unwrap());
    let scheduler = Scheduler::start(PROMISED);
    let wanted = times("SCX_BOOTS", 1);
    for boot in 1..=wanted {
        let spec = GuestSpec { vcpus: 1 + boot % 2, ..GuestSpec::named("boots") };
        let guest = LAB.host.guest(&spec).unwrap();
        assert_eq!(guest.run("echo here").unwrap().ok().unwrap().trim(), "here");
        guest.kill().unwrap();
        assert_eq!(state(), "enabled");
        eprintln!("{boot} of {wanted} guests have booted");
    }
    scheduler.stop();
}
