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
        self.real("what is below --root is not this machine, so there is nothing that an agent could keep")?;
        Self::needs_root(
            "agent loads a queueing discipline into the kernel; it then gives up the privileges that it does not need",
        )?;
        Ok(daemon::run(&self.state, &self.pins, stop)?)
    }
}
