//! The vCPU is in guest mode while an accepted interrupt waits for it: the guest has switched interrupts off, or has
//! not been made to leave guest mode yet.

use super::{Rule, State};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::InterruptNotTaken,
    title: "vCPU runs before taking the interrupt",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::VcpuWake, Some(State::Guest))],
    explanation: "The vCPU was in guest mode, and did something else before it took the packet's interrupt: \
                  guests switch interrupts off while they handle others.",
    remedy: |_, _| Remedy::elsewhere("look in the guest for what runs with interrupts off"),
};
