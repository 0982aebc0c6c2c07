//! KVM polls for the wake-up of a halted vCPU (`halt_poll_ns`), which ends a halt fastest.

use super::{Rule, State};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::VcpuPolls,
    title: "halted vCPU polls for its wake-up",
    blame: Blame::Host,
    inside: &[
        (Row::Irq, Some(State::Poll)),
        (Row::Stack, Some(State::Poll)),
        (Row::ReaderWoken, Some(State::Poll)),
    ],
    parts: &[(Stage::VcpuWake, Some(State::Poll))],
    explanation: "The guest was idle and KVM polled for the next wake-up of its vCPU, so that nothing had to be woken up.",
    remedy: |_, _| Remedy::elsewhere("the vCPU already polls, which is the fastest way to wake it"),
};
