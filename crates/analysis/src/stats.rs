//! Running statistics in bounded memory.
//!
//! [`Series`] is a distribution of durations: a histogram (two significant digits, up to one hour) for the percentiles,
//! and exact count, mean, standard deviation (by Welford's method), minimum and maximum. A histogram takes some 20 kB, and a VM
//! has dozens of them; so those of a VM that has ended are packed. [`Shares`] measures how each
//! of several parts varies with their total: the covariance of a part with the total, divided by the variance of the
//! total, is the part's share of the fluctuation. The shares of parts that add up to the total add up to 1.

use hdrhistogram::Histogram;
use teiji_model::report::{DepthDist, Dist};

/// The longest duration that the histogram distinguishes, ns: one hour.
const LONGEST: u64 = 3_600_000_000_000;

/// How often values were recorded.
#[derive(Clone, Default)]
enum Counts {
    #[default]
    None,
    /// By value, with the histogram's precision.
    Open(Histogram<u64>),
    /// The values that were recorded, with the histogram's precision, and how often each was.
    Packed(Box<[(u64, u64)]>),
}

impl Counts {
    fn unpack(packed: &[(u64, u64)]) -> Option<Histogram<u64>> {
        let mut histogram = Histogram::new(2).ok()?; // Never fails.
        for (value, count) in packed {
            let _ = histogram.record_n(*value, *count); // It grows as needed, so nothing is out of its range.
        }
        Some(histogram)
    }

    /// The value below or at which this share of the values is; 0 if there is none. Packed ones are not unpacked: a report asks this of
    /// dozens of series of each VM.
    fn at_quantile(&self, q: f64) -> u64 {
        match self {
            Counts::None => 0,
            Counts::Open(histogram) => histogram.value_at_quantile(q),
            Counts::Packed(all) => {
                let total = all.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
                let wanted = ((q * total as f64).ceil() as u64).max(1);
                let mut sum = 0u64;
                let reaches = |(_, count): &&(u64, u64)| {
                    sum = sum.saturating_add(*count);
                    sum >= wanted
                };
                all.iter().find(reaches).map_or(0, |(value, _)| *value)
            }
        }
    }

    /// The histogram, to record in it.
    fn open(&mut self) -> Option<&mut Histogram<u64>> {
        let opened = match self {
            Counts::None => Counts::unpack(&[]),
            Counts::Packed(packed) => Counts::unpack(packed),
            Counts::Open(_) => None,
        };
        if let Some(histogram) = opened {
            *self = Counts::Open(histogram);
        }
        match self {
            Counts::Open(histogram) => Some(histogram),
            _ => None,
        }
    }

    fn pack(&mut self) {
        if let Counts::Open(histogram) = self {
            let all = histogram.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value()));
            *self = Counts::Packed(all.collect());
        }
    }
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Series {
    counts: Counts,
    count: u64,
    mean: f64,
    m2: f64,
    min: u64,
    max: u64,
}

impl Series {
    /// Adds a value, in ns or packets.
    pub(crate) fn record(&mut self, value: u64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        let d = value as f64 - self.mean;
        self.mean += d / self.count as f64;
        self.m2 += d * (value as f64 - self.mean);
        if let Some(h) = self.counts.open() {
            let _ = h.record(value.min(LONGEST)); // It grows as needed, so nothing is out of its range.
        }
    }

    /// Keeps it in as little memory as can be: hardly any values come any more. One that comes all the same unpacks it.
    pub(crate) fn pack(&mut self) {
        self.counts.pack();
    }

    fn quantiles<const N: usize>(&self, q: [f64; N]) -> [u64; N] {
        q.map(|q| self.counts.at_quantile(q).clamp(self.min, self.max))
    }

