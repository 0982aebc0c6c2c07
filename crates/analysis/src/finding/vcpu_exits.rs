//! The host is at work on the vCPU's behalf: emulated devices, page faults of the guest's memory, timers.

use super::{Rule, State};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::VcpuExits,
    title: "host handles the vCPU's exits",
    blame: Blame::Host,
    parts: &[(Stage::VcpuWake, Some(State::Run)), (Stage::Guest, Some(State::Run))],
    explanation: "The vCPU left guest mode and the host worked on what it left for: a device that is emulated, memory \
                  that is not there yet, a timer.",
    remedy: |_, _| {
        Remedy::elsewhere("count the vCPU's exits by their reason: perf kvm stat record, on the host")
    },
};
