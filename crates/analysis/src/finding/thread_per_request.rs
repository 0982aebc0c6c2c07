//! The application answers by a thread that it creates for the request: its stack and its caches are cold.

use super::{Rule, State};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;

pub(super) const RULE: Rule = Rule {
    cause: Cause::ThreadPerRequest,
    title: "new thread answers each request",
    blame: Blame::Guest,
    inside: &[(Row::NewThread, Some(State::Guest))],
    parts: &[],
    explanation: "The answer was sent by a thread that was created after the request had been read. To create it, and to run it \
                  with cold caches, takes time for each request.",
    remedy: |_, _| {
        Remedy::elsewhere("let the application keep its threads: a pool instead of a thread for each request")
    },
};
