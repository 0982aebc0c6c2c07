//! What it costs a vCPU to wake: KVM's halt polling, host-wide, and the depth of a CPU's idle states.
//!
//! - `/sys/module/kvm/parameters/halt_poll_ns` (Documentation/virt/kvm/halt-polling.rst). Up to Linux 6.1 a VM takes
//!   the value over when it is made; since, it holds for all VMs at once.
//! - `/sys/devices/system/cpu/cpu<n>/power/pm_qos_resume_latency_us`
//!   (Documentation/ABI/testing/sysfs-devices-power): `0` is any latency, `n/a` none at all.

use super::attempt::Attempt;
use super::file;
use crate::root::Root;
use nix::errno::Errno;
use teiji_model::setting::{Latency, SettingError};

/// The parameter.
pub(super) const HALT_POLL: &str = "sys/module/kvm/parameters/halt_poll_ns";
/// Why it may not be changed.
pub(super) const READ_ONLY: &str =
    "this kernel makes the parameter read-only; boot with kvm.halt_poll_ns=N on its command line instead";

/// ns; 0 is off.
pub(super) fn read_halt_poll(root: &Root, attempt: &Attempt) -> Result<u64, SettingError> {
    let text = file::read(root, HALT_POLL).map_err(|e| halt_poll_failed(attempt, e))?;
    text.parse().map_err(|_| attempt.unexpected(&text))
}

/// At most 4,294,967,295 ns.
pub(super) fn write_halt_poll(root: &Root, ns: u64, attempt: &Attempt) -> Result<(), SettingError> {
    file::write(root, HALT_POLL, &ns.to_string()).map_err(|e| halt_poll_failed(attempt, e))
}

fn halt_poll_failed(attempt: &Attempt, errno: Errno) -> SettingError {
    match errno {
        Errno::ENOENT => {
            attempt.unsupported("the kernel module kvm is not loaded; load kvm_intel or kvm_amd")
        }
        other => attempt.failed(other, HALT_POLL),
    }
}

pub(super) fn read_latency(root: &Root, cpu: u32, attempt: &Attempt) -> Result<Latency, SettingError> {
    let text = file::read(root, &path(cpu)).map_err(|e| latency_failed(root, cpu, attempt, e))?;
    match text.as_str() {
        "0" => Ok(Latency::Any),
        "n/a" => Ok(Latency::None),
        us => us.parse().map(Latency::AtMost).map_err(|_| attempt.unexpected(&text)),
    }
}

pub(super) fn write_latency(
    root: &Root,
    cpu: u32,
    latency: Latency,
    attempt: &Attempt,
) -> Result<(), SettingError> {
    let text = match latency {
        Latency::Any => "0".to_owned(),
        Latency::None => "n/a".to_owned(),
        // The kernel would take it for "any".
        Latency::AtMost(0) => return Err(attempt.impossible("a wake-up takes time; ask for none instead")),
        Latency::AtMost(us) => us.to_string(),
    };
    file::write(root, &path(cpu), &text).map_err(|e| latency_failed(root, cpu, attempt, e))
}

fn latency_failed(root: &Root, cpu: u32, attempt: &Attempt, errno: Errno) -> SettingError {
    match errno {
        Errno::ENOENT if root.exists(&format!("sys/devices/system/cpu/cpu{cpu}")) => attempt.unsupported(
            "this kernel has no such limit for CPUs; run one with CONFIG_PM, or choose idle states with cpupower idle-set",
        ),
        other => attempt.failed(other, &format!("CPU {cpu}")),
    }
}

fn path(cpu: u32) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")
}
