//! What was completed since the last look: every request is in exactly one interval.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use proptest::prelude::*;
use teiji_analysis::interval::Interval;
use teiji_analysis::{Analyzer, Options};
use teiji_model::event::*;
use teiji_model::flow::Matching;
use teiji_model::report::Counters;
use teiji_model::snapshot::Recent;

proptest! {
    #[test]
    fn every_request_is_in_one_interval(
        requests in prop::collection::vec((1u64..900_000_000, 60_000u64..2_000_000), 1..60),
        every in 20usize..200,
    ) {
        let mut h = History::default();
        let mut t = 0;
        for (n, (gap, answer)) in requests.iter().enumerate() {
            t += gap;
            let fp = (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            h.request(t, fp, m(n as u64, Role::Request)).response(t + answer, !fp, m(n as u64, Role::Final));
        }
        h.0.sort_by_key(|e| e.ts);
        let mut live = Analyzer::new(&meta(Matching::Echo), Options { seed: 1, ..Options::default() });
        let mut interval = Interval::new(T);
        let mut taken: Vec<(u64, Vec<Recent>)> = Vec::new();
        let mut totals: Vec<Vec<u64>> = vec![Vec::new()];
        for (n, event) in h.0.iter().enumerate() {
            live.push(*event, &mut |j| {
                interval.add(j);
                totals.last_mut().unwrap().push(j.request.total);
            });
            if n % every == every - 1 {
                // Making a report in between counts nothing twice.
                let _ = live.snapshot(Counters { ended: event.ts, ..Counters::default() });
                taken.push(interval.take(event.ts));
                totals.push(Vec::new());
            }
        }
        let end = h.0.last().unwrap().ts + 1;
        let report = live.finish(Counters { ended: end, ..Counters::default() }, &mut |j| {
            interval.add(j);
            totals.last_mut().unwrap().push(j.request.total);
        });
        taken.push(interval.take(end));
        prop_assert_eq!(taken.iter().map(|(length, _)| length).sum::<u64>(), end - T);
        let of = |recent: &[Recent]| recent.first().map_or(0, |r| r.complete);
        let complete: u64 = taken.iter().map(|(_, recent)| of(recent)).sum();
        prop_assert_eq!(complete, report.vms[0].requests.complete);
        for ((_, recent), totals) in taken.iter().zip(&totals) {
            prop_assert_eq!(of(recent), totals.len() as u64);
            let Some(recent) = recent.first().filter(|r| r.complete > 0) else { continue };
            let dist = recent.total.unwrap();
            prop_assert_eq!((Some(&dist.max), Some(&dist.min)), (totals.iter().max(), totals.iter().min()));
            prop_assert_eq!(recent.slowest.as_ref().unwrap().total, dist.max);
            prop_assert_eq!(recent.stages.iter().sum::<u64>(), totals.iter().sum::<u64>());
        }
    }
}
