//! The statistics of a VM's groups of requests: SIP calls.

use crate::stats::Series;
use teiji_model::report::{Call, CallMessage, CallMessageReport, Groups};

/// How many of the longest calls are kept.
const SLOWEST: usize = 10;

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct CallStats {
    incomplete: u64,
    total: Series,
    outside: Series,
    /// By message: when it passed, ns after the first, and its further copies.
    at: [Series; CallMessage::COUNT],
    copies: [u64; CallMessage::COUNT],
    slowest: Vec<Call>,
}

impl CallStats {
    /// Adds a call that ended, or was given up, without being complete.
    pub(crate) fn broken(&mut self) {
        self.incomplete += 1;
    }

    /// Adds a complete call.
    pub(crate) fn complete(&mut self, call: Call) {
        self.total.record(call.total);
        self.outside.record(call.outside);
        for step in &call.messages {
            self.at[step.message as usize].record(step.at);
            self.copies[step.message as usize] += u64::from(step.copies.saturating_sub(1));
        }
        if self.slowest.len() < SLOWEST || self.slowest.last().is_some_and(|s| s.total < call.total) {
            self.slowest.truncate(SLOWEST - 1);
            let at = self.slowest.partition_point(|s| s.total >= call.total);
            self.slowest.insert(at, call);
        }
    }

    /// See [`Series::pack`].
    pub(crate) fn pack(&mut self) {
        self.at.iter_mut().chain([&mut self.total, &mut self.outside]).for_each(Series::pack);
    }

    /// `None` if there was no call.
    pub(crate) fn report(self) -> Option<Groups> {
        let of = |message: CallMessage| {
            let at = self.at[message as usize].dist();
            let copies = self.copies[message as usize];
            (at.count > 0).then_some(CallMessageReport { message, at, copies })
        };
        (self.total.count() + self.incomplete > 0).then(|| Groups {
            complete: self.total.count(),
            incomplete: self.incomplete,
            total: self.total.dist(),
            outside: self.outside.dist(),
            messages: CallMessage::ALL.into_iter().filter_map(of).collect(),
            slowest: self.slowest.clone(),
        })
    }
}
