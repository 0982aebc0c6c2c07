//! The traces that an agent runs or has run.

use super::status::age;
use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone, printable, shorten};
use teiji_model::status::TraceStatus;

/// As text of at most 100 columns; `now` in seconds since 1970.
pub fn table(traces: &[TraceStatus], now: u64, style: &Style) -> String {
    if traces.is_empty() {
        return "the agent runs no trace and keeps none: `teiji trace --detach` starts one\n".to_owned();
    }
    let mut rows = Table::indented(0);
    for trace in traces {
        let (state, tone) = match (trace.running, trace.complete) {
            (true, _) => ("runs", Tone::Strong),
            (false, true) => ("complete", Tone::Plain),
            (false, false) => ("failed", Tone::Bad),
        };
        let vms = if trace.vms.is_empty() { "all VMs".to_owned() } else { trace.vms.join(", ") };
        let flow = if trace.flow.is_empty() { "all packets" } else { &trace.flow };
        let started = format!("{} ago", age(now, trace.started));
        let [started, vms, flow] = match trace.damaged {
            true => ["not known".to_owned(), String::new(), String::new()],
            false => [started, vms, flow.to_owned()],
        };
        rows.row(vec![
            Cell::right(trace.number.to_string()),
            Cell::from(state).tone(tone),
            started.into(),
            style.ascii(&shorten(&printable(&vms), 28)).into(),
            style.ascii(&shorten(&printable(&flow), 34)).into(),
        ]);
    }
    let why = |trace: &TraceStatus| {
        let said = trace.failed.as_deref().filter(|said| !said.is_empty())?;
        let what = if trace.damaged { ":" } else { " said last:" };
        Some(style.ascii(&shorten(&format!("trace {}{what} {}", trace.number, printable(said)), 100)))
    };
    let lines = rows.lines(style).into_iter().chain(traces.iter().filter_map(why));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_trace_whose_file_is_damaged_no_more_is_said_than_is_known() {
        let why = Some("/s/traces/4.json cannot be read: EOF".to_owned());
        let trace =
            TraceStatus { number: 4, running: true, damaged: true, failed: why, ..TraceStatus::default() };
        let text = table(&[trace], 2_000_000_000, &Style::PLAIN);
        assert!(
            text.contains("4  runs") && text.contains("trace 4: /s/traces/4.json cannot be read"),
            "{text}"
        );
        assert!(!text.contains("ago") && !text.contains("all ") && !text.contains("said last"), "{text}");
    }

    #[test]
    fn a_trace_that_has_failed_says_why() {
        let failed = |number, said: &str| TraceStatus {
            number,
            failed: Some(said.to_owned()),
            ..TraceStatus::default()
        };
        let complete = TraceStatus { number: 3, complete: true, ..TraceStatus::default() };
        let traces =
            [failed(1, "no space left\u{1b}[2J"), failed(2, ""), complete, failed(4, &"x".repeat(1000))];
        let text = table(&traces, 10, &Style::PLAIN);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 6 && lines.iter().all(|line| line.len() <= 100), "{text}");
        assert!(
            lines[4].starts_with("trace 1 said last: no space left") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert!(lines[5].starts_with("trace 4 said last: xxx"), "{text}");
    }
}
