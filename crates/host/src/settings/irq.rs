//! CPUs that an interrupt may be delivered to: `/proc/irq/<n>/smp_affinity_list`
//! (Documentation/core-api/irq/irq-affinity.rst, kernel/irq/proc.c).
//!
//! The file holds the CPUs asked for; the one that the interrupt goes to now is in `effective_affinity_list`.

use super::attempt::Attempt;
use super::file;
use crate::root::Root;
use nix::errno::Errno;
use teiji_model::cpus::CpuSet;
use teiji_model::setting::SettingError;

/// Why an interrupt cannot be moved. Newer kernels take the right to write from its file (`register_irq_proc`), older
/// ones refuse the write.
pub(super) const MANAGED: &str = "the kernel distributes this interrupt itself (a managed interrupt: the driver's \
                                  options or isolcpus=managed_irq decide), or its controller cannot move it";

/// # Errors
/// `Gone` if there is no such interrupt.
pub(super) fn read(root: &Root, irq: u32, attempt: &Attempt) -> Result<CpuSet, SettingError> {
    let text = file::read(root, &path(irq)).map_err(|e| attempt.failed(e, &name(irq)))?;
    text.parse().map_err(|_| attempt.unexpected(&text))
}

/// # Errors
/// `Refused` for an interrupt that the kernel distributes itself, and for CPUs that are offline.
pub(super) fn write(root: &Root, irq: u32, cpus: &CpuSet, attempt: &Attempt) -> Result<(), SettingError> {
    if cpus.is_empty() {
        return Err(attempt.impossible("an interrupt needs a CPU"));
    }
    file::write(root, &path(irq), &cpus.to_string()).map_err(|errno| match errno {
        // EIO in older kernels, EPERM since (write_irq_affinity)
        Errno::EIO | Errno::EPERM => attempt.refused(errno, MANAGED, "leave it where it is"),
        Errno::ENOSPC => attempt.refused(
            errno,
            "those CPUs have no interrupt vector left",
            "name more CPUs, or give the device fewer queues with ethtool -L",
        ),
        Errno::EINVAL | Errno::ERANGE | Errno::EOVERFLOW => attempt.refused(
            errno,
            "none of those CPUs is online, or one of them does not exist",
            "name others",
        ),
        other => attempt.failed(other, &name(irq)),
    })
}

pub(super) fn path(irq: u32) -> String {
    format!("proc/irq/{irq}/smp_affinity_list")
}

fn name(irq: u32) -> String {
    format!("interrupt {irq}")
}
