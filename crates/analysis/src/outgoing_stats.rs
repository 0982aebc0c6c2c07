//! The statistics of the requests that a VM's guest itself sent.

use crate::join::Exclusion;
use crate::left_out::LeftOutCounts;
use crate::stats::{Series, Shares};
use teiji_model::report::{
    DropLocation, LeftOut, Outcome, Outgoing, OutgoingStage, OutgoingStageReport, RequestCounts,
};

/// A complete request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompleteOutgoing {
    /// The time of each stage, ns, in their order; their sum is the response time.
    pub(crate) stages: [u64; OutgoingStage::COUNT],
    /// Another traced VM has answered it.
    pub(crate) to_other_vm: bool,
    /// It was sent again before it was answered.
    pub(crate) sent_again: bool,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct OutgoingStats {
    pub(crate) counts: RequestCounts,
    left_out: LeftOutCounts,
    to_other_vms: u64,
    total: Series,
    host: Series,
    stages: [Series; OutgoingStage::COUNT],
    shares: Shares<{ OutgoingStage::COUNT }>,
}

impl OutgoingStats {
    pub(crate) fn new() -> Self {
        OutgoingStats {
            counts: RequestCounts::default(),
            left_out: LeftOutCounts::default(),
            to_other_vms: 0,
            total: Series::default(),
            host: Series::default(),
            stages: Default::default(),
            shares: Shares::new(),
        }
    }

    /// See [`Series::pack`].
    pub(crate) fn pack(&mut self) {
        self.stages.iter_mut().chain([&mut self.total, &mut self.host]).for_each(Series::pack);
    }

    /// Adds a request that is not complete.
    pub(crate) fn leave_out(&mut self, outcome: Outcome, exclusion: Exclusion) {
        self.left_out.add(outcome, exclusion, &mut self.counts);
    }

    /// Adds a complete request.
    pub(crate) fn complete(&mut self, r: &CompleteOutgoing) {
        self.counts.complete += 1;
        self.counts.sent_again.unknown += u64::from(r.sent_again);
        self.to_other_vms += u64::from(r.to_other_vm);
        let total = r.stages.iter().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        self.total.record(total);
        self.host.record(total.saturating_sub(r.stages[OutgoingStage::Outside as usize]));
        for (series, ns) in self.stages.iter_mut().zip(r.stages) {
            series.record(ns);
        }
        self.shares.record(&r.stages, total);
    }

    /// `None` if the guest sent no request.
    pub(crate) fn report(&self, location: &dyn Fn(u16) -> Option<DropLocation>) -> Option<Outgoing> {
        let any = self.total.count() > 0;
        let stage = |stage: OutgoingStage| OutgoingStageReport {
            stage,
            dist: self.stages[stage as usize].dist(),
            time_share: self.shares.of_time(stage as usize),
            fluctuation_share: self.shares.of_fluctuation(stage as usize),
        };
        (self.counts.seen > 0).then(|| Outgoing {
            requests: self.counts,
            left_out: self.left_out.report(LeftOut::of_outgoing, location),
            to_other_vms: self.to_other_vms,
            total: any.then(|| self.total.dist()),
            host: any.then(|| self.host.dist()),
            stages: if any { OutgoingStage::ALL.into_iter().map(stage).collect() } else { Vec::new() },
        })
    }
}
