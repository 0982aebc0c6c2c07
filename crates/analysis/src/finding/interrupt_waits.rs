//! An accepted interrupt waits for its vCPU; what the vCPU did was not seen.

use super::{HARDWARE_INTERRUPTS, Rule};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::InterruptWaits,
    title: "interrupt waits for the vCPU",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::VcpuWake, None)],
    explanation: "The interrupt was accepted for the vCPU and took long to reach it; what the vCPU's thread did meanwhile \
                  was not seen.",
    remedy: |_, _| Remedy::elsewhere(HARDWARE_INTERRUPTS),
};
