//! Charts as SVG: shares, waterfalls.

use super::escape;
use crate::units::{ns, percent};
use std::fmt::Write;
use teiji_model::report::Request;
use teiji_model::stage::{Colour, Stage, TABLE};

/// Width of every chart, in its own units.
pub(super) const W: f64 = 1000.0;
/// Where bars begin.
pub(super) const LEFT: f64 = 120.0;

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
    format!(
        ":root {{{} }}\n@media (prefers-color-scheme: dark) {{ :root {{{} }} }}\n",
        set(|c| c.light),
        set(|c| c.dark)
    )
}

/// The colours of the stages.
pub(super) fn legend(stages: impl IntoIterator<Item = Stage>) -> String {
    let mut out = String::from("<div class=\"legend\">");
    for stage in stages {
        let _ = write!(
            out,
            "<span title=\"{}\"><i style=\"background:var(--s{})\"></i>{}</span>",
            escape(&meaning(stage)),
            stage as usize,
            stage.name()
        );
    }
    out + "</div>\n"
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

/// Bars of stages, one below the other. `right` is the width reserved for notes.
pub(super) fn stacked(rows: &[Row], right: f64) -> String {
    const STEP: f64 = 30.0;
    let room = W - LEFT - right;
    let height = STEP * rows.len() as f64;
    let mut out = format!("<svg viewBox=\"0 0 {W} {height}\" role=\"img\">\n");
    for (i, row) in rows.iter().enumerate() {
        let y = STEP * i as f64 + 3.0;
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 16.0,
            row.label
        );
        let mut x = LEFT;
        for (stage, share, tip) in &row.parts {
            let width = share.max(0.0) * room;
            let (index, tip) = (*stage as usize, escape(tip));
            let _ = write!(
                out,
                "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"22\" fill=\"var(--s{index})\"><title>{tip}</title></rect>"
            );
            let name = stage.name();
            if width > name.len() as f64 * 7.5 + 8.0 {
                let _ =
                    write!(out, "<text class=\"in\" x=\"{:.2}\" y=\"{}\">{name}</text>", x + 6.0, y + 15.0);
            }
            x += width;
        }
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{:.2}\" y=\"{}\">{}</text>",
            x + 8.0,
            y + 16.0,
            escape(&row.note)
        );
    }
    out + "</svg>\n"
}

/// One row of [`stacked`]: shares of a whole. Shares below 0 have no length; the others then add up to more than 1 and
/// are scaled to fit.
pub(super) fn shares(label: &str, shares: &[(Stage, f64)]) -> Row {
    let whole = shares.iter().map(|s| s.1.max(0.0)).filter(|s| s.is_finite()).sum::<f64>().max(1e-12);
    let part = |&(stage, share): &(Stage, f64)| {
        let width = if share.is_finite() { share.max(0.0) / whole } else { 0.0 };
        (stage, width, format!("{}: {}", stage.name(), percent(share)))
    };
    Row { label: escape(label), parts: shares.iter().map(part).collect(), note: String::new() }
}

/// The slowest requests, with bars as long as their response times.
pub(super) fn waterfalls(requests: &[Request]) -> String {
    let most = requests.iter().map(|r| r.total).max().unwrap_or(0).max(1) as f64;
    let row = |r: &Request| Row {
        label: ns(r.total as f64),
        parts: r
            .stages
            .iter()
            .filter(|s| s.ns > 0)
            .map(|s| (s.stage, s.ns as f64 / most, format!("{}: {}", s.stage.name(), ns(s.ns as f64))))
            .collect(),
        note: crate::text::dominant(r).unwrap_or_default(),
    };
    stacked(&requests.iter().map(row).collect::<Vec<_>>(), 290.0)
}
