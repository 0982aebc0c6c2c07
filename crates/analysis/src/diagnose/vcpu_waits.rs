//! A vCPU thread is runnable while others have its CPU.

use super::{Rule, waiting};
use crate::finding::realtime;
use teiji_model::diagnosis::FaultCause;
use teiji_model::reason::Blame;
use teiji_model::stage::Actor;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::VcpuWaitsForCpu,
    title: "vCPU waits for a CPU",
    blame: Blame::Host,
    found: |seen| waiting(seen.vcpus()),
    explanation: "The guest could run, and the host's scheduler ran other threads on its CPUs.",
    remedy: |_| realtime(Actor::Vcpu),
};
