//! Interrupts, control groups, halt polling and idle states: on the machine that runs the test if it has them (what was
//! changed is restored even if the test fails), and on generated trees. Needs root.
#![allow(clippy::unwrap_used)]

mod common;

use common::FakeHost;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use teiji_host::{Root, Settings, task};
use teiji_model::cpus::CpuSet;
use teiji_model::plan::own_group;
use teiji_model::qdisc::Device;
use teiji_model::resource::{Latency, Quota, Resource, ResourceError, ResourceKind, Task, Value};

/// A setting whose value is restored when this is dropped.
struct Restored(Resource, Value);

impl Restored {
    fn new(setting: Resource) -> Result<Self, ResourceError> {
        let value = Settings::default().read(&setting)?;
        Ok(Restored(setting, value))
    }

    /// Sets another value, then the old one, and checks each.
    fn try_with(&self, other: &Value) {
        let settings = Settings::default();
        for value in [other, &self.1] {
            settings.write(&self.0, value).unwrap();
            assert_eq!(&settings.read(&self.0).unwrap(), value);
        }
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let settings = Settings::default();
        if settings.read(&self.0).as_ref() == Ok(&self.1) {
            return;
        }
        if let Err(e) = settings.write(&self.0, &self.1) {
            eprintln!("{} was not restored: {e}", self.0);
        }
    }
}

/// An interrupt of this machine that has never occurred and may be moved.
fn idle_interrupt() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap();
    text.lines().find_map(|line| {
        let (irq, rest) = line.split_once(':')?;
        let counts: Vec<u64> = rest.split_whitespace().map_while(|w| w.parse().ok()).collect();
        let irq = irq.trim().parse().ok()?;
        let Ok(Value::Cpus(cpus)) = Settings::default().read(&Resource::IrqCpus(irq)) else { return None };
        let mode =
            std::fs::metadata(format!("/proc/irq/{irq}/smp_affinity_list")).unwrap().permissions().mode();
        (counts.iter().all(|n| *n == 0) && cpus.len() > 1 && mode & 0o222 != 0).then_some(irq)
    })
}

#[test]
fn an_idle_interrupt_of_this_machine_is_moved_and_moved_back() {
    let Some(irq) = idle_interrupt() else {
        eprintln!("this machine has no interrupt that never came: only made-up ones are tried");
        return a_made_up_interrupt_is_moved();
    };
    let restored = Restored::new(Resource::IrqCpus(irq)).unwrap();
    let Value::Cpus(cpus) = &restored.1 else { panic!() };
    restored.try_with(&Value::Cpus(cpus.iter().take(1).collect()));
    let error = Settings::default().write(&restored.0, &Value::Cpus(CpuSet::from_iter([8191]))).unwrap_err();
    assert!(matches!(&error, ResourceError::Refused(_)), "{error:?}");
}

#[test]
fn a_made_up_interrupt_is_moved() {
    let host = FakeHost::new();
    host.file("proc/irq/38/smp_affinity_list", "0-3,8\n");
    let (settings, setting) = (Settings::new(host.root()), Resource::IrqCpus(38));
    assert_eq!(settings.read(&setting).unwrap().to_string(), "0-3,8");
    settings.write(&setting, &Value::Cpus("2".parse().unwrap())).unwrap();
    assert_eq!(host.text("proc/irq/38/smp_affinity_list"), "2");
    let none = settings.write(&setting, &Value::Cpus(CpuSet::default()));
    assert!(matches!(none, Err(ResourceError::Refused(_))));
    for result in [
        settings.read(&Resource::IrqCpus(39)).map(|_| ()),
        settings.write(&Resource::IrqCpus(39), &Value::Cpus("2".parse().unwrap())),
    ] {
        assert_eq!(result, Err(ResourceError::Gone("interrupt 39".into())));
    }
    host.file("proc/irq/40/smp_affinity_list", "\x1b[2Jno list");
    let error = settings.read(&Resource::IrqCpus(40)).unwrap_err().to_string();
    assert!(
        error.contains("answers `\x1b[2Jno list`"),
        "as it is: it is escaped where it is printed: {error:?}"
    );
}

