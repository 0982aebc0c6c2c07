//! The host's path from the tap to the link's queue takes long.

use super::{HOST_STACK, Rule};
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;
use teiji_model::stage::Stage;

pub(super) const RULE: Rule = Rule {
    cause: Cause::TransmitPath,
    title: "host's network stack, outbound",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::SwitchOut, None)],
    explanation: "The host took long to bring the VM's frame to the queue of the link: bridge or Open vSwitch, firewall \
                  rules.",
    remedy: |_, _| Remedy::elsewhere(HOST_STACK),
};
