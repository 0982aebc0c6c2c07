//! Where VMs are on generated hosts with NUMA nodes.
#![allow(clippy::unwrap_used)]

mod common;

use common::{FakeHost, KVM};
use std::collections::BTreeMap;
use teiji_host::NumaObserver;
use teiji_model::host::Vm;
use teiji_model::numa::{ByNode, NumaHost};

/// A host with CPUs 0 and 1 on node 0, 2 and 3 on node 1, and a VM of one vCPU (thread 702) and one worker (704), which has `tap0`.
fn host() -> (FakeHost, Vec<Vm>) {
    let host = FakeHost::new();
    host.file("sys/devices/system/node/online", "0-1\n");
    for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
        host.file(&format!("sys/devices/system/node/node{node}/cpulist"), format!("{cpus}\n"));
    }
    let line = "/usr/bin/qemu-system-x86_64 -name sip1,debug-threads=on -m 512 \
-netdev tap,ifname=tap0,id=n0,vhost=on -device virtio-net-pci,netdev=n0";
    host.vmm(700, line, &KVM);
    host.task(700, 702, "CPU 0/KVM", "0-3", 1);
    host.task(700, 704, "vhost-700", "2", 2);
    host.tap(700, 20, "tap0", 5);
    host.link("proc/700/fd/30", "/dev/vhost-net");
    host.link("sys/class/net/tap0/master", "../br0");
    for tid in [702, 704] {
        ran(&host, tid, 1000);
    }
    let maps = "7f0000000000-7f0020000000 rw-p 00000000 00:00 0 \n7f0040000000-7f0040002000 rw-p 00000000 00:00 0 \n";
    host.file("proc/700/maps", maps);
    let numa_maps = "7f0000000000 bind:1 anon=3 N0=1 N1=2 kernelpagesize_kB=4\n\
                     7f0040000000 default anon=2 N0=2 kernelpagesize_kB=4\n";
    host.file("proc/700/numa_maps", numa_maps);
    let vms = host.root().vms().unwrap();
    (host, vms)
}

/// Lets a thread have run for so long, ns.
fn ran(host: &FakeHost, tid: u32, ns: u64) {
    host.file(&format!("proc/700/task/{tid}/schedstat"), format!("{ns} 5 6\n"));
}

/// Where the VMs are, if `meanwhile` happens.
fn placed(host: &FakeHost, vms: &[Vm], meanwhile: impl FnOnce(&mut NumaObserver)) -> NumaHost {
    let mut observer = NumaObserver::begin(&host.root(), vms);
    meanwhile(&mut observer);
    observer.end()
}

#[test]
fn a_thread_counts_where_it_ran() {
    let (host, vms) = host();
    let placed = placed(&host, &vms, |observer| {
        observer.look();
        ran(&host, 702, 1500);
        observer.look();
        host.task(700, 702, "CPU 0/KVM", "0-3", 3);
        ran(&host, 702, 4500);
    });
    let vm = &placed.vms[0];
    let [vcpu] = &vm.vcpus[..] else { panic!("{vm:?}") };
    assert_eq!((vcpu.tid, vcpu.vcpu, vcpu.last), (702, Some(0), Some(1)));
    // It slept, and woke up on the other node.
    assert_eq!((vcpu.ran.clone(), vcpu.uncertain), (ByNode::from([(0, 500), (1, 3000)]), 3000));
    let [worker] = &vm.workers[..] else { panic!("{vm:?}") };
    assert_eq!((worker.tid, worker.vcpu, worker.last), (704, None, Some(1)));
    assert_eq!((worker.ran.clone(), worker.allowed.to_string()), (ByNode::new(), "2".to_owned()));
}

/// Lets a thread run on this CPU, not sleep.
fn runs_on(host: &FakeHost, tid: u32, cpu: u32) {
    host.task(700, tid, "CPU 0/KVM", "0-3", cpu);
    let path = format!("proc/700/task/{tid}/stat");
    host.file(&path, host.text(&path).replacen(") S ", ") R ", 1));
}

#[test]
fn a_thread_that_moves_while_it_runs_counts_for_both_nodes() {
    const HOUR: u64 = 3_600_000_000_000;
    let moved = |ns: u64| {
        let (host, vms) = host();
        let placed = placed(&host, &vms, |observer| {
            runs_on(&host, 702, 1);
            observer.look();
            runs_on(&host, 702, 3);
            ran(&host, 702, 1000 + ns);
        });
        placed.vms[0].vcpus[0].clone()
    };
    let vcpu = moved(2000);
    assert_eq!((vcpu.ran, vcpu.uncertain), (ByNode::from([(0, 1000), (1, 1000)]), 1000));
    // The kernel counts what a thread ran when it leaves its CPU, if that CPU had no ticks: it was before the move.
    let vcpu = moved(HOUR);
    assert_eq!(vcpu.ran[&0] + vcpu.ran[&1], HOUR);
    assert!(vcpu.ran[&1] < HOUR / 100 && vcpu.uncertain == vcpu.ran[&1], "{vcpu:?}");
}

