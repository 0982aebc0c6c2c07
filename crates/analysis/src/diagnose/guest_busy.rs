//! The guest uses all that its vCPUs can give.

use super::{Found, Rule};
use teiji_model::diagnosis::{FaultCause, share};
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of the time of a vCPU on, in guest mode.
const BUSY: f64 = 0.9;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::GuestBusy,
    title: "the guest uses up its vCPU",
    blame: Blame::Guest,
    found: |seen| {
        let busy = seen.vcpus().map(|time| (share(time.guest, time.length), &time.name));
        let mut all: Vec<_> = busy.filter(|(busy, _)| *busy >= BUSY).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let lines: Vec<String> = all
            .iter()
            .map(|(busy, name)| format!("{name} runs the guest {} of the time", percent(*busy)))
            .collect();
        (!lines.is_empty()).then(|| Found::unmeasured(lines))?
    },
    explanation: "The programs in the guest use all of a vCPU: what comes waits in the guest, and no change of the host shortens \
                  that.",
    remedy: |_| Remedy::elsewhere("look into the guest (top, perf record), or give it more vCPUs"),
};
