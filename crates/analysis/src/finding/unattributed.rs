//! Time that no stage accounts for: at most 1 % unless events were missed.

use super::Rule;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::Unattributed,
    title: "time that no stage explains",
    blame: Blame::Teiji,
    inside: &[],
    parts: &[(Stage::Unattributed, None)],
    explanation: "The stages of these requests do not add up to their time: teiji missed a part of their path.",
    remedy: |_, _| Remedy::elsewhere("no stage accounts for it: trace again, with a larger --buffer"),
};
