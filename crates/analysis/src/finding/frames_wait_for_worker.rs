//! The guest's frames wait in its ring; what the vhost worker did was not seen.

use super::{Rule, UNSEEN_WORKER};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::FramesWaitForWorker,
    title: "frames wait for the vhost worker",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::VhostTx, None)],
    explanation: "The guest's frames waited in its transmit ring until the vhost worker took them; what the worker \
                  did meanwhile was not seen.",
    remedy: |_, _| Remedy::elsewhere(UNSEEN_WORKER),
};
