//! `teiji agent`: keeps the policy in force and the deadlines of channels. It runs in the foreground, started by systemd
//! (dist/teiji-agent.service).

use super::signals;
use anyhow::Result;
use teiji_agent::service::Service;

/// Runs until SIGTERM or SIGINT, which is not a failure. SIGHUP makes it compare the host with the policy at once.
pub(super) fn run(service: &Service) -> Result<()> {
    let signals = signals::Daemon::catch()?;
    Ok(service.run_daemon(signals.as_seen())?)
}
