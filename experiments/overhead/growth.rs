//! The cost of a trace by its number of points, of each tool: a table and a picture.

use super::costs::{Cost, added};
use super::{GROWING, Load, Scope, Tool, Trace, points};
use crate::plot::{self, draw, legend};
use anyhow::Result;
use plotters::prelude::*;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// What a small request consists of.
const REQUEST: [(Load, f64); 4] =
    [(Load::PacketIn, 1.0), (Load::PacketOut, 1.0), (Load::Switch, 2.0), (Load::Exit, 2.0)];

/// What a tool adds to a request with a number of points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The tool.
    pub tool: Tool,
    /// Number of points.
    pub points: usize,
    /// ns of virtual time that it adds to a request.
    pub added_ns: f64,
}

/// What a trace adds to such a request, ns; NaN if it was not measured.
pub fn request(costs: &[Cost], trace: Trace) -> f64 {
    REQUEST.iter().map(|(load, n)| n * added(costs, *load, trace)).sum()
}

/// The steps that were measured.
pub fn steps(costs: &[Cost]) -> Vec<Step> {
    let all = GROWING.into_iter().flat_map(|tool| points::STEPS.map(|points| (tool, points)));
    all.map(|(tool, points)| {
        let added_ns = request(costs, Trace::of(tool, Scope::This).at(points));
        Step { tool, points, added_ns }
    })
    .filter(|s| !s.added_ns.is_nan())
    .collect()
}

/// A row for each tool, a column for each number of points.
pub fn markdown(steps: &[Step]) -> String {
    let heads = points::STEPS.map(|n| n.to_string()).join(" | ");
    let mut t = format!(
        "ns of virtual time that a trace adds to a request (a packet in, one out, two context switches, two exits), by \
         number of points\n\n| tool | {heads} |\n| --- |{}\n",
        " --- |".repeat(points::STEPS.len())
    );
    for tool in GROWING {
        let cells = points::STEPS.map(|n| {
            let step = steps.iter().find(|s| (s.tool, s.points) == (tool, n));
            step.map_or_else(String::new, |s| format!("{:+.0}", s.added_ns))
        });
        // Writing to a String cannot fail.
        let _ = writeln!(t, "| {} | {} |", tool.name(), cells.join(" | "));
    }
    t
}

/// A line for each tool. Draws nothing without data.
///
/// # Errors
/// If the file cannot be written.
pub fn picture(file: &Path, steps: &[Step]) -> Result<()> {
    let most = steps.iter().map(|s| s.added_ns / 1e3).fold(0.0, f64::max) * 1.1;
    if most <= 0.0 {
        return Ok(());
    }
    let place = |points: usize| points::STEPS.iter().position(|n| *n == points).unwrap_or(0) as f64;
    draw(file, |root: &plot::Area<'_>| {
        let last = (points::STEPS.len() - 1) as f64;
        let mut chart = ChartBuilder::on(root)
            .caption("What a trace adds to a request, by its number of points", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(-0.2..last + 0.2, 0.0..most)?;
        let label = |x: &f64| {
            let near = (x - x.round()).abs() < 0.01;
            let points = near.then(|| points::STEPS.get(x.round() as usize)).flatten();
            points.map_or_else(String::new, ToString::to_string)
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(30)
            .x_label_formatter(&label)
            .x_desc("points")
            .y_desc("µs of virtual time")
            .draw()?;
        for (i, tool) in GROWING.into_iter().enumerate() {
            let line: Vec<(f64, f64)> = steps
                .iter()
                .filter(|s| s.tool == tool)
                .map(|s| (place(s.points), s.added_ns / 1e3))
                .collect();
            let color = Palette99::pick(i).to_rgba();
            chart.draw_series(line.iter().map(|p| Circle::new(*p, 4, color.filled())))?;
            chart
                .draw_series(LineSeries::new(line, color.stroke_width(2)))?
                .label(tool.name())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        legend(&mut chart)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_sum_of_its_parts() {
        let cost = |load: Load, added_ns: f64| Cost {
            load,
            trace: Trace::of(Tool::Teiji, Scope::This).at(2),
            without_ns: 1.0,
            added_ns,
            spread_ns: 0.0,
            events: None,
        };
        let costs = [
            cost(Load::PacketIn, 100.0),
            cost(Load::PacketOut, 200.0),
            cost(Load::Switch, 10.0),
            cost(Load::Exit, 1.0),
        ];
        let steps = steps(&costs);
        assert_eq!(steps, [Step { tool: Tool::Teiji, points: 2, added_ns: 322.0 }]);
        assert!(markdown(&steps).contains("| teiji |  | +322 |  |  |  |"));
        let file = tempfile::NamedTempFile::new().unwrap();
        picture(file.path(), &steps).unwrap();
        assert!(std::fs::read_to_string(file.path()).unwrap().contains("number of points"));
    }
}
