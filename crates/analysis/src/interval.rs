//! What was completed since a trace was last looked at: see [`teiji_model::snapshot`].
//!
//! A report is about the whole trace, and percentiles of an interval cannot be computed from two of them. So requests are
//! counted here a second time, as they are completed.

use crate::stats::Series;
use teiji_model::report::{Joined, Request};
use teiji_model::snapshot::Recent;
use teiji_model::stage::Stage;

/// See the module.
#[derive(Default)]
pub struct Interval {
    /// By VM, as far as any was completed.
    vms: Vec<OfVm>,
    since: u64,
}

#[derive(Default)]
struct OfVm {
    total: Series,
    stages: [u64; Stage::COUNT],
    slowest: Option<Request>,
}

impl Interval {
    /// An interval that begins at `since`, ns.
    pub fn new(since: u64) -> Interval {
        Interval { vms: Vec::new(), since }
    }

    /// Adds a complete request.
    pub fn add(&mut self, joined: &Joined) {
        if self.vms.len() <= joined.vm {
            self.vms.resize_with(joined.vm + 1, OfVm::default);
        }
        let (vm, request) = (&mut self.vms[joined.vm], &joined.request);
        vm.total.record(request.total);
        for (sum, stage) in vm.stages.iter_mut().zip(&request.stages) {
            *sum = sum.saturating_add(stage.ns);
        }
        if vm.slowest.as_ref().is_none_or(|slowest| slowest.total < request.total) {
            vm.slowest = Some(request.clone());
        }
    }

    /// Ends the interval at `now`, ns, and begins the next one: its length, ns, and what was completed in it.
    pub fn take(&mut self, now: u64) -> (u64, Vec<Recent>) {
        let length = now.saturating_sub(self.since);
        self.since = now;
        let recent = |vm: OfVm| {
            let complete = vm.total.count();
            let total = (complete > 0).then(|| vm.total.dist());
            Recent { complete, total, stages: vm.stages, slowest: vm.slowest }
        };
        (length, self.vms.drain(..).map(recent).collect())
    }
}
