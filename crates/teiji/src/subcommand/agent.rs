//! `teiji agent`: keeps deadlines going. In the foreground; systemd runs it (dist/teiji-agent.service).

use super::signals;
use anyhow::Result;
use teiji_agent::service::Service;

/// Until SIGTERM or SIGINT, which is no failure.
pub(super) fn run(service: &Service) -> Result<()> {
    Ok(service.keep(&*signals::stop_flag()?)?)
}
