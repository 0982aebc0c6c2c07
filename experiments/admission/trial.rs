//! Lets the admission control decide on many sets of channels, and checks each decision on the simulated link.

use super::link::{Outcome, Packet, Wire, send};
use super::{Extent, Rng, sets, traffic};
use serde::Serialize;
use teiji_control::admission::{Admission, ChannelSpec, Denied, LinkSpec, Misfit, admit};

/// Runs with more packets than this are left out.
const LONGEST_RUN: u128 = 200_000;

/// What was decided on one set, and what happened on the link.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Index of the set, from 0.
    pub set: u64,
    /// Number of channels.
    pub channels: usize,
    /// `admitted`, or what was exceeded: `deadline`, `slack` or `rate`.
    pub decision: &'static str,
    /// Of a refusal: bytes too many.
    pub excess: u128,
    /// Packets of channels that were sent.
    pub packets: u64,
    /// Of these, packets sent after their deadline.
    pub missed: u64,
    /// Of an admitted set: ratio of the longest delay seen to the guaranteed delay, of the channel where it is
    /// greatest.
    pub tightness: Option<f64>,
    /// The same, of the channel where it is least.
    pub loosest: Option<f64>,
}

/// Results.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    /// Sets admitted.
    pub admitted: u64,
    /// Sets refused.
    pub refused: u64,
    /// Of the refused sets, those that missed a deadline in the traffic that was tried.
    pub refused_that_missed: u64,
    /// Packets sent in all.
    pub packets: u64,
    /// Errors, for people: missed deadlines of admitted sets, delays above the guaranteed ones, undecided sets.
    pub wrong: Vec<String>,
    /// Each set.
    #[serde(skip)]
    pub rows: Vec<Row>,
}

/// Tries the sets, on this many threads. The same seed gives the same sets and traffic.
pub fn run(extent: &Extent, seed: u64, threads: u64) -> Found {
    let threads = threads.max(1);
    let part = |first: u64| {
        let mut found = Found::default();
        for set in (first..extent.sets).step_by(threads as usize) {
            one(set, extent, &mut Rng::new(seed << 32 | set), &mut found);
        }
        found
    };
    let mut all = Found::default();
    let parts: Vec<Found> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(move || part(first))).collect();
        running
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Found { wrong: vec!["a thread failed".into()], ..Found::default() })
            })
            .collect()
    });
    for part in parts {
        all.admitted += part.admitted;
        all.refused += part.refused;
        all.refused_that_missed += part.refused_that_missed;
        all.packets += part.packets;
        all.wrong.extend(part.wrong);
        all.rows.extend(part.rows);
    }
    all.rows.sort_by_key(|r| r.set);
    all
}

fn one(set: u64, extent: &Extent, rng: &mut Rng, found: &mut Found) {
    let (link, channels) = sets::draw(rng);
    let mut row = Row {
        set,
        channels: channels.len(),
        decision: "admitted",
        excess: 0,
        packets: 0,
        missed: 0,
        tightness: None,
        loosest: None,
    };
    match admit(&link, &channels) {
        Ok(admission) => {
            found.admitted += 1;
            admitted(&link, &channels, &admission, extent, rng, &mut row, &mut found.wrong);
        }
        Err(Denied::Refused(refusal)) => {
            found.refused += 1;
            row.excess = refusal.excess;
            (row.decision, row.missed) = match refusal.misfit {
                Misfit::Rate => ("rate", 0),
                Misfit::Deadline => ("deadline", 0),
                Misfit::Slack { .. } => ("slack", 0),
                // Only HFSC refuses for this reason; the queue here is earliest deadline first.
                Misfit::Curves => ("curves", 0),
            };
            // If no slack at all is enough, the one that is best for the channels.
            let slack = match (refusal.misfit, link.slack) {
                (Misfit::Slack { .. }, teiji_model::policy::Auto::Nanoseconds(set)) => set,
                _ => channels.iter().map(|c| c.deadline).max().unwrap_or(0),
            };
            refused(&link, &channels, slack, &mut row);
            found.refused_that_missed += u64::from(row.missed > 0);
        }
        Err(Denied::Malformed(why)) => found.wrong.push(format!("set {set} was not decided: {why}")),
    }
    found.packets += row.packets;
    found.rows.push(row);
}

/// The link with this slack; best effort always has a packet.
fn wire<'a>(link: &LinkSpec, deadlines: &'a [u64], slack: u64) -> Wire<'a> {
    Wire {
        rate: link.rate,
        best_effort: u64::from(link.max_frame) + u64::from(link.overhead),
        ring: link.ring_bytes,
        stall: link.timer_error,
        slack,
        deadlines,
        waiting: |_| true,
    }
}

/// Every burst becomes urgent at 0, and each channel goes on sending until its packets are due at `end`.
fn pattern(link: &LinkSpec, channels: &[ChannelSpec], slack: u64, end: u64) -> Vec<Packet> {
    let mut packets = Vec::new();
    for (i, c) in channels.iter().enumerate() {
        let usable = c.deadline.min(slack);
        if usable <= end {
            let begin = -((c.deadline - usable) as i64);
            traffic::greedy(&mut packets, i, c, link.overhead, begin, begin + (end - usable) as i64);
        }
    }
    packets.sort();
    packets
}

