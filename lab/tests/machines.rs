//! The lab does what tests and experiments need, in one boot. Needs root; takes minutes if the lab host is emulated.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use teiji_lab::{
    Error, Guest, GuestSpec, Kernel, LabHost, Spec,
    harness::{self, Shared},
    rootfs,
};

static HOST: Shared<LabHost> = Shared::new("the lab host", || {
    let bin = Path::new(env!("CARGO_BIN_EXE_teiji-lab")).parent().unwrap().to_owned();
    LabHost::boot(&Spec { bin_dir: Some(bin), out_dir: Some(out()), ..Spec::default() }).unwrap()
});
static FIRST: Shared<Guest<'static>> = Shared::new("the guest `first`", || {
    // Devices that nothing needs, for `a_guest_that_kvm_stopped_is_reported`.
    let qemu_args = ["-device", "virtio-rng-pci"].repeat(4).into_iter().map(String::from).collect();
    HOST.guest(&GuestSpec { name: "first".into(), vcpus: 2, qemu_args, ..GuestSpec::default() }).unwrap()
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        the_kernel_is_the_prepared_one,
        the_clock_runs_as_this_machines,
        commands_end_as_they_should,
        files_go_both_ways,
        threads_and_taps_are_known,
        guests_run_commands,
        the_capture_agrees_with_the_load,
        guests_reach_each_other_and_leave_nothing,
        a_guest_that_was_reset_is_reported,
        // No other test can use the guest `first` after this one.
        a_guest_that_kvm_stopped_is_reported,
        an_emulator_that_fails_is_replaced_by_another,
        cpus_that_stand_still_are_reported,
        the_monitor_says_where_each_cpu_is,
        nothing_is_left_at_the_end,
    ];
    harness::run(&tests, || HOST.if_made(LabHost::end))
}

fn out() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("out")
}

fn the_kernel_is_the_prepared_one() {
    let host = &*HOST;
    let prepared = rootfs::prepare().unwrap();
    let version = prepared.version(Kernel::Newest);
    assert_eq!(host.kernel(), version);
    assert_eq!(host.run("uname -r").unwrap().ok().unwrap(), version);
    let version: Vec<u32> = host.kernel().split('.').take(2).map(|n| n.parse().unwrap()).collect();
    assert!(version.as_slice() >= [6, 16].as_slice(), "{version:?} has no BPF qdiscs");
    for file in [
        "/sys/kernel/btf/vmlinux",
        "/sys/kernel/btf/kvm",
        "/sys/kernel/btf/vhost_net",
        "/sys/kernel/btf/tun",
        "/sys/kernel/sched_ext/state",
        "/sys/kernel/tracing/available_filter_functions",
        "/sys/fs/cgroup/cgroup.controllers",
        "/dev/kvm",
        "/dev/vhost-net",
    ] {
        host.run(&format!("test -e {file}")).unwrap().ok().unwrap_or_else(|e| panic!("{file}: {e}"));
    }
    assert_eq!(host.run("ls -d /sys/devices/system/node/node* | wc -l").unwrap().ok().unwrap(), "2");
    assert_eq!(host.run("cat /sys/devices/system/node/node0/cpulist").unwrap().ok().unwrap(), "0-1");
    assert_eq!(host.run("cat /sys/devices/system/node/node1/distance").unwrap().ok().unwrap(), "21 10");
}

/// A kernel that boots while the emulator is preempted can measure a wrong frequency of its counter.
fn the_clock_runs_as_this_machines() {
    let begun = Instant::now();
    let read = || {
        let before = begun.elapsed();
        let uptime = HOST.run("cut -d' ' -f1 /proc/uptime").unwrap().ok().unwrap();
        (before.as_secs_f64(), uptime.parse::<f64>().unwrap(), begun.elapsed().as_secs_f64())
    };
    let first = read();
    thread::sleep(Duration::from_secs(20));
    let second = read();
    let there = second.1 - first.1;
    // The shortest and the longest possible time, as the readings take time; and it is in hundredths of a second.
    let (least, most) = (second.0 - first.2, second.2 - first.0);
    assert!(
        there >= least * 0.98 - 0.02 && there <= most * 1.02 + 0.02,
        "{there} s passed there, {least} to {most} s here"
    );
}

