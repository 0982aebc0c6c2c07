//! Observation on generated trees, and once on the machine that runs the test.
#![allow(clippy::unwrap_used)]

mod common;

use common::{FakeHost, KVM};
use std::os::unix::fs::PermissionsExt;
use teiji_host::{Root, Settings};
use teiji_model::observed::{LinkKind, Observed};
use teiji_model::plan::own_group;
use teiji_model::resource::{Latency, Quota, Resource, ResourceError, ResourceKind, Scheduling, Task, Value};

const CGROUP: &str = "sys/fs/cgroup";
const GROUP: &str = "/machine.slice/a.service";

/// Four CPUs, one VM with two vCPUs and a worker in a control group of its own, a NIC on PCI and a virtio NIC, a tap, a
/// bridge.
fn host() -> FakeHost {
    let host = FakeHost::new();
    host.file("sys/devices/system/cpu/online", "0-3\n");
    for cpu in 0..4 {
        host.file(&format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us"), "0\n");
    }
    host.file("sys/module/kvm/parameters/halt_poll_ns", "200000\n");
    host.file("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    host.file("proc/sys/kernel/sched_rt_runtime_us", "950000\n");
    host.file("proc/sys/kernel/sched_rt_period_us", "1000000\n");

    host.file("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    host.file(&format!("{CGROUP}/cgroup.controllers"), "cpuset cpu memory\n");
    for group in ["", "/machine.slice", GROUP] {
        host.file(&format!("{CGROUP}{group}/cgroup.procs"), "");
    }
    host.file(&format!("{CGROUP}{GROUP}/cgroup.procs"), "700\n60\n");
    host.file(&format!("{CGROUP}{GROUP}/cpu.weight"), "200\n");
    host.file(&format!("{CGROUP}{GROUP}/cpu.max"), "50000 100000\n");

    host.vmm(700, "qemu-system-x86_64 -name guest=sip1", &KVM);
    host.tap(700, 20, "tap0", 3);
    for (tid, comm, cpus) in [(702, "CPU 0/KVM", "1"), (703, "CPU 1/KVM", "2-7")] {
        host.task(700, tid, comm, cpus, 1);
        host.thread(&format!("proc/{tid}"), comm, cpus, 1, 0);
    }
    host.thread("proc/60", "vhost-700", "0-3", 1, 0x0020_0040);
    for tid in [700, 702, 703] {
        host.file(&format!("proc/700/task/{tid}/cgroup"), format!("0::{GROUP}\n"));
    }
    for place in ["proc/702", "proc/700/task/702"] {
        host.stat(place, &stat(702, "CPU 0/KVM", 0, 10, 1)); // FIFO 10
    }

    nic(&host, "eth0", "pci", "sys/devices/pci/0000:01:00.0", &[40, 41]);
    nic(&host, "ens3", "virtio", "sys/devices/pci/0000:00:03.0/virtio2", &[]);
    for irq in [50, 51] {
        host.file(&format!("sys/devices/pci/0000:00:03.0/msi_irqs/{irq}"), "msix\n");
    }
    for (irq, cpus) in [(40, "0-3"), (50, "0-3"), (51, "3")] {
        host.file(&format!("proc/irq/{irq}/smp_affinity_list"), format!("{cpus}\n"));
    }
    for (index, name) in
        ["lo", "br0", "tap0", "ens3", "eth0", "eth1", "eth2", "bond0", "tun0"].iter().enumerate()
    {
        let file = |file: &str, text: String| host.file(&format!("sys/class/net/{name}/{file}"), text);
        file("ifindex", format!("{}\n", index + 1));
        file("type", if *name == "tun0" { "65534\n" } else { "1\n" }.to_owned());
        file("mtu", "1500\n".to_owned());
    }
    host.file("sys/class/net/br0/bridge/bridge_id", "8000.525400880001\n");
    host.file("sys/class/net/bond0/bonding/mode", "802.3ad 4\n");
    host.file("sys/class/net/tap0/tun_flags", "0x1002\n");
    for policy in [0, 2] {
        host.file(&format!("sys/devices/system/cpu/cpufreq/policy{policy}/scaling_governor"), "schedutil\n");
    }
    for (device, queue) in [("tap0", 0), ("ens3", 0), ("ens3", 1)] {
        host.file(&format!("sys/class/net/{device}/queues/rx-{queue}/rps_cpus"), format!("{queue:x}\n"));
        host.file(&format!("sys/class/net/{device}/queues/tx-{queue}/xps_cpus"), "0\n");
    }
    for (name, mbit) in
        [("tap0", "10"), ("eth0", "25000"), ("ens3", "-1"), ("bond0", "2000"), ("br0", "25000")]
    {
        host.file(&format!("sys/class/net/{name}/speed"), format!("{mbit}\n"));
    }
    // The uplink of the VM's bridge is a VLAN of a bond; eth2 belongs to no bridge.
    host.link("sys/class/net/tap0/master", "../../devices/virtual/net/br0");
    host.link("sys/class/net/eth1/master", "../../devices/virtual/net/bond0");
    host.link("sys/class/net/bond0/upper_bond0.7", "../../devices/virtual/net/bond0.7");
    host.link("sys/class/net/bond0.7/master", "../../devices/virtual/net/br0");
    host
}

/// A device whose `device` link leads to `dir`, with these message-signalled interrupts.
fn nic(host: &FakeHost, name: &str, bus: &str, dir: &str, irqs: &[u32]) {
    host.file(&format!("{dir}/vendor"), "0x1\n");
    host.link(&format!("{dir}/subsystem"), &format!("../../bus/{bus}"));
    host.link(&format!("sys/class/net/{name}/device"), host.root_path(dir).to_str().unwrap());
    for irq in irqs {
        host.file(&format!("{dir}/msi_irqs/{irq}"), "msix\n");
    }
}

/// `/proc/<id>/stat` of a thread that started at tick `id`, with nice, real-time priority and policy.
fn stat(id: u32, name: &str, nice: i32, priority: u32, policy: u32) -> String {
    let mut fields = vec!["0".to_owned(); 50];
    fields[0] = "S".into();
    fields[9 - 3] = "0".into();
    fields[19 - 3] = nice.to_string();
    fields[22 - 3] = id.to_string();
    fields[40 - 3] = priority.to_string();
    fields[41 - 3] = policy.to_string();
    format!("{id} ({name}) {}\n", fields.join(" "))
}

fn get(observed: &Observed, setting: &Resource) -> Option<String> {
    observed.settings.get(setting).map(ToString::to_string)
}

#[test]
fn a_host_with_a_vm_and_two_nics() {
    let observed = host().root().observe().unwrap();
    assert_eq!(observed.cpus.to_string(), "0-3");
    let [vm] = &observed.vms[..] else { panic!("{:?}", observed.vms) };
    assert_eq!((vm.vm.name.as_str(), vm.process), ("sip1", Task { id: 700, started: 0 }));
    assert_eq!(vm.vcpus, [Task { id: 702, started: 702 }, Task { id: 703, started: 0 }]);
    assert_eq!(vm.workers, [Task { id: 60, started: 0 }]);
    assert_eq!((vm.group.as_deref(), vm.group_shared), (Some(GROUP), false), "its own worker is no stranger");

    let links: Vec<_> = observed
        .links
        .iter()
        .map(|l| (l.name.as_str(), l.index, l.kind, l.irqs.as_slice(), l.speed, l.guests))
        .collect();
    let (gbit, none) = (1_000_000_000, &[][..]);
    let wanted = [
        ("bond0", 8, LinkKind::Bond, none, Some(2 * gbit), true),
        ("br0", 2, LinkKind::Bridge, none, None, false),
        ("ens3", 4, LinkKind::Nic, &[50, 51][..], None, false),
        ("eth0", 5, LinkKind::Nic, &[40][..], Some(25 * gbit), false),
        ("eth1", 6, LinkKind::Virtual, none, None, true),
        ("eth2", 7, LinkKind::Virtual, none, None, false),
        ("tap0", 3, LinkKind::Tap, none, None, true),
    ];
    assert_eq!(links, wanted, "41 has no handler");
    let queues =
        observed.settings.errors().filter(|(resource, _)| resource.kind() == ResourceKind::RootQdisc);
    assert_eq!(queues.count(), 7, "each device's is there, and cannot be read");

    let read = |setting| get(&observed, &setting).unwrap();
    assert_eq!(read(Resource::ThreadCpus(vm.vcpus[0])), "1");
    assert_eq!(read(Resource::ThreadCpus(vm.vcpus[1])), "2-3", "CPUs that are offline are left out");
    assert_eq!(observed.settings[&Resource::ThreadScheduling(vm.vcpus[0])], {
        Value::Scheduling(Scheduling::Fifo { priority: 10 })
    });
    assert_eq!(read(Resource::ThreadScheduling(vm.workers[0])), "default");
    assert_eq!(read(Resource::Group(vm.process)), GROUP);
    assert_eq!(read(Resource::GroupWeight(GROUP.into())), "200");
    let quota = Quota { quota_us: 50_000, period_us: 100_000 };
    assert_eq!(observed.settings[&Resource::GroupQuota(GROUP.into())], Value::Quota(Some(quota)));
    assert_eq!(read(Resource::GroupWeight(own_group(700))), "100");
    assert_eq!(read(Resource::GroupQuota(own_group(700))), "no limit");
    assert_eq!(read(Resource::IrqCpus(51)), "3");
    let governors = observed.settings.iter().filter(|(r, _)| r.kind() == ResourceKind::Governor);
    let governors: Vec<String> = governors.map(|(resource, word)| format!("{resource}: {word}")).collect();
    assert_eq!(governors, [0, 2].map(|policy| format!("governor of cpufreq policy {policy}: schedutil")));
    let steering = observed.settings.iter().filter(|(r, _)| r.kind() == ResourceKind::ReceiveCpus);
    let steering: Vec<String> = steering.map(|(resource, cpus)| format!("{resource}: {cpus}")).collect();
    let wanted =
        ["rps_cpus of tap0 queue 0: none", "rps_cpus of ens3 queue 0: none", "rps_cpus of ens3 queue 1: 0"];
    assert_eq!(steering, wanted);
    assert_eq!(read(Resource::HaltPoll), "200 µs");
    assert_eq!(observed.settings[&Resource::CpuLatency(3)], Value::Latency(Latency::Any));
    let asks_the_kernel = |(_, why): (_, &ResourceError)| why.to_string().contains("below --root");
    assert!(observed.settings.errors().all(asks_the_kernel), "{:#?}", observed.settings);
    assert!(observed.managers.is_empty(), "{observed:#?}");
    assert!(observed.realtime_guard.unwrap().contains("950000"));
}

/// A host with `size` VMs in one control group, each with a tap on one bridge, and `size` links with interrupts.
fn crowded(size: u32) -> FakeHost {
    let host = host();
    for i in 0..size {
        let (pid, tap) = (10_000 + 10 * i, format!("vmtap{i}"));
        host.vmm(pid, &format!("qemu -name guest=v{i}"), &KVM);
        host.tap(pid, 20, &tap, 1000 + i);
        host.task(pid, pid + 1, "CPU 0/KVM", "1", 1);
        host.thread(&format!("proc/{}", pid + 1), "CPU 0/KVM", "1", 1, 0);
        for tid in [pid, pid + 1] {
            host.file(&format!("proc/{pid}/task/{tid}/cgroup"), "0::/user.slice\n");
        }
        for (name, index) in [(tap.clone(), 1000 + i), (format!("link{i}"), 5000 + i)] {
            for (file, text) in [("ifindex", index.to_string()), ("type", "1".into()), ("mtu", "1500".into())]
            {
                host.file(&format!("sys/class/net/{name}/{file}"), text);
            }
        }
        host.file(&format!("sys/class/net/{tap}/tun_flags"), "0x1002\n");
        host.file(&format!("sys/class/net/{tap}/brport/port_no"), format!("{i:#x}\n"));
        host.link(&format!("sys/class/net/{tap}/master"), "../../devices/virtual/net/br0");
        nic(&host, &format!("link{i}"), "pci", &format!("sys/devices/pci/0000:{i:02x}:01.0"), &[]);
    }
    host.file(&format!("{CGROUP}/user.slice/cgroup.procs"), "1\n");
    for below in 0..4 {
        host.file(&format!("{CGROUP}/user.slice/{below}/cgroup.procs"), "2\n");
    }
    host
}

#[test]
fn what_is_read_is_in_proportion_to_what_there_is() {
    let reads = |size| {
        let host = crowded(size);
        let root = host.root();
        let observed = root.observe().unwrap();
        assert_eq!((observed.vms.len(), observed.links.len()), (size as usize + 1, 2 * size as usize + 7));
        root.reads()
    };
    let [few, some, many] = [4, 8, 12].map(reads);
    assert_eq!(many - some, some - few, "the third four cost as much as the second");
}

/// A look at the whole host is most of what the agent costs at rest, and nearly all of it is the reading of files.
#[test]
fn what_one_more_of_each_costs() {
    let reads = |host: &FakeHost| {
        let root = host.root();
        root.observe().unwrap();
        root.reads()
    };
    let host = host();
    let before = reads(&host);
    host.thread("proc/90", "kworker/0:1", "0-3", 0, 0x0020_0040);
    assert_eq!(reads(&host) - before, 1, "its stat");

    let before = reads(&host);
    host.thread("proc/91", "sshd", "0-3", 0, 0);
    host.link("proc/91/fd/0", "/dev/null");
    assert_eq!(reads(&host) - before, 3, "its stat, its descriptors, what this one leads to");

    let before = reads(&host);
    host.task(700, 704, "IO iothread1", "0-3", 0);
    host.file("proc/700/task/704/cgroup", format!("0::{GROUP}\n"));
    assert_eq!(reads(&host) - before, 2, "its stat and its group");

    let before = reads(&host);
    host.task(700, 705, "CPU 2/KVM", "0-3", 0);
    host.thread("proc/705", "CPU 2/KVM", "0-3", 0, 0);
    host.file("proc/700/task/705/cgroup", format!("0::{GROUP}\n"));
    // Its stat, group and status; its status, the CPUs online and its stat, in place of two system calls; its stat once more, so
    // that all of this is its own. Here it is also listed as a process without descriptors.
    assert_eq!(reads(&host) - before, 3 + 4 + 2);

    let before = reads(&host);
    host.tap(700, 21, "tap1", 30);
    for (file, text) in [("type", "1\n"), ("mtu", "1500\n"), ("tun_flags", "0x1002\n")] {
        host.file(&format!("sys/class/net/tap1/{file}"), text);
    }
    host.file("sys/class/net/tap1/queues/rx-0/rps_cpus", "0\n");
    // The link and fdinfo of its descriptor; its index and master, for the VM and for the list of devices, which rtnetlink tells
    // on a real host; type, mtu, bridge, bonding and tun_flags, likewise; its directory, the index there, its queue, the end of
    // the queues.
    assert_eq!(reads(&host) - before, 2 + 2 * 2 + 5 + 4);

    let before = reads(&host);
    host.vmm(900, "qemu-system-x86_64 -name guest=sip2", &KVM);
    host.file("proc/900/task/900/cgroup", "0::/machine.slice/b.service\n");
    // Of the process: its stat, descriptors and what three of them lead to, cmdline, status and network namespace, its list of
    // threads and their groups, its group, its thread's stat and group, KVM's debugfs, and its stat once more at last.
    let process = 1 + 4 + 3 + 2 + 1 + 2 + 1 + 1;
    // The processes in its group; weight and limit of the one that teiji would make. Who else changes it: libvirt's state, twelve
    // places of systemd's units, the cpusets of three groups.
    assert_eq!(reads(&host) - before, process + 1 + 2 + 1 + 12 + 3);
}

/// Any reason but that there are no more queues is that of one queue.
#[test]
fn a_receive_queue_that_cannot_be_read_does_not_hide_the_next() {
    let host = host();
    let file = host.root_path("sys/class/net/ens3/queues/rx-0/rps_cpus");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap(); // EISDIR
    host.file("sys/class/net/eth0/queues", ""); // ENOTDIR, for whichever queue
    let observed = host.root().observe().unwrap();
    let device = |name: &str| observed.links.iter().find(|link| link.name == name).unwrap().device();
    let queue = |name, queue| Resource::ReceiveCpus(device(name), queue);
    let why = |name, at| observed.settings.error(&queue(name, at)).map(ToString::to_string);
    assert!(why("ens3", 0).unwrap().contains("EISDIR"));
    assert_eq!(get(&observed, &queue("ens3", 1)).as_deref(), Some("0"));
    assert!(why("eth0", 0).unwrap().contains("ENOTDIR"));
    assert_eq!((why("ens3", 2), why("eth0", 1)), (None, None));
}

/// It was among the threads of its process when they were listed, and has ended since.
#[test]
fn a_thread_that_ends_during_the_look_is_left_out() {
    let host = host();
    for id in [702, 60] {
        std::fs::remove_dir_all(host.root_path(&format!("proc/{id}/task"))).unwrap();
    }
    let observed = host.root().observe().unwrap();
    let [vm] = &observed.vms[..] else { panic!("{:?}", observed.vms) };
    assert_eq!(vm.vcpus, [Task { id: 703, started: 0 }]);
    assert_eq!(vm.vm.vcpus.iter().map(|vcpu| vcpu.tid).collect::<Vec<_>>(), [703]);
    assert!(vm.workers.is_empty() && vm.vm.workers.is_empty(), "{vm:?}");
    assert!(observed.settings.has_value(&Resource::ThreadCpus(vm.vcpus[0])));
}

#[test]
fn a_group_with_strangers_is_shared() {
    let host = host();
    let shared = |host: &FakeHost| host.root().observe().unwrap().vms[0].group_shared;
    assert!(!shared(&host));
    host.file(&format!("{CGROUP}{GROUP}/sub/cgroup.procs"), "999\n");
    assert!(shared(&host));
    let observed = host.root().observe().unwrap();
    assert_eq!(
        get(&observed, &Resource::GroupWeight(GROUP.into())),
        None,
        "a stranger's weight is not the VM's"
    );
    assert_eq!(get(&observed, &Resource::GroupWeight(own_group(700))).as_deref(), Some("100"));
}

#[test]
fn what_cannot_be_read_or_changed_says_why() {
    let host = host();
    std::fs::remove_file(host.root_path("sys/module/kvm/parameters/halt_poll_ns")).unwrap();
    for irq in [50, 51] {
        let file = host.root_path(&format!("proc/irq/{irq}/smp_affinity_list"));
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o444)).unwrap();
    }
    host.file("proc/self/mountinfo", "");
    let observed = host.root().observe().unwrap();
    assert_eq!((observed.vms[0].group.as_deref(), observed.vms[0].group_shared), (None, true));
    for absent in [Resource::HaltPoll, Resource::IrqCpus(50), Resource::Group(observed.vms[0].process)] {
        assert_eq!(get(&observed, &absent), None);
    }
    let why = |resource| observed.settings.error(&resource).map(ToString::to_string).unwrap_or_default();
    assert!(why(Resource::HaltPoll).contains("kvm is not loaded"));
    for irq in [50, 51] {
        assert!(why(Resource::IrqCpus(irq)).contains("managed"), "each says why itself");
    }
    assert_eq!(why(Resource::IrqCpus(40)), "");
    assert!(why(Resource::Group(observed.vms[0].process)).contains("cgroup v2 is not mounted"));
}

#[test]
fn a_governor_whose_speed_would_be_lost_is_not_changed() {
    let host = host();
    let governor = |policy| format!("sys/devices/system/cpu/cpufreq/policy{policy}/scaling_governor");
    host.file(&governor(0), "schedutil\n");
    host.file(&governor(2), "userspace\n");
    let observed = host.root().observe().unwrap();
    assert_eq!(get(&observed, &Resource::Governor(0)).as_deref(), Some("schedutil"));
    let why = observed.settings.error(&Resource::Governor(2)).unwrap().to_string();
    assert!(why.contains("speed") && why.contains("could not be restored"), "{why}");
    // If somebody chooses it later, a rollback reads it like any other value, and leaves it alone.
    let read = Settings::new(host.root()).read(&Resource::Governor(2));
    assert_eq!(read, Ok(Value::Word("userspace".into())));
}

#[test]
fn what_guards_against_real_time_threads() {
    let host = host();
    let guard = || host.root().observe().unwrap().realtime_guard;
    for unguarded in ["-1", "1000000", ""] {
        host.file("proc/sys/kernel/sched_rt_runtime_us", unguarded);
        assert_eq!(guard(), None, "{unguarded:?}");
    }
    host.file("proc/sys/kernel/sched_rt_runtime_us", "950000\n");
    host.file("proc/sys/kernel/osrelease", "6.12.1\n");
    assert!(guard().unwrap().contains("debugfs"), "the fair server cannot be seen");
    for cpu in 0..4 {
        host.file(&format!("sys/kernel/debug/sched/fair_server/cpu{cpu}/runtime"), "50000000\n");
    }
    host.file("proc/sys/kernel/sched_rt_runtime_us", "-1\n");
    assert!(guard().unwrap().contains("fair_server"), "the fair server is on whatever the sysctl says");
    host.file("sys/kernel/debug/sched/fair_server/cpu2/runtime", "0\n");
    assert_eq!(guard(), None, "one CPU is without it");
}

#[test]
fn others_who_change_the_same_settings() {
    let host = host();
    for (pid, name) in [(80, "irqbalance"), (81, "tuned"), (82, "irqbalance2")] {
        host.thread(&format!("proc/{pid}"), name, "0-3", 0, 0);
    }
    host.file("etc/systemd/system.conf", "[Manager]\n#CPUAffinity=9\nCPUAffinity=0-1\n");
    host.file("etc/systemd/system/a.service.d/10.conf", "[Service]\nCPUAffinity=2 3\n");
    host.file(
        "run/libvirt/qemu/sip1.xml",
        "<domstatus state='running' pid='700'><vcpupin vcpu='0'/><vcpusched/>",
    );
    host.file(&format!("{CGROUP}/cpuset.cpus.effective"), "0-3\n");
    host.file(&format!("{CGROUP}/machine.slice/cpuset.cpus.effective"), "1-2\n");
    let managers = host.root().observe().unwrap().managers;
    let found: Vec<(&str, &[ResourceKind])> =
        managers.iter().map(|m| (m.name.as_str(), m.touches.as_slice())).collect();
    let pins: &[ResourceKind] = &[ResourceKind::ThreadCpus];
    let expected = [
        ("irqbalance", &[ResourceKind::IrqCpus][..]),
        (
            "tuned",
            &[
                ResourceKind::ThreadCpus,
                ResourceKind::ThreadScheduling,
                ResourceKind::IrqCpus,
                ResourceKind::Governor,
                ResourceKind::HaltPoll,
                ResourceKind::CpuLatency,
            ][..],
        ),
        ("libvirt", &[ResourceKind::ThreadCpus, ResourceKind::ThreadScheduling][..]),
        ("systemd", pins),
        ("systemd", pins),
        ("cpuset", pins),
    ];
    assert_eq!(found, expected);
    for (at, says) in [(2, "virsh vcpupin"), (3, "0-1"), (4, "10.conf"), (5, "1-2")] {
        assert!(managers[at].advice.contains(says), "{}", managers[at].advice);
    }
}

#[test]
fn a_domain_of_the_same_name_is_not_this_vm() {
    let host = host();
    host.file("run/libvirt/qemu/sip1.xml", "<domstatus state='running' pid='7001'><vcpupin vcpu='0'/>");
    assert_eq!(host.root().observe().unwrap().managers, []);
    // unpinned
    host.file("run/libvirt/qemu/sip1.xml", "<domstatus state='running' pid='700'><vcpu placement='static'/>");
    assert_eq!(host.root().observe().unwrap().managers, []);
}

#[test]
fn a_guests_name_leads_nowhere_and_reaches_no_terminal() {
    let host = host();
    host.file("proc/700/cmdline", "qemu\0-name\0guest=../../\x1b[2J\0");
    for tid in [700, 702, 703] {
        host.file(&format!("proc/700/task/{tid}/cgroup"), "0::/machine.slice/machine-qemu-1.scope\n");
    }
    let managers = host.root().observe().unwrap().managers;
    let [libvirt] = &managers[..] else { panic!("{managers:?}") };
    assert!(libvirt.advice.contains("cannot be told") && !libvirt.advice.contains('\x1b'), "{libvirt:?}");
}

#[test]
fn without_a_list_of_cpus_it_says_so() {
    let host = FakeHost::new();
    let error = host.root().observe().unwrap_err().to_string();
    assert!(error.contains("is sysfs mounted?"), "{error}");
}

#[test]
fn this_machine() {
    let observed = Root::default().observe().unwrap();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    assert_eq!(observed.cpus.to_string(), online.trim());
    let irqs: Vec<u32> = observed.links.iter().flat_map(|l| l.irqs.clone()).collect();
    for irq in &irqs {
        let resource = Resource::IrqCpus(*irq);
        let known = observed.settings.has_value(&resource);
        assert!(known || observed.settings.error(&resource).is_some(), "{irq}");
    }
    for vm in &observed.vms {
        assert_eq!(vm.vm.vcpus.len(), vm.vcpus.len());
    }
}
