//! What the channels may have to send by an instant, compared with what the link can have sent by then.
//!
//! Amounts are in units of 1/10⁹ bit, the product of bit/s and ns, so nothing is rounded. With the ranges of `terms` no
//! sum exceeds 2¹¹⁰ (2²⁰ channels × 10¹³ bit/s × 3.6·10¹² ns).

use super::types::{ChannelSpec, LinkSpec};
use teiji_model::policy::Auto;

/// One byte.
pub(super) const BYTE: i128 = 8_000_000_000;

/// `a / b` rounded up, `b` positive.
pub(super) fn div_ceil(a: i128, b: i128) -> i128 {
    -(-a).div_euclid(b)
}

/// A channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// The index in the operator's list.
    pub index: usize,
    /// d, ns.
    pub deadline: i128,
    /// ρ, bit/s.
    pub rate: i128,
    /// σ, 1/10⁹ bit.
    pub burst: i128,
}

impl Item {
    pub fn new(index: usize, c: &ChannelSpec) -> Self {
        let burst = i128::from(c.burst) * BYTE;
        Item { index, deadline: c.deadline.into(), rate: c.rate.into(), burst }
    }
}

/// Sums over the channels whose deadlines are at most some instant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    /// Σ σ.
    pub burst: i128,
    /// Σ ρ.
    pub rate: i128,
    /// Σ ρ d.
    pub before: i128,
}

impl Sum {
    pub fn add(&mut self, item: &Item) {
        self.burst += item.burst;
        self.rate += item.rate;
        self.before += item.rate * item.deadline;
    }

    /// Σ [σ + ρ (t − d)].
    pub fn by(&self, t: i128) -> i128 {
        self.burst + self.rate * t - self.before
    }
}

/// The channels of a link, and the link.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Sorted by deadline.
    pub items: Vec<Item>,
    /// C, bit/s.
    pub rate: i128,
    /// Ring and largest frame, in 1/10⁹ bit.
    pub blocking: i128,
    /// ε, ns.
    pub timer: i128,
    /// S, ns, if the operator has set it.
    pub slack: Option<i128>,
}

impl Load {
    pub fn new(link: &LinkSpec, channels: &[ChannelSpec]) -> Self {
        let mut items: Vec<Item> = channels.iter().enumerate().map(|(i, c)| Item::new(i, c)).collect();
        items.sort_by_key(|i| i.deadline);
        let blocking = u64::from(link.max_frame) + u64::from(link.overhead) + link.ring_bytes;
        Load {
            items,
            rate: link.rate.into(),
            blocking: i128::from(blocking) * BYTE,
            timer: link.timer_error.into(),
            slack: match link.slack {
                Auto::Auto => None,
                Auto::Nanoseconds(set) => Some(set.into()),
            },
        }
    }

    /// Σ ρ, bit/s.
    pub fn reserved(&self) -> i128 {
        self.items.iter().map(|i| i.rate).sum()
    }

    /// The channels whose deadlines are at most `t` (ns).
    pub fn up_to(&self, t: i128) -> impl Iterator<Item = &Item> {
        self.items.iter().take_while(move |i| i.deadline <= t)
    }

    /// By how much `demand` and what blocks it exceed what the link can send by `t`.
    pub fn excess(&self, demand: i128, t: i128) -> i128 {
        demand + self.blocking - self.rate * (t - self.timer)
    }

    /// Each deadline with the sums up to it and the excess there, without the slack rule. Of channels with equal
    /// deadlines only the last one's sum includes them all; the excess of the others is smaller.
    pub fn steps(&self) -> impl Iterator<Item = (i128, Sum, i128)> {
        let mut sum = Sum::default();
        self.items.iter().map(move |item| {
            sum.add(item);
            let t = item.deadline;
            (t, sum, self.excess(sum.by(t), t))
        })
    }

    /// The instant at which the excess is largest, and that excess; the first such instant if there are several. `None`
    /// without channels.
    pub fn tightest(&self) -> Option<(i128, i128)> {
        self.steps().map(|(t, _, excess)| (t, excess)).reduce(|a, b| if b.1 > a.1 { b } else { a })
    }

    /// G(S) of the introduction of [`admission`](super). Beyond the last deadline it equals the test at that deadline.
    pub fn excess_with_slack(&self, slack: i128) -> i128 {
        self.excess(at_once(&self.items, slack), slack)
    }

    /// The smallest slack, ns, that keeps every deadline of a set that is admitted: the root of G, rounded up.
    /// 0 without channels.
    pub fn least_slack(&self) -> i128 {
        let all: i128 = self.items.iter().map(|i| i.burst).sum();
        let mut sum = Sum::default();
        for next in &self.items {
            // Up to this deadline G is a straight line: it has a root there if it is at most 0 at the end.
            let end = next.deadline;
            if self.excess(all + sum.rate * end - sum.before, end) <= 0 {
                let fixed = all - sum.before + self.blocking + self.rate * self.timer;
                // Not 0: `fixed` is positive, so the line falls.
                return div_ceil(fixed, (self.rate - sum.rate).max(1));
            }
            sum.add(next);
        }
        // Reached only by a set that does not fit, and without channels.
        self.items.last().map_or(0, |i| i.deadline)
    }

    /// Whether all deadlines are kept if one channel is replaced by `changed`, with the slack that was set or, if none
    /// was, with some slack.
    pub fn fits_with(&self, changed: &Item) -> bool {
        let others = || self.items.iter().filter(|i| i.index != changed.index);
        if let Some(slack) = self.slack {
            let demand = at_once(others().chain([changed]), slack);
            if self.excess(demand, slack) > 0 {
                return false;
            }
        }
        let mut sum = Sum::default();
        let mut fits = |item: &Item| {
            sum.add(item);
            sum.rate <= self.rate && self.excess(sum.by(item.deadline), item.deadline) <= 0
        };
        let mut pending = Some(changed);
        for item in others() {
            if let Some(c) = pending.take_if(|c| c.deadline <= item.deadline)
                && !fits(c)
            {
                return false;
            }
            if !fits(item) {
                return false;
            }
        }
        pending.is_none_or(fits)
    }
}

/// What is due by `slack` if best effort goes first until then: every burst, and the rate of those with earlier
/// deadlines.
pub(super) fn at_once<'a>(items: impl IntoIterator<Item = &'a Item>, slack: i128) -> i128 {
    items.into_iter().map(|i| i.burst + i.rate * (slack - i.deadline).max(0)).sum()
}
