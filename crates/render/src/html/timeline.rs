//! Response times and queue depth over the trace, as SVG: what is seen without scripts and in print.

use super::axis;
use super::frame::{Frame, both, fine};
use crate::units::duration;
use maud::{Markup, html};
use teiji_model::over_time::{DepthBin, RequestBin, Timeline};
use teiji_model::stage::{Stage, TABLE};

/// Bars of a chart: more could not be told apart.
const BARS: usize = 250;
const NARROW_BARS: usize = 120;
/// Where the chart begins, and the room below it.
const TOP: f64 = 10.0;
const BELOW: f64 = 26.0;
/// Room to the right, for half of the last tick's text.
const RIGHT: f64 = 24.0;

/// A value on the horizontal axis, ns since the trace began, and the length of a bar, ns.
struct Time {
    length: u64,
    width: u64,
}

/// The slowest request of each bin, with its stages stacked; below it the mean of all.
pub(super) fn requests(line: &Timeline<RequestBin>, length: u64) -> Markup {
    both(|frame| {
        let line = line.at_most(bars(frame));
        let time = Time { length, width: line.width };
        let most = line.bins.iter().map(|b| b.max).max().unwrap_or(0) as f64;
        let plot = Plot { frame, height: 240.0, most, time: &time };
        let paths: Vec<(usize, String)> =
            (0..Stage::COUNT).map(|stage| (stage, path(&plot, &line, stage))).collect();
        let means: Vec<String> = line
            .bins
            .iter()
            .map(|b| {
                format!("{},{}", fine(plot.x(b.at.saturating_add(line.width / 2))), fine(plot.y(b.mean())))
            })
            .collect();
        let svg = html! {
            @for (stage, d) in paths.iter().filter(|(_, d)| !d.is_empty()) {
                path d=(d) fill={ "var(--s" (stage) ")" } { title { (TABLE[*stage].name) } }
            }
            polyline.mean points=(means.join(" ")) fill="none" { title { "mean" } }
        };
        plot.around(&svg, axis::round)
    })
}

/// The bars of one stage.
fn path(plot: &Plot<'_>, line: &Timeline<RequestBin>, stage: usize) -> String {
    let bar = |b: &RequestBin| {
        let below: u64 = b.stages[..stage].iter().fold(0, |a, &ns| a.saturating_add(ns));
        let (bottom, top) = (plot.y(below as f64), plot.y(below.saturating_add(b.stages[stage]) as f64));
        // What is thinner than a third of a pixel cannot be seen.
        (bottom - top > 0.3).then(|| plot.bar(b.at, bottom, top))
    };
    line.bins.iter().filter_map(bar).collect()
}

/// The greatest number of packets that waited on the taps.
pub(super) fn depth(line: &Timeline<DepthBin>, length: u64) -> Markup {
    both(|frame| {
        let line = line.at_most(bars(frame));
        let time = Time { length, width: line.width };
        let most = line.bins.iter().map(|b| b.max).max().unwrap_or(0) as f64;
        let plot = Plot { frame, height: 130.0, most, time: &time };
        let bars: String = line
            .bins
            .iter()
            .filter(|b| b.max > 0)
            .map(|b| plot.bar(b.at, plot.y(0.0), plot.y(b.max as f64)))
            .collect();
        plot.around(&html! { path d=(bars) fill="var(--r1)" {} }, |tick| format!("{tick:.0}"))
    })
}

fn bars(frame: Frame) -> usize {
    if frame.is_narrow() { NARROW_BARS } else { BARS }
}

struct Plot<'a> {
    frame: Frame,
    height: f64,
    /// The greatest value.
    most: f64,
    time: &'a Time,
}

impl Plot<'_> {
    /// The end of the horizontal axis, ns.
    fn end(&self) -> f64 {
        self.time.length.max(1) as f64
    }

    fn x(&self, at: u64) -> f64 {
        let room = self.frame.w - self.frame.left - RIGHT;
        self.frame.left + (at as f64 / self.end()).min(1.0) * room
    }

    fn y(&self, value: f64) -> f64 {
        let share = if self.most > 0.0 { (value / self.most).clamp(0.0, 1.0) } else { 0.0 };
        self.height - BELOW - share * (self.height - BELOW - TOP)
    }

    /// A bar from `bottom` to `top`, as part of a path.
    fn bar(&self, at: u64, bottom: f64, top: f64) -> String {
        let (x, end) = (self.x(at), self.x(at.saturating_add(self.time.width)));
        let width = fine((end - x).max(1.0));
        format!("M{} {}h{width}v{}h-{width}z", fine(x), fine(top), fine(bottom - top))
    }

    /// The chart with its axes.
    fn around(&self, inner: &Markup, value: impl Fn(f64) -> String) -> Markup {
        let Frame { w, left } = self.frame;
        let bottom = self.height - BELOW;
        let ticks = axis::linear(self.end(), if self.frame.is_narrow() { 4 } else { 8 });
        html! {
            svg viewBox={ "0 0 " (w) " " (self.height) } role="img" {
                @for tick in axis::linear(self.most, 4) {
                    @let y = fine(self.y(tick));
                    line.grid x1=(left) x2=(w - RIGHT) y1=(y) y2=(y) {}
                    text.soft x=(left - 8.0) y=(fine(self.y(tick) + 4.0)) text-anchor="end" {
                        (if tick > 0.0 { value(tick) } else { "0".to_owned() })
                    }
                }
                (inner)
                line.grid x1=(left) x2=(w - RIGHT) y1=(fine(bottom)) y2=(fine(bottom)) {}
                @for tick in ticks {
                    text.soft x=(fine(self.x(tick as u64))) y=(fine(self.height - 8.0)) text-anchor="middle" {
                        (if tick > 0.0 { axis::round(tick) } else { "0".to_owned() })
                    }
                }
            }
        }
    }
}

/// The length of the bins: `8.39 ms each`.
pub(super) fn note<B>(line: &Timeline<B>) -> String {
    format!("{} each", duration(line.width as f64))
}
