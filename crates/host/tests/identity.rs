//! The user of a VM's process, and the origin of its name, on generated trees.
#![allow(clippy::unwrap_used)]

mod common;

use common::{FakeHost, KVM};
use teiji_model::host::{Identity, NamedBy, VM_USERS, Vm};

const SIP1: &str = "qemu -name guest=sip1,debug-threads=on";

/// A host with a VM of this user that calls itself sip1.
fn host(pid: u32, uid: u32) -> FakeHost {
    let host = FakeHost::new();
    host.file(
        "etc/passwd",
        "root:x:0:0::/root:/bin/sh\nlibvirt-qemu:x:64055:64055::/:/bin/false\neve:x:1000:1000::/:/bin/sh\n",
    );
    add(&host, pid, uid);
    host
}

fn add(host: &FakeHost, pid: u32, uid: u32) {
    host.vmm(pid, SIP1, &KVM);
    host.file(&format!("proc/{pid}/status"), format!("Name:\tqemu\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"));
}

fn found(host: &FakeHost) -> Vec<(Vm, Identity)> {
    host.root().identified_vms().unwrap()
}

fn identified(host: &FakeHost) -> Vec<(u32, String, NamedBy, Option<String>)> {
    let one = |(vm, of): (Vm, Identity)| (vm.pid, vm.name, of.named_by, of.doubt_by_default());
    found(host).into_iter().map(one).collect()
}

fn state(host: &FakeHost, name: &str, pid: u32) {
    host.file(
        &format!("run/libvirt/qemu/{name}.xml"),
        format!("<!--\nWARNING\n-->\n<domstatus state='running' reason='booted' pid='{pid}'>\n<domain/></domstatus>\n"),
    );
}

#[test]
fn an_ordinary_users_vm_is_doubted() {
    let host = host(700, 0);
    add(&host, 800, 1000);
    add(&host, 900, 4321);
    let sip1 = || "sip1".to_owned();
    let expected = [
        (700, sip1(), NamedBy::Itself, None),
        (800, sip1(), NamedBy::Itself, Some("user eve".to_owned())),
        (900, sip1(), NamedBy::Itself, Some("user 4321".to_owned())),
    ];
    assert_eq!(identified(&host), expected);
    let eve = &found(&host)[1].1;
    assert_eq!((eve.doubt(&["eve"]), eve.doubt(&["1000"])), (None, None));
    assert!(eve.doubt::<&str>(&[]).is_some() && eve.doubt(&["ev", "100"]).is_some());
}

#[test]
fn one_that_has_anothers_rights_is_not_that_one() {
    let host = host(700, 1000);
    host.file("proc/700/status", "Uid:\t1000\t0\t0\t0\n");
    assert_eq!(identified(&host)[0].3.as_deref(), Some("user eve"));
    host.file("proc/700/status", "Uid:\t0\t1000\t0\t0\n");
    assert!(identified(&host)[0].3.is_some());
    host.file("proc/700/status", "Name:\tqemu\n");
    assert_eq!(identified(&host)[0].3.as_deref(), Some("a user that cannot be told"));
}

#[test]
fn libvirts_name_counts_whatever_the_process_says() {
    let host = host(700, 64055);
    assert_eq!(identified(&host)[0].2, NamedBy::Itself);
    state(&host, "db", 700);
    assert_eq!(identified(&host), [(700, "db".to_owned(), NamedBy::Libvirt, None)]);
    // The state of a domain that has ended may have the id of a later process: it does not count if libvirt runs no VM
    // there.
    add(&host, 800, 1000);
    state(&host, "web", 800);
    assert_eq!(identified(&host)[1], (800, "sip1".to_owned(), NamedBy::Itself, Some("user eve".to_owned())));
    // A process of any user counts, in the place where libvirt runs its VMs.
    host.file("proc/800/cgroup", "0::/machine.slice/machine-qemu\\x2d3\\x2dweb.scope/libvirt/emulator\n");
    assert_eq!(identified(&host)[1], (800, "web".to_owned(), NamedBy::Libvirt, None));
}

