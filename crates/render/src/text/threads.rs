//! The threads that take part in requests: when each was started, by whom, and what it did (figure 12 of paper P0).

use super::{WIDTH, wrap};
use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, pad, printable, shorten};
use crate::units::{count, duration, percent};
use teiji_model::report::{Request, VmReport};
use teiji_model::stage::ThreadState;
use teiji_model::threads::{
    RequestThread, RequestThreads, RoleStarts, ThreadRole, ThreadStart, ThreadsReport, WokenBy,
};

/// The width of a thread's name, and of what it did, columns.
const NAME: usize = 32;
const BAR: usize = WIDTH - NAME - 4;
/// The most starts of a request that are listed.
const MOST: usize = 12;

/// The figures of all requests, and what the threads of the requests did that a report shows one by one.
pub(super) fn lines(vm: &VmReport, style: &Style) -> Vec<String> {
    let Some(threads) = &vm.threads else { return Vec::new() };
    let mut lines = vec![String::new()];
    lines.extend(wrap(&title(threads), WIDTH));
    let mut table = Table::default();
    let heads = ["starts", "each", "p50", "p99", "max"].map(Cell::right);
    let tone = |cell: Cell| cell.tone(Tone::Faint);
    table
        .row([Cell::from("woken → running")].into_iter().chain(heads).chain(["  woken by".into()]).map(tone));
    for role in &threads.roles {
        table.row(row(role, threads));
    }
    lines.extend(table.lines(style));
    for (what, request) in shown(vm) {
        if let Some(threads) = &request.threads {
            lines.push(String::new());
            lines.extend(one(&heading(what, request, vm), request, threads, style));
        }
    }
    lines
}

/// The requests whose threads are shown, each with what it is.
pub(crate) fn shown(vm: &VmReport) -> impl Iterator<Item = (&'static str, &Request)> {
    let all = [
        ("the chosen request", vm.chosen.as_ref()),
        ("the slowest request", vm.slowest.first()),
        ("a typical request", vm.typical.as_ref()),
    ];
    all.into_iter().filter_map(|(what, request)| Some((what, request?)))
}

/// What is told of all requests.
pub(crate) fn title(threads: &ThreadsReport) -> String {
    let mut text =
        format!("thread starts that a request waits for, of {}", count(threads.requests, "request"));
    if let Some(n) = threads.per_request {
        text += &format!(": p50 {}  p99 {}  max {}", n.p50, n.p99, n.max);
    }
    if threads.unknown > 0 {
        text += &format!("; not known for {} others", threads.unknown);
    }
    if let Some(d) = threads.to_application {
        let [p50, p99, max] = [d.p50, d.p99, d.max].map(|ns| duration(ns as f64));
        text +=
            &format!("; taken off the tap → application runs, if it slept: p50 {p50}  p99 {p99}  max {max}");
    }
    text
}

/// The figures of a role: starts, starts for each request, median, 99th percentile and maximum of the wake-up, wakers.
pub(crate) fn figures(role: &RoleStarts, all: &ThreadsReport) -> [String; 6] {
    let [p50, p99, max] = match role.wake_up {
        Some(d) => [d.p50, d.p99, d.max].map(|ns| duration(ns as f64)),
        None => Default::default(),
    };
    let woken = role.wake_up.map_or(0, |d| d.count).max(1);
    let by = |(by, n): &(WokenBy, u64)| format!("{} {}", waker(by), percent(*n as f64 / woken as f64));
    let each = format!("{:.2}", role.starts as f64 / all.requests.max(1) as f64);
    let by = role.woken_by.iter().take(3).map(by).collect::<Vec<_>>().join(", ");
    [role.starts.to_string(), each, p50, p99, max, by]
}

fn row(role: &RoleStarts, all: &ThreadsReport) -> Vec<Cell> {
    let [starts, each, p50, p99, max, by] = figures(role, all);
    let mut cells = vec![Cell::from(role.role.name())];
    cells.extend([starts, each, p50, p99, max].map(Cell::right));
    cells.push(Cell::from(format!("  {}", shorten(&by, 34))));
    cells
}

/// Who woke a thread.
pub(crate) fn waker(by: &WokenBy) -> String {
    match by {
        WokenBy::Unknown => "unknown".to_owned(),
        WokenBy::Interrupt => "an interrupt".to_owned(),
        WokenBy::Thread { tid, name } if name.is_empty() => format!("thread {tid}"),
        WokenBy::Thread { tid, name } => format!("{} ({tid})", printable(name)),
    }
}

