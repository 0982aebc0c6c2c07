//! The longest wake-up latency that a CPU's idle states may have, µs:
//! `/sys/devices/system/cpu/cpu<n>/power/pm_qos_resume_latency_us` (Documentation/ABI/testing/sysfs-devices-power). `0`
//! means any latency, `n/a` no latency at all.

use super::{Access, Facts, errors, file};
use crate::root::Root;
use nix::errno::Errno;
use teiji_model::resource::{Latency, Resource, ResourceError, ResourceKind, Resources, Value};

pub(super) struct CpuLatency;

impl Access for CpuLatency {
    fn kind(&self) -> ResourceKind {
        ResourceKind::CpuLatency
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        facts.read_each(self, facts.cpus.iter().map(Resource::CpuLatency), found);
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::CpuLatency(cpu) = resource else { return Err(errors::no_such_value()) };
        read(root, *cpu).map(Value::Latency)
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::CpuLatency(cpu), Value::Latency(latency)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        write(root, *cpu, *latency)
    }
}

fn read(root: &Root, cpu: u32) -> Result<Latency, ResourceError> {
    let text = file::read(root, &path(cpu)).map_err(|e| failed(root, cpu, e))?;
    match text.as_str() {
        "0" => Ok(Latency::Any),
        "n/a" => Ok(Latency::None),
        us => us.parse().map(Latency::AtMost).map_err(|_| errors::unexpected(&text)),
    }
}

fn write(root: &Root, cpu: u32, latency: Latency) -> Result<(), ResourceError> {
    let text = match latency {
        Latency::Any => "0".to_owned(),
        Latency::None => "n/a".to_owned(),
        // The kernel would take 0 for "any".
        Latency::AtMost(0) => return Err(errors::impossible("a wake-up takes time; ask for none instead")),
        Latency::AtMost(us) => us.to_string(),
    };
    file::write(root, &path(cpu), &text).map_err(|e| failed(root, cpu, e))
}

fn failed(root: &Root, cpu: u32, errno: Errno) -> ResourceError {
    match errno {
        Errno::ENOENT if root.exists(&format!("sys/devices/system/cpu/cpu{cpu}")) => errors::unsupported(
            "this kernel has no such limit for CPUs; run one with CONFIG_PM, or choose idle states with cpupower idle-set",
        ),
        other => errors::failed(other, &format!("CPU {cpu}")),
    }
}

fn path(cpu: u32) -> String {
    format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us")
}
