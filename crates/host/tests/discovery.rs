//! Discovery on generated trees, and once on the machine that runs the test.
#![allow(clippy::unwrap_used)]

mod common;

use common::{FakeHost, KVM};
use teiji_host::Root;
use teiji_model::host::{DataPlane, Identity, Vm};

#[test]
fn a_qemu_with_two_nics_and_two_queues() {
    let host = FakeHost::new();
    host.vmm(
        700,
        "/usr/bin/qemu-system-x86_64 -name guest=sip1,debug-threads=on -m 512 \
-netdev tap,fds=20:21,id=n0,vhost=on,vhostfds=30:31 -device virtio-net-pci,netdev=n0,mac=52:54:00:aa:bb:01 \
-netdev tap,ifname=tap1,id=n1,vhost=off -device virtio-net-pci,netdev=n1",
        &KVM,
    );
    host.task(700, 702, "CPU 0/KVM", "1", 1);
    host.task(700, 703, "CPU 1/KVM", "2-3", 3);
    host.task(700, 704, "vhost-700", "0-3", 2);
    host.task(700, 705, "vhost-x", "0-3", 2);
    host.tap(700, 20, "tap0", 5);
    host.tap(700, 21, "tap0", 5);
    host.tap(700, 22, "tap1", 6);
    host.link("proc/700/fd/30", "/dev/vhost-net");
    host.link("proc/700/fd/31", "/dev/vhost-net");
    host.link("sys/class/net/tap0/master", "../br0");
    host.link("sys/class/net/tap1/master", "../br0");
    host.file("sys/class/net/tap1/brport/port_no", "0x2\n");
    let entry =
        |mac: u8, port: u8, local: u8| [0x52, 0x54, 0, 0, 0, mac, port, local, 0, 0, 0, 0, 0, 0, 0, 0];
    host.file("sys/class/net/br0/brforward", [entry(1, 1, 0), entry(9, 2, 1), entry(2, 2, 0)].concat());

    let vms = host.root().vms().unwrap();
    assert_eq!(vms.len(), 1);
    let vm = &vms[0];
    assert_eq!((vm.name.as_str(), vm.pid, vm.memory), ("sip1", 700, Some(512 << 20)));
    let vcpus: Vec<_> = vm.vcpus.iter().map(|v| (v.index, v.tid, v.cpus.as_str(), v.last_cpu)).collect();
    assert_eq!(vcpus, [(0, 702, "1", 1), (1, 703, "2-3", 3)]);
    assert_eq!(vm.workers.len(), 1);
    assert_eq!((vm.workers[0].tid, vm.workers[0].kernel_thread), (704, false));
    let [a, b] = &vm.nics[..] else { panic!("{:?}", vm.nics) };
    assert_eq!((a.tap.as_str(), a.ifindex, a.queues, a.data_plane), ("tap0", 5, 2, DataPlane::VhostNet));
    assert_eq!((a.mac, a.bridge.as_deref()), (Some([0x52, 0x54, 0, 0xaa, 0xbb, 1]), Some("br0")));
    assert_eq!((b.tap.as_str(), b.ifindex, b.queues, b.data_plane), ("tap1", 6, 1, DataPlane::Userspace));
    assert_eq!(b.mac, Some([0x52, 0x54, 0, 0, 0, 2]), "learnt from the bridge, the tap's own left out");
}