fn commands_end_as_they_should() {
    let host = &*HOST;
    assert_eq!(host.run("true").unwrap().code, 0);
    assert_eq!(host.run("exit 3").unwrap().code, 3);
    assert_eq!(host.run("kill -9 $$").unwrap().code, 137);
    let both = host.run("echo to out; echo to err >&2").unwrap();
    assert_eq!((both.text().as_str(), both.err_text().as_str()), ("to out", "to err"));
    let failed = host.run("echo why >&2; exit 1").unwrap().ok().unwrap_err();
    assert!(failed.to_string().contains("why"), "{failed}");
    let much = host.run("head -c 1000000 /dev/zero | tr '\\0' x").unwrap();
    assert_eq!((much.stdout.len(), much.stdout.iter().all(|b| *b == b'x')), (1_000_000, true));

    let limit = Duration::from_secs(10);
    let late = host.run_for("echo begun; sleep 1001 & sleep 1002", limit).unwrap_err();
    assert!(matches!(&late, Error::Timeout { printed, .. } if printed.contains("begun")), "{late}");
    // The group ends with its leader, and so does the group of a command that nobody waits for any more.
    let child = host.spawn("sleep 1003 & sleep 1004").unwrap();
    assert!(child.id().unwrap() > 1);
    drop(child);
    let gone = "for i in $(seq 300); do pgrep -f '^sleep 100' >/dev/null || exit 0; sleep 0.1; done; exit 1";
    host.run(gone).unwrap().ok().unwrap();

    // A process left in the background on purpose does not delay the command.
    let quick = Instant::now();
    host.run("sleep 60 & echo done").unwrap().ok().unwrap();
    assert!(quick.elapsed() < Duration::from_secs(30));
    let child = host.spawn("echo ready; cat").unwrap();
    child.wait_for("ready", Duration::from_secs(10)).unwrap();
    child.write(b"typed").unwrap();
    child.close_input().unwrap();
    assert_eq!(child.wait().unwrap().ok().unwrap(), "ready\ntyped");
    // More commands at the same time than there are ports.
    thread::scope(|s| {
        let many: Vec<_> = (0..24).map(|i| s.spawn(move || host.run(&format!("exit {i}")))).collect();
        for (i, t) in many.into_iter().enumerate() {
            assert_eq!(t.join().unwrap().unwrap().code, i as i32);
        }
    });
}

fn files_go_both_ways() {
    let host = &*HOST;
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(|i| i.to_le_bytes()).collect();
    host.put("/tmp/a file", &bytes).unwrap();
    assert_eq!(host.get("/tmp/a file").unwrap(), bytes);
    assert!(host.get("/tmp/none").is_err());
    host.run("cp '/tmp/a file' /mnt/out/copy").unwrap().ok().unwrap();
    assert_eq!(fs::read(out().join("copy")).unwrap(), bytes);
    host.run("/mnt/bin/teiji-lab --version").unwrap().ok().unwrap();
    assert_ne!(host.run("touch /mnt/bin/no").unwrap().code, 0, "/mnt/bin can be written");
}

fn threads_and_taps_are_known() {
    let (host, guest) = (&*HOST, &*FIRST);
    assert_eq!(guest.taps(), ["first-n0"]);
    assert_eq!((guest.vcpu_tids().len(), guest.vhost_tids().len()), (2, 1));
    for (tid, name) in guest.vcpu_tids().iter().zip(["CPU 0/KVM", "CPU 1/KVM"]) {
        let comm = host.run(&format!("cat /proc/{}/task/{tid}/comm", guest.pid())).unwrap();
        assert_eq!(comm.ok().unwrap(), name);
    }
    let vhost = guest.vhost_tids()[0];
    let comm = host.run(&format!("cat /proc/{vhost}/comm")).unwrap().ok().unwrap();
    assert_eq!(comm, format!("vhost-{}", guest.pid()));
    host.run("ip -d link show first-n0 | grep -q 'master br0'").unwrap().ok().unwrap();
    let mac = guest.run("cat /sys/class/net/eth0/address").unwrap().ok().unwrap();
    assert_eq!([mac], guest.macs()[..]);
    guest.pin_vcpu(1, 2).unwrap();
    guest.pin_vhost(3).unwrap();
    let allowed = |tid| {
        let script = format!("awk '/Cpus_allowed_list/ {{ print $2 }}' /proc/{tid}/status");
        host.run(&script).unwrap().ok().unwrap()
    };
    assert_eq!((allowed(guest.vcpu_tids()[1]), allowed(vhost)), ("2".into(), "3".into()));
}

