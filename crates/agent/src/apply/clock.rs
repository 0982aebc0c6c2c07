//! Time, so that a test need not wait for it.

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;
use teiji_host::kernel;

/// Time as the engine sees it.
pub trait Clock {
    /// Seconds since 1970.
    fn unix(&self) -> u64;
    /// Since the host booted, the same for all processes; goes on while the host is suspended
    /// (`CLOCK_BOOTTIME`).
    fn since_boot(&self) -> Duration;
    /// Returns after `time` at the earliest.
    fn sleep(&self, time: Duration);
}

/// The host's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn unix(&self) -> u64 {
        kernel::unix_time()
    }

    fn since_boot(&self) -> Duration {
        // Cannot fail for this clock: clock_gettime(2).
        clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
