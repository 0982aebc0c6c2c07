//! A trace that goes on: what it has found so far, and since it was last looked at.

use crate::report::{Dist, Report, Request};
use crate::stage::Stage;

/// A look at a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The report as it would be if the trace ended now.
    pub report: Report,
    /// How long ago the snapshot before this one was made, or the trace began, ns.
    pub interval: u64,
    /// What was completed in this interval, by index of `report.vms`. A VM without a completed request has `complete: 0`; the
    /// list may be shorter than `vms`: what is missing counts as 0.
    pub recent: Vec<Recent>,
}

/// The requests of one VM whose analysis was completed within an interval. It waits for late events and for the time
/// after which no more is expected of a response: so a request counts about half a second after its response, each exactly
/// once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recent {
    /// How many.
    pub complete: u64,
    /// Their response times; `None` if there are none.
    pub total: Option<Dist>,
    /// The time that they spent in each stage, all together, ns; in the order of the path.
    pub stages: [u64; Stage::COUNT],
    /// The slowest of them.
    pub slowest: Option<Request>,
}
