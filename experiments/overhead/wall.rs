//! What tracing adds to the median response time of a real guest, in wall time.
//!
//! ```text
//! off ─ trace a ─ off ─ trace b ─ off ─ … ─ off ─ trace a ─ off …        windows of some hundred requests
//!         └ its median by the mean of the medians of the windows before and after: one ratio
//! ```
//! The machine's speed changes slowly compared with a window, so it cancels out in a ratio; what it does not cancel is
//! in the spread of the ratios, from which the interval of their median is computed. The order of the traces is turned
//! by one in each round, so that no trace always comes after the same one. One of the traces is none: its ratio has to
//! be 1, or the method is wrong.

use super::{Scope, Tool, Trace};
use crate::numbers;
use serde::Serialize;
use std::fmt::Write;

/// Confidence of the intervals.
pub const CONFIDENCE: f64 = 0.95;

/// A window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Window {
    /// What traced.
    pub trace: Trace,
    /// Whether it was stopped (SIGSTOP) meanwhile, so that its probes alone are measured, without the reading of events.
    pub held: bool,
    /// Number of the round.
    pub round: u32,
    /// Requests that were answered, and sent.
    pub answered: u64,
    /// See `answered`.
    pub sent: u64,
    /// Median response time, ns.
    pub p50_ns: f64,
    /// The same of the windows without a trace before and after.
    pub off_ns: [f64; 2],
}

impl Window {
    /// Its median by that of the windows without a trace.
    pub fn ratio(&self) -> f64 {
        self.p50_ns / (self.off_ns[0] * self.off_ns[1]).sqrt()
    }
}

/// What a trace adds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Added {
    /// What traced.
    pub trace: Trace,
    /// See [`Window::held`].
    pub held: bool,
    /// Number of ratios.
    pub windows: usize,
    /// Median response time without a trace, ns.
    pub off_ns: f64,
    /// Median of the ratios, and the interval that contains it.
    pub ratio: f64,
    /// See `ratio`.
    pub low: f64,
    /// See `ratio`.
    pub high: f64,
}

/// Whether something is at most a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// All of the interval is.
    Holds,
    /// Nothing of it is.
    Fails,
    /// The bound is within the interval.
    Undecided,
}

impl Added {
    /// Whether the ratio is at most this.
    pub fn at_most(&self, bound: f64) -> Decision {
        match (self.high <= bound, self.low > bound) {
            (true, _) => Decision::Holds,
            (_, true) => Decision::Fails,
            _ => Decision::Undecided,
        }
    }

    /// In words.
    pub fn words(&self) -> String {
        let percent = |x: f64| (x - 1.0) * 100.0;
        format!(
            "{:+.1} % ({:+.1} to {:+.1} %, {} windows)",
            percent(self.ratio),
            percent(self.low),
            percent(self.high),
            self.windows
        )
    }
}

/// The cases of a round in order: `cases`, turned by the number of the round.
pub fn order<T: Clone>(cases: &[T], round: u32) -> Vec<T> {
    let mut turned = cases.to_vec();
    turned.rotate_left(round as usize % cases.len().max(1));
    turned
}

/// What each trace adds.
pub fn added(windows: &[Window]) -> Vec<Added> {
    let mut cases: Vec<(Trace, bool)> = windows.iter().map(|w| (w.trace, w.held)).collect();
    cases.sort_unstable();
    cases.dedup();
    let of = |(trace, held): (Trace, bool)| {
        let own: Vec<&Window> = windows.iter().filter(|w| (w.trace, w.held) == (trace, held)).collect();
        let ratios: Vec<f64> = own.iter().map(|w| w.ratio()).collect();
        let off: Vec<f64> = own.iter().flat_map(|w| w.off_ns).collect();
        let (low, high) = numbers::median_interval(&ratios, CONFIDENCE);
        let (ratio, off_ns) = (numbers::median(&ratios), numbers::median(&off));
        Added { trace, held, windows: ratios.len(), off_ns, ratio, low, high }
    };
    cases.into_iter().map(of).collect()
}

