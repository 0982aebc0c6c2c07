//! A packet is in the socket, and the vCPU of its reader runs, but not the reader; or the reader is busy with something else.

use super::{Rule, State};
use crate::guest_cells::Row;
use teiji_model::finding::{Cause, Remedy};
use teiji_model::reason::Blame;

pub(super) const RULE: Rule = Rule {
    cause: Cause::ReaderWaitsInGuest,
    title: "reader waits inside the guest",
    blame: Blame::Guest,
    inside: &[(Row::ReaderBusy, Some(State::Guest)), (Row::ReaderWoken, Some(State::Guest))],
    parts: &[],
    explanation: "The packet was on the socket's queue and the vCPU had its CPU, but ran other threads of the guest, or the \
                  reader was busy with earlier packets.",
    remedy: |_, _| {
        Remedy::elsewhere(
            "look in the guest for what runs on the reader's CPU (pidstat -t), and for how many packets wait before it: more \
             readers, more vCPUs, or a higher priority for the reader",
        )
    },
};
