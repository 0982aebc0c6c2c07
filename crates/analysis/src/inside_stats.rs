//! The statistics of how a VM's requests spend their time in the guest.

use crate::join::Division;
use crate::stats::{Series, Shares};
use teiji_model::report::{GuestPart, Inside, InsidePart, InsideRequest};

/// See the module.
#[derive(Clone)]
pub(crate) struct InsideStats {
    divided: u64,
    undivided: u64,
    violations: u64,
    parts: [Series; GuestPart::COUNT],
    shares: Shares<{ GuestPart::COUNT }>,
    asleep: u64,
    wake_up: Series,
    moved: u64,
    new_threads: u64,
    backlog: Series,
}

impl InsideStats {
    pub(crate) fn new() -> Self {
        InsideStats {
            divided: 0,
            undivided: 0,
            violations: 0,
            parts: Default::default(),
            shares: Shares::new(),
            asleep: 0,
            wake_up: Series::default(),
            moved: 0,
            new_threads: 0,
            backlog: Series::default(),
        }
    }

    /// Adds a complete request; returns how it was divided, if it was.
    pub(crate) fn add(&mut self, division: Division) -> Option<InsideRequest> {
        match division {
            Division::NotReported => None,
            Division::Incomplete => {
                self.undivided += 1;
                None
            }
            Division::Violation => {
                self.violations += 1;
                None
            }
            Division::Divided(request) => {
                self.divided += 1;
                for (series, ns) in self.parts.iter_mut().zip(request.parts) {
                    series.record(ns);
                }
                self.shares.record(&request.parts, request.parts.iter().sum());
                if let Some(ns) = request.woken {
                    self.asleep += 1;
                    self.wake_up.record(ns);
                }
                self.moved += u64::from(request.moved);
                self.new_threads += u64::from(request.new_thread);
                self.backlog.record(request.backlog.into());
                Some(request)
            }
        }
    }

    /// What the guest reported; `None` if it reported nothing.
    pub(crate) fn report(&self) -> Option<Inside> {
        let part = |(i, part): (usize, GuestPart)| InsidePart {
            part,
            dist: self.parts[i].dist(),
            time_share: self.shares.of_time(i),
            fluctuation_share: self.shares.of_fluctuation(i),
        };
        let any = self.divided > 0;
        (any || self.undivided + self.violations > 0).then(|| Inside {
            divided: self.divided,
            undivided: self.undivided,
            violations: self.violations,
            parts: if any { GuestPart::ALL.into_iter().enumerate().map(part).collect() } else { Vec::new() },
            asleep: self.asleep,
            wake_up: (self.wake_up.count() > 0).then(|| self.wake_up.dist()),
            moved: self.moved,
            new_threads: self.new_threads,
            backlog: self.backlog.depth(),
        })
    }
}
