//! The host works for the vCPU: emulated devices, page faults of the guest's memory, timers.

use super::{Rule, State};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::VcpuExits,
    title: "host handles the vCPU's exits",
    blame: Blame::Host,
    inside: &[
        (Row::Irq, Some(State::Run)),
        (Row::Stack, Some(State::Run)),
        (Row::ReaderBusy, Some(State::Run)),
        (Row::ReaderWoken, Some(State::Run)),
        (Row::App, Some(State::Run)),
        (Row::NewThread, Some(State::Run)),
        (Row::Tx, Some(State::Run)),
    ],
    parts: &[(Stage::VcpuWake, Some(State::Run)), (Stage::Guest, Some(State::Run))],
    explanation: "The vCPU left guest mode, and the host handled the exit: an emulated device, guest memory \
                  that is not present yet, a timer.",
    remedy: |_, _| {
        Remedy::elsewhere("count the vCPU's exits by reason with perf kvm stat record on the host")
    },
};
