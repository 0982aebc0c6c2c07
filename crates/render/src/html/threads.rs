//! The threads of requests as SVG: a row for each thread, what it did, and who woke it (figure 12 of paper P0).

use super::axis;
use super::frame::{Frame, both, fine};
use crate::text::threads as text;
use crate::units::duration;
use maud::{Markup, html};
use teiji_model::report::{Request, VmReport};
use teiji_model::stage::ThreadState;
use teiji_model::threads::{RequestThreads, ThreadRole, ThreadsReport, WokenBy};

const TOP: f64 = 22.0;
const BAR: f64 = 16.0;
/// Room to the right, for half of the last tick's text.
const RIGHT: f64 = 24.0;

/// The figures of all requests, and the threads of those that are shown one by one.
pub(super) fn threads(vm: &VmReport, all: &ThreadsReport) -> Markup {
    html! {
        h3 { "Threads: from woken to running" }
        p.soft { (text::title(all)) }
        div.scroll { table {
            tr {
                th { "thread" } th.roomy { "starts" } th { "for each request" } th { "p50" } th { "p99" } th { "max" }
                th.text { "woken by" }
            }
            @for role in &all.roles {
                @let [starts, each, p50, p99, max, by] = text::figures(role, all);
                tr {
                    td title=(role.role.meaning()) { (role.role.name()) }
                    td.roomy { (starts) }
                    @for figure in [each, p50, p99, max] { td { (figure) } }
                    td.text { (by) }
                }
            }
        } }
        @for (what, request) in text::shown(vm) {
            @if let Some(threads) = &request.threads {
                h3 { (capital(&text::heading(what, request, vm))) }
                (both(|frame| chart(frame, request, threads)))
            }
        }
        (legend())
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// The class of a state, which has its colour.
const fn class(state: Option<ThreadState>) -> &'static str {
    match state {
        Some(ThreadState::Guest) => "t-guest",
        Some(ThreadState::Poll) => "t-poll",
        Some(ThreadState::Asleep) => "t-asleep",
        Some(ThreadState::Ready) => "t-ready",
        Some(ThreadState::Run) => "t-run",
        None => "t-none",
    }
}

fn legend() -> Markup {
    html! {
        div.legend {
            @for state in ThreadState::ALL.map(Some) {
                span { i class=(class(state)) {} (text::state(state)) }
            }
            span { i class="t-none" {} "not known" }
            span { "○ woken, by the thread at the other end of the line if there is one" }
        }
    }
}

/// A row for each thread: its name above it on a narrow screen, where there is no room to the left.
fn chart(frame: Frame, request: &Request, threads: &RequestThreads) -> Markup {
    let narrow = frame.is_narrow();
    let (left, step, above) = if narrow { (4.0, 40.0, 17.0) } else { (232.0, 30.0, 4.0) };
    let width = frame.w - left - RIGHT;
    let total = request.total.max(1) as f64;
    let x = |ts: u64| left + ts.saturating_sub(request.start).min(request.total) as f64 / total * width;
    let y = |row: usize| TOP + step * row as f64 + above;
    let height = TOP + step * threads.threads.len() as f64 + 6.0;
    let ticks = axis::linear(total, if narrow { 3 } else { 6 });
    html! {
        svg viewBox={ "0 0 " (frame.w) " " (fine(height)) } role="img" {
            @for tick in &ticks {
                @let at = fine(left + tick / total * width);
                line.grid x1=(at) x2=(at) y1=(TOP - 6.0) y2=(fine(height)) {}
                text.soft x=(at) y="12" text-anchor=(if *tick == 0.0 && narrow { "start" } else { "middle" }) {
                    (axis::round(*tick))
                }
            }
            @for (row, thread) in threads.threads.iter().enumerate() {
                @let label = text::thread(thread);
                @if narrow {
                    text x=(left) y=(fine(y(row) - 4.0)) { (label) }
                } @else {
                    text x=(left - 8.0) y=(fine(y(row) + 13.0)) text-anchor="end" { (label) }
                }
                @for span in &thread.spans {
                    @let (from, to) = (x(span.from), x(span.to));
                    rect class=(class(span.state)) x=(fine(from)) y=(fine(y(row))) width=(format!("{:.2}", (to - from).max(0.3)))
                        height=(BAR) {
                        title {
                            (label) ": " (text::state(span.state)) " for "
                            (duration(span.to.saturating_sub(span.from) as f64)) ", "
                            (duration(span.from.saturating_sub(request.start) as f64)) " after the request came"
                        }
                    }
                }
            }
            // Above the bars.
            @for (row, thread) in threads.threads.iter().enumerate() {
                @for start in &thread.starts {
                    @let at = start.woken.unwrap_or(start.running);
                    @let from = waker(threads, row, &start.by);
                    g.woken {
                        title { (text::thread(thread)) ", " (start.role.name()) ": " (text::told(start)) }
                        @if let Some(from) = from {
                            @let begin = if from < row { y(from) + BAR } else { y(from) };
                            @let end = if from < row { y(row) } else { y(row) + BAR };
                            line x1=(fine(x(at))) x2=(fine(x(at))) y1=(fine(begin)) y2=(fine(end)) {}
                        }
                        circle cx=(fine(x(at))) cy=(fine(y(row) + BAR / 2.0)) r="3.5" {}
                    }
                }
            }
        }
    }
}

/// The row of the thread that woke another one, if it has one.
fn waker(threads: &RequestThreads, row: usize, by: &WokenBy) -> Option<usize> {
    let is_guests = |row: usize| threads.threads[row].roles.contains(&ThreadRole::Reader);
    let WokenBy::Thread { tid, .. } = by else { return None };
    // Ids of the guest's threads are not the host's.
    let same = |other: usize| threads.threads[other].tid == *tid && is_guests(other) == is_guests(row);
    (0..threads.threads.len()).find(|other| *other != row && same(*other))
}
