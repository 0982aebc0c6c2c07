//! The time of observing a host: 500 and 1,000 taps of a bridge and 100 other links in a separate network namespace,
//! and 100 and 200 VMs, whose `/proc` is generated around threads of this process. At last 64 of the links have channels
//! of HFSC, if the kernel has it (sch_htb, sch_hfsc, cls_flower).
//!
//! ```text
//! cargo bench -p teiji-host --bench observe          (root; ip from iproute2)
//! ```
//! Fails if a host takes more than 300 ms, or if twice as many devices or VMs take more than 2.5 times as long; or if more
//! files, links and directories are read than `READS_OF_TAP` and `READS_OF_VM` allow, a number that no other load of the machine
//! changes.
#![allow(clippy::unwrap_used, missing_docs)]

use nix::mount::{MsFlags, mount};
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use teiji_control::admission::curve;
use teiji_host::{Hfsc, Root, Settings};
use teiji_model::qdisc::{Channel, DeadlineQdisc, Device, MAX_LINKS, RootQdisc, Scheduler};
use teiji_model::resource::Value;

const LINKS: usize = 100;
const VCPUS: usize = 4;
/// Taps, VMs, links with channels.
const SIZES: [(usize, usize, usize); 4] =
    [(500, 100, 0), (1000, 100, 0), (1000, 200, 0), (1000, 200, MAX_LINKS)];
/// What is printed instead of a time if the kernel has no HFSC.
const NO_HFSC: &str = "no HFSC";
const LIMIT: Duration = Duration::from_millis(300);
/// What is read of one more tap (the link of its descriptor, `fdinfo`, its directory, `ifindex`, the queue's `rps_cpus`, the end
/// of the queues, its bridge's port) and of one more VM with its vCPUs.
const READS_OF_TAP: u64 = 7;
const READS_OF_VM: u64 = 33;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == "--inside") {
        let sizes: Vec<usize> = args[at + 1..].iter().take(3).map(|n| n.parse().unwrap()).collect();
        return inside(sizes[0], sizes[1], sizes[2]);
    }
    let (mut all, mut read) = (Vec::new(), Vec::new());
    for (taps, vms, channels) in SIZES {
        let namespace = Namespace::new(taps);
        let program = std::env::current_exe().unwrap();
        let mut run = Command::new("ip");
        run.args(["netns", "exec", &namespace.0]).arg(program);
        let run = run.arg("--inside").args([taps, vms, channels].map(|n| n.to_string())).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        if text.trim() == NO_HFSC {
            println!("this kernel has no HFSC: links with channels are not measured");
            continue;
        }
        let numbers =
            text.trim().split_once(' ').and_then(|(ns, reads)| Some((ns.parse().ok()?, reads.parse().ok()?)));
        let (ns, reads): (u64, u64) =
            numbers.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&run.stderr)));
        let took = Duration::from_nanos(ns);
        println!(
            "{taps:>5} taps {LINKS:>4} links, {channels:>2} with channels {vms:>4} VMs  {took:>10.1?} {reads:>7} reads"
        );
        all.push(took);
        read.push(reads);
    }
    let of_tap = (read[1] - read[0]) as f64 / (SIZES[1].0 - SIZES[0].0) as f64;
    let of_vm = (read[2] - read[1]) as f64 / (SIZES[2].1 - SIZES[1].1) as f64;
    println!(
        "one more tap: {of_tap:.2} reads, at most {READS_OF_TAP}; one more VM: {of_vm:.2}, at most {READS_OF_VM}"
    );
    let taps = all[1].as_secs_f64() / all[0].as_secs_f64();
    println!(
        "twice the taps: {taps:.2} times as long; twice the VMs: {:.2}",
        all[2].as_secs_f64() / all[1].as_secs_f64()
    );
    let quick = all.iter().all(|took| *took <= LIMIT) && taps <= 2.5 && all[2] <= all[1].mul_f64(2.5);
    let well = quick && of_tap <= READS_OF_TAP as f64 && of_vm <= READS_OF_VM as f64;
    println!("{}", if well { "within the limit" } else { "NOT within the limit" });
    std::process::exit(i32::from(!well));
}

/// A network namespace that exists as long as the value.
struct Namespace(String);

