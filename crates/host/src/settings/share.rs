//! A control group's share of CPU time: `cpu.weight` and `cpu.max` (cgroup-v2.rst, "CPU Interface Files").
//!
//! A group has these files only if the group above hands the CPU controller on. Where it does not, the group gets
//! what the defaults would give it, and so that is what is read; the controller is switched on when another value
//! is written, from the root group down, and stays on. A group of teiji's own that is yet to be made has the
//! defaults as well.

use super::attempt::Attempt;
use super::{file, group};
use crate::cgroup::{self, Hierarchy};
use crate::root::Root;
use nix::errno::Errno;
use teiji_model::setting::{Quota, SettingError};

/// The kernel's default weight.
const WEIGHT: u32 = 100;
/// The kernel's default period, µs.
const PERIOD_US: u64 = 100_000;

/// 1 to 10,000.
pub(super) fn read_weight(root: &Root, group: &str, attempt: &Attempt) -> Result<u32, SettingError> {
    match read(root, group, "cpu.weight", attempt)? {
        None => Ok(WEIGHT),
        Some(text) => text.parse().map_err(|_| attempt.unexpected(&text)),
    }
}

pub(super) fn write_weight(
    root: &Root,
    group: &str,
    weight: u32,
    attempt: &Attempt,
) -> Result<(), SettingError> {
    write(root, group, "cpu.weight", &weight.to_string(), weight == WEIGHT, attempt)
}

pub(super) fn read_quota(root: &Root, group: &str, attempt: &Attempt) -> Result<Option<Quota>, SettingError> {
    let Some(text) = read(root, group, "cpu.max", attempt)? else { return Ok(None) };
    parse_quota(&text).ok_or_else(|| attempt.unexpected(&text))
}

pub(super) fn write_quota(
    root: &Root,
    group: &str,
    quota: Option<Quota>,
    attempt: &Attempt,
) -> Result<(), SettingError> {
    let text = match quota {
        None => format!("max {PERIOD_US}"),
        Some(Quota { quota_us, period_us }) => format!("{quota_us} {period_us}"),
    };
    write(root, group, "cpu.max", &text, quota.is_none(), attempt)
}

/// `max 100000`, `50000 100000`: quota and period, µs.
fn parse_quota(text: &str) -> Option<Option<Quota>> {
    let (quota, period) = text.split_once(' ')?;
    let period_us = period.parse().ok()?;
    match quota {
        "max" => Some(None),
        us => Some(Some(Quota { quota_us: us.parse().ok()?, period_us })),
    }
}

/// The hierarchy, if groups of it can share CPU time and this is a group that can.
fn hierarchy<'a>(root: &'a Root, group: &str, attempt: &Attempt) -> Result<Hierarchy<'a>, SettingError> {
    if !cgroup::is_group(group) || group == "/" {
        return Err(
            attempt.unsupported("the root group has neither weight nor limit, and no other path is a group")
        );
    }
    let hierarchy = Hierarchy::find(root).map_err(|why| attempt.unsupported(why))?;
    match hierarchy.has_cpu() {
        true => Ok(hierarchy),
        false => Err(attempt.unsupported(
            "the CPU controller is not in the cgroup v2 hierarchy: a cgroup v1 hierarchy has it, or the kernel lacks \
             CONFIG_CGROUP_SCHED; boot with systemd.unified_cgroup_hierarchy=1",
        )),
    }
}

/// `None`: the kernel's default, for there is no such file.
fn read(root: &Root, group: &str, name: &str, attempt: &Attempt) -> Result<Option<String>, SettingError> {
    let hierarchy = hierarchy(root, group, attempt)?;
    match file::read(root, &hierarchy.path(group, name)) {
        Ok(text) => Ok(Some(text)),
        Err(Errno::ENOENT) if hierarchy.exists(group) || cgroup::is_own(group) => Ok(None),
        // ENODEV: the group was removed while its file was open
        Err(errno) => Err(attempt.failed(errno, &format!("control group {group}"))),
    }
}

fn write(
    root: &Root,
    group: &str,
    name: &str,
    text: &str,
    is_default: bool,
    attempt: &Attempt,
) -> Result<(), SettingError> {
    let hierarchy = hierarchy(root, group, attempt)?;
    let file = hierarchy.path(group, name);
    if !root.exists(&file) {
        if is_default && (hierarchy.exists(group) || cgroup::is_own(group)) {
            return Ok(()); // it is so already
        }
        if !hierarchy.exists(group) {
            return Err(attempt.failed(Errno::ENOENT, &format!("control group {group}")));
        }
        let mut above: Vec<&str> =
            std::iter::successors(cgroup::parent(group), |g| cgroup::parent(g)).collect();
        above.reverse();
        for parent in above {
            group::enable_cpu(root, &hierarchy, parent, attempt)?;
        }
    }
    file::write(root, &file, text).map_err(|errno| match errno {
        Errno::EINVAL | Errno::ERANGE => attempt.refused(
            errno,
            "the kernel does not accept that value",
            "a weight is 1 to 10000; a limit is at least 1000 µs in a period of 1000 to 1000000 µs",
        ),
        other => attempt.failed(other, &format!("control group {group}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_quota("max 100000"), Some(None));
        let quota = Quota { quota_us: 150_000, period_us: 100_000 };
        assert_eq!(parse_quota("150000 100000"), Some(Some(quota)));
        for wrong in ["", "max", "x 100000", "1000 x"] {
            assert_eq!(parse_quota(wrong), None, "{wrong}");
        }
    }
}
