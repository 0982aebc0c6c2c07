//! `teiji observe`: what this host is like, for `teiji plan --host` on any machine.

use super::plan;
use crate::output;
use anyhow::Result;
use teiji_agent::service::Service;

/// Prints it as JSON; changes nothing.
pub(super) fn run(service: &Service) -> Result<()> {
    output::json(&service.observe().map_err(plan::explain)?)
}
