//! The scheduler comes and goes, many times: `SCX_CYCLES` and `SCX_BOOTS` say how often. `make soak` sets them; without them it is a short
//! form.

use super::{
    AMPLE, BEGINS, CPU, LAB, OTHER_CPU, PROMISED, Scheduler, VM1, nothing_was_warned_of, run, state,
};
use std::time::Duration;
use teiji_experiments::load;
use teiji_lab::GuestSpec;

/// After so many, the kernel's log and what is left behind are looked at.
const AT_A_TIME: u32 = 40;
/// Of so many cycles: an emulated CPU takes seconds to verify the programs.
const LIMIT: Duration = Duration::from_secs(AT_A_TIME as u64 * 60);

/// How often, from the environment.
fn times(variable: &str, without: u32) -> u32 {
    match std::env::var(variable) {
        Ok(times) => times.parse().unwrap_or_else(|_| panic!("{variable}={times} is not a number")),
        Err(_) => without,
    }
}

/// What the kernel has of BPF. What is removed last, it frees a little later.
fn bpf_objects() -> String {
    run("for what in prog map link; do bpftool $what show -j | jq length; done | xargs")
}

/// Starts the scheduler, and ends it in one of three ways: as its owner does; with its owner killed while it schedules; or with its
/// owner killed at any time, perhaps while it is being loaded. Each time the kernel's own scheduler has to be there again.
fn cycles(count: u32) -> String {
    format!(
        r#"cat /sys/kernel/sched_ext/enable_seq
        for cycle in $(seq {count}); do
            coproc driver {{ exec /mnt/bin/vcpu-driver {AMPLE}; }}
            id=$driver_PID
            case $((cycle % 3)) in
            0) read -r said <&${{driver[0]}}; sleep 0.$((RANDOM % 5)); exec {{driver[1]}}>&-; wait $id || exit 10 ;;
            1) read -r said <&${{driver[0]}}; sleep 0.$((RANDOM % 5)); kill -9 $id; wait $id ;;
            2) sleep $((RANDOM % 3)).$((RANDOM % 10)); kill -9 $id; wait $id ;;
            esac 2>/dev/null
            for i in $(seq 600); do [ "$(cat /sys/kernel/sched_ext/state)" = disabled ] && break; sleep 0.1; done
            [ $i -lt 600 ] || exit 11
        done
        cat /sys/kernel/sched_ext/enable_seq"#
    )
}

/// Beside busy loops, with requests all the time, each of which is answered.
pub fn many_times_it_comes_and_goes() {
    let guest = &VM1.0;
    let _hogs = load::hogs(&LAB.host, CPU, 4).unwrap();
    let wanted = times("SCX_CYCLES", 6);
    Scheduler::start("").stop();
    let (before, mut done, mut loaded, mut requests) = (bpf_objects(), 0, 0, 0);
    while done < wanted {
        let count = AT_A_TIME.min(wanted - done);
        run(&format!("echo {BEGINS} >/dev/kmsg"));
        LAB.host.put("/tmp/cycles.sh", cycles(count).as_bytes()).unwrap();
        let child = LAB.host.spawn("exec bash /tmp/cycles.sh").unwrap();
        let begun = std::time::Instant::now();
        while !child.ended() {
            assert!(begun.elapsed() < LIMIT, "{count} cycles take longer than {LIMIT:?}");
            let answered = load::echo_one_by_one(&LAB.host, guest, 20.0, 60).unwrap();
            assert!(answered.received + 2 >= answered.sent, "{answered:?}");
            requests += answered.received;
        }
        let ended = child.wait().unwrap();
        assert_eq!(ended.code, 0, "{} {}", ended.text(), ended.err_text());
        let schedulers: Vec<u64> = ended.text().lines().map(|line| line.parse().unwrap()).collect();
        // Those that were killed at any time may not have been there.
        let started = schedulers[1] - schedulers[0];
        assert!(started <= u64::from(count) && started >= u64::from(count - count.div_ceil(3)), "{started}");
        nothing_was_warned_of();
        done += count;
        loaded += started;
        eprintln!("{done} of {wanted} cycles: {loaded} schedulers, {requests} requests answered");
    }
    assert_eq!(state(), "disabled");
    let left = format!(
        "[ \"$(for what in prog map link; do bpftool $what show -j | jq length; done | xargs)\" = '{before}' ]"
    );
    run(&format!("for i in $(seq 100); do {left} && exit; sleep 0.1; done; exit 1"));
}

/// Guests with one and two vCPUs, beside busy loops on two of the CPUs. On Linux 7.1 a host stood still when a guest booted under
/// another scheduler of sched_ext (sched-ext/scx#3687).
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
