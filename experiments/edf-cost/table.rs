//! The results as Markdown, CSV and pictures.

use super::bench::{self, Cost, Sample};
use super::{CHANNELS, Case};
use crate::plot::{Drawn, draw, legend};
use anyhow::Result;
use plotters::prelude::*;
use std::fmt::Write;
use std::path::Path;

// Writing to a String cannot fail, here and below.

/// The table of a case: a row for each qdisc and its filters.
pub fn markdown(case: &Case, costs: &[Cost]) -> String {
    let heads: Vec<String> = CHANNELS.iter().map(|n| format!("{n}")).collect();
    let mut t = format!(
        "## {}\n\nns of virtual time per packet (2 ns are one instruction), by number of channels: what the qdisc adds, and \
         in brackets the whole window, an empty loop of the same length for all included\n\n| qdisc | filters | {} |\n| --- | --- |{}\n",
        case.name,
        heads.join(" | "),
        " --- |".repeat(heads.len())
    );
    let mut rows: Vec<(&str, &str)> = Vec::new();
    for c in costs {
        if !rows.contains(&(c.qdisc, c.filters)) {
            rows.push((c.qdisc, c.filters));
        }
    }
    for (qdisc, filters) in rows {
        let cell = |n: &u64| {
            let of = costs.iter().find(|c| (c.qdisc, c.filters, c.channels) == (qdisc, filters, *n));
            of.map_or_else(|| "–".into(), |c| format!("{:.0} ({:.0})", c.cost_ns, c.total_ns))
        };
        let cells: Vec<String> = CHANNELS.iter().map(cell).collect();
        let _ = writeln!(t, "| {qdisc} | {filters} | {} |", cells.join(" | "));
    }
    t
}

/// Every window, as CSV.
pub fn csv(samples: &[(Case, Vec<Sample>)]) -> String {
    let mut t = "case,qdisc,filters,channels,round,ns_per_packet\n".to_owned();
    for (case, samples) in samples {
        for s in samples {
            let (kind, n) = (s.queue.kind, s.queue.channels);
            let _ = writeln!(
                t,
                "{},\"{}\",{},{n},{},{:.1}",
                case.name,
                kind.name(),
                kind.filters(),
                s.round,
                s.ns
            );
        }
    }
    t
}

/// What each qdisc adds, over the number of channels, with the faster of its filters.
///
/// # Errors
/// If the file cannot be written.
pub fn picture(file: &Path, case: &Case, costs: &[Cost]) -> Result<()> {
    let qdiscs = ["teiji_edf", "pfifo", "fq", "etf", "htb", "hfsc"];
    let most = costs.iter().map(|c| c.cost_ns).fold(1.0, f64::max) * 1.1;
    draw(file, |root| -> Drawn {
        let mut chart = ChartBuilder::on(root)
            .caption(format!("{}: what the qdisc adds to a packet", case.name), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d((0.8..4000.0).log_scale(), 0.0..most)?;
        chart.configure_mesh().x_desc("channels").y_desc("ns of virtual time").draw()?;
        for (i, qdisc) in qdiscs.iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let points = CHANNELS
                .iter()
                .map(|n| (*n as f64, bench::least(costs, qdisc, *n)))
                .filter(|p| p.1.is_finite());
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
                .label(*qdisc)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        legend(&mut chart)
    })
}
