//! The statistics of the NICs that a VM was given, and of the requests to its guest by them.

use crate::join::Exclusion;
use crate::left_out::LeftOutCounts;
use crate::stats::{Series, Shares};
use teiji_model::host::GivenNic;
use teiji_model::report::{
    DropLocation, LeftOut, Outcome, Passthrough, PassthroughRequests, PassthroughStage,
    PassthroughStageReport, RequestCounts,
};

/// A complete request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletePassthrough {
    /// When it began, ns.
    pub(crate) start: u64,
    /// The time of each stage, ns, in their order; `None`: that is not seen. Their sum is the response time.
    pub(crate) stages: [Option<u64>; PassthroughStage::COUNT],
}

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct PassthroughStats {
    nics: Vec<GivenNic>,
    /// The VM has or had one.
    had: bool,
    pub(crate) interrupts: u64,
    pub(crate) not_accepted: u64,
    until_guest_entry: Series,
    /// Made when there is a first request.
    requests: Option<Box<Requests>>,
}

#[derive(Clone)]
struct Requests {
    counts: RequestCounts,
    left_out: LeftOutCounts,
    without_interrupt: u64,
    without_interrupt_total: Series,
    total: Series,
    stages: [Series; PassthroughStage::COUNT],
    shares: Shares<{ PassthroughStage::COUNT }>,
}

impl Requests {
    fn new() -> Box<Self> {
        Box::new(Requests {
            counts: RequestCounts::default(),
            left_out: LeftOutCounts::default(),
            without_interrupt: 0,
            without_interrupt_total: Series::default(),
            total: Series::default(),
            stages: Default::default(),
            shares: Shares::new(),
        })
    }
}

impl PassthroughStats {
    /// The VM has these NICs.
    pub(crate) fn set(&mut self, nics: &[GivenNic]) {
        self.nics = nics.to_vec();
        self.had |= !nics.is_empty();
    }

    /// See [`Series::pack`].
    pub(crate) fn pack(&mut self) {
        self.until_guest_entry.pack();
        if let Some(r) = &mut self.requests {
            r.stages.iter_mut().chain([&mut r.total, &mut r.without_interrupt_total]).for_each(Series::pack);
        }
    }

    fn requests(&mut self) -> &mut Requests {
        self.requests.get_or_insert_with(Requests::new)
    }

    /// An interrupt has reached the guest, so long after it came to the host, ns.
    pub(crate) fn record_delay(&mut self, after: u64) {
        self.until_guest_entry.record(after);
    }

    /// A request has reached the guest.
    pub(crate) fn seen(&mut self) {
        self.requests().counts.seen += 1;
    }

    /// Adds a request that is not complete.
    pub(crate) fn leave_out(&mut self, outcome: Outcome, exclusion: Exclusion) {
        let Requests { left_out, counts, .. } = self.requests();
        left_out.add(outcome, exclusion, counts);
    }

    /// Adds a complete request.
    pub(crate) fn complete(&mut self, r: &CompletePassthrough) {
        let of = self.requests();
        of.counts.complete += 1;
        let total = r.stages.iter().flatten().fold(0u64, |sum, ns| sum.saturating_add(*ns));
        let all: Option<Vec<u64>> = r.stages.iter().copied().collect();
        let Some(stages) = all.and_then(|all| <[u64; PassthroughStage::COUNT]>::try_from(all).ok()) else {
            of.without_interrupt += 1;
            return of.without_interrupt_total.record(total);
        };
        of.total.record(total);
        for (series, ns) in of.stages.iter_mut().zip(stages) {
            series.record(ns);
        }
        of.shares.record(&stages, total);
    }

    /// `None` if the VM has no such NIC, and had none.
    pub(crate) fn report(&self, location: &dyn Fn(u16) -> Option<DropLocation>) -> Option<Passthrough> {
        let dist = |series: &Series| (series.count() > 0).then(|| series.dist());
        let requests = self.requests.as_ref().map(|r| {
            let stage = |stage: PassthroughStage| PassthroughStageReport {
                stage,
                dist: r.stages[stage as usize].dist(),
                time_share: r.shares.of_time(stage as usize),
                fluctuation_share: r.shares.of_fluctuation(stage as usize),
            };
            PassthroughRequests {
                counts: r.counts,
                left_out: r.left_out.report(LeftOut::of_passthrough, location),
                without_interrupt: r.without_interrupt,
                without_interrupt_total: dist(&r.without_interrupt_total),
                total: dist(&r.total),
                stages: if r.total.count() > 0 {
                    PassthroughStage::ALL.into_iter().map(stage).collect()
                } else {
                    Vec::new()
                },
            }
        });
        self.had.then(|| Passthrough {
            nics: self.nics.clone(),
            interrupts: self.interrupts,
            not_accepted: self.not_accepted,
            until_guest_entry: dist(&self.until_guest_entry),
            requests,
        })
    }
}
