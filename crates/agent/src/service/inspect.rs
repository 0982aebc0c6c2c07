//! Doctor, VMs, traces and recordings.

use super::select::{Selection, select};
use super::{Error, Service};
use crate::trace::{self, Progress, Replayed, Shown, TraceOutcome, TraceSpec};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use teiji_model::host::{Identity, Requirement, Vm};
use teiji_model::observed::Observed;
use teiji_model::report::{Joined, Report};
use teiji_model::snapshot::Snapshot;

/// What a host supports.
#[derive(Clone, Debug)]
pub struct Doctor {
    /// Everything that teiji needs, and whether it is present.
    pub requirements: Vec<Requirement>,
    /// Whether a VM with vhost-net NICs can be traced.
    pub works: bool,
}

/// The result of a trace.
#[derive(Debug)]
pub struct TraceResult {
    /// The report, and whether there is a recording.
    pub outcome: TraceOutcome,
    /// Whether a traced VM ended before the trace did, and did not come back.
    pub vanished: bool,
}

impl Service {
    /// What this host supports.
    pub fn doctor(&self) -> Doctor {
        let real = self.root.is_real();
        let requirements = if real { crate::requirements() } else { self.root.requirements() };
        let works = requirements.iter().all(|c| !c.is_lacking());
        Doctor { requirements, works }
    }

    /// The VMs of the host with their memory, and where their names come from.
    ///
    /// # Errors
    /// If processes cannot be listed.
    pub fn vms(&self) -> Result<Vec<(Vm, Identity)>, Error> {
        Ok(self.root.identified_vms_with_memory()?)
    }

    /// Why there is no VM, or why none can be seen.
    pub fn no_vm(&self) -> &'static str {
        let lacking = self.root.lacking();
        if lacking.contains(&"CAP_SYS_PTRACE") || lacking.contains(&"CAP_DAC_READ_SEARCH") {
            "no VM is to be seen; without root only your own processes are looked into: try sudo"
        } else {
            "no VM runs on this host: no process holds a KVM virtual machine"
        }
    }

    /// The VMs with these names, or all VMs without any name; or the processes that serve these taps.
    ///
    /// # Errors
    /// If a name is that of no VM or of several, or there is no such tap.
    pub fn select(&self, names: &[String], taps: &[String]) -> Result<Selection, Error> {
        if !taps.is_empty() {
            let vms = taps.iter().map(|tap| self.root.tap(tap)).collect::<Result<_, _>>()?;
            return Ok(Selection { vms, following: None, notes: Vec::new() });
        }
        self.select_among(&self.root.identified_vms()?, names)
    }

    /// As [`Service::select`], among the VMs that there are.
    pub(super) fn select_among(
        &self,
        found: &[(Vm, Identity)],
        names: &[String],
    ) -> Result<Selection, Error> {
        if found.is_empty() {
            return Err(Error::Selection(self.no_vm().to_owned()));
        }
        select(found, names).map_err(Error::Selection)
    }

    /// Whether VMs can be traced by this process.
    ///
    /// # Errors
    /// Why not.
    pub fn may_trace(&self) -> Result<(), Error> {
        let lacking = self.root.lacking();
        if !lacking.is_empty() {
            return Err(Error::NotPermitted(lacking));
        }
        self.real("VMs below --root are not those of this machine, so they cannot be traced")
    }

    /// The state of the host alone, as far as advice needs it: without what teiji holds, which [`Service::observation`] adds. To
    /// be called before a trace, which gives up privileges.
    ///
    /// # Errors
    /// If the host cannot be observed.
    pub fn observed(&self) -> Result<Observed, Error> {
        Ok(self.root.observe()?)
    }

    /// Traces until the time is over, `stop` is set or every VM is gone; see [`trace::run`].
    ///
    /// # Errors
    /// If nothing could be traced.
    pub fn trace(
        spec: TraceSpec,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(&Progress),
        snapshot: &mut dyn FnMut(&Snapshot),
        joined: &mut dyn FnMut(&Joined),
    ) -> Result<TraceResult, Error> {
        let outcome = trace::run(spec, stop, progress, snapshot, joined).map_err(Error::Trace)?;
        let vms = &outcome.report.vms;
        let back = |name: &str| vms.iter().any(|vm| vm.name == name && vm.ended.is_none());
        let vanished = vms.iter().any(|vm| vm.ended.is_some() && !back(&vm.name));
        Ok(TraceResult { outcome, vanished })
    }

    /// The report of a recording that may still be being written, or may have been cut off.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn replay_unfinished(
        file: &Path,
        shown: Shown,
        joined: &mut dyn FnMut(&Joined),
    ) -> Result<Replayed, Error> {
        trace::replay_unfinished(file, shown, joined).map_err(Error::Replay)
    }

    /// The report of a recording.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn replay(file: &Path, shown: Shown, joined: &mut dyn FnMut(&Joined)) -> Result<Report, Error> {
        trace::replay(file, shown, joined).map_err(Error::Replay)
    }
}