#[test]
fn a_group_of_libvirts_vouches_for_a_name_where_its_state_cannot_be_read() {
    let host = host(700, 4321);
    let group = |name: &str| host.file("proc/700/cgroup", format!("0::{name}\n"));
    group("/machine.slice/machine-qemu\\x2d3\\x2dsip1.scope");
    assert_eq!(identified(&host)[0].2, NamedBy::Libvirt);
    for other in [
        "/machine.slice/machine-qemu\\x2d3\\x2dsip2.scope",
        "/user.slice/user-4321.slice/machine-qemu\\x2d3\\x2dsip1.scope",
    ] {
        group(other);
        assert_eq!(identified(&host)[0].2, NamedBy::Itself, "{other}");
    }
}

/// A guest that has escaped from QEMU runs as the user of libvirt's VMs, in the control group of its own VM, and starts a
/// process with the name of another VM.
#[test]
fn a_process_that_libvirt_does_not_know_is_none_of_its_vms() {
    let host = host(700, 64055);
    add(&host, 800, 64055);
    let group = |pid: u32, name: &str| {
        let path = format!("/machine.slice/machine-qemu\\x2d{pid}\\x2d{name}.scope/libvirt/emulator");
        host.file(&format!("proc/{pid}/cgroup"), format!("0::{path}\n"));
    };
    let whose = |at: usize| identified(&host)[at].3.clone();
    // Where libvirt does not run, packages of QEMU start VMs as this user.
    assert_eq!((whose(0), whose(1)), (None, None));
    state(&host, "sip1", 700);
    group(700, "sip1");
    group(800, "web");
    assert_eq!(identified(&host)[0].2, NamedBy::Libvirt);
    assert_eq!((whose(0), whose(1)), (None, Some("user libvirt-qemu".to_owned())));
    // A policy that names the user means its processes.
    let escaped = &found(&host)[1].1;
    assert_eq!((escaped.doubt(&["libvirt-qemu"]), escaped.doubt(&VM_USERS)), (None, None));
    // Nor is it trusted when the last VM of libvirt has ended.
    std::fs::remove_file(host.root_path("run/libvirt/qemu/sip1.xml")).unwrap();
    assert_eq!(whose(1), Some("user libvirt-qemu".to_owned()));
}

/// Every process there can be: where libvirt keeps its state, one of its user is trusted only if libvirt has put it into the
/// place of a VM of that name, or its state has it; one of root always, and one of another user never without libvirt.
#[test]
fn the_user_of_libvirts_vms_alone_makes_nobody_trusted() {
    for runs in [false, true] {
        let host = host(100, 0);
        if runs {
            host.file("run/libvirt/qemu/autostarted", "");
        }
        let mut expected = vec![(100, false, true)];
        for uid in [0, 1000, 64055] {
            for scope in [None, Some("sip1"), Some("web")] {
                for known in [false, runs] {
                    let pid = 700 + expected.len() as u32;
                    add(&host, pid, uid);
                    if let Some(name) = scope {
                        let scope = format!("machine-qemu\\x2d1\\x2d{name}.scope");
                        host.file(&format!("proc/{pid}/cgroup"), format!("0::/machine.slice/{scope}\n"));
                    }
                    if known {
                        state(&host, &format!("vm{pid}"), pid);
                    }
                    // All call themselves sip1.
                    let confirmed = scope == Some("sip1") || known && (scope.is_some() || uid != 1000);
                    expected.push((pid, confirmed, confirmed || uid == 0 || uid == 64055 && !runs));
                }
            }
        }
        let of = |(pid, _, named_by, doubt): (u32, String, NamedBy, Option<String>)| {
            (pid, named_by == NamedBy::Libvirt, doubt.is_none())
        };
        let found: Vec<_> = identified(&host).into_iter().map(of).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn what_a_process_says_of_its_taps_is_not_believed() {
    let host = host(700, 0);
    for (name, index) in [("eth0", 2), ("tap9", 3)] {
        for (file, text) in
            [("ifindex", format!("{index}\n")), ("type", "1\n".into()), ("mtu", "1500\n".into())]
        {
            host.file(&format!("sys/class/net/{name}/{file}"), text);
        }
    }
    host.file("sys/class/net/tap9/tun_flags", "0x1002\n");
    host.file("sys/devices/system/cpu/online", "0-3\n");
    let links = || host.root().observe().unwrap().links;
    let before = links();
    assert_eq!(before.iter().map(|l| l.guests).collect::<Vec<_>>(), [false, true]);
    // A VM's tap in its own network namespace may have the name of the host's NIC.
    add(&host, 800, 1000);
    host.tap(800, 20, "eth0", 2);
    assert_eq!(links(), before);
}
