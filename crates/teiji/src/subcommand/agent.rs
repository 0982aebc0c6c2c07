//! `teiji agent`: keeps the deadlines of channels. It runs in the foreground, started by systemd
//! (dist/teiji-agent.service).

use super::signals;
use anyhow::Result;
use teiji_agent::service::Service;

/// Runs until SIGTERM or SIGINT, which is not a failure.
pub(super) fn run(service: &Service) -> Result<()> {
    Ok(service.run_daemon(&*signals::stop_flag()?)?)
}
