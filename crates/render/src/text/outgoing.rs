//! Requests that the guest itself sent: how long they took, and how much of that was this host's.

use super::{WIDTH, reasons, stages};
use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, wrap};
use crate::units::{count, duration, percent};
use teiji_model::report::{Dist, Outgoing, OutgoingStage};

/// Where most of the time goes, in at most 12 words; `None` if no request is complete.
pub(crate) fn headline(o: &Outgoing) -> Option<String> {
    let outside = o.outside_share()?;
    Some(if outside >= 0.5 {
        format!("{} of the time is spent outside this host", percent(outside))
    } else {
        format!("{} of the time is spent on this host", percent(1.0 - outside))
    })
}

/// Further remarks on complete requests, each a sentence.
pub(crate) fn remarks(o: &Outgoing) -> Vec<String> {
    let mut remarks = Vec::new();
    if o.to_other_vms > 0 {
        remarks.push(format!(
            "{} answered by another traced VM: \"outside\" is the time from its tap until it has sent the answer",
            count(o.to_other_vms, "request")
        ));
    }
    let again = o.requests.sent_again.unknown;
    if again > 0 {
        remarks.push(format!(
            "{} sent again before the answer: timed from the first copy",
            count(again, "request")
        ));
    }
    remarks
}

/// Counts, times and a table of the stages.
pub(super) fn lines(o: &Outgoing, style: &Style) -> Vec<String> {
    let mut text = format!("{} sent by the guest, {} complete", o.requests.seen, o.requests.complete);
    for (n, what) in o.requests.left_out() {
        text += &format!(", {n} {what}");
    }
    let mut lines = vec![String::new()];
    let counts = wrap(&text, WIDTH - 11).into_iter().enumerate();
    lines.extend(counts.map(|(i, l)| format!("{:11}{l}", if i == 0 { "outgoing" } else { "" })));
    lines.extend(reasons(&o.left_out));
    for (label, d) in [("response", &o.total), ("this host", &o.host)] {
        lines.extend(d.iter().map(|d| format!("{label:11}{}", figures(d))));
    }
    if let Some(headline) = headline(o) {
        lines.push(format!("   {headline}"));
    }
    lines.extend(remarks(o).iter().flat_map(|text| wrap(text, WIDTH - 3)).map(|l| format!("   {l}")));
    if !o.stages.is_empty() {
        lines.push(String::new());
        lines.extend(table(o, style));
    }
    lines
}

fn figures(d: &Dist) -> String {
    let [p50, p90, p99, max] = [d.p50, d.p90, d.p99, d.max].map(|ns| duration(ns as f64));
    format!("p50 {p50}  p90 {p90}  p99 {p99}  max {max}  mean {}", duration(d.mean))
}

fn table(o: &Outgoing, style: &Style) -> Vec<String> {
    let mut table = Table::default();
    table.row(stages::head("stage", "of time", "of fluctuation"));
    for s in &o.stages {
        if s.stage == OutgoingStage::Unattributed && s.dist.max == 0 {
            continue;
        }
        let d = &s.dist;
        let mut row = vec![Cell::from(s.stage.name()), Cell::right(duration(d.mean))];
        row.extend([d.p50, d.p99, d.max].map(|ns| Cell::right(duration(ns as f64))));
        row.extend(stages::bar_cells(s.time_share, s.fluctuation_share, Tone::Plain, style));
        table.row(row);
    }
    table.lines(style)
}
