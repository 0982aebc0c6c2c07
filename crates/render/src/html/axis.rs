//! Ticks of axes.

/// The greatest number of ticks of a logarithmic axis.
const TICKS: usize = 8;

/// Round times from below the least value to above the greatest, ns, ascending, at least two: 1, 2, 5, 10 …, or powers
/// of ten if these are too many.
pub(super) fn logarithmic(values: impl Iterator<Item = u64>) -> Vec<f64> {
    // 0 has no place on a logarithmic axis; it is shown at the lower end.
    let (least, most) =
        values.filter(|v| *v > 0).fold((u64::MAX, 0), |(least, most), v| (least.min(v), most.max(v)));
    let (least, most) = if most == 0 { (1.0, 1.0) } else { (least as f64, most as f64) };
    let between = |steps: &'static [f64]| {
        // 10²⁰ is more than any value.
        let all = (0..=20).flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        let all: Vec<f64> = all.collect();
        let first = all.iter().rposition(|tick| *tick <= least).unwrap_or(0);
        let last = all.iter().position(|tick| *tick >= most).unwrap_or(all.len() - 1).max(first + 1);
        all[first.min(all.len() - 2)..=last.min(all.len() - 1)].to_vec()
    };
    let fine = between(&[1.0, 2.0, 5.0]);
    if fine.len() <= TICKS { fine } else { between(&[1.0]) }
}

/// Round values from 0 to at most `most`, ascending, about `wanted` of them; only 0 if `most` is not above 0.
pub(super) fn linear(most: f64, wanted: usize) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0];
    }
    let rough = most / wanted.max(1) as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= rough).unwrap_or(rough);
    (0..=wanted + 1).map(|i| i as f64 * step).take_while(|tick| *tick <= most * 1.000_001).collect()
}

/// A tick as text: `20 ms`, `2.5 s`.
pub(super) fn round(tick: f64) -> String {
    let (value, unit) = match tick {
        t if t < 1e3 => (t, "ns"),
        t if t < 1e6 => (t / 1e3, "µs"),
        t if t < 1e9 => (t / 1e6, "ms"),
        t => (t / 1e9, "s"),
    };
    let text = format!("{value:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_all_values() {
        let text =
            |values: &[u64]| logarithmic(values.iter().copied()).into_iter().map(round).collect::<Vec<_>>();
        assert_eq!(text(&[700_000, 15_000_000]), ["500 µs", "1 ms", "2 ms", "5 ms", "10 ms", "20 ms"]);
        let decades = text(&[3_000_000, 2_491_000_000, 0]);
        assert_eq!(decades, ["1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
        assert_eq!(text(&[1_000_000]), ["1 ms", "2 ms"]);
        for odd in [&[][..], &[0], &[1], &[1, u64::MAX], &[u64::MAX]] {
            let ticks = logarithmic(odd.iter().copied());
            assert!(ticks.len() >= 2 && ticks.is_sorted(), "{odd:?}: {ticks:?}");
        }
    }

    #[test]
    fn linear_ticks_begin_at_zero() {
        assert_eq!(linear(13.2e6, 4).into_iter().map(round).collect::<Vec<_>>(), ["0 ns", "5 ms", "10 ms"]);
        assert_eq!(linear(31.0, 4), [0.0, 10.0, 20.0, 30.0]);
        assert_eq!(linear(0.25, 5), [0.0, 0.05, 0.1, 0.15000000000000002, 0.2, 0.25]);
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(linear(odd, 5), [0.0]);
        }
        assert!(linear(f64::MAX, 5).len() <= 7 && linear(f64::MIN_POSITIVE, 5).len() <= 7);
    }
}
