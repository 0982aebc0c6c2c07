//! Idle states: whether this host already polls halted vCPUs, and which of its CPUs the vhost workers need in shallow
//! idle states.

use super::realtime::RealtimeClass;
use crate::housekeeping;
use crate::plan::reason;
use teiji_model::cpus::CpuSet;
use teiji_model::finding::Remedy;
use teiji_model::observed::{Observed, ObservedVm};
use teiji_model::resource::{Latency, Resource, Value};
use teiji_model::text::duration;

/// Whether to poll for `wanted` ns if requests come `gap` ns apart; or why that is impossible or already so.
pub(super) fn poll(
    wanted: u64,
    gap: u64,
    remedy: &Remedy,
    observed: Option<&Observed>,
) -> Result<(), String> {
    let Some(observed) = observed else { return Ok(()) };
    match observed.settings.get(&Resource::HaltPoll) {
        Some(Value::Nanoseconds(present)) if *present >= wanted => Err(format!(
            "requests come {} apart, and KVM polls for {} already: the guest may have turned that off (its \
             cpuidle-haltpoll), or requests come in bursts with longer gaps between; {}",
            duration(gap as f64),
            duration(*present as f64),
            remedy.otherwise
        )),
        Some(_) => Ok(()),
        None => Err(format!(
            "{} would help, but it cannot be read, so it could not be restored: {}",
            remedy.lines.iter().map(|l| format!("{} = {}", l.key, l.value)).collect::<String>(),
            reason(&Resource::HaltPoll, observed)
        )),
    }
}

/// The CPUs that have to wake up within `us` µs for a VM's vhost workers, `None` for all; or why that is impossible or
/// already so. `class` says where the workers will be pinned.
pub(super) fn awake(
    us: u32,
    remedy: &Remedy,
    class: Option<&RealtimeClass>,
    vm: Option<&ObservedVm>,
    observed: Option<&Observed>,
) -> Result<Option<CpuSet>, String> {
    let Some(observed) = observed else { return Ok(None) };
    let workers = vm.map_or(&[][..], |vm| &vm.workers);
    let pinned = class.and_then(|class| class.worker_cpus.clone());
    let present = workers.iter().map(|task| match observed.settings.get(&Resource::ThreadCpus(*task)) {
        Some(Value::Cpus(cpus)) => cpus.clone(),
        _ => observed.cpus.clone(),
    });
    let present: Vec<CpuSet> = present.collect();
    let mut cpus = pinned.unwrap_or_else(|| housekeeping::reachable_cpus(&present, &observed.cpus));
    if cpus.is_empty() {
        cpus = observed.cpus.clone();
    }
    let mut asleep = CpuSet::default();
    for cpu in cpus.iter() {
        let setting = Resource::CpuLatency(cpu);
        match observed.settings.get(&setting) {
            Some(Value::Latency(Latency::None)) => {}
            Some(Value::Latency(Latency::AtMost(present))) if *present <= us => {}
            Some(_) => asleep = asleep.union(&CpuSet::from_iter([cpu])),
            None => {
                return Err(format!(
                    "cpu_latency would help, but {setting} cannot be read, so it could not be restored: {}",
                    reason(&setting, observed)
                ));
            }
        }
    }
    if asleep.is_empty() {
        return Err(format!(
            "the CPUs of its workers do not enter deep idle states now, so {}",
            remedy.otherwise
        ));
    }
    Ok(Some(asleep))
}