/// A macvtap is known by its character device, which has the number of the network device.
#[test]
fn macvtaps_and_nics_without_a_tap() {
    let host = FakeHost::new();
    host.vmm(
        700,
        "/usr/bin/qemu-system-x86_64 -name sip1 -netdev tap,fd=20,id=n0,vhost=on -device virtio-net-pci,netdev=n0 \
-netdev tap,fd=21,id=n1,vhost=off -device virtio-net-pci,netdev=n1,mac=52:54:00:aa:bb:02 \
-device vfio-pci,host=01:10.0 -device vfio-pci,host=0000:02:00.0 \
-netdev vhost-user,chardev=c0,id=n2 -device virtio-net-pci,netdev=n2,mac=52:54:00:aa:bb:03",
        &KVM,
    );
    for (fd, name, index) in [(20, "macvtap0", 12), (21, "macvtap1", 13)] {
        host.link(&format!("proc/700/fd/{fd}"), &format!("/dev/tap{index}"));
        host.file(&format!("sys/class/net/{name}/ifindex"), format!("{index}\n"));
        host.file(&format!("sys/class/net/{name}/address"), format!("52:54:00:00:00:{index}\n"));
        host.file(&format!("sys/class/net/{name}/macvtap/tap{index}/dev"), "511:1\n");
    }
    // No macvtap, though a file of another process has such a name.
    host.link("proc/700/fd/22", "/dev/tap14");
    host.file("sys/class/net/eth0/ifindex", "14\n");
    host.link("proc/700/fd/30", "/dev/vhost-net");
    host.file("sys/bus/pci/devices/0000:01:10.0/class", "0x020000\n");
    host.file("sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n");
    let vms = host.root().vms().unwrap();
    let nics: Vec<_> = vms[0].nics.iter().map(|n| (n.tap.as_str(), n.ifindex, n.data_plane)).collect();
    let wanted = [
        ("macvtap0", 12, DataPlane::VhostMacvtap),
        ("macvtap1", 13, DataPlane::UserspaceMacvtap),
        ("0000:01:10.0", 0, DataPlane::Passthrough),
        ("n2", 0, DataPlane::VhostUser),
    ];
    assert_eq!(nics, wanted);
    let macs: Vec<_> = vms[0].nics.iter().map(|n| n.mac.map(|mac| mac[5])).collect();
    assert_eq!(macs, [Some(0x12), Some(2), None, Some(3)]);
    let seen: Vec<bool> = vms[0].nics.iter().map(|n| n.unseen().is_none()).collect();
    assert_eq!(seen, [true, false, false, false]);
}

