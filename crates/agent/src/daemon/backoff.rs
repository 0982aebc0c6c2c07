//! When something that failed is tried again. For a part of the policy that could not be carried out: other changes of the host,
//! and what the agent itself writes, do not shorten the pause.
//!
//! ```text
//!  carried out? no ──► not before PAUSE ──► no ──► told; twice the pause, up to PAUSE_MOST
//!                           │
//!                           └── its steps have become others ──► at once, and the pauses begin anew
//! ```
//! Times are since any fixed instant. Nothing here reads a clock.

use std::time::Duration;
use teiji_model::plan::Step;

/// The first pause after a failure, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
pub(super) const PAUSE_MOST: Duration = Duration::from_secs(60);

/// The pause after a failure; `before`: that after the failure before it.
pub(super) fn longer(before: Option<Duration>) -> Duration {
    before.map_or(PAUSE, |before| (before * 2).min(PAUSE_MOST))
}

/// A part that could not be carried out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failed {
    /// Why not.
    pub(super) why: String,
    /// It is tried again at this time.
    pub(super) until: Duration,
    /// That it fails is a problem: it has failed twice in a row. A VM may have ended, or a thread may have started, after the
    /// host was observed.
    pub(super) told: bool,
    steps: Vec<Step>,
    pause: Duration,
}

impl Failed {
    /// It has failed at `now`; `before`: at the time before as well.
    pub(super) fn new(before: Option<&Failed>, why: &str, steps: &[Step], now: Duration) -> Failed {
        let same = before.filter(|before| before.steps == steps);
        let pause = longer(same.map(|before| before.pause));
        Failed {
            why: why.to_owned(),
            until: now + pause,
            told: before.is_some(),
            steps: steps.to_vec(),
            pause,
        }
    }

    /// It is tried again at the next look.
    pub(super) fn due(&mut self) {
        self.until = Duration::ZERO;
    }

    /// Whether a part with these steps is not to be tried yet.
    pub(super) fn waits(&self, steps: &[Step], now: Duration) -> bool {
        now < self.until && self.steps == steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::resource::{Resource, Task, Value};

    fn steps(id: u32) -> Vec<Step> {
        let cpus = |text: &str| Value::Cpus(text.parse().unwrap());
        vec![Step {
            setting: Resource::ThreadCpus(Task { id, started: 1 }),
            present: cpus("0-3"),
            wanted: cpus("1"),
            whose: "vCPU 0 of sip1".into(),
            reason: "vm.sip1.vcpu_cpus".into(),
            cost: String::new(),
        }]
    }

    #[test]
    fn a_part_that_fails_is_tried_more_and_more_seldom_and_told_from_the_second_time_on() {
        let mut failed: Option<Failed> = None;
        let (mut tried, mut told) = (Vec::new(), Vec::new());
        // The host is looked at each 100 ms, as when something changes all the time.
        for now in (0..200_000).step_by(100).map(Duration::from_millis) {
            if failed.as_ref().is_some_and(|failed| failed.waits(&steps(1), now)) {
                continue;
            }
            failed = Some(Failed::new(failed.as_ref(), "busy", &steps(1), now));
            tried.push(now.as_secs());
            told.push(failed.as_ref().unwrap().told);
        }
        assert_eq!(tried, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        assert!(!told[0] && told[1..].iter().all(|told| *told));
    }

    #[test]
    fn other_steps_are_tried_at_once() {
        let failed = Failed::new(None, "busy", &steps(1), Duration::ZERO);
        assert!(failed.waits(&steps(1), Duration::from_millis(999)));
        assert!(!failed.waits(&steps(2), Duration::from_millis(1)));
        assert!(!failed.waits(&steps(1), PAUSE));
        // As while libvirt sets up a VM: none of these has failed twice.
        let mut failed = failed;
        for (id, second) in (2..6).zip(1..) {
            failed = Failed::new(Some(&failed), "busy", &steps(id), Duration::from_secs(second));
        }
        assert!(failed.told && !failed.waits(&steps(5), Duration::from_secs(4) + PAUSE));
    }
}
