//! A CPU quota keeps threads from running.

use super::{Found, Rule};
use teiji_model::diagnosis::{FaultCause, Times, share};
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of the time that its threads wanted to run on.
const THROTTLED: f64 = 0.05;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::Throttled,
    title: "held back by its CPU quota",
    blame: Blame::Host,
    found: |seen| {
        let mut sum = Times::default();
        seen.all().for_each(|thread| sum.add(&thread.times));
        let throttled = share(sum.throttled, sum.wanted());
        let grown = |path: &str, now: u64| {
            let before = seen.first.groups.iter().find(|group| group.path == path);
            now.saturating_sub(before.map_or(now, |before| before.throttled))
        };
        let by = seen.last.groups.iter().max_by_key(|group| grown(&group.path, group.throttled))?;
        let quota = by.quota.map_or_else(|| "its quota".to_owned(), |quota| format!("{quota} % of a CPU"));
        let line = format!(
            "the control group {} may use {quota}: that took {} of the time that its threads could run",
            by.path,
            percent(throttled)
        );
        (throttled >= THROTTLED).then(|| Found::lost(throttled, vec![line]))?
    },
    explanation: "The VM has used up what its control group may use in a period (cpu.max), and waits for the next one. No \
                  scheduling class helps against the operator's own limit.",
    remedy: |_| {
        Remedy::none("raise the quota: quota = \"200%\" of the VM in a policy, cpu.max, or virsh schedinfo")
    },
};
