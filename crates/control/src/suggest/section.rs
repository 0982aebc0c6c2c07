//! The section of a policy for each traced VM.

use super::toml_text;
use std::collections::BTreeSet;
use teiji_model::observed::{Observed, ObservedVm};
use teiji_model::policy::MAX_PID;
use teiji_model::report::{Report, VmReport};

/// The longest header of a section with a VM's name, bytes; instead of a longer one the process id is used.
const LONGEST: usize = 256;

/// A VM's section.
pub(super) struct Section<'a> {
    /// The text after `vm.` in its header.
    pub key: String,
    /// The VM on the host, if the host was observed.
    pub vm: Option<&'a ObservedVm>,
}

/// The section of each of the report's VMs, or why it has none.
pub(super) fn all<'a>(
    report: &Report,
    observed: Option<&'a Observed>,
) -> Vec<Result<Section<'a>, &'static str>> {
    let mut seen = BTreeSet::new();
    let one = |vm: &VmReport| {
        if vm.pid == 0 {
            return Err("a tap alone has no threads that a policy could name");
        }
        if vm.pid > MAX_PID {
            return Err("its process id is one that Linux does not have");
        }
        if !seen.insert(vm.pid) {
            return Err("it is the same process as another VM of this report");
        }
        if vm.ended.is_some() || report.counters.vanished.contains(&vm.pid) {
            return Err("the VM has ended");
        }
        let found = match observed {
            None => None,
            Some(observed) => Some(process(vm.pid, observed).ok_or("the VM is not on this host any more")?),
        };
        let by_name = toml_text::key(&vm.name);
        let unique = report.vms.iter().filter(|v| v.name == vm.name).count() == 1
            && observed.is_none_or(|o| o.vms.iter().filter(|v| v.vm.name == vm.name).count() == 1)
            && found.is_none_or(|f| f.vm.name == vm.name && f.identity.doubt_by_default().is_none());
        // What `policy::parse` accepts as a name, and `plan` as the name of this VM.
        let writable = !vm.name.trim().is_empty()
            && !vm.name.chars().any(char::is_control)
            && !vm.name.starts_with("pid:")
            && by_name.len() <= LONGEST;
        let key = if unique && writable { by_name } else { toml_text::key(&format!("pid:{}", vm.pid)) };
        Ok(Section { key, vm: found })
    };
    report.vms.iter().map(one).collect()
}

/// The only VM with this process id.
fn process(pid: u32, observed: &Observed) -> Option<&ObservedVm> {
    let mut found = observed.vms.iter().filter(|o| o.vm.pid == pid);
    found.next().filter(|_| found.next().is_none())
}
