//! The frame waits in the qdisc of the link.

use super::Rule;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::LinkQueue,
    title: "queue of the link",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::Qdisc, None)],
    explanation: "The frame waited in the link's qdisc: more packets were to leave by the link than it can send, or \
                  the qdisc limits the rate.",
    remedy: |_, _| Remedy::elsewhere("look at what else leaves by the link: tc -s qdisc show"),
};
