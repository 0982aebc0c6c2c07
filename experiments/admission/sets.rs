//! Draws links and sets of channels that are near what the link can carry: far from it every decision is easy.

use super::Rng;
use teiji_control::admission::{ChannelSpec, LinkSpec};
use teiji_model::policy::Auto;

/// A link and a set of channels.
pub fn draw(rng: &mut Rng) -> (LinkSpec, Vec<ChannelSpec>) {
    let rate = rng.scale(10_000_000, 10_000_000_000);
    let max_frame = if rng.chance(90) { 1514 } else { 9014 };
    let overhead = 24;
    // Time of the largest frame on the wire, ns.
    let frame = u64::from(max_frame + overhead) * 8_000_000_000 / rate + 1;
    let ring_bytes = if rng.chance(50) { 0 } else { rng.range(0, 8 * u64::from(max_frame)) };
    let timer_error = if rng.chance(50) { 0 } else { rng.range(0, 2 * frame) };
    let n = rng.scale(1, 24);
    // What the channels reserve together, percent of the link's rate; in a few cases too much.
    let reserved = if rng.chance(5) { rng.range(100, 110) } else { rng.range(5, 100) };
    let shares: Vec<u64> = (0..n).map(|_| rng.scale(1, 50)).collect();
    let all: u64 = shares.iter().sum();
    let mut channels: Vec<ChannelSpec> = shares
        .iter()
        .enumerate()
        .map(|(i, share)| {
            let max_packet = rng.range(60, u64::from(max_frame)) as u32;
            let one = u64::from(max_packet + overhead);
            ChannelSpec {
                name: format!("c{i}"),
                // 2 to 200 frames; brought near the limit below.
                deadline: rng.scale(2 * frame, 200 * frame),
                rate: ((u128::from(rate) * u128::from(reserved * share) / u128::from(100 * all)) as u64)
                    .max(1),
                burst: one * rng.scale(1, 8) + rng.range(0, one),
                max_packet,
            }
        })
        .collect();
    let blocking = u64::from(max_frame + overhead) + ring_bytes;
    let needed = scale_needed(rate, blocking, timer_error, &channels);
    // 0.80 to 1.25 of the deadlines that would just fit; mostly closer to 1.
    let spread = if rng.chance(70) { 60 } else { 250 };
    let percent = (1000 - spread * 4 / 5) as f64 + rng.range(0, spread * 9 / 5) as f64;
    for c in &mut channels {
        c.deadline = ((c.deadline as f64 * needed * percent / 1000.0) as u64).clamp(1, 3_600_000_000_000);
    }
    let slack = match rng.range(0, 9) {
        0..6 => Auto::Auto,
        // 0.3 to 1.5 of the time that all bursts take together: around the smallest slack that is enough.
        6..8 => {
            let bursts: u64 = channels.iter().map(|c| c.burst).sum();
            let once = u128::from(bursts + blocking) * 8_000_000_000 / u128::from(rate);
            Auto::Nanoseconds((once as u64 + timer_error) * rng.range(30, 150) / 100)
        }
        _ => Auto::Nanoseconds(3_600_000_000_000),
    };
    (LinkSpec { rate, max_frame, overhead, ring_bytes, timer_error, slack }, channels)
}

/// Estimates the factor by which all deadlines must be multiplied for the channels just to fit. Floating point is
/// enough: the result only sets the range that is drawn from.
fn scale_needed(rate: u64, blocking: u64, timer_error: u64, channels: &[ChannelSpec]) -> f64 {
    let (mut low, mut high) = (0.001_f64, 1000.0_f64);
    let fits = |scale: f64| {
        channels.iter().all(|at| {
            let t = at.deadline as f64 * scale;
            let demand: f64 = channels
                .iter()
                .map(|c| (c, c.deadline as f64 * scale))
                .filter(|(_, d)| *d <= t)
                .map(|(c, d)| c.burst as f64 * 8e9 + c.rate as f64 * (t - d))
                .sum();
            demand + blocking as f64 * 8e9 <= rate as f64 * (t - timer_error as f64)
        })
    };
    for _ in 0..30 {
        let middle = (low * high).sqrt();
        if fits(middle) { high = middle } else { low = middle }
    }
    high
}
