//! `teiji diagnose` in the lab: faults are made, and it has to name each, before all but waits for a CPU; without them it has to name
//! none in most looks. Needs root; takes minutes if the lab host is emulated.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use teiji_experiments::load::{self, VCPU_CPU, VHOST_CPU};
use teiji_experiments::tracing::Lab;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest};

static LAB: Shared<Lab> = Shared::new("the lab", || {
    Lab::boot(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("diagnose")).unwrap()
});
/// A guest whose vCPU and vhost worker have a CPU each, an echo server in it, and a light load.
static VM1: Shared<(Guest<'static>, Vec<Child>)> = Shared::new("the guest vm1", || {
    let guest = LAB.host.guest(&load::placed("vm1")).unwrap();
    let server = load::echo_server(&LAB.host, &guest).unwrap();
    let load = LAB.host.spawn(&load::echo_command(&guest, 30.0, 1_000_000)).unwrap();
    (guest, vec![server, load])
});

/// In an emulated machine, programs are first read over a network file system.
const START: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        a_healthy_vm_has_no_fault,
        a_recording_shows_what_was_seen,
        time_adds_up_and_agrees_with_the_kernels_own,
        what_probes_count_agrees_with_kvms_own,
        busy_loops_on_its_cpu_are_named,
        a_worker_that_waits_is_told_from_a_vcpu,
        a_quota_is_told_from_busy_loops,
        a_vm_that_is_stopped_frozen_or_paused_is_told,
        a_guest_that_is_busy_is_told,
        a_qdisc_that_delays_is_told,
        a_rate_limit_is_told_with_what_the_kernel_counts,
        a_migration_is_told,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

fn run(sh: &str) -> String {
    LAB.host.run(sh).unwrap().ok().unwrap().trim().to_owned()
}

/// The result for vm1 after this many seconds.
fn diagnosed(seconds: u32) -> Value {
    let _ = &VM1.0;
    let printed = run(&format!(
        "/mnt/bin/teiji diagnose --vm vm1 --for {seconds}s --json 2>/tmp/diagnose.err || [ $? = 1 ]"
    ));
    let all: Value = serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e}: {printed}"));
    let vm = all["vms"][0].clone();
    eprintln!("{} {}", vm["headline"], vm["threads"]);
    for fault in vm["faults"].as_array().unwrap() {
        eprintln!("{} {} {} {}", fault["cause"], fault["share"], fault["evidence"], fault["neighbours"]);
    }
    vm
}

fn causes(vm: &Value) -> Vec<&str> {
    vm["faults"].as_array().unwrap().iter().map(|fault| fault["cause"].as_str().unwrap()).collect()
}

/// What an emulated CPU that stands still on a busy machine looks like: nothing runs there, and what could run waits.
const WAITS: [&str; 2] = ["vcpu_waits_for_cpu", "worker_waits_for_cpu"];

/// The fault with this cause, which has to be the first one, apart from waits for a CPU.
#[track_caller]
fn first<'v>(vm: &'v Value, cause: &str) -> &'v Value {
    let faults = vm["faults"].as_array().unwrap();
    let place =
        faults.iter().position(|fault| fault["cause"] == cause).unwrap_or_else(|| panic!("no {cause}: {vm}"));
    assert!(faults[..place].iter().all(|fault| WAITS.contains(&fault["cause"].as_str().unwrap())), "{vm}");
    &faults[place]
}

fn a_healthy_vm_has_no_fault() {
    let looks: Vec<Value> = (0..5).map(|_| diagnosed(2)).collect();
    let found: Vec<&str> = looks.iter().flat_map(causes).collect();
    // An emulated CPU may stand still in one or two of them.
    assert!(found.iter().all(|cause| WAITS.contains(cause)), "{found:?}");
    assert!(looks.iter().filter(|vm| causes(vm).is_empty()).count() >= 3, "{found:?}");
    let text = run("/mnt/bin/teiji diagnose --vm vm1 --for 2s 2>/tmp/diagnose.err || [ $? = 1 ]");
    eprintln!("{text}");
    assert!(text.starts_with("vm1  pid ") && text.contains("\n  vhost worker  "), "{text}");
    let columns = text.lines().map(|line| line.chars().count()).max();
    assert!(columns <= Some(100), "{columns:?}");
    let printed = run("cat /tmp/diagnose.err");
    assert_eq!(printed, "teiji: observing for 2.00 s");
}

