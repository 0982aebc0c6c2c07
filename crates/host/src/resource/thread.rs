//! Shared by the resources of threads.

use super::errors;
use crate::root::Root;
use crate::task::{alive, gone};
use nix::errno::Errno;
use teiji_model::observed::ObservedVm;
use teiji_model::resource::{ResourceError, Task};

/// The threads of VMs that are scheduled: vCPUs and vhost workers.
pub(super) fn of_vms(vms: &[ObservedVm]) -> impl Iterator<Item = Task> {
    vms.iter().flat_map(|vm| vm.vcpus.iter().chain(&vm.workers)).copied()
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
