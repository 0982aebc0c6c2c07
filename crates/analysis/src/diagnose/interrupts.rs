//! Interrupts and softirqs take the CPUs.

use super::{Found, Rule};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of a CPU's time on.
const INTERRUPTS: f64 = 0.3;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::Interrupts,
    title: "interrupts take its CPU",
    blame: Blame::Host,
    found: |seen| {
        let (cpu, part) = seen.worst_cpu(|cpu| cpu.interrupts)?;
        let line = format!("CPU {cpu} handles interrupts and softirqs {} of the time", percent(part));
        (part >= INTERRUPTS).then(|| Found::lost(part, vec![line]))?
    },
    explanation: "Interrupts and the packets that they bring are handled on a CPU of the VM's threads, before these.",
    remedy: |_| {
        Remedy::elsewhere(
            "move the NIC's interrupts to other CPUs (/proc/irq/N/smp_affinity_list), or the VM's threads: vcpu_cpus, worker_cpus, \
             rps_cpus",
        )
    },
};
