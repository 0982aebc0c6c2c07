//! A vhost worker is runnable while others have its CPU, such as a vCPU of the same VM.

use super::{Rule, waiting};
use crate::finding::realtime;
use teiji_model::diagnosis::FaultCause;
use teiji_model::reason::Blame;
use teiji_model::stage::Actor;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::WorkerWaitsForCpu,
    title: "vhost worker waits for a CPU",
    blame: Blame::Host,
    found: |seen| {
        let mut found = waiting(seen.workers())?;
        let shared = seen.vcpus().filter(|vcpu| vcpu.cpus.iter().any(|cpu| found.cpus.contains(cpu)));
        let names: Vec<&str> = shared.map(|vcpu| vcpu.name.as_str()).collect();
        if !names.is_empty() {
            found.evidence.push(format!("on the same CPU ran {} of the VM", names.join(", ")));
        }
        Some(found)
    },
    explanation: "The vhost worker, which carries the VM's packets, could run, and the host's scheduler ran other threads on \
                  its CPU.",
    remedy: |_| realtime(Actor::Worker),
};
