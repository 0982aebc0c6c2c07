//! What CPU quotas of control groups take (`cpu.max`, `cpu.stat`; Documentation/admin-guide/cgroup-v2.rst).

use crate::cgroup::value;

/// What a group's quota took.
#[derive(Default)]
pub(crate) struct Throttling {
    /// The length of a period, ns.
    period: u64,
    /// `throttled_usec`, and `nr_throttled` when that was first seen.
    counted: Option<(u64, u64)>,
}

impl Throttling {
    /// Takes the length of a period from a `cpu.max`.
    pub(crate) fn follow(&mut self, max: &str) {
        self.period = period(max).unwrap_or(0).saturating_mul(1000);
    }

    /// What it took until now, ns, by a `cpu.stat`; `before`: until the look before.
    ///
    /// The kernel adds to `throttled_usec` only when what is throttled may run again (`unthrottle_cfs_rq()`, kernel/sched/fair.c). If it has
    /// run far more than its quota, as on a CPU without ticks, that takes many periods. Meanwhile `nr_throttled` counts each of them
    /// (`do_sched_cfs_period_timer()`).
    pub(crate) fn taken(&mut self, stat: &str, before: u64) -> u64 {
        let (usec, periods) = (value(stat, "throttled_usec"), value(stat, "nr_throttled"));
        let begun = match self.counted {
            Some((counted, begun)) if counted == usec => begun,
            _ => periods,
        };
        self.counted = Some((usec, begun));
        let lasts = periods.saturating_sub(begun).saturating_mul(self.period);
        before.max(usec.saturating_mul(1000).saturating_add(lasts))
    }
}

/// The CPU quota in a `cpu.max`, percent of a CPU; `None` if there is none.
pub(crate) fn quota(text: &str) -> Option<u64> {
    let (quota, _) = text.trim().split_once(' ')?;
    Some(quota.parse::<u64>().ok()?.saturating_mul(100) / period(text)?)
}

/// The period in a `cpu.max`, µs.
fn period(text: &str) -> Option<u64> {
    let (_, period) = text.trim().split_once(' ')?;
    period.parse().ok().filter(|period| *period > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttling_is_seen_while_it_lasts() {
        let mut throttling = Throttling { period: 100, counted: None };
        let mut before = 0;
        let mut taken = |usec: u64, periods: u64| {
            let stat = format!("nr_periods 90\nnr_throttled {periods}\nthrottled_usec {usec}\n");
            let now = throttling.taken(&stat, before);
            now - std::mem::replace(&mut before, now)
        };
        // What was before the first look does not count as lasting.
        assert_eq!(taken(7, 3), 7000);
        assert_eq!((taken(7, 3), taken(7, 5), taken(7, 6)), (0, 200, 100));
        // It is over: the kernel has counted it, a little more than the periods.
        assert_eq!(taken(8, 7), 700);
        // Short ones, each over in its period, are the kernel's count alone.
        assert_eq!((taken(9, 8), taken(11, 9)), (1000, 2000));
        // A file without these lines is no growth, and neither is a counter that goes back.
        assert_eq!((taken(11, 0), taken(0, 0)), (0, 0));
        assert_eq!(Throttling::default().taken("usage_usec 5\n", 3), 3);
    }

    #[test]
    fn quotas_are_percentages_of_a_cpu() {
        assert_eq!(quota("50000 100000\n"), Some(50));
        assert_eq!((quota("max 100000\n"), quota(""), quota("5 0")), (None, None, None));
    }
}