/// Without root, and of a `--watch` each observation.
fn a_recording_shows_what_was_seen() {
    let _ = &VM1.0;
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups /mnt/bin/teiji";
    run(
        "rm -f /tmp/d.teiji; /mnt/bin/teiji diagnose --vm vm1 --for 3s --every 250ms --record /tmp/d.teiji --json >/tmp/live || [ $? = 1 ]",
    );
    run("chmod 644 /tmp/d.teiji");
    let live: Value = serde_json::from_str(&run("cat /tmp/live")).unwrap();
    let replay =
        |more: &str| run(&format!("{nobody} diagnose --replay /tmp/d.teiji {more} --json || [ $? = 1 ]"));
    for more in ["", "--vm vm1"] {
        let replayed: Value = serde_json::from_str(&replay(more)).unwrap();
        assert_eq!(replayed, live, "{more}");
    }
    let bins = live["vms"][0]["series"].as_array().unwrap();
    let lengths: Vec<u64> = bins.iter().map(|bin| bin["vcpus"]["length"].as_u64().unwrap()).collect();
    // A busy machine reads some later; the last one is what was left.
    let shortest = lengths[..lengths.len() - 1].iter().min();
    assert!(shortest.is_some_and(|ns| (200_000_000..450_000_000).contains(ns)), "{lengths:?}");
    let refused = |sh: &str| {
        let output = LAB.host.run(&format!("{nobody} {sh} 2>&1")).unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.code, 1, "{said}");
        said
    };
    assert!(refused("diagnose --replay /tmp/d.teiji --vm vm9").contains("no VM `vm9`"));
    assert!(refused("replay /tmp/d.teiji").contains("teiji diagnose --replay"));

    // In the foreground: else the whole group is sent the signal as well, and the second one ends teiji at once.
    let watch = "timeout --foreground -s INT 8 /mnt/bin/teiji diagnose --watch --for 2s --record /tmp/w.teiji --json >/tmp/live 2>/tmp/watch.err || [ $? -lt 125 ]";
    run(watch);
    let (live, replayed) = (
        run("cat /tmp/live"),
        run("/mnt/bin/teiji diagnose --replay /tmp/w.teiji --json 2>/tmp/replay.err || [ $? = 1 ]"),
    );
    let (live, replayed): (Vec<&str>, Vec<&str>) = (live.lines().collect(), replayed.lines().collect());
    let said = run("ls -l /tmp/w.*; cat /tmp/watch.err /tmp/replay.err");
    eprintln!("{said}");
    assert!(!live.is_empty(), "{said}");
    // The last one, which was cut short, is in neither.
    assert_eq!(live, replayed);
    let bytes: u64 = run("stat -c %s /tmp/w.teiji").parse().unwrap();
    eprintln!("{bytes} bytes of {} observations", replayed.len());
}

/// The kernel counts a VM's time a second time, for its process: `utime`, `stime` and `guest_time` of proc_pid_stat(5), by ticks.
fn time_adds_up_and_agrees_with_the_kernels_own() {
    let guest = &VM1.0;
    let busy = busy_guest();
    let tid = guest.vcpu_tids()[0];
    // Of the vCPU thread, s.
    let ran = || -> f64 {
        let stat = run(&format!(
            "sed 's/.*) //' /proc/{}/task/{tid}/stat | awk '{{ print ($12 + $13) / 100 }}'",
            guest.pid()
        ));
        stat.parse().unwrap()
    };
    let before = ran();
    let vm = diagnosed(6);
    let between = ran() - before;
    busy.kill().unwrap();
    let vcpu = &vm["threads"][0];
    let of = |what: &str| vcpu[what].as_f64().unwrap() / 1e9;
    let parts = ["ran", "waited", "throttled", "stopped", "in_vmm", "disk", "slept"].map(of);
    assert!((parts.iter().sum::<f64>() - of("length")).abs() < 1e-6, "{vcpu}");
    // Not more than the kernel's own, which also has the start of the command, by rough ticks; and of a busy vCPU nearly all.
    assert!(
        of("ran") <= between + 0.3 && of("ran") + of("waited") >= 0.8 * of("length"),
        "{} and {between} s",
        of("ran")
    );
    assert!(of("length") >= 6.0, "{vcpu}");
}