#[test]
fn receive_packet_steering() {
    let host = FakeHost::new();
    let device = |index| Device { name: "eth0".into(), index };
    let queue = |n| Resource::ReceiveCpus(device(7), n);
    let file = "sys/class/net/eth0/queues/rx-1/rps_cpus";
    host.file("sys/class/net/eth0/ifindex", "7\n");
    host.file(file, "00000000,00000005\n");
    let settings = Settings::new(host.root());
    assert_eq!(settings.read(&queue(1)), Ok(Value::Cpus("0,2".parse().unwrap())));
    for (cpus, text) in [("1,33", "2,00000002"), ("", "0")] {
        let value = Value::Cpus(cpus.parse().unwrap_or_default());
        settings.write(&queue(1), &value).unwrap();
        assert_eq!((host.text(file), settings.read(&queue(1))), (text.to_owned(), Ok(value)));
    }
    assert_eq!(settings.read(&queue(0)), Err(ResourceError::Gone("receive queue 0 of eth0".into())));
    let other = settings.write(&Resource::ReceiveCpus(device(8), 1), &Value::Cpus(CpuSet::default()));
    assert_eq!(other, Err(ResourceError::Gone("device eth0".into())), "a later one of the same name");

    // `ip link set eth0 name lan0`, and another device gets the former name.
    std::fs::rename(host.root_path("sys/class/net/eth0"), host.root_path("sys/class/net/lan0")).unwrap();
    host.file("sys/class/net/eth0/ifindex", "9\n");
    host.file(file, "f\n");
    let value = Value::Cpus("0,2".parse().unwrap());
    settings.write(&queue(1), &value).unwrap();
    let renamed = host.text("sys/class/net/lan0/queues/rx-1/rps_cpus");
    assert_eq!((renamed.as_str(), settings.read(&queue(1))), ("5", Ok(value)));
    assert_eq!(host.text(file), "f\n", "the other device is left alone");

    // On this machine's loopback the CPU that sends a packet also receives it; this can be changed.
    let lo = Resource::ReceiveCpus(Device { name: "lo".into(), index: 1 }, 0);
    match Restored::new(lo) {
        Ok(restored) => restored.try_with(&Value::Cpus("0".parse().unwrap())),
        Err(e) => eprintln!("this machine has no receive packet steering: {e}"),
    }
}

/// In a new network namespace with the /sys of the former one, as after `nsenter --net`.
#[test]
fn a_device_is_not_mistaken_for_one_of_another_namespace() {
    let made = |args: &[&str]| Command::new("ip").args(args).status().is_ok_and(|status| status.success());
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        if !made(&["link", "add", "lan0", "index", "77", "type", "veth", "peer", "name", "eth0"]) {
            return eprintln!("no network devices can be made here");
        }
        let observed = Root::default().observe().unwrap();
        let devices: Vec<&Resource> =
            observed.settings.all().filter(|r| r.kind() == ResourceKind::ReceiveCpus).collect();
        let lan0 = Resource::ReceiveCpus(Device { name: "lan0".into(), index: 77 }, 0);
        assert!(devices.contains(&&lan0), "{devices:?}");
        for why in [
            observed.settings.error(&lan0).cloned().unwrap(),
            Settings::default().read(&lan0).unwrap_err(),
            Settings::default().write(&lan0, &Value::Cpus(CpuSet::default())).unwrap_err(),
        ] {
            let namespaces = matches!(&why, ResourceError::Unsupported(why) if why.contains("namespace"));
            assert!(namespaces, "{why:?}");
        }
        assert_eq!(
            observed.settings.get(&Resource::SegmentSize(Device { name: "x".into(), index: 77 })),
            Some(&Value::Bytes(65_536)),
            "netlink shows those of this namespace"
        );
    })
    .join()
    .unwrap();
}

