//! The time stamp counter of this host together with its `CLOCK_MONOTONIC`, for clocks of guests that follow from the TSC.

use crate::sys::tsc;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// How often is tried to read without an interruption in between.
const TRIES: usize = 16;

/// Both clocks at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The TSC: in the middle between its readings before and after the other clock was read.
    pub tsc: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub ns: u64,
    /// By how much `tsc` may be wrong, ticks.
    pub error: u64,
}

/// Reads both clocks; of some tries the one that took the shortest time.
pub fn read() -> Reading {
    let one = || {
        let (before, ns, after) = (tsc(), monotonic(), tsc());
        let width = after.saturating_sub(before);
        Reading { tsc: before.wrapping_add(width / 2), ns, error: width.div_ceil(2) }
    };
    let tries = (1..TRIES).map(|_| one());
    tries.fold(one(), |best, next| if next.error < best.error { next } else { best })
}

fn monotonic() -> u64 {
    // Linux always has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_advance() {
        let (a, b) = (read(), read());
        assert!(a.tsc < b.tsc && a.ns < b.ns, "{a:?} {b:?}");
    }
}
