//! The time from vhost's signal until the interrupt is accepted for a vCPU is long.

use super::{HARDWARE_INTERRUPTS, Rule};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::InterruptDelivery,
    title: "delivery of the interrupt",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::Irq, None)],
    explanation: "vhost had signalled the packet, and KVM took long to find the vCPU that the interrupt is for and to accept \
                  it there.",
    remedy: |_, _| Remedy::elsewhere(HARDWARE_INTERRUPTS),
};