/// Virtual functions are known by what the VMM has open, also if they are not on its command line.
#[test]
fn virtual_functions_of_a_nic() {
    let host = FakeHost::new();
    host.vmm(700, "qemu -name a -device vfio-pci,host=01:10.4 -device vfio-pci,host=02:00.0", &KVM);
    // Groups of the IOMMU; 3 has another device, which the VM was not given.
    for (fd, group) in [(20, "1"), (21, "2"), (22, "3"), (23, "vfio"), (24, "noiommu-9")] {
        host.link(&format!("proc/700/fd/{fd}"), &format!("/dev/vfio/{group}"));
    }
    host.link("proc/700/fd/25", "/dev/vfio/devices/vfio7");
    let device = |at: &str, group: u32, ids: [&str; 3], driver: &str| {
        let dir = format!("sys/bus/pci/devices/{at}");
        host.file(&format!("sys/kernel/iommu_groups/{group}/devices/{at}/class"), format!("{}\n", ids[0]));
        for (file, text) in ["class", "vendor", "device"].into_iter().zip(ids) {
            host.file(&format!("{dir}/{file}"), format!("{text}\n"));
        }
        host.link(&format!("{dir}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
    };
    let vf = ["0x020000", "0x8086", "0x10ca"];
    for (at, group, number) in [("0000:01:10.0", 1, 0), ("0000:01:10.4", 2, 2), ("0000:01:10.6", 4, 3)] {
        device(at, group, vf, "vfio-pci");
        host.link(&format!("sys/bus/pci/devices/{at}/physfn"), "../0000:01:00.0");
        host.link(&format!("sys/bus/pci/devices/0000:01:00.0/virtfn{number}"), &format!("../{at}"));
    }
    host.file("sys/bus/pci/devices/0000:01:00.0/net/eth1/ifindex", "4\n");
    device("0000:02:00.0", 3, ["0x020000", "0x15b3", "0x1017"], "mlx5_vfio_pci");
    device("0000:02:00.1", 3, ["0x020000", "0x15b3", "0x1017"], "vfio-pci");
    device("0000:00:1f.0", 3, ["0x060100", "0x8086", "0x2918"], "vfio-pci");
    host.link("sys/class/vfio-dev/vfio7/device", "../../../devices/pci0000:00/0000:01:10.6");

    let vms = host.root().vms().unwrap();
    let given: Vec<_> =
        vms[0].given.iter().map(|g| (g.address.as_str(), g.vendor, g.device, g.what())).collect();
    let vf = |at: &'static str, what: &str| (at, 0x8086, 0x10ca, what.to_owned());
    let wanted = [
        vf("0000:01:10.0", "VF 0 of eth1"),
        vf("0000:01:10.4", "VF 2 of eth1"),
        vf("0000:01:10.6", "VF 3 of eth1"),
        ("0000:02:00.0", 0x15b3, 0x1017, "whole NIC".to_owned()),
    ];
    assert_eq!(given, wanted);
    let nics: Vec<_> = vms[0].nics.iter().map(|n| (n.tap.as_str(), n.data_plane)).collect();
    assert_eq!(nics, wanted.map(|(at, ..)| (at, DataPlane::Passthrough)));
    assert!(vms[0].nics.iter().zip(&vms[0].given).all(|(nic, given)| vms[0].given_nic(nic) == Some(given)));
}

/// For `numa_maps` the kernel walks the page tables of the VMM under its memory map lock: a trace that looks for new VMs must not
/// have it read.
#[test]
fn memory_by_node_is_read_only_to_be_shown() {
    let host = FakeHost::new();
    for pid in [700, 800] {
        host.vmm(pid, "qemu -name a", &KVM);
        host.file(&format!("proc/{pid}/numa_maps"), "7f00 default anon=3 N0=1 N1=2 kernelpagesize_kB=4\n");
    }
    let memory = |found: Vec<(Vm, Identity)>| -> Vec<Vec<u64>> {
        found.into_iter().map(|(vm, _)| vm.memory_nodes).collect()
    };
    let one_node = host.root().identified_vms_with_memory().unwrap();
    assert_eq!(memory(one_node), [[2 << 20], [2 << 20]], "all that is resident");

    for node in 0..2 {
        host.file(&format!("sys/devices/system/node/node{node}/cpulist"), "0-1\n");
    }
    let (followed, shown) = (host.root(), host.root());
    assert_eq!(memory(followed.identified_vms().unwrap()), [[0; 0]; 2]);
    assert_eq!(memory(shown.identified_vms_with_memory().unwrap()), [[4096, 8192]; 2]);
    assert_eq!(shown.reads() - followed.reads(), 1 + 2 * 2, "the nodes; status and numa_maps of each");
}

/// Whoever may create a network namespace may give a tap there any name.
#[test]
fn a_tap_of_another_network_namespace_is_not_the_one_of_that_name_here() {
    let host = FakeHost::new();
    for (pid, fd) in [(700, 20), (800, 21)] {
        host.vmm(pid, "qemu -name a", &KVM);
        host.tap(pid, fd, "tap0", 5);
    }
    host.link("sys/class/net/tap0/master", "../br0");
    host.link("proc/self/ns/net", "net:[4026531840]");
    host.link("proc/700/ns/net", "net:[4026531840]");
    host.link("proc/800/ns/net", "net:[4026532999]");
    let vms = host.root().vms().unwrap();
    let nics: Vec<_> = vms.iter().map(|vm| (vm.nics[0].ifindex, vm.nics[0].bridge.as_deref())).collect();
    assert_eq!(nics, [(5, Some("br0")), (0, None)]);
}

#[test]
fn workers_that_are_kernel_threads_belong_to_their_owner() {
    let host = FakeHost::new();
    host.vmm(700, "qemu -name a", &KVM);
    host.vmm(800, "qemu -name b", &KVM);
    host.thread("proc/60", "vhost-700", "0-3", 1, 0x0020_0040);
    host.thread("proc/61", "vhost-800", "0-3", 1, 0x0020_0040);
    host.thread("proc/62", "vhost-800", "0-3", 1, 0); // an ordinary process with this name
    let vms = host.root().vms().unwrap();
    let workers: Vec<Vec<u32>> = vms.iter().map(|vm| vm.workers.iter().map(|w| w.tid).collect()).collect();
    assert_eq!(workers, [vec![60], vec![61]]);
    assert!(vms.iter().all(|vm| vm.workers.iter().all(|w| w.kernel_thread)));
}

#[test]
fn vcpu_threads_without_names_are_found_in_debugfs() {
    let host = FakeHost::new();
    host.vmm(700, "qemu", &KVM);
    host.task(700, 702, "qemu-system-x86", "0-3", 1);
    host.task(700, 703, "qemu-system-x86", "0-3", 1);
    host.file("sys/kernel/debug/kvm/700-9/vcpu0/pid", "703\n");
    host.file("sys/kernel/debug/kvm/700-9/vcpu1/pid", "0\n"); // has not run yet
    host.file("sys/kernel/debug/kvm/700-9/vcpu2/pid", "702\n");
    let vms = host.root().vms().unwrap();
    assert_eq!(vms[0].name, "pid:700");
    let vcpus: Vec<_> = vms[0].vcpus.iter().map(|v| (v.index, v.tid)).collect();
    assert_eq!(vcpus, [(0, 703), (2, 702)]);
}

/// QEMU's `-smp 6,sockets=2,cores=3`: the second socket's APIC ids begin at 4.
#[test]
fn a_vcpus_index_and_kvms_number_of_it_are_told_apart() {
    let host = FakeHost::new();
    host.vmm(700, "qemu", &KVM);
    for (index, id) in [0, 1, 2, 4, 5, 6].into_iter().enumerate() {
        let tid = 710 - index as u32;
        host.task(700, tid, &format!("CPU {index}/KVM"), "0-3", 1);
        host.file(&format!("sys/kernel/debug/kvm/700-9/vcpu{id}/pid"), format!("{tid}\n"));
    }
    let ids = |host: &FakeHost| -> Vec<_> {
        host.root().vms().unwrap()[0].vcpus.iter().map(|v| (v.index, v.kvm_id, v.tid)).collect()
    };
    let ids = |host: &FakeHost, wanted: [Option<u32>; 6]| {
        let wanted: Vec<_> = (0..6u16).map(|i| (i, wanted[usize::from(i)], 710 - u32::from(i))).collect();
        assert_eq!(ids(host), wanted);
    };
    ids(&host, [Some(0), Some(1), Some(2), Some(4), Some(5), Some(6)]);

    // Threads without names are numbered in KVM's order.
    for tid in 705..=710 {
        host.task(700, tid, "qemu-system-x86", "0-3", 1);
    }
    ids(&host, [Some(0), Some(1), Some(2), Some(4), Some(5), Some(6)]);

    // Without debugfs, names give the index, and KVM's number is unknown.
    for index in 0..6 {
        host.task(700, 710 - index, &format!("CPU {index}/KVM"), "0-3", 1);
    }
    std::fs::remove_dir_all(host.root_path("sys/kernel/debug")).unwrap();
    ids(&host, [None; 6]);
}

#[test]
fn only_vmms_are_vms() {
    let host = FakeHost::new();
    host.vmm(1, "init", &[(3, "socket:[1]")]);
    host.vmm(2, "qemu -M none", &[(3, "anon_inode:kvm-vm")]);
    host.file("proc/3/cmdline", "gone"); // vanished: it has no fd directory any more
    host.file("proc/cpuinfo", "");
    assert_eq!(host.root().vms().unwrap(), []);
}

#[test]
fn no_procfs_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let error = Root::new(dir.path()).vms().unwrap_err().to_string();
    assert!(error.contains("is procfs mounted?"), "{error}");
}

#[test]
fn what_is_missing_says_what_it_costs_and_how_to_get_it() {
    let host = FakeHost::new();
    host.file("proc/sys/kernel/osrelease", "6.0.19-amd64\n");
    host.file("proc/self/status", "CapEff:\t0000000000000000\n");
    host.file("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
    let all = host.root().requirements();
    for missing in [
        "kernel",
        "privilege",
        "lockdown",
        "btf",
        "kvm",
        "tun",
        "vhost_net",
        "tracefs",
        "debugfs",
        "receive packet steering",
        "CPU frequency governors",
    ] {
        let it = all.iter().find(|c| c.name == missing).unwrap();
        assert!(!it.present && !it.consequence.is_empty() && !it.remedy.is_empty(), "{it:?}");
        assert!(missing != "kernel" || it.remedy == "run Linux 6.1 or later", "{it:?}");
    }
}

#[test]
fn what_is_there_says_no_more() {
    let host = FakeHost::new();
    host.file("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    host.file("proc/self/status", "CapEff:\t000001ffffffffff\n");
    for path in ["btf/vmlinux", "btf/vhost_net", "tracing/events/sched/sched_switch/id", "debug/kvm/x"] {
        host.file(&format!("sys/kernel/{path}"), "");
    }
    host.file("dev/kvm", "");
    host.file("dev/net/tun", "");
    host.file("sys/class/net/lo/queues/rx-0/rps_cpus", "0\n");
    host.file(
        "sys/devices/system/cpu/cpufreq/policy0/scaling_available_governors",
        "performance schedutil \n",
    );
    let all = host.root().requirements();
    assert!(all.iter().all(|c| c.present && c.consequence.is_empty() && c.remedy.is_empty()), "{all:#?}");
}

#[test]
fn this_machine() {
    for vm in teiji_host::vms().unwrap() {
        assert!(!vm.name.is_empty() && vm.pid > 0);
    }
    let kernel = teiji_host::requirements().remove(0);
    assert!(kernel.found.starts_with("Linux "), "{kernel:?}");
}