impl Namespace {
    fn new(taps: usize) -> Self {
        let name = format!("teiji-bench-{}", std::process::id());
        assert!(Command::new("ip").args(["netns", "add", &name]).status().unwrap().success());
        let mut batch = String::from("link add br0 type bridge\n");
        for i in 0..taps {
            let _ = write!(batch, "tuntap add dev tap{i} mode tap\nlink set tap{i} master br0\n");
        }
        for i in 0..LINKS / 2 {
            let _ = writeln!(batch, "link add eth{i} type veth peer name peer{i}");
        }
        let namespace = Namespace(name);
        let ip = Command::new("ip").args(["-n", &namespace.0, "-batch", "-"]).stdin(Stdio::piped()).spawn();
        let mut ip = ip.unwrap();
        ip.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
        assert!(ip.wait().unwrap().success());
        namespace
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// In the namespace, where `ip netns exec` has mounted its `/sys`: the median CPU time of an observation, ns.
fn inside(taps: usize, vms: usize, channels: usize) {
    let state = tempfile::tempdir().unwrap();
    let hfsc = Hfsc::new(Settings::default(), state.path(), curve::of);
    if !with_channels(&hfsc, channels) {
        return println!("{NO_HFSC}");
    }
    let barrier = Arc::new(Barrier::new(vms * (VCPUS + 1) + 1));
    let ids: Arc<std::sync::Mutex<Vec<i32>>> = Arc::default();
    for _ in 0..vms * (VCPUS + 1) {
        let (barrier, ids) = (Arc::clone(&barrier), Arc::clone(&ids));
        std::thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(move || {
                ids.lock().unwrap().push(nix::unistd::gettid().as_raw());
                barrier.wait();
                loop {
                    std::thread::park();
                }
            })
            .unwrap();
    }
    barrier.wait();
    let ids = ids.lock().unwrap().clone();
    let dir = tempfile::tempdir().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    write(&dir.path().join("self/mountinfo"), &mounts);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    write(&dir.path().join("sys/kernel/osrelease"), &release);
    for (i, threads) in ids.chunks(VCPUS + 1).enumerate() {
        vm(dir.path(), threads, (i * taps / vms..(i + 1) * taps / vms).collect());
    }
    mount(Some(dir.path()), "/proc", None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let mut reads = 0;
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let root = Root::default();
            let begun = cpu_time();
            let (mut observed, devices) = root.observe_with_devices().unwrap();
            let links: Vec<Device> = observed.links.iter().map(|link| link.device()).collect();
            hfsc.complete(&devices, links, &mut observed.settings);
            let took = cpu_time() - begun;
            reads = root.reads();
            assert_eq!((observed.vms.len(), observed.links.len()), (vms, taps + 1 + LINKS));
            let is_ours = |value: &Value| matches!(value, Value::RootQdisc(RootQdisc::Deadline(_)));
            assert_eq!(observed.settings.iter().filter(|(_, value)| is_ours(value)).count(), channels);
            assert!(observed.settings.iter().count() >= 2 * (taps + LINKS + vms * VCPUS));
            took
        })
        .collect();
    times.sort_unstable();
    nix::mount::umount("/proc").unwrap();
    println!("{} {reads}", times[times.len() / 2].as_nanos());
}

/// Gives each of the first links a channel; false if the kernel has no HFSC.
fn with_channels(hfsc: &Hfsc, links: usize) -> bool {
    let channel =
        Channel { from: None, to: None, proto: Some(17), deadline: 2_000_000, rate: 8_000_000, burst: 3084 };
    let wanted = DeadlineQdisc {
        scheduler: Scheduler::Hfsc,
        rate: 1_000_000_000,
        slack: 0,
        realtime_max: 0,
        channels: BTreeMap::from([("sip".to_owned(), channel)]),
    };
    let names = (0..LINKS / 2).flat_map(|i| [format!("eth{i}"), format!("peer{i}")]);
    for name in names.take(links) {
        let index = nix::net::if_::if_nametoindex(name.as_str()).unwrap();
        match hfsc.write(&Device { name, index }, &wanted) {
            Err(why) if why.to_string().contains("ENOENT") => return false,
            written => written.unwrap(),
        }
    }
    true
}

/// CPU time of this thread, in user and kernel mode: other users of the CPUs do not count.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A VM: its process (the first of these threads), its vCPUs, and its taps.
fn vm(proc: &Path, threads: &[i32], taps: Vec<usize>) {
    let pid = threads[0];
    let own: PathBuf = proc.join(pid.to_string());
    for (i, tid) in threads.iter().enumerate() {
        let name = if i == 0 { "qemu-system-x86".to_owned() } else { format!("CPU {}/KVM", i - 1) };
        let stat =
            format!("{tid} ({name}) S 1 1 1 0 -1 0 {}100 {}1 0 0 0\n", "0 ".repeat(12), "0 ".repeat(16));
        let mut places = vec![own.join(format!("task/{tid}"))];
        // The kernel also has a directory of `/proc` for each thread, which it does not list. Here all of them are
        // listed, but only the first has open files, so only the first is a process.
        places.push(proc.join(tid.to_string()));
        places.push(proc.join(format!("{tid}/task/{tid}")));
        for place in places {
            write(&place.join("comm"), &format!("{name}\n"));
            write(&place.join("stat"), &stat);
            write(
                &place.join("status"),
                &format!("Name:\t{name}\nUid:\t0\t0\t0\t0\nCpus_allowed_list:\t0-1\n"),
            );
            write(&place.join("cgroup"), "0::/user.slice\n");
        }
    }
    write(&own.join("cmdline"), &format!("qemu\0-name\0guest=vm{pid}\0"));
    fs::create_dir_all(own.join("fd")).unwrap();
    symlink("anon_inode:kvm-vm", own.join("fd/9")).unwrap();
    symlink("anon_inode:kvm-vcpu:0", own.join("fd/10")).unwrap();
    for (fd, tap) in (20..).zip(taps) {
        symlink("/dev/net/tun", own.join(format!("fd/{fd}"))).unwrap();
        write(&own.join(format!("fdinfo/{fd}")), &format!("pos:\t0\niff:\ttap{tap}\n"));
    }
}
