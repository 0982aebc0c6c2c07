//! The VM's memory is copied elsewhere while it runs.

use super::{Found, Rule};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::printable;
use teiji_model::usage::Sample;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::Migration,
    title: "live migration or snapshot in progress",
    blame: Blame::Host,
    found: |seen| {
        let threads = |sample: &Sample, when: &str| {
            let threads = sample.migrations.get(&seen.pid).filter(|threads| !threads.is_empty())?;
            let names: Vec<String> = threads.iter().map(|name| printable(name)).collect();
            Some(format!("QEMU has the thread {} {when} of the observation", names.join(", ")))
        };
        let lines: Vec<String> = [threads(seen.host.0, "at the start"), threads(seen.host.1, "at the end")]
            .into_iter()
            .flatten()
            .collect();
        (!lines.is_empty()).then(|| Found::unmeasured(lines))?
    },
    explanation: "The VMM copies the guest's memory while it runs. The guest's first write to each page after it was copied may cost a VM exit (dirty \
                  page tracking), QEMU may throttle the vCPUs (auto-converge), and pauses them at the end. After a switch to post-copy, the guest waits \
                  for each page that it has not got yet.",
    remedy: |_| {
        Remedy::none(
            "wait until it has finished (progress: virsh domjobinfo NAME); a migration finishes sooner with more bandwidth: virsh \
             migrate-setspeed NAME MIB_PER_S",
        )
    },
};
