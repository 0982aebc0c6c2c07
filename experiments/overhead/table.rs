//! The results as Markdown and CSV.

use super::costs::{Cost, added, hits};
use super::points::ALL;
use super::{Load, Measured, Sample, Scope, Tool, Trace};
use std::collections::BTreeMap;
use std::fmt::Write;

/// This project's traces in the first table.
const OWN: [(Tool, Scope); 7] = [
    (Tool::Teiji, Scope::Other),
    (Tool::Teiji, Scope::OtherAsked),
    (Tool::Teiji, Scope::Filtered),
    (Tool::Teiji, Scope::This),
    (Tool::Teiji, Scope::Asked),
    (Tool::Guest, Scope::Filtered),
    (Tool::Guest, Scope::This),
];

/// The tools that are compared.
const COMPARED: [Tool; 6] =
    [Tool::Teiji, Tool::Bpftrace, Tool::BpftraceMaps, Tool::TraceCmd, Tool::PerfRecord, Tool::PerfTrace];

/// What this project's programs add: a row for each trace, a column for each load.
pub fn own(costs: &[Cost]) -> String {
    let rows = OWN.iter().map(|(tool, scope)| Trace::of(*tool, *scope)).collect::<Vec<_>>();
    let head = "ns of virtual time that a trace adds (2 ns are one instruction)\n\n";
    head.to_owned() + &matrix(costs, &rows, &Load::ALL, |_| 1.0)
}

/// What each tool adds for each event at the points: a row for each tool, a column for each load.
pub fn compared(costs: &[Cost]) -> String {
    let mut t = String::new();
    for (scope, what) in [(Scope::This, "traced"), (Scope::Other, "of another VM, not traced")] {
        let rows: Vec<Trace> = COMPARED.iter().map(|tool| Trace::of(*tool, scope)).collect();
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            t,
            "ns of virtual time that each tool adds for each event at the points; events {what}\n\n"
        );
        t += &matrix(costs, &rows, &Load::HOST, |load| hits(costs, load));
        t.push('\n');
    }
    let counted: Vec<String> =
        Load::HOST.iter().map(|l| format!("{}: {:.1}", l.name(), hits(costs, *l))).collect();
    let _ = writeln!(
        t,
        "Events at the points for each operation, as ftrace counts them: {}.",
        counted.join("; ")
    );
    t
}

fn matrix(costs: &[Cost], rows: &[Trace], loads: &[Load], by: impl Fn(Load) -> f64) -> String {
    let names: Vec<&str> = loads.iter().map(|l| l.name()).collect();
    let mut t = format!("| trace | {} |\n| --- |{}\n", names.join(" | "), " --- |".repeat(loads.len()));
    let none = |load: &Load| {
        let first = costs.iter().find(|c| c.load == *load);
        first.map_or_else(String::new, |c| format!("{:.0}", c.without_ns / by(*load)))
    };
    let cells: Vec<String> = loads.iter().map(none).collect();
    let _ = writeln!(t, "| none: the operation itself | {} |", cells.join(" | "));
    for trace in rows {
        let cell = |load: &Load| match added(costs, *load, *trace) / by(*load) {
            ns if ns.is_nan() => String::new(),
            ns => format!("{ns:+.0}"),
        };
        let cells: Vec<String> = loads.iter().map(cell).collect();
        if cells.iter().any(|c| !c.is_empty()) {
            let _ = writeln!(t, "| {} | {} |", trace.name(), cells.join(" | "));
        }
    }
    t
}

/// How many events a real request has at each point, and what each tool adds for each of them.
pub fn of_a_request(mix: &BTreeMap<String, f64>, ns: &[(Tool, f64)]) -> String {
    let mut t = "Events of a real request, on the whole host, and ns of virtual time that each tool adds for each of those at \
                 the points that the loads above pass\n\n| point | events |\n| --- | --- |\n"
        .to_owned();
    for point in ALL {
        let _ = writeln!(t, "| {} | {:.1} |", point.name, mix.get(point.name).unwrap_or(&f64::NAN));
    }
    t += "\n| tool | ns for each event |\n| --- | --- |\n";
    for (tool, ns) in ns {
        let _ = writeln!(t, "| {} | {ns:+.0} |", tool.name());
    }
    t
}

/// Tools that did not work, and why.
pub fn not_measured(measured: &Measured) -> String {
    let mut t = String::new();
    for (trace, why) in &measured.not_measured {
        let line = format!("Not measured: {}, {} points: {why}\n", trace.name(), trace.points);
        if !t.contains(&line) {
            t += &line;
        }
    }
    t
}

/// Every window, as CSV.
pub fn csv(samples: &[Sample]) -> String {
    let mut t = "load,tool,traced,points,round,ns,events\n".to_owned();
    for s in samples {
        let _ = writeln!(
            t,
            "{},{},{},{},{},{:.1},{}",
            s.load.name(),
            s.trace.tool.name().replace(',', ";"),
            s.trace.scope.name().replace(',', ";"),
            s.trace.points,
            s.round,
            s.ns,
            s.events.map_or_else(String::new, |e| format!("{e:.3}"))
        );
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overhead::costs::costs;

    fn sample(load: Load, trace: Trace, ns: f64, events: f64) -> Sample {
        Sample { load, trace, round: 0, ns, events: Some(events) }
    }

    #[test]
    fn what_a_trace_adds_is_the_difference_of_medians() {
        let this = Trace::of(Tool::Teiji, Scope::This);
        let samples = [
            sample(Load::Exit, Trace::OFF, 100.0, 0.0),
            sample(Load::Exit, Trace::OFF, 101.0, 0.0),
            sample(Load::Exit, Trace::OFF, 999.0, 0.0),
            sample(Load::Exit, this, 151.0, 0.0),
        ];
        let costs = costs(&samples);
        assert_eq!(added(&costs, Load::Exit, this), 50.0);
        assert!(added(&costs, Load::Exit, Trace::of(Tool::Teiji, Scope::Other)).is_nan());
        assert!(added(&costs, Load::Switch, this).is_nan());
        let table = own(&costs);
        assert!(table.contains("| teiji: this VM and packet |  |  |  | +50 |  |"), "{table}");
        assert!(!table.contains("another VM"), "{table}");
        assert_eq!(csv(&samples).lines().count(), 5);
    }

    #[test]
    fn tools_are_compared_by_the_events_that_ftrace_counts() {
        let (own, other) = (Trace::of(Tool::Teiji, Scope::This), Trace::of(Tool::TraceCmd, Scope::This));
        let samples = [
            sample(Load::Exit, Trace::OFF, 100.0, 0.0),
            sample(Load::Exit, own, 140.0, 0.0),
            sample(Load::Exit, other, 200.0, 2.0),
        ];
        let table = compared(&costs(&samples));
        assert!(table.contains("| teiji: this VM and packet |  |  |  | +20 |"), "{table}");
        assert!(table.contains("| trace-cmd: this VM and packet |  |  |  | +50 |"), "{table}");
    }
}
