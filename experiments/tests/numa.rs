//! `teiji numa show` and `advise` in the lab, whose host has two NUMA nodes: what it says is compared with numastat, with the kernel's own
//! `numa_maps`, and with the kernel's trace of context switches. Needs root; takes minutes if the lab host is emulated.
//!
//! ```text
//!            node 0: CPUs 0 and 1     node 1: CPUs 2 and 3
//!  vm1       its threads, at first    its memory
//!  huge      its threads              its memory, in huge pages that other processes can have, too
//! ```

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use teiji_experiments::load;
use teiji_experiments::tracing::Lab;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest, GuestSpec};

/// A CPU of each node.
const CPUS: [u32; 2] = [1, 2];
const MIB: u64 = 1 << 20;
const START: Duration = Duration::from_secs(120);
const TRACED: &str = "/sys/kernel/tracing/instances/numa";

static LAB: Shared<Lab> =
    Shared::new("the lab", || Lab::boot(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("numa")).unwrap());
/// A guest whose threads run on node 0, with its memory on node 1.
static VM1: Shared<Guest<'static>> = Shared::new("the guest vm1", || {
    let memory =
        "-object memory-backend-ram,id=far,size=512M,policy=bind,host-nodes=1 -machine memory-backend=far";
    let spec = GuestSpec {
        pins: vec![CPUS[0]],
        vhost_cpu: Some(CPUS[0]),
        qemu_args: memory.split(' ').map(str::to_owned).collect(),
        ..GuestSpec::named("vm1")
    };
    LAB.host.guest(&spec).unwrap()
});
/// Another one, with huge pages that were set aside on node 1.
static HUGE: Shared<Guest<'static>> = Shared::new("the guest huge", || {
    run("echo 140 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages");
    let memory = "-object memory-backend-memfd,id=huge,size=256M,hugetlb=on,hugetlbsize=2M,share=on,prealloc=on \
                  -machine memory-backend=huge";
    let spec = GuestSpec {
        mem_mb: 256,
        pins: vec![CPUS[0]],
        vhost_cpu: Some(CPUS[0]),
        qemu_args: memory.split(' ').map(str::to_owned).collect(),
        ..GuestSpec::named("huge")
    };
    LAB.host.guest(&spec).unwrap()
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        nodes_are_those_of_the_kernel,
        memory_is_that_of_numa_maps_and_numastat,
        what_the_kernel_has_for_a_vm_is_told,
        huge_pages_are_told,
        threads_ran_where_the_kernels_trace_has_them,
        what_is_remote_is_said,
        a_busy_vm_is_advised_to_be_with_its_memory,
        a_vm_that_ends_meanwhile_is_left_out,
        each_pair_of_nodes_is_measured,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

fn run(sh: &str) -> String {
    LAB.host.run(sh).unwrap().ok().unwrap().trim().to_owned()
}

fn parsed(printed: &str) -> Value {
    serde_json::from_str(printed).unwrap_or_else(|e| panic!("{e}: {printed}"))
}

/// What `teiji numa show` says.
fn shown(arguments: &str) -> Value {
    parsed(&run(&format!("/mnt/bin/teiji numa show {arguments} --json 2>/tmp/numa.err")))
}

/// What it says of a VM.
fn placed(name: &str, arguments: &str) -> Value {
    let all = shown(&format!("--vm {name} {arguments}"));
    let [vm] = &all["vms"].as_array().unwrap()[..] else { panic!("{all}") };
    eprintln!("{vm}");
    vm.clone()
}

/// A `teiji numa show` that observes, until [`ended`].
fn observer(arguments: &str) -> Child {
    // Not what an earlier one has said.
    run("rm -f /tmp/numa.err");
    let command = format!(
        "exec /mnt/bin/teiji numa show {arguments} --for 3600s --json 2>/tmp/numa.err >/tmp/numa.json"
    );
    let child = LAB.host.spawn(&command).unwrap();
    run("until grep -qs observing /tmp/numa.err; do sleep 0.1; done");
    child
}

/// What it says once it was told to end.
fn ended(observer: Child) -> Value {
    let pid = observer.id().unwrap();
    run(&format!("kill -INT {pid}; while [ -d /proc/{pid} ]; do sleep 0.1; done"));
    parsed(&run("cat /tmp/numa.json"))
}

