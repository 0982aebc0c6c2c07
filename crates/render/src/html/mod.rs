//! Reports as one self-contained web page: it loads nothing. Several reports are shown side by side.
//!
//! Everything is there as text, tables and SVG. On a screen one script (`charts.js`, with uPlot) draws charts that can be
//! pointed at and enlarged; the content security policy has its hash, and permits no other.
//!
//! Names come from guests and users. [`maud`] escapes every text that is put into a page, and `printed` shows control
//! characters as escapes wherever they are: no text depends on a call that could be forgotten.

mod axis;
mod bursts;
mod calls;
mod chart;
mod compare;
mod data;
mod findings;
mod frame;
mod outgoing;
mod passthrough;
mod percentiles;
mod script;
mod section;
mod spread;
mod threads;
mod timeline;

use crate::terminal::printable;
use maud::{Markup, PreEscaped, html};
use teiji_model::advice::Advice;
use teiji_model::report::Report;

/// Lower case, as in all earlier pages; to a browser it is the same as `maud::DOCTYPE`.
const DOCTYPE: PreEscaped<&str> = PreEscaped("<!doctype html>");

/// A report on a page.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its label; may be empty if it is the only report.
    pub label: &'a str,
    /// The report.
    pub report: &'a Report,
    /// The advice for each of its VMs, in their order.
    pub advice: &'a [Advice],
}

/// A page with reports, each with a label. If there are several, the others are compared with the first; if there is
/// one, its label may be empty.
pub fn page(title: &str, shown: &[Shown<'_>]) -> String {
    let title = printed(&html! { (title) });
    let reports: Vec<(&str, &Report)> = shown.iter().map(|s| (s.label, s.report)).collect();
    let mut body = vec![html! { h1 { (title) } }];
    body.extend(reports.iter().map(|(label, report)| section::provenance(label, report)));
    if reports.len() > 1 {
        body.push(compare::all(&reports));
    }
    let none = Advice::default();
    let vms = reports.iter().map(|(_, report)| report.vms.len()).sum();
    for Shown { label, report, advice } in shown {
        let started = report.meta.started;
        let length = report.counters.ended.saturating_sub(started);
        for (i, vm) in report.vms.iter().enumerate() {
            let served = crate::text::served(report, vm).unwrap_or_default();
            let of = section::Of { label, vms, served: &served, started, length, guests: &report.guests };
            body.push(section::vm(of, advice.get(i).unwrap_or(&none), vm));
        }
        if report.vms.is_empty() {
            body.push(html! { p { "No VM was traced." } });
        }
    }
    let library = include_str!("../../vendor/uplot/uPlot.min.css");
    let style = PreEscaped(chart::colours() + library + "\n" + include_str!("style.css"));
    let script = script::script();
    let page = html! {
        (DOCTYPE) "\n"
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(script::security(&script.0));
                title { (title) } "\n"
                style { "\n" (style) }
            }
            "\n"
            body {
                "\n"
                @for part in &body { (printed(part)) "\n" }
                (data::stages()) "\n"
                footer {
                    "Made by teiji " (env!("CARGO_PKG_VERSION")) ". Stages are explained by hovering over them. "
                    "Charts: uPlot 1.6.32, © 2022 Leon Sorokin, MIT licence."
                }
                "\n"
                script { (script) } "\n"
            }
        }
        "\n"
    };
    page.into_string()
}

/// Markup with every control character shown as an escape, line breaks too: the markup of this module has none.
fn printed(markup: &Markup) -> Markup {
    PreEscaped(printable(&markup.0))
}
