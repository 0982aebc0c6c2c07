//! Limits on what a header may have. Decoding checks types; this checks sizes and consistency, so that the code that
//! uses a recording need not.

use crate::flow::Flow;
use crate::host::{GivenNic, Vm};
use crate::report::{Counters, MAX_VMS, Meta};
use crate::stream::{Change, Changed, StreamId};
use crate::usage::{MOST_COPY_THREADS, ObservedVms, RateLimit, Sample};
use std::collections::HashSet;
use std::net::IpAddr;

const MAX_THREADS: usize = 4096;
const MAX_NICS: usize = 256;
const MAX_NODES: usize = 1024;
const MAX_DEVICES: usize = 65_536;
const MAX_CPUS: usize = 65_536;
const MAX_GUEST_CPUS: usize = 4096;
const MAX_HOST_THREADS: usize = 65_536;
const MAX_GROUPS: usize = 1024;
const MAX_UNCOUNTED: usize = 64;
const MAX_DELAYING: usize = 1024;
/// The latest time of a sample, ns: 36 years after the host started.
const LATEST: u64 = 1 << 60;
/// Longest name, bytes.
const MAX_NAME: usize = 256;
/// Longest list or filter, bytes.
const MAX_TEXT: usize = 4096;

type Checked = Result<(), &'static str>;

fn ensure(right: bool, what: &'static str) -> Checked {
    if right { Ok(()) } else { Err(what) }
}

fn name(s: &str) -> Checked {
    ensure(s.len() <= MAX_NAME, "a name is longer than 256 bytes")
}

fn text(s: &str) -> Checked {
    ensure(s.len() <= MAX_TEXT, "a text is longer than 4096 bytes")
}

/// Checks a header.
pub(super) fn meta(m: &Meta) -> Checked {
    for s in [&m.teiji, &m.host, &m.kernel] {
        name(s)?;
    }
    text(&m.watch.flow_text)?;
    flow(&m.watch.flow)?;
    ensure(m.vms.len() <= MAX_VMS, "more than 1024 VMs")?;
    let mut taps = HashSet::new();
    let mut pids = HashSet::new();
    for v in &m.vms {
        ensure(pids.insert(v.pid), "two VMs have the same process id")?;
        vm(v)?;
        for n in v.nics.iter().filter(|n| n.ifindex != 0) {
            ensure(taps.insert(n.ifindex), "two taps have the same index")?;
        }
    }
    ensure(m.devices.len() <= MAX_DEVICES, "more than 65536 devices")?;
    let mut devices = HashSet::new();
    for (index, s) in &m.devices {
        name(s)?;
        ensure(devices.insert(*index), "two devices have the same index")?;
    }
    Ok(())
}

/// Checks the VMs whose counters are recorded.
pub(super) fn observed(o: &ObservedVms) -> Checked {
    ensure(o.vms.len() <= MAX_VMS && o.selected.len() <= MAX_VMS, "more than 1024 VMs")?;
    let mut pids = HashSet::new();
    for v in &o.vms {
        ensure(pids.insert(v.pid), "two VMs have the same process id")?;
        vm(v)?;
    }
    ensure(o.uncounted.len() <= MAX_UNCOUNTED, "more than 64 things could not be counted")?;
    o.uncounted.iter().try_for_each(|what| text(what))
}

/// Checks counters.
pub(super) fn sample(s: &Sample) -> Checked {
    ensure(s.at <= LATEST, "a sample is of a time that is too late")?;
    ensure(s.vms.len() <= MAX_VMS, "more than 1024 VMs")?;
    ensure(s.cpus.len() <= MAX_CPUS, "counters for more than 65536 CPUs")?;
    ensure(s.threads.len() <= MAX_HOST_THREADS, "more than 65536 threads")?;
    for v in s.vms.values() {
        ensure(v.at <= LATEST, "a sample is of a time that is too late")?;
        ensure(v.threads.len() <= 2 * MAX_THREADS, "a VM has more than 8192 threads")?;
        ensure(v.taps.len() <= MAX_NICS, "a VM has more than 256 network interfaces")?;
        ensure(v.groups.len() <= MAX_GROUPS, "a VM is in more than 1024 control groups")?;
        ensure(v.delaying.len() <= MAX_DELAYING, "more than 1024 devices delay a VM's packets")?;
        v.threads.values().try_for_each(|thread| text(&thread.group))?;
        v.groups.iter().try_for_each(|group| text(&group.path))?;
        v.taps.keys().try_for_each(|tap| name(tap))?;
        v.delaying.iter().try_for_each(|(device, kind)| name(device).and_then(|()| name(kind)))?;
    }
    for thread in s.threads.values() {
        name(&thread.name)?;
        thread.unit.as_deref().map_or(Ok(()), name)?;
    }
    ensure(s.rate_limits.len() <= MAX_VMS && s.migrations.len() <= MAX_VMS, "more than 1024 VMs")?;
    for limits in s.rate_limits.values() {
        ensure(limits.len() <= RateLimit::MOST, "more than 16 qdiscs limit a VM's packets")?;
        limits.iter().try_for_each(|limit| name(&limit.device).and_then(|()| name(&limit.kind)))?;
    }
    for threads in s.migrations.values() {
        ensure(threads.len() <= MOST_COPY_THREADS, "a VM has more than 8 threads that copy its memory")?;
        threads.iter().try_for_each(|thread| name(thread))?;
    }
    Ok(())
}