/// What it is called in tables.
fn name(trace: Trace, held: bool) -> String {
    let name = match (trace.tool, trace.scope) {
        (Tool::None, _) => "no trace, as a control",
        (Tool::Teiji, Scope::Asked) => "teiji, and teiji-guest in the guest",
        (tool, _) => tool.name(),
    };
    if held { format!("{name}: probes alone") } else { name.to_owned() }
}

/// A row for each trace.
pub fn markdown(added: &[Added]) -> String {
    let mut t = format!(
        "Median response time of a guest, wall time; {:.0} % intervals of the median of the ratios\n\n\
         | trace | windows | without, ms | added | from | to |\n| --- | --- | --- | --- | --- | --- |\n",
        CONFIDENCE * 100.0
    );
    let percent = |x: f64| (x - 1.0) * 100.0;
    for a in added {
        // Writing to a String cannot fail.
        let _ = writeln!(
            t,
            "| {} | {} | {:.2} | {:+.1} % | {:+.1} % | {:+.1} % |",
            name(a.trace, a.held),
            a.windows,
            a.off_ns / 1e6,
            percent(a.ratio),
            percent(a.low),
            percent(a.high)
        );
    }
    t
}

/// Every window, as CSV.
pub fn csv(windows: &[Window]) -> String {
    let mut t = "trace,round,sent,answered,p50_ns,before_ns,after_ns\n".to_owned();
    for w in windows {
        let (name, [before, after]) = (name(w.trace, w.held).replace(',', ";"), w.off_ns);
        let _ = writeln!(t, "{name},{},{},{},{},{before},{after}", w.round, w.sent, w.answered, w.p50_ns);
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Trace = Trace::of(Tool::Teiji, Scope::This);

    /// A machine whose speed drifts by half in the course of the run, with some noise.
    fn windows(trace: Trace, n: u32, factor: f64) -> Vec<Window> {
        let noise = |i: u32| 1.0 + f64::from(i * 7919 % 13) * 0.001 - 0.006;
        let off = |i: u32| 5e6 * (1.0 + f64::from(i) / f64::from(2 * n)) * noise(i);
        let of = |i: u32| Window {
            trace,
            held: false,
            round: i,
            sent: 300,
            answered: 300,
            p50_ns: off(i + 1) * factor * noise(i + 5),
            off_ns: [off(i), off(i + 2)],
        };
        (0..n).map(of).collect()
    }

    #[test]
    fn drift_cancels_out() {
        let all: Vec<Window> = [windows(OWN, 40, 1.03), windows(Trace::OFF, 40, 1.0)].concat();
        let added = added(&all);
        let of = |trace| added.iter().find(|a| a.trace == trace).unwrap();
        assert!((of(OWN).ratio - 1.03).abs() < 0.004, "{added:?}");
        assert_eq!(of(OWN).at_most(1.02), Decision::Fails, "{added:?}");
        assert_eq!(of(OWN).at_most(1.05), Decision::Holds, "{added:?}");
        assert_eq!(of(Trace::OFF).at_most(1.02), Decision::Holds, "{added:?}");
        assert_eq!(of(OWN).at_most(of(OWN).ratio), Decision::Undecided);
        assert_eq!(csv(&all).lines().count(), 81);
    }

    #[test]
    fn few_windows_decide_nothing() {
        let added = added(&windows(OWN, 5, 1.5));
        assert_eq!(added[0].at_most(1.02), Decision::Undecided, "{added:?}");
    }

    #[test]
    fn each_trace_comes_first_once() {
        let traces = [Trace::OFF, OWN, Trace::of(Tool::TraceCmd, Scope::This)];
        let first: Vec<Trace> = (0..3).map(|round| order(&traces, round)[0]).collect();
        assert_eq!(first, traces);
    }
}
