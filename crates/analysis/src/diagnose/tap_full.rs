//! The guest takes packets too slowly.

use super::{Found, Rule};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;

/// Dropped packets a second from which on they are a fault.
const DROPS: u64 = 1;
/// Its share: a packet that is lost is worse than one that waits.
const SHARE: f64 = 0.5;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::TapFull,
    title: "packets dropped: its tap is full",
    blame: Blame::Guest,
    found: |seen| {
        let lost = |(tap, now): (&String, &u64)| {
            let n = now.saturating_sub(*seen.first.tap_drops.get(tap)?);
            (n.saturating_mul(1_000_000_000) / seen.length.max(1) >= DROPS)
                .then(|| format!("{tap} dropped {n} packets for the guest"))
        };
        let lines: Vec<String> = seen.last.tap_drops.iter().filter_map(lost).collect();
        (!lines.is_empty()).then(|| Found::new(SHARE, lines))?
    },
    explanation: "Packets for the guest come faster than the vhost worker and the guest take them, so that the tap's queue is \
                  full.",
    remedy: |_| {
        Remedy::elsewhere(
            "see what else is found: if the worker has time, the guest is too slow; a longer queue (ip link set TAP txqueuelen N) only helps against bursts",
        )
    },
};
