//! The VM's memory is copied elsewhere while it runs.

use super::{Found, Rule};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::printable;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::MemoryCopied,
    title: "its memory is migrated or saved",
    blame: Blame::Host,
    found: |seen| {
        let copying = [seen.hindrances.0, seen.hindrances.1].into_iter().flatten().flat_map(|of| &of.copying);
        let mut lines: Vec<String> =
            copying.map(|name| format!("its VMM has a thread {}", printable(name))).collect();
        lines.sort();
        lines.dedup();
        (!lines.is_empty()).then(|| Found::unmeasured(lines))?
    },
    explanation: "The VMM copies the guest's memory for a live migration or a snapshot. Pages that the guest writes meanwhile cost it an exit \
                  each, the VMM may slow its vCPUs down, and at the end it stops them.",
    remedy: |_| {
        Remedy::elsewhere(
            "wait for its end (virsh domjobinfo VM); the more bandwidth it has, the sooner it ends (virsh migrate-setspeed VM MIB)",
        )
    },
};
