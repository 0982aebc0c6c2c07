//! A vhost worker has no time left.

use super::{Found, Rule};
use crate::finding::BUSY_WORKER;
use teiji_model::diagnosis::{FaultCause, share};
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of the time on.
const BUSY: f64 = 0.9;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::WorkerBusy,
    title: "vhost worker is at its limit",
    blame: Blame::Host,
    found: |seen| {
        let busy =
            seen.workers().map(|time| share(time.times.ran, time.times.length)).max_by(f64::total_cmp)?;
        (busy >= BUSY)
            .then(|| Found::unmeasured(vec![format!("a vhost worker runs {} of the time", percent(busy))]))?
    },
    explanation: "One thread carries the packets of a NIC's queue, and it has a whole CPU already: packets wait for it or are \
                  dropped.",
    remedy: |_| Remedy::elsewhere(BUSY_WORKER),
};
