//! The admission test for links whose deadlines the kernel's HFSC keeps (Stoica, Zhang, Ng: A Hierarchical Fair Service
//! Curve Algorithm, SIGCOMM 1997), and its guarantees.
//!
//! Channel j is given a service curve S_j: its burst σ_j within d′_j, then its rate ρ_j. Packets within burst and rate
//! are then served within d′_j of their arrival, plus the time of one frame that is being sent (theorem 2 of the
//! paper), if all curves together are at most what the link serves: Σ S_j(t) ≤ C t for all t.
//!
//! A curve starts with slope m1_j = max(σ_j / d′_j, ρ_j) and continues with ρ_j ≤ m1_j: all curves are concave, and so
//! is their sum. It stays below C t if and only if it does so at the start:
//!
//! ```text
//! Σ max(σ_j / d′_j, ρ_j)  ≤  C
//! ```
//!
//! This requires more than earliest deadline first: a burst is reserved within its deadline all the time, as if it came
//! again and again. A set that passes this test also passes that one: S_j(t − a) ≥ σ_j + ρ_j (t − a − d′_j), so the sum
//! at t − a is at most C (t − a), where a is subtracted from the deadlines below.
//!
//! A packet may have to wait for the frame that is being sent, and for what the rate limiter has handed over too early
//! to make up for a timer that fires late by ε: at most C ε. So
//!
//! ```text
//! d′_j  =  d_j − a, in whole µs rounded down,  a = (ring + largest frame) / C + ε,  delay_j = d′_j + a
//! ```

use super::curve::{self, HFSC_MAX_RATE};
use super::demand::{BYTE, div_ceil};
use super::types::{
    Admission, ChannelSpec, Denied, FASTEST, Fix, Guarantee, LONGEST, LinkSpec, Misfit, Refusal,
};
use super::{fixes, types};

/// Whether HFSC can keep the deadlines of all these channels on the link. The link's slack is not used.
///
/// # Errors
/// [`Denied::Malformed`] if a value is out of its range, [`Denied::Refused`] if the channels do not fit.
pub fn admit(link: &LinkSpec, channels: &[ChannelSpec]) -> Result<Admission, Denied> {
    types::check(link, channels)?;
    let load = Load::new(link, channels);
    if !load.fits() {
        return Err(Denied::Refused(Box::new(load.refusal())));
    }
    let reserved = channels.iter().fold(0_u64, |sum, c| sum.saturating_add(c.rate));
    let guarantee = |c: &ChannelSpec| {
        let delay = within(link, c).unwrap_or(0).saturating_add(blocking(link)).min(c.deadline);
        Guarantee { name: c.name.clone(), delay }
    };
    Ok(Admission {
        slack: 0,
        guarantees: channels.iter().map(guarantee).collect(),
        reserved_rate: reserved,
        free_rate: link.rate.saturating_sub(reserved),
        free_burst: load.free_burst(),
    })
}

/// The part of a channel's deadline that HFSC itself has to keep, ns in whole µs; `None` if what the link adds leaves
/// less than 1 µs.
pub fn within(link: &LinkSpec, channel: &ChannelSpec) -> Option<u64> {
    let whole = channel.deadline.checked_sub(blocking(link))? / 1000 * 1000;
    (whole > 0).then_some(whole)
}

/// The delay that the link adds to every packet, ns, rounded up.
fn blocking(link: &LinkSpec) -> u64 {
    let bytes = u64::from(link.max_frame) + u64::from(link.overhead) + link.ring_bytes;
    let sent = div_ceil(i128::from(bytes) * BYTE, link.rate.max(1).into());
    u64::try_from(sent).unwrap_or(LONGEST).saturating_add(link.timer_error)
}

/// What a channel reserves, bit/s. More than any link has, if its deadline leaves no time, or if the rates exceed
/// HFSC's limits.
fn reserves(link: &LinkSpec, channel: &ChannelSpec) -> u128 {
    let curve = within(link, channel).and_then(|within| curve::smallest(channel.burst, within, channel.rate));
    curve.map_or(u128::from(FASTEST), |curve| curve::reserves(&curve).into())
}

/// The channels of a link, and what they reserve of it.
struct Load<'a> {
    link: &'a LinkSpec,
    channels: &'a [ChannelSpec],
    /// Σ m1, bit/s.
    total: u128,
}

impl<'a> Load<'a> {
    fn new(link: &'a LinkSpec, channels: &'a [ChannelSpec]) -> Self {
        let total = channels.iter().map(|c| reserves(link, c)).sum();
        Load { link, channels, total }
    }