/// Amounts by node.
fn by_node(amounts: &Value) -> BTreeMap<u32, u64> {
    let entries = amounts.as_object().into_iter().flatten();
    entries.map(|(node, amount)| (node.parse().unwrap(), amount.as_u64().unwrap())).collect()
}

fn sum(all: &[BTreeMap<u32, u64>]) -> BTreeMap<u32, u64> {
    let mut sum = BTreeMap::new();
    for (node, amount) in all.iter().flatten() {
        *sum.entry(*node).or_default() += amount;
    }
    sum
}

/// Runs `then` while the VMM stands still, so that its memory does not change.
fn stopped<T>(guest: &Guest<'_>, then: impl FnOnce() -> T) -> T {
    run(&format!("kill -STOP {}", guest.pid()));
    let result = then();
    run(&format!("kill -CONT {}", guest.pid()));
    result
}

/// What the kernel's `numa_maps` has, bytes by node, added up by another program.
fn by_awk(pid: u32) -> BTreeMap<u32, u64> {
    let program = r#"{ size = 4; for (i = 1; i <= NF; i++) if ($i ~ /^kernelpagesize_kB=/) { split($i, a, "="); size = a[2] }
        for (i = 1; i <= NF; i++) if ($i ~ /^N[0-9]+=/) { split(substr($i, 2), a, "="); sum[a[1]] += a[2] * size } }
        END { for (node in sum) print node, sum[node] }"#;
    let printed = run(&format!("awk '{program}' /proc/{pid}/numa_maps"));
    let line = |line: &str| {
        let (node, kib) = line.split_once(' ').unwrap();
        (node.parse().unwrap(), kib.parse::<u64>().unwrap() * 1024)
    };
    printed.lines().map(line).collect()
}

/// The numbers in a row of what numastat prints of a process, MiB.
fn numastat(pid: u32, row: &str) -> Vec<f64> {
    let printed = run(&format!("COLUMNS=200 numastat -p {pid}"));
    let line = printed.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("{printed}"));
    line[row.len()..].split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Whether numastat has the same, which rounds to hundredths of a MiB.
#[track_caller]
fn agrees_with_numastat(pid: u32, row: &str, bytes: &BTreeMap<u32, u64>) {
    let has = numastat(pid, row);
    for node in 0..2 {
        let ours = bytes.get(&node).copied().unwrap_or(0) as f64 / MIB as f64;
        assert!((ours - has[node as usize]).abs() <= 0.0051, "node {node}: {ours}, numastat {has:?}");
    }
}

fn nodes_are_those_of_the_kernel() {
    let _ = VM1.pid();
    let nodes = shown("--for 100ms")["nodes"].clone();
    let [first, second] = &nodes.as_array().unwrap()[..] else { panic!("{nodes}") };
    assert_eq!((first["cpus"].as_str(), second["cpus"].as_str()), (Some("0-1"), Some("2-3")));
    assert_eq!(by_node(&first["distances"]), BTreeMap::from([(0, 10), (1, 21)]));
    let kib = run("awk '/MemTotal/ { print $4 }' /sys/devices/system/node/node1/meminfo");
    assert_eq!(second["memory"].as_u64(), Some(kib.parse::<u64>().unwrap() * 1024));
    assert!(first["kernel"].as_u64() > Some(MIB) && first["free"].as_u64() > Some(MIB), "{first}");
}

fn memory_is_that_of_numa_maps_and_numastat() {
    let (shown, kernel) = stopped(&VM1, || {
        let shown = placed("vm1", "--for 100ms");
        let memory = &shown["memory"];
        let all = sum(&[by_node(&memory["guest"]["bytes"]), by_node(&memory["vmm"])]);
        agrees_with_numastat(VM1.pid(), "Total", &all);
        (shown, by_awk(VM1.pid()))
    });
    let guest = by_node(&shown["memory"]["guest"]["bytes"]);
    assert_eq!(sum(&[guest.clone(), by_node(&shown["memory"]["vmm"])]), kernel);
    // It was bound there; a guest that has booted has written some of it.
    assert_eq!(guest.keys().copied().collect::<Vec<_>>(), [1]);
    assert!((40 * MIB..=512 * MIB).contains(&guest[&1]), "{guest:?}");
    assert_eq!(shown["unseen"].as_array().map(Vec::len), Some(0));
}

