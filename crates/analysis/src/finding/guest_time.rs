//! Time in the guest; what the vCPU did was not seen.

use super::{PROFILE_GUEST, Rule};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::GuestTime,
    title: "time in the guest",
    blame: Blame::Guest,
    inside: &[
        (Row::Irq, None),
        (Row::Stack, None),
        (Row::ReaderBusy, None),
        (Row::ReaderWoken, None),
        (Row::App, None),
        (Row::Tx, None),
    ],
    parts: &[(Stage::Guest, None)],
    explanation: "The time from the interrupt to the guest's answer; what the vCPU's thread did meanwhile was not seen.",
    remedy: |_, _| Remedy::elsewhere(PROFILE_GUEST),
};
