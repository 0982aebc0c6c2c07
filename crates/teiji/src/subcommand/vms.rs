//! `teiji vms`: the VMs of this host with their threads and NICs.

use crate::args::Print;
use crate::{output, terminal};
use anyhow::Result;
use serde::Serialize;
use teiji_host::Root;
use teiji_model::host::{Identity, Vm};
use teiji_render::text::vms::{doubt, table};

/// What `--json` prints.
#[derive(Serialize)]
struct Json<'a> {
    schema: u32,
    vms: Vec<JsonVm<'a>>,
}

/// A VM as `--json` prints it.
#[derive(Serialize)]
struct JsonVm<'a> {
    #[serde(flatten)]
    vm: &'a Vm,
    identity: &'a Identity,
    /// Why its name is not to be relied on, if so.
    doubt: Option<String>,
}

/// Finds and prints them.
pub(super) fn run(print: &Print, root: &Root) -> Result<()> {
    let vms = root.identified_vms()?;
    if print.json {
        let vms = vms.iter().map(|(vm, identity)| JsonVm { vm, identity, doubt: doubt(vm, identity) });
        let json = Json { schema: 1, vms: vms.collect() };
        return output::stdout(&(serde_json::to_string_pretty(&json)? + "\n"));
    }
    if vms.is_empty() {
        return output::stdout(&(nothing(root) + "\n"));
    }
    output::stdout(&table(&vms, &terminal::stdout()))
}

/// Says that there are no VMs, and why that may not be so.
pub(super) fn nothing(root: &Root) -> String {
    let lacking = root.lacking();
    if lacking.contains(&"CAP_SYS_PTRACE") || lacking.contains(&"CAP_DAC_READ_SEARCH") {
        "no VM is to be seen; without root only your own processes are looked into: try sudo".to_owned()
    } else {
        "no VM runs on this host: no process holds a KVM virtual machine".to_owned()
    }
}
