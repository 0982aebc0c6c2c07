//! A halted vCPU is woken up: the interrupt to its CPU, the exit from the CPU's idle state, the scheduler, the return
//! to guest mode.
//!
//! Polling ends a halt at once if the wake-up comes while KVM polls. KVM adapts each vCPU's polling time below
//! `halt_poll_ns`, and shortens it whenever a halt lasts longer than that (virt/kvm/kvm_main.c, `kvm_vcpu_halt()`):
//! polling that is shorter than the usual gap between requests stops altogether. So the remedy depends on that gap.

use super::{Rule, RuleInput, State};
use teiji_model::finding::{Cause, PolicyChange, Remedy};
use teiji_model::policy::MAX_HALT_POLL;
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;
use teiji_model::text::{duration, percent};

/// The shortest polling that is suggested, ns: the kernel's default on x86 (`KVM_HALT_POLL_NS_DEFAULT`).
const LEAST: u64 = 200_000;

pub(super) const RULE: Rule = Rule {
    cause: Cause::VcpuWakeUp,
    title: "wake-up of the halted vCPU",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::VcpuWake, Some(State::Asleep))],
    explanation: "The guest was idle, so its vCPU had halted and its thread slept. The interrupt had to wake the CPU up, \
                  then the thread, then bring the vCPU back to guest mode.",
    remedy: |input, _| remedy(input),
};

/// How to keep a halted vCPU from having to be woken.
pub(super) fn remedy(input: &RuleInput<'_>) -> Remedy {
    let Some(gap) = input.gap() else {
        return Remedy::none("the time to poll for is not known, as no request was seen: trace longer");
    };
    let (apart, longest) = (duration(gap as f64), duration(MAX_HALT_POLL as f64));
    let otherwise = "only the exit from the CPU's idle state can be shortened then (cpu_latency in [host], which \
                     costs power)";
    if gap > 2 * MAX_HALT_POLL {
        return Remedy::none(format!(
            "requests come {apart} apart: polling will not bridge that (a policy allows {longest} at most), and KVM \
             stops polling where halts are longer; {otherwise}"
        ));
    }
    // If requests come at random times, the share that comes within the longest polling.
    let within = 1.0 - (-(MAX_HALT_POLL as f64) / gap as f64).exp();
    let text = if gap > MAX_HALT_POLL {
        format!(
            "requests come {apart} apart: polling will not bridge that, as a policy allows {longest} at most; it helps \
             those that come sooner, {} of them if they come at random",
            percent(within)
        )
    } else {
        format!("requests come {apart} apart, which halt_poll in [host] bridges")
    };
    Remedy::change(PolicyChange::HaltPoll { ns: round(gap), gap }, text, otherwise)
}

/// The smallest of 1, 2, 5, 10, … times 100 µs that is not below `ns`; at least [`LEAST`], at most [`MAX_HALT_POLL`].
fn round(ns: u64) -> u64 {
    let mut power = 100_000;
    while power < MAX_HALT_POLL {
        if let Some(step) = [1, 2, 5].map(|n| n * power).into_iter().find(|step| *step >= ns.max(LEAST)) {
            return step;
        }
        power *= 10;
    }
    MAX_HALT_POLL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_is_a_round_time_that_covers_the_gap() {
        let ms = 1_000_000;
        for (gap, wanted) in [
            (0, LEAST),
            (LEAST, LEAST),
            (LEAST + 1, 500_000),
            (ms, ms),
            (ms + 1, 2 * ms),
            (5 * ms + 1, 10 * ms),
            (u64::MAX, MAX_HALT_POLL),
        ] {
            assert_eq!(round(gap), wanted, "{gap}");
        }
    }
}