    /// The median; 0 if there is no value.
    pub(crate) fn median(&self) -> u64 {
        self.quantiles([0.5])[0]
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The sum of the values, where those above `cap` count as `cap`.
    pub(crate) fn capped_sum(&self, cap: u64) -> f64 {
        let of = |value: u64, count: u64| value.min(cap) as f64 * count as f64;
        match &self.counts {
            Counts::None => 0.0,
            Counts::Open(h) => h.iter_recorded().map(|v| of(v.value_iterated_to(), v.count_at_value())).sum(),
            Counts::Packed(all) => all.iter().map(|(value, count)| of(*value, *count)).sum(),
        }
    }

    /// The distribution; all zero if there is no value.
    pub(crate) fn dist(&self) -> Dist {
        if self.count == 0 {
            return Dist::default();
        }
        let [p50, p90, p99, p999] = self.quantiles([0.5, 0.9, 0.99, 0.999]);
        Dist {
            count: self.count,
            mean: self.mean,
            stddev: (self.m2.max(0.0) / self.count as f64).sqrt(),
            min: self.min,
            p50,
            p90,
            p99,
            p999,
            max: self.max,
        }
    }

    /// The distribution of queue depths; `None` if there is no value.
    pub(crate) fn depth(&self) -> Option<DepthDist> {
        let d = self.dist();
        (d.count > 0).then_some(DepthDist {
            count: d.count,
            mean: d.mean,
            p50: d.p50,
            p99: d.p99,
            max: d.max,
        })
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Shares<const N: usize> {
    count: u64,
    total_mean: f64,
    total_m2: f64,
    means: [f64; N],
    covariances: [f64; N],
}

impl<const N: usize> Shares<N> {
    pub(crate) fn new() -> Self {
        Shares { count: 0, total_mean: 0.0, total_m2: 0.0, means: [0.0; N], covariances: [0.0; N] }
    }

    /// Adds one observation of all parts and of the total.
    pub(crate) fn record(&mut self, parts: &[u64; N], total: u64) {
        self.count += 1;
        let n = self.count as f64;
        let before = total as f64 - self.total_mean;
        self.total_mean += before / n;
        let after = total as f64 - self.total_mean;
        self.total_m2 += before * after;
        for ((mean, covariance), part) in self.means.iter_mut().zip(&mut self.covariances).zip(parts) {
            let d = *part as f64 - *mean;
            *mean += d / n;
            *covariance += d * after;
        }
    }

    /// The mean of a part.
    pub(crate) fn mean(&self, part: usize) -> f64 {
        self.means[part]
    }

    /// A part's share of the time, 0 to 1; 0 if the total is 0.
    pub(crate) fn of_time(&self, part: usize) -> f64 {
        if self.total_mean > 0.0 { self.means[part] / self.total_mean } else { 0.0 }
    }

    /// A part's share of the fluctuation; 0 if the total does not vary.
    pub(crate) fn of_fluctuation(&self, part: usize) -> f64 {
        if self.total_m2 > 0.0 { self.covariances[part] / self.total_m2 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_add_up(rows in prop::collection::vec([0u64..1_000_000, 0u64..1000, 0u64..50_000_000], 2..100)) {
            let mut s = Shares::<3>::new();
            for r in &rows { s.record(r, r.iter().sum()) }
            let time: f64 = (0..3).map(|i| s.of_time(i)).sum();
            let fluctuation: f64 = (0..3).map(|i| s.of_fluctuation(i)).sum();
            prop_assert!((time - 1.0).abs() < 1e-9);
            prop_assert!(s.total_m2 == 0.0 || (fluctuation - 1.0).abs() < 1e-6, "{}", fluctuation);
        }

        #[test]
        fn a_series_knows_its_moments(values in prop::collection::vec(0u64..10_000_000_000, 1..200)) {
            let mut s = Series::default();
            for v in &values { s.record(*v) }
            let d = s.dist();
            let n = values.len() as f64;
            let mean = values.iter().sum::<u64>() as f64 / n;
            let var = values.iter().map(|v| (*v as f64 - mean).powi(2)).sum::<f64>() / n;
            prop_assert!((d.mean - mean).abs() <= 1e-6 * mean.max(1.0));
            prop_assert!((d.stddev - var.sqrt()).abs() <= 1e-4 * var.sqrt().max(1.0));
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let p50 = sorted[(values.len() - 1) / 2];
            prop_assert!(d.p50.abs_diff(p50) <= p50 / 50 + 1, "{} {}", d.p50, p50);
            prop_assert!(d.min <= d.p50 && d.p50 <= d.p90 && d.p90 <= d.p99 && d.p99 <= d.p999 && d.p999 <= d.max);
        }
    }

    proptest! {
        /// Whenever it is packed, and however often.
        #[test]
        fn a_packed_series_is_the_same(
            values in prop::collection::vec((0u64..5_000_000_000_000, any::<bool>()), 1..100),
        ) {
            let (mut packed, mut open) = (Series::default(), Series::default());
            for (value, pack) in values {
                packed.record(value);
                open.record(value);
                if pack {
                    packed.pack();
                }
                prop_assert_eq!(format!("{:?}", packed.dist()), format!("{:?}", open.dist()));
            }
        }
    }

    #[test]
    fn percentiles_are_within_two_digits() {
        let mut s = Series::default();
        (1..=100_000u64).rev().for_each(|v| s.record(v * 1000));
        let d = s.dist();
        for (got, wanted) in [(d.p50, 50e6), (d.p90, 90e6), (d.p99, 99e6), (d.p999, 99.9e6)] {
            assert!((got as f64 / wanted - 1.0).abs() < 0.01, "{got} is not {wanted}");
        }
        assert_eq!((d.min, d.max, d.count), (1000, 100_000_000, 100_000));
    }
}
