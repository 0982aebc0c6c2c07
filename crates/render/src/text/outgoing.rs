//! Requests that the guest itself sent: how long they took, and how much of that was this host's.

use super::{WIDTH, reasons, stages};
use crate::table::Table;
use crate::terminal::{Style, Tone, wrap};
use crate::units::{count, percent};
use teiji_model::report::{Outgoing, OutgoingStage};

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
        lines.extend(d.iter().map(|d| format!("{label:11}{}", stages::figures(d))));
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

fn table(o: &Outgoing, style: &Style) -> Vec<String> {
    let mut table = Table::default();
    table.row(stages::head("stage", "of time", "of fluctuation"));
    for s in &o.stages {
        if s.stage == OutgoingStage::Unattributed && s.dist.max == 0 {
            continue;
        }
        let shares = [s.time_share, s.fluctuation_share];
        table.row(stages::row(s.stage.name(), &s.dist, shares, Tone::Plain, style));
    }
    table.lines(style)
}
