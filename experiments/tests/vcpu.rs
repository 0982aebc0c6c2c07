//! The scheduler scx_vcpu with a real guest, in one boot of the lab. Needs root; takes minutes if the lab host is emulated.
//!
//! ```text
//!  peer: caller ─ uplink ─ bridge ─ tap ─► vhost worker ┐ CPU 2, with busy loops
//!                                          vCPU 0       ┘
//!                                          vCPU 1         CPU 3
//! ```

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

#[path = "vcpu/soak.rs"]
mod soak;

use serde_json::Value;
use soak::{many_guests_boot, many_times_it_comes_and_goes};
use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use teiji_experiments::load::{self, Figures};
use teiji_experiments::numbers::median;
use teiji_experiments::switches::{Switches, Turns};
use teiji_experiments::tracing::Lab;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest, GuestSpec, Spec};

const CPU: u32 = load::VCPU_CPU;
const OTHER_CPU: u32 = 3;
const START: Duration = Duration::from_secs(120);
/// Busy loops beside the guest, so that by weight it gets a ninth of the CPU. Requests come one by one: on a machine that is ten times as
/// slow, a guest that goes before others answers ten times as slowly, too, but none waits for the ones before it.
const HOGS: u32 = 8;
/// Windows of which the median counts.
const WINDOWS: usize = 5;
/// Deadline, period and budget, µs.
const PROMISED: &str = "vm1=5000,20000,10000";
/// The same, more than it needs even if the CPU is emulated on a busy machine.
const AMPLE: &str = "vm1=20000,100000,80000";

static LAB: Shared<Lab> = Shared::new("the lab", || {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("vcpu");
    Lab::boot_as(&out, Spec::default()).unwrap()
});
/// A guest whose first vCPU and vhost worker share a CPU, with an echo server.
static VM1: Shared<(Guest<'static>, Child)> = Shared::new("the guest vm1", || {
    let spec =
        GuestSpec { vcpus: 2, pins: vec![CPU, OTHER_CPU], vhost_cpu: Some(CPU), ..GuestSpec::named("vm1") };
    let guest = LAB.host.guest(&spec).unwrap();
    let server = load::echo_server(&LAB.host, &guest).unwrap();
    (guest, server)
});

