//! The agent: the daemon that keeps deadlines.

use super::{Error, Service};
use crate::daemon;
use std::sync::atomic::AtomicBool;

impl Service {
    /// Keeps deadlines until `stop` is set.
    ///
    /// # Errors
    /// If it is not permitted to, or can no longer do so; see [`Error::lasts`].
    pub fn run_daemon(&self, stop: &AtomicBool) -> Result<(), Error> {
        self.real("an agent works only on the machine that the kernel runs on: start it without --root")?;
        Self::needs_root(
            "agent loads a queueing discipline into the kernel; it then gives up the privileges that it does not need",
        )?;
        Ok(daemon::run(&self.state, &self.pins, stop)?)
    }
}
