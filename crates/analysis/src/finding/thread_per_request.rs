//! The application answers by a thread that it creates for the request.

use super::{Rule, State};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;

pub(super) const RULE: Rule = Rule {
    cause: Cause::ThreadPerRequest,
    title: "new thread created to answer",
    blame: Blame::Guest,
    // The new thread often starts on another vCPU: then it is not known what any of them did meanwhile.
    inside: &[(Row::NewThread, Some(State::Guest)), (Row::NewThread, None)],
    parts: &[],
    explanation: "A thread that was created after the request had been read sent the answer. Creating and starting a thread \
                  takes time.",
    remedy: |_, _| {
        Remedy::elsewhere("let the application keep its threads: a pool instead of a thread for each request")
    },
};
