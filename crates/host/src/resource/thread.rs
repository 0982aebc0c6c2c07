//! Shared by the resources of threads.

use super::{errors, thread_cpus, thread_scheduling};
use crate::root::Root;
use crate::task::{alive, gone};
use nix::errno::Errno;
use std::mem::take;
use teiji_model::cpus::CpuSet;
use teiji_model::observed::ObservedVm;
use teiji_model::resource::{ResourceError, Scheduling, Task};

/// What can be changed of a thread.
pub(crate) struct ThreadSettings {
    pub task: Task,
    pub cpus: Result<CpuSet, ResourceError>,
    pub scheduling: Result<Scheduling, ResourceError>,
}

/// The threads of VMs that are scheduled: vCPUs and vhost workers. Those that have ended are left out, of the VMs too: nobody
/// would find a value of theirs.
pub(crate) fn settings(root: &Root, vms: &mut [ObservedVm]) -> Vec<ThreadSettings> {
    let mut all = Vec::new();
    for vm in vms {
        all.extend(of_each(root, &mut vm.vcpus, &mut vm.vm.vcpus));
        all.extend(of_each(root, &mut vm.workers, &mut vm.vm.workers));
    }
    all
}

/// Those of the threads in two lists of the same order.
fn of_each<T>(root: &Root, tasks: &mut Vec<Task>, of_vm: &mut Vec<T>) -> Vec<ThreadSettings> {
    let mut all = Vec::new();
    for (task, thread) in take(tasks).into_iter().zip(take(of_vm)) {
        let cpus = thread_cpus::present(root, task);
        let scheduling = thread_scheduling::present(root, task);
        // So both are those of this thread.
        if alive(root, task).is_ok() {
            tasks.push(task);
            of_vm.push(thread);
            all.push(ThreadSettings { task, cpus, scheduling });
        }
    }
    all
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