/// Another one, whose vCPU and vhost worker are on that CPU, too.
static VM2: Shared<(Guest<'static>, Child)> = Shared::new("the guest vm2", || {
    let spec = GuestSpec { pins: vec![CPU], vhost_cpu: Some(CPU), ..GuestSpec::named("vm2") };
    let guest = LAB.host.guest(&spec).unwrap();
    let server = load::echo_server(&LAB.host, &guest).unwrap();
    (guest, server)
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        requests_are_answered_beside_busy_loops,
        a_busy_guest_answers_and_goes_before_others_within_its_budget,
        vcpus_that_run_at_once_share_the_budget,
        a_turn_shorter_than_a_tick_ends_in_time,
        others_get_shares_by_their_weights,
        a_thread_of_least_weight_gets_its_turns,
        a_thread_of_least_weight_does_not_wait_for_those_that_come,
        a_chain_of_processes_leaves_the_cpu_to_others,
        threads_that_wake_each_other_leave_the_cpu_to_others,
        unbound_threads_share_all_cpus,
        many_guests_boot,
        many_times_it_comes_and_goes,
        a_policy_lets_the_agent_schedule_a_guest,
        without_its_owner_the_kernel_schedules,
        a_cpu_that_comes_or_goes_ends_it,
        // Last: another guest on the CPU disturbs the others.
        of_two_vms_the_one_with_the_earlier_deadlines_goes_first,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

/// The scheduler while it schedules.
struct Scheduler {
    driver: Child,
    asked: Cell<u32>,
}

impl Scheduler {
    fn start(vms: &str) -> Scheduler {
        for (name, vm) in [("vm1=", &VM1), ("vm2=", &VM2)] {
            if vms.contains(name) {
                let _ = &vm.0;
            }
        }
        run(&format!("echo {BEGINS} >/dev/kmsg"));
        let child = LAB.host.spawn(&format!("exec /mnt/bin/vcpu-driver {vms}")).unwrap();
        eprintln!("{}", child.wait_for("scheduling", START).unwrap());
        assert_eq!(state(), "enabled");
        Scheduler { driver: child, asked: Cell::new(0) }
    }

    fn stats(&self) -> Value {
        self.driver.write(b"stats\n").unwrap();
        self.asked.set(self.asked.get() + 1);
        let printed = self.driver.wait_for(&format!("answer {}\n", self.asked.get()), START).unwrap();
        serde_json::from_str(printed.lines().rev().find(|line| line.starts_with('{')).unwrap()).unwrap()
    }

    /// The medians of several windows, as an emulated CPU may stand still in one, which is charged to what it runs.
    fn used(&self) -> Used {
        let window = |_| {
            let (before, counted, began) = (self.stats(), counted(), std::time::Instant::now());
            std::thread::sleep(Duration::from_secs(3));
            let (after, counted, seconds): (_, f64, f64) =
                (self.stats(), self::counted() - counted, began.elapsed().as_secs_f64());
            let of = |what: &str| {
                let [before, after] =
                    [&before, &after].map(|stats| stats["vms"][0][what].as_u64().unwrap() as f64);
                after - before
            };
            let [first, fair, exhausted] =
                [("before_others_ns", 1e9), ("by_weight_ns", 1e9), ("exhausted", 1.0)]
                    .map(|(what, unit)| of(what) / unit / seconds);
            let too_long = (of("overruns") - of("late_timers")) / (of("turns") - of("late_timers")).max(1.0);
            [first, fair, exhausted, too_long, (counted / seconds / 2.0).min(1.0)]
        };
        let windows: Vec<[f64; 5]> = (0..WINDOWS).map(window).collect();
        let [first, fair, exhausted, too_long, live] =
            [0, 1, 2, 3, 4].map(|n| median(&windows.iter().map(|window| window[n]).collect::<Vec<_>>()));
        Used { first, fair, exhausted, too_long, live }
    }

    fn stop(self) {
        self.driver.close_input().unwrap();
        let ended = self.driver.wait().unwrap();
        assert_eq!(ended.code, 0, "{} {}", ended.text(), ended.err_text());
        assert_eq!(state(), "disabled");
        nothing_was_warned_of();
    }
}

/// What the kernel logs when a test starts the scheduler.
const BEGINS: &str = "a test of scx_vcpu begins";

/// Since then, of what the kernel's scheduler warns of, oopses, the watchdog of sched_ext. (Stalls of an emulated CPU are not its
/// work.)
fn nothing_was_warned_of() {
    let warned =
        "WARNING: .*kernel.sched.|BUG: (kernel|unable|scheduling)|runnable task stall|sched_ext: .*error";
    let since = format!(
        "/{BEGINS}/ {{ all = \"\" }} /{warned}/ {{ all = all $0 \"\\n\" }} END {{ printf \"%s\", all }}"
    );
    assert_eq!(run(&format!("dmesg | awk '{since}'")), "");
}

/// What a VM used.
#[derive(Debug)]
struct Used {
    /// Before others, CPUs.
    first: f64,
    /// By weight, CPUs.
    fair: f64,
    /// Periods a second that left nothing of the budget.
    exhausted: f64,
    /// The share of its turns that were too long although the timer that ends them fired in time.
    too_long: f64,
    /// The part of the time in which [`CPU`] and [`OTHER_CPU`] had ticks: a period of an emulated CPU that stands still gives no budget.
    live: f64,
}

impl Used {
    /// It goes before others for about this share of the time.
    #[track_caller]
    fn goes_first_for(&self, share: f64) {
        assert!((0.8 * share * self.live..1.2 * share).contains(&self.first), "{self:?}, wanted {share}");
    }
}

/// The time that [`CPU`] and [`OTHER_CPU`] have counted, by their ticks, s.
fn counted() -> f64 {
    let sum = format!(
        "awk '/^cpu({CPU}|{OTHER_CPU}) / {{ for (n = 2; n <= 9; n++) sum += $n }} END {{ print sum }}' /proc/stat"
    );
    run(&sum).parse::<f64>().unwrap() / 100.0
}

fn run(sh: &str) -> String {
    LAB.host.run(sh).unwrap().ok().unwrap().trim().to_owned()
}

fn state() -> String {
    run("cat /sys/kernel/sched_ext/state")
}

/// Waits for a state of sched_ext: "enabled", or "disabled" if the kernel schedules by itself.
fn until(state: &str) {
    run(&format!(
        "for i in $(seq 600); do [ \"$(cat /sys/kernel/sched_ext/state)\" != {state} ] || exit 0; sleep 0.1; done; exit 1"
    ));
}

/// How many schedulers of sched_ext there have been.
fn schedulers() -> u64 {
    run("cat /sys/kernel/sched_ext/enable_seq").parse().unwrap()
}

/// CPU time of each process during some seconds, s.
fn used(pids: &[u32], seconds: u32) -> Vec<f64> {
    let list: Vec<String> = pids.iter().map(u32::to_string).collect();
    let read = format!(
        "read_all() {{ for p in {}; do cat /proc/$p/task/*/schedstat | awk '{{ ns += $1 }} END {{ printf \"%.0f\\n\", ns }}'; done; }}; \
         read_all; sleep {seconds}; read_all",
        list.join(" ")
    );
    let printed = run(&read);
    let all: Vec<f64> = printed.lines().map(|line| line.parse::<f64>().unwrap() / 1e9).collect();
    let (before, after) = all.split_at(pids.len());
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}

/// A process that uses all the CPU time that it gets.
fn hog(prefix: &str) -> (Child, u32) {
    let child = LAB.host.spawn(&format!("echo started; exec {prefix} sh -c 'while :; do :; done'")).unwrap();
    child.wait_for("started", START).unwrap();
    let id = child.id().unwrap();
    (child, id)
}

fn end(hogs: &[(Child, u32)]) {
    hogs.iter().for_each(|(child, _)| child.kill().unwrap());
}

/// The vCPU and the vhost worker of a VM that are on [`CPU`].
fn threads_of(vm: &Guest<'_>) -> Vec<u32> {
    [vm.vcpu_tids()[..1].to_vec(), vm.vhost_tids()].concat()
}

/// Response times depend on the machine: the kernel's trace says for how long the VM's threads waited while others had their CPU.
fn requests_are_answered_beside_busy_loops() {
    let guest = &VM1.0;
    let _hogs = load::hogs(&LAB.host, CPU, HOGS).unwrap();
    let without = answered(guest);
    let scheduler = Scheduler::start(AMPLE);
    let with = answered(guest);
    let stats = scheduler.stats();
    scheduler.stop();
    eprintln!("{stats}");
    waits_less(&without, &with);
    assert!(stats["vms"][0]["packets"].as_u64().unwrap() >= with.figures.received);
}

/// How requests to a guest were answered, and how long its threads waited behind others for each answer, ns: response times are also those of
/// the machine.
#[derive(Debug)]
struct Answered {
    figures: Figures,
    waited: f64,
}

fn answered(guest: &Guest<'_>) -> Answered {
    let threads = threads_of(guest);
    let switches = Switches::start(&LAB, CPU, &threads).unwrap();
    let figures = load::echo_one_by_one(&LAB.host, guest, 30.0, 100).unwrap();
    let turns = switches.stop().unwrap();
    let behind_others = turns.iter().map(|turns| {
        let (all, own) = turns.waited(0, u64::MAX, &threads);
        all - own
    });
    let waited = behind_others.sum::<u64>() as f64 / figures.received.max(1) as f64;
    Answered { figures, waited }
}

/// With the scheduler, threads wait a quarter at most, and no request is lost.
fn waits_less(without: &Answered, with: &Answered) {
    eprintln!("without: {without:?}\nwith: {with:?}");
    assert!(with.figures.received + 2 >= with.figures.sent, "{with:?}");
    assert!(with.waited * 4.0 < without.waited, "{with:?} {without:?}");
}

/// vm1 has a light load, vm2 up to 16 requests in flight, of which some always come before those of vm1. Response times say little: on a
/// fast machine there is seldom something to wait for. So the kernel's trace says who got the CPU while the other VM waited: it has to be the one with
/// the earlier deadlines, whichever that is. Budgets exceed what either needs, and the longer deadline what vm2's packets wait on a slow machine:
/// one that has waited for nearly as long would rightly go first.
fn of_two_vms_the_one_with_the_earlier_deadlines_goes_first() {
    let threads = [&VM1.0, &VM2.0].map(threads_of);
    // ms
    let share_of_the_first = |deadlines: [u32; 2]| {
        let [first, second] = deadlines.map(|ms| ms * 1000);
        let scheduler =
            Scheduler::start(&format!("vm1={first},2000000,1800000 vm2={second},2000000,1800000"));
        let others = LAB
            .host
            .spawn(&format!("{} --outstanding 16", load::echo_command(&VM2.0, 300.0, 1_000_000)))
            .unwrap();
        let switches = Switches::start(&LAB, CPU, &threads.concat()).unwrap();
        let answered = load::echo_one_by_one(&LAB.host, &VM1.0, 10.0, 100).unwrap();
        let turns = switches.stop().unwrap();
        assert!(!others.ended(), "vm2 had no load at the end");
        others.kill().unwrap();
        eprintln!("budgets: {}", scheduler.stats()["vms"]);
        scheduler.stop();
        assert!(answered.received + 2 >= answered.sent, "{answered:?}");
        let (of_first, of_second) = turns.split_at(threads[0].len());
        let sum = |turns: &[Turns], of: &dyn Fn(&Turns) -> u64| -> u64 { turns.iter().map(of).sum() };
        let waited = |turns: &[Turns], behind: &[u32]| sum(turns, &|turns| turns.behind(behind));
        let passed_over = |turns: &[Turns], vm: &[u32]| sum(turns, &|turns| turns.passed_over_for(vm) as u64);
        let [first, second] = [passed_over(of_second, &threads[0]), passed_over(of_first, &threads[1])];
        eprintln!(
            "deadlines {deadlines:?} ms: vm1 went before vm2 {first} times, vm2 before vm1 {second} times; vm1 waited for vm2 for {} ns, \
             vm2 for vm1 for {} ns; {answered:?}",
            waited(of_first, &threads[1]),
            waited(of_second, &threads[0])
        );
        assert!(first + second >= 50, "the two hardly met: {first} and {second} times");
        first as f64 / (first + second) as f64
    };
    let [earlier, later] = [share_of_the_first([100, 1000]), share_of_the_first([1000, 100])];
    assert!(
        earlier > 0.75 && later < 0.25,
        "of the times at which both wanted the CPU, vm1 got it {earlier} with the earlier deadlines, {later} with the later ones"
    );
}

/// By weight its vCPU gets what each busy loop gets. An emulated CPU may stand still for a second in anybody's turn, which counts as run and
/// takes seconds to be made up for: the kernel's trace says how long turns were.
fn a_busy_guest_answers_and_goes_before_others_within_its_budget() {
    const LOOPS: u32 = 4;
    let guest = &VM1.0;
    let loops = load::hogs(&LAB.host, CPU, LOOPS).unwrap();
    let of_loops = format!("/proc/{}/task", loops.id().unwrap());
    // The first thread has none of the work.
    let threads: Vec<u32> = run(&format!("ls {of_loops} | sort -n | tail -n +2"))
        .lines()
        .map(|tid| tid.parse().unwrap())
        .collect();
    assert_eq!(threads.len(), LOOPS as usize, "{threads:?}");
    let busy = guest.spawn("echo started; exec taskset -c 0 sh -c 'while :; do :; done'").unwrap();
    busy.wait_for("started", START).unwrap();
    let scheduler = Scheduler::start(PROMISED);
    let answered = load::echo(&LAB.host, guest, 30.0, 200).unwrap();
    let switches = Switches::start(&LAB, CPU, &[&guest.vcpu_tids()[..1], &threads].concat()).unwrap();
    let of_others = [&guest.vcpu_tids()[1..], &guest.vhost_tids()].concat();
    let of_others: Vec<String> =
        of_others.iter().map(|tid| format!("/proc/*/task/{tid}/schedstat")).collect();
    // What the VM ran by weight, each of the loops, and the other threads of the VM, which have more to do on a slow machine, ns.
    let ran = || {
        let of_files = |files: &str| -> f64 {
            let sum = "awk '{ ns += $1 } END { printf \"%.0f\\n\", ns }'";
            run(&format!("cat {files} | {sum}")).parse().unwrap()
        };
        let by_weight = scheduler.stats()["vms"][0]["by_weight_ns"].as_f64().unwrap();
        let each = of_files(&format!("{of_loops}/*/schedstat")) / f64::from(LOOPS);
        [by_weight, each, of_files(&of_others.join(" "))]
    };
    let before = ran();
    let used = scheduler.used();
    let after = ran();
    scheduler.stop();
    busy.kill().unwrap();
    let longest = switches.stop().unwrap().iter().map(Turns::longest).max().unwrap() as f64;
    let [fair, each, others] = [0, 1, 2].map(|n| after[n] - before[n]);
    eprintln!(
        "{answered:?}: {used:?}; by weight {fair} ns, each busy loop {each} ns, other threads of the VM {others} ns; the longest turn \
         {longest} ns"
    );
    assert!(answered.received + 2 >= answered.sent, "{answered:?}");
    // Half of the budget of 0.5, as no packet is pending.
    used.goes_first_for(0.25);
    let allowed = 0.2 * each + 2.0 * longest;
    assert!(
        (each - allowed..each + allowed + others).contains(&fair),
        "{fair} by weight, {each} of each busy loop"
    );
}

/// Without a pending packet a VM goes before others for half of its budget, however many of its vCPUs are busy: the other half is
/// kept for packets. So hardly a period may use up all of the budget; while an emulated CPU stands still, what it runs is charged.
fn vcpus_that_run_at_once_share_the_budget() {
    let (exhausted, _) = of_two_busy_vcpus(20_000, 10_000);
    assert!(exhausted < 0.25, "{exhausted}");
}

/// The kernel ends time slices at its ticks, 4 ms apart, and the turns of this budget are 1 ms long. A timer ends them. Turns whose timer
/// fired late, as where the emulated CPU stands still, are not counted: on a busy machine they were more than half. Without a timer nearly all
/// turns would be too long.
fn a_turn_shorter_than_a_tick_ends_in_time() {
    let (_, too_long) = of_two_busy_vcpus(4_000, 2_000);
    assert!(too_long < 0.2, "{too_long}");
}

/// In what share of the periods a guest with two busy vCPUs uses its budget up, and what share of its turns are too long although their
/// timer fired in time.
fn of_two_busy_vcpus(period_us: u32, budget_us: u32) -> (f64, f64) {
    let guest = &VM1.0;
    let _hogs = [CPU, OTHER_CPU].map(|cpu| load::hogs(&LAB.host, cpu, 2).unwrap());
    let busy =
        guest.spawn("echo started; for n in 1 2; do sh -c 'while :; do :; done' & done; wait").unwrap();
    busy.wait_for("started", START).unwrap();
    let scheduler = Scheduler::start(&format!("vm1=5000,{period_us},{budget_us}"));
    let used = scheduler.used();
    scheduler.stop();
    busy.kill().unwrap();
    let exhausted = used.exhausted * f64::from(period_us) / 1e6;
    eprintln!("{used:?}; budget used up in {exhausted:.3} of the periods");
    used.goes_first_for(f64::from(budget_us) / f64::from(period_us) / 2.0);
    assert!(used.fair > 0.3, "{used:?}");
    (exhausted, used.too_long)
}

fn others_get_shares_by_their_weights() {
    let scheduler = Scheduler::start("");
    let hogs = [hog(&format!("taskset -c {CPU}")), hog(&format!("taskset -c {CPU} nice -n 5"))];
    let pids = hogs.each_ref().map(|(_, pid)| *pid);
    let shares: Vec<f64> = (0..WINDOWS)
        .map(|_| {
            let used = used(&pids, 3);
            used[0] / (used[0] + used[1])
        })
        .collect();
    end(&hogs);
    scheduler.stop();
    eprintln!("{shares:?}");
    // kernel/sched/core.c, sched_prio_to_weight: 1024 and 335
    let share = median(&shares);
    assert!((0.70..0.80).contains(&share), "{share}");
}

/// The watchdog of sched_ext ends a scheduler that lets a thread wait for 10 s.
fn a_thread_of_least_weight_gets_its_turns() {
    let scheduler = Scheduler::start("");
    let hogs = [hog(&format!("taskset -c {CPU} nice -n -20")), hog(&format!("taskset -c {CPU} nice -n 19"))];
    let pids = hogs.each_ref().map(|(_, pid)| *pid);
    let turns: Vec<Vec<f64>> = (0..4).map(|_| used(&pids, 4)).collect();
    assert_eq!(state(), "enabled");
    end(&hogs);
    scheduler.stop();
    eprintln!("{turns:?}");
    assert!(turns.iter().all(|used| used[1] > 0.0 && used[1] < used[0] / 10.0), "{turns:?}");
}

/// A thread of little weight that waits already when many of great weight come. By weight alone it would wait for hours.
fn a_thread_of_least_weight_does_not_wait_for_those_that_come() {
    let scheduler = Scheduler::start("");
    let (least, least_pid) = hog(&format!("taskset -c {CPU} nice -n 19"));
    let many = LAB.host.spawn(&format!(
        "echo started; for n in $(seq 24); do taskset -c {CPU} nice -n -20 sh -c 'while :; do :; done' & done; wait"
    ));
    let many = many.unwrap();
    many.wait_for("started", START).unwrap();
    let turns: Vec<f64> = (0..3).map(|_| used(&[least_pid], 8)[0]).collect();
    assert_eq!(state(), "enabled");
    many.kill().unwrap();
    least.kill().unwrap();
    scheduler.stop();
    eprintln!("{turns:?}");
    assert!(turns.iter().all(|ran| *ran > 0.0), "{turns:?}");
}

/// Each process starts the next one and ends.
fn a_chain_of_processes_leaves_the_cpu_to_others() {
    let scheduler = Scheduler::start("");
    // CPUs that are all busy: nobody takes what waits.
    let all: Vec<(Child, u32)> = (0..4).map(|cpu| hog(&format!("taskset -c {cpu}"))).collect();
    let chain =
        format!("echo started; exec timeout 30 taskset -c {CPU} sh -c 'f() {{ f & }}; f; sleep 1000'");
    let chain = LAB.host.spawn(&chain).unwrap();
    chain.wait_for("started", START).unwrap();
    let used = used(&all.iter().map(|(_, pid)| *pid).collect::<Vec<_>>(), 14);
    assert_eq!(state(), "enabled");
    chain.kill().unwrap();
    end(&all);
    scheduler.stop();
    eprintln!("{used:?}");
    assert!(used[CPU as usize] > 1.0, "{used:?}");
}

/// Writer and reader of a pipe wake each other all the time and say that they sleep then (a synchronous wake-up).
fn threads_that_wake_each_other_leave_the_cpu_to_others() {
    let scheduler = Scheduler::start("");
    let both = format!("{CPU},{OTHER_CPU}");
    let pair = LAB.host.spawn(&format!(
        "echo started; exec taskset -c {both} sh -c 'dd if=/dev/zero bs=1 2>/dev/null | dd of=/dev/null bs=1 2>/dev/null'"
    ));
    let pair = pair.unwrap();
    pair.wait_for("started", START).unwrap();
    let hogs = [CPU, OTHER_CPU].map(|cpu| hog(&format!("taskset -c {cpu}")));
    let used = used(&hogs.each_ref().map(|(_, pid)| *pid), 16);
    assert_eq!(state(), "enabled");
    pair.kill().unwrap();
    end(&hogs);
    scheduler.stop();
    eprintln!("{used:?}");
    // Two CPUs for four threads.
    assert!(used.iter().all(|used| *used > 16.0 / 4.0), "{used:?}");
}

fn unbound_threads_share_all_cpus() {
    let scheduler = Scheduler::start("");
    // Six on four CPUs: nobody can keep a CPU of its own.
    let hogs: Vec<(Child, u32)> = (0..6).map(|_| hog("")).collect();
    let used = used(&hogs.iter().map(|(_, pid)| *pid).collect::<Vec<_>>(), 20);
    end(&hogs);
    scheduler.stop();
    eprintln!("{used:?}");
    let (least, most) =
        (used.iter().copied().fold(f64::MAX, f64::min), used.iter().copied().fold(0.0, f64::max));
    assert!(least > most / 2.5, "{used:?}");
}

/// The agent loads the scheduler, shows what the VM has got, and loads it again after it has been killed and after a CPU has come or gone.
fn a_policy_lets_the_agent_schedule_a_guest() {
    let guest = &VM1.0;
    let hogs = load::hogs(&LAB.host, CPU, HOGS).unwrap();
    let without = answered(guest);
    let policy =
        "[vm.vm1]\nclass = \"packets\"\nruntime = \"80ms\"\ndeadline = \"80ms\"\nperiod = \"100ms\"\n";
    LAB.host.put("/tmp/packets.toml", policy.as_bytes()).unwrap();
    let short = policy.replace("runtime = \"80ms\"", "worker_cpus = \"2\"\nruntime = \"20ms\"");
    LAB.host.put("/tmp/short.toml", short.as_bytes()).unwrap();
    run(&format!("mkdir -p -m 700 {STATE}; echo {BEGINS} >/dev/kmsg"));
    let agent = agent();
    let plan = run(&format!("{TEIJI} plan {STATE_AND_PINS} /tmp/packets.toml"));
    let promise =
        "vm1: packet deadline 80.0 ms; up to 80.0 ms of CPU in every 100 ms ahead of normal threads";
    assert!(plan.contains(promise) && !plan.contains("first"), "{plan}");
    // Its vCPUs are pinned, to different CPUs, and of its two workers (one is vsock's) one is not.
    let words = |plan: &str| plan.split_whitespace().collect::<Vec<_>>().join(" ");
    let unknown = "neither its deadlines nor the time from the kick to the host's network stack are guaranteed: \
                   vhost worker of vm1 may";
    assert!(words(&plan).contains(unknown), "{plan}");
    let bound = run(&format!("{TEIJI} plan {STATE_AND_PINS} /tmp/short.toml"));
    assert!(
        words(&bound).contains("its deadlines are not guaranteed: its threads are on CPUs 2-3"),
        "{bound}"
    );
    assert!(
        bound.contains("frames it sends reach the host's network stack within 160 ms of the kick"),
        "{bound}"
    );
    let applied = run(&format!("{TEIJI} apply {STATE_AND_PINS} --wait 60s /tmp/packets.toml 2>&1"));
    until("enabled");
    let with = answered(guest);
    eprintln!("{plan}\n{applied}");
    waits_less(&without, &with);
    let vm = |status: &Value| status["agent"]["packet_vms"][0].clone();
    let shown = vm(&status());
    // Two vCPUs, and a vhost worker at least.
    assert!(shown["name"] == "vm1" && shown["threads"].as_u64().unwrap() >= 3, "{shown}");
    assert!(shown["packets"].as_u64().unwrap() >= with.figures.received, "{shown}");
    assert_eq!(policies(), "7");

    let pid = agent.id().unwrap();
    run(&format!("kill -9 {pid}"));
    until("disabled");
    drop(agent);
    let agent = self::agent();
    until("enabled");
    // The kernel ends a scheduler of sched_ext that does not say what it does about that. It may be there again soon.
    let before = schedulers();
    run(
        "echo 0 > /sys/devices/system/cpu/cpu1/online; sleep 0.1; echo 1 > /sys/devices/system/cpu/cpu1/online",
    );
    run(&format!(
        "for i in $(seq 600); do [ $(cat /sys/kernel/sched_ext/enable_seq) = {before} ] || exit 0; sleep 0.1; done; exit 1"
    ));
    until("enabled");
    let answered = load::echo(&LAB.host, guest, 30.0, 60).unwrap();
    assert!(answered.received + 2 >= answered.sent, "{answered:?}");

    // Somebody ends it, as by SysRq-S: it stays so, and is told, until somebody asks for it.
    run("echo S > /proc/sysrq-trigger");
    until("disabled");
    run(&format!(
        "for i in $(seq 600); do {TEIJI} status {STATE_AND_PINS} | tr -s ' \\n' ' ' | grep -q 'no thread goes by the deadlines' && exit; \
         sleep 0.1; done; exit 1"
    ));
    run("sleep 3");
    assert_eq!(state(), "disabled");
    assert_eq!(vm(&status()), Value::Null);
    run(&format!("kill -HUP {}", agent.id().unwrap()));
    until("enabled");

    run(&format!("{TEIJI} rollback {STATE_AND_PINS} --wait 60s 2>&1"));
    until("disabled");
    assert_eq!(policies(), "0");
    run(&format!("kill {}", agent.id().unwrap()));
    let ended = agent.wait().unwrap();
    eprintln!("{}{}", ended.text(), ended.err_text());
    assert_eq!(ended.code, 0);
    hogs.kill().unwrap();
    nothing_was_warned_of();
}

const TEIJI: &str = "/mnt/bin/teiji";
const STATE: &str = "/tmp/vcpu-state";
const STATE_AND_PINS: &str = "--state /tmp/vcpu-state --pins /sys/fs/bpf/teiji-vcpu";

/// Waits until it answers.
fn agent() -> Child {
    let agent = LAB.host.spawn(&format!("exec {TEIJI} agent {STATE_AND_PINS} 2>&1")).unwrap();
    run(&format!(
        "for i in $(seq 600); do {TEIJI} status {STATE_AND_PINS} --json | jq -e .agent.pid && exit; sleep 0.1; done; exit 1"
    ));
    agent
}

fn status() -> Value {
    serde_json::from_str(&run(&format!("{TEIJI} status {STATE_AND_PINS} --json || true"))).unwrap()
}

/// The scheduling policy of all of the guest's vCPU threads and workers; 7 is SCHED_EXT (include/uapi/linux/sched.h).
fn policies() -> String {
    run("for task in $(grep -lE '^(CPU [0-9]+/KVM|vhost-[0-9]+)$' /proc/[0-9]*/task/*/comm); do \
         sed -n 's/^policy *: *//p' ${task%comm}sched; done | sort -u")
}

fn without_its_owner_the_kernel_schedules() {
    let scheduler = Scheduler::start(PROMISED);
    let pid = scheduler.driver.id().unwrap();
    run(&format!("kill -9 {pid}"));
    until("disabled");
    let answered = load::echo(&LAB.host, &VM1.0, 30.0, 60).unwrap();
    assert!(answered.received + 2 >= answered.sent, "{answered:?}");
    Scheduler::start(PROMISED).stop();
}

fn a_cpu_that_comes_or_goes_ends_it() {
    let scheduler = Scheduler::start(PROMISED);
    run("echo 0 > /sys/devices/system/cpu/cpu3/online");
    until("disabled");
    let ended = scheduler.driver.wait().unwrap();
    eprintln!("{}", ended.text());
    assert!(ended.text().contains("cpu 3 going offline"), "{}", ended.text());
    run("echo 1 > /sys/devices/system/cpu/cpu3/online");
    Scheduler::start(PROMISED).stop();
}
