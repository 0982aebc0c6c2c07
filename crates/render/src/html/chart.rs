//! Charts as SVG: shares, waterfalls.

use super::frame::Frame;
use crate::units::{duration, percent};
use maud::{Markup, html};
use teiji_model::report::Request;
use teiji_model::stage::{Colour, Stage, TABLE};

/// The meaning of a stage, for tooltips.
pub(super) fn meaning(stage: Stage) -> String {
    let about = stage.about();
    format!("{}: {}", about.meaning, about.explanation)
}

/// The colours of the stages, as variables of the style sheet.
pub(super) fn colours() -> String {
    let set = |colour: fn(&Colour) -> u32| -> String {
        TABLE.iter().enumerate().map(|(i, s)| format!(" --s{i}: #{:06x};", colour(&s.colour))).collect()
    };
    let light = set(|c| c.light);
    format!(
        ":root {{{light} }}\n@media (prefers-color-scheme: dark) {{ :root {{{} }} }}\n@media print {{ :root {{{light} }} }}\n",
        set(|c| c.dark)
    )
}

/// The colours of the stages.
pub(super) fn legend(stages: impl IntoIterator<Item = Stage>) -> Markup {
    html! {
        div.legend {
            @for stage in stages {
                span title=(meaning(stage)) {
                    i style={ "background:var(--s" (stage as usize) ")" } {}
                    (stage.name())
                }
            }
        }
    }
}

/// A bar that is divided into stages.
pub(super) struct Row {
    /// The text to the left.
    pub label: String,
    /// The length of each stage, as a part of the chart's width, and its tooltip.
    pub parts: Vec<(Stage, f64, String)>,
    /// The text to the right.
    pub note: String,
}

impl Row {
    /// The left edge and the width of each part, and the right edge of the last one. A row of shares that add up to 1 is
    /// `room` wide.
    fn places(&self, left: f64, room: f64) -> (Vec<(f64, f64)>, f64) {
        let mut x = left;
        let mut place = |share: f64| {
            let width = share.max(0.0) * room;
            let begin = x;
            x += width;
            (begin, width)
        };
        let places = self.parts.iter().map(|(_, share, _)| place(*share)).collect();
        (places, x)
    }
}

/// Bars of stages, one below the other. `right` is the width reserved for notes.
pub(super) fn stacked(Frame { w, left }: Frame, rows: &[Row], right: f64) -> Markup {
    const STEP: f64 = 30.0;
    let room = w - left - right;
    html! {
        svg viewBox={ "0 0 " (w) " " (STEP * rows.len() as f64) } role="img" {
            @for (i, row) in rows.iter().enumerate() {
                @let y = STEP * i as f64 + 3.0;
                text x=(left - 8.0) y=(y + 16.0) text-anchor="end" { (row.label) }
                @let (places, end) = row.places(left, room);
                @for ((stage, _, tip), (x, width)) in row.parts.iter().zip(places) {
                    rect x=(format!("{x:.2}")) y=(y) width=(format!("{width:.2}")) height="22"
                        fill={ "var(--s" (*stage as usize) ")" } { title { (tip) } }
                    @if width > stage.name().len() as f64 * 7.5 + 8.0 {
                        text.in x=(format!("{:.2}", x + 6.0)) y=(y + 15.0) { (stage.name()) }
                    }
                }
                text.soft x=(format!("{:.2}", end + 8.0)) y=(y + 16.0) { (row.note) }
            }
        }
    }
}

/// One row of [`stacked`]: shares of a whole. Shares below 0 have no length; the others then add up to more than 1 and
/// are scaled to fit.
pub(super) fn shares(label: &str, shares: &[(Stage, f64)]) -> Row {
    let whole = shares.iter().map(|s| s.1.max(0.0)).filter(|s| s.is_finite()).sum::<f64>().max(1e-12);
    let part = |&(stage, share): &(Stage, f64)| {
        let width = if share.is_finite() { share.max(0.0) / whole } else { 0.0 };
        (stage, width, format!("{}: {}", stage.name(), percent(share)))
    };
    Row { label: label.to_owned(), parts: shares.iter().map(part).collect(), note: String::new() }
}

/// The slowest requests, with bars as long as their response times.
pub(super) fn waterfalls(frame: Frame, requests: &[Request]) -> Markup {
    let most = requests.iter().map(|r| r.total).max().unwrap_or(0).max(1) as f64;
    let row = |r: &Request| Row {
        label: duration(r.total as f64),
        parts: r
            .stages
            .iter()
            .filter(|s| s.ns > 0)
            .map(|s| (s.stage, s.ns as f64 / most, format!("{}: {}", s.stage.name(), duration(s.ns as f64))))
            .collect(),
        // On a narrow screen there is no room for it.
        note: if frame.is_narrow() { String::new() } else { crate::text::dominant(r).unwrap_or_default() },
    };
    stacked(frame, &requests.iter().map(row).collect::<Vec<_>>(), if frame.is_narrow() { 4.0 } else { 290.0 })
}
