//! Packets for the guest come faster than they are taken.

use super::{Found, Rule};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::usage::TapUsage;

/// Dropped packets a second from which on they are a fault.
const DROPS: u64 = 1;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::TapFull,
    title: "packets dropped: its tap is full",
    blame: Blame::Nobody,
    found: |seen| {
        let lost = |(tap, now): (&String, &TapUsage)| {
            let before = seen.first.taps.get(tap)?;
            let n = now.dropped.saturating_sub(before.dropped);
            // Nobody takes packets off the tap of a NIC that the guest does not use.
            let used = now.taken > before.taken;
            (used && n.saturating_mul(1_000_000_000) / seen.length.max(1) >= DROPS)
                .then(|| format!("{tap} dropped {n} packets for the guest"))
        };
        let lines: Vec<String> = seen.last.taps.iter().filter_map(lost).collect();
        (!lines.is_empty()).then(|| Found::unmeasured(lines))?
    },
    explanation: "Packets for the guest come faster than the vhost worker and the guest take them, so that the tap's queue is \
                  full.",
    remedy: |_| {
        Remedy::elsewhere(
            "see what else is found: if the worker has time, the guest is too slow; a longer queue (ip link set TAP txqueuelen N) only helps against bursts",
        )
    },
};
