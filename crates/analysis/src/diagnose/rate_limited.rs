//! A qdisc has the VM's packets wait for their turn at a limited rate.

use super::{Found, Rule, Seen};
use teiji_model::diagnosis::FaultCause;
use teiji_model::finding::Remedy;
use teiji_model::reason::Blame;
use teiji_model::text::printable;
use teiji_model::usage::LimitUsage;

/// How often a second a qdisc has to hold packets back, so that it is no single burst.
const HELD_BACK: u64 = 10;

pub(super) const RULE: Rule = Rule {
    cause: FaultCause::RateLimited,
    title: "a rate limit holds its packets back",
    blame: Blame::Host,
    found: |seen| {
        let now = seen.hindrances.1.map(|now| &now.limits[..]).unwrap_or_default();
        let lines: Vec<String> = now.iter().filter_map(|limit| held_back(seen, limit)).collect();
        (!lines.is_empty()).then(|| Found::unmeasured(lines))?
    },
    explanation: "A qdisc with a limited rate lets packets wait, and drops those for which it has no room, although the link could carry \
                  them.",
    remedy: |_| {
        Remedy::elsewhere(
            "see tc -s qdisc show dev DEVICE and tc -s class show dev DEVICE; raise the rate, or have less sent. libvirt sets such limits by \
             <bandwidth> of an interface",
        )
    },
};

/// How a qdisc held packets back; `None` if it hardly did, or none of them had to wait for long.
fn held_back(seen: &Seen<'_>, now: &LimitUsage) -> Option<String> {
    let is_same = |other: &&LimitUsage| {
        (&other.device, &other.kind, other.handle) == (&now.device, &now.kind, now.handle)
    };
    let before = seen.hindrances.0.and_then(|before| before.limits.iter().find(is_same));
    // One that was put there anew, or has counted to the end, has begun at 0.
    let since =
        |now: u32, before: Option<u32>| u64::from(now.checked_sub(before.unwrap_or(0)).unwrap_or(now));
    let per_second = |n: u64| n.saturating_mul(1_000_000_000) / seen.length.max(1);
    let held = per_second(since(now.held_back, before.map(|before| before.held_back)));
    let dropped = since(now.dropped, before.map(|before| before.dropped));
    if held < HELD_BACK || dropped == 0 && now.waiting == 0 {
        return None;
    }
    let [device, kind] = [&now.device, &now.kind].map(|text| printable(text));
    let shared = if now.shared { ", which others use, too," } else { "" };
    Some(format!(
        "{kind} on {device}{shared} held packets back {held} times a second, and dropped {dropped}; {} wait in it",
        now.waiting
    ))
}