/// In a control group of its own that counts memory. The lab host's kernel has page tables of KVM for the guest, at least one page.
fn what_the_kernel_has_for_a_vm_is_told() {
    let group = "/sys/fs/cgroup/numa-vm1";
    run(&format!(
        "echo +memory >/sys/fs/cgroup/cgroup.subtree_control && mkdir -p {group} && echo {} >{group}/cgroup.procs",
        VM1.pid()
    ));
    // What was there before still counts for the former group.
    VM1.run("head -c 64M /dev/zero >/dev/shm/x && rm /dev/shm/x").unwrap().ok().unwrap();
    let program = r#"/^(kernel_stack|pagetables|sec_pagetables|slab_reclaimable|slab_unreclaimable) / {
        for (i = 2; i <= NF; i++) { split(substr($i, 2), a, "="); sum[a[1]] += a[2] } } END { for (node in sum) print node, sum[node] }"#;
    let by_kernel = || -> BTreeMap<u32, u64> {
        let printed = run(&format!("awk '{program}' {group}/memory.numa_stat"));
        let line = |line: &str| {
            let (node, bytes) = line.split_once(' ').unwrap();
            (node.parse().unwrap(), bytes.parse().unwrap())
        };
        printed.lines().map(line).collect()
    };
    // The kernel adds up what its CPUs have counted every 2 s: what is in between two equal looks has to be the same.
    stopped(&VM1, || {
        for _ in 0..20 {
            let before = by_kernel();
            let kernel = by_node(&placed("vm1", "--for 100ms")["memory"]["kernel"]);
            if by_kernel() == before {
                assert!(before.values().sum::<u64>() >= 4096, "{before:?}");
                assert_eq!(kernel, before);
                return;
            }
        }
        panic!("the kernel's own count did not stand still");
    });
}

