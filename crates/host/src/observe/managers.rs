//! Other programs that change the settings that teiji changes, and cpusets that limit them.
//!
//! Files of other programs are only searched for the relevant keywords, and not interpreted completely.

use crate::cgroup::Hierarchy;
use crate::resource::Facts;
use crate::root::Root;
use crate::thread::Thread;
use std::collections::BTreeSet;
use teiji_model::cpus::CpuSet;
use teiji_model::observed::{Manager, ObservedVm};
use teiji_model::resource::ResourceKind;
use teiji_model::text::printable;

/// Where systemd looks for its files, strongest first (systemd.unit(5)).
const SYSTEMD: [&str; 4] = ["etc/systemd", "run/systemd", "usr/lib/systemd", "lib/systemd"];

pub(super) fn managers(facts: &Facts<'_>, processes: &[Thread]) -> Vec<Manager> {
    let Facts { root, cpus, vms, groups, .. } = *facts;
    let mut all = daemons(processes);
    all.extend(vms.iter().filter_map(|vm| of_vm(vm, libvirt(root, vm))));
    all.extend(system_conf(root));
    all.extend(vms.iter().filter_map(|vm| of_vm(vm, unit(root, vm))));
    if let Ok(hierarchy) = facts.hierarchy {
        let limited = |(vm, groups)| of_vm(vm, cpuset(hierarchy, cpus, vm, groups));
        all.extend(vms.iter().zip(groups).filter_map(limited));
    }
    all
}

fn manager(name: &str, touches: &[ResourceKind], advice: String) -> Manager {
    Manager { name: name.to_owned(), advice, touches: touches.to_vec(), vm: None }
}

/// A manager that changes settings of this VM only.
fn of_vm(vm: &ObservedVm, manager: Option<Manager>) -> Option<Manager> {
    manager.map(|manager| Manager { vm: Some(vm.process), ..manager })
}

/// Daemons by the names of their processes.
fn daemons(processes: &[Thread]) -> Vec<Manager> {
    let runs = |name: &str| processes.iter().any(|process| process.name == name);
    let mut all = Vec::new();
    if runs("irqbalance") {
        all.push(manager(
            "irqbalance",
            &[ResourceKind::IrqCpus],
            "irqbalance is running and moves interrupts to other CPUs every ten seconds: stop it (systemctl stop \
             irqbalance), or keep it from these with --banirq"
                .to_owned(),
        ));
    }
    if runs("tuned") {
        all.push(manager(
            "tuned",
            &[
                ResourceKind::ThreadCpus,
                ResourceKind::ThreadScheduling,
                ResourceKind::IrqCpus,
                ResourceKind::Governor,
                ResourceKind::HaltPoll,
                ResourceKind::CpuLatency,
            ],
            "tuned is running and sets what its profile says when it starts or the profile changes: see that \
             tuned-adm active agrees with the policy"
                .to_owned(),
        ));
    }
    all
}

/// A VM that libvirt started, and whose threads it pins or schedules.
///
/// The state of a running domain is in `/run/libvirt/qemu/<name>.xml`. libvirt changes the threads of a running VM only
/// when it is told to, but at the next start of the VM it applies these settings.
fn libvirt(root: &Root, vm: &ObservedVm) -> Option<Manager> {
    let name = &vm.vm.name;
    let sane = !name.contains('/') && !name.starts_with('.');
    let state = sane.then(|| root.text(&format!("run/libvirt/qemu/{name}.xml"))).flatten();
    // A guest may have the same name as the domain of another VM.
    let state = state.filter(|xml| xml.contains(&format!(" pid='{}'", vm.vm.pid)));
    let name = printable(name);
    let Some(xml) = state else {
        let in_slice = vm.group.as_deref().is_some_and(|g| g.starts_with("/machine.slice/machine-qemu"));
        return in_slice.then(|| {
            manager(
                "libvirt",
                &[
                    ResourceKind::ThreadCpus,
                    ResourceKind::ThreadScheduling,
                    ResourceKind::Group,
                    ResourceKind::GroupWeight,
                    ResourceKind::GroupQuota,
                ],
                format!(
                    "{name} is libvirt's, and whether libvirt pins it cannot be told, as its state in \
                     /run/libvirt/qemu cannot be read: look with virsh vcpupin, and change it there"
                ),
            )
        });
    };
    let has = |elements: &[&str]| elements.iter().any(|e| xml.contains(&format!("<{e}")));
    let mut touches = Vec::new();
    let mut how = Vec::new();
    if has(&["vcpupin", "emulatorpin", "iothreadpin"]) {
        touches.push(ResourceKind::ThreadCpus);
        how.push("virsh vcpupin and emulatorpin");
    }
    if has(&["vcpusched", "emulatorsched", "iothreadsched"]) {
        touches.push(ResourceKind::ThreadScheduling);
        how.push("virsh edit");
    }
    if has(&["shares>", "quota>", "period>", "emulator_quota", "global_quota"]) {
        touches.extend([ResourceKind::Group, ResourceKind::GroupWeight, ResourceKind::GroupQuota]);
        how.push("virsh schedinfo");
    }
    (!touches.is_empty()).then(|| {
        let how = how.join(", ");
        let advice = format!(
            "libvirt pins or limits {name} itself and will again at its next start: change it with {how}"
        );
        manager("libvirt", &touches, advice)
    })
}