fn guests_run_commands() {
    let (host, guest) = (&*HOST, &*FIRST);
    assert_eq!(guest.run("hostname; exit 3").map(|o| (o.code, o.text())).unwrap(), (3, "first".into()));
    assert_eq!(guest.run("nproc").unwrap().ok().unwrap(), "2");
    let call = format!("teiji-lab call vsock:{} -- sh -c 'echo out; echo err >&2; exit 4'", guest.cid());
    let called = host.run(&call).unwrap();
    assert_eq!((called.code, called.text(), called.err_text()), (4, "out".into(), "err".into()));
    let late = guest.run_for("sleep 1005", Duration::from_secs(1)).unwrap_err();
    assert!(matches!(late, Error::Timeout { .. }), "{late}");
}

fn the_capture_agrees_with_the_load() {
    let (host, guest) = (&*HOST, &*FIRST);
    let echo = guest.spawn("teiji-lab udp-echo --port 7").unwrap();
    echo.wait_for("serving", Duration::from_secs(60)).unwrap();
    let load = |count: u32| {
        let to = guest.ip();
        let tool = format!("teiji-lab udp-load --to {to}:7 --rate 50 --count {count} --linger 20 --json");
        let figures = host.run(&format!("ip netns exec peer {tool}")).unwrap().ok().unwrap();
        serde_json::from_str::<serde_json::Value>(&figures).unwrap()
    };
    // The first packets wait until the guest's programs are paged in.
    load(20);
    let capture = host.spawn("teiji-lab capture --if uplink0 --out /mnt/out/echo.pcap").unwrap();
    capture.wait_for("capturing", Duration::from_secs(60)).unwrap();
    let figures = load(300);
    host.run(&format!("kill -INT -{}", capture.id().unwrap())).unwrap();
    let counts: serde_json::Value = {
        let printed = capture.wait().unwrap().ok().unwrap();
        serde_json::from_str(printed.lines().last().unwrap()).unwrap()
    };
    eprintln!("{figures} {counts}");
    let received = figures["received"].as_u64().unwrap();
    assert!(received > 0, "nothing was answered");
    assert_eq!(counts["dropped"], 0);

    // Every request is in the capture once into the bridge, and every answer once out of it, in that order.
    let dump = host.run("tcpdump -nr /mnt/out/echo.pcap udp port 7 2>/dev/null").unwrap().ok().unwrap();
    let (answers, requests): (Vec<_>, Vec<_>) = dump.lines().partition(|l| l.contains(" Out "));
    assert_eq!((requests.len(), answers.len() as u64), (300, received));
    assert!(
        figures["p50_ns"].as_u64().unwrap() > 50_000,
        "round trips that no guest can have made: {figures}"
    );
    assert_eq!(fs::read(out().join("echo.pcap")).unwrap()[..4], 0xa1b2_3c4d_u32.to_le_bytes());
}

fn guests_reach_each_other_and_leave_nothing() {
    let (host, first) = (&*HOST, &*FIRST);
    let second = host.guest(&GuestSpec::named("second")).unwrap();
    assert_ne!(first.ip(), second.ip());
    // Without a limit: lost packets are sent again.
    let reach = |to: &dyn std::fmt::Display| format!("ping -q -c 1 -w 60 {to}");
    first.run(&reach(&second.ip())).unwrap().ok().unwrap();
    second.run(&reach(&"10.77.0.1")).unwrap().ok().unwrap();
    ends(second);
}

/// Kills a guest, and checks that nothing is left of it; the guest `first` runs.
fn ends(guest: Guest<'_>) {
    let pid = guest.pid();
    guest.kill().unwrap();
    assert_ne!(HOST.run(&format!("test -d /proc/{pid}")).unwrap().code, 0, "the guest was left");
    assert_eq!(HOST.run("ls /sys/class/net").unwrap().ok().unwrap(), "br0\nfirst-n0\nlo\nuplink0");
}

/// This test kills the emulator, and finds another lab host when it is run again because of that.
fn an_emulator_that_fails_is_replaced_by_another() {
    static KILLED: AtomicU32 = AtomicU32::new(0);
    let killed = KILLED.swap(HOST.pid(), Ordering::Relaxed);
    if killed == 0 {
        kill(Pid::from_raw(HOST.pid().cast_signed()), Signal::SIGKILL).unwrap();
        HOST.run("true").unwrap();
    }
    assert_ne!(killed, HOST.pid());
    HOST.run("true").unwrap().ok().unwrap();
}

