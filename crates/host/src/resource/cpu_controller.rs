//! Files of a control group that share CPU time out (cgroup-v2.rst, "CPU Interface Files").
//!
//! A group has these files only if its parent enables the CPU controller for its children. Otherwise the group behaves
//! as with the defaults, so these are read. When another value is written, the controller is switched on from the root
//! group down, and stays on. One of teiji's own groups that does not exist yet also has the defaults.

use super::{errors, file, group};
use crate::cgroup::{self, Hierarchy};
use crate::root::Root;
use nix::errno::Errno;
use teiji_model::observed::ObservedVm;
use teiji_model::plan::own_group;
use teiji_model::resource::ResourceError;

/// The groups that belong to one VM only: its present one, if no other process is in it, and the one that teiji would
/// make.
pub(super) fn groups(vms: &[ObservedVm]) -> impl Iterator<Item = String> {
    vms.iter().flat_map(|vm| {
        let present = vm.group.clone().filter(|_| !vm.group_shared);
        present.into_iter().chain([own_group(vm.vm.pid)])
    })
}

/// Ok if groups of the hierarchy can share CPU time and this group can.
fn usable(hierarchy: &Hierarchy<'_>, group: &str) -> Result<(), ResourceError> {
    if !cgroup::is_group(group) || group == "/" {
        let why = "the root group has neither weight nor limit, and no other path is a group";
        return Err(errors::unsupported(why));
    }
    match hierarchy.has_cpu() {
        true => Ok(()),
        false => Err(errors::unsupported(
            "the CPU controller is not in the cgroup v2 hierarchy: a cgroup v1 hierarchy has it, or the kernel lacks \
             CONFIG_CGROUP_SCHED; boot with systemd.unified_cgroup_hierarchy=1",
        )),
    }
}

/// `None` if there is no such file: the kernel's default applies.
pub(super) fn read(
    root: &Root,
    hierarchy: Result<&Hierarchy<'_>, &'static str>,
    group: &str,
    name: &str,
) -> Result<Option<String>, ResourceError> {
    let hierarchy = hierarchy.map_err(errors::unsupported)?;
    usable(hierarchy, group)?;
    match file::read(root, &hierarchy.path(group, name)) {
        Ok(text) => Ok(Some(text)),
        Err(Errno::ENOENT) if cgroup::is_own(group) || hierarchy.exists(group) => Ok(None),
        // ENODEV: the group was removed while its file was open
        Err(errno) => Err(errors::failed(errno, &format!("control group {group}"))),
    }
}

pub(super) fn write(
    root: &Root,
    group: &str,
    name: &str,
    text: &str,
    is_default: bool,
) -> Result<(), ResourceError> {
    let hierarchy = Hierarchy::find(root).map_err(errors::unsupported)?;
    usable(&hierarchy, group)?;
    let file = hierarchy.path(group, name);
    if !root.exists(&file) {
        if is_default && (hierarchy.exists(group) || cgroup::is_own(group)) {
            return Ok(()); // it already is the default
        }
        if !hierarchy.exists(group) {
            return Err(errors::failed(Errno::ENOENT, &format!("control group {group}")));
        }
        let mut above: Vec<&str> =
            std::iter::successors(cgroup::parent(group), |g| cgroup::parent(g)).collect();
        above.reverse();
        for parent in above {
            group::enable_cpu(root, &hierarchy, parent)?;
        }
    }
    file::write(root, &file, text).map_err(|errno| match errno {
        Errno::EINVAL | Errno::ERANGE => errors::refused(
            errno,
            "the kernel does not accept that value",
            "a weight is 1 to 10000; a limit is at least 1000 µs in a period of 1000 to 1000000 µs",
        ),
        other => errors::failed(other, &format!("control group {group}")),
    })
}
