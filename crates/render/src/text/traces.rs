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
        rows.row(vec![
            Cell::right(trace.number.to_string()),
            Cell::from(state).tone(tone),
            format!("{} ago", age(now, trace.started)).into(),
            style.ascii(&shorten(&printable(&vms), 28)).into(),
            style.ascii(&shorten(&printable(flow), 34)).into(),
        ]);
    }
    rows.lines(style).join("\n") + "\n"
}
