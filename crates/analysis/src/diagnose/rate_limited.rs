//! A qdisc that limits the rate on the VM's tap queues or drops packets for the guest.

use super::{Found, Rule, Seen};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::printable;
use teiji_model::usage::RateLimit;

/// Fewer than this a second are taken for single bursts.
const OVERLIMITS_PER_SECOND: u64 = 10;
/// From this on, drops are more than what active queue management (as of fq_codel or cake) does now and then.
const DROPS_PER_SECOND: u64 = 1;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::RateLimited,
    title: "rate limit on its tap",
    blame: Blame::Host,
    found: |seen| {
        let now = seen.host.1.rate_limits.get(&seen.pid)?;
        let lines: Vec<String> = now.iter().filter_map(|limit| exceeded(seen, limit)).collect();
        (!lines.is_empty()).then(|| Found::unmeasured(lines))?
    },
    explanation: "More packets come for the guest than a qdisc on its tap lets pass: they are queued, and dropped when the queue is full.",
    remedy: |_| {
        Remedy::none(
            "raise the rate of the qdisc (tc -s qdisc show dev TAP; libvirt sets it by <bandwidth>, <inbound> of the interface), or send the \
             VM less",
        )
    },
};

/// That packets exceeded the rate of this qdisc, and by how much; `None` if they hardly did, or none of them had to wait for long.
fn exceeded(seen: &Seen<'_>, now: &RateLimit) -> Option<String> {
    // If they could not be read, what it counts now says nothing.
    let before = seen.host.0.rate_limits.get(&seen.pid)?;
    let is_same = |other: &&RateLimit| {
        (other.ifindex, &other.kind, other.handle) == (now.ifindex, &now.kind, now.handle)
    };
    let before = before.iter().find(is_same);
    // A qdisc that was replaced, or a counter that wrapped, starts again from 0.
    let since =
        |now: u32, before: Option<u32>| u64::from(now.checked_sub(before.unwrap_or(0)).unwrap_or(now));
    let per_second = |n: u64| n.saturating_mul(1_000_000_000) / seen.length.max(1);
    let overlimits = per_second(since(now.overlimits, before.map(|before| before.overlimits)));
    let drops = since(now.drops, before.map(|before| before.drops));
    let always_queued = now.queued > 0 && before.is_some_and(|before| before.queued > 0);
    if overlimits < OVERLIMITS_PER_SECOND || per_second(drops) < DROPS_PER_SECOND && !always_queued {
        return None;
    }
    let [device, kind] = [&now.device, &now.kind].map(|text| printable(text));
    let queued = now.queued;
    Some(format!(
        "{kind} on {device}: {overlimits} overlimits a second, {drops} packets dropped, {queued} queued at the end"
    ))
}
