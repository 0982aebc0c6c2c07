//! A hypervisor below this host takes the CPUs.

use super::{Found, Rule};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of a CPU's time on.
const STOLEN: f64 = 0.05;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::Stolen,
    title: "CPU steal by a hypervisor below",
    blame: Blame::Outside,
    found: |seen| {
        let (cpu, part) = seen.worst_cpu(|cpu| cpu.stolen)?;
        let line = format!("CPU {cpu} was taken away {} of the time (steal)", percent(part));
        (part >= STOLEN).then(|| Found::lost(part, vec![line]))?
    },
    explanation: "This host is itself a VM, and the hypervisor below it gives it less time than its CPUs ask for.",
    remedy: |_| Remedy::elsewhere("ask whoever runs the hypervisor below for CPUs of its own"),
};
