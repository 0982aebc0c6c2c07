//! Shared by the resources of threads.

use super::{errors, thread_cpus, thread_scheduling};
use crate::root::Root;
use crate::task::{alive, gone};
use nix::errno::Errno;
use teiji_model::cpus::CpuSet;
use teiji_model::observed::ObservedVm;
use teiji_model::resource::{ResourceError, Scheduling, Task};

/// What can be changed of a thread.
pub(crate) struct ThreadSettings {
    pub task: Task,
    pub cpus: Result<CpuSet, ResourceError>,
    pub scheduling: Result<Scheduling, ResourceError>,
}

/// The threads of VMs that are scheduled: vCPUs and vhost workers. Those that have vanished are left out.
pub(crate) fn settings(root: &Root, vms: &[ObservedVm]) -> Vec<ThreadSettings> {
    let of = |task: Task| {
        let cpus = thread_cpus::present(root, task);
        let scheduling = thread_scheduling::present(root, task);
        // So both are those of this thread.
        alive(root, task).ok()?;
        Some(ThreadSettings { task, cpus, scheduling })
    };
    vms.iter().flat_map(|vm| vm.vcpus.iter().chain(&vm.workers)).copied().filter_map(of).collect()
}

/// Ok if the thread is alive, and if system calls can reach it.
pub(super) fn changeable(root: &Root, task: Task) -> Result<(), ResourceError> {
    alive(root, task)?;
    match root.is_real() {
        true => Ok(()),
        false => {
            Err(errors::unsupported("it is not a thread of the running kernel but of a copy of its files"))
        }
    }
}

pub(super) fn failed(task: Task, errno: Errno) -> ResourceError {
    match errno {
        Errno::ESRCH => gone(task),
        Errno::EPERM | Errno::EACCES => errors::not_permitted(errno, "CAP_SYS_NICE"),
        other => errors::failed(other, &format!("thread {}", task.id)),
    }
}
