//! Which control group a process is in, and groups of teiji's own.
//!
//! ```text
//! /                        +cpu in cgroup.subtree_control
//! ├── machine.slice/…      where the process was
//! └── teiji                +cpu in cgroup.subtree_control
//!     └── vm-<pid>         made for the process; removed once it has left, `teiji` with the last one
//! ```
//! A controller that was switched on for the children of a group stays on: for children with the default weight and
//! limit it means equal shares, and others may rely on it by now.
//!
//! All threads of a process move with it. A vhost worker that is a kernel thread (before Linux 6.4) is not one of them
//! and stays.

use super::{Access, Facts, errors, file};
use crate::cgroup::{self, Hierarchy, OWN};
use crate::root::Root;
use crate::task::{alive, gone, task};
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::fs;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Task, Value};

pub(super) struct Group;

impl Access for Group {
    fn kind(&self) -> ResourceKind {
        ResourceKind::Group
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for (vm, groups) in facts.vms.iter().zip(facts.groups) {
            let hierarchy = facts.hierarchy.map_err(errors::unsupported);
            let read = hierarchy.and_then(|_| only(groups, vm.process));
            found.record(Resource::Group(vm.process), read.map(Value::Group));
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::Group(task) = resource else { return Err(errors::no_such_value()) };
        alive(root, *task)?;
        let hierarchy = Hierarchy::find(root).map_err(errors::unsupported)?;
        let group = present(&hierarchy, *task)?;
        alive(root, *task)?;
        Ok(Value::Group(group))
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::Group(task), Value::Group(group)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        write(root, *task, group)
    }
}

/// The group that all threads of a process are in.
///
/// # Errors
/// `Unsupported` if they are in several: moving the process would move them into one, which could not be undone.
fn present(hierarchy: &Hierarchy, task: Task) -> Result<String, ResourceError> {
    only(&hierarchy.of_threads(task.id), task)
}

/// What [`present`] returns if these are the groups of its threads.
fn only(groups: &BTreeSet<String>, task: Task) -> Result<String, ResourceError> {
    let mut groups = groups.iter();
    let group = groups.next().ok_or_else(|| gone(task))?;
    if groups.next().is_some() {
        return Err(errors::unsupported(
            "its threads are in several groups, as those of libvirt's VMs are, and would not return to them; use \
             virsh schedinfo instead",
        ));
    }
    if group.ends_with(" (deleted)") {
        return Err(errors::unsupported("its group has been removed"));
    }
    if !cgroup::is_group(group) {
        return Err(errors::unsupported(
            "its group is outside of this cgroup namespace; run teiji on the host itself",
        ));
    }
    Ok(group.clone())
}

/// Moves a process. A group below `/teiji/` is made for it; any other group must exist. teiji's own groups that are
/// then empty are removed.
///
/// # Errors
/// `Refused` if teiji cannot use the group, or if the move could not be undone.
fn write(root: &Root, task: Task, group: &str) -> Result<(), ResourceError> {
    if !cgroup::is_group(group) || group == OWN {
        return Err(errors::impossible("that is no path of a control group that can hold a process"));
    }
    let hierarchy = Hierarchy::find(root).map_err(errors::unsupported)?;
    if cgroup::is_own(group) {
        return enter(root, &hierarchy, task, group).inspect_err(|_| sweep(root, &hierarchy));
    }
    let result = leave(root, &hierarchy, task, group);
    // Also if the process has ended, or was killed between the creation of the group and the move.
    sweep(root, &hierarchy);
    result
}

/// Moves a process into one of teiji's own groups.
fn enter(root: &Root, hierarchy: &Hierarchy, task: Task, group: &str) -> Result<(), ResourceError> {
    alive(root, task)?;
    let before = present(hierarchy, task)?;
    if before == group {
        return Ok(());
    }
    let alone = hierarchy.members(&before).is_none_or(|all| all.iter().all(|pid| *pid == task.id));
    if before.ends_with(".scope") && alone {
        return Err(errors::impossible(
            "the process is the only one of its scope; systemd removes a scope that becomes empty, so the process \
             could not return to it; set weight and limit of that scope itself",
        ));
    }
    make(root, hierarchy, group)?;
    migrate(root, hierarchy, task, group)
}

/// Moves a process back into a group that others made.
fn leave(root: &Root, hierarchy: &Hierarchy, task: Task, group: &str) -> Result<(), ResourceError> {
    alive(root, task)?;
    if !hierarchy.exists(group) {
        return Err(missing(group));
    }
    match present(hierarchy, task)? == group {
        true => Ok(()),
        false => migrate(root, hierarchy, task, group),
    }
}

/// Moves a process by one write, which moves all of its threads or none.
fn migrate(root: &Root, hierarchy: &Hierarchy, task: Task, group: &str) -> Result<(), ResourceError> {
    let file = hierarchy.path(group, "cgroup.procs");
    file::write(root, &file, &task.id.to_string()).map_err(|errno| match errno {
        Errno::ESRCH => gone(task),
        Errno::EBUSY | Errno::EOPNOTSUPP => errors::refused(
            errno,
            "that group may not hold processes, because it enables controllers for the groups below it",
            "name one of those",
        ),
        Errno::EINVAL => errors::refused(
            errno,
            "the process cannot be moved: it is a kernel thread, or has real-time threads and the group no time for \
             them (CONFIG_RT_GROUP_SCHED)",
            "take the real-time class away first",
        ),
        Errno::ENOENT | Errno::ENODEV => missing(group),
        other => errors::failed(other, &format!("control group {group}")),
    })
}

/// The group to move to does not exist. The process does, so nothing that could be restored is gone.
fn missing(group: &str) -> ResourceError {
    errors::impossible(format!(
        "control group {group} no longer exists (systemd removes that of a session when its user logs out); move the \
         process into another group yourself (write its id to the group's cgroup.procs), and teiji leaves it there"
    ))
}

/// The threads that move with a process: before Linux 6.2 they may then run on all CPUs of the group
/// (`cpuset_attach()`).
pub(super) fn disturbs(root: &Root, resource: &Resource) -> Vec<Resource> {
    let Resource::Group(process) = resource else { return Vec::new() };
    if alive(root, *process).is_err() {
        return Vec::new();
    }
    let Some(tasks) = root.dir(&format!("proc/{}/task", process.id)) else { return Vec::new() };
    tasks.threads().into_iter().filter_map(|id| task(root, id)).map(Resource::ThreadCpus).collect()
}

/// Makes one of teiji's own groups, with the CPU controller if the hierarchy has it.
fn make(root: &Root, hierarchy: &Hierarchy, group: &str) -> Result<(), ResourceError> {
    let mut made = String::new();
    for part in group.trim_matches('/').split('/') {
        if hierarchy.has_cpu() {
            enable_cpu(root, hierarchy, if made.is_empty() { "/" } else { &made })?;
        }
        made = format!("{made}/{part}");
        match fs::create_dir(root.path(&hierarchy.path(&made, ""))).map_err(file::number) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno @ (Errno::EAGAIN | Errno::ENOMEM)) => {
                return Err(errors::refused(
                    errno,
                    "the hierarchy may have no more groups",
                    "raise cgroup.max.descendants and cgroup.max.depth",
                ));
            }
            Err(other) => return Err(errors::failed(other, "cgroup v2 hierarchy")),
        }
    }
    Ok(())
}

