//! The frequency of this machine's time stamp counter, which an emulated machine's counter follows.
//!
//! A kernel that boots measures it with a timer of the emulator, within a few milliseconds. If the emulator is
//! preempted at that time, the result is wrong: the clock of a lab host was seen to run ten times too fast, and its
//! kernel to report stalled CPUs and timers that do not fire. So the kernel is given the frequency (`tsc_early_khz`).

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Long enough that an error of some microseconds in two readings does not matter.
const LENGTH: Duration = Duration::from_millis(100);

/// The frequency in kHz; `None` if this machine has no such counter.
#[cfg(target_arch = "x86_64")]
pub(crate) fn khz() -> Option<u64> {
    let begin = reading()?;
    std::thread::sleep(LENGTH);
    let end = reading()?;
    let (counts, ns) = (end.0.checked_sub(begin.0)?, end.1.checked_sub(begin.1)?);
    // 1 count per ns is 10⁶ kHz.
    Some((u128::from(counts) * 1_000_000 / u128::from(ns)) as u64)
}

/// Only x86-64 has the counter.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn khz() -> Option<u64> {
    None
}

/// The counter and the time, ns, at one instant: the pair of readings that were closest together.
#[cfg(target_arch = "x86_64")]
fn reading() -> Option<(u64, u64)> {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    let counter = || unsafe { core::arch::x86_64::_rdtsc() };
    let tries = (0..100).filter_map(|_| {
        let before = counter();
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?;
        let after = counter();
        let ns = now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64;
        Some((after.checked_sub(before)?, (before + (after - before) / 2, ns)))
    });
    tries.min_by_key(|(apart, _)| *apart).map(|(_, reading)| reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn two_measurements_agree() {
        let [a, b] = [khz().unwrap() as f64, khz().unwrap() as f64];
        assert!(a > 100_000.0 && (a / b - 1.0).abs() < 0.001, "{a} and {b} kHz");
    }
}
