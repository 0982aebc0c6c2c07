//! `teiji front`: the part of `teiji agent` that clients talk to. The agent starts it.

use anyhow::Result;
use teiji_agent::service::Service;

/// Serves until the agent ends.
pub(super) fn run() -> Result<()> {
    Ok(Service::run_front()?)
}
