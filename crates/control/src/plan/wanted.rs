//! The settings that each section of a policy asks for.

use super::names::{self, shown};
use super::{Draft, HostAndHeld, WantedSetting, channels, packets};
use std::collections::BTreeMap;
use teiji_model::cpus::CpuSet;
use teiji_model::observed::{Observed, ObservedVm};
use teiji_model::operator::MOUNT_CGROUP_2;
use teiji_model::plan::own_group;
use teiji_model::policy::{
    DirectSetting, HostPolicy, LinkPolicy, Located, Policy, SourceLocation, Subject, VmClass, VmPolicy,
};
use teiji_model::resource::{Latency, Owner, Quota, Resource, Scheduling, Task, Value};
use teiji_model::text::duration;

/// Adds every setting that the policy asks for, and the problems.
pub(super) fn collect(policy: &Policy, at: HostAndHeld<'_>, draft: &mut Draft) {
    let observed = at.observed;
    let vms = names::vms(&policy.vms, at, draft);
    for (section, vm) in &vms {
        self::vm(section, vm, at, draft);
    }
    host(&policy.host, observed, draft);
    for section in &policy.links {
        link(section, observed, draft);
    }
    for key in &policy.direct {
        direct(key, &vms, observed, draft);
    }
    channels::collect(policy, at, draft);
    for vf in &policy.vfs {
        let section = format!("vf.{}.{}", shown(&vf.link.value), vf.index.value);
        draft.problem(
            &vf.link.location,
            format!("`{section}` is not supported by this version yet: remove it"),
        );
    }
    contradictions(draft);
}

/// A key, with what all its settings have in common.
struct Key<'a> {
    location: &'a SourceLocation,
    reason: String,
    cost: String,
}

impl Key<'_> {
    fn want(&self, draft: &mut Draft, setting: Resource, wanted: Value, whose: String) {
        let (reason, cost) = (self.reason.clone(), self.cost.clone());
        draft.wants.push(WantedSetting {
            setting,
            wanted,
            whose,
            reason,
            location: self.location.clone(),
            cost,
        });
    }
}

fn vm(section: &VmPolicy, vm: &ObservedVm, at: HostAndHeld<'_>, draft: &mut Draft) {
    let observed = at.observed;
    let name = shown(&section.name.value);
    let (vcpus, workers): (Vec<_>, Vec<_>) = tasks(vm, &name).into_iter().partition(|(_, _, vcpu)| *vcpu);
    let reason = |key: &str| format!("vm.{name}.{key}");

    for (wanted, tasks, key, noun) in [
        (&section.vcpu_cpus, &vcpus, "vcpu_cpus", "vCPU thread"),
        (&section.worker_cpus, &workers, "worker_cpus", "vhost worker"),
    ] {
        let Some(Located { value, location }) = wanted.as_ref().filter(|cpus| usable(cpus, observed, draft))
        else {
            continue;
        };
        let key = Key { location, reason: reason(key), cost: String::new() };
        if tasks.is_empty() {
            draft.warnings.push(format!("`{}` has no effect: {name} has no {noun}", key.reason));
        }
        for (task, whose, _) in tasks {
            key.want(draft, Resource::ThreadCpus(*task), Value::Cpus(value.clone()), whose.clone());
        }
    }

    if let Some(Located { value, location }) = &section.class {
        let (value, cost) = match value {
            VmClass::Threads(class) => (*class, class_cost(class)),
            VmClass::Packets(class) => {
                let by = packets::scheduling(class, location, vm, at, draft);
                let is_ours = matches!(by, Scheduling::Ext { .. });
                (by, if is_ours { packets::cost(class) } else { class_cost(&by) })
            }
        };
        let key = Key { location, reason: reason("class"), cost };
        for (task, whose, vcpu) in vcpus.iter().chain(&workers) {
            let class = if *vcpu { value } else { of_workers(&value) };
            key.want(draft, Resource::ThreadScheduling(*task), Value::Scheduling(class), whose.clone());
        }
    }
    group(section, vm, &name, draft);
}

/// The class of vhost workers if the vCPUs have this one. A real-time vCPU runs until its guest is idle, and a worker
/// of the same priority would have to wait for that, while packets wait for the worker.
fn of_workers(class: &Scheduling) -> Scheduling {
    match class {
        Scheduling::Fifo { priority } => Scheduling::Fifo { priority: priority.saturating_add(1).min(99) },
        other => *other,
    }
}

