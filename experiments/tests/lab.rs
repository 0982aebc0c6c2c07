//! teiji on the lab's KVM host with the newest kernel, and guests whose taps vhost-net serves, in one boot. Needs root; takes
//! minutes if the lab host is emulated.
//!
//! Packets may be lost or delayed, above all on a busy machine. So teiji's counts are compared with those of the load generator,
//! and its times with those of captures, within the bounds of promise 1.1.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

#[path = "lab/companions.rs"]
mod companions;
#[path = "lab/realtime.rs"]
mod realtime;
#[path = "lab/reasons.rs"]
mod reasons;
#[path = "lab/steering.rs"]
mod steering;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use teiji_experiments::load::{self, Figures, StallAt, Stalls};
use teiji_experiments::path::blame::{Acceptance, Judged};
use teiji_experiments::path::{
    MEMORY_KB, SHORT, accuracy, agrees, blame, comparable, enough, excused, few_excused, flood, lost,
    many_vms, only, preemptors, unseen,
};
use teiji_experiments::pcap::Pairing;
use teiji_experiments::programs;
use teiji_experiments::switches::{Switches, Turns};
use teiji_experiments::tracing::{Lab, Trace, Traced};
use teiji_experiments::verify;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest, GuestSpec, Kernel, NIC_PAIR, Spec};
use teiji_model::event::NicCounter;
use teiji_model::report::{Reason, Report, VmReport};

const ECHO: &str = "--vm vm1 --flow 'udp port 7'";