#[test]
fn a_thread_that_ends_keeps_what_it_ran() {
    let (host, vms) = host();
    let placed = placed(&host, &vms, |observer| {
        ran(&host, 702, 1500);
        observer.look();
        std::fs::write(host.root_path("proc/700/task/702/schedstat"), "").unwrap();
        observer.look();
    });
    assert_eq!(placed.vms[0].vcpus[0].ran, ByNode::from([(0, 500)]));
}

#[test]
fn memory_is_the_guests_the_vmms_and_the_kernels() {
    let (host, vms) = host();
    host.file("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    let group = "machine.slice/sip1.scope";
    for tid in [700, 702, 704] {
        host.file(&format!("proc/700/task/{tid}/cgroup"), format!("0::/{group}\n"));
    }
    host.file(&format!("sys/fs/cgroup/{group}/cgroup.procs"), "700\n");
    let stat = "anon N0=99 N1=99\npagetables N0=7 N1=0\nsec_pagetables N0=1 N1=2\nslab_reclaimable N0=4\n";
    host.file(&format!("sys/fs/cgroup/{group}/memory.numa_stat"), stat);
    let memory = |host: &FakeHost| placed(host, &vms, |_| ()).vms[0].memory.clone().unwrap();
    let own = memory(&host);
    assert_eq!(own.guest.unwrap().bytes, ByNode::from([(0, 4096), (1, 8192)]));
    assert_eq!(own.vmm, ByNode::from([(0, 8192)]));
    assert_eq!(own.kernel, Some(ByNode::from([(0, 12), (1, 2)])));
    // A thread of the kernel is there for the VM.
    host.file(&format!("sys/fs/cgroup/{group}/cgroup.procs"), "700\n801\n");
    host.thread("proc/801", "kvm-nx-lpage-re", "0-3", 0, 0x20_0000);
    assert_eq!(memory(&host).kernel, Some(ByNode::from([(0, 12), (1, 2)])));
    // What the kernel has for a group with other processes is not the VM's alone.
    host.file(&format!("sys/fs/cgroup/{group}/cgroup.procs"), "700\n802\n");
    host.thread("proc/802", "swtpm", "0-3", 0, 0);
    assert_eq!(memory(&host).kernel, None);
}

#[test]
fn what_cannot_be_read_is_said() {
    let (host, vms) = host();
    std::fs::remove_file(host.root_path("proc/700/numa_maps")).unwrap();
    let vm = placed(&host, &vms, |_| ()).vms.remove(0);
    assert_eq!(vm.memory, None);
    assert_eq!(vm.unseen, ["its memory, as /proc/700/numa_maps cannot be read"]);
}

#[test]
fn a_process_that_has_ended_or_is_another_one_is_left_out() {
    let (host, vms) = host();
    let stat = |started: u64, state: &str| {
        format!("700 (qemu) {state} {}{started} {}", "0 ".repeat(18), "0 ".repeat(20))
    };
    let left = |meanwhile: &str| {
        host.stat("proc/700", &stat(5, "S"));
        placed(&host, &vms, |_| host.stat("proc/700", meanwhile)).vms.len()
    };
    assert_eq!(left(&stat(5, "S")), 1);
    assert_eq!(left(&stat(5, "Z")), 0);
    assert_eq!(left(&stat(6, "S")), 0);
}

#[test]
fn uplinks_are_below_the_bridge_through_vlans() {
    let (host, vms) = host();
    // br0 has the tap and a VLAN; the VLAN is above eth1, which is a virtio NIC.
    for (upper, lower) in [("br0", "tap0"), ("br0", "eth1.7"), ("eth1.7", "eth1"), ("eth2", "eth1")] {
        host.link(&format!("sys/class/net/{upper}/lower_{lower}"), &format!("../{lower}"));
    }
    host.link("sys/class/net/eth1/device", "../../../devices/pci/0000:00:03.0/virtio1");
    host.file("sys/devices/pci/0000:00:03.0/numa_node", "1\n");
    host.file("sys/devices/pci/0000:00:03.0/msi_irqs/40", "msix\n");
    host.link("sys/devices/pci/0000:00:03.0/virtio1/subsystem", "../../../../bus/virtio");
    host.file("proc/irq/40/smp_affinity_list", "0-3\n");
    let interrupts = |on_0: u64, on_3: u64| {
        host.file(
            "proc/interrupts",
            format!("     CPU0   CPU3\n 40:  {on_0}  {on_3}  PCI-MSIX virtio1-input.0\n"),
        );
    };
    interrupts(5, 100);
    let vm = placed(&host, &vms, |_| interrupts(7, 130)).vms.remove(0);
    let [nic] = &vm.nics[..] else { panic!("{vm:?}") };
    let [uplink] = &nic.uplinks[..] else { panic!("{nic:?}") };
    assert_eq!((nic.name.as_str(), uplink.name.as_str(), uplink.node), ("tap0", "eth1", Some(1)));
    assert_eq!(uplink.interrupts, BTreeMap::from([(0, 2), (1, 30)]));
}