/// The threads of a VM called `name` (printable), each with its name for people, and whether it is a vCPU.
pub(super) fn tasks(vm: &ObservedVm, name: &str) -> Vec<(Task, String, bool)> {
    // The VMM's numbers: there are gaps where vCPUs were unplugged.
    let index = |i: usize| vm.vm.vcpus.get(i).map_or(i, |vcpu| vcpu.index.into());
    let vcpus = vm.vcpus.iter().enumerate();
    let vcpus = vcpus.map(|(i, t)| (*t, format!("vCPU {} of {name}", index(i)), true));
    let workers = vm.workers.iter().map(|t| (*t, format!("vhost worker of {name}"), false));
    vcpus.chain(workers).collect()
}

fn class_cost(class: &Scheduling) -> String {
    match class {
        Scheduling::Fifo { .. } | Scheduling::RoundRobin { .. } => {
            "ordinary threads on its CPU wait while it runs".to_owned()
        }
        Scheduling::Deadline { runtime, period, .. } => {
            format!(
                "ordinary threads wait while it runs, up to {} of every {}",
                duration(*runtime as f64),
                duration(*period as f64)
            )
        }
        _ => String::new(),
    }
}

/// Weight and quota, and before them a group that belongs to the VM only.
fn group(section: &VmPolicy, vm: &ObservedVm, name: &str, draft: &mut Draft) {
    let location = match (&section.weight, &section.quota) {
        (Some(weight), _) => &weight.location,
        (None, Some(quota)) => &quota.location,
        (None, None) => return,
    };
    let key = |key: &str, location, cost: String| Key { location, reason: format!("vm.{name}.{key}"), cost };
    let Some(present) = &vm.group else {
        let message = format!(
            "weight and quota need control groups of version 2, which this host does not have mounted: \
             {MOUNT_CGROUP_2}, or remove them"
        );
        return draft.problem(location, message);
    };
    let own = own_group(vm.vm.pid);
    // Also if the VM has been moved already: the move is wanted as long as the weight is.
    let group = if vm.group_shared || *present == own {
        let first = if section.weight.is_some() { "weight" } else { "quota" };
        let whose = name.to_owned();
        let cost = if vm.group_shared && *present != own {
            "the limits of the group that it shares no longer apply".to_owned()
        } else {
            String::new()
        };
        let move_to = Value::Group(own.clone());
        key(first, location, cost).want(draft, Resource::Group(vm.process), move_to, whose);
        own
    } else {
        present.clone()
    };
    if let Some(Located { value, location }) = &section.weight {
        let setting = Resource::GroupWeight(group.clone());
        key("weight", location, String::new()).want(draft, setting, Value::Weight(*value), name.to_owned());
    }
    if let Some(Located { value, location }) = &section.quota {
        let quota = value
            .map(|n| Quota { quota_us: u64::from(n) * Quota::PERIOD_US / 1000, period_us: Quota::PERIOD_US });
        let cost = quota.map_or_else(String::new, |q| {
            let (used, period) = (duration(q.quota_us as f64 * 1e3), duration(q.period_us as f64 * 1e3));
            format!("throttled: it does not run once it has used {used} of CPU time in {period}")
        });
        key("quota", location, cost).want(
            draft,
            Resource::GroupQuota(group),
            Value::Quota(quota),
            name.to_owned(),
        );
    }
}

fn host(section: &HostPolicy, observed: &Observed, draft: &mut Draft) {
    if let Some(Located { value, location }) = &section.halt_poll {
        let cost = match value {
            0 => String::new(),
            ns => {
                format!(
                    "up to {} of CPU time per idle vCPU is used for polling at each halt",
                    duration(*ns as f64)
                )
            }
        };
        let key = Key { location, reason: "host.halt_poll".to_owned(), cost };
        key.want(draft, Resource::HaltPoll, Value::Nanoseconds(*value), "the host".to_owned());
    }
    // A policy has no `cpu_latency_cpus` without `cpu_latency`: parsing refuses that.
    if let Some(Located { value, location }) = &section.cpu_latency {
        let cost = match value {
            Latency::Any => "",
            Latency::AtMost(_) => "power: the CPU may not enter deep idle states",
            Latency::None => "power: the CPU spins when it is idle",
        };
        let key = Key { location, reason: "host.cpu_latency".to_owned(), cost: cost.to_owned() };
        let all = Located { value: observed.cpus.clone(), location: location.clone() };
        let cpus = section.cpu_latency_cpus.as_ref().unwrap_or(&all);
        if !usable(cpus, observed, draft) {
            return;
        }
        for cpu in cpus.value.iter() {
            let whose = format!("CPU {cpu}");
            key.want(draft, Resource::CpuLatency(cpu), Value::Latency(*value), whose);
        }
    }
}

