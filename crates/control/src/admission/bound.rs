//! The delay that each channel of an admitted set is guaranteed.
//!
//! By the introduction of the module [`admission`](super), a packet of channel j with deadline D = s + t leaves by s +
//! f, where f is the time that the link needs for what is sent between s and the packet's last bit. What the packet
//! waits for becomes eligible by its own latest instant t − d′_i after s, and also before the packet itself has left:
//! the packet does not wait for anything that comes later. So f is at most the smallest solution of
//!
//! ```text
//! C (f − ε)  =  ring + largest frame + Σ_{d′_i ≤ t} [σ_i + ρ_i min(t − d′_i, f)]
//! ```
//!
//! This does not depend on j. The packet arrived at D − d_j, so its delay is at most d_j + f(t) − t, with t ≥ d′_j
//! since s is not after the instant at which the packet became eligible. Between the instants t = d′_i, at which
//! further channels count, f grows by at most Σ_{capped by t} ρ / (C − Σ_{capped by f} ρ) ≤ 1 per unit of t. So f(t) −
//! t falls there, and only t = d′_i have to be tried:
//!
//! ```text
//! delay_j  =  d_j + max { f(d′_i) − d′_i : d′_i ≥ d′_j }  ≤  d_j
//! ```
//!
//! The inequality is the admission test: the right side above is at most C (t − ε) at f = t. Without the `min` this
//! would be the largest lateness. With it, the bound of a channel whose deadline is far beyond the busy period does not
//! include packets that come long after its packet has left.
//!
//! For a fixed t, C f minus the right side is convex in f and negative at 0: it has one root, found by bisection over
//! the places t − d′_i where its slope changes. The total cost is O(n log n).

use super::demand::{Load, Sum, div_ceil};
use super::types::{ChannelSpec, Guarantee};

/// The guarantee of each channel, in the order of `channels`; `load` fits with this slack, ns.
pub(super) fn guarantees(load: &Load, slack: i128, channels: &[ChannelSpec]) -> Vec<Guarantee> {
    let mut load = load.clone();
    // The items stay sorted.
    load.items.iter_mut().for_each(|i| i.deadline = i.deadline.min(slack));
    let items = &load.items;
    // sums[k] is the sum of the first k channels.
    let mut sums = vec![Sum::default()];
    let mut sum = Sum::default();
    for item in items {
        sum.add(item);
        sums.push(sum);
    }
    let mut delays = vec![0; channels.len()];
    let mut latest = i128::MIN;
    for (k, item) in items.iter().enumerate().rev() {
        let t = item.deadline;
        // Of channels with equal deadlines, the last one's sum includes all of them; it was seen first, and was the
        // largest.
        latest = latest.max(leaves_by(&load, &sums, k + 1, t) - t);
        delays[item.index] = i128::from(channels[item.index].deadline) + latest;
    }
    channels
        .iter()
        .zip(delays)
        .map(|(c, delay)| Guarantee {
            name: c.name.clone(),
            delay: u64::try_from(delay).unwrap_or(0).min(c.deadline),
        })
        .collect()
}

/// f(t) of the first `n` channels, ns, rounded up.
fn leaves_by(load: &Load, sums: &[Sum], n: usize, t: i128) -> i128 {
    let all = sums[n];
    let fixed = load.blocking + load.rate * load.timer + all.burst;
    // What is sent by f if the first k channels are cut off at f, minus what the link can send.
    let uncut = |k: usize| (all.rate - sums[k].rate) * t - (all.before - sums[k].before);
    let excess = |k: usize, f: i128| fixed + sums[k].rate * f + uncut(k) - load.rate * f;
    // Channel k is cut off if f < t − d_k: first those with the longest deadlines. The root is beyond t − d_k if there
    // is excess at that point.
    let (mut cut, mut end) = (0, n);
    while cut < end {
        let k = cut + (end - cut) / 2;
        if excess(k, t - load.items[k].deadline) <= 0 { cut = k + 1 } else { end = k }
    }
    div_ceil(fixed + uncut(cut), (load.rate - sums[cut].rate).max(1))
}
