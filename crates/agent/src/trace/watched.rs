//! Which of the traced VMs are still there.

use teiji_host::kernel;
use teiji_model::host::Vm;

/// The VMs that have not ended yet, each with an open file of its process: it stays readable under `hidepid`, and never
/// refers to a later process with the same id.
pub(super) struct WatchedVms {
    watched: Vec<(Vm, kernel::Process)>,
    /// Whether there are taps whose process is not known: they do not end.
    unwatched: bool,
}

impl WatchedVms {
    pub(super) fn of(vms: &[Vm]) -> WatchedVms {
        let watched = |vm: &Vm| (vm.clone(), kernel::Process::of(vm.pid));
        WatchedVms {
            watched: vms.iter().filter(|vm| vm.pid != 0).map(watched).collect(),
            unwatched: vms.iter().any(|vm| vm.pid == 0),
        }
    }

    /// Whether there is anything left to trace.
    pub(super) fn any(&self) -> bool {
        self.unwatched || !self.watched.is_empty()
    }

    /// Finds those that have ended since the last call.
    pub(super) fn check(&mut self, mut ended: impl FnMut(u32)) {
        self.watched.retain(|(vm, process)| {
            let there = process.there();
            if !there {
                tracing::warn!("VM {:?} (pid {}) has ended", vm.name, vm.pid);
                ended(vm.pid);
            }
            there
        });
    }

    /// Adds a VM, or has it as it is now; returns whether it is new.
    pub(super) fn add(&mut self, vm: &Vm, process: kernel::Process) -> bool {
        match self.watched.iter_mut().find(|(known, _)| known.pid == vm.pid) {
            Some((known, _)) => {
                *known = vm.clone();
                false
            }
            None => {
                self.watched.push((vm.clone(), process));
                true
            }
        }
    }
}