fn link(section: &LinkPolicy, observed: &Observed, draft: &mut Draft) {
    let name = shown(&section.name.value);
    let usable = section.irq_cpus.as_ref().filter(|cpus| usable(cpus, observed, draft));
    let Some(Located { value, location }) = usable else { return };
    let key = Key { location, reason: format!("link.{name}.irq_cpus"), cost: String::new() };
    match names::link(&section.name, observed) {
        Ok(link) if link.irqs.is_empty() => {
            draft
                .warnings
                .push(format!("`{}` has no effect: {name} has no interrupt of its own", key.reason));
        }
        Ok(link) => {
            for irq in &link.irqs {
                key.want(draft, Resource::IrqCpus(*irq), Value::Cpus(value.clone()), name.clone());
            }
        }
        Err(message) => draft.problem(&section.name.location, message),
    }
}

/// The resources that a section covers.
enum Covered<'a> {
    Everything,
    /// Those of this device.
    Link(&'a str),
    /// Those of the VM's process, vCPU threads, workers and taps, and of its control group if no other process is in it.
    Vm(&'a ObservedVm),
}

impl Covered<'_> {
    fn covers(&self, owner: &Owner<'_>) -> bool {
        match (self, owner) {
            (Covered::Everything, _) => true,
            (Covered::Link(name), Owner::Device(device)) => device.name == *name,
            // By index: a tap of another network namespace (index 0) may have the name of one here.
            (Covered::Vm(vm), Owner::Device(device)) => {
                vm.vm.nics.iter().any(|nic| nic.ifindex != 0 && nic.ifindex == device.index)
            }
            (Covered::Vm(vm), Owner::Task(task)) => {
                vm.process == *task || vm.vcpus.contains(task) || vm.workers.contains(task)
            }
            (Covered::Vm(vm), Owner::Group(group)) => !vm.group_shared && vm.group.as_deref() == Some(*group),
            _ => false,
        }
    }
}

/// A key that sets all resources of one kind that its section covers.
fn direct(direct: &DirectSetting, vms: &[(&VmPolicy, &ObservedVm)], observed: &Observed, draft: &mut Draft) {
    let Located { value, location } = &direct.value;
    if let Value::Cpus(cpus) = value
        && !usable(&Located { value: cpus.clone(), location: location.clone() }, observed, draft)
    {
        return;
    }
    let (section, whose, subject) = match &direct.subject {
        Subject::Host => ("host".to_owned(), "the host".to_owned(), Covered::Everything),
        Subject::Link(name) => match names::link(name, observed) {
            Ok(link) => {
                (format!("link.{}", shown(&name.value)), shown(&name.value), Covered::Link(&link.name))
            }
            Err(message) => return draft.problem(&name.location, message),
        },
        Subject::Vm(name) => {
            // A section that means no VM has been reported already.
            let Some((_, vm)) = vms.iter().find(|(section, _)| section.name.value == name.value) else {
                return;
            };
            (format!("vm.{}", shown(&name.value)), shown(&name.value), Covered::Vm(vm))
        }
    };
    let is_meant = |resource: &&Resource| resource.kind() == direct.kind && subject.covers(&resource.owner());
    let key = Key { location, reason: format!("{section}.{}", direct.key), cost: direct.cost.to_owned() };
    let all: Vec<Resource> = observed.settings.all().filter(is_meant).cloned().collect();
    if all.is_empty() {
        draft.warnings.push(format!("`{}` has no effect: {whose} has nothing that it sets", key.reason));
    }
    for resource in all {
        key.want(draft, resource, value.clone(), whose.clone());
    }
}

/// Whether the CPUs are online; if not, this is reported.
fn usable(cpus: &Located<CpuSet>, observed: &Observed, draft: &mut Draft) -> bool {
    let absent = cpus.value.without(&observed.cpus);
    if cpus.value.is_empty() {
        draft.problem(&cpus.location, format!("no CPU is named; online are {}", observed.cpus));
    } else if !absent.is_empty() {
        let (noun, verb) = if absent.len() == 1 { ("CPU", "is") } else { ("CPUs", "are") };
        let message = format!("{noun} {absent} {verb} not online; online are {}", observed.cpus);
        draft.problem(&cpus.location, message);
    } else {
        return true;
    }
    false
}

/// Each setting occurs once: two devices may share an interrupt.
fn contradictions(draft: &mut Draft) {
    let mut first: BTreeMap<Resource, (Value, String)> = BTreeMap::new();
    let mut problems = Vec::new();
    draft.wants.retain(|want| {
        let Some((value, reason)) = first.get(&want.setting) else {
            first.insert(want.setting.clone(), (want.wanted.clone(), want.reason.clone()));
            return true;
        };
        if *value != want.wanted {
            let message = format!(
                "`{}` asks for {}, but `{reason}` asks for {value}, for the same setting ({}): write the same value in \
                 both",
                want.reason, want.wanted, want.setting
            );
            problems.push((want.location.clone(), message));
        }
        false
    });
    for (location, message) in problems {
        draft.problem(&location, message);
    }
}