/// All CPUs at once: the emulator is stopped.
fn cpus_that_stand_still_are_reported() {
    let emulator = Pid::from_raw(HOST.pid().cast_signed());
    kill(emulator, Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    kill(emulator, Signal::SIGCONT).unwrap();
    let script = "for n in $(seq 50); do dmesg | grep 'stood still for' && break; sleep 0.1; done";
    let reported = HOST.run(script).unwrap().ok().unwrap();
    assert!(reported.contains("teiji-lab: emulated CPU "), "{reported:?}");
}

/// A lab host that hangs cannot say what it does, but its emulator can.
fn the_monitor_says_where_each_cpu_is() {
    let cpus: usize = HOST.run("nproc").unwrap().ok().unwrap().parse().unwrap();
    let said = HOST.cpus();
    for n in 0..cpus {
        assert_eq!(said.lines().filter(|l| l.contains(&format!("CPU#{n} "))).count(), 2, "{said}");
    }
    assert_eq!(said.matches(" RIP=").count(), 2 * cpus, "{said}");
}

/// Reads registers of devices of the guest for the first time, right after a page fault: KVM under an emulated processor
/// stops the guest at that (see `tools::link_up`). If it does so no longer, guests need no special care any more. A timer
/// may fire between the fault and the access, and make it harmless, so pages of several devices are tried.
fn a_guest_that_kvm_stopped_is_reported() {
    const READ: &str = r#"
        cd /sys/bus/pci/devices
        rngs=$(dirname $(grep -lx 0x1005 */device)) net=$(dirname $(grep -lx 0x1000 */device))
        for d in $rngs $net; do
            echo $d > $d/driver/unbind
            echo 1 > $d/enable
        done
        exec python3 -c '
import mmap, os, sys, time
def registers(device):
    return mmap.mmap(os.open(device + "/resource4", os.O_RDWR | os.O_SYNC), 16384)
def fault():
    page = mmap.mmap(-1, 4096)
    page[0] = 1
    return page
*rngs, net = map(registers, sys.argv[1:])
print("ready", flush=True)
while not os.path.exists("/tmp/read"):
    time.sleep(0.01)
# Pages that no driver reads: the interrupt status, which MSI-X replaces, and the settings of a device that has none.
for place, offset in [(rng, offset) for rng in rngs for offset in (0x1000, 0x2000)] + [(net, 0x1000)]:
    for _ in range(200):
        fault().close()
    page = fault()
    print(place[offset])
open("/tmp/done", "w")' $rngs $net"#;
    let guest = &*FIRST;
    // Python comes from the image, which may take long: that is not part of the limit, as all of the limit is waited for.
    let reader = guest.spawn(READ).unwrap();
    reader.wait_for("ready", Duration::from_secs(300)).unwrap();
    let read = "touch /tmp/read; until [ -e /tmp/done ]; do sleep 0.1; done";
    let result = guest.run_for(read, Duration::from_secs(30));
    if HOST.accelerated() {
        result.unwrap().ok().unwrap();
        reader.wait().unwrap().ok().unwrap();
        return;
    }
    let why = match result {
        Err(why) => why.to_string(),
        Ok(output) => panic!("it was not stopped: {output:?}"),
    };
    for part in ["guest first does not answer", "KVM internal error. Suberror: 3", "RIP=", "internal-error"] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

/// A guest whose kernel panics is reported as such, with its last words.
fn a_guest_that_was_reset_is_reported() {
    let _first = &*FIRST;
    let guest = HOST.guest(&GuestSpec::named("reset")).unwrap();
    let why = guest.run("echo c > /proc/sysrq-trigger; sleep 60").unwrap_err().to_string();
    for part in ["guest reset does not answer", "the guest was reset", "Kernel panic", "its QEMU"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    ends(guest);
}

/// This is about the whole lab, so it is the last test.
fn nothing_is_left_at_the_end() {
    let before = emulators();
    assert!(before.contains(&HOST.pid()), "{before:?}");
    HOST.end();
    assert!(!emulators().contains(&HOST.pid()), "the emulator was left running");
    assert!(HOST.run("true").is_err());
}

/// Process ids of the emulators of labs that run on this machine.
fn emulators() -> Vec<u32> {
    let running = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains("qemu-system") && line.contains("teiji.level=1")
    };
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|p| p.file_name().to_str()?.parse().ok()).filter(|pid| running(*pid)).collect()
}
