//! A packet is in the guest, and the vCPU that has to go on with it is halted: the thread that reads it was woken on a vCPU
//! whose own thread sleeps on the host. The guest sees an idle CPU, and sends it an interrupt; until the host has woken that
//! vCPU, the packet waits.

use super::{Rule, State, vcpu_wake_up};
use crate::guest_cells::Row;
use teiji_model::finding::Cause;
use teiji_model::reason::Blame;

pub(super) const RULE: Rule = Rule {
    cause: Cause::PacketWaitsForHaltedVcpu,
    title: "vCPU halted after the packet arrived",
    blame: Blame::Host,
    inside: &[
        (Row::Irq, Some(State::Asleep)),
        (Row::Stack, Some(State::Asleep)),
        (Row::ReaderWoken, Some(State::Asleep)),
    ],
    parts: &[],
    explanation: "The packet had reached the guest, but the vCPU that had to process it next had halted, so its thread slept on \
                  the host. The host had to wake it first.",
    remedy: |input, _| vcpu_wake_up::remedy(input),
};
