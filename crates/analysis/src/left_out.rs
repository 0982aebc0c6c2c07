//! How many requests are in no figure, by outcome and reason.

use crate::join::Exclusion;
use std::collections::BTreeMap;
use teiji_model::report::{DropLocation, LeftOut, Outcome, Reason, RequestCounts};

/// Makes an entry of a report.
pub(crate) type Entry = fn(Outcome, Reason, Option<DropLocation>, u64) -> LeftOut;

/// See the module. There are few combinations: reasons times places of drops.
#[derive(Clone, Default)]
pub(crate) struct LeftOutCounts(BTreeMap<(Outcome, Exclusion), u64>);

impl LeftOutCounts {
    /// Adds a request that is not complete.
    pub(crate) fn add(&mut self, outcome: Outcome, exclusion: Exclusion, counts: &mut RequestCounts) {
        *match outcome {
            Outcome::Incomplete => &mut counts.incomplete,
            Outcome::Ambiguous => &mut counts.ambiguous,
            Outcome::Unanswered => &mut counts.unanswered,
        } += 1;
        *self.0.entry((outcome, exclusion)).or_default() += 1;
    }

    /// The entries of a report, by outcome, most frequent reason first. `location` returns the place of a drop by its number.
    pub(crate) fn report(
        &self,
        entry: Entry,
        location: &dyn Fn(u16) -> Option<DropLocation>,
    ) -> Vec<LeftOut> {
        let each = |((outcome, exclusion), n): (&(Outcome, Exclusion), &u64)| {
            entry(*outcome, exclusion.reason, location(exclusion.drop), *n)
        };
        let mut all: Vec<LeftOut> = self.0.iter().map(each).collect();
        // The number of a drop has no meaning outside of this trace, so equal counts are sorted by their text.
        all.sort_by(|a, b| (a.outcome, b.count, &a.explanation).cmp(&(b.outcome, a.count, &b.explanation)));
        all
    }
}
