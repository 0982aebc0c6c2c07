//! Admission control: whether a link can keep the deadlines of a set of channels, the delay that each channel is
//! guaranteed and, if the set does not fit, at which instant, by how much, and what would make it fit; and the same question for a
//! CPU and the VMs whose threads go by deadlines ([`cpu`]).
//!
//! | module | holds |
//! | --- | --- |
//! | `types` | link, channel, admission, refusal |
//! | `demand` | the test: the demand of the channels compared with what the link can send |
//! | `bound` | the delay that each channel is guaranteed |
//! | [`cpu`] | the test for a CPU; all else here is about links |
//! | [`curve`] | the service curve of a channel for HFSC |
//! | `fixes` | the smallest single changes that make a refused set fit |
//! | [`hfsc`] | the test for links whose deadlines HFSC keeps, which admits less |
//!
//! # Model
//! A link sends C bit/s. Channel j has a token bucket (burst σ_j, rate ρ_j) and a relative deadline d_j, which is kept
//! if the last bit of a packet is on the wire by its arrival + d_j. The link sends the packet with the earliest
//! deadline first and does not interrupt a packet that it sends. Best effort goes first while the earliest deadline is
//! further away than the *slack* S. The model does not include delays before the link's queue.
//!
//! **Bytes are bytes on the wire.** A packet takes its frame (padded to 60 bytes on Ethernet) and the link's overhead.
//! The token buckets have to charge exactly that; otherwise many small packets would use more of the link than was
//! admitted.
//!
//! # The test
//! A packet is *eligible* once its deadline is at most S away, which is e = arrival + d_j − d′_j with d′_j = min(d_j,
//! S). Consider a packet with deadline D, and the last instant s, at most its e, before which no eligible packet with a
//! deadline up to D was waiting. From s until the packet is handed to the NIC, the link always has such a packet. What
//! is sent between s and the packet's last bit is therefore:
//!
//! - what was in the driver's ring at s: at most the ring's bytes and one largest frame (best effort, or a packet that
//!   was sent before it was eligible because no best effort was waiting);
//! - packets that became eligible at or after s, with deadlines up to D. Eligibility is arrival shifted by a constant,
//!   so for channel j these are at most σ_j + ρ_j (D − s − d′_j) bytes, and none if D − s < d′_j.
//!
//! If a rate limiter's timer fires late by ε, and the limiter then catches up, the link is idle for at most ε of that
//! time. If it catches up after the link was idle for want of packets, it hands over up to C ε bits more than the link
//! has sent; a late timer then costs nothing until these are sent. Both together delay what follows by at most ε. So with t = D − s all deadlines are kept if Σ ρ_j ≤ C and for all t ≥ min d′
//!
//! ```text
//! Σ_{d′_j ≤ t} [σ_j + ρ_j (t − d′_j)] + ring + largest frame  ≤  C (t − ε)
//! ```
//!
//! This is the condition of Liebeherr, Wrege and Ferrari (Exact admission control for networks with a bounded delay
//! service, IEEE/ACM Transactions on Networking 4(6), 1996) with the slack rule added. Their largest packet with a
//! later deadline is never larger than the largest best-effort frame: a channel's largest packet must fit into a frame.
//! The condition is also necessary, except for the rounding of bursts to whole packets: let every burst become eligible
//! at s, just after the ring was filled, while best effort is always waiting.
//!
//! The left side minus the right side falls (Σ ρ ≤ C) except where a channel begins to count: only the instants t =
//! d′_j have to be tried.
//!
//! # Slack
//! With S in place of the deadlines above it, the test at t = S says G(S) ≤ 0, where G(S) = Σ_j σ_j + Σ_{d_j < S} ρ_j
//! (S − d_j) + ring + frame − C (S − ε). G falls in S, and G(S) ≤ 0 implies the tests at all later deadlines; the tests
//! at earlier ones do not contain S. So a set fits for some slack if and only if it fits without the rule (S above all
//! deadlines), and the smallest sufficient slack is the root of G.
//!
//! All arithmetic is exact, in units of 1/10⁹ bit: rate × ns. The cost is that of sorting the channels.

mod bound;
pub mod cpu;
pub mod curve;
mod demand;
mod fixes;
pub mod hfsc;
#[cfg(test)]
mod hfsc_tests;
#[cfg(test)]
mod tests;
mod types;

pub use types::{Admission, ChannelSpec, Denied, Fix, Guarantee, LinkSpec, Misfit, Refusal};

use demand::{BYTE, Load, div_ceil};

/// Whether the link can keep the deadlines of all these channels, however they use their token buckets.
///
/// # Errors
/// [`Denied::Malformed`] if a value is out of its range, [`Denied::Refused`] if the channels do not fit.
pub fn admit(link: &LinkSpec, channels: &[ChannelSpec]) -> Result<Admission, Denied> {
    types::check(link, channels)?;
    let load = Load::new(link, channels);
    let refuse = |misfit, at: i128, excess: i128| {
        // Too small a slack makes the demand of later deadlines due at once.
        let by = if matches!(misfit, Misfit::Slack { .. }) { types::LONGEST.into() } else { at };
        let offending = load.up_to(by).map(|i| channels[i.index].name.clone()).collect();
        let fixes = fixes::fixes(&load, link, channels, &misfit);
        let excess = u128::try_from(div_ceil(excess, BYTE)).unwrap_or(0);
        let at = u64::try_from(at).unwrap_or(0);
        Err(Denied::Refused(Box::new(Refusal { misfit, at, excess, offending, fixes })))
    };
    if load.reserved() > load.rate {
        // There is no first instant: the backlog grows without end. The excess is that of the first second.
        let excess = (load.reserved() - load.rate) * 1_000_000_000;
        return refuse(Misfit::Rate, types::LONGEST.into(), excess);
    }
    let tightest = load.tightest();
    if let Some((at, excess)) = tightest
        && excess > 0
    {
        return refuse(Misfit::Deadline, at, excess);
    }
    let least = load.least_slack();
    let slack = load.slack.unwrap_or(least);
    if slack < least {
        let excess = load.excess_with_slack(slack);
        return refuse(Misfit::Slack { least: u64::try_from(least).unwrap_or(u64::MAX) }, slack, excess);
    }
    let free_burst = tightest.map(|(_, excess)| {
        let excess = load.slack.map_or(excess, |set| excess.max(load.excess_with_slack(set)));
        u64::try_from(-excess / BYTE).unwrap_or(u64::MAX)
    });
    let reserved = load.reserved();
    let free = load.rate - reserved;
    Ok(Admission {
        slack: u64::try_from(slack).unwrap_or(u64::MAX),
        guarantees: bound::guarantees(&load, slack, channels),
        reserved_rate: u64::try_from(reserved).unwrap_or(u64::MAX),
        free_rate: u64::try_from(free).unwrap_or(0),
        free_burst,
    })
}
