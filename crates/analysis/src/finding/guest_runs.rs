//! The guest uses the vCPU: its kernel, its service, or other programs.

use super::{PROFILE_GUEST, Rule, State};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::GuestRuns,
    title: "guest itself runs",
    blame: Blame::Guest,
    inside: &[
        (Row::Irq, Some(State::Guest)),
        (Row::Stack, Some(State::Guest)),
        (Row::Tx, Some(State::Guest)),
    ],
    parts: &[(Stage::Guest, Some(State::Guest))],
    explanation: "The guest had its CPU and used it: its kernel, other programs that ran instead, and, unless the guest \
                  reports its part of the path, the service.",
    remedy: |_, _| Remedy::elsewhere(PROFILE_GUEST),
};
