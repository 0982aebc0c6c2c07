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
}
