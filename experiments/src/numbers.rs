//! Small statistics.

/// The value below which the share `q` (0 to 1) of `values` lies, by nearest rank; NaN without values.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// The median; NaN without values.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// An interval that contains the median of what `values` are a sample of, with at least this confidence (0.5 to 1), whatever
/// their distribution is: between two of the values, by the binomial distribution of how many are below the median. From
/// minus to plus infinity if there are too few values.
pub fn median_interval(values: &[f64], confidence: f64) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let mut interval = (f64::NEG_INFINITY, f64::INFINITY);
    // Probability that at most k values are below the median, by which the interval from value k to n - 1 - k misses it.
    let (mut one, mut at_most) = (0.5f64.powi(n as i32), 0.0);
    for k in 0..n / 2 {
        at_most += one;
        if 2.0 * at_most > 1.0 - confidence {
            break;
        }
        interval = (sorted[k], sorted[n - 1 - k]);
        one *= (n - k) as f64 / (k + 1) as f64;
    }
    interval
}

/// `part` divided by `whole`; 0 if `whole` is 0.
pub fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values() {
        let v = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(
            (quantile(&v, 0.0), median(&v), quantile(&v, 0.99), quantile(&v, 1.0)),
            (1.0, 2.0, 4.0, 4.0)
        );
        assert!(median(&[]).is_nan());
        assert_eq!((share(1, 4), share(0, 0)), (0.25, 0.0));
    }
    #[test]
    fn an_interval_of_the_median_is_by_the_tables_of_the_sign_test() {
        let values = |n: u32| (1..=n).map(f64::from).collect::<Vec<_>>();
        // 2 / 2^5 is more than 5 %, 2 / 2^6 is less.
        assert_eq!(median_interval(&values(5), 0.95), (f64::NEG_INFINITY, f64::INFINITY));
        assert_eq!(median_interval(&values(6), 0.95), (1.0, 6.0));
        assert_eq!(median_interval(&values(20), 0.95), (6.0, 15.0));
        assert_eq!(median_interval(&values(30), 0.95), (10.0, 21.0));
        assert_eq!(median_interval(&values(30), 0.99), (8.0, 23.0));
        assert_eq!(median_interval(&[], 0.95), (f64::NEG_INFINITY, f64::INFINITY));
    }
}
