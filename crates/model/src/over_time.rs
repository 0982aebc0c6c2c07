//! What a VM's requests and queues did over the trace, in a size that does not depend on its length.
//!
//! A [`Timeline`] divides the trace into bins of equal length. When it would get more than [`BINS`] of them, two
//! neighbours become one each: the bins get twice as long. A bin keeps the extremes as they were, so that a spike is
//! never averaged away, and merging gives the same in any order.

use crate::report::DepthDist;
use crate::stage::{Actor, Stage, ThreadState};
use serde::{Deserialize, Serialize};

/// The greatest number of bins of a [`Timeline`].
pub const BINS: usize = 1024;
/// The shortest length of a bin, ns; all lengths are this one doubled.
const SHORTEST: u64 = 1 << 20;
/// The number of classes in [`Bursts::sizes`].
pub const SIZES: usize = 8;

/// What was seen over the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverTime {
    /// Complete requests, by the time at which the host received them.
    pub requests: Timeline<RequestBin>,
    /// Packets that waited on the taps, by the time at which the packet before them was taken off.
    pub depth: Timeline<DepthBin>,
}

/// Something over the time of the trace. See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline<B> {
    /// The length of every bin, ns.
    pub width: u64,
    /// Those bins in which something was seen, by time.
    pub bins: Vec<B>,
}

impl<B> Default for Timeline<B> {
    fn default() -> Self {
        Timeline { width: SHORTEST, bins: Vec::new() }
    }
}

/// A bin of a [`Timeline`].
pub trait Bin: Clone {
    /// When it begins, ns since the trace began.
    fn at(&self) -> u64;
    /// Sets when it begins.
    fn begin(&mut self, at: u64);
    /// Adds what is in another one.
    fn merge(&mut self, other: &Self);
}

impl<B: Bin> Timeline<B> {
    /// Adds what was seen at the time `bin.at()`.
    pub fn add(&mut self, bin: &B) {
        while bin.at() / self.width >= BINS as u64 {
            self.double();
        }
        let place = bin.at() / self.width;
        // Most come in order.
        let last = self.bins.last().map(|b| b.at() / self.width);
        let found = match last {
            Some(last) if last == place => Ok(self.bins.len() - 1),
            Some(last) if last > place => self.bins.binary_search_by_key(&place, |b| b.at() / self.width),
            _ => Err(self.bins.len()),
        };
        match found {
            Ok(i) => self.bins[i].merge(bin),
            Err(i) => {
                let mut bin = bin.clone();
                bin.begin(place * self.width);
                self.bins.insert(i, bin);
            }
        }
    }

    /// The same with at most `most` bins, which are longer for that; at least one.
    pub fn at_most(&self, most: usize) -> Timeline<B> {
        let mut fewer = self.clone();
        while fewer.bins.len() > most.max(1) && fewer.width < 1 << 63 {
            fewer.double();
        }
        fewer
    }

    fn double(&mut self) {
        // A report from a file may have any length.
        self.width = self.width.max(1).saturating_mul(2);
        let mut merged: Vec<B> = Vec::with_capacity(self.bins.len() / 2 + 1);
        for mut bin in self.bins.drain(..) {
            let at = bin.at() / self.width * self.width;
            match merged.last_mut() {
                Some(last) if last.at() == at => last.merge(&bin),
                _ => {
                    bin.begin(at);
                    merged.push(bin);
                }
            }
        }
        self.bins = merged;
    }
}

/// The complete requests that the host received within a bin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestBin {
    /// When the bin begins, ns since the trace began.
    pub at: u64,
    /// How many; never 0.
    pub count: u64,
    /// The sum of their response times, ns.
    pub sum: u64,
    /// The shortest response time, ns.
    pub min: u64,
    /// The longest response time, ns: that of the slowest request.
    pub max: u64,
    /// When the host received the slowest request, ns since the trace began. Of equally slow ones it is the first.
    pub slowest_at: u64,
    /// How long the slowest request was in each stage, ns, in the order of the path; they add up to `max`.
    pub stages: [u64; Stage::COUNT],
}

impl RequestBin {
    /// A single request, which the host received `at` ns after the trace began.
    pub fn of(at: u64, total: u64, stages: [u64; Stage::COUNT]) -> RequestBin {
        RequestBin { at, count: 1, sum: total, min: total, max: total, slowest_at: at, stages }
    }

    /// The mean response time, ns.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }
}

impl Bin for RequestBin {
    fn at(&self) -> u64 {
        self.at
    }

    fn begin(&mut self, at: u64) {
        self.at = at;
    }

    fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        let rank = |bin: &RequestBin| (bin.max, u64::MAX - bin.slowest_at);
        if rank(other) > rank(self) || rank(other) == rank(self) && other.stages > self.stages {
            (self.max, self.slowest_at, self.stages) = (other.max, other.slowest_at, other.stages);
        }
    }
}

/// The packets that were taken off the taps within a bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepthBin {
    /// When the bin begins, ns since the trace began.
    pub at: u64,
    /// How many packets were taken off; never 0.
    pub count: u64,
    /// The sum of the numbers of packets that still waited behind each.
    pub sum: u64,
    /// The greatest of these numbers.
    pub max: u64,
}

impl DepthBin {
    /// A single packet, taken off `at` ns after the trace began, with `depth` packets behind it.
    pub fn of(at: u64, depth: u64) -> DepthBin {
        DepthBin { at, count: 1, sum: depth, max: depth }
    }
}

impl Bin for DepthBin {
    fn at(&self) -> u64 {
        self.at
    }

    fn begin(&mut self, at: u64) {
        self.at = at;
    }

    fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

/// How many packets came at once: those that were followed all the way to the guest, with no event lost meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bursts {
    /// Packets that a vhost worker took off a tap before it signalled the guest.
    pub signals: DepthDist,
    /// Packets that the guest got at once: with one guest entry, or with one signal while it was running.
    pub arrivals: DepthDist,
    /// How often the guest got 1, 2, 3 to 4, 5 to 8, 9 to 16, 17 to 32, 33 to 64, and more packets at once.
    pub sizes: [u64; SIZES],
    /// Where the guest got most packets at once, at least two: most first; at most 16.
    pub largest: Vec<Burst>,
}

impl Bursts {
    /// The class of a size in [`Bursts::sizes`].
    pub const fn class(packets: u64) -> usize {
        let doublings = (u64::BITS - packets.saturating_sub(1).leading_zeros()) as usize;
        if doublings < SIZES { doublings } else { SIZES - 1 }
    }

    /// The least and the greatest size of a class; `None` if it has no greatest.
    pub const fn sizes_of(class: usize) -> (u64, Option<u64>) {
        let least = if class == 0 { 1 } else { (1 << (class - 1)) + 1 };
        (least, if class + 1 < SIZES { Some(1 << class) } else { None })
    }
}

/// Packets that a guest got at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burst {
    /// When the guest got them, ns since the trace began.
    pub at: u64,
    /// How many.
    pub packets: u64,
    /// How long the oldest of them had been on its way since it was put on the tap, ns.
    pub waited: u64,
    /// The thread that the oldest one waited for longer: the vhost worker that takes it off the tap, or the vCPU that
    /// enters the guest with it.
    pub actor: Option<Actor>,
    /// What that thread did for most of that time; `None` if it is not known.
    pub state: Option<ThreadState>,
    /// How much of `waited` that is, ns.
    pub in_state: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bin(at: u64, total: u64) -> RequestBin {
        let mut stages = [0; Stage::COUNT];
        (stages[0], stages[3]) = (total / 3, total - total / 3);
        RequestBin::of(at, total, stages)
    }

    proptest! {
        #[test]
        fn bins_are_bounded_and_lose_neither_a_request_nor_a_spike(
            requests in prop::collection::vec((0u64..1 << 50, 1u64..1 << 30), 1..800),
            shift in 0u32..50,
            most in 1usize..2000,
        ) {
            let requests: Vec<_> = requests.iter().map(|(at, total)| (at >> shift, *total)).collect();
            let mut line = Timeline::default();
            requests.iter().for_each(|(at, total)| line.add(&bin(*at, *total)));
            let mut backwards = Timeline::default();
            requests.iter().rev().for_each(|(at, total)| backwards.add(&bin(*at, *total)));
            prop_assert_eq!(&line, &backwards, "in any order");
            for line in [line.at_most(most), line] {
                prop_assert!(line.bins.len() <= BINS);
                prop_assert!(line.bins.windows(2).all(|b| b[0].at < b[1].at));
                prop_assert_eq!(line.bins.iter().map(|b| b.count).sum::<u64>(), requests.len() as u64);
                prop_assert_eq!(
                    line.bins.iter().map(|b| b.sum).sum::<u64>(),
                    requests.iter().map(|r| r.1).sum::<u64>()
                );
                for b in &line.bins {
                    let within = |at: u64| at >= b.at && at - b.at < line.width;
                    let of_bin: Vec<_> = requests.iter().filter(|r| within(r.0)).collect();
                    prop_assert_eq!(of_bin.len() as u64, b.count);
                    prop_assert_eq!(of_bin.iter().map(|r| r.1).max(), Some(b.max));
                    prop_assert_eq!(of_bin.iter().map(|r| r.1).min(), Some(b.min));
                    prop_assert_eq!(b.stages.iter().sum::<u64>(), b.max);
                    let first = of_bin.iter().filter(|r| r.1 == b.max).map(|r| r.0).min();
                    prop_assert_eq!(first, Some(b.slowest_at));
                }
            }
        }
    }

    #[test]
    fn fewer_bins_are_as_many_as_asked_for() {
        let mut line = Timeline::default();
        (0..10_000).for_each(|i| line.add(&DepthBin::of(i << 22, i % 7)));
        assert!(line.bins.len() > BINS / 2);
        for most in [0, 1, 2, 100, 5000] {
            let fewer = line.at_most(most);
            assert!(fewer.bins.len() <= most.max(1), "{most}: {}", fewer.bins.len());
            assert_eq!(fewer.bins.iter().map(|b| b.count).sum::<u64>(), 10_000);
        }
    }

    #[test]
    fn any_time_and_any_report_has_an_end() {
        let mut line = Timeline::default();
        for at in [0, u64::MAX, 5] {
            line.add(&DepthBin::of(at, u64::MAX));
        }
        assert_eq!(
            line.bins.iter().map(|b| (b.count, b.sum)).collect::<Vec<_>>(),
            [(2, u64::MAX), (1, u64::MAX)]
        );
        let odd = Timeline {
            width: 0,
            bins: vec![DepthBin::of(9, 1), DepthBin::of(3, 1), DepthBin::of(u64::MAX, 1)],
        };
        assert!(odd.at_most(1).bins.len() <= 2);
    }

    #[test]
    fn classes_of_sizes() {
        let class = [1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, u64::MAX].map(Bursts::class);
        assert_eq!(class, [0, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 7]);
        for class in 0..SIZES {
            let (least, greatest) = Bursts::sizes_of(class);
            assert_eq!((Bursts::class(least), Bursts::class(greatest.unwrap_or(u64::MAX))), (class, class));
        }
    }
}
