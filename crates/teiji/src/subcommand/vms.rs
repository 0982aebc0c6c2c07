//! `teiji vms`: the VMs of this host with their threads and NICs.

use crate::args::Print;
use crate::{output, style};
use anyhow::Result;
use teiji_agent::service::Service;
use teiji_render::json;
use teiji_render::text::vms::table;

/// Finds and prints the VMs.
pub(super) fn run(print: &Print, service: &Service) -> Result<()> {
    let vms = service.vms()?;
    if print.json {
        return output::json(&json::Vms::new(&vms));
    }
    if vms.is_empty() {
        return output::stdout(&format!("{}\n", service.no_vm()));
    }
    output::stdout(&table(&vms, &style::stdout()))
}
