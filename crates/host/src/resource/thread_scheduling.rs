//! How a thread is scheduled: `sched_setattr(2)`, sched(7), kernel/sched/syscalls.c.
//!
//! Flags of `sched_attr` are neither kept nor set: a thread with `SCHED_FLAG_RESET_ON_FORK` or its own time slice has
//! the defaults after a change of its scheduling, also after the undo. VMMs use neither.

use super::errors;
use super::thread::{changeable, failed};
use super::{Access, Facts};
use crate::root::Root;
use crate::sys;
use crate::task::{Stat, alive, gone};
use nix::errno::Errno;
use rustix::thread::CapabilitySet;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Scheduling, Task, Value};

/// `include/uapi/linux/sched.h`.
const POLICY_EXT: i32 = 7;

pub(super) struct ThreadScheduling;

impl Access for ThreadScheduling {
    fn kind(&self) -> ResourceKind {
        ResourceKind::ThreadScheduling
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for thread in facts.threads {
            let read = thread.scheduling.clone().map(Value::Scheduling);
            found.record(Resource::ThreadScheduling(thread.task), read);
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::ThreadScheduling(task) = resource else { return Err(errors::no_such_value()) };
        alive(root, *task)?;
        let scheduling = present(root, *task);
        alive(root, *task)?;
        scheduling.map(Value::Scheduling)
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::ThreadScheduling(task), Value::Scheduling(wanted)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        write(root, *task, *wanted)
    }
}

/// How a thread is scheduled. Whether the id is still that of this thread is not asked.
pub(super) fn present(root: &Root, task: Task) -> Result<Scheduling, ResourceError> {
    let attr = match root.is_real() {
        true => sys::scheduling(task.id).map_err(|errno| failed(task, errno))?,
        false => listed_scheduling(root, task).ok_or_else(|| gone(task))?,
    };
    if !root.is_real() && attr.sched_policy == libc::SCHED_DEADLINE as u32 {
        return Err(errors::unsupported(
            "a copy of procfs does not have the parameters of a deadline thread",
        ));
    }
    from_attr(&attr).ok_or_else(|| {
        errors::unsupported(format!("teiji does not know scheduling policy {}", attr.sched_policy))
    })
}

/// # Errors
/// `Refused` if the kernel does not admit a deadline thread, or the thread's group has no real-time time.
fn write(root: &Root, task: Task, wanted: Scheduling) -> Result<(), ResourceError> {
    changeable(root, task)?;
    sys::set_scheduling(task.id, &to_attr(wanted)).map_err(|errno| match (errno, wanted) {
        (Errno::EPERM, _) if !root.may(CapabilitySet::SYS_NICE) => failed(task, errno),
        (Errno::EPERM, Scheduling::Deadline { .. }) => {
            let (why, fix) = sched_deadline_not_permitted(root, task);
            errors::refused(errno, why, fix)
        }
        (Errno::EPERM, Scheduling::Fifo { .. } | Scheduling::RoundRobin { .. }) => errors::refused(
            errno,
            "the thread's control group has no time for real-time threads",
            "write cpu.rt_runtime_us of its group in the cgroup v1 cpu hierarchy, or boot without that hierarchy",
        ),
        (Errno::EBUSY, Scheduling::Deadline { .. }) => errors::refused(
            errno,
            "the kernel's admission control refuses it: the CPUs' real-time bandwidth (kernel.sched_rt_runtime_us of \
             kernel.sched_rt_period_us) is taken by this and other deadline threads",
            "ask for less runtime or a longer period, or end other deadline threads",
        ),
        (Errno::EINVAL, Scheduling::Deadline { .. }) => errors::refused(
            errno,
            "the kernel wants 1024 ns <= runtime <= deadline <= period, and a period between \
             kernel.sched_deadline_period_min_us and kernel.sched_deadline_period_max_us",
            "choose others",
        ),
        (Errno::EINVAL, Scheduling::Ext { .. }) => {
            errors::refused(errno, "this kernel has no sched_ext", "run one with CONFIG_SCHED_CLASS_EXT")
        }
        (Errno::EACCES, Scheduling::Ext { .. }) => errors::refused(
            errno,
            "the BPF scheduler that is loaded does not accept this thread",
            "look at that scheduler's options",
        ),
        (other, _) => failed(task, other),
    })
}

/// Why a caller with `CAP_SYS_NICE` may not make this thread a deadline thread, and what to do about it.
fn sched_deadline_not_permitted(root: &Root, task: Task) -> (&'static str, &'static str) {
    let online = root.online().unwrap_or_default();
    if root.number("proc/sys/kernel/sched_rt_runtime_us") == Some(0) {
        return (
            "kernel.sched_rt_runtime_us is 0, which leaves no time for real-time threads",
            "set it to 950000 with sysctl",
        );
    }
    match sys::affinity(task.id) {
        Ok(cpus) if !online.without(&cpus).is_empty() => (
            "the thread is pinned, and a deadline thread must be allowed on all CPUs of its root domain",
            "remove its pinning (vcpu_cpus, worker_cpus, libvirt's vcpupin, the group's cpuset), or use \
             class = \"realtime\"",
        ),
        _ => (
            "a deadline thread must be allowed on all CPUs of its root domain; a cpuset may have made that root \
             domain wider than the CPUs of the thread",
            "look at cpuset.cpus of its control group, or use class = \"realtime\"",
        ),
    }
}

fn to_attr(scheduling: Scheduling) -> libc::sched_attr {
    let mut attr = sys::empty_attr();
    attr.sched_policy = match scheduling {
        Scheduling::Other { .. } => libc::SCHED_OTHER as u32,
        Scheduling::Batch { .. } => libc::SCHED_BATCH as u32,
        Scheduling::Idle => libc::SCHED_IDLE as u32,
        Scheduling::Fifo { .. } => libc::SCHED_FIFO as u32,
        Scheduling::RoundRobin { .. } => libc::SCHED_RR as u32,
        Scheduling::Deadline { .. } => libc::SCHED_DEADLINE as u32,
        Scheduling::Ext { .. } => POLICY_EXT as u32,
    };
    match scheduling {
        Scheduling::Other { nice } | Scheduling::Batch { nice } | Scheduling::Ext { nice } => {
            attr.sched_nice = nice.into();
        }
        Scheduling::Fifo { priority } | Scheduling::RoundRobin { priority } => {
            attr.sched_priority = priority.into();
        }
        Scheduling::Deadline { runtime, deadline, period } => {
            (attr.sched_runtime, attr.sched_deadline, attr.sched_period) = (runtime, deadline, period);
        }
        Scheduling::Idle => {}
    }
    attr
}

/// `None` for an unknown policy.
fn from_attr(attr: &libc::sched_attr) -> Option<Scheduling> {
    let nice = i8::try_from(attr.sched_nice).ok()?;
    let priority = u8::try_from(attr.sched_priority).ok()?;
    Some(match i32::try_from(attr.sched_policy).ok()? {
        libc::SCHED_OTHER => Scheduling::Other { nice },
        libc::SCHED_BATCH => Scheduling::Batch { nice },
        libc::SCHED_IDLE => Scheduling::Idle,
        libc::SCHED_FIFO => Scheduling::Fifo { priority },
        libc::SCHED_RR => Scheduling::RoundRobin { priority },
        libc::SCHED_DEADLINE => Scheduling::Deadline {
            runtime: attr.sched_runtime,
            deadline: attr.sched_deadline,
            period: attr.sched_period,
        },
        POLICY_EXT => Scheduling::Ext { nice },
        _ => return None,
    })
}

/// The scheduling according to a copy of procfs, which does not have the parameters of a deadline thread.
fn listed_scheduling(root: &Root, task: Task) -> Option<libc::sched_attr> {
    let stat = Stat::read(root, task.id)?;
    let mut attr = sys::empty_attr();
    attr.sched_nice = stat.number(19)?;
    attr.sched_priority = stat.number(40)?;
    attr.sched_policy = stat.number(41)?;
    Some(attr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_survives_the_way_to_the_kernel_and_back() {
        for scheduling in [
            Scheduling::Other { nice: -20 },
            Scheduling::Batch { nice: 19 },
            Scheduling::Idle,
            Scheduling::Fifo { priority: 1 },
            Scheduling::RoundRobin { priority: 99 },
            Scheduling::Deadline { runtime: 1 << 40, deadline: 1 << 41, period: 1 << 42 },
            Scheduling::Ext { nice: 3 },
        ] {
            assert_eq!(from_attr(&to_attr(scheduling)), Some(scheduling));
        }
        let unknown = libc::sched_attr { sched_policy: 4, ..sys::empty_attr() };
        assert_eq!(from_attr(&unknown), None);
    }
}
