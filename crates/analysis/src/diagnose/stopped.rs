//! Threads are stopped by a signal or a debugger, or their control group is frozen.

use super::{Found, Rule};
use teiji_model::diagnosis::{FaultCause, share};
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of the time on.
const STOPPED: f64 = 0.1;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::Stopped,
    title: "stopped or frozen",
    blame: Blame::Host,
    found: |seen| {
        let worst = seen.all().max_by_key(|time| time.times.stopped)?;
        let stopped = share(worst.times.stopped, worst.times.length);
        let frozen = seen.last.groups.iter().find(|group| group.frozen);
        let by = frozen.map(|group| format!("the control group {} is frozen", group.path));
        let line = format!("{} was stopped {} of the time", worst.name, percent(stopped));
        (stopped >= STOPPED).then(|| Found::lost(stopped, [line].into_iter().chain(by).collect()))?
    },
    explanation: "Somebody has stopped the VM's threads: SIGSTOP, a debugger that is attached, or the freezer of control groups. \
                  The host's scheduler has no part in that.",
    remedy: |_| {
        Remedy::none(
            "end what stopped it: kill -CONT PID, detach the debugger, or write 0 to cgroup.freeze of its control group",
        )
    },
};
