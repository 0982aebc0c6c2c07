//! The statistics of how a VM's requests spend their time in the guest.

use crate::join::{Divided, Division};
use crate::stats::{Series, Shares};
use teiji_model::report::{GuestPart, Inside, InsidePart, InsideState};
use teiji_model::stage::ThreadState;

/// The states of a vCPU, and one more for what is not known.
const COLUMNS: usize = ThreadState::COUNT + 1;
const CELLS: usize = GuestPart::COUNT * COLUMNS;

/// See the module.
#[derive(Clone)]
pub(crate) struct InsideStats {
    divided: u64,
    undivided: u64,
    violations: u64,
    clock_unknown: u64,
    contradictions: u64,
    parts: [Series; GuestPart::COUNT],
    shares: Shares<{ GuestPart::COUNT }>,
    /// By part and state.
    cells: Shares<CELLS>,
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
            clock_unknown: 0,
            contradictions: 0,
            parts: Default::default(),
            shares: Shares::new(),
            cells: Shares::new(),
            asleep: 0,
            wake_up: Series::default(),
            moved: 0,
            new_threads: 0,
            backlog: Series::default(),
        }
    }

    /// See [`Series::pack`].
    pub(crate) fn pack(&mut self) {
        self.parts.iter_mut().chain([&mut self.wake_up, &mut self.backlog]).for_each(Series::pack);
    }

    /// Adds a complete request; returns how it was divided, if it was.
    pub(crate) fn add<'a>(&mut self, division: &'a Division) -> Option<&'a Divided> {
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
            Division::ClockUnknown => {
                self.clock_unknown += 1;
                None
            }
            Division::Divided(divided) => {
                let request = &divided.request;
                self.divided += 1;
                self.contradictions += u64::from(divided.contradicted);
                for (series, ns) in self.parts.iter_mut().zip(request.parts) {
                    series.record(ns);
                }
                let total = request.parts.iter().sum();
                self.shares.record(&request.parts, total);
                let mut cells = [0; CELLS];
                for (i, (ns, split)) in request.parts.iter().zip(&request.splits).enumerate() {
                    let of = &mut cells[i * COLUMNS..(i + 1) * COLUMNS];
                    match split {
                        Some(split) => of[..ThreadState::COUNT].copy_from_slice(&split.0),
                        None => of[ThreadState::COUNT] = *ns,
                    }
                }
                self.cells.record(&cells, total);
                if let Some(ns) = request.woken {
                    self.asleep += 1;
                    self.wake_up.record(ns);
                }
                self.moved += u64::from(request.moved);
                self.new_threads += u64::from(request.new_thread);
                self.backlog.record(request.backlog.into());
                Some(divided)
            }
        }
    }

    /// What the guest reported; `None` if it reported nothing.
    pub(crate) fn report(&self) -> Option<Inside> {
        let states = |part: usize| {
            let state = |(i, state): (usize, Option<ThreadState>)| InsideState {
                state,
                mean: self.cells.mean(part * COLUMNS + i),
                time_share: self.cells.of_time(part * COLUMNS + i),
                fluctuation_share: self.cells.of_fluctuation(part * COLUMNS + i),
            };
            ThreadState::ALL.into_iter().map(Some).chain([None]).enumerate().map(state).collect()
        };
        let part = |(i, part): (usize, GuestPart)| InsidePart {
            part,
            dist: self.parts[i].dist(),
            time_share: self.shares.of_time(i),
            fluctuation_share: self.shares.of_fluctuation(i),
            states: states(i),
        };
        let any = self.divided > 0;
        (any || self.undivided + self.violations + self.clock_unknown > 0).then(|| Inside {
            divided: self.divided,
            undivided: self.undivided,
            violations: self.violations,
            clock_unknown: self.clock_unknown,
            contradictions: self.contradictions,
            parts: if any { GuestPart::ALL.into_iter().enumerate().map(part).collect() } else { Vec::new() },
            asleep: self.asleep,
            wake_up: (self.wake_up.count() > 0).then(|| self.wake_up.dist()),
            moved: self.moved,
            new_threads: self.new_threads,
            backlog: self.backlog.depth(),
        })
    }
}
