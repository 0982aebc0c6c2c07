//! A halted vCPU is polled for its wake-up (`halt_poll_ns`), which is the fastest that a halt can end.

use super::{Rule, State};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::VcpuPolls,
    title: "halted vCPU polls for its wake-up",
    blame: Blame::Host,
    parts: &[(Stage::VcpuWake, Some(State::Poll))],
    explanation: "The guest was idle and KVM polled for the next wake-up of its vCPU, so that nothing had to be woken up.",
    remedy: |_, _| Remedy::elsewhere("the vCPU polls already, so nothing wakes it sooner"),
};
