//! The vhost worker takes long from taking a packet off the tap to signalling it.

use super::{BUSY_WORKER, Rule};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::RingFill,
    title: "vhost worker fills the guest's ring",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::VhostRx, None)],
    explanation: "The vhost worker copied the packet into the guest's receive ring and signalled it late: it handles \
                  many at a time, or the ring was full.",
    remedy: |_, _| Remedy::elsewhere(BUSY_WORKER),
};