/// `CPUAffinity=` for all that systemd starts.
fn system_conf(root: &Root) -> Option<Manager> {
    let files = SYSTEMD.iter().flat_map(|dir| {
        let drop_ins = format!("{dir}/system.conf.d");
        let mut files = conf(root, &drop_ins);
        files.push(format!("{dir}/system.conf"));
        files
    });
    affinity_in(root, files).map(|(file, cpus)| {
        manager(
            "systemd",
            &[ResourceKind::ThreadCpus],
            format!(
                "systemd starts everything on CPUs {cpus} only (CPUAffinity= in /{file}), so a VM that starts anew is \
                 there again: say the same in both places"
            ),
        )
    })
}

/// `CPUAffinity=` of the service that a VM runs in.
fn unit(root: &Root, vm: &ObservedVm) -> Option<Manager> {
    let unit = vm.group.as_deref()?.split('/').rfind(|part| part.ends_with(".service"))?;
    let template = unit.split_once('@').map(|(name, _)| format!("{name}@.service"));
    let files = [Some(unit.to_owned()), template].into_iter().flatten().flat_map(|unit| {
        SYSTEMD.iter().flat_map(move |dir| {
            let mut files = conf(root, &format!("{dir}/system/{unit}.d"));
            files.extend(conf(root, &format!("{dir}/system.control/{unit}.d")));
            files.push(format!("{dir}/system/{unit}"));
            files
        })
    });
    affinity_in(root, files).map(|(file, cpus)| {
        manager(
            "systemd",
            &[ResourceKind::ThreadCpus],
            format!(
                "systemd starts {} on CPUs {cpus} only (CPUAffinity= in /{}), and will again at its next start: say \
                 the same in both places",
                printable(&vm.vm.name),
                printable(&file)
            ),
        )
    })
}

/// Files that end in `.conf` in a directory, in the order in which they are read.
fn conf(root: &Root, dir: &str) -> Vec<String> {
    let mut names = root.names(dir);
    names.retain(|name| name.ends_with(".conf"));
    names.sort_unstable();
    names.into_iter().map(|name| format!("{dir}/{name}")).collect()
}

/// The first of the files whose last `CPUAffinity=` is not empty, and what it says.
fn affinity_in(root: &Root, files: impl IntoIterator<Item = String>) -> Option<(String, String)> {
    files.into_iter().find_map(|file| {
        let text = root.text(&file)?;
        let value = text.lines().rev().find_map(|l| l.trim().strip_prefix("CPUAffinity="))?.trim();
        (!value.is_empty()).then(|| (file, printable(value)))
    })
}

/// A cpuset of a group that does not let all threads of a VM onto all CPUs.
fn cpuset(
    hierarchy: &Hierarchy<'_>,
    online: &CpuSet,
    vm: &ObservedVm,
    groups: &BTreeSet<String>,
) -> Option<Manager> {
    let limit = |group: &String| {
        let cpus: CpuSet = hierarchy.nearest(group, "cpuset.cpus.effective")?.parse().ok()?;
        (!cpus.is_empty() && !online.without(&cpus).is_empty()).then(|| (group.clone(), cpus))
    };
    let (group, cpus) = groups.iter().find_map(limit)?;
    Some(manager(
        "cpuset",
        &[ResourceKind::ThreadCpus],
        format!(
            "threads of {} in {} may run on CPUs {cpus} only, and the kernel takes others away: widen it with \
             systemctl set-property UNIT AllowedCPUs=, or for libvirt's VMs with virsh vcpupin",
            printable(&vm.vm.name),
            printable(&group)
        ),
    ))
}
