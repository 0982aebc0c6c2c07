//! Requests that a report shows by themselves beside the slowest: a typical one, and one that was asked for.

use crate::stats::Series;
use teiji_model::report::Request;

/// The median is computed anew after so many requests: it walks through a histogram.
const AGAIN: u64 = 256;

/// Keeps the request whose response time is nearest to the median, as that is known when it comes: one request at a time,
/// as the median is known only in the end.
#[derive(Clone, Default)]
pub(crate) struct Typical {
    pub(crate) request: Option<Request>,
    median: u64,
}

impl Typical {
    /// Whether a request of this response time is nearer to the median than the one that is kept.
    pub(crate) fn takes(&self, total: u64) -> bool {
        let kept = self.request.as_ref().map(|r| r.total.abs_diff(self.median));
        kept.is_none_or(|kept| total.abs_diff(self.median) < kept)
    }

    /// Adds a request; `totals` are the response times of all, this one included.
    pub(crate) fn add(&mut self, r: &Request, totals: &Series) {
        if self.takes(r.total) {
            self.request = Some(r.clone());
        }
        let n = totals.count();
        if n.is_multiple_of(AGAIN) || n.is_power_of_two() {
            self.median = totals.median();
        }
    }
}

/// Keeps the first request that begins at a time or later.
#[derive(Clone)]
pub(crate) struct Chosen {
    from: Option<u64>,
    pub(crate) request: Option<Request>,
}

impl Chosen {
    pub(crate) fn new(from: Option<u64>) -> Self {
        Chosen { from, request: None }
    }

    /// Whether a request that began at `start` takes the place of the one that is kept.
    pub(crate) fn takes(&self, start: u64) -> bool {
        let earlier = |r: &Request| start < r.start;
        self.from.is_some_and(|from| start >= from) && self.request.as_ref().is_none_or(earlier)
    }

    pub(crate) fn add(&mut self, r: &Request) {
        if self.takes(r.start) {
            self.request = Some(r.clone());
        }
    }
}
