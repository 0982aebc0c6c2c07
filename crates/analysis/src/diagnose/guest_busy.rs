//! The guest uses all that its vCPUs can give.

use super::{Found, Rule};
use teiji_model::diagnosis::{FaultCause, share};
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of the time of a vCPU on, in guest mode and exits together.
const BUSY: f64 = 0.9;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::GuestBusy,
    title: "the guest uses up its vCPU",
    blame: Blame::Guest,
    found: |seen| {
        // Polling is no work of the guest.
        let busy =
            |time: &super::ThreadTime| share(time.ran - time.polled.unwrap_or(0).min(time.ran), time.length);
        let mut all: Vec<_> =
            seen.vcpus().map(|time| (busy(time), time)).filter(|(busy, _)| *busy >= BUSY).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let line = |(busy, time): &(f64, &super::ThreadTime)| {
            format!("{} works {} of the time", time.name, percent(*busy))
        };
        Found::new(all.first()?.0, all.iter().map(line).collect())
    },
    explanation: "The programs in the guest use all of a vCPU: what comes waits in the guest, and no change of the host shortens \
                  that.",
    remedy: |_| Remedy::elsewhere("look into the guest (top, perf record), or give it more vCPUs"),
};