static LAB: Shared<Lab> = Shared::new("the lab", || {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("teiji");
    Lab::boot_as(&out, Spec { nic_pair: true, ..Spec::default() }).unwrap()
});
/// A guest with a running echo server.
static VM1: Shared<(Guest<'static>, Child)> = Shared::new("the guest vm1", || {
    let guest = LAB.host.guest(&load::placed("vm1")).unwrap();
    let server = load::echo_server(&LAB.host, &guest).unwrap();
    (guest, server)
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        every_event_of_a_flood_is_accounted_for,
        every_program_loads_on_the_newest_kernel,
        doctor_says_that_vms_can_be_traced,
        every_probe_runs,
        times_of_udp_echoes_agree_with_captures,
        times_of_pings_agree_with_captures,
        a_sip_server_that_stood_still_goes_on,
        times_of_sip_calls_agree_with_captures,
        hogs_on_the_vcpus_cpu_are_blamed,
        a_thread_that_runs_briefly_is_not_taken_for_all_of_a_wait,
        hogs_on_the_vhost_workers_cpu_are_blamed,
        the_wake_up_of_an_idle_guest_is_blamed,
        ctrl_c_ends_in_a_report_that_replay_repeats,
        snapshots_are_what_the_recording_says_until_then,
        companions::a_trace_goes_on_without_its_companions,
        two_traces_at_once_are_both_right,
        a_worker_stalled_while_it_signals_hides_no_request,
        a_full_disk_costs_only_the_recording,
        a_live_verdict_becomes_a_policy_that_fits_the_host,
        realtime::a_busy_guest_on_one_cpu_answers_all,
        a_vm_that_is_not_there_is_said_so,
        nothing_is_left_attached_after_kill_9,
        several_vms_are_traced_at_once,
        vms_that_come_and_go_are_followed,
        a_device_of_another_namespace_with_a_taps_number_is_no_tap,
        steering::frames_that_another_thread_takes_up_are_nobodys_work,
        // Last: they switch IPv6 off on the lab host.
        reasons::what_a_filter_drops_on_the_way_in_is_counted_with_its_place,
        reasons::what_a_filter_drops_on_the_way_out_is_counted_with_its_place,
        reasons::what_does_not_fit_the_tap_is_counted_as_the_tap_counts_it,
        reasons::every_answered_request_is_complete,
        reasons::what_the_guest_does_not_answer_is_the_guests,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

fn vm1() -> &'static Guest<'static> {
    &VM1.0
}

/// Sends requests to the guest that a trace watches. Fails unless all were sent and at least one was answered.
/// [`all_are_accounted_for`] checks the trace.
fn echo(guest: &Guest<'_>, rate: f64, count: u64) -> Figures {
    let called = load::echo(&LAB.host, guest, rate, count).unwrap();
    assert_eq!((called.sent, called.strange), (count, 0), "{called:?}");
    assert!(called.received > 0, "{called:?}");
    called
}

/// Traces while `load` runs, which returns what the load generator counted, and anything else. See [`comparable`].
fn traced<T>(stem: &str, args: &str, load: impl Fn(&Trace<'_>) -> (Figures, T)) -> (Traced, Figures, T) {
    vm1(); // It has to be there when the trace begins.
    let make = || {
        let trace = Trace::start(&LAB, stem, args, true).unwrap();
        let (called, other) = load(&trace);
        (trace.stop().unwrap(), called, other)
    };
    comparable(make, |(traced, called, _)| few_excused(traced, called.sent, called.answered())).unwrap()
}

/// The counts of the trace equal the load generator's: as many complete as were answered, the rest unanswered. Of these
/// as many may be missing as are [`excused`].
#[track_caller]
fn all_are_accounted_for(traced: &Traced, sent: u64, answered: RangeInclusive<u64>) {
    let report = &traced.report;
    let vm = only(report).unwrap();
    let (r, missed) = (vm.requests, unseen(traced).unwrap());
    assert_eq!(lost(report), 0, "events lost: {:?}", report.counters);
    let left_out = &vm.left_out;
    eprintln!("left out: {left_out:?}");
    agrees("seen", r.seen, sent, missed).unwrap_or_else(|e| panic!("{e}: {left_out:?}"));
    agrees("complete", r.complete, answered.clone(), excused(traced).unwrap())
        .unwrap_or_else(|e| panic!("{e}: {left_out:?}"));
    if missed == 0 {
        let unanswered = sent - answered.end()..=sent - answered.start();
        assert!(unanswered.contains(&r.unanswered), "of {sent}, {answered:?} answered; the trace: {r:?}");
    }
}

/// What `teiji doctor --json` says: asked once, as the verifier of an emulated host takes most of a minute.
static DOCTOR: Shared<String> = Shared::new("doctor", || {
    LAB.host.run("modprobe vfio-pci && /mnt/bin/teiji doctor --json").unwrap().ok().unwrap()
});

fn every_program_loads_on_the_newest_kernel() {
    verify::accepts_every_program(&LAB.host, Kernel::Newest, [6, 16]).unwrap();
}

fn doctor_says_that_vms_can_be_traced() {
    let doctor: serde_json::Value = serde_json::from_str(&DOCTOR).unwrap();
    assert_eq!(doctor["works"], true, "{doctor:#}");
    let missing: Vec<_> =
        doctor["capabilities"].as_array().unwrap().iter().filter(|c| c["present"] == false).collect();
    let names: Vec<_> = missing.iter().map(|c| c["name"].as_str().unwrap()).collect();
    // An emulated machine cannot change the frequency of its CPUs.
    assert_eq!(names, ["CPU frequency governors"], "{missing:?}");
}

fn times_of_udp_echoes_agree_with_captures() {
    times_agree(&accuracy::CASES[0]);
}

fn times_of_pings_agree_with_captures() {
    times_agree(&accuracy::CASES[1]);
}

/// On a busy machine an emulated guest stands still for seconds again and again.
fn a_sip_server_that_stood_still_goes_on() {
    let watched = "-watchdog_major_threshold 800 -watchdog_major_maxtriggers 1";
    let stood_still = |sipp: &str| {
        let server = LAB
            .host
            .spawn(&format!("exec {sipp} -sn uas -i 127.0.0.1 -p 5070 {watched} >/dev/null"))
            .unwrap();
        let pid = server.id().unwrap();
        let stop = format!("kill -STOP {pid}; sleep 1; kill -CONT {pid}; sleep 0.6");
        LAB.host
            .run(&format!(
                "until grep -q ':13CE ' /proc/net/udp; do sleep 0.2; done; for i in 1 2 3 4; do {stop}; done"
            ))
            .unwrap();
        server
    };
    let goes_on = stood_still(load::SIPP);
    assert!(!goes_on.ended(), "sipp ended with {:?}", goes_on.code());
    goes_on.kill().unwrap();
    goes_on.wait().unwrap();
    // Otherwise this test shows nothing.
    let ended = stood_still("sipp -nostdin").wait().unwrap();
    assert!(String::from_utf8_lossy(&ended.stderr).contains("watchdog"), "{ended:?}");
}

fn times_of_sip_calls_agree_with_captures() {
    let sip = load::sip_server(&LAB.host, vm1()).unwrap();
    times_agree(&accuracy::CASES[2]);
    drop(sip);
}

/// The time of every request is between those of the captures on both sides, whatever else the machine does; and the
/// median agrees with the capture in the same place.
fn times_agree(case: &accuracy::Case) {
    let make = || accuracy::run(&LAB, vm1(), case, &SHORT).unwrap();
    let a = comparable(make, accuracy::Agreement::few_excused).unwrap();
    eprintln!("{}", serde_json::to_string(&a).unwrap());
    let requests = a.requests as u64;
    if case.pairing == Pairing::Sip {
        // sipp gives up a call whose answers come late, and ends after two minutes.
        assert!(requests <= SHORT.requests, "{}: {requests} by the capture", a.case);
    } else {
        assert_eq!(requests, SHORT.requests, "{}: by the capture", a.case);
    }
    enough(a.answered as u64, SHORT.requests).unwrap();
    a.check(0.999, 0).unwrap();
    let (off, total) = (a.off_p50_us.abs(), a.total_p50_us);
    assert!(off <= (0.02 * total).max(50.0), "{}: typically {off} µs off in {total} µs", a.case);
    assert!(a.unattributed <= 0.01, "{}: {} unattributed", a.case, a.unattributed);
}

fn hogs_on_the_vcpus_cpu_are_blamed() {
    drop(is_blamed(&blame::SITUATIONS[0]));
}

/// A thread with a higher priority than all others on the CPU runs for some µs every 2 ms, or more rarely if that takes it
/// longer. The scheduler then chooses anew, so this thread is often the last one to run before the vCPU. Its share of the waits
/// must be what the kernel's trace points say.
fn a_thread_that_runs_briefly_is_not_taken_for_all_of_a_wait() {
    // If this machine stops the emulated CPU during a turn, the thread is charged with that time. So it sleeps for 12 times what its
    // last turn took: its part of the CPU is 8 % then, too.
    let ticks = r#"exec chrt -f 50 perl -e '
        $| = 1;
        open $file, "/proc/self/schedstat" or die $!;
        sub ran { sysseek $file, 0, 0; sysread $file, $text, 99; (split / /, $text)[0] }
        print "ticks\n";
        for ($before = ran();; $before = $now) {
            $now = ran();
            $rest = 12e-9 * ($now - $before);
            select undef, undef, undef, $rest < 0.002 ? 0.002 : $rest;
        }'"#;
    let (guest, situation) = (vm1(), blame::SITUATIONS[0].overlapping());
    let ticks = LAB.host.spawn(&format!("taskset -cp {} $$; {ticks}", load::VCPU_CPU)).unwrap();
    ticks.wait_for("ticks\n", Duration::from_secs(60)).unwrap();
    // On a busy machine a run may have few waits that end with this thread.
    let tells = (1..=3).any(|run| {
        let switches = Switches::start(&LAB, load::VCPU_CPU, &guest.vcpu_tids()[..1]).unwrap();
        let judged = blame::run(&LAB, guest, &situation, run, &SHORT).unwrap();
        let turns = switches.stop().unwrap();
        names_are_fair(&judged, guest, &turns[0])
    });
    assert!(tells, "too few waits ended with the thread that runs briefly");
    drop(ticks);
}

/// Fails unless whoever is named for a wait is named as the trace points say. Returns whether the run could show that.
fn names_are_fair(judged: &Judged, guest: &Guest<'_>, turns: &Turns) -> bool {
    assert_eq!(judged.lost, 0);
    assert_ne!(judged.acceptance(), Acceptance::Wrong, "{}", judged.shown());
    let recording = judged.recording.as_deref().unwrap();
    let shares = preemptors::shares(recording, guest.pid(), turns, &judged.hogs).unwrap();
    eprintln!("behind the busy loops: {shares:#?}");
    let all = [Some(shares.of_readings), shares.ended_by_others, Some(shares.of_requests)];
    for share in all.into_iter().flatten() {
        assert!(share.is_fair(), "{share:?} is not fair; {shares:#?}: {}", judged.shown());
    }
    // What the report names is what the requests say.
    let waits = judged.waits_behind_hogs.unwrap();
    match judged.reported_behind_hogs {
        Some(reported) => {
            assert!(
                (reported - waits).abs() <= 0.02,
                "{reported}, by the requests {waits}: {}",
                judged.shown()
            );
        }
        None => eprintln!("the guest took so much of the time that the waits are no finding"),
    }
    shares.tell()
}

fn hogs_on_the_vhost_workers_cpu_are_blamed() {
    drop(is_blamed(&blame::SITUATIONS[1]));
}

fn the_wake_up_of_an_idle_guest_is_blamed() {
    // All emulated CPUs wake up in about the same time, so the vCPU's wake-up is only slightly longer than those of the worker, and on
    // a busy machine not always. On a CPU that leaves its idle state slowly it is the longest whatever else this machine does.
    let slow = load::slow_idle(&LAB.host).unwrap();
    for judged in is_blamed(&blame::SITUATIONS[2]) {
        assert!(judged.asleep_us() >= 3_000.0, "the CPU was not slow: {}", judged.shown());
    }
    drop(slow);
}

/// In every run the verdict blames the cause, or the cause is the greatest part of what the host's threads did: the
/// emulated guest's own time fluctuates with other work of this machine, and the verdict may rightly blame that. If the
/// cause is the greatest by the median alone, further runs have to tell: see [`blame::accepted`]. Waits for a CPU are behind the
/// threads that had it, whatever the verdict is. That the verdict itself blames the cause is a claim of the experiment
/// `path`, on an otherwise idle machine.
fn is_blamed(s: &blame::Situation) -> Vec<Judged> {
    let (mut runs, mut all) = (Vec::new(), Vec::new());
    for run in 1.. {
        let judged = blame::run(&LAB, vm1(), s, run, &SHORT).unwrap();
        eprintln!("{}", judged.shown());
        assert_eq!(judged.lost, 0);
        runs.push(judged.acceptance());
        let accepted = blame::accepted(&runs);
        assert_ne!(accepted, Some(false), "run {run}, {runs:?}: {}", judged.shown());
        // Capped: whatever runs when this machine stops the CPU for half a second is charged with that wait.
        let share = judged.capped_behind_hogs.unwrap_or(1.0);
        assert!(share >= 0.9, "run {run}: {share} of the waits were behind the hogs: {}", judged.shown());
        // The report names the threads that the requests say. A finding leaves out stages that are a small part of it.
        if let Some((reported, waits)) = judged.reported_behind_hogs.zip(judged.waits_behind_hogs) {
            assert!(reported >= waits - 0.1, "run {run}: {reported}, not {waits}: {}", judged.shown());
        }
        all.push(judged);
        if accepted.is_some() {
            break;
        }
    }
    all
}

/// A NIC that refuses what is larger than its MTU, and counts it.
struct LossyNic {
    name: String,
    /// The NIC at the other end of the wire, which sends them.
    sender: String,
}

impl LossyNic {
    fn new() -> LossyNic {
        let [name, sender] = NIC_PAIR.map(|mac| {
            let find = format!("modprobe e1000e; udevadm settle; basename $(dirname $(grep -l {mac} /sys/class/net/*/address))");
            LAB.host.run(&find).unwrap().ok().unwrap()
        });
        LAB.host
            .run(&format!("ip link set {name} up; ip link set {sender} mtu 9000 up"))
            .unwrap()
            .ok()
            .unwrap();
        LossyNic { name, sender }
    }

    /// The kernel's own count.
    fn lost(&self) -> u64 {
        let count = format!("cat /sys/class/net/{}/statistics/rx_errors", self.name);
        LAB.host.run(&count).unwrap().ok().unwrap().parse().unwrap()
    }

    /// Has the NIC lose so many packets, and waits until the driver has counted them.
    fn loses(&self, packets: u64) {
        let (ping, before) =
            (format!("ping -q -i 0.2 -s 4000 -c {packets} -I {} ff02::1", self.sender), self.lost());
        LAB.host.run(&ping).unwrap();
        let begun = Instant::now();
        while self.lost() < before + packets {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} of {packets} lost", self.lost() - before);
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for LossyNic {
    fn drop(&mut self) {
        // If this fails, the lab host ends soon anyway.
        let _ = LAB.host.run(&format!("ip link set {} down; ip link set {} down", self.name, self.sender));
    }
}

fn ctrl_c_ends_in_a_report_that_replay_repeats() {
    let nic = LossyNic::new();
    let (traced, called, lost_before) = traced("ctrl-c", ECHO, |trace| {
        let lost_before = nic.lost();
        // No capabilities, and none can be regained. The report and the recording are renamed by processes of their own.
        for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
            let caps = u64::from_str_radix(&trace.status(set).unwrap(), 16).unwrap();
            assert_eq!(caps, 0, "{set} is {caps:x} once the probes are attached");
        }
        assert_eq!(trace.status("NoNewPrivs").unwrap(), "1");
        assert!(!trace.status("Uid").unwrap().split_whitespace().any(|uid| uid == "0"));
        let called = echo(vm1(), 50.0, 100);
        nic.loses(7);
        (called, lost_before)
    });
    assert_eq!(traced.code, 0, "{}", traced.printed);
    all_are_accounted_for(&traced, called.sent, called.answered());
    let [loss] = &traced.report.nic_losses[..] else { panic!("{:?}", traced.report.nic_losses) };
    assert_eq!(
        (loss.device.as_str(), loss.counter, loss.packets),
        (nic.name.as_str(), NicCounter::RxErrors, nic.lost() - lost_before)
    );
    assert!(loss.packets >= 7, "{loss:?}");

    let replay = "setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all \
                  /mnt/bin/teiji replay /tmp/ctrl-c.teiji --json";
    let replayed = LAB.host.run(&format!("chmod a+r /tmp/ctrl-c.teiji; {replay}")).unwrap().ok().unwrap();
    let replayed: Report = serde_json::from_str(&replayed).unwrap();
    assert_eq!(replayed, traced.report, "replay differs from the live report");
}

/// While a trace runs it prints what it has seen so far, and that is what its unfinished recording says.
fn snapshots_are_what_the_recording_says_until_then() {
    // Until the script has ended, however long probes take to load.
    let load = LAB.host.spawn(&load::echo_command(vm1(), 20.0, 1_000_000)).unwrap();
    // Probes take seconds to load, so the first report is waited for; the file has had what it says two seconds later.
    let script = format!(
        "cd /tmp; rm -f live.* cut.*; /mnt/bin/teiji trace {ECHO} --every 500ms --json --record live.teiji \
         >live.json 2>live.log & trace=$!; until [ -s live.json ] || [ ! -d /proc/$trace ]; do sleep 0.1; done; \
         sleep 2; for n in 1 2 3 4 5; do sleep 1.3; cp live.teiji.*.partial cut.$n; done; kill -INT $trace; wait $trace; \
         cat live.json; echo; for n in 1 2 3 4 5; do /mnt/bin/teiji replay --unfinished --json cut.$n 2>>cut.log | \
         tr -d '\\n' && echo; done; cat cut.log live.log >&2"
    );
    let ran = LAB.host.run_for(&script, Duration::from_secs(300)).unwrap();
    assert!(!load.ended(), "there was no load at the end");
    drop(load);
    // By then the guest has answered all, and the next test has it for itself.
    load::echo(&LAB.host, vm1(), 20.0, 5).unwrap();
    let text = ran.text();
    let (live, cut) = text.split_once("\n\n").unwrap_or_else(|| panic!("{text} {}", ran.err_text()));
    let reports =
        |text: &str| -> Vec<Report> { text.lines().map(|l| serde_json::from_str(l).unwrap()).collect() };
    let (live, cut) = (reports(live), reports(cut));
    assert!(live.len() >= 5 && cut.len() == 5, "{} live, {} cut: {}", live.len(), cut.len(), ran.err_text());
    for report in &cut {
        let same = live.iter().find(|r| r.counters.ended == report.counters.ended);
        assert_eq!(same, Some(report), "the trace printed none that ends there");
    }
    let complete: Vec<u64> = live.iter().map(|r| r.vms[0].requests.complete).collect();
    assert!(complete.is_sorted() && complete.first() < complete.last(), "{complete:?}");
    assert!(ran.err_text().contains("is not complete"), "{}", ran.err_text());
}

fn a_live_verdict_becomes_a_policy_that_fits_the_host() {
    let guest = vm1();
    let trace =
        LAB.host.spawn(&format!("exec /mnt/bin/teiji trace {ECHO} --suggest 2>&1 >/tmp/fix.toml")).unwrap();
    trace.wait_for("tracing,", Duration::from_secs(120)).unwrap();
    let hogs = load::hogs(&LAB.host, load::VCPU_CPU, 4).unwrap();
    // One at a time: in a guest that does not keep up, waits for its vCPU cannot be told from its own time.
    load::echo_one_by_one(&LAB.host, guest, 40.0, 150).unwrap();
    drop(hogs);
    LAB.host.run(&format!("kill -INT {}", trace.id().unwrap())).unwrap().ok().unwrap();
    trace.wait().unwrap().ok().unwrap();
    let policy = LAB.host.run("cat /tmp/fix.toml").unwrap().ok().unwrap();
    assert!(policy.contains("class = \"realtime\""), "{policy}");
    let plan = LAB.host.run("/mnt/bin/teiji plan /tmp/fix.toml").unwrap();
    assert_eq!(plan.code, 0, "{policy}\n{}", plan.err_text());
    assert!(plan.text().contains("FIFO"), "{}", plan.text());
}

/// That a program is attached is not enough: on some kernels an fentry program attaches to a function but never runs.
fn every_probe_runs() {
    let (lab, guest) = (&*LAB, vm1());
    lab.host.run("sysctl -q kernel.bpf_stats_enabled=1").unwrap().ok().unwrap();
    let trace = Trace::start(lab, "probes", ECHO, false).unwrap();
    load::echo(&lab.host, guest, 50.0, 50).unwrap();
    // The kernel drops this packet because no socket receives it.
    lab.host.run("echo dropped > /dev/udp/127.0.0.1/9").unwrap();
    let shown = lab.host.run("bpftool prog show --json").unwrap().ok().unwrap();
    lab.host.run("sysctl -q kernel.bpf_stats_enabled=0").unwrap().ok().unwrap();
    trace.stop().unwrap();
    let all: Vec<serde_json::Value> = serde_json::from_str(&shown).unwrap();
    let runs: Vec<(&str, u64)> = all
        .iter()
        .filter_map(|p| Some((p["name"].as_str()?, p["run_cnt"].as_u64().unwrap_or(0))))
        .filter(|(name, _)| name.starts_with("on_"))
        .collect();
    eprintln!("{runs:?}");
    let hooks = DOCTOR.matches("fentry in ").count() + DOCTOR.matches("fexit in ").count();
    assert!(runs.len() > hooks && hooks > 5, "{hooks} functions, {} programs: {runs:?}", runs.len());
    // The lab's links have no queue, this guest's tap is served by vhost, and it was given no NIC: `configurations.rs` and
    // `passthrough.rs` follow requests to guests of the others, which are complete only if each of these probes runs. (Names have
    // at most 15 characters.)
    let begins = ["on_qdisc", "on_vmm", "on_macvtap", "on_device"];
    let elsewhere = |name: &str| begins.iter().any(|begin| name.starts_with(begin));
    let idle: Vec<_> = runs.iter().filter(|(name, n)| *n == 0 && !elsewhere(name)).collect();
    assert!(idle.is_empty(), "attached and never run: {idle:?}");
}

fn two_traces_at_once_are_both_right() {
    let guest = vm1();
    let make = || {
        let first = Trace::start(&LAB, "first", ECHO, true).unwrap();
        let second = Trace::start(&LAB, "second", ECHO, true).unwrap();
        let called = echo(guest, 50.0, 100);
        ([first.stop().unwrap(), second.stop().unwrap()], called)
    };
    let (both, called) = comparable(make, |([first, second], called)| {
        let few = |traced| few_excused(traced, called.sent, called.answered());
        Ok(few(first)? & few(second)?)
    })
    .unwrap();
    for traced in &both {
        assert_eq!(traced.code, 0, "{}", traced.printed);
        all_are_accounted_for(traced, called.sent, called.answered());
    }
}

/// A worker may lose its CPU after it has put packets into the ring and before it knows that no interrupt is wanted. By
/// then the guest may have handled them and halted again.
fn a_worker_stalled_while_it_signals_hides_no_request() {
    let vm1 = vm1();
    let make = || {
        let trace = Trace::start(&LAB, "stalled", ECHO, true).unwrap();
        let stalled = load::stall_worker(&LAB.host, vm1, StallAt::Notify).unwrap();
        let stalls = stalled.until_often_enough(|| Ok(echo(vm1, 200.0, 1000))).unwrap();
        (trace.stop().unwrap(), stalls)
    };
    let few = |(traced, s): &(Traced, Stalls)| few_excused(traced, s.sent, s.answered.clone());
    let (traced, stalls) = comparable(make, few).unwrap();
    assert_eq!(traced.code, 0, "{}", traced.printed);
    all_are_accounted_for(&traced, stalls.sent, stalls.answered);
}

/// How often [`a_full_disk_costs_only_the_recording`] is tried.
const FULL_DISKS: u32 = 10;

/// No recording of that trace is left to show which of its events were late, and which requests were on their path when runs of
/// its probes were skipped. A trace with such events or requests proves nothing here, and another is made: a fault that causes
/// them does so each time. Nor does a recording show which workers were stalled; that requests are rightly left out for that,
/// other tests show.
fn a_full_disk_costs_only_the_recording() {
    for attempt in 1.. {
        let (traced, called) = traced_on_a_full_disk();
        let vm = only(&traced.report).unwrap();
        let (late, in_doubt) = (traced.report.late, vm.left_out_for(Reason::EventsLost));
        if (late, in_doubt) == (0, 0) || attempt == FULL_DISKS {
            let (r, left_out, missed) = (vm.requests, &vm.left_out, unseen(&traced).unwrap());
            let unknown = vm.left_out_for(Reason::ArrivalUnknown) + vm.left_out_for(Reason::OutOfOrder);
            assert!(unknown * 4 <= r.seen && lost(&traced.report) == 0, "{r:?} {left_out:?}");
            agrees("seen", r.seen, called.sent, missed).unwrap_or_else(|e| panic!("{e}: {left_out:?}"));
            agrees("complete", r.complete, called.answered(), unknown + missed)
                .unwrap_or_else(|e| panic!("{e}: {left_out:?}"));
            return;
        }
        eprintln!("attempt {attempt}: {late} late events, {in_doubt} requests in doubt");
    }
}

/// The trace whose disk is full.
fn traced_on_a_full_disk() -> (Traced, Figures) {
    let (lab, guest) = (&*LAB, vm1());
    let make = "mkdir -p /root/small && mount -t tmpfs -o size=1m small /root/small && \
                ! dd if=/dev/zero of=/root/small/filler bs=4k status=none 2>/dev/null";
    lab.host.run(make).unwrap().ok().unwrap();
    let trace = Trace::start(lab, "full", &format!("{ECHO} --record /root/small/r.teiji"), false).unwrap();
    // Longer than the second after which the recording is first written. A short trace is likely to have no late event.
    let called = echo(guest, 50.0, 150);
    let traced = trace.stop().unwrap();
    let left = lab.host.run("ls /root/small; umount /root/small").unwrap().ok().unwrap();
    assert_eq!(traced.code, 1, "{}", traced.printed);
    assert!(
        traced.printed.contains("/root/small/r.teiji") && traced.printed.contains("No space"),
        "{}",
        traced.printed
    );
    assert_eq!(left, "filler", "a part of the recording was left");
    (traced, called)
}

fn a_vm_that_is_not_there_is_said_so() {
    // The message names a VM that exists.
    vm1();
    let trace = LAB.host.run("/mnt/bin/teiji trace --vm nobody --for 1s").unwrap();
    assert_eq!(trace.code, 1);
    let printed = trace.err_text();
    assert!(printed.contains("nobody") && printed.contains("vm1"), "{printed}");
}

fn nothing_is_left_attached_after_kill_9() {
    vm1();
    // The names of teiji's programs begin with `on_`. The kernel frees programs some time after their owner has ended, those of former
    // tests as well. A link keeps its program.
    let freed = || {
        let freed = "until all=$(bpftool prog list) && ! grep ' name on_' <<<\"$all\"; do sleep 0.5; done";
        LAB.host.run_for(freed, Duration::from_secs(120)).unwrap().ok().unwrap();
    };
    freed();
    let trace = Trace::start(&LAB, "killed", ECHO, false).unwrap();
    LAB.host.run("bpftool prog list | grep ' name on_'").unwrap().ok().unwrap();
    LAB.host.run(&format!("kill -9 {}", trace.pid().unwrap())).unwrap().ok().unwrap();
    trace.wait_end().unwrap();
    freed();
}

/// Also checks that a trace ends when a VM dies: both need the second guest.
fn several_vms_are_traced_at_once() {
    let boot = || {
        // Its worker does not share a CPU with that of vm1: they would preempt each other within a probe, and runs of it be skipped.
        let vm2 = LAB.host.guest(&GuestSpec { vhost_cpu: Some(3), ..GuestSpec::named("vm2") }).unwrap();
        let server = load::echo_server(&LAB.host, &vm2).unwrap();
        (vm2, server)
    };
    let (vm2, server) = boot();
    let make = || many_vms::run(&LAB, &[vm1(), &vm2], &SHORT).unwrap();
    let few = |t: &many_vms::ManyVms| {
        eprintln!("{}", serde_json::to_string(t).unwrap());
        let ([sent, answered, late], [seen, complete]) = (t.called, t.requests);
        assert_eq!((t.vms, t.lost, t.left_out_otherwise), (2, 0, 0), "{t:?}");
        assert!(t.skips_agree && answered > 0, "{t:?}");
        agrees("seen", seen, sent, t.unseen)?;
        agrees("complete", complete, answered..=answered + late, t.excused)?;
        // Not at most a quarter, as in `few_excused`: an event that comes late puts requests of both VMs in doubt.
        Ok(complete > answered / 2)
    };
    let t = comparable(make, few).unwrap();
    assert!(t.peak_kb < MEMORY_KB, "{} kB", t.peak_kb);
    let mut vm2 = Some((vm2, server));
    a_vm_that_dies_ends_the_trace(|| vm2.take().unwrap_or_else(boot));
}

/// `vm2` returns a guest of that name with its echo server.
fn a_vm_that_dies_ends_the_trace(mut vm2: impl FnMut() -> (Guest<'static>, Child)) {
    let make = || {
        let (guest, _server) = vm2();
        let trace = Trace::start(&LAB, "dies", "--vm vm2 --flow 'udp port 7'", true).unwrap();
        let called = echo(&guest, 50.0, 50);
        LAB.host.run(&format!("kill -9 {}", guest.pid())).unwrap().ok().unwrap();
        (trace.wait().unwrap(), called, guest.pid())
    };
    let (traced, called, pid) =
        comparable(make, |(traced, called, _)| few_excused(traced, called.sent, called.answered())).unwrap();
    assert_eq!(traced.code, 1, "{}", traced.printed);
    assert!(traced.printed.contains("vm2") && traced.printed.contains("ended"), "{}", traced.printed);
    assert_eq!(traced.report.counters.vanished, [pid]);
    all_are_accounted_for(&traced, called.sent, called.answered());
}

/// On the kernel of this machine.
fn every_event_of_a_flood_is_accounted_for() {
    // Builds missing programs; `flood` is in the same folder.
    let folder = programs::folder().unwrap();
    assert_eq!(Path::new(env!("CARGO_BIN_EXE_flood")).parent().unwrap(), folder);
    let f = flood::run(&folder, SHORT.flood).unwrap();
    eprintln!("{}", serde_json::to_string(&f).unwrap());
    assert!(f.exact(), "{f:?}");
    assert_eq!(f.sent, SHORT.flood);
}

/// One trace sees a VM start, be killed, and start again as another process. Each is counted by itself, also in the
/// recording; the trace finds them although it has no privileges.
fn vms_that_come_and_go_are_followed() {
    let make = || {
        let trace = Trace::start(&LAB, "follow", "--flow 'udp port 7'", true).unwrap();
        let mut called = Vec::new();
        for _ in 0..2 {
            let guest = LAB.host.guest(&GuestSpec::named("late")).unwrap();
            let server = guest.spawn("exec teiji-lab udp-echo --port 7").unwrap();
            server.wait_for("serving", Duration::from_secs(60)).unwrap();
            // Looking for VMs takes at most a tenth of a CPU: on a busy machine a guest may be up before it is followed.
            let followed = format!("(pid {}) is followed with NICs: 1, vCPUs: 1", guest.pid());
            trace.wait_for(&followed, Duration::from_secs(120)).unwrap();
            called.push((guest.pid(), echo(&guest, 50.0, 100)));
            guest.kill().unwrap();
        }
        let old = echo(vm1(), 50.0, 100);
        (trace.stop().unwrap(), called, old)
    };
    let few = |(traced, called, old): &(Traced, Vec<(u32, Figures)>, Figures)| {
        let all = || called.iter().map(|(_, figures)| figures).chain([old]);
        let answered: u64 = all().map(|figures| *figures.answered().end()).sum();
        few_excused(traced, all().map(|figures| figures.sent).sum(), 0..=answered)
    };
    let (traced, called, old) = comparable(make, few).unwrap();
    assert_eq!(traced.code, 1, "the last process of the VM has ended: {}", traced.printed);
    let report = &traced.report;
    assert_eq!(lost(report), 0, "events lost: {:?}", report.counters);
    let missed = unseen(&traced).unwrap();
    let count = |vm: &VmReport, called: &Figures| {
        agrees("seen", vm.requests.seen, called.sent, missed).unwrap();
        agrees("complete", vm.requests.complete, called.answered(), excused(&traced).unwrap())
            .unwrap_or_else(|e| panic!("{e}: {:?}", vm.left_out));
    };
    let late: Vec<&VmReport> = report.vms.iter().filter(|vm| vm.name == "late").collect();
    assert_eq!(late.len(), 2, "{}", traced.printed);
    for (vm, (pid, called)) in late.iter().zip(&called) {
        assert_eq!(vm.pid, *pid);
        assert!(vm.came < vm.ended && vm.came.is_some(), "{:?} to {:?}", vm.came, vm.ended);
        count(vm, called);
    }
    assert!(late[0].ended < late[1].came, "the first has ended before the second comes");
    let first = report.vms.iter().find(|vm| vm.name == "vm1").unwrap();
    assert_eq!((first.came, first.ended), (None, None));
    count(first, &old);
    let (_, replayed) = teiji_experiments::tracing::requests(traced.recording.as_deref().unwrap()).unwrap();
    assert!(teiji_experiments::tracing::printed(&replayed) == *report, "replay differs from the live report");
    // The process that finds VMs ends with the trace, which waits for it for two seconds only.
    let ends = "while pgrep -a teiji-follow; do sleep 0.2; done";
    LAB.host.run_for(ends, Duration::from_secs(60)).unwrap().ok().unwrap();
}

/// Network namespaces number their devices by themselves.
fn a_device_of_another_namespace_with_a_taps_number_is_no_tap() {
    let tap = &vm1().taps()[0];
    let script = format!(
        "set -e; n=$(cat /sys/class/net/{tap}/ifindex); ip netns add a; ip netns add b; \
         ip -n a link add index $n name in type veth peer name out; ip -n a link set out netns b; \
         ip -n a addr add 10.77.0.1/24 dev in; ip -n b addr add 10.77.0.2/24 dev out; \
         ip -n a link set in up; ip -n b link set out up; ip -n a -o link show dev in | cut -d: -f1; cat /sys/class/net/{tap}/ifindex"
    );
    let numbers = LAB.host.run(&script).unwrap().ok().unwrap();
    let numbers: Vec<&str> = numbers.split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "the device has the number of the tap");
    let send = "ip netns exec b bash -c 'for i in $(seq 200); do echo x >/dev/udp/10.77.0.1/7; done' 2>/dev/null; \
                ip netns exec a cat /sys/class/net/in/statistics/rx_packets";
    let count =
        |command: &str| -> u64 { LAB.host.run(command).unwrap().ok().unwrap().trim().parse().unwrap() };
    let (traced, called, received) = traced("namespaces", ECHO, |_| {
        let before = count("ip netns exec a cat /sys/class/net/in/statistics/rx_packets");
        let received = count(send) - before;
        assert!(received >= 200, "{received} packets came to the device");
        (echo(vm1(), 50.0, 50), received)
    });
    LAB.host.run("ip netns del a; ip netns del b").unwrap().ok().unwrap();
    all_are_accounted_for(&traced, called.sent, called.answered());
    let sent = &only(&traced.report).unwrap().outbound;
    // The answers of the guest, and perhaps what the guest says of its own about port 7.
    assert!(sent.packets + sent.incomplete < called.received + 100, "{sent:?} beside {received}");
}
