//! A guest that reports its part of the path: two vCPUs, `teiji-guest`, and what the tests of both do with it.
//!
//! | CPU of the lab host | runs |
//! | --- | --- |
//! | [`CALLER_CPU`](load::CALLER_CPU) | the callers |
//! | [`VHOST_CPU`](load::VHOST_CPU) | the vhost worker |
//! | 2, 3 | vCPU 0, which can be given the interrupts of the NIC, and vCPU 1 |

use crate::load;
use crate::tracing::{Lab, Trace, Traced};
use anyhow::{Context, Result};
use std::time::Duration;
use teiji_lab::{Child, Guest, GuestSpec};
use teiji_model::guest::PORT;
use teiji_model::report::{GuestPart, Inside, Request, StageReport, VmReport};
use teiji_model::stage::{Split, Stage, ThreadState};

/// In an emulated machine, programs are first read over a network file system, and the verifier takes seconds.
pub const START: Duration = Duration::from_secs(180);
/// The CPU of the lab host on which vCPU 1 runs.
pub const READER_CPU: u32 = 3;

/// Boots the guest, and copies `teiji-guest` into it, which it gets as a disk.
///
/// # Errors
/// If the guest does not boot.
pub fn guest<'l>(lab: &'l Lab, name: &str) -> Result<Guest<'l>> {
    guest_with(lab, GuestSpec::named(name))
}

/// The same with a virtual function of the lab host's NIC ([`GuestSpec::vf`]).
///
/// # Errors
/// If the guest does not boot.
pub fn guest_with_vf<'l>(lab: &'l Lab, name: &str) -> Result<Guest<'l>> {
    guest_with(lab, GuestSpec { vf: true, ..GuestSpec::named(name) })
}

fn guest_with<'l>(lab: &'l Lab, spec: GuestSpec) -> Result<Guest<'l>> {
    let program = "-drive if=none,id=guest,format=raw,readonly=on,file=/mnt/bin/teiji-guest \
                   -device virtio-blk-pci,drive=guest,serial=guest";
    let spec = GuestSpec {
        vcpus: 2,
        pins: vec![load::VCPU_CPU, READER_CPU],
        vhost_cpu: Some(load::VHOST_CPU),
        qemu_args: program.split_whitespace().map(str::to_owned).collect(),
        ..spec
    };
    let guest = lab.host.guest(&spec)?;
    let install = "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" != guest ] || cat /dev/${d##*/} >/run/teiji-guest; done; \
                   chmod +x /run/teiji-guest";
    guest.run_for(install, START)?.ok()?;
    Ok(guest)
}

/// Starts `teiji-guest` in a guest.
///
/// # Errors
/// If it does not start.
pub fn serve(guest: &Guest<'_>) -> Result<Child> {
    let program = guest.spawn("exec /run/teiji-guest serve 2>&1")?;
    program.wait_for("waiting for the host", START)?;
    Ok(program)
}

/// Starts it on TCP instead of vsock, with this token.
///
/// # Errors
/// If it does not start.
pub fn serve_tcp(guest: &Guest<'_>, token: &str) -> Result<Child> {
    let (file, address) = ("/run/teiji-token", guest.ip());
    let serve = format!("/run/teiji-guest serve --no-vsock --tcp {address}:{PORT} --token-file {file}");
    // One that was killed just now may listen there still.
    let free = format!("while ss -Hltn sport = {PORT} | grep -q .; do sleep 0.1; done");
    let program = guest.spawn(&format!("{free}; (umask 077; echo {token} >{file}); exec {serve} 2>&1"))?;
    program.wait_for("waiting for the host on TCP", START)?;
    Ok(program)
}

/// Traces, and records, while `load` runs. The guest attaches its probes first: the trace says when it reports.
///
/// # Errors
/// If the trace or the load fails.
pub fn traced<T>(
    lab: &Lab,
    stem: &str,
    arguments: &str,
    load: impl FnOnce() -> Result<T>,
) -> Result<(Traced, T)> {
    let trace = Trace::start(lab, stem, arguments, true)?;
    trace.wait_for("reports its part of the path", START)?;
    let loaded = load()?;
    // What the guest reports of the last requests is on its way: two seconds of the lab's clock.
    lab.host.run("sleep 2")?.ok()?;
    Ok((trace.stop()?, loaded))
}

