//! What a trace adds to one operation of a load, from the samples.

use super::points::{ALL, PASSED, Subject};
use super::{Load, Sample, Scope, Tool, Trace};
use crate::numbers;
use serde::Serialize;
use std::collections::BTreeMap;

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
    /// Events per operation; `None` if the tool does not tell.
    pub events: Option<f64>,
}

/// What each trace adds to each load.
pub fn costs(samples: &[Sample]) -> Vec<Cost> {
    let mut traces: Vec<Trace> = Vec::new();
    for s in samples {
        if s.trace != Trace::OFF && !traces.contains(&s.trace) {
            traces.push(s.trace);
        }
    }
    let of = |load: Load, trace: Trace| -> Vec<&Sample> {
        samples.iter().filter(|s| (s.load, s.trace) == (load, trace)).collect()
    };
    let ns = |samples: &[&Sample]| -> Vec<f64> { samples.iter().map(|s| s.ns).collect() };
    let mut all = Vec::new();
    for load in Load::ALL {
        let without_ns = numbers::median(&ns(&of(load, Trace::OFF)));
        for trace in &traces {
            let samples = of(load, *trace);
            if samples.is_empty() {
                continue;
            }
            let times = ns(&samples);
            let events: Option<Vec<f64>> = samples.iter().map(|s| s.events).collect();
            all.push(Cost {
                load,
                trace: *trace,
                without_ns,
                added_ns: numbers::median(&times) - without_ns,
                spread_ns: numbers::quantile(&times, 0.75) - numbers::quantile(&times, 0.25),
                events: events.map(|e| numbers::median(&e)),
            });
        }
    }
    all
}

/// The cost of a trace in a load.
pub fn of(costs: &[Cost], load: Load, trace: Trace) -> Option<&Cost> {
    costs.iter().find(|c| (c.load, c.trace) == (load, trace))
}

/// What a trace adds to one operation of a load, ns; NaN if it was not measured.
pub fn added(costs: &[Cost], load: Load, trace: Trace) -> f64 {
    of(costs, load, trace).map_or(f64::NAN, |c| c.added_ns)
}

/// How many events a load has at the points: as ftrace counts them, which records each.
pub fn hits(costs: &[Cost], load: Load) -> f64 {
    let counted = of(costs, load, Trace::of(Tool::TraceCmd, Scope::This));
    counted.and_then(|c| c.events).unwrap_or(f64::NAN)
}

/// What a trace adds for each event of a load, ns; NaN if it was not measured.
pub fn per_event(costs: &[Cost], load: Load, trace: Trace) -> f64 {
    added(costs, load, trace) / hits(costs, load)
}

/// What a trace adds for each event, ns, with as many events at each point that the loads pass as a real request has
/// (`mix`); NaN if it was not measured.
pub fn per_event_of(costs: &[Cost], mix: &BTreeMap<String, f64>, trace: Trace) -> f64 {
    let of = |load: Load| per_event(costs, load, trace);
    let (mut ns, mut events) = (0.0, 0.0);
    for point in &ALL[..PASSED] {
        let n = mix.get(point.name).copied().unwrap_or(f64::NAN);
        events += n;
        ns += n * match point.subject {
            Subject::Packet(..) => (of(Load::PacketIn) + of(Load::PacketOut)) / 2.0,
            Subject::Switch | Subject::Thread => of(Load::Switch),
            Subject::Current => of(Load::Exit),
        };
    }
    ns / events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_requests_events_are_weighed_by_their_numbers() {
        let (own, other) = (Trace::of(Tool::Teiji, Scope::This), Trace::of(Tool::TraceCmd, Scope::This));
        let cost = |load, trace, added_ns, events| Cost {
            load,
            trace,
            without_ns: 0.0,
            added_ns,
            spread_ns: 0.0,
            events: Some(events),
        };
        let mut costs = Vec::new();
        for (load, ns) in
            [(Load::PacketIn, 800.0), (Load::PacketOut, 1200.0), (Load::Switch, 20.0), (Load::Exit, 10.0)]
        {
            costs.push(cost(load, own, ns, 0.0));
            costs.push(cost(load, other, 1000.0, 2.0));
        }
        let mut mix: BTreeMap<String, f64> = ALL.iter().map(|p| (p.name.to_owned(), 0.0)).collect();
        mix.insert("kvm_exit".into(), 3.0);
        assert_eq!(per_event_of(&costs, &mix, own), 5.0);
        mix.insert("net_dev_queue".into(), 1.0);
        assert_eq!(per_event_of(&costs, &mix, own), (3.0 * 5.0 + 500.0) / 4.0);
        assert!(per_event_of(&costs, &BTreeMap::new(), own).is_nan());
    }
}
