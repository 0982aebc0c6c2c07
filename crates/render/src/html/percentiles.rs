//! Response times by percentile, as SVG.
//!
//! Both axes are logarithmic. The vertical axis is time: a response of a disturbed host may take a thousand times
//! longer than one of an undisturbed host, and one chart has to show both. The horizontal axis is rarity, in nines.

use super::axis;
use super::frame::{Frame, fine};
use crate::units::duration;
use maud::{Markup, html};
use teiji_model::report::Dist;

/// Height of the chart, in its own units, and where its axes are.
const H: f64 = 280.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = H - 34.0;
/// Percentiles and their places in nines: the median at 0.3, 90 % at 1, 99 % at 2, 99.9 % at 3; the maximum is after
/// these.
const NINES: [(&str, f64); 6] =
    [("min", 0.0), ("p50", 0.301), ("p90", 1.0), ("p99", 2.0), ("p99.9", 3.0), ("max", 3.6)];

/// A line for each distribution: the further right, the rarer.
pub(super) fn chart(frame: Frame, lines: &[(&str, &Dist)]) -> Markup {
    let Frame { w, left } = frame;
    let values = |d: &Dist| [d.min, d.p50, d.p90, d.p99, d.p999, d.max];
    let ticks = axis::logarithmic(lines.iter().flat_map(|(_, d)| values(d)));
    let (low, high) = (ticks[0].log10(), ticks[ticks.len() - 1].log10());
    let x = |nines: f64| left + nines / 3.6 * (w - left - 24.0);
    let y = |ns: f64| BOTTOM - (ns.log10() - low).max(0.0) / (high - low) * (BOTTOM - TOP);
    html! {
        svg viewBox={ "0 0 " (w) " " (H) } role="img" {
            @for tick in &ticks {
                @let height = y(*tick);
                line.grid x1=(left) x2=(w) y1=(fine(height)) y2=(fine(height)) {}
                text.soft x=(left - 12.0) y=(fine(height + 4.0)) text-anchor="end" { (axis::round(*tick)) }
            }
            // On a narrow screen there is no room for "min" before "p50".
            @for (name, nines) in NINES.into_iter().skip(usize::from(frame.is_narrow())) {
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

/// Which of the style sheet's four colours a line has; the first of several lines is grey.
fn colour(i: usize, of: usize) -> usize {
    if of == 1 { 1 } else { i % 4 }
}