#[test]
fn frequency_governors() {
    let host = FakeHost::new();
    let file = "sys/devices/system/cpu/cpufreq/policy4/scaling_governor";
    let (settings, resource) = (Settings::new(host.root()), Resource::Governor(4));
    assert_eq!(settings.read(&resource), Err(ResourceError::Gone("cpufreq policy 4".into())));
    host.file(file, "schedutil\n");
    let word = |word: &str| Value::Word(word.into());
    assert_eq!(settings.read(&resource), Ok(word("schedutil")));
    settings.write(&resource, &word("performance")).unwrap();
    assert_eq!(host.text(file), "performance");
    for odd in ["", "two words", "\x1b[2J", "a-name-that-is-longer-than-the-kernels"] {
        host.file(file, odd);
        assert!(matches!(settings.read(&resource), Err(ResourceError::Unsupported(_))), "{odd:?}");
    }
    if let Ok(restored) = Restored::new(Resource::Governor(0)) {
        restored.try_with(&restored.1);
        let none = Settings::default().write(&restored.0, &word("no-such")).unwrap_err();
        assert!(matches!(&none, ResourceError::Refused(why) if why.contains("it has")), "{none:?}");
    }
}

#[test]
fn halt_polling() {
    let host = FakeHost::new();
    let settings = Settings::new(host.root());
    let error = settings.read(&Resource::HaltPoll).unwrap_err();
    assert!(matches!(&error, ResourceError::Unsupported(why) if why.contains("kvm")), "{error:?}");
    host.file("sys/module/kvm/parameters/halt_poll_ns", "200000\n");
    assert_eq!(settings.read(&Resource::HaltPoll), Ok(Value::Nanoseconds(200_000)));
    settings.write(&Resource::HaltPoll, &Value::Nanoseconds(0)).unwrap();
    assert_eq!(host.text("sys/module/kvm/parameters/halt_poll_ns"), "0");

    // On this machine the value is set to what it is: other VMs may be running.
    let mode = std::fs::metadata("/sys/module/kvm/parameters/halt_poll_ns").map(|m| m.permissions().mode());
    match Restored::new(Resource::HaltPoll) {
        Ok(restored) if mode.unwrap() & 0o222 == 0 => {
            eprintln!("this machine's kernel does not let halt polling be changed");
            let error = Settings::default().write(&restored.0, &restored.1).unwrap_err();
            assert!(matches!(&error, ResourceError::Unsupported(_)), "{error:?}");
        }
        Ok(restored) => {
            restored.try_with(&restored.1);
            let error = Settings::default().write(&restored.0, &Value::Nanoseconds(1 << 40)).unwrap_err();
            assert!(matches!(&error, ResourceError::Refused(why) if why.contains("ERANGE")), "{error:?}");
        }
        Err(e) => assert!(matches!(&e, ResourceError::Unsupported(_)), "{e:?}"),
    }
}

#[test]
fn what_the_kernel_makes_read_only_is_left_alone() {
    let host = FakeHost::new();
    let settings = Settings::new(host.root());
    for (setting, path, value) in [
        (Resource::HaltPoll, "sys/module/kvm/parameters/halt_poll_ns", Value::Nanoseconds(0)),
        (Resource::IrqCpus(38), "proc/irq/38/smp_affinity_list", Value::Cpus("0".parse().unwrap())),
    ] {
        host.file(path, "5\n");
        std::fs::set_permissions(host.root_path(path), PermissionsExt::from_mode(0o444)).unwrap();
        assert!(settings.read(&setting).is_ok());
        let why = settings.write(&setting, &value).unwrap_err();
        assert!(matches!(&why, ResourceError::Unsupported(t) if t.contains("cannot be changed")), "{why:?}");
        assert_eq!(host.text(path), "5\n");
    }
}