/// Switches the CPU controller on for the groups below `group`, if it is off.
pub(super) fn enable_cpu(root: &Root, hierarchy: &Hierarchy, group: &str) -> Result<(), ResourceError> {
    let file = hierarchy.path(group, "cgroup.subtree_control");
    let enabled =
        file::read(root, &file).map_err(|e| errors::failed(e, &format!("control group {group}")))?;
    if enabled.split_whitespace().any(|c| c == "cpu") {
        return Ok(());
    }
    file::write(root, &file, "+cpu").map_err(|errno| match errno {
        Errno::EBUSY => errors::refused(
            errno,
            &format!("control group {group} holds processes itself, so groups below it cannot have CPU weights"),
            "move those into a group below it",
        ),
        Errno::EINVAL => errors::refused(
            errno,
            "the CPU controller cannot be switched on while real-time threads are in groups (CONFIG_RT_GROUP_SCHED)",
            "end those or move them into the root group",
        ),
        Errno::ENOENT => errors::unsupported(format!("control group {group} does not have the CPU controller")),
        other => errors::failed(other, &format!("control group {group}")),
    })
}

/// Removes teiji's own groups that are empty: those of VMs that have left or ended, and those into which no VM was
/// moved because teiji was killed after it had made the group.
pub(super) fn remove_leftovers(root: &Root) {
    if let Ok(hierarchy) = Hierarchy::find(root) {
        sweep(root, &hierarchy);
    }
}

fn sweep(root: &Root, hierarchy: &Hierarchy) {
    let made = hierarchy.children(OWN).into_iter().filter(|name| name.starts_with("vm-"));
    for group in made.map(|name| format!("{OWN}/{name}")).chain([OWN.to_owned()]) {
        // rmdir fails for a group that has processes or groups in it, as intended
        let _ = fs::remove_dir(root.path(&hierarchy.path(&group, "")));
    }
}
