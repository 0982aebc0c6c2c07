//! The guest uses all that its vCPUs can give.

use super::{Found, Rule};
use teiji_model::diagnosis::{FaultCause, ThreadTime, share};
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// From this part of the time of a vCPU on, in guest mode and in the host's work for the guest together.
const BUSY: f64 = 0.9;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::GuestBusy,
    title: "the guest uses up its vCPU",
    blame: Blame::Guest,
    found: |seen| {
        // Polling is no work of the guest. Which vCPU it was for is not known, but not while that was in guest mode.
        let polled = seen.polled().unwrap_or(0);
        let parts = |time: &ThreadTime| {
            let exits = time.times.ran.saturating_sub(time.times.guest).saturating_sub(polled);
            (
                share(time.times.guest + exits, time.times.length),
                share(time.times.guest, time.times.length),
                share(exits, time.times.length),
            )
        };
        let all = seen.vcpus().map(|time| (parts(time), &time.name));
        let mut all: Vec<_> = all.filter(|((busy, ..), _)| *busy >= BUSY).collect();
        all.sort_by(|((a, ..), _), ((b, ..), _)| b.total_cmp(a));
        let line = |((busy, guest, exits), name): &((f64, f64, f64), &String)| {
            let [busy, guest, exits] = [busy, guest, exits].map(|share| percent(*share));
            format!("{name} is busy {busy} of the time: {guest} in the guest, {exits} with exits to the host")
        };
        let lines: Vec<String> = all.iter().map(line).collect();
        (!lines.is_empty()).then(|| Found::unmeasured(lines))?
    },
    explanation: "The vCPU has no time left: the programs in the guest use it, and the host for what they ask of it (exits). What \
                  comes waits in the guest, and no scheduling on the host shortens that.",
    remedy: |_| {
        Remedy::elsewhere(
            "look into the guest (top, perf record; perf kvm stat on the host for exits), or give it more vCPUs",
        )
    },
};
