//! A vhost worker is runnable while another thread has its CPU, such as a vCPU of the same VM.

use super::{Rule, State, realtime};
use teiji_model::finding::Cause;
use teiji_model::reason::Blame;
use teiji_model::stage::{Actor, Stage};

pub(super) const RULE: Rule = Rule {
    cause: Cause::WorkerWaitsForCpu,
    title: "vhost worker waits for a CPU",
    blame: Blame::Host,
    inside: &[],
    parts: &[(Stage::TapQueue, Some(State::Ready)), (Stage::VhostTx, Some(State::Ready))],
    explanation: "The vhost worker, which carries the VM's packets, could run, and the host's scheduler ran another thread \
                  on its CPU.",
    remedy: |_, _| realtime(Actor::Worker),
};