#[test]
fn wake_up_latency() {
    let host = FakeHost::new();
    let file = "sys/devices/system/cpu/cpu3/power/pm_qos_resume_latency_us";
    let (settings, setting) = (Settings::new(host.root()), Resource::CpuLatency(3));
    assert_eq!(settings.read(&setting), Err(ResourceError::Gone("CPU 3".into())));
    for (text, latency) in [("0", Latency::Any), ("n/a", Latency::None), ("20", Latency::AtMost(20))] {
        host.file(file, format!("{text}\n"));
        assert_eq!(settings.read(&setting), Ok(Value::Latency(latency)));
        settings.write(&setting, &Value::Latency(latency)).unwrap();
        assert_eq!(host.text(file), text);
    }
    let zero = settings.write(&setting, &Value::Latency(Latency::AtMost(0)));
    assert!(matches!(zero, Err(ResourceError::Refused(_))), "the kernel would take it for any");

    match Restored::new(Resource::CpuLatency(0)) {
        Ok(restored) => {
            restored.try_with(&Value::Latency(Latency::AtMost(2000)));
            restored.try_with(&Value::Latency(Latency::Any));
        }
        Err(e) => eprintln!("this machine has no such limit: {e}"),
    }
}

const MOUNTS: &str = "23 1 0:21 / /proc rw - proc proc rw\n\
                      31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
const CGROUP: &str = "sys/fs/cgroup";

/// A generated host with cgroup v2 and the groups `/`, `/machine.slice` and `/machine.slice/a.service`.
fn grouped() -> FakeHost {
    let host = FakeHost::new();
    host.file("proc/self/mountinfo", MOUNTS);
    host.file(&format!("{CGROUP}/cgroup.controllers"), "cpuset cpu memory\n");
    for group in ["", "/machine.slice", "/machine.slice/a.service"] {
        host.file(&format!("{CGROUP}{group}/cgroup.procs"), "");
        host.file(&format!("{CGROUP}{group}/cgroup.subtree_control"), "memory\n");
    }
    host
}

#[test]
fn shares_of_a_group() {
    let host = grouped();
    let settings = Settings::new(host.root());
    let weight = |group: &str| Resource::GroupWeight(group.into());
    let limit = |group: &str| Resource::GroupQuota(group.into());
    let (group, own) = ("/machine.slice/a.service", own_group(7));

    // Without the controller all groups have the defaults, including those that do not exist yet.
    for path in [group, &own] {
        assert_eq!(settings.read(&weight(path)), Ok(Value::Weight(100)));
        assert_eq!(settings.read(&limit(path)), Ok(Value::Quota(None)));
        settings.write(&weight(path), &Value::Weight(100)).unwrap();
        settings.write(&limit(path), &Value::Quota(None)).unwrap();
    }
    assert_eq!(host.text(&format!("{CGROUP}/cgroup.subtree_control")), "memory\n", "nothing was to be done");
    let gone = Err(ResourceError::Gone("control group /nowhere".into()));
    assert_eq!(settings.read(&weight("/nowhere")), gone);
    assert_eq!(settings.write(&weight("/nowhere"), &Value::Weight(3)).map(|()| Value::Weight(0)), gone);
    assert!(matches!(settings.write(&weight(&own), &Value::Weight(3)), Err(ResourceError::Gone(_))));
    for bad in ["/", "/../etc", "etc"] {
        assert!(matches!(settings.read(&weight(bad)), Err(ResourceError::Unsupported(_))), "{bad}");
    }

    // Another value switches the controller on in the groups above. In this tree no files appear in consequence.
    assert!(settings.write(&weight(group), &Value::Weight(300)).is_err());
    for above in ["", "/machine.slice"] {
        assert_eq!(host.text(&format!("{CGROUP}{above}/cgroup.subtree_control")), "+cpu");
    }
    assert_eq!(host.text(&format!("{CGROUP}{group}/cgroup.subtree_control")), "memory\n");

    host.file(&format!("{CGROUP}{group}/cpu.weight"), "100\n");
    host.file(&format!("{CGROUP}{group}/cpu.max"), "max 100000\n");
    let quota = Value::Quota(Some(Quota { quota_us: 150_000, period_us: 100_000 }));
    for (setting, value, text) in [
        (weight(group), Value::Weight(300), "300"),
        (limit(group), quota, "150000 100000"),
        (limit(group), Value::Quota(None), "max 100000"),
    ] {
        settings.write(&setting, &value).unwrap();
        assert_eq!(settings.read(&setting), Ok(value));
        let file = if text == "300" { "cpu.weight" } else { "cpu.max" };
        assert_eq!(host.text(&format!("{CGROUP}{group}/{file}")), text);
    }
}

