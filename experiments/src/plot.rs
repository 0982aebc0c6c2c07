//! Pictures of results, as SVG.

use crate::apply::kills::Kills;
use crate::path::accuracy::Agreement;
use crate::path::blame::Judged;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

const SIZE: (u32, u32) = (900, 420);

/// The distribution of teiji's time minus the capture's, one line for each case. Draws nothing without data.
///
/// # Errors
/// If the file cannot be written.
pub fn differences(file: &Path, agreements: &[Agreement]) -> Result<()> {
    let most = agreements.iter().map(|a| a.off_p99_us).fold(1.0, f64::max) * 1.5;
    if agreements.is_empty() || !most.is_finite() {
        return Ok(());
    }
    draw(file, |root| {
        let mut chart = ChartBuilder::on(root)
            .caption("teiji's response time less the capture's, request by request", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(-most..most, 0.0..1.0)?;
        chart.configure_mesh().x_desc("difference, µs").y_desc("share of requests").draw()?;
        for (i, a) in agreements.iter().enumerate() {
            let mut off: Vec<f64> = a.pairs.iter().map(|p| p.off() / 1e3).collect();
            off.sort_by(f64::total_cmp);
            let n = off.len() as f64;
            let points = off.iter().enumerate().map(|(k, x)| (x.clamp(-most, most), (k + 1) as f64 / n));
            let color = Palette99::pick(i).to_rgba();
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(a.case)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        legend(&mut chart)
    })
}

/// The mean of each stage in each run of each situation, stacked. Draws nothing without data.
///
/// # Errors
/// If the file cannot be written.
pub fn stages(file: &Path, judged: &[Judged]) -> Result<()> {
    let sum = |j: &Judged| j.stages.iter().map(|(_, us)| us / 1e3).sum::<f64>();
    let most = judged.iter().map(sum).fold(0.0, f64::max) * 1.1;
    if judged.is_empty() || most <= 0.0 {
        return Ok(());
    }
    draw(file, |root| {
        let mut chart = ChartBuilder::on(root)
            .caption("Where the time goes in each induced situation (mean of each run)", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..judged.len() as f64 * 1.25, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(judged.len() * 4 + 1)
            .x_label_formatter(&|x| label(judged, *x))
            .y_desc("ms")
            .draw()?;
        for stage in teiji_model::stage::Stage::ALL {
            let [_, r, g, b] = stage.about().colour.light.to_be_bytes();
            let color = RGBColor(r, g, b);
            let bars = judged.iter().enumerate().filter_map(|(i, j)| {
                let at = j.stages.iter().position(|(s, _)| *s == stage)?;
                let below: f64 = j.stages[..at].iter().map(|(_, us)| us / 1e3).sum();
                let (x, top) = (i as f64 + 0.1, below + j.stages[at].1 / 1e3);
                Some(Rectangle::new([(x, below), (x + 0.8, top)], color.filled()))
            });
            chart
                .draw_series(bars)?
                .label(stage.name())
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
        }
        legend(&mut chart)
    })
}

/// Number of kills by how many settings were changed at that time, apply and rollback side by side. Draws nothing
/// without data.
///
/// # Errors
/// If the file cannot be written.
pub fn kills(file: &Path, kills: &Kills) -> Result<()> {
    let of = kills.rounds.iter().map(|r| r.of).max().unwrap_or(0) as usize;
    let count = |kind: &str| {
        let mut bins = vec![0.0; of + 1];
        let killed = kills.rounds.iter().filter(|r| r.kind == kind && r.hit.is_some() && !r.survived);
        killed.for_each(|r| bins[(r.changed as usize).min(of)] += 1.0);
        bins
    };
    let bins = [("apply", count("apply")), ("rollback", count("rollback"))];
    let most = bins.iter().flat_map(|(_, b)| b).fold(0.0, |a, b| f64::max(a, *b)) * 1.1;
    if most <= 0.0 {
        return Ok(());
    }
    draw(file, |root| {
        let mut chart = ChartBuilder::on(root)
            .caption("How far teiji had come when it was killed", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(-0.5..of as f64 + 0.5, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(of + 1)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .x_desc("settings changed")
            .y_desc("kills")
            .draw()?;
        for (k, (kind, bins)) in bins.iter().enumerate() {
            let color = Palette99::pick(k).to_rgba();
            let bars = bins.iter().enumerate().map(|(i, n)| {
                let left = i as f64 - 0.4 + 0.4 * k as f64;
                Rectangle::new([(left, 0.0), (left + 0.4, *n)], color.filled())
            });
            chart
                .draw_series(bars)?
                .label(*kind)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
        }
        legend(&mut chart)
    })
}

/// The label of a situation is below the middle of its first run's bar.
fn label(judged: &[Judged], x: f64) -> String {
    match judged.get(x as usize) {
        Some(j) if (x.fract() - 0.5).abs() < 0.01 && j.run == 1 => j.situation.to_owned(),
        _ => String::new(),
    }
}

/// The area of a picture.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;
/// Result of drawing.
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

pub(crate) fn legend<'a, 'b: 'a, X: Ranged, Y: Ranged>(chart: &mut Chart<'a, 'b, X, Y>) -> Drawn {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
}

/// The distribution of the longest delay seen divided by the guaranteed delay. Draws nothing without data.
///
/// # Errors
/// If the file cannot be written.
pub fn tightness(file: &Path, ratios: &[f64]) -> Result<()> {
    if ratios.is_empty() {
        return Ok(());
    }
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    // One point for each pixel is enough.
    let step = n.div_ceil(900);
    let points: Vec<(f64, f64)> =
        sorted.iter().enumerate().step_by(step).map(|(k, x)| (*x, (k + 1) as f64 / n as f64)).collect();
    draw(file, |root| {
        let mut chart = ChartBuilder::on(root)
            .caption("Admitted sets: longest delay seen over the one guaranteed", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(0.0..1.05, 0.0..1.0)?;
        chart.configure_mesh().x_desc("seen / guaranteed").y_desc("share of sets").draw()?;
        chart.draw_series(LineSeries::new(points, BLUE.stroke_width(2)))?;
        Ok(())
    })
}

pub(crate) fn draw(file: &Path, what: impl FnOnce(&Area<'_>) -> Drawn) -> Result<()> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE)
        .and_then(|()| what(&root))
        .and_then(|()| root.present())
        .map_err(|e| anyhow!("cannot draw {}: {e}", file.display()))
}
