//! The smallest change of each kind that makes a refused set fit.
//!
//! Demand at every instant only falls if a deadline grows or a burst or rate shrinks. So the smallest change of one
//! value is found by bisection, and each try is the whole test of the changed set: the results are exact. Only the
//! channels with the greatest part in the excess are tried, which limits the work to [`TRIED`] × 3 × 42 passes over the
//! channels.

use super::demand::{BYTE, Item, Load, at_once, div_ceil};
use super::types::{ChannelSpec, FASTEST, Fix, LONGEST, LinkSpec, Misfit};

/// How many channels are tried.
const TRIED: usize = 16;

/// Single changes that make the set fit; the smallest relative change first.
pub(super) fn fixes(load: &Load, link: &LinkSpec, channels: &[ChannelSpec], misfit: &Misfit) -> Vec<Fix> {
    if let Misfit::Slack { least } = misfit {
        return vec![Fix::Slack { to: *least }];
    }
    // (change in millionths of the value, fix); the change is used only for the order.
    let mut found: Vec<(i128, Fix)> = Vec::new();
    let mut best: [Option<(i128, Fix)>; 3] = [const { None }; 3];
    for item in candidates(load, misfit) {
        let name = &channels[item.index].name;
        let options = [
            deadline(load, item).map(|to| {
                let to_ns = u64::try_from(to).unwrap_or(LONGEST);
                (part(to - item.deadline, item.deadline), Fix::Deadline { channel: name.clone(), to: to_ns })
            }),
            burst(load, link, item, &channels[item.index]).map(|to| {
                let change = part(item.burst - to * BYTE, item.burst);
                (change, Fix::Burst { channel: name.clone(), to: u64::try_from(to).unwrap_or(0) })
            }),
            rate(load, item).map(|to| {
                let change = part(item.rate - to, item.rate);
                (change, Fix::Rate { channel: name.clone(), to: u64::try_from(to).unwrap_or(0) })
            }),
        ];
        for (best, option) in best.iter_mut().zip(options) {
            if let Some(option) = option
                && best.as_ref().is_none_or(|b| option.0 < b.0)
            {
                *best = Some(option);
            }
        }
    }
    found.extend(best.into_iter().flatten());
    if let Some(to) = link_rate(load) {
        let to_u64 = u64::try_from(to).unwrap_or(FASTEST);
        found.push((part(to - load.rate, load.rate), Fix::LinkRate { to: to_u64 }));
    }
    found.sort_by_key(|(change, _)| *change);
    found.into_iter().map(|(_, fix)| fix).collect()
}

/// A change in millionths of the value; used only for the order.
pub(super) fn part(change: i128, of: i128) -> i128 {
    change.saturating_mul(1_000_000) / of.max(1)
}

/// The channels with the greatest part in the excess, greatest first.
fn candidates<'a>(load: &'a Load, misfit: &Misfit) -> Vec<&'a Item> {
    let at = match misfit {
        Misfit::Rate => LONGEST.into(),
        // A sufficient change has to be sufficient where the excess is largest.
        _ => load.tightest().map_or(0, |(t, _)| t),
    };
    let mut items: Vec<&Item> = load.up_to(at).collect();
    items.sort_by_key(|i| std::cmp::Reverse(i.burst + i.rate * (at - i.deadline)));
    items.truncate(TRIED);
    items
}

/// The smallest value from `from` to `to` that is sufficient, if one is, and if all greater values are, too.
pub(super) fn least(from: i128, to: i128, mut does: impl FnMut(i128) -> bool) -> Option<i128> {
    if from > to || !does(to) {
        return None;
    }
    let (mut low, mut high) = (from, to);
    while low < high {
        let middle = low + (high - low) / 2;
        if does(middle) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}

fn deadline(load: &Load, item: &Item) -> Option<i128> {
    least(item.deadline, LONGEST.into(), |to| load.fits_with(&Item { deadline: to, ..*item }))
}

/// In bytes. Not below the largest packet.
fn burst(load: &Load, link: &LinkSpec, item: &Item, channel: &ChannelSpec) -> Option<i128> {
    let (now, one) = (item.burst / BYTE, i128::from(channel.max_packet) + i128::from(link.overhead));
    least(0, now - one, |less| load.fits_with(&Item { burst: (now - less) * BYTE, ..*item }))
        .map(|less| now - less)
}

fn rate(load: &Load, item: &Item) -> Option<i128> {
    least(0, item.rate - 1, |less| load.fits_with(&Item { rate: item.rate - less, ..*item }))
        .map(|less| item.rate - less)
}

/// Each deadline requires a rate; the greatest of these is sufficient for all.
fn link_rate(load: &Load) -> Option<i128> {
    let mut to = load.reserved();
    let by_slack = load.slack.map(|s| (s, at_once(&load.items, s)));
    for (t, demand) in load.steps().map(|(t, sum, _)| (t, sum.by(t))).chain(by_slack) {
        let usable = t - load.timer;
        if usable <= 0 {
            return None;
        }
        to = to.max(div_ceil(demand + load.blocking, usable));
    }
    (to <= FASTEST.into()).then_some(to)
}