#[test]
fn without_the_controller_or_the_hierarchy_it_says_so() {
    let host = grouped();
    let settings = Settings::new(host.root());
    let setting = Resource::GroupWeight("/machine.slice".into());
    host.file(&format!("{CGROUP}/cgroup.controllers"), "memory\n");
    let why = settings.read(&setting).unwrap_err();
    assert!(matches!(&why, ResourceError::Unsupported(t) if t.contains("CPU controller")), "{why:?}");
    for (mounts, says) in [
        ("", "not mounted"),
        ("31 23 0:28 /docker/a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "only a part"),
    ] {
        host.file("proc/self/mountinfo", mounts);
        let why = settings.read(&setting).unwrap_err();
        assert!(matches!(&why, ResourceError::Unsupported(t) if t.contains(says)), "{why:?}");
    }
}

#[test]
fn a_process_that_could_not_return_is_not_moved() {
    let host = grouped();
    let scope = "/machine.slice/machine-qemu\\x2d1.scope";
    let settings = Settings::new(host.root());
    host.vmm(700, "qemu", &[]);
    host.task(700, 701, "CPU 0/KVM", "0", 0);
    let process = Resource::Group(Task { id: 700, started: 0 });
    let own = Value::Group(own_group(700));
    let put_in_group =
        |tid: u32, group: &str| host.file(&format!("proc/700/task/{tid}/cgroup"), format!("0::{group}\n"));

    // libvirt's VMs: threads in several groups
    put_in_group(700, &format!("{scope}/libvirt/emulator"));
    put_in_group(701, &format!("{scope}/libvirt/vcpu0"));
    let why = settings.read(&process).unwrap_err();
    assert!(matches!(&why, ResourceError::Unsupported(t) if t.contains("several groups")), "{why:?}");
    assert!(settings.write(&process, &own).is_err());

    // the only process of a scope
    put_in_group(700, scope);
    put_in_group(701, scope);
    host.file(&format!("{CGROUP}{scope}/cgroup.procs"), "700\n");
    assert_eq!(settings.read(&process), Ok(Value::Group(scope.into())));
    let why = settings.write(&process, &own).unwrap_err();
    assert!(matches!(&why, ResourceError::Refused(t) if t.contains("scope that becomes empty")), "{why:?}");
    assert!(!host.root_path(&format!("{CGROUP}/teiji")).exists(), "a refused move leaves nothing behind");

    for bad in ["", "machine.slice", "/machine.slice/../..", "/teiji", "/teiji/../x"] {
        let refused = settings.write(&process, &Value::Group(bad.into()));
        assert!(matches!(refused, Err(ResourceError::Refused(_))), "{bad}");
    }
    // moved, but for a thread that was ending and stayed
    put_in_group(700, &own_group(700));
    put_in_group(701, "/machine.slice");
    host.thread("proc/700/task/701", "CPU 0/KVM", "0", 0, 0x4);
    assert_eq!(settings.read(&process), Ok(own));
    host.thread("proc/700/task/701", "CPU 0/KVM", "0", 0, 0);
    for (group, says) in [("/a (deleted)", "removed"), ("/../b", "namespace")] {
        put_in_group(700, group);
        put_in_group(701, group);
        let why = settings.read(&process).unwrap_err();
        assert!(matches!(&why, ResourceError::Unsupported(t) if t.contains(says)), "{why:?}");
    }
}

/// A process that sleeps, and the group that may have been made for it.
struct Sleep {
    child: Child,
    directory: Option<std::path::PathBuf>,
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(group) = &self.directory {
            // A process that has ended may remain in its group for an instant.
            for _ in 0..100 {
                if !group.exists() || std::fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            let _ = std::fs::remove_dir(group.parent().unwrap());
        }
    }
}

/// Where cgroup v2 is mounted on this machine.
fn mount() -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|l| l.contains(" - cgroup2 ") && l.split(' ').nth(3) == Some("/"))?;
    Some(line.split(' ').nth(4)?.into())
}

