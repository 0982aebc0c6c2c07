//! The slowest requests, one line each: how long each was in which stage.

use super::WIDTH;
use crate::terminal::{Style, Tone};
use crate::units::duration;
use teiji_model::report::{Request, VmReport};
use teiji_model::stage::{Stage, TABLE, ThreadState};

/// The width of the slowest request's bar, columns.
const BAR: usize = 46;

/// The legend and a line for each of the slowest requests.
pub(super) fn lines(vm: &VmReport, style: &Style) -> Vec<String> {
    let Some(most) = vm.slowest.iter().map(|r| r.total).max() else { return Vec::new() };
    let mut lines = vec![String::new(), style.paint(Tone::Faint, "slowest requests")];
    let mut used = [false; Stage::COUNT];
    for request in &vm.slowest {
        let width = (BAR as f64 * request.total as f64 / most.max(1) as f64).round() as usize;
        let mut bar = String::new();
        for (stage, n) in cells(request, width.max(1)) {
            used[stage as usize] |= n > 0;
            bar += &style.paint(Tone::Stage(stage), &stage.about().letter.to_string().repeat(n));
        }
        let pad = BAR.saturating_sub(width.max(1));
        let why = dominant(request).unwrap_or_default();
        lines.push(format!("{:>8}  {bar}{:pad$}  {why}", style.ascii(&duration(request.total as f64)), ""));
    }
    let mut line = " ".repeat(8);
    let mut width = 8;
    for about in TABLE.iter().filter(|about| used[about.stage as usize]) {
        if width + 4 + about.name.len() > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(8)));
            width = 8;
        }
        width += 4 + about.name.len();
        let letter = style.paint(Tone::Stage(about.stage), &about.letter.to_string());
        line += &format!("  {letter} {}", about.name);
    }
    lines.push(line);
    lines
}

/// Divides `width` columns among a request's stages by their lengths, so that none is lost: each stage gets the whole
/// columns that fit, and those with the greatest remainders get one more.
pub fn cells(request: &Request, width: usize) -> Vec<(Stage, usize)> {
    let total: u128 = request.stages.iter().map(|s| u128::from(s.ns)).sum::<u128>().max(1);
    let exact = |ns: u64| u128::from(ns) * width as u128;
    let mut cells: Vec<(Stage, usize)> =
        request.stages.iter().map(|s| (s.stage, (exact(s.ns) / total) as usize)).collect();
    let used: usize = cells.iter().map(|c| c.1).sum();
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(exact(request.stages[i].ns) % total));
    for i in order.into_iter().take(width.saturating_sub(used)) {
        cells[i].1 += 1;
    }
    cells
}

/// The longest stage, and what its thread was doing for most of that time.
pub fn dominant(request: &Request) -> Option<String> {
    let longest = request.stages.iter().max_by_key(|s| s.ns)?;
    let state = longest.split.and_then(|split| {
        let state = ThreadState::ALL.into_iter().max_by_key(|s| split.get(*s))?;
        (split.get(state) * 2 > longest.ns).then_some(state)
    });
    let mut text = format!("{} {}", longest.stage.name(), duration(longest.ns as f64));
    if let (Some(state), Some(actor)) = (state, longest.stage.actor()) {
        text += &format!(", {}", state.name(actor));
    }
    Some(text)
}
