//! A sleeping vhost worker is woken up.
//!
//! A wake-up has three parts: the interrupt to the CPU, the exit from the CPU's idle state, and the scheduler. A policy
//! changes only the second part, which is concluded from the length of the wake-up: below [`IDLE_STATE_MIN`] there is no such
//! part; above [`IDLE_STATE_MAX`] another part takes the time.

use super::{Rule, State};
use teiji_model::finding::{Cause, Evidence, PolicyChange, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;
use teiji_model::text::duration;

/// The wake-up time of a thread on a CPU in a shallow idle state, ns.
const IDLE_STATE_MIN: u64 = 10_000;
/// Longer than the exit from any idle state of a server takes, ns (`exit_latency` in drivers/idle/intel_idle.c).
const IDLE_STATE_MAX: u64 = 1_000_000;
/// The longest exit from idle states that remain allowed, µs: C1, which servers leave within 2 µs.
const AWAKE_US: u32 = 2;

pub(super) const RULE: Rule = Rule {
    cause: Cause::WorkerWakeUp,
    title: "wake-up of the vhost worker",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::TapQueue, Some(State::Asleep)), (Stage::VhostTx, Some(State::Asleep))],
    explanation: "There were no packets, so the vhost worker slept, and had to be woken up for the packet: an \
                  interrupt to its CPU, the exit from the CPU's idle state, the scheduler.",
    remedy: |_, evidence| remedy(evidence),
};

fn remedy(evidence: &[Evidence]) -> Remedy {
    let length = evidence.iter().filter_map(|e| e.length).max().unwrap_or(0);
    let polling = "a worker that does not sleep would help: poll-us=N of QEMU's -netdev tap, which a policy \
                   cannot set";
    let took = duration(length as f64);
    if length < IDLE_STATE_MIN {
        return Remedy::none(format!(
            "a wake-up of {took} is usual on a CPU that is awake, and no key of a policy shortens it; {polling}"
        ));
    }
    if length > IDLE_STATE_MAX {
        return Remedy::none(format!(
            "{took} is more than a CPU takes to wake up from any idle state, so no key of a policy shortens it: look \
             whether the worker waits for something else (perf sched timehist)"
        ));
    }
    let text = format!("a wake-up of {took} may be the exit from a deep idle state: cpu_latency in [host]");
    Remedy::change(PolicyChange::CpuLatency { us: AWAKE_US }, text, polling)
}
