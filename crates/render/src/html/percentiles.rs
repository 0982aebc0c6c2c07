//! Response times by percentile, as SVG.
//!
//! Both axes are logarithmic. The vertical axis is time: a response of a disturbed host may take a thousand times
//! longer than one of an undisturbed host, and one chart has to show both. The horizontal axis is rarity, in nines.

use super::chart::{LEFT, W};
use crate::units::duration;
use maud::{Markup, html};
use teiji_model::report::Dist;

/// Height of the chart, in its own units, and where its axes are.
const H: f64 = 280.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = H - 34.0;
/// The greatest number of horizontal lines.
const TICKS: usize = 8;
/// Percentiles and their places in nines: the median at 0.3, 90 % at 1, 99 % at 2, 99.9 % at 3; the maximum is after
/// these.
const NINES: [(&str, f64); 6] =
    [("min", 0.0), ("p50", 0.301), ("p90", 1.0), ("p99", 2.0), ("p99.9", 3.0), ("max", 3.6)];

/// A line for each distribution: the further right, the rarer.
pub(super) fn chart(lines: &[(&str, &Dist)]) -> Markup {
    let values = |d: &Dist| [d.min, d.p50, d.p90, d.p99, d.p999, d.max];
    let ticks = ticks(lines.iter().flat_map(|(_, d)| values(d)));
    let (low, high) = (ticks[0].log10(), ticks[ticks.len() - 1].log10());
    let x = |nines: f64| LEFT + nines / 3.6 * (W - LEFT - 40.0);
    let y = |ns: f64| BOTTOM - (ns.log10() - low).max(0.0) / (high - low) * (BOTTOM - TOP);
    html! {
        svg viewBox={ "0 0 " (W) " " (H) } role="img" {
            @for tick in &ticks {
                @let height = y(*tick);
                line.grid x1=(LEFT) x2=(W) y1=(fine(height)) y2=(fine(height)) {}
                text.soft x=(LEFT - 12.0) y=(fine(height + 4.0)) text-anchor="end" { (round(*tick)) }
            }
            @for (name, nines) in NINES {
                text.soft x=(fine(x(nines))) y=(H - 12.0) text-anchor="middle" { (name) }
            }
            @for (i, (label, d)) in lines.iter().enumerate() {
                // The earlier lines are wider, so that a line on top does not hide them.
                @let width = 2.5 + 1.5 * lines.len().saturating_sub(i + 1).min(4) as f64;
                @let points = values(d).into_iter().zip(NINES).map(|(v, (_, nines))| (x(nines), y(v as f64)));
                (line(label, colour(i, lines.len()), width, &points.collect::<Vec<_>>(), &values(d)))
            }
        }
        @if lines.len() > 1 {
            div.legend {
                @for (i, (label, _)) in lines.iter().enumerate() {
                    span {
                        i style={ "background:var(--r" (colour(i, lines.len())) ")" } {}
                        (label)
                    }
                }
            }
        }
    }
}

/// A line through `points`, which are the places of these values, ns.
fn line(label: &str, colour: usize, width: f64, points: &[(f64, f64)], values: &[u64]) -> Markup {
    let joined: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    html! {
        polyline points=(joined.join(" ")) fill="none" stroke={ "var(--r" (colour) ")" } stroke-width=(width)
            stroke-linejoin="round" { title { (label) } }
        @for ((value, (name, _)), (x, y)) in values.iter().zip(NINES).zip(points) {
            circle cx=(fine(*x)) cy=(fine(*y)) r=(fine(width / 2.0 + 2.5)) fill={ "var(--r" (colour) ")" } {
                title { (label) " " (name) ": " (duration(*value as f64)) }
            }
        }
    }
}

/// A length with one decimal.
fn fine(length: f64) -> String {
    format!("{length:.1}")
}

/// Which of the style sheet's four colours a line has; the first of several lines is grey.
fn colour(i: usize, of: usize) -> usize {
    if of == 1 { 1 } else { i % 4 }
}

/// Round times from below the least value to above the greatest, ns, ascending, at least two: 1, 2, 5, 10 …, or powers
/// of ten if these are too many.
fn ticks(values: impl Iterator<Item = u64>) -> Vec<f64> {
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

/// A tick as text: `20 ms`.
fn round(tick: f64) -> String {
    let (value, unit) = match tick {
        t if t < 1e3 => (t, "ns"),
        t if t < 1e6 => (t / 1e3, "µs"),
        t if t < 1e9 => (t / 1e6, "ms"),
        t => (t / 1e9, "s"),
    };
    format!("{value:.0} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_all_values() {
        let text = |values: &[u64]| ticks(values.iter().copied()).into_iter().map(round).collect::<Vec<_>>();
        assert_eq!(text(&[700_000, 15_000_000]), ["500 µs", "1 ms", "2 ms", "5 ms", "10 ms", "20 ms"]);
        let decades = text(&[3_000_000, 2_491_000_000, 0]);
        assert_eq!(decades, ["1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
        assert_eq!(text(&[1_000_000]), ["1 ms", "2 ms"]);
        for odd in [&[][..], &[0], &[1], &[1, u64::MAX], &[u64::MAX]] {
            let ticks = ticks(odd.iter().copied());
            assert!(ticks.len() >= 2 && ticks.is_sorted(), "{odd:?}: {ticks:?}");
        }
    }
}
