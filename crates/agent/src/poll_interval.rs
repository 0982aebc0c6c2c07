//! How often the kernel's record buffer is emptied.
//!
//! Reading takes CPU time from what is measured, so it happens as seldom as the buffer allows: the pause doubles while
//! there are few records, and falls to the shortest at once when there are many.

use std::time::Duration;

/// At a million records of 64 bytes a second, 320 kB accumulate in this time.
const SHORTEST: Duration = Duration::from_millis(5);
/// If such a rate begins suddenly, 3.2 MB accumulate in this time.
const LONGEST: Duration = Duration::from_millis(50);
/// Smallest size of a buffer for which the longest pause is allowed, bytes.
const LARGE_BUFFER: usize = 4 << 20;
/// Length of most records, bytes.
const RECORD: usize = 64;

/// The pause between two reads of the buffer.
pub(crate) struct PollInterval {
    pause: Duration,
    longest: Duration,
    many_records: usize,
}

impl PollInterval {
    /// For a buffer of this many bytes.
    pub(crate) fn new(buffer: usize) -> PollInterval {
        let longest = if buffer < LARGE_BUFFER { SHORTEST } else { LONGEST };
        PollInterval { pause: SHORTEST, longest, many_records: buffer / 32 / RECORD }
    }

    /// How long to wait after this many records were taken.
    pub(crate) fn next(&mut self, taken: usize) -> Duration {
        if taken > self.many_records {
            self.pause = SHORTEST;
        } else if taken < self.many_records / 4 {
            self.pause = (self.pause * 2).min(self.longest);
        }
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_trace_is_looked_at_seldom_and_a_busy_one_often() {
        let mut poll_interval = PollInterval::new(8 << 20);
        let pauses: Vec<u128> =
            [0, 10, 10, 10, 10, 2000, 5000, 2000, 10].map(|n| poll_interval.next(n).as_millis()).into();
        assert_eq!(pauses, [10, 20, 40, 50, 50, 50, 5, 5, 10]);
    }

    #[test]
    fn what_gathers_in_the_longest_pause_fits() {
        for buffer in [64 << 10, 1 << 20, LARGE_BUFFER, 8 << 20] {
            let longest = PollInterval::new(buffer).longest;
            // The highest rate that fentry probes were seen to reach is below a million records per second and CPU.
            let most = 1_000_000.0 * longest.as_secs_f64() * RECORD as f64;
            assert!(buffer < LARGE_BUFFER || most < buffer as f64, "{buffer}");
            assert!(buffer >= LARGE_BUFFER || longest == SHORTEST);
        }
    }
}