/// KVM counts the exits of a VM itself: it counts more from before until after the observation than the probes, and less within it.
fn what_probes_count_agrees_with_kvms_own() {
    let guest = &VM1.0;
    let exits =
        || -> u64 { run(&format!("cat /sys/kernel/debug/kvm/{}-*/exits", guest.pid())).parse().unwrap() };
    let before = exits();
    let command =
        "teiji diagnose --vm vm1 --level census --for 6s --json 2>&1 >/tmp/census.json || [ $? = 1 ]";
    let observed = LAB.host.spawn(&format!("/mnt/bin/{command}")).unwrap();
    observed.wait_for("observing", START).unwrap();
    // The list of VMs comes first.
    std::thread::sleep(Duration::from_secs(2));
    let within = exits();
    std::thread::sleep(Duration::from_secs(2));
    let within = exits() - within;
    assert_eq!(observed.wait().unwrap().code, 0);
    let around = exits() - before;
    let all: Value = serde_json::from_str(&run("cat /tmp/census.json")).unwrap();
    let vm = &all["vms"][0];
    assert_eq!(vm["unseen"], Value::Array(Vec::new()), "{vm}");
    let threads = vm["threads"].as_array().unwrap();
    let census = &threads[0]["census"];
    let of = |what: &Value, field: &str| what[field].as_u64().unwrap();
    let kinds = census["exits"].as_object().unwrap();
    let counted: u64 = kinds.values().map(|done| of(done, "count")).sum();
    eprintln!("{counted} exits; KVM counted {within} within, {around} around; {census}");
    assert!(within > 100 && (within..=around).contains(&counted), "{within}, {counted}, {around}");
    // An idle guest leaves guest mode by halting, and for the registers of its timer.
    assert!(of(&kinds["halt"], "count") > 0 && of(&kinds["msr"], "count") > 0, "{census}");
    // What a vCPU does adds up to the time.
    let parts =
        [&census["guest"], &census["halted"]].into_iter().chain(kinds.values()).map(|done| of(done, "ns"));
    let (sum, time) = (parts.sum::<u64>() as f64, of(census, "observed") as f64);
    assert!((sum / time - 1.0).abs() < 0.01, "{sum} of {time}: {census}");
    // Packets go both ways, by the worker of the queue.
    let carries = |way: &str| threads.iter().any(|thread| of(&thread["census"][way], "count") > 50);
    assert!(carries("rx") && carries("tx"), "{vm}");
    // Each part of the time has its share.
    let series = vm["series"].as_array().unwrap();
    let of_parts: u64 = series.iter().map(|bin| of(&bin["census"]["guest"], "count")).sum();
    assert_eq!(of_parts, of(&census["guest"], "count"));
}

fn busy_loops_on_its_cpu_are_named() {
    let busy = busy_guest();
    for threads in [2, 6] {
        let hogs = load::hogs(&LAB.host, VCPU_CPU, threads).unwrap();
        let places = [
            format!("{}/task/{}", VM1.0.pid(), VM1.0.vcpu_tids()[0]),
            format!("{}/task/*", hogs.id().unwrap()),
        ];
        let before = places.each_ref().map(|place| ran(place));
        let vm = diagnosed(4);
        let after = places.each_ref().map(|place| ran(place));
        hogs.kill().unwrap();
        let fault = first(&vm, "vcpu_waits_for_cpu");
        // What the loops ran, the vCPU waited. That is a share of two of three, and of six of seven, unless an emulated CPU stands still
        // in somebody's turn.
        let [vcpu, loops] = [0, 1].map(|n| after[n] - before[n]);
        let waited = loops / (loops + vcpu);
        assert!((fault["share"].as_f64().unwrap() - waited).abs() < 0.2, "{waited}: {fault}");
        let named = fault["neighbours"][0]["name"].as_str().unwrap();
        assert!(named.contains("teiji-lab"), "{fault}");
        assert_eq!(fault["remedy"]["lines"][0]["key"], "class");
    }
    busy.kill().unwrap();
}

