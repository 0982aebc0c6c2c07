//! The distribution of each stage's time on a logarithmic axis, as SVG: a line from the shortest to the longest, a bar
//! from the median to the 99th percentile.

use super::axis;
use super::frame::{Frame, fine};
use crate::units::duration;
use maud::{Markup, html};
use teiji_model::report::{Dist, StageReport};

const STEP: f64 = 24.0;
const TOP: f64 = 24.0;

/// A row for each stage that took any time, and one for the whole.
pub(super) fn chart(Frame { w, left }: Frame, total: &Dist, stages: &[StageReport]) -> Markup {
    let of_stages = stages.iter().filter(|s| s.dist.max > 0);
    let rows: Vec<(&str, String, &Dist)> = of_stages
        .map(|s| (s.stage.name(), format!("var(--s{})", s.stage as usize), &s.dist))
        .chain([("response", "var(--fg)".to_owned(), total)])
        .collect();
    let ticks = axis::logarithmic(rows.iter().flat_map(|(_, _, d)| [d.min, d.max]));
    let (low, high) = (ticks[0].log10(), ticks[ticks.len() - 1].log10());
    let x = |ns: u64| left + ((ns.max(1) as f64).log10() - low).max(0.0) / (high - low) * (w - left - 24.0);
    let height = TOP + STEP * rows.len() as f64 + 4.0;
    html! {
        svg viewBox={ "0 0 " (w) " " (fine(height)) } role="img" {
            @for tick in &ticks {
                @let at = fine(x(*tick as u64));
                line.grid x1=(at) x2=(at) y1=(TOP - 6.0) y2=(fine(height)) {}
                text.soft x=(at) y="13" text-anchor="middle" { (axis::round(*tick)) }
            }
            @for (i, (name, colour, d)) in rows.iter().enumerate() {
                @let y = TOP + STEP * i as f64 + STEP / 2.0;
                @let (from, to) = (x(d.p50), x(d.p99));
                text x=(left - 8.0) y=(fine(y + 4.0)) text-anchor="end" { (name) }
                g {
                    title {
                        (name) ": min " (duration(d.min as f64)) ", p50 " (duration(d.p50 as f64)) ", p90 "
                        (duration(d.p90 as f64)) ", p99 " (duration(d.p99 as f64)) ", p99.9 " (duration(d.p999 as f64))
                        ", max " (duration(d.max as f64))
                    }
                    line x1=(fine(x(d.min))) x2=(fine(x(d.max))) y1=(fine(y)) y2=(fine(y)) stroke=(colour)
                        stroke-width="2" {}
                    rect x=(fine(from)) y=(fine(y - 6.0)) width=(fine((to - from).max(2.0))) height="12" fill=(colour) {}
                    circle cx=(fine(x(d.max))) cy=(fine(y)) r="3" fill=(colour) {}
                }
            }
        }
    }
}
