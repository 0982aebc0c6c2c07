//! The hand-over of the frame from the qdisc to the NIC's driver takes long.

use super::Rule;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::DriverHandOver,
    title: "hand-over to the link's driver",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::WireOut, None)],
    explanation: "The frame had left the qdisc, and it took long until the NIC's driver had it: another CPU held the \
                  driver's lock, or packet sockets received it first.",
    remedy: |_, _| Remedy::elsewhere("look at the NIC and its driver: ethtool -S"),
};
