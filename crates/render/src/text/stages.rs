//! The table of stages, and the tables of one direction.

use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone};
use crate::units::{count, duration, percent};
use teiji_model::report::{DirectionReport, Dist, VmReport};
use teiji_model::stage::Stage;

/// The width of a bar for 100 %, columns.
const BAR: usize = 13;

/// Parts below this share of both the time and the fluctuation are left out.
const FAINT: f64 = 0.005;

/// Every stage with its parts: durations, share of the time and of the fluctuation.
pub(super) fn table(vm: &VmReport, style: &Style) -> Vec<String> {
    let mut table = Table::default();
    table.row(head("stage", "of time", "of fluctuation"));
    for stage in &vm.stages {
        if stage.stage == Stage::Unattributed && stage.dist.max == 0 {
            continue;
        }
        let blamed = vm.blamed_stage() == Some(stage.stage);
        let tone = if blamed { Tone::Bad } else { Tone::Plain };
        let shares = [stage.time_share, stage.fluctuation_share];
        table.row(row(stage.stage.name(), &stage.dist, shares, tone, style));
        let Some(actor) = stage.stage.actor() else { continue };
        for part in &stage.parts {
            if part.time_share.abs() < FAINT && part.fluctuation_share.abs() < FAINT {
                continue;
            }
            let tone = if blamed && vm.blamed_state() == Some(part.state) { Tone::Bad } else { Tone::Faint };
            let mut row = vec![
                Cell::from(format!("  {}", part.state.name(actor))).tone(tone),
                Cell::right(duration(part.mean)).tone(tone),
            ];
            row.push(Cell::right(duration(part.p50 as f64)).tone(tone));
            row.extend(["", ""].map(Cell::from));
            row.extend(bar_cells(part.time_share, part.fluctuation_share, tone, style));
            table.row(row);
        }
    }
    table.lines(style)
}

/// The head of a table of durations and shares.
pub(super) fn head(first: &str, time: &str, fluctuation: &str) -> Vec<Cell> {
    let cell = |(i, text): (usize, &str)| {
        let cell = if (1..=4).contains(&i) { Cell::right(text) } else { text.into() };
        cell.tone(Tone::Faint)
    };
    [first, "mean", "p50", "p99", "max", time, fluctuation].into_iter().enumerate().map(cell).collect()
}

/// The figures of a distribution, in one line.
pub(super) fn figures(d: &Dist) -> String {
    let [p50, p90, p99, max] = [d.p50, d.p90, d.p99, d.max].map(|ns| duration(ns as f64));
    format!("p50 {p50}  p90 {p90}  p99 {p99}  max {max}  mean {}", duration(d.mean))
}

/// A stage: its figures, and its shares of the time and of the fluctuation.
pub(super) fn row(name: &str, d: &Dist, shares: [f64; 2], tone: Tone, style: &Style) -> Vec<Cell> {
    let mut row = vec![Cell::from(name).tone(tone), Cell::right(duration(d.mean))];
    row.extend([d.p50, d.p99, d.max].map(|ns| Cell::right(duration(ns as f64))));
    row.extend(bar_cells(shares[0], shares[1], tone, style));
    row
}

/// Two shares, each with its bar.
pub(super) fn bar_cells(time: f64, fluctuation: f64, tone: Tone, style: &Style) -> Vec<Cell> {
    let cell = |share: f64| Cell::from(format!("{:>6} {}", percent(share), bar(share, BAR, style)));
    vec![cell(time).tone(tone), cell(fluctuation).tone(tone)]
}

/// A bar of `share` of `width` columns; none below 0. With Unicode it has a resolution of one eighth of a column.
pub(crate) fn bar(share: f64, width: usize, style: &Style) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    if style.unicode {
        let eighths = (share * width as f64 * 8.0).round() as usize;
        "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
    } else {
        "#".repeat((share * width as f64).round() as usize)
    }
}

/// Packets in one direction, for a report without requests.
pub(super) fn directions(vm: &VmReport, style: &Style) -> Vec<String> {
    let mut lines = Vec::new();
    for (title, direction) in [("toward the guest", &vm.inbound), ("from the guest", &vm.outbound)] {
        if direction.packets > 0 || direction.incomplete > 0 {
            lines.push(String::new());
            lines.extend(one_direction(title, direction, style));
        }
    }
    lines
}

fn one_direction(title: &str, direction: &DirectionReport, style: &Style) -> Vec<String> {
    let mut head = format!("{title}: {} followed", count(direction.packets, "packet"));
    if direction.incomplete > 0 {
        head += &format!(", {} with a point missing", direction.incomplete);
    }
    let mut table = Table::indented(2);
    if !direction.stages.is_empty() {
        let head = ["stage", "mean", "p50", "p90", "p99", "max"];
        let cell = |(i, t): (usize, &str)| if i == 0 { t.into() } else { Cell::right(t) };
        table.row(head.into_iter().enumerate().map(|c| cell(c).tone(Tone::Faint)));
    }
    for (stage, d) in &direction.stages {
        let mut row = vec![Cell::from(stage.name()), Cell::right(duration(d.mean))];
        row.extend([d.p50, d.p90, d.p99, d.max].map(|v| Cell::right(duration(v as f64))));
        table.row(row);
    }
    let mut lines = vec![head];
    lines.extend(table.lines(style));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        let unicode = Style { unicode: true, colour: false };
        assert_eq!(bar(0.5, 4, &Style::PLAIN), "##");
        assert_eq!(bar(0.53125, 4, &unicode), "██▏");
        assert_eq!((bar(-0.3, 4, &unicode).as_str(), bar(f64::NAN, 4, &unicode).as_str()), ("", ""));
        assert_eq!(bar(7.0, 4, &Style::PLAIN), "####");
    }
}
