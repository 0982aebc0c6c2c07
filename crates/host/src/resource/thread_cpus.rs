//! CPUs that a thread may run on: `sched_setaffinity(2)`, kernel/sched/syscalls.c.

use super::thread::{changeable, failed};
use super::{Access, Facts, errors};
use crate::root::Root;
use crate::sys;
use crate::task::{alive, gone};
use nix::errno::Errno;
use teiji_model::cpus::CpuSet;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Task, Value};

pub(super) struct ThreadCpus;

impl Access for ThreadCpus {
    fn kind(&self) -> ResourceKind {
        ResourceKind::ThreadCpus
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for thread in facts.threads {
            found.record(Resource::ThreadCpus(thread.task), thread.cpus.clone().map(Value::Cpus));
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::ThreadCpus(task) = resource else { return Err(errors::no_such_value()) };
        alive(root, *task)?;
        let cpus = present(root, *task)?;
        alive(root, *task)?;
        Ok(Value::Cpus(cpus))
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::ThreadCpus(task), Value::Cpus(cpus)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        write(root, *task, cpus)
    }
}

/// CPUs that a thread is allowed on and that are online. Whether the id is still that of this thread is not asked.
pub(super) fn present(root: &Root, task: Task) -> Result<CpuSet, ResourceError> {
    if !root.is_real() {
        return listed_cpus(root, task).ok_or_else(|| gone(task));
    }
    sys::affinity(task.id).map_err(|errno| failed(task, errno))
}

/// # Errors
/// `Refused` if none of the CPUs is allowed, or the thread is a deadline one.
fn write(root: &Root, task: Task, cpus: &CpuSet) -> Result<(), ResourceError> {
    changeable(root, task)?;
    sys::set_affinity(task.id, cpus).map_err(|errno| match errno {
        Errno::EINVAL => errors::refused(
            errno,
            "none of those CPUs is online and in the cpuset of the thread's control group, or the kernel does not let \
             this thread be moved",
            "name others, or widen the cpuset (systemctl set-property UNIT AllowedCPUs=, or libvirt's vcpupin)",
        ),
        Errno::EBUSY => errors::refused(
            errno,
            "a deadline thread must be allowed on all CPUs of its root domain",
            "give it another class first",
        ),
        other => failed(task, other),
    })
}

/// The CPUs according to a copy of procfs: allowed, and online.
fn listed_cpus(root: &Root, task: Task) -> Option<CpuSet> {
    let status = root.text(&format!("proc/{}/status", task.id))?;
    let allowed: CpuSet =
        status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?.trim().parse().ok()?;
    Some(match root.online() {
        Some(online) => allowed.iter().filter(|cpu| online.contains(*cpu)).collect(),
        None => allowed,
    })
}