fn huge_pages_are_told() {
    let shown = stopped(&HUGE, || {
        let shown = placed("huge", "--for 100ms");
        agrees_with_numastat(HUGE.pid(), "Huge", &by_node(&shown["memory"]["guest"]["huge"]));
        shown
    });
    let guest = &shown["memory"]["guest"];
    let wanted = BTreeMap::from([(1, 256 * MIB)]);
    for part in ["bytes", "huge", "shared"] {
        assert_eq!(by_node(&guest[part]), wanted, "{part}: {guest}");
    }
    let text = run("/mnt/bin/teiji numa show --for 100ms 2>/tmp/numa.err");
    eprintln!("{text}");
    let columns =
        |line: &str| ["guest memory", "of it huge", "of it shared"].iter().all(|title| line.contains(title));
    assert!(text.lines().any(columns), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("1 ") && line.contains("12 of 140 free (2 MiB)")),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

/// What the scheduler's own records say.
#[derive(Debug, Default)]
struct Traced {
    /// How long the thread ran on each node, ns. `sched_stat_runtime` says how much was added to its run time, but may be written by another
    /// CPU, so `sched_switch` says where it is.
    ran: BTreeMap<u32, u64>,
    /// For how long an observer that looks every 10 ms was kept from looking, so that moves there and back may be missing in what it saw, s.
    kept_away: f64,
}

/// The shortest time that the thread stays on a node, and for which an observer is kept from looking, s.
const STAYS: f64 = 1.0;
const KEPT_AWAY: f64 = 0.5;

fn traced(text: &str, thread: u32, observer: u32) -> Traced {
    let (mut node, mut looked, mut traced) = (None, None, Traced::default());
    for line in text.lines() {
        let Some((head, what)) = line.split_once(": sched_") else { continue };
        let words: Vec<&str> = head.split_whitespace().collect();
        if what.starts_with("switch: ") && what.contains(&format!("next_pid={thread} ")) {
            let cpu = words.iter().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
            node = Some(cpu.unwrap().parse::<u32>().unwrap() / 2);
        } else if what.starts_with("switch: ") && what.contains(&format!("next_pid={observer} ")) {
            let at: f64 = words.last().unwrap().parse().unwrap();
            let pause = at - looked.replace(at).unwrap_or(at);
            traced.kept_away += if pause > KEPT_AWAY { pause } else { 0.0 };
        } else if let (Some(node), Some((_, ran))) = (node, what.split_once("runtime=")) {
            *traced.ran.entry(node).or_default() +=
                ran.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        }
    }
    traced
}

/// The guest is busy for a while, and its vCPU is moved there and back, longer here than there. Nearly all that it runs lies within
/// the observation and the trace, whatever time these begin and end. What teiji itself says may count for the wrong node is 1 % on an idle
/// machine. If others keep it from looking, it is more, and no better than that can be asked of it.
fn threads_ran_where_the_kernels_trace_has_them() {
    let (vcpu, traced) = moved_there_and_back();
    let (ours, kernel) = (by_node(&vcpu["ran"]), &traced.ran);
    let total = |ran: &BTreeMap<u32, u64>| ran.values().sum::<u64>() as f64;
    let share = |ran: &BTreeMap<u32, u64>| ran.get(&1).copied().unwrap_or(0) as f64 / total(ran);
    let uncertain = vcpu["uncertain"].as_u64().unwrap() as f64 / total(&ours);
    let kept_away = traced.kept_away * 1e9 / total(&ours);
    eprintln!(
        "teiji {ours:?} {:.4} ({uncertain:.4} uncertain, {kept_away:.4} kept away), the kernel's records {kernel:?} {:.4}",
        share(&ours),
        share(kernel)
    );
    assert!(total(kernel) > 1e9 && (0.2..0.95).contains(&share(kernel)), "it was not moved");
    let limit = (uncertain + kept_away).max(0.02);
    assert!((share(&ours) - share(kernel)).abs() <= limit, "{ours:?} {kernel:?}");
}

/// The vCPU as teiji saw it, and as the scheduler recorded it.
fn moved_there_and_back() -> (Value, Traced) {
    let thread = VM1.vcpu_tids()[0];
    let observer = observer("--vm vm1");
    let teiji = observer.id().unwrap();
    run(&format!(
        "(mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing) && mkdir {TRACED} && cd {TRACED} && \
         echo mono >trace_clock && echo 4096 >buffer_size_kb && cd events/sched && \
         echo 'next_pid == {thread} || next_pid == {teiji}' >sched_switch/filter && echo 'pid == {thread}' >sched_stat_runtime/filter && \
         echo 1 >sched_switch/enable && echo 1 >sched_stat_runtime/enable"
    ));
    let load = VM1.spawn("echo busy; timeout 12 bash -c 'while :; do :; done'; echo done").unwrap();
    load.wait_for("busy", START).unwrap();
    run(&format!(
        "for i in {{1..4}}; do taskset -p -c {} {thread}; sleep {STAYS}; taskset -p -c {} {thread}; sleep 2; done >/dev/null",
        CPUS[0], CPUS[1]
    ));
    load.wait_for("done", START).unwrap();
    run(&format!(
        "cd {TRACED} && echo 0 >tracing_on && cat trace >/tmp/switches.txt && cd / && rmdir {TRACED}; \
         taskset -p -c {} {thread}",
        CPUS[0]
    ));
    let vcpu = ended(observer)["vms"][0]["vcpus"][0].clone();
    let text = std::fs::read_to_string(LAB.fetch("/tmp/switches.txt").unwrap()).unwrap();
    (vcpu, traced(&text, thread, teiji))
}

/// Binds all vhost workers of vm1, that of vsock, too.
fn pin_workers(cpu: u32) {
    run(&format!(
        "for t in $(grep -lx vhost-{0} /proc/{0}/task/*/comm | cut -d/ -f5); do taskset -p -c {cpu} $t; done",
        VM1.pid()
    ));
}

fn what_is_remote_is_said() {
    pin_workers(CPUS[0]);
    // So that each has run there.
    VM1.run("true").unwrap().ok().unwrap();
    load::ping(&LAB.host, &VM1, 10.0, 5).unwrap();
    let said = || {
        let vm = placed("vm1", "--for 1s");
        (vm["remote_accesses"].as_f64().unwrap(), vm["headline"].as_str().unwrap().to_owned())
    };
    let (remote, headline) = said();
    assert!(remote > 0.99, "{remote}");
    assert_eq!(headline, "100 % of its memory is remote from its vCPUs");
    VM1.pin_vcpu(0, CPUS[1]).unwrap();
    let (remote, headline) = said();
    assert!(remote < 0.01, "{remote}");
    assert_eq!(headline, "100 % of its vhost workers' accesses are remote");
    pin_workers(CPUS[1]);
    VM1.run("true").unwrap().ok().unwrap();
    load::ping(&LAB.host, &VM1, 10.0, 5).unwrap();
    assert_eq!(said().1, "its memory is local to its threads");
}

/// The exit code, and the move of vm1, if there is one. The other guest is idle, and nearly so on a busy machine.
fn advised(arguments: &str) -> (i64, Option<Value>) {
    let command =
        format!("/mnt/bin/teiji numa advise --for 3s --json {arguments} 2>/tmp/numa.err; echo $? >/tmp/code");
    let all = parsed(&run(&command));
    eprintln!("{all}");
    let of_vm1 = all["moves"].as_array().unwrap().iter().find(|one| one["vm"] == "vm1");
    (run("cat /tmp/code").parse().unwrap(), of_vm1.cloned())
}

fn a_busy_vm_is_advised_to_be_with_its_memory() {
    VM1.pin_vcpu(0, CPUS[0]).unwrap();
    pin_workers(CPUS[0]);
    let load = VM1.spawn("echo busy; exec bash -c 'while :; do :; done'").unwrap();
    load.wait_for("busy", START).unwrap();
    // Its threads are pinned to node 0, and a policy of its VMM binds its memory to node 1: nothing may move.
    assert_eq!(advised("").1, None);
    let why = run("/mnt/bin/teiji numa advise --for 500ms 2>/tmp/numa.err || [ $? = 1 ]");
    assert!(why.contains("vm1: its memory is bound to nodes by a policy of its VMM"), "{why}");
    // If they may go, nothing has to be copied.
    let (code, free) = advised("--ignore-pins");
    let free = free.unwrap();
    assert_eq!((code, free["threads"].as_array().unwrap()), (1, &vec![1.into()]));
    assert_eq!((free["memory"].is_null(), free["bytes"].as_u64()), (true, Some(0)));
    assert!(free["gain"].as_f64() > Some(0.1), "{free}");
    let text = run("/mnt/bin/teiji numa advise --for 3s --ignore-pins 2>/tmp/numa.err || [ $? = 1 ]");
    eprintln!("{text}");
    assert!(text.starts_with("=> move ") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    // Where its memory is, it stays.
    VM1.pin_vcpu(0, CPUS[1]).unwrap();
    pin_workers(CPUS[1]);
    assert_eq!(advised("--ignore-pins").1, None);
    load.kill().unwrap();
}

fn a_vm_that_ends_meanwhile_is_left_out() {
    let _ = VM1.pid();
    let _ = HUGE.pid();
    let observer = observer("");
    // It says so before it lists the VMs. Their threads' files are open once it has.
    let pid = observer.id().unwrap();
    run(&format!("until ls -l /proc/{pid}/fd | grep -q 'proc/{}/task'; do sleep 0.1; done", HUGE.pid()));
    run(&format!("kill -KILL {0}; while [ -d /proc/{0} ]; do sleep 0.1; done", HUGE.pid()));
    let all = ended(observer);
    let names: Vec<&str> =
        all["vms"].as_array().unwrap().iter().map(|vm| vm["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["vm1"]);
}

/// The lab host's nodes are emulated, so times say nothing; but each pair is there, and the kernel has bound all memory where it should be.
fn each_pair_of_nodes_is_measured() {
    let all = parsed(&run(
        "strace -f --seccomp-bpf -e trace=mbind -o /tmp/mbind /mnt/bin/teiji numa bench --size 1M --passes 2 --json 2>/tmp/bench.err",
    ));
    let pairs: Vec<(u64, u64)> = all["pairs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| (pair["from"].as_u64().unwrap(), pair["to"].as_u64().unwrap()))
        .collect();
    assert_eq!(pairs, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    let runs = all["runs"].as_array().unwrap();
    // P with two strides, and Q with one.
    assert_eq!(runs.len(), 4 * 3);
    for one in runs.iter().filter(|one| one["program"] == "P") {
        let first = one["faults"][0].as_u64().unwrap();
        assert!((256..350).contains(&first), "{one}");
    }
    let calls = run("grep mbind /tmp/mbind");
    let node = |line: &str| {
        assert!(line.contains("MPOL_BIND") && line.ends_with(" = 0"), "{line}");
        let mask = line.split('[').nth(1).unwrap().split([',', ']']).next().unwrap();
        u64::from_str_radix(mask.trim_start_matches("0x"), 16).unwrap()
    };
    let masks: Vec<u64> = calls.lines().map(node).collect();
    // The buffer of latency and bandwidth, and one for each run, in the order of the pairs.
    assert_eq!(masks, [[1; 4], [2; 4], [1; 4], [2; 4]].concat(), "{calls}");
}