/// What threads of the lab host have run, by their places in /proc, s.
fn ran(place: &str) -> f64 {
    run(&format!("cat /proc/{place}/schedstat | awk '{{ ns += $1 }} END {{ print ns / 1e9 }}'"))
        .parse()
        .unwrap()
}

fn busy_guest() -> Child {
    let busy = VM1.0.spawn("echo started; exec sh -c 'while :; do :; done'").unwrap();
    busy.wait_for("started", START).unwrap();
    busy
}

fn a_worker_that_waits_is_told_from_a_vcpu() {
    let _ = &VM1.0;
    let hogs = load::hogs(&LAB.host, VHOST_CPU, 6).unwrap();
    let vm = diagnosed(5);
    hogs.kill().unwrap();
    let fault = first(&vm, "worker_waits_for_cpu");
    assert!(fault["share"].as_f64().unwrap() > 0.5, "{fault}");
}

/// A control group of the VM's process; undone when dropped.
struct Group(u32);

impl Group {
    fn with(setting: &str) -> Group {
        let pid = VM1.0.pid();
        run(&format!(
            "echo +cpu >/sys/fs/cgroup/cgroup.subtree_control; mkdir -p /sys/fs/cgroup/small && cd /sys/fs/cgroup/small && \
             echo {pid} >cgroup.procs && {setting}"
        ));
        Group(pid)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let undo = format!(
            "cd /sys/fs/cgroup; echo 0 >small/cgroup.freeze; echo max >small/cpu.max; echo {} >cgroup.procs; \
             for i in $(seq 100); do rmdir small && break; sleep 0.1; done",
            self.0
        );
        LAB.host.run(&undo).unwrap().ok().unwrap();
    }
}

fn a_quota_is_told_from_busy_loops() {
    let busy = busy_guest();
    // The second time others use the CPU, too.
    for (percent, threads) in [(10, 0), (30, 1)] {
        let hogs = (threads > 0).then(|| load::hogs(&LAB.host, VCPU_CPU, threads).unwrap());
        let group = Group::with(&format!("echo {percent}000 100000 >cpu.max"));
        let vm = diagnosed(4);
        drop(group);
        if let Some(hogs) = hogs {
            hogs.kill().unwrap();
        }
        let fault = first(&vm, "throttled");
        let evidence = fault["evidence"][0].as_str().unwrap();
        assert!(
            evidence.contains("/small") && evidence.contains(&format!("{percent} % of a CPU")),
            "{evidence}"
        );
        assert_eq!(fault["remedy"]["change"], Value::Null);
    }
    busy.kill().unwrap();
}

