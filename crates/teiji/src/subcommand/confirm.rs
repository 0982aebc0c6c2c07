//! `teiji confirm`: keeps what `teiji apply --confirm-within` has changed.

use super::notes::{say, tell};
use anyhow::Result;
use teiji_agent::service::Service;

/// Confirms an apply that waits for it.
pub(super) fn run(service: &Service) -> Result<()> {
    let notes = service.confirm()?;
    tell(&notes);
    say("confirmed: the changes stay");
    Ok(())
}