/// Checks a change by itself. Whether its VM is known decides whoever uses it: a VM may have been left out.
pub(super) fn change(c: &Change) -> Checked {
    match &c.what {
        Changed::Vm(v) => {
            vm(v)?;
            let mut taps = HashSet::new();
            for n in &v.nics {
                ensure(n.ifindex != 0, "a tap has index 0")?;
                ensure(taps.insert(n.ifindex), "two taps have the same index")?;
            }
            Ok(())
        }
        Changed::Ended { .. } => Ok(()),
        Changed::Clock { stream: id, .. } => stream(*id),
        Changed::Given { nics, .. } => given(nics),
    }
}

/// Checks the NICs that were given to a VM.
fn given(nics: &[GivenNic]) -> Checked {
    ensure(nics.len() <= MAX_NICS, "a VM was given more than 256 network interfaces")?;
    for nic in nics {
        name(&nic.address)?;
        if let Some(function) = &nic.function {
            name(&function.physical)?;
            function.link.as_deref().map_or(Ok(()), name)?;
        }
    }
    Ok(())
}

/// Whether a VM can be part of a recording: a process may have any name.
///
/// # Errors
/// What is too long or too many.
pub fn vm_fits(v: &Vm) -> Checked {
    given(&v.given)?;
    change(&Change { ts: 0, what: Changed::Vm(Box::new(v.clone())) })
}

/// Whether the counters of a VM can be part of a recording: a process may have any name.
pub fn vm_can_be_observed(v: &Vm) -> bool {
    vm(v).is_ok()
}

/// Checks the number of a guest's stream.
pub(super) fn stream(id: StreamId) -> Checked {
    ensure(!id.is_host(), "the host's events are no guest's")?;
    ensure(usize::from(id.0) < StreamId::MOST, "more than 64 guests' streams")
}

/// Checks the CPU of a guest's event: a table has a place for each.
pub(super) fn guest_cpu(cpu: u16) -> Checked {
    ensure(usize::from(cpu) < MAX_GUEST_CPUS, "a guest's event is on a vCPU beyond 4096")
}

fn vm(v: &Vm) -> Checked {
    name(&v.name)?;
    ensure(v.vcpus.len() <= MAX_THREADS, "a VM has more than 4096 vCPUs")?;
    ensure(v.workers.len() <= MAX_THREADS, "a VM has more than 4096 vhost workers")?;
    ensure(v.nics.len() <= MAX_NICS, "a VM has more than 256 network interfaces")?;
    ensure(v.memory_nodes.len() <= MAX_NODES, "a VM has memory on more than 1024 nodes")?;
    for t in &v.vcpus {
        text(&t.cpus)?;
    }
    for w in &v.workers {
        name(&w.comm)?;
        text(&w.cpus)?;
    }
    for n in &v.nics {
        name(&n.tap)?;
        n.bridge.as_deref().map_or(Ok(()), name)?;
    }
    Ok(())
}

/// Checks a filter.
pub(crate) fn flow(f: &Flow) -> Checked {
    ensure(matches!(f.version, None | Some(4 | 6)), "the filter's IP version is neither 4 nor 6")?;
    ensure(f.nets.len() <= Flow::MAX_NETS, "the filter has too many addresses")?;
    ensure(f.ports.len() <= Flow::MAX_PORTS, "the filter has too many ports")?;
    for n in &f.nets {
        let bits = match n.addr {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        ensure(n.prefix <= bits, "a prefix of the filter is longer than its address")?;
    }
    ensure(f.ports.iter().all(|p| p.port != 0), "the filter has port 0")
}

/// Checks an End frame.
pub(super) fn counters(c: &Counters) -> Checked {
    ensure(c.lost.len() <= MAX_CPUS, "counters for more than 65536 CPUs")
}