fn a_vm_that_is_stopped_frozen_or_paused_is_told() {
    let pid = VM1.0.pid();
    run(&format!("kill -STOP {pid}"));
    let stopped = diagnosed(3);
    run(&format!("kill -CONT {pid}"));
    first(&stopped, "stopped");
    let group = Group::with("echo 1 >cgroup.freeze");
    let frozen = diagnosed(3);
    drop(group);
    let fault = first(&frozen, "stopped");
    assert!(fault["evidence"][1].as_str().unwrap().contains("/small is frozen"), "{frozen}");
    monitor(r#"{"execute":"stop"}"#);
    let paused = diagnosed(3);
    monitor(r#"{"execute":"cont"}"#);
    first(&paused, "paused");
}

/// Says this to QEMU; returns its answers.
fn monitor(commands: &str) -> String {
    let say = r#"printf '%s\n' '{"execute":"qmp_capabilities"}' 'COMMANDS' | timeout 20 socat -t 5 - UNIX:/run/teiji/guests/vm1/qmp.sock"#;
    run(&say.replace("COMMANDS", commands))
}

fn a_guest_that_is_busy_is_told() {
    let busy = busy_guest();
    let vm = diagnosed(4);
    busy.kill().unwrap();
    assert_eq!(first(&vm, "guest_busy")["blame"], "guest");
}

fn a_qdisc_that_delays_is_told() {
    let _netem = OnTap::with("netem delay 5ms");
    first(&diagnosed(3), "delayed");
}

/// A qdisc on the tap of vm1, until it is dropped.
struct OnTap(String);

impl OnTap {
    fn with(qdisc: &str) -> OnTap {
        let tap = VM1.0.taps().remove(0);
        run(&format!("tc qdisc add dev {tap} root {qdisc}"));
        OnTap(tap)
    }

    /// Packets that it dropped.
    fn drops(&self) -> u64 {
        let text = run(&format!("tc -s -j qdisc show dev {} root", self.0));
        let all: Value = serde_json::from_str(&text).unwrap();
        all[0]["drops"].as_u64().unwrap()
    }
}

impl Drop for OnTap {
    fn drop(&mut self) {
        let _ = LAB.host.run(&format!("tc qdisc del dev {} root", self.0));
    }
}

fn a_rate_limit_is_told_with_what_the_kernel_counts() {
    // The load is 30 frames of some 100 bytes a second, 25 kbit/s: a third of it passes.
    let tbf = OnTap::with("tbf rate 8kbit burst 1600 limit 4000");
    // Until the queue is full.
    let full = (0..300).any(|_| {
        std::thread::sleep(Duration::from_millis(200));
        tbf.drops() > 0
    });
    assert!(full, "the load has ended");
    let before = tbf.drops();
    let observer = LAB
        .host
        .spawn("exec /mnt/bin/teiji diagnose --vm vm1 --for 3600s --json 2>/tmp/limit.err >/tmp/limit.json")
        .unwrap();
    // The files of the VM's threads stay open after the first look, which has seen the qdiscs before.
    let (pid, vm) = (observer.id().unwrap(), VM1.0.pid());
    run(&format!("until ls -l /proc/{pid}/fd | grep -q 'proc/{vm}/task'; do sleep 0.1; done"));
    let within = tbf.drops();
    std::thread::sleep(Duration::from_secs(2));
    let within = tbf.drops() - within;
    run(&format!("kill -INT {pid}; while [ -d /proc/{pid} ]; do sleep 0.1; done"));
    let around = tbf.drops() - before;
    let all: Value = serde_json::from_str(&run("cat /tmp/limit.json")).unwrap();
    let evidence = first(&all["vms"][0], "rate_limited")["evidence"][0].as_str().unwrap().to_owned();
    assert!(evidence.starts_with(&format!("tbf on {}: ", tbf.0)), "{evidence}");
    let told = evidence.split_once("a second, ").and_then(|(_, rest)| rest.split_once(" packets dropped"));
    let told: u64 = told.unwrap().0.parse().unwrap();
    eprintln!("{told} drops told; the kernel counted {within} within, {around} around the observation");
    assert!(within > 0 && (within..=around).contains(&told), "{within}, {told}, {around}");
}

fn a_migration_is_told() {
    monitor(
        r#"{"execute":"migrate-set-parameters","arguments":{"max-bandwidth":300000}}{"execute":"migrate","arguments":{"uri":"exec:cat >/dev/null"}}"#,
    );
    let vm = diagnosed(3);
    let state = || monitor(r#"{"execute":"query-migrate"}"#);
    let during = state();
    monitor(r#"{"execute":"migrate_cancel"}"#);
    let cancelled = (0..100).any(|_| state().contains(r#""status": "cancelled""#));
    assert!(cancelled && during.contains(r#""status": "active""#), "{during} {}", state());
    let fault = first(&vm, "migration");
    assert!(fault["evidence"][1].as_str().unwrap().contains("mig/src/main"), "{vm}");
    // What has ended is not told.
    assert!(!causes(&diagnosed(3)).contains(&"migration"));
}
