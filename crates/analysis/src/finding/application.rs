//! The application works on the answer, and its vCPU runs.

use super::{PROFILE_GUEST, Rule, State};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;

pub(super) const RULE: Rule = Rule {
    cause: Cause::Application,
    title: "application has the packet",
    blame: Blame::Guest,
    inside: &[(Row::App, Some(State::Guest))],
    parts: &[],
    explanation: "The application had the packet, and its vCPU ran in the guest until it began to send the answer: its own work, \
                  or other threads of the guest on that vCPU.",
    remedy: |_, _| Remedy::elsewhere(PROFILE_GUEST),
};
