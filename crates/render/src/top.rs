//! The picture of a trace that goes on, for a terminal: what `teiji top` shows.
//!
//! [`lines`] is a function of the figures, of what the reader has chosen and of the size of the terminal. It draws nothing
//! itself.

use crate::terminal::{Style, Tone, columns, pad, printable, shorten};
use crate::text::dominant;
use crate::units::{duration, percent};
use teiji_model::report::{Dist, Request, VmReport};
use teiji_model::snapshot::{Recent, Snapshot};
use teiji_model::stage::{Stage, TABLE};

/// What the VMs are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The 99th percentile of the last interval, longest first.
    #[default]
    P99,
    /// Requests per second in the last interval, most first.
    Rate,
    /// The longest response time of the trace, longest first.
    Max,
    /// The name.
    Name,
}

impl Sort {
    /// The next order.
    pub fn next(self) -> Sort {
        match self {
            Sort::P99 => Sort::Rate,
            Sort::Rate => Sort::Max,
            Sort::Max => Sort::Name,
            Sort::Name => Sort::P99,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::P99 => "p99",
            Sort::Rate => "requests/s",
            Sort::Max => "max",
            Sort::Name => "name",
        }
    }
}

/// What the reader has chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The VM that is shown in detail, by its process id; the first one if there is no such VM.
    pub chosen: Option<u32>,
    /// The order of the VMs.
    pub sort: Sort,
    /// The picture stands still, while the trace goes on.
    pub paused: bool,
}

impl View {
    /// Chooses the VM so many rows further down (or up, if negative).
    pub fn go(&mut self, snapshot: &Snapshot, rows: isize) {
        let order = order(snapshot, self.sort);
        let at = self.place(snapshot, &order).saturating_add_signed(rows).min(order.len().saturating_sub(1));
        self.chosen = order.get(at).map(|vm| snapshot.report.vms[*vm].pid);
    }

    /// The row of the VM that is chosen.
    fn place(&self, snapshot: &Snapshot, order: &[usize]) -> usize {
        order.iter().position(|vm| Some(snapshot.report.vms[*vm].pid) == self.chosen).unwrap_or(0)
    }
}

/// Nothing was completed.
const NONE: Recent = Recent { complete: 0, total: None, stages: [0; Stage::COUNT], slowest: None };

fn recent(snapshot: &Snapshot, vm: usize) -> &Recent {
    snapshot.recent.get(vm).unwrap_or(&NONE)
}

/// The VMs by index, in the order of the rows.
fn order(snapshot: &Snapshot, sort: Sort) -> Vec<usize> {
    let vms = &snapshot.report.vms;
    let mut order: Vec<usize> = (0..vms.len()).collect();
    let key = |vm: usize| match sort {
        Sort::P99 => recent(snapshot, vm).total.map_or(0, |d| d.p99),
        Sort::Rate => recent(snapshot, vm).complete,
        Sort::Max => vms[vm].total.map_or(0, |d| d.max),
        Sort::Name => 0,
    };
    order.sort_by(|a, b| (key(*b), &vms[*a].name, vms[*a].pid).cmp(&(key(*a), &vms[*b].name, vms[*b].pid)));
    order
}

/// The lines of a terminal with so many columns and rows. `before` is the snapshot before this one.
pub fn lines(
    now: &Snapshot,
    before: Option<&Snapshot>,
    view: &View,
    (width, height): (usize, usize),
    style: &Style,
) -> Vec<String> {
    let draw = Draw { now, before, width, style };
    let order = order(now, view.sort);
    let place = view.place(now, &order);
    let mut lines = vec![draw.heading(view), draw.lost()];
    lines.retain(|line| !line.is_empty());
    lines.push(String::new());
    lines.push(draw.columns());
    // Half of the room at most is for the list; the chosen VM is always in it.
    let room = (height.saturating_sub(lines.len() + 1) / 2).clamp(1, order.len().max(1));
    let first = (place + 1).saturating_sub(room);
    for (i, vm) in order.iter().enumerate().skip(first).take(room) {
        lines.push(draw.row(*vm, i == place));
    }
    if order.len() > room {
        lines.push(draw.faint(&format!("  {} of {} VMs", room, order.len())));
    }
    if let Some(vm) = order.get(place) {
        lines.push(String::new());
        lines.extend(draw.details(*vm));
    }
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), String::new());
    let arrows = if style.unicode { "↑↓" } else { "up/down" };
    lines.push(draw.faint(&format!(
        "q quit  {arrows} choose  p {}  s sort: {}",
        if view.paused { "go on" } else { "pause" },
        view.sort.name()
    )));
    lines.truncate(height);
    lines
}

