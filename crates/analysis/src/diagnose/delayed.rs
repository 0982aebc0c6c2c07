//! A qdisc delays packets on purpose.

use super::{Found, Rule};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::Delayed,
    title: "a qdisc delays its packets",
    blame: Blame::Host,
    found: |seen| {
        let line = |(device, kind): &(String, String)| format!("{device} has the qdisc {kind}");
        let lines: Vec<String> = seen.last.delaying.iter().map(line).collect();
        (!lines.is_empty()).then(|| Found::unmeasured(lines))?
    },
    explanation: "Somebody has put a qdisc on a device of the VM's path that delays or drops packets, as for a test.",
    remedy: |_| Remedy::none("see tc -s qdisc show dev DEVICE; tc qdisc del dev DEVICE root takes it away"),
};