/// Estimate of the number of packets in that pattern.
fn length(channels: &[ChannelSpec], end: u64) -> u128 {
    let one = |c: &ChannelSpec| {
        let bytes = u128::from(c.burst) + u128::from(c.rate) * u128::from(end) / 8_000_000_000;
        bytes / u128::from(c.max_packet.max(1)) + 2
    };
    channels.iter().map(one).sum()
}

/// The instants at which the first packets of the channels are due.
fn ends(channels: &[ChannelSpec], slack: u64) -> Vec<u64> {
    let mut ends: Vec<u64> = channels.iter().map(|c| c.deadline.min(slack)).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

fn refused(link: &LinkSpec, channels: &[ChannelSpec], slack: u64, row: &mut Row) {
    let deadlines: Vec<u64> = channels.iter().map(|c| c.deadline).collect();
    let wire = wire(link, &deadlines, slack);
    let first = ends(channels, slack);
    let longest = first.last().copied().unwrap_or(1);
    // If the rates exceed the link's, it takes a while until a deadline is missed.
    let later = (1..30).map(|k| longest << k).take_while(|_| row.decision == "rate");
    for end in first.iter().copied().chain(later) {
        if length(channels, end) > LONGEST_RUN {
            return;
        }
        let out = send(&wire, &pattern(link, channels, slack, end));
        row.packets += out.sent;
        row.missed = out.missed;
        if out.missed > 0 {
            return;
        }
    }
}

fn admitted(
    link: &LinkSpec,
    channels: &[ChannelSpec],
    admission: &Admission,
    extent: &Extent,
    rng: &mut Rng,
    row: &mut Row,
    wrong: &mut Vec<String>,
) {
    let deadlines: Vec<u64> = channels.iter().map(|c| c.deadline).collect();
    let slack = admission.slack;
    let usual = wire(link, &deadlines, slack);
    let mut nearest = vec![0.0_f64; channels.len()];
    let mut note = |out: Outcome| {
        row.packets += out.sent;
        row.missed += out.missed;
        for ((seen, promised), nearest) in out.longest.iter().zip(&admission.guarantees).zip(&mut nearest) {
            let promised_exact = i128::from(promised.delay) * i128::from(link.rate);
            if *seen > promised_exact {
                let seen = seen / i128::from(link.rate);
                wrong.push(format!(
                    "set {}: {} took {seen} ns, {} promised",
                    row.set, promised.name, promised.delay
                ));
            }
            *nearest = nearest.max(*seen as f64 / promised_exact as f64);
        }
    };
    let mut instants = ends(channels, slack);
    // And one instant twice as late as the last.
    instants.extend(instants.last().copied().map(|last| last * 2));
    for end in instants {
        let packets = pattern(link, channels, slack, end);
        note(send(&usual, &packets));
        // The same without best effort after the first frame: packets are sent before they are urgent.
        note(send(&Wire { waiting: |_| false, ..usual.clone() }, &packets));
    }
    let span = deadlines.iter().max().copied().unwrap_or(1) as i64;
    for _ in 0..extent.random {
        let mut packets = Vec::new();
        for (i, c) in channels.iter().enumerate() {
            // What becomes urgent does so at 0 at the earliest: the run begins there, and nothing was sent before.
            let first = -((c.deadline - c.deadline.min(slack)) as i64);
            let begin = match rng.range(0, 2) {
                0 => 0,
                1 => first,
                _ => first + rng.range(0, span as u64) as i64,
            };
            if rng.chance(50) {
                let length = rng.range(0, span as u64) as i64;
                traffic::greedy(&mut packets, i, c, link.overhead, begin, begin + length);
            } else {
                traffic::random(&mut packets, i, c, link.overhead, begin, begin + span, rng);
            }
        }
        packets.sort();
        let waiting: fn(u64) -> bool = match rng.range(0, 3) {
            0 | 1 => |_| true,
            2 => |n| n % 3 != 0,
            _ => |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0,
        };
        note(send(&Wire { waiting, ..usual.clone() }, &packets));
    }
    row.tightness = nearest.iter().copied().reduce(f64::max);
    row.loosest = nearest.iter().copied().reduce(f64::min);
    if row.missed > 0 {
        wrong.push(format!("set {}: admitted, and missed {} deadlines", row.set, row.missed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors found in sets that were admitted without regard to one property of the link.
    fn deceived(forget: fn(LinkSpec) -> LinkSpec) -> usize {
        let extent = Extent { sets: 200, random: 0 };
        let mut wrong = Vec::new();
        for set in 0..extent.sets {
            let mut rng = Rng::new(set);
            let (link, channels) = sets::draw(&mut rng);
            let Ok(admission) = admit(&forget(link.clone()), &channels) else { continue };
            let mut row = Row {
                set,
                channels: channels.len(),
                decision: "admitted",
                excess: 0,
                packets: 0,
                missed: 0,
                tightness: None,
                loosest: None,
            };
            admitted(&link, &channels, &admission, &extent, &mut rng, &mut row, &mut wrong);
        }
        wrong.len()
    }

    #[test]
    fn a_wrong_admission_is_found_out() {
        assert_eq!(deceived(|link| link), 0);
        assert!(deceived(|link| LinkSpec { ring_bytes: 0, ..link }) > 0, "the ring");
        assert!(deceived(|link| LinkSpec { timer_error: 0, ..link }) > 0, "the timer");
        assert!(deceived(|link| LinkSpec { rate: link.rate + link.rate / 500, ..link }) > 0, "the rate");
    }
}