struct Draw<'a> {
    now: &'a Snapshot,
    before: Option<&'a Snapshot>,
    width: usize,
    style: &'a Style,
}

/// Columns of the bar in a row, and how many it has at least.
const BAR: usize = 40;
const LEAST_BAR: usize = 8;
/// Columns of a VM's name.
const NAME: usize = 12;

impl Draw<'_> {
    /// Plain text, cut to the width, in a tone.
    fn paint(&self, tone: Tone, text: &str) -> String {
        self.style.paint(tone, &shorten(&self.style.ascii(text), self.width))
    }

    fn faint(&self, text: &str) -> String {
        self.paint(Tone::Faint, text)
    }

    fn heading(&self, view: &View) -> String {
        let report = &self.now.report;
        let flow = match printable(&report.meta.watch.flow_text) {
            flow if flow.is_empty() => "all packets".to_owned(),
            flow => flow,
        };
        let passed = report.counters.ended.saturating_sub(report.meta.started);
        let paused = if view.paused { "PAUSED  " } else { "" };
        let text = format!(
            "{paused}{} · {} on {} · last {}",
            shorten(&flow, 30),
            duration(passed as f64),
            shorten(&printable(&report.meta.host), 20),
            duration(self.now.interval as f64)
        );
        self.paint(if view.paused { Tone::Bad } else { Tone::Strong }, &text)
    }

    /// What was lost in all and since the last picture; empty if nothing was.
    fn lost(&self) -> String {
        let lost = self.now.report.lost_or_missed();
        if lost == 0 {
            return String::new();
        }
        let new = lost.saturating_sub(self.before.map_or(0, |before| before.report.lost_or_missed()));
        self.paint(
            Tone::Bad,
            &format!(
                "{lost} events lost, missed or late, {new} of them now: requests of that time are left out"
            ),
        )
    }

    fn columns(&self) -> String {
        let text = format!(
            "  {} {:>8} {:>8} {:>8} {:>8}  {:>8} {:>8} {:>6}  {}",
            pad("VM", NAME),
            "req/s",
            "p50",
            "p99",
            "max",
            "all p99",
            "all max",
            "drops",
            "time by stage"
        );
        self.faint(&text)
    }

    /// A VM in one line: the last interval, the whole trace, and where the time went in the interval.
    fn row(&self, vm: usize, chosen: bool) -> String {
        let (of, recent) = (&self.now.report.vms[vm], recent(self.now, vm));
        let time = |dist: Option<Dist>, of: fn(&Dist) -> u64| {
            let text = dist.map_or_else(|| "-".to_owned(), |d| self.style.ascii(&duration(of(&d) as f64)));
            format!("{:>8}", text)
        };
        let figures = format!(
            "{} {:>8} {} {} {}  {} {} {:>6}  ",
            pad(&self.style.ascii(&shorten(&printable(&of.name), NAME)), NAME),
            rate(recent.complete, self.now.interval),
            time(recent.total, |d| d.p50),
            time(recent.total, |d| d.p99),
            time(recent.total, |d| d.max),
            time(of.total, |d| d.p99),
            time(of.total, |d| d.max),
            dropped(of),
        );
        let mark = if chosen { "> " } else { "  " };
        let text = shorten(&format!("{mark}{figures}"), self.width);
        let tone = if chosen { Tone::Strong } else { Tone::Plain };
        let left = self.width.saturating_sub(columns(&text));
        let bar = if left >= LEAST_BAR { self.bar(&recent.stages, left.min(BAR)) } else { String::new() };
        self.style.paint(tone, &text) + &bar
    }

    /// A bar of the letters of the stages, as long as their shares.
    fn bar(&self, stages: &[u64; Stage::COUNT], width: usize) -> String {
        let total: u128 = stages.iter().map(|ns| u128::from(*ns)).sum();
        if total == 0 {
            return " ".repeat(width);
        }
        // The ends are rounded, not the lengths: so they fit.
        let (mut line, mut sum, mut drawn) = (String::new(), 0u128, 0);
        for (about, ns) in TABLE.iter().zip(stages) {
            sum += u128::from(*ns);
            let end = ((sum * width as u128 * 2 + total) / (total * 2)) as usize;
            let part = about.letter.to_string().repeat(end - drawn);
            line += &self.style.paint(Tone::Stage(about.stage), &part);
            drawn = end;
        }
        line
    }

    /// One VM.
    fn details(&self, vm: usize) -> Vec<String> {
        let (of, recent) = (&self.now.report.vms[vm], recent(self.now, vm));
        let before = self.before.and_then(|b| b.report.vms.iter().find(|other| other.pid == of.pid));
        let r = &of.requests;
        let mut counts = format!("{} seen, {} complete", r.seen, r.complete);
        for (n, what) in r.left_out() {
            counts += &format!(", {n} {what}");
        }
        let seen = r.seen.saturating_sub(before.map_or(0, |b| b.requests.seen));
        let ended = of.ended.map(|ns| format!("  ended after {}", duration(ns as f64))).unwrap_or_default();
        let name = shorten(&printable(&of.name), 30);
        let mut lines = vec![
            self.paint(Tone::Strong, &format!("{name}  pid {}{ended}", of.pid)),
            self.paint(Tone::Plain, &format!("requests  {counts}  ({seen} seen now)")),
            self.paint(Tone::Strong, &format!("=> {}", printable(&of.verdict.headline))),
            String::new(),
            self.faint(&format!(
                "  {:<12} {:>10} {:>7}  {:>10} {:>10} {:>10}",
                "stage", "mean now", "share", "all p50", "all p99", "all max"
            )),
        ];
        let total: u64 = recent.stages.iter().fold(0, |a, ns| a.saturating_add(*ns));
        for (about, ns) in TABLE.iter().zip(recent.stages) {
            let all = of.stages.iter().find(|s| s.stage == about.stage).map(|s| s.dist).unwrap_or_default();
            if ns == 0 && all.max == 0 {
                continue;
            }
            let share = if total > 0 { ns as f64 / total as f64 } else { 0.0 };
            let mean = if recent.complete > 0 {
                duration(ns as f64 / recent.complete as f64)
            } else {
                "-".to_owned()
            };
            let figures = format!(
                " {:<11} {:>10} {:>7}  {:>10} {:>10} {:>10}",
                about.name,
                mean,
                percent(share),
                duration(all.p50 as f64),
                duration(all.p99 as f64),
                duration(all.max as f64)
            );
            let blamed = of.blamed_stage() == Some(about.stage);
            let letter = self.style.paint(Tone::Stage(about.stage), &about.letter.to_string());
            let text = shorten(&self.style.ascii(&figures), self.width.saturating_sub(2));
            let tone = if blamed { Tone::Bad } else { Tone::Plain };
            // Without room for the figures there is none for the letter.
            if self.width > 2 {
                lines.push(format!(" {letter}{}", self.style.paint(tone, &text)));
            }
        }
        lines.push(String::new());
        lines.extend(self.slowest("slowest now", recent.slowest.as_ref()));
        lines.extend(self.slowest("of the trace", of.slowest.first()));
        lines
    }

    fn slowest(&self, what: &str, request: Option<&Request>) -> Option<String> {
        let request = request?;
        let mut stages = [0; Stage::COUNT];
        request.stages.iter().for_each(|s| stages[s.stage as usize] = s.ns);
        let text = format!("{} {:>8}  ", pad(what, 13), self.style.ascii(&duration(request.total as f64)));
        let why = self.style.ascii(&format!("  {}", dominant(request).unwrap_or_default()));
        let text = shorten(&text, self.width);
        let left = self.width.saturating_sub(columns(&text));
        let bar = (left / 2).min(40);
        let why = if left - bar > 3 { shorten(&why, left - bar) } else { String::new() };
        Some(format!("{text}{}{why}", self.bar(&stages, bar)))
    }
}

/// Requests of a VM that the host has dropped, or whose responses it has.
fn dropped(vm: &VmReport) -> u64 {
    vm.left_out.iter().filter(|l| l.reason.is_drop()).fold(0, |a, l| a.saturating_add(l.count))
}

/// Requests per second, with at most three digits below 1,000.
fn rate(requests: u64, interval: u64) -> String {
    if interval == 0 {
        return "-".to_owned();
    }
    let rate = requests as f64 * 1e9 / interval as f64;
    let decimals = usize::from(rate < 99.95 && rate > 0.0);
    format!("{rate:.decimals$}")
}
