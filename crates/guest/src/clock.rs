//! The guest's clock and its TSC, read together. The host knows how the guest's TSC follows from its own, so the reading
//! tells it the guest's clock; how far the two readings of the TSC lie apart bounds the error.
use nix::time::{ClockId, clock_gettime};
use teiji_model::guest::Pong;

/// How often is tried to read without an interruption in between.
const TRIES: usize = 16;

/// Reads the clock between two readings of the TSC; of some tries the one in which these are closest.
pub fn read(number: u64) -> Pong {
    let one = || Pong { number, tsc_before: tsc(), clock: monotonic(), tsc_after: tsc() };
    (0..TRIES)
        .map(|_| one())
        // The thread may have been moved to a vCPU whose TSC is behind.
        .filter(|p| p.tsc_before <= p.tsc_after)
        .min_by_key(|p| p.tsc_after - p.tsc_before)
        .unwrap_or(Pong { number, tsc_before: 0, clock: monotonic(), tsc_after: u64::MAX })
}

/// `CLOCK_MONOTONIC`, ns: the clock of the probes.
pub fn monotonic() -> u64 {
    // Linux always has this clock, and it is never negative.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec().unsigned_abs() * 1_000_000_000 + t.tv_nsec().unsigned_abs())
}

/// The time stamp counter, in the order of the program.
fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has these instructions; user space may read the TSC, unless a process forbids it to itself
    // by prctl, which this one does not. They touch no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        let now = std::arch::x86_64::_rdtsc();
        std::arch::x86_64::_mm_lfence();
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_advance_together() {
        let (a, b) = (read(1), read(2));
        assert_eq!((a.number, b.number), (1, 2));
        assert!(a.tsc_before < a.tsc_after && a.tsc_after <= b.tsc_before && b.tsc_before < b.tsc_after);
        assert!(a.clock <= b.clock && b.clock <= monotonic());
    }
}