/// What the guest reported.
///
/// # Errors
/// If it reported nothing.
pub fn inside(vm: &VmReport) -> Result<&Inside> {
    vm.inside.as_ref().context("the guest reported nothing")
}

/// Has the NIC interrupt vCPU 0, and the processes that `pattern` (of `pgrep -f`) finds run on `vcpus`: on vCPU 1, a packet has
/// to wake the vCPU of its reader.
///
/// # Errors
/// If the guest does not answer.
pub fn place(guest: &Guest<'_>, pattern: &str, vcpus: &str) -> Result<()> {
    // taskset fails if a thread of the process ends meanwhile. Threads made after that run where the one that makes them does.
    let command = format!(
        "for i in $(grep virtio.*-input /proc/interrupts | cut -d: -f1); do echo 0 >/proc/irq/$i/smp_affinity_list; done; \
         for p in $(pgrep -f '{pattern}'); do until taskset -acp {vcpus} $p; do [ -d /proc/$p ] || exit 1; done; done"
    );
    guest.run(&command)?.ok()?;
    Ok(())
}

/// Does something when it is dropped, so that what a test has changed is put right however the test ends.
pub struct Undo<F: FnMut() -> Result<()>>(pub F);

impl<F: FnMut() -> Result<()>> Drop for Undo<F> {
    fn drop(&mut self) {
        let undone = (self.0)();
        // A test that has failed says why by itself.
        if !std::thread::panicking() {
            assert!(undone.is_ok(), "not put right: {undone:?}");
        }
    }
}

/// Runs a command in a guest when it is dropped: see [`Undo`].
pub fn undo(guest: &Guest<'_>, command: &str) -> Undo<impl FnMut() -> Result<()>> {
    Undo(move || {
        guest.run(command)?.ok()?;
        Ok(())
    })
}

/// Whether a request waited for a thread of the host while it was in this state: for the vhost worker, the vCPU that took the
/// interrupt, another vCPU on which the application read. `None`: that is not known.
pub fn met(request: &Request, state: ThreadState) -> [Option<bool>; 3] {
    let met = |split: Option<Split>| split.map(|split| split.get(state) > 0);
    let of = |stage: Stage| met(request.stages.iter().find(|s| s.stage == stage)?.split);
    let reader = || {
        let inside = request.inside?;
        if inside.moved { met(inside.splits[GuestPart::SocketWait as usize]) } else { Some(false) }
    };
    [of(Stage::TapQueue), of(Stage::VcpuWake), reader()]
}

/// How many threads of the host a request had to wake, of those that are [`met`].
pub fn woken(request: &Request) -> u32 {
    met(request, ThreadState::Asleep).into_iter().map(|slept| u32::from(slept == Some(true))).sum()
}

/// The shares of a VM's response time in which its worker, and its vCPUs, were asleep while a request waited for them.
pub fn wake_shares(vm: &VmReport) -> [f64; 2] {
    let asleep = |stage: &StageReport| {
        let of = stage.parts.iter().filter(|part| part.state == ThreadState::Asleep);
        of.map(|part| part.time_share).sum::<f64>()
    };
    let of =
        |which: &dyn Fn(Stage) -> bool| vm.stages.iter().filter(|s| which(s.stage)).map(asleep).sum::<f64>();
    let total = vm.total.map_or(f64::INFINITY, |total| total.mean);
    let reader = vm.inside.iter().flat_map(|inside| &inside.parts);
    let reader = reader.filter(|part| part.part == GuestPart::SocketWait).flat_map(|part| &part.states);
    let reader = reader.filter(|s| s.state == Some(ThreadState::Asleep)).map(|s| s.mean).sum::<f64>();
    let worker = of(&|stage| matches!(stage, Stage::TapQueue | Stage::VhostTx));
    [worker, of(&|stage| stage == Stage::VcpuWake) + reader / total]
}
