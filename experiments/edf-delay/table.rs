//! The results as Markdown, CSV and a picture.

use super::traffic::Outcome;
use crate::plot::{Drawn, draw, legend};
use anyhow::Result;
use plotters::prelude::*;
use std::fmt::Write;
use std::path::Path;

// Writing to a String cannot fail, here and below.

/// The tables of the README: each case with its qdiscs.
pub fn markdown(outcomes: &[Outcome]) -> String {
    let mut t = String::new();
    let mut cases: Vec<&str> = outcomes.iter().map(|o| o.workload).collect();
    cases.dedup();
    for case in cases {
        let of: Vec<&Outcome> = outcomes.iter().filter(|o| o.workload == case).collect();
        let Some(first) = of.first() else { continue };
        let _ = writeln!(t, "## {case}\n\nLongest delay from sender to receiver, ms\n");
        // With many channels, about eight of them are shown.
        let step = first.flows.len().div_ceil(8);
        let shown: Vec<usize> = (0..first.flows.len()).step_by(step).chain([first.flows.len() - 1]).collect();
        let mut shown = shown;
        shown.dedup();
        let head: Vec<String> =
            shown.iter().map(|i| format!("{:.1} ms", first.flows[*i].deadline_us as f64 / 1e3)).collect();
        let _ = writeln!(
            t,
            "| qdisc | {} | late or lost | of | longest / deadline | best effort got |\n|{}",
            head.join(" | "),
            " --- |".repeat(shown.len() + 5)
        );
        for o in of {
            let cells: Vec<String> =
                shown.iter().map(|i| format!("{:.2}", o.flows[*i].max_us / 1e3)).collect();
            let _ = writeln!(
                t,
                "| {} | {} | {} | {} | {:.2} | {:.1} % |",
                o.qdisc,
                cells.join(" | "),
                o.failed(),
                o.sent(),
                o.worst(),
                o.best_effort * 100.0
            );
        }
        if case == super::six(1).name {
            let cells: Vec<String> = paper().iter().map(|(_, longest)| format!("{longest:.2}")).collect();
            let _ = writeln!(t, "| the paper's EDF, queue only, 1 Gbit/s | {} | | | | |", cells.join(" | "));
        }
        t.push('\n');
    }
    t
}

/// Every flow of every run, as CSV.
pub fn csv(outcomes: &[Outcome]) -> String {
    let mut t =
        "case,qdisc,deadline_us,sent,received,late,p50_us,p999_us,max_us,bound_us,queued_max_us,misses,excess\n"
            .to_owned();
    let optional = |v: Option<String>| v.unwrap_or_default();
    for o in outcomes {
        for f in &o.flows {
            let _ = writeln!(
                t,
                "{},{},{},{},{},{},{:.1},{:.1},{:.1},{},{},{},{}",
                o.workload,
                o.qdisc,
                f.deadline_us,
                f.sent,
                f.received,
                f.late,
                f.p50_us,
                f.p999_us,
                f.max_us,
                optional(f.bound_us.map(|v| format!("{v:.1}"))),
                optional(f.queued_max_us.map(|v| format!("{v:.1}"))),
                optional(f.misses.map(|v| v.to_string())),
                optional(f.excess.map(|v| v.to_string())),
            );
        }
    }
    t
}

/// The longest delay over the deadline, one line for each qdisc; the diagonal is the deadline.
///
/// # Errors
/// If the file cannot be written.
pub fn picture(file: &Path, case: &str, outcomes: &[Outcome]) -> Result<()> {
    let of: Vec<&Outcome> = outcomes.iter().filter(|o| o.workload == case).collect();
    if of.is_empty() {
        return Ok(());
    }
    draw(file, |root| -> Drawn {
        let mut chart = ChartBuilder::on(root)
            .caption(format!("{case}: longest delay of each channel's packets"), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..21.0, (0.1..1000.0).log_scale())?;
        chart.configure_mesh().x_desc("deadline, ms").y_desc("longest delay, ms").draw()?;
        let diagonal = (2..=210).map(|i| (f64::from(i) / 10.0, f64::from(i) / 10.0));
        chart
            .draw_series(LineSeries::new(diagonal, BLACK.mix(0.5)))?
            .label("the deadline")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], BLACK.mix(0.5)));
        for (i, o) in of.iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let points = o.flows.iter().map(|f| (f.deadline_us as f64 / 1e3, (f.max_us / 1e3).max(0.1)));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
                .label(o.qdisc)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        if case == super::six(1).name {
            chart
                .draw_series(paper().into_iter().map(|point| Cross::new(point, 5, BLACK.stroke_width(2))))?
                .label("the paper's EDF, 1 Gbit/s")
                .legend(|(x, y)| Cross::new((x + 8, y), 4, BLACK.stroke_width(2)));
        }
        legend(&mut chart)
    })
}

/// The paper's longest delays in the sending VMM's queue, by deadline, ms.
fn paper() -> Vec<(f64, f64)> {
    let of = |line: &str| {
        let (deadline, rest) = line.split_once(',')?;
        let (longest, what) = rest.split_once(',')?;
        what.starts_with("queueing").then_some((deadline.parse().ok()?, longest.parse().ok()?))
    };
    include_str!("paper.csv").lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_papers_figures_are_found() {
        let paper = super::paper();
        assert_eq!((paper.len(), paper[0], paper[5]), (6, (3.0, 3.0), (20.0, 19.28)));
    }
}
