//! CPUs that an interrupt may be delivered to: `/proc/irq/<n>/smp_affinity_list`
//! (Documentation/core-api/irq/irq-affinity.rst, kernel/irq/proc.c).
//!
//! The file has the requested CPUs; the CPU that the interrupt goes to now is in `effective_affinity_list`.

use super::{Access, Facts, errors, file};
use crate::root::Root;
use nix::errno::Errno;
use teiji_model::cpus::CpuSet;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Value};

/// Why an interrupt cannot be moved. Newer kernels make its file read-only (`register_irq_proc`), older ones refuse the
/// write.
const MANAGED: &str = "the kernel distributes this interrupt itself (a managed interrupt: the driver's \
                                  options or isolcpus=managed_irq decide), or its controller cannot move it";

pub(super) struct IrqCpus;

impl Access for IrqCpus {
    fn kind(&self) -> ResourceKind {
        ResourceKind::IrqCpus
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        let all = facts.links.iter().flat_map(|link| &link.irqs);
        facts.read_each(self, all.map(|irq| Resource::IrqCpus(*irq)), found);
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::IrqCpus(irq) = resource else { return Err(errors::no_such_value()) };
        read(root, *irq).map(Value::Cpus)
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::IrqCpus(irq), Value::Cpus(cpus)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        write(root, *irq, cpus)
    }

    fn fixed(&self, root: &Root, resource: &Resource) -> Option<ResourceError> {
        let Resource::IrqCpus(irq) = resource else { return None };
        file::is_read_only(root, &path(*irq)).then(|| errors::fixed(MANAGED))
    }
}

/// # Errors
/// `Gone` if there is no such interrupt.
fn read(root: &Root, irq: u32) -> Result<CpuSet, ResourceError> {
    let text = file::read(root, &path(irq)).map_err(|e| errors::failed(e, &name(irq)))?;
    text.parse().map_err(|_| errors::unexpected(&text))
}

/// # Errors
/// `Refused` for an interrupt that the kernel distributes itself, and for CPUs that are offline.
fn write(root: &Root, irq: u32, cpus: &CpuSet) -> Result<(), ResourceError> {
    if cpus.is_empty() {
        return Err(errors::impossible("an interrupt needs a CPU"));
    }
    file::write(root, &path(irq), &cpus.to_string()).map_err(|errno| match errno {
        // EIO in older kernels, EPERM in newer ones (write_irq_affinity)
        Errno::EIO | Errno::EPERM => errors::refused(errno, MANAGED, "leave it where it is"),
        Errno::ENOSPC => errors::refused(
            errno,
            "those CPUs have no interrupt vector left",
            "name more CPUs, or give the device fewer queues with ethtool -L",
        ),
        Errno::EINVAL | Errno::ERANGE | Errno::EOVERFLOW => errors::refused(
            errno,
            "none of those CPUs is online, or one of them does not exist",
            "name others",
        ),
        other => errors::failed(other, &name(irq)),
    })
}

fn path(irq: u32) -> String {
    format!("proc/irq/{irq}/smp_affinity_list")
}

fn name(irq: u32) -> String {
    format!("interrupt {irq}")
}
