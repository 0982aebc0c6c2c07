//! The results as Markdown and CSV.

use super::{Load, Sample, Trace};
use crate::numbers;
use serde::Serialize;
use std::fmt::Write;

/// What a trace adds to one operation of a load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// The load.
    pub load: Load,
    /// The trace.
    pub trace: Trace,
    /// ns per operation without a trace: median of all windows.
    pub without_ns: f64,
    /// ns that the trace adds: difference of the medians.
    pub added_ns: f64,
    /// Interquartile range of the windows, ns.
    pub spread_ns: f64,
    /// Events per operation.
    pub events: f64,
}

/// What each trace adds to each load.
pub fn costs(samples: &[Sample]) -> Vec<Cost> {
    let of = |load: Load, trace: Trace| -> Vec<Sample> {
        samples.iter().filter(|s| (s.load, s.trace) == (load, trace)).copied().collect()
    };
    let ns = |samples: &[Sample]| -> Vec<f64> { samples.iter().map(|s| s.ns).collect() };
    let mut all = Vec::new();
    for load in Load::ALL {
        let without_ns = numbers::median(&ns(&of(load, Trace::Off)));
        for trace in Trace::ALL.into_iter().filter(|t| *t != Trace::Off) {
            let samples = of(load, trace);
            let times = ns(&samples);
            let events: Vec<f64> = samples.iter().map(|s| s.events).collect();
            all.push(Cost {
                load,
                trace,
                without_ns,
                added_ns: numbers::median(&times) - without_ns,
                spread_ns: numbers::quantile(&times, 0.75) - numbers::quantile(&times, 0.25),
                events: numbers::median(&events),
            });
        }
    }
    all
}

/// What a trace adds to one operation of a load, ns; NaN if it was not measured.
pub fn added(costs: &[Cost], load: Load, trace: Trace) -> f64 {
    costs.iter().find(|c| (c.load, c.trace) == (load, trace)).map_or(f64::NAN, |c| c.added_ns)
}

/// A row for each load, a column for each trace.
pub fn markdown(costs: &[Cost]) -> String {
    let traces: Vec<Trace> = Trace::ALL.into_iter().filter(|t| *t != Trace::Off).collect();
    let heads: Vec<String> = traces.iter().map(|t| format!("traced: {}", t.name())).collect();
    let mut t = format!(
        "ns of virtual time that a trace adds (2 ns are one instruction)\n\n| one | without a trace | {} |\n| --- | --- |{}\n",
        heads.join(" | "),
        " --- |".repeat(traces.len())
    );
    for load in Load::ALL {
        let Some(first) = costs.iter().find(|c| c.load == load) else { continue };
        let cell = |trace: &Trace| format!("{:+.0}", added(costs, load, *trace));
        let cells: Vec<String> = traces.iter().map(cell).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(t, "| {} | {:.0} | {} |", load.name(), first.without_ns, cells.join(" | "));
    }
    t
}

/// Every window, as CSV.
pub fn csv(samples: &[Sample]) -> String {
    let mut t = "load,trace,round,ns,events\n".to_owned();
    for s in samples {
        let _ = writeln!(
            t,
            "{},{},{},{:.1},{:.3}",
            s.load.name(),
            s.trace.name().replace(',', ";"),
            s.round,
            s.ns,
            s.events
        );
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trace_adds_is_the_difference_of_medians() {
        let sample = |trace: Trace, ns: f64| Sample { load: Load::Exit, trace, round: 0, ns, events: 0.0 };
        let samples = [
            sample(Trace::Off, 100.0),
            sample(Trace::Off, 101.0),
            sample(Trace::Off, 999.0),
            sample(Trace::This, 151.0),
        ];
        let costs = costs(&samples);
        assert_eq!(added(&costs, Load::Exit, Trace::This), 50.0);
        assert!(added(&costs, Load::Exit, Trace::Other).is_nan());
        assert!(added(&costs, Load::Switch, Trace::This).is_nan());
        assert!(markdown(&costs).contains("| vCPU exit and entry | 101 | NaN | NaN | +50 |"));
        assert_eq!(csv(&samples).lines().count(), 5);
    }
}
