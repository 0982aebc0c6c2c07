//! A vCPU thread is runnable while another thread has its CPU: a busy program on the same CPU, too few CPUs for the
//! VMs, or a `cpu.max` that is used up.

use super::{Rule, State, realtime};
use crate::guest_cells::Row;
use teiji_model::finding::Cause;
use teiji_model::reason::Blame;
use teiji_model::stage::{Actor, Stage};

pub(super) const RULE: Rule = Rule {
    cause: Cause::VcpuWaitsForCpu,
    title: "vCPU waits for a CPU",
    blame: Blame::Host,
    inside: &[
        (Row::Irq, Some(State::Ready)),
        (Row::Stack, Some(State::Ready)),
        (Row::ReaderBusy, Some(State::Ready)),
        (Row::ReaderWoken, Some(State::Ready)),
        (Row::App, Some(State::Ready)),
        (Row::NewThread, Some(State::Ready)),
        (Row::Tx, Some(State::Ready)),
    ],
    parts: &[(Stage::VcpuWake, Some(State::Ready)), (Stage::Guest, Some(State::Ready))],
    explanation: "The vCPU's thread could run, and the host's scheduler ran another thread on its CPU. Meanwhile the \
                  guest does not run, and does not notice.",
    remedy: |_, _| realtime(Actor::Vcpu),
};
