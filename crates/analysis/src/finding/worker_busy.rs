//! The vhost worker is busy with earlier packets, or with those of the other direction.

use super::{BUSY_WORKER, Rule, State};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::WorkerBusy,
    title: "vhost worker is busy",
    blame: Blame::Host,
    inside: &[],
    // A worker is never in guest mode and does not halt; if its clock says so, it was on its CPU.
    parts: &[
        (Stage::TapQueue, Some(State::Run)),
        (Stage::VhostTx, Some(State::Run)),
        (Stage::TapQueue, Some(State::Guest)),
        (Stage::VhostTx, Some(State::Guest)),
        (Stage::TapQueue, Some(State::Poll)),
        (Stage::VhostTx, Some(State::Poll)),
    ],
    explanation: "The vhost worker had its CPU, and was busy with earlier packets: one thread handles both \
                  directions of a queue.",
    remedy: |_, _| Remedy::elsewhere(BUSY_WORKER),
};
