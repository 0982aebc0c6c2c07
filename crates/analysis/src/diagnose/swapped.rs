//! Pages of guest memory have to be read from a device.

use super::{Found, Rule};
use teiji_model::diagnosis::{FaultCause, share};
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::percent;

/// Page faults a second that had to read from a device, from which on something is wrong.
const FAULTS: u64 = 20;
pub(super) const RULE: Rule = Rule {
    cause: FaultCause::Swapped,
    title: "guest memory is read from disk",
    blame: Blame::Host,
    found: |seen| {
        let faults = seen.last.major_faults?.saturating_sub(seen.first.major_faults?);
        let rate = faults.saturating_mul(1_000_000_000) / seen.length.max(1);
        let disk = seen.all().map(|time| share(time.times.disk, time.times.length)).max_by(f64::total_cmp)?;
        let lines = vec![
            format!("{rate} page faults a second that had to read from a device"),
            format!("a thread waits {} of the time for devices", percent(disk)),
        ];
        (rate >= FAULTS).then(|| Found::lost(disk, lines))?
    },
    explanation: "The host has too little memory: pages of the guest are in swap space, or are read from a file.",
    remedy: |_| {
        Remedy::elsewhere(
            "give the host more memory or the VM less, protect it with memory.min of its control group, or lock it \
             (memoryBacking/locked of libvirt)",
        )
    },
};
