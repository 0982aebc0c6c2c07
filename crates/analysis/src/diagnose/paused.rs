//! The VMM does not run the vCPUs: the VM is paused.

use super::{Found, Rule};
use teiji_model::diagnosis::{FaultCause, share};
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of the time on, of each vCPU.
const PAUSED: f64 = 0.25;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::Paused,
    title: "the VM is paused",
    blame: Blame::Host,
    found: |seen| {
        // A vCPU that the guest has not started yet sleeps in KVM.
        let least =
            seen.vcpus().map(|time| share(time.times.in_vmm, time.times.length)).min_by(f64::total_cmp)?;
        let line = format!("all vCPU threads sleep in the VMM, outside KVM, {} of the time", percent(least));
        (least >= PAUSED).then(|| Found::lost(least, vec![line]))?
    },
    explanation: "The VMM has stopped the vCPUs: somebody has paused the VM, or a snapshot, a migration or an error of its \
                  disk has.",
    remedy: |_| {
        Remedy::none(
            "ask the VMM why: virsh domstate NAME --reason, or query-status of QMP; virsh resume NAME goes on",
        )
    },
};
