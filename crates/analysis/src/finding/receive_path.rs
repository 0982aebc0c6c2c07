//! The host's path from the NIC to the tap takes long.

use super::{HOST_STACK, Rule};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::ReceivePath,
    title: "host's network stack, inbound",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::SwitchIn, None)],
    explanation: "The host took long to bring the packet from its NIC to the VM's tap: bridge or Open vSwitch, firewall \
                  rules, softirqs that came late.",
    remedy: |_, _| Remedy::elsewhere(HOST_STACK),
};
