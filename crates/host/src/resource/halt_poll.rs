//! How long KVM polls before it lets a halted vCPU sleep, host-wide, ns: `/sys/module/kvm/parameters/halt_poll_ns`
//! (Documentation/virt/kvm/halt-polling.rst). Up to Linux 6.1 a VM keeps the value from when it was made; from 6.2 on a
//! change applies to all VMs at once.

use super::{Access, Facts, errors, file};
use crate::root::Root;
use nix::errno::Errno;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Value};

/// The parameter.
const HALT_POLL: &str = "sys/module/kvm/parameters/halt_poll_ns";
/// Why the parameter cannot be changed.
const READ_ONLY: &str =
    "this kernel makes the parameter read-only; boot with kvm.halt_poll_ns=N on its command line instead";

pub(super) struct HaltPoll;

impl Access for HaltPoll {
    fn kind(&self) -> ResourceKind {
        ResourceKind::HaltPoll
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        facts.read_each(self, [Resource::HaltPoll], found);
    }

    /// In ns; 0 is off.
    fn read(&self, root: &Root, _: &Resource) -> Result<Value, ResourceError> {
        let text = file::read(root, HALT_POLL).map_err(failed)?;
        text.parse().map(Value::Nanoseconds).map_err(|_| errors::unexpected(&text))
    }

    /// At most 4,294,967,295 ns.
    fn write(&self, root: &Root, _: &Resource, value: &Value) -> Result<(), ResourceError> {
        let Value::Nanoseconds(ns) = value else { return Err(errors::no_such_value()) };
        file::write(root, HALT_POLL, &ns.to_string()).map_err(failed)
    }

    fn fixed(&self, root: &Root, _: &Resource) -> Option<ResourceError> {
        file::is_read_only(root, HALT_POLL).then(|| errors::fixed(READ_ONLY))
    }
}

fn failed(errno: Errno) -> ResourceError {
    match errno {
        Errno::ENOENT => {
            errors::unsupported("the kernel module kvm is not loaded; load kvm_intel or kvm_amd")
        }
        other => errors::failed(other, HALT_POLL),
    }
}
