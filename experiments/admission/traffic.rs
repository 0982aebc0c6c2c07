//! Packets of channels, within the channels' token buckets: the worst case, and random traffic.
//!
//! A token bucket of depth σ bytes and rate ρ is full at first. Tokens are counted in 10⁻⁹ bit and time in ns, so no
//! rounding occurs.

use super::Rng;
use super::link::{BYTE, Packet};
use teiji_control::admission::ChannelSpec;

/// Smallest packet on the wire, bytes: an Ethernet frame of 60 bytes and 24 bytes of overhead.
pub const SMALLEST: u64 = 84;

/// A channel's token bucket.
struct Bucket {
    rate: i128,
    depth: i128,
    tokens: i128,
    at: i64,
}

impl Bucket {
    fn new(c: &ChannelSpec, at: i64) -> Self {
        let depth = i128::from(c.burst) * BYTE;
        Bucket { rate: c.rate.into(), depth, tokens: depth, at }
    }

    fn pass(&mut self, to: i64) {
        self.tokens = self.depth.min(self.tokens + self.rate * i128::from(to - self.at));
        self.at = to;
    }

    /// When the bucket will hold this many bytes, ns.
    fn when(&self, bytes: u64) -> i64 {
        let lacking = (i128::from(bytes) * BYTE - self.tokens).max(0);
        self.at.saturating_add(i64::try_from((lacking + self.rate - 1) / self.rate).unwrap_or(i64::MAX))
    }

    fn bytes(&self) -> u64 {
        u64::try_from(self.tokens / BYTE).unwrap_or(0)
    }

    fn take(&mut self, bytes: u64) {
        self.tokens -= i128::from(bytes) * BYTE;
        assert!(self.tokens >= 0, "the traffic is outside its token bucket");
    }
}

/// Largest packet on the wire, bytes.
fn largest(c: &ChannelSpec, overhead: u32) -> u64 {
    u64::from(c.max_packet) + u64::from(overhead)
}

/// This many bytes at once, in as few packets as possible, of about the same size; none below the smallest.
fn at_once(out: &mut Vec<Packet>, bucket: &mut Bucket, channel: usize, bytes: u64, most: u64) {
    let smallest = SMALLEST.min(most);
    let parts = bytes.div_ceil(most).min(bytes / smallest);
    for i in 0..parts {
        let part = (bytes / parts + u64::from(i < bytes % parts)).min(most);
        out.push(Packet { arrival: bucket.at, channel, bytes: part });
        bucket.take(part);
    }
}

/// The burst at `begin`, then the largest packets as soon as the bucket allows them, and at `end` all that the bucket
/// holds, to the byte. This is the most that can arrive from `begin` to `end`, and every packet arrives as early as
/// possible.
pub fn greedy(out: &mut Vec<Packet>, channel: usize, c: &ChannelSpec, overhead: u32, begin: i64, end: i64) {
    let most = largest(c, overhead);
    let mut bucket = Bucket::new(c, begin);
    // Bytes kept back, so that what is left at `end` is enough for a packet.
    let back = if end > begin { SMALLEST.min(most) } else { 0 };
    let first = bucket.bytes() - back.min(bucket.bytes());
    at_once(out, &mut bucket, channel, first, most);
    loop {
        let next = bucket.when((most + back).min(c.burst));
        if next >= end {
            break;
        }
        bucket.pass(next);
        let bytes = most.min(bucket.bytes() - back.min(bucket.bytes())).max(SMALLEST.min(most));
        out.push(Packet { arrival: next, channel, bytes });
        bucket.take(bytes);
    }
    bucket.pass(end);
    let rest = bucket.bytes();
    at_once(out, &mut bucket, channel, rest, most);
}

/// Packets of random sizes at random times from `begin` to `end`; some wait until there are tokens for a burst.
pub fn random(
    out: &mut Vec<Packet>,
    channel: usize,
    c: &ChannelSpec,
    overhead: u32,
    begin: i64,
    end: i64,
    rng: &mut Rng,
) {
    let most = largest(c, overhead);
    let least = SMALLEST.min(most);
    let mut bucket = Bucket::new(c, begin);
    let saver = rng.chance(50);
    while bucket.at < end {
        let bytes = if rng.chance(60) { most } else { rng.range(least, most) };
        bucket.pass(bucket.when(bytes));
        if saver && rng.chance(10) {
            let full = bucket.when(c.burst);
            bucket.pass(full);
        } else if rng.chance(10) {
            let pause = rng.range(0, c.deadline) as i64;
            bucket.pass(bucket.at.saturating_add(pause));
        }
        if bucket.at >= end {
            break;
        }
        out.push(Packet { arrival: bucket.at, channel, bytes });
        bucket.take(bytes);
    }
}
