//! The VMs of a trace that runs: those that come or change, and those that end.

use super::follower::{Follower, Found};
use super::guests::Guests;
use super::session::Session;
use super::{hear, now};
use teiji_bpf::path_trace::Tracer;
use teiji_host::kernel;
use teiji_model::host::Vm;
use teiji_model::report::Counters;
use teiji_model::stream::{Change, Changed};

/// The kernel's function that handles interrupts of devices that were given to VMs.
const DEVICE_INTERRUPTS: &str = "vfio_msihandler";

/// The next VM that has come or changed, if there is one now. Without the process that finds them, the trace goes on with
/// the VMs that it has.
pub(super) fn next_found(follower: &mut Option<Follower>) -> Option<Found> {
    match follower.as_mut()?.found() {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!("VMs that come or change from now on are not followed: {error}");
            *follower = None;
            None
        }
    }
}

/// Follows a VM that has come or changed.
pub(super) fn come(
    found: Found,
    tracer: &mut Tracer,
    session: &mut Session<'_>,
    guests: &mut Option<Guests>,
    alive: &mut WatchedVms,
) {
    let Found { vm, access, process } = found;
    if let Err(what) = teiji_model::recording::vm_fits(&vm) {
        tracing::warn!("the VM with pid {} is not followed: {what}", vm.pid);
        return;
    }
    // Before the probes see its packets: what they report is younger.
    let ts = now();
    match follow(tracer, &vm, &process) {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => {
            tracing::warn!("VM {:?} (pid {}) is not followed as it is now: {error}", vm.name, vm.pid);
            return;
        }
    }
    let had_given = alive.has_given(vm.pid);
    let how = if alive.add(&vm, process) { "from now on" } else { "as it is now" };
    let (nics, vcpus) = (vm.nics.len(), vm.vcpus.len());
    tracing::info!("VM {:?} (pid {}) is followed with NICs: {nics}, vCPUs: {vcpus}, {how}", vm.name, vm.pid);
    if let Some(guests) = guests {
        guests.add(&vm, access);
    }
    if !vm.given.is_empty() && !tracer.is_probed(DEVICE_INTERRUPTS) {
        tracing::warn!(
            "interrupts of the NICs that VM {:?} was given are not counted: the module vfio_pci_core was loaded after the trace \
             began, or {DEVICE_INTERRUPTS} cannot be probed; start the trace again, or see `teiji doctor`",
            vm.name
        );
    }
    let (pid, nics) = (vm.pid, vm.given.clone());
    session.change(Change { ts, what: Changed::Vm(Box::new(vm)) });
    if had_given || !nics.is_empty() {
        session.change(Change { ts, what: Changed::Given { pid, nics } });
    }
}

/// The kernel half, or a note of it in tests.
trait Targets {
    fn follow(&mut self, vm: &Vm) -> Result<(), teiji_bpf::Error>;
    fn forget(&mut self, pid: u32) -> Result<(), teiji_bpf::Error>;
}

impl Targets for Tracer {
    fn follow(&mut self, vm: &Vm) -> Result<(), teiji_bpf::Error> {
        Tracer::follow(self, vm)
    }

    fn forget(&mut self, pid: u32) -> Result<(), teiji_bpf::Error> {
        Tracer::forget(self, pid)
    }
}

/// Has the kernel half follow a VM; returns whether its process is still there.
///
/// The kernel half removes a process when that ends. If it ended before it was added, nobody else would remove it, and a process
/// that gets its id would be taken for it. So it is looked at afterwards.
fn follow(targets: &mut impl Targets, vm: &Vm, process: &kernel::Process) -> Result<bool, teiji_bpf::Error> {
    targets.follow(vm)?;
    if process.there() {
        return Ok(true);
    }
    targets.forget(vm.pid)?;
    Ok(false)
}

/// A VM has ended.
pub(super) fn end(
    pid: u32,
    tracer: &mut Tracer,
    session: &mut Session<'_>,
    guests: &mut Option<Guests>,
    counters: &mut Counters,
) {
    counters.note_ended_vm(pid);
    if let Some(guests) = guests {
        guests.remove(pid, &mut |news| hear(news, tracer, session));
    }
    if let Err(error) = tracer.forget(pid) {
        tracing::warn!("{error}");
    }
    session.change(Change { ts: now(), what: Changed::Ended { pid } });
}

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

    /// Whether a VM has NICs of the host.
    fn has_given(&self, pid: u32) -> bool {
        self.watched.iter().any(|(vm, _)| vm.pid == pid && !vm.given.is_empty())
    }

    /// Adds a VM, or has it as it is now; returns whether it is new.
    fn add(&mut self, vm: &Vm, process: kernel::Process) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The process ids that are followed; whatever is asked to end ends while it is added.
    struct Noted(Vec<u32>, Option<std::process::Child>);

    impl Targets for Noted {
        fn follow(&mut self, vm: &Vm) -> Result<(), teiji_bpf::Error> {
            if let Some(mut process) = self.1.take() {
                process.kill().unwrap();
                process.wait().unwrap();
            }
            self.0.push(vm.pid);
            Ok(())
        }

        fn forget(&mut self, pid: u32) -> Result<(), teiji_bpf::Error> {
            self.0.retain(|known| *known != pid);
            Ok(())
        }
    }

    #[test]
    fn a_vm_that_ended_before_it_was_added_is_not_followed() {
        for ends in [false, true] {
            let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
            let vm = Vm { pid: process.id(), ..Vm::default() };
            let opened = kernel::Process::of(vm.pid);
            let mut noted = Noted(Vec::new(), None);
            if ends {
                noted.1 = Some(process);
                assert!(!follow(&mut noted, &vm, &opened).unwrap() && noted.0.is_empty());
            } else {
                assert!(follow(&mut noted, &vm, &opened).unwrap());
                assert_eq!(noted.0, [vm.pid]);
                process.kill().unwrap();
                process.wait().unwrap();
            }
        }
    }
}
