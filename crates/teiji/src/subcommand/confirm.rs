//! `teiji confirm`: keeps what `teiji apply --confirm-within` has changed.

use super::messages::{print_line, print_messages};
use anyhow::Result;
use teiji_agent::service::Service;

/// Confirms an apply that waits for it.
pub(super) fn run(service: &Service) -> Result<()> {
    let messages = service.confirm()?;
    print_messages(&messages);
    print_line("confirmed: the changes stay");
    Ok(())
}
