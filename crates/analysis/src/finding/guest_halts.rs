//! The guest is idle between the interrupt and its answer: the service waits for something else.

use super::{Rule, State};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::GuestHalts,
    title: "guest halts during the request",
    blame: Blame::Guest,
    inside: &[
        (Row::ReaderBusy, Some(State::Asleep)),
        (Row::App, Some(State::Asleep)),
        (Row::NewThread, Some(State::Asleep)),
        (Row::Tx, Some(State::Asleep)),
        (Row::ReaderBusy, Some(State::Poll)),
        (Row::App, Some(State::Poll)),
        (Row::NewThread, Some(State::Poll)),
        (Row::Tx, Some(State::Poll)),
    ],
    parts: &[(Stage::Guest, Some(State::Asleep)), (Stage::Guest, Some(State::Poll))],
    explanation: "The guest had nothing to run between the interrupt and its answer: the service waited for a timer, a \
                  disk, a lock or another service.",
    remedy: |_, _| {
        Remedy::elsewhere("look in the guest for what the service waits for: a disk, a lock, another service")
    },
};
