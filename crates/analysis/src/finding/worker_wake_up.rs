//! A sleeping vhost worker is woken up.
//!
//! That has three parts: the interrupt to its CPU, the way out of the CPU's idle state, and the scheduler. A policy changes
//! only the second. It is told from the length: below [`SHALLOW`] there is nothing of it, above [`DEEP`] it is not what
//! takes so long.

use super::{Rule, State};
use teiji_model::finding::{Cause, Change, Evidence, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;
use teiji_model::text::duration;

/// Wake-up that a thread takes on a CPU that is hardly asleep, ns.
const SHALLOW: u64 = 10_000;
/// Longer than any idle state of a server takes to leave, ns (`exit_latency` in drivers/idle/intel_idle.c).
const DEEP: u64 = 1_000_000;
/// Idle states that may stay, µs: C1, which servers leave within 2 µs.
const AWAKE_US: u32 = 2;

pub(super) const RULE: Rule = Rule {
    cause: Cause::WorkerWakeUp,
    title: "wake-up of the vhost worker",
    blame: Blame::Host,
    parts: &[(Stage::TapQueue, Some(State::Asleep)), (Stage::VhostTx, Some(State::Asleep))],
    explanation: "There was nothing to carry, so the vhost worker slept, and had to be woken up for the packet: an \
                  interrupt to its CPU, the way out of the CPU's idle state, the scheduler.",
    remedy: |_, evidence| remedy(evidence),
};

fn remedy(evidence: &[Evidence]) -> Remedy {
    let length = evidence.iter().filter_map(|e| e.length).max().unwrap_or(0);
    let polling = "what would help is a worker that does not sleep: poll-us=N of QEMU's -netdev tap, outside of what a \
                   policy sets";
    let took = duration(length as f64);
    if length < SHALLOW {
        return Remedy::none(format!(
            "a wake-up of {took} is the price of one on a CPU that is awake, which no key of a policy lowers; {polling}"
        ));
    }
    if length > DEEP {
        return Remedy::none(format!(
            "{took} is more than a CPU takes to wake up from any idle state, so no key of a policy shortens it: look \
             whether the worker waits for something else (perf sched timehist)"
        ));
    }
    let text = format!("a wake-up of {took} may be the way out of a deep idle state: cpu_latency in [host]");
    Remedy::change(Change::CpuLatency { us: AWAKE_US }, text, polling)
}
