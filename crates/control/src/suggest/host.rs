//! Sleep: how long a halted vCPU is polled for, and how deep the CPUs of vhost workers may sleep.
//!
//! **Polling** ends a halt at once if the wake-up comes while KVM polls. KVM adapts each vCPU's polling time below
//! `halt_poll_ns`, and shortens it whenever a halt outlasts that (virt/kvm/kvm_main.c, `kvm_vcpu_halt()`): polling that is
//! shorter than the usual gap between requests is not half as good, it stops.
//!
//! **Waking a vhost worker** has three parts: the interrupt to its CPU, the way out of the CPU's idle state, and the
//! scheduler. A policy changes only the second. It is told from the length: below [`SHALLOW`] there is nothing of it,
//! above [`DEEP`] it is not what takes so long.

use super::realtime::Class;
use crate::plan::{reason, time};
use crate::spare;
use teiji_model::cpus::CpuSet;
use teiji_model::plan::{Observed, ObservedVm};
use teiji_model::policy::MAX_HALT_POLL;
use teiji_model::policy::units::DURATION;
use teiji_model::report::{Report, VmReport};
use teiji_model::resource::{Latency, Resource, Value};

/// Least polling that is suggested, ns: the kernel's default on x86 (`KVM_HALT_POLL_NS_DEFAULT`).
const LEAST_POLL: u64 = 200_000;
/// Wake-up that a thread takes on a CPU that is hardly asleep, ns.
const SHALLOW: u64 = 10_000;
/// Longer than any idle state of a server takes to leave, ns (`exit_latency` in drivers/idle/intel_idle.c).
const DEEP: u64 = 1_000_000;
/// Idle states that may stay, µs: C1, which servers leave within 2 µs.
const AWAKE_US: u32 = 2;

/// The mean time from one request to the next, ns.
fn gap(report: &Report, vm: &VmReport) -> Option<u64> {
    let length = report.counters.ended.saturating_sub(report.meta.started);
    let seen = vm.requests.seen.max(vm.requests.complete);
    length.checked_div(seen).filter(|gap| *gap > 0)
}

/// The next of 1, 2, 5, 10, … that is not below `ns`; at least [`LEAST_POLL`], at most [`MAX_HALT_POLL`].
fn round(ns: u64) -> u64 {
    let mut power = 100_000;
    while power < MAX_HALT_POLL {
        if let Some(step) = [1, 2, 5].map(|n| n * power).into_iter().find(|step| *step >= ns.max(LEAST_POLL))
        {
            return step;
        }
        power *= 10;
    }
    MAX_HALT_POLL
}

/// How long to poll, ns, and what to say about it; or why polling does not help.
pub(super) fn poll(
    report: &Report,
    vm: &VmReport,
    observed: Option<&Observed>,
) -> Result<(u64, String), String> {
    let Some(gap) = gap(report, vm) else {
        return Err("how long to poll for cannot be told, as no request was seen: trace longer".to_owned());
    };
    let (apart, longest) = (time(gap), time(MAX_HALT_POLL));
    // Of requests that come at random, the share that comes within the longest polling.
    let within = 1.0 - (-(MAX_HALT_POLL as f64) / gap as f64).exp();
    let rest = "it then is the way out of the CPU's idle state that can be shortened (cpu_latency in [host], which \
                costs power)";
    if gap > 2 * MAX_HALT_POLL {
        return Err(format!(
            "requests come {apart} apart: polling will not bridge that (a policy allows {longest} at most), and KVM \
             stops polling where halts are longer; {rest}"
        ));
    }
    let wanted = round(gap);
    let said = if gap > MAX_HALT_POLL {
        format!(
            "requests come {apart} apart: polling will not bridge that, as a policy allows {longest} at most; it helps \
             those that come sooner, {} of them if they come at random",
            super::causes::percent(within)
        )
    } else {
        format!("requests come {apart} apart, which halt_poll in [host] bridges")
    };
    let Some(observed) = observed else { return Ok((wanted, said)) };
    match observed.settings.get(&Resource::HaltPoll) {
        Some(Value::Nanoseconds(present)) if *present >= wanted => Err(format!(
            "requests come {apart} apart, and KVM polls for {} already: the guest may have turned that off \
             (its cpuidle-haltpoll), or requests come in bursts with longer gaps between; {rest}",
            time(*present)
        )),
        Some(_) => Ok((wanted, said)),
        None => Err(format!(
            "halt_poll = \"{}\" would help, but it cannot be read, so it could not be put back: {}",
            DURATION.write(wanted),
            reason(&Resource::HaltPoll, observed)
        )),
    }
}

/// The CPUs that are to stay awake for a VM's vhost workers, `None` for all; or why that does not help.
///
/// `length` is how long a wake-up takes, ns; `class` tells where the workers will be pinned to.
pub(super) fn awake(
    length: Option<u64>,
    class: Option<&Class>,
    vm: Option<&ObservedVm>,
    observed: Option<&Observed>,
) -> Result<Option<CpuSet>, String> {
    const POLLING: &str = "what would help is a worker that does not sleep: poll-us=N of QEMU's -netdev tap, outside of \
                           what a policy sets";
    let length = length.unwrap_or(0);
    if length < SHALLOW {
        return Err(format!(
            "a wake-up of {} is the price of one on a CPU that is awake, which no key of a policy lowers; {POLLING}",
            time(length)
        ));
    }
    if length > DEEP {
        return Err(format!(
            "{} is more than a CPU takes to wake up from any idle state, so no key of a policy shortens it: look \
             whether the worker waits for something else (perf sched timehist)",
            time(length)
        ));
    }
    let Some(observed) = observed else { return Ok(None) };
    let workers = vm.map_or(&[][..], |vm| &vm.workers);
    let pinned = class.and_then(|class| class.worker_cpus.clone());
    let present = workers.iter().map(|task| match observed.settings.get(&Resource::ThreadCpus(*task)) {
        Some(Value::Cpus(cpus)) => cpus.clone(),
        _ => observed.cpus.clone(),
    });
    let present: Vec<CpuSet> = present.collect();
    let mut cpus = pinned.unwrap_or_else(|| spare::reach(&present, &observed.cpus));
    if cpus.is_empty() {
        cpus = observed.cpus.clone();
    }
    let mut asleep = CpuSet::default();
    for cpu in cpus.iter() {
        let setting = Resource::CpuLatency(cpu);
        match observed.settings.get(&setting) {
            Some(Value::Latency(Latency::None)) => {}
            Some(Value::Latency(Latency::AtMost(us))) if *us <= AWAKE_US => {}
            Some(_) => asleep = asleep.union(&CpuSet::from_iter([cpu])),
            None => {
                return Err(format!(
                    "cpu_latency would help, but {setting} cannot be read, so it could not be put back: {}",
                    reason(&setting, observed)
                ));
            }
        }
    }
    if asleep.is_empty() {
        return Err(format!("the CPUs of its workers do not sleep deeply as it is, so that {POLLING}"));
    }
    Ok(Some(asleep))
}

/// The value of `cpu_latency`.
pub(super) fn latency() -> String {
    format!("{AWAKE_US}us")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_is_a_round_time_that_covers_the_gap() {
        let ms = 1_000_000;
        for (gap, wanted) in [
            (0, LEAST_POLL),
            (LEAST_POLL, LEAST_POLL),
            (LEAST_POLL + 1, 500_000),
            (ms, ms),
            (ms + 1, 2 * ms),
            (5 * ms + 1, 10 * ms),
            (u64::MAX, MAX_HALT_POLL),
        ] {
            assert_eq!(round(gap), wanted, "{gap}");
        }
    }
}