/// A thread of a request.
pub(crate) fn thread(thread: &RequestThread) -> String {
    let has = |role| thread.roles.contains(&role);
    match thread.vcpu {
        Some(vcpu) => {
            let does = match (has(ThreadRole::InterruptVcpu), has(ThreadRole::ApplicationVcpu)) {
                (true, true) => "interrupt, application",
                (true, false) => "interrupt",
                _ => "application",
            };
            format!("vCPU {vcpu} ({does})")
        }
        None if has(ThreadRole::Reader) => {
            let name = if thread.name.is_empty() { "thread".to_owned() } else { printable(&thread.name) };
            format!("guest: {} {}", shorten(&name, 15), thread.tid)
        }
        None if has(ThreadRole::Receiver) || has(ThreadRole::Sender) => {
            format!("vhost worker {}", thread.tid)
        }
        None => "vCPU (not known)".to_owned(),
    }
}

/// When a request is shown, and what it is.
pub(crate) fn heading(what: &str, request: &Request, vm: &VmReport) -> String {
    let mut text = format!("threads of {what}: {}", duration(request.total as f64));
    if let Some(total) = vm.total.filter(|_| what.starts_with("a typical")) {
        text += &format!(" (median {})", duration(total.p50 as f64));
    }
    text
}

/// How a start came about, after its thread and role.
pub(crate) fn told(start: &ThreadStart) -> String {
    match start.woken {
        Some(woken) => {
            let ns = start.running.saturating_sub(woken) as f64;
            format!("woken by {}, ran {} later", waker(&start.by), duration(ns))
        }
        None => "got its CPU back, or its waking was not seen".to_owned(),
    }
}

/// What a thread does in a state.
pub(crate) const fn state(state: Option<ThreadState>) -> &'static str {
    match state {
        Some(ThreadState::Guest) => "in guest",
        Some(ThreadState::Poll) => "polling",
        Some(ThreadState::Asleep) => "asleep",
        Some(ThreadState::Ready) => "waiting for a CPU",
        Some(ThreadState::Run) => "running",
        None => "not known",
    }
}

const fn letter(state: Option<ThreadState>) -> char {
    match state {
        Some(ThreadState::Guest) => '#',
        Some(ThreadState::Poll) => '~',
        Some(ThreadState::Asleep) => '.',
        Some(ThreadState::Ready) => 'w',
        Some(ThreadState::Run) => '=',
        None => ' ',
    }
}

fn one(heading: &str, request: &Request, threads: &RequestThreads, style: &Style) -> Vec<String> {
    let mut lines = vec![style.paint(Tone::Faint, &style.ascii(heading))];
    let mut used: Vec<Option<ThreadState>> = Vec::new();
    for row in &threads.threads {
        let bar: String = cells(row, request).into_iter().map(letter).collect();
        used.extend(row.spans.iter().map(|s| s.state));
        lines.push(format!("{} |{bar}|", pad(&style.ascii(&shorten(&thread(row), NAME)), NAME)));
    }
    let order = ThreadState::ALL.map(Some);
    let legend: Vec<String> = order
        .into_iter()
        .filter(|s| used.contains(s))
        .map(|s| format!("{} {}", letter(s), state(s)))
        .collect();
    let note = legend.join("  ");
    lines.push(style.paint(Tone::Faint, &format!("{}  {note}", " ".repeat(NAME))));
    let mut starts: Vec<(&RequestThread, &ThreadStart)> =
        threads.threads.iter().flat_map(|t| t.starts.iter().map(move |s| (t, s))).collect();
    starts.sort_by_key(|(_, start)| start.running);
    for (of, start) in starts.iter().take(MOST) {
        let at = duration(start.running.saturating_sub(request.start) as f64);
        let text = format!("{at:>9}  {}: {}", shorten(&thread(of), NAME), told(start));
        lines.push(shorten(&style.ascii(&text), WIDTH));
    }
    if starts.len() > MOST {
        lines.push(format!("           and {} more", starts.len() - MOST));
    }
    lines
}

/// What a thread did for most of each part of a request.
fn cells(thread: &RequestThread, request: &Request) -> Vec<Option<ThreadState>> {
    let edge = |i: usize| request.start + (u128::from(request.total) * i as u128 / BAR as u128) as u64;
    let cell = |i: usize| {
        let (from, to) = (edge(i), edge(i + 1));
        let mut spent = [0u64; ThreadState::COUNT];
        for span in thread.spans.iter().filter(|s| s.to > from && s.from < to) {
            if let Some(state) = span.state {
                spent[state as usize] += span.to.min(to) - span.from.max(from);
            }
        }
        let known: u64 = spent.iter().sum();
        let most = ThreadState::ALL.into_iter().max_by_key(|s| spent[*s as usize]);
        most.filter(|_| known > 0 && known * 2 >= to - from)
    };
    (0..BAR).map(cell).collect()
}