#[test]
fn a_process_of_this_machine_moves_into_a_group_of_its_own_and_back() {
    let Some(mount) = mount() else {
        let error = Settings::default().read(&Resource::GroupWeight("/a".into())).unwrap_err();
        assert!(matches!(error, ResourceError::Unsupported(_)), "{error:?}");
        return eprintln!("this machine has no cgroup v2: groups are tried on made-up trees only");
    };
    let child = Command::new("sleep").arg("1000").spawn().unwrap();
    let own = own_group(child.id());
    let directory = mount.join(own.trim_start_matches('/'));
    let sleep = Sleep { child, directory: Some(directory.clone()) };
    let (settings, pid) = (Settings::default(), sleep.child.id());
    let process = Resource::Group(task(&Root::default(), pid).unwrap());
    let before = settings.read(&process).unwrap();

    // Twice: the second time the group exists already. In between, it was removed.
    for _ in 0..2 {
        settings.write(&process, &Value::Group(own.clone())).unwrap();
        assert_eq!(settings.read(&process), Ok(Value::Group(own.clone())));
        assert_eq!(std::fs::read_to_string(directory.join("cgroup.procs")).unwrap(), format!("{pid}\n"));
        settings.write(&process, &Value::Group(own.clone())).unwrap();
        let nowhere = settings.write(&process, &Value::Group("/no-such-group".into()));
        assert!(
            matches!(&nowhere, Err(ResourceError::Refused(why)) if why.contains("/no-such-group no longer exists")),
            "the process is not gone: {nowhere:?}"
        );
        assert!(
            settings
                .disturbed_by(&process)
                .iter()
                .any(|r| matches!(r, Resource::ThreadCpus(t) if t.id == pid))
        );
        assert_eq!(settings.read(&process), Ok(Value::Group(own.clone())));
        shares(&own);
        settings.write(&process, &before).unwrap();
        assert_eq!(settings.read(&process), Ok(before.clone()));
        assert!(!directory.exists(), "the emptied group is removed");
    }

    // As after a kill between the creation of the group and the move.
    std::fs::create_dir_all(&directory).unwrap();
    settings.write(&process, &before).unwrap();
    assert!(!directory.exists(), "a group that was never used is removed");

    // The process ends in its group.
    settings.write(&process, &Value::Group(own)).unwrap();
    drop(sleep);
    std::fs::create_dir_all(&directory).unwrap();
    assert!(matches!(settings.write(&process, &before), Err(ResourceError::Gone(_))));
    assert!(!directory.exists(), "the group of a process that ended is removed");

    // As after a kill, when only the group is left and no process.
    std::fs::create_dir_all(&directory).unwrap();
    let others = directory.with_file_name("not-of-teiji");
    std::fs::create_dir_all(&others).unwrap();
    settings.remove_leftovers();
    let left = (directory.exists(), others.exists());
    std::fs::remove_dir(&others).unwrap();
    assert_eq!(left, (false, true), "groups that teiji made are removed if they are empty, no others");
    settings.remove_leftovers();
    assert!(!directory.parent().unwrap().exists());
}

/// Weight and limit of a real group, if the hierarchy of this machine has the controller.
fn shares(group: &str) {
    let settings = Settings::default();
    let (weight, limit) = (Resource::GroupWeight(group.into()), Resource::GroupQuota(group.into()));
    match settings.read(&weight) {
        Ok(value) => {
            assert_eq!((value, settings.read(&limit)), (Value::Weight(100), Ok(Value::Quota(None))));
            Restored::new(weight.clone()).unwrap().try_with(&Value::Weight(300));
            let quota = Quota { quota_us: 150_000, period_us: 50_000 };
            Restored::new(limit).unwrap().try_with(&Value::Quota(Some(quota)));
            let refused = settings.write(&weight, &Value::Weight(10_001));
            assert!(
                matches!(&refused, Err(ResourceError::Refused(why)) if why.contains("ERANGE")),
                "{refused:?}"
            );
        }
        Err(e) => {
            assert!(matches!(&e, ResourceError::Unsupported(why) if why.contains("controller")), "{e:?}");
            eprintln!("weight and limit are tried on made-up trees only: {e}");
        }
    }
}
