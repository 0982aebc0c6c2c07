//! Progress messages on standard error, each with the seconds since its step began.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

static QUIET: AtomicBool = AtomicBool::new(false);

/// Switches all progress messages of this process off (`true`) or on.
pub fn quiet(on: bool) {
    QUIET.store(on, Ordering::Relaxed);
}

/// A step that takes a while.
pub(crate) struct ProgressStep {
    begun: Instant,
}

impl ProgressStep {
    /// Reports that the step begins.
    pub(crate) fn begin(what: &str) -> ProgressStep {
        let step = ProgressStep { begun: Instant::now() };
        step.say(what);
        step
    }

    /// Reports the progress of the step.
    pub(crate) fn say(&self, what: &str) {
        if !QUIET.load(Ordering::Relaxed) {
            eprintln!("lab {:6.1} s  {what}", self.begun.elapsed().as_secs_f64());
        }
    }

    /// Seconds since the step began.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }
}