    /// How much can be reserved, bit/s.
    fn most(link: &LinkSpec) -> u128 {
        // Above it there are no curves, so limiting the sum excludes no set.
        link.rate.min(HFSC_MAX_RATE).into()
    }

    fn fits(&self) -> bool {
        self.total <= Self::most(self.link)
    }

    /// Whether the set fits if the channel `was` is replaced by `changed`.
    fn fits_with(&self, was: &ChannelSpec, changed: &ChannelSpec) -> bool {
        self.total - reserves(self.link, was) + reserves(self.link, changed) <= Self::most(self.link)
    }

    fn free_burst(&self) -> Option<u64> {
        let room = |c: &ChannelSpec| {
            let grown = |by: u64| self.fits_with(c, &ChannelSpec { burst: c.burst + by, ..c.clone() });
            // The smallest increase that is too much.
            fixes::least(1, types::LARGEST.into(), |by| !grown(u64::try_from(by).unwrap_or(0)))
                .map_or(types::LARGEST, |by| u64::try_from(by - 1).unwrap_or(0))
        };
        self.channels.iter().map(room).min()
    }

    fn refusal(&self) -> Refusal {
        let (link, most) = (self.link, Self::most(self.link));
        let late = self.channels.iter().filter(|c| within(link, c).is_none()).min_by_key(|c| c.deadline);
        if let Some(late) = late {
            // Even alone, this channel would wait longer than its deadline.
            let needs = blocking(link).saturating_add(1000) - late.deadline;
            let excess = u128::from(needs) * u128::from(link.rate) / 8_000_000_000 + u128::from(late.burst);
            let (misfit, at) = (Misfit::Deadline, late.deadline);
            let offending = vec![late.name.clone()];
            return Refusal { misfit, at, excess, offending, fixes: self.fixes() };
        }
        let mut by_share: Vec<(u128, &ChannelSpec)> =
            self.channels.iter().map(|c| (reserves(link, c), c)).collect();
        by_share.sort_by_key(|(share, _)| *share);
        Refusal {
            misfit: Misfit::Curves,
            at: LONGEST,
            excess: (self.total - most).div_ceil(8),
            offending: by_share.into_iter().map(|(_, c)| c.name.clone()).collect(),
            fixes: self.fixes(),
        }
    }

    /// The smallest sufficient change of each kind: of the channel that reserves most, or of the link.
    fn fixes(&self) -> Vec<Fix> {
        let mut found: Vec<(i128, Fix)> = Vec::new();
        let mut add = |from: u64, to: Option<u64>, fix: fn(String, u64) -> Fix, name: &str| {
            if let Some(to) = to {
                found.push((
                    fixes::part(i128::from(to.abs_diff(from)), from.into()),
                    fix(name.to_owned(), to),
                ));
            }
        };
        let worst =
            self.channels.iter().max_by_key(|c| (reserves(self.link, c), std::cmp::Reverse(c.deadline)));
        if let Some(c) = worst {
            let does = |deadline, burst, rate| {
                self.fits_with(c, &ChannelSpec { deadline, burst, rate, ..c.clone() })
            };
            let one = u64::from(c.max_packet) + u64::from(self.link.overhead);
            let deadline = least(c.deadline, LONGEST, |to| does(to, c.burst, c.rate));
            let burst = least(0, c.burst - one, |less| does(c.deadline, c.burst - less, c.rate));
            let rate = least(0, c.rate - 1, |less| does(c.deadline, c.burst, c.rate - less));
            add(c.deadline, deadline, |channel, to| Fix::Deadline { channel, to }, &c.name);
            add(c.burst, burst.map(|less| c.burst - less), |channel, to| Fix::Burst { channel, to }, &c.name);
            add(c.rate, rate.map(|less| c.rate - less), |channel, to| Fix::Rate { channel, to }, &c.name);
        }
        // A faster link also has a shorter blocking time.
        let faster = least(self.link.rate, HFSC_MAX_RATE.max(self.link.rate), |rate| {
            Load::new(&LinkSpec { rate, ..self.link.clone() }, self.channels).fits()
        });
        add(self.link.rate, faster, |_, to| Fix::LinkRate { to }, "");
        found.sort_by_key(|(change, _)| *change);
        found.into_iter().map(|(_, fix)| fix).collect()
    }
}

/// The smallest value of a range that is sufficient, if all greater values are, too.
fn least(from: u64, to: u64, mut does: impl FnMut(u64) -> bool) -> Option<u64> {
    let found = fixes::least(from.into(), to.into(), |v| does(u64::try_from(v).unwrap_or(u64::MAX)));
    found.and_then(|v| u64::try_from(v).ok())
}
