//! `teiji observe`: the state of this host, for `teiji plan --host` on any machine.

use super::plan;
use crate::output;
use anyhow::Result;
use teiji_agent::service::Service;

/// Prints the observation as JSON; changes nothing.
pub(super) fn run(service: &Service) -> Result<()> {
    output::json(&service.observation().map_err(plan::explain)?)
}
