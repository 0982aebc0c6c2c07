//! The threads of real-time VMs by the deadlines of their packets: the Rust half of `scx_vcpu.bpf.c`, which says how
//! threads are chosen.
//!
//! ```text
//! VcpuScheduler::load ── verify, attach: from now on it schedules every thread of the host
//!      │ put_vm, put_tap, assign: which VMs are real-time, which taps and threads are theirs
//!      ▼
//!   ended ── the kernel has returned to its own scheduler, and why
//! ```
//! Nothing is pinned: when the process ends, however it ends, the kernel returns to its own scheduler within
//! milliseconds. A thread that ends is forgotten by itself.
use crate::Error;
use crate::common::netns;
use crate::hooks::KernelTypes;
use crate::object::{Verified, bytes_of, map, value_of, verified};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramInput};
use std::sync::OnceLock;
use std::time::Duration;
use teiji_model::resource::Task;

/// Types shared with the C half, generated from the compiled object.
#[allow(missing_docs, unused, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/scx_vcpu.skel.rs"));
}
use skeleton::types;

/// The compiled programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scx_vcpu.bpf.o"));

/// The name by which the kernel knows the scheduler.
pub const NAME: &str = "teiji_vcpu";

/// Most real-time VMs at a time.
pub const MAX_VMS: u32 = types::vcpu_limits::MAX_VMS.0;
/// Most threads of these together: vCPUs and vhost workers.
pub const MAX_THREADS: u32 = types::vcpu_limits::MAX_THREADS.0;

/// Figures that guarantees are calculated with; times in ns.
pub struct Figures;

impl Figures {
    /// Slots per period. At least one less lies between two full budgets.
    pub const SLOTS_PER_PERIOD: u64 = types::vcpu_figures::SLOTS_PER_PERIOD.0 as u64;
    /// The longest turn of threads that go by weight, while others would go before them.
    pub const MAX_OWED: u64 = types::vcpu_figures::MAX_OWED.0 as u64;
    /// Threads go before others for at most so many times as long as others run.
    pub const EDF_PER_OTHERS: u64 = types::vcpu_figures::EDF_PER_OTHERS.0 as u64;
    /// Less of a budget is not used.
    pub const MIN_SLICE: u64 = types::vcpu_figures::MIN_SLICE.0 as u64;
}

/// The scheduler while it schedules.
pub struct VcpuScheduler {
    object: Object,
    vms: MapHandle,
    ports: MapHandle,
    states: MapHandle,
    threads: MapHandle,
    netns: u64,
    _links: Vec<Link>,
}

/// What a real-time VM is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmSettings {
    /// From a packet's arrival at a tap of the VM to the deadline of the threads that handle it; without a packet, from a thread's
    /// wake-up. At most the period.
    pub deadline: Duration,
    /// Of the budget.
    pub period: Duration,
    /// CPU time in each period for which the VM's threads go before those of others.
    pub budget: Duration,
}

/// What a thread of a VM does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Moves packets between taps and the guest.
    VhostWorker,
    /// Runs the guest.
    Vcpu,
}

/// The kernel has ended a scheduler for a reason of its own, as when a CPU comes or goes: `SCX_EXIT_UNREG_KERN` in
/// kernel/sched/ext_internal.h.
const EXIT_UNREG_KERN: u32 = 66;

/// That the kernel has returned to its own scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why. Printable as far as the kernel's text is.
    pub why: String,
    /// Nothing was wrong with the scheduler, and nobody wanted it to end: it may be loaded again at once.
    pub may_return: bool,
}

/// What a real-time VM has got since the scheduler was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmStats {
    /// Packets that came for it through its taps.
    pub packets: u64,
    /// Packets that it left unanswered for eight times its deadline without sleeping.
    pub expired: u64,
    /// CPU time before others.
    pub before_others: Duration,
    /// CPU time by weight.
    pub by_weight: Duration,
    /// Times, at least a period apart, that a thread of it began to run and less than 50 µs of its budget were left.
    pub exhausted: u64,
    /// Turns of its threads before others.
    pub turns: u64,
    /// Of these, the ones that took over 500 µs longer than was granted: the CPU could not be interrupted, or stood still.
    pub overruns: u64,
    /// Of the overruns, those whose timer fired over 500 µs late: the CPU stood still, or its softirqs came late.
    pub late_timers: u64,
}

impl VmStats {
    /// What was added since `before`.
    pub fn since(&self, before: &VmStats) -> VmStats {
        VmStats {
            packets: self.packets.saturating_sub(before.packets),
            expired: self.expired.saturating_sub(before.expired),
            before_others: self.before_others.saturating_sub(before.before_others),
            by_weight: self.by_weight.saturating_sub(before.by_weight),
            exhausted: self.exhausted.saturating_sub(before.exhausted),
            turns: self.turns.saturating_sub(before.turns),
            overruns: self.overruns.saturating_sub(before.overruns),
            late_timers: self.late_timers.saturating_sub(before.late_timers),
        }
    }
}

/// A thread of a real-time VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStats {
    /// Its id.
    pub id: u32,
    /// Its VM's number.
    pub vm: u32,
    /// What it does.
    pub role: Role,
    /// How often it waited for a CPU after a wake-up: number n counts waits from 2^n ns up to twice that.
    pub waits: Vec<u64>,
}

/// Whether this kernel has sched_ext as scx_vcpu needs it, and is not known to fail with it.
///
/// # Errors
/// [`Error::NoBtf`]; [`Error::Missing`]; [`Error::Kernel`] if the kernel's release cannot be read.
pub fn supported() -> Result<(), Error> {
    // A running kernel does not get it later.
    static IS: OnceLock<()> = OnceLock::new();
    if IS.get().is_some() {
        return Ok(());
    }
    let running = nix::sys::utsname::uname()
        .map_err(|e| Error::Kernel { doing: "ask for the kernel's release".into(), reason: e.to_string() })?;
    if may_hang(&running.release().to_string_lossy()) {
        return Err(Error::Missing {
            what:
                "a fix for the fault of Linux 7.1 by which a host may hang when a VM starts under sched_ext \
                   (sched-ext/scx#3687)"
                    .into(),
            consequence:
                "vCPUs cannot be scheduled by the deadlines of packets; use Linux 6.19 or newer, but not 7.1"
                    .into(),
        });
    }
    looked_for()?;
    IS.get_or_init(|| ());
    Ok(())
}

/// Whether a host with this release (`uname -r`) may hang when a VM starts under a scheduler of sched_ext: reported of 7.1.3 with a
/// different one, with nothing in any log. Whether it was mended, and where, is not known, so all of 7.1 is left out; 7.3 was tried.
fn may_hang(release: &str) -> bool {
    release.strip_prefix("7.1").is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

fn looked_for() -> Result<(), Error> {
    /// Of sched_ext's functions, the ones that came last.
    const NEEDED: [&str; 3] = ["__scx_bpf_dsq_insert_vtime", "scx_bpf_dsq_peek", "scx_bpf_task_set_slice"];
    let types = KernelTypes::load()?;
    if types.has_struct_ops("sched_ext_ops") && NEEDED.iter().all(|function| types.has_function(function)) {
        return Ok(());
    }
    Err(Error::Missing {
        what: "sched_ext as of Linux 6.19".into(),
        consequence:
            "vCPUs cannot be scheduled by the deadlines of packets; use Linux 6.19 or newer, built with \
                      CONFIG_SCHED_CLASS_EXT=y"
                .into(),
    })
}

fn open() -> Result<OpenObject, Error> {
    crate::silence_libbpf();
    let object = ObjectBuilder::default().name("scx_vcpu").and_then(|b| b.open_memory(OBJECT));
    object.map_err(|e| Error::kernel("open the vCPU scheduler", e))
}

impl VcpuScheduler {
    /// Replaces the kernel's scheduler until this is dropped. No VM is real-time yet.
    ///
    /// # Errors
    /// [`Error::NoBtf`]; [`Error::Missing`]; [`Error::NotPermitted`]; [`Error::Kernel`] if the kernel refuses, for example as
    /// another scheduler of sched_ext is in use.
    pub fn load() -> Result<(VcpuScheduler, Vec<Verified>), Error> {
        supported()?;
        let mut open = open()?;
        let host = types::settings_of_host { cpus: cpus()?, ..Default::default() };
        let mut constants = open.maps_mut().find(|m| m.name().to_string_lossy().ends_with(".rodata.host"));
        let constants =
            constants.as_mut().and_then(|m| m.initial_value_mut()).ok_or_else(|| lacks(".rodata.host"))?;
        constants[..size_of_val(&host)].copy_from_slice(bytes_of(&host));
        let mut object = open.load().map_err(|e| Error::kernel("load the vCPU scheduler", e))?;
        let verified = verified(&object)?;
        let mut links = Vec::new();
        for program in object.progs_mut().filter(|p| p.section().to_string_lossy().starts_with("tp_btf/")) {
            let name = program.name().to_string_lossy().into_owned();
            links.push(program.attach().map_err(|e| Error::kernel(format!("attach {name}"), e))?);
        }
        let mut operations = object.maps_mut().find(|m| m.name() == "vcpu").ok_or_else(|| lacks("vcpu"))?;
        let attached = operations.attach_struct_ops();
        links.push(attached.map_err(|e| Error::kernel("replace the kernel's scheduler", e))?);
        let maps = |name| map(&object, name);
        let (vms, ports, states, threads) = (maps("vms")?, maps("ports")?, maps("states")?, maps("threads")?);
        let netns = netns::cookie()?;
        Ok((VcpuScheduler { vms, ports, states, threads, netns, _links: links, object }, verified))
    }

    /// Makes a VM real-time, or changes what it is promised. `vm`: any number below [`MAX_VMS`].
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn put_vm(&self, vm: u32, settings: &VmSettings) -> Result<(), Error> {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        let settings = types::vm_settings {
            deadline: ns(settings.deadline),
            period: ns(settings.period),
            budget: ns(settings.budget),
        };
        put(&self.vms, "vms", &vm.to_ne_bytes(), bytes_of(&settings))
    }

    /// A tap of this network namespace is the VM's.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn put_tap(&self, ifindex: u32, vm: u32) -> Result<(), Error> {
        let port = types::port { netns: self.netns, ifindex, ..Default::default() };
        put(&self.ports, "ports", bytes_of(&port), &vm.to_ne_bytes())
    }

    /// A tap of this network namespace is no VM's any more.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn remove_tap(&self, ifindex: u32) -> Result<(), Error> {
        let port = types::port { netns: self.netns, ifindex, ..Default::default() };
        match self.ports.delete(bytes_of(&port)) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::kernel("remove from the map ports", e))
            }
            _ => Ok(()),
        }
    }

    /// A thread is the VM's, until it ends. Returns false if it has ended.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are [`MAX_THREADS`] already; [`Error::Kernel`], also if the thread is another VM's.
    pub fn assign(&mut self, thread: &Task, vm: u32, role: Role) -> Result<bool, Error> {
        let free = self.slots()?.iter().position(|slot| slot.pid == 0).unwrap_or(MAX_THREADS as usize);
        let assignment = types::assignment {
            pid: thread.id,
            vm,
            role: match role {
                Role::VhostWorker => types::thread_role::VHOST_WORKER.0,
                Role::Vcpu => types::thread_role::VCPU.0,
            },
            slot: free as u32,
            start_tick: thread.started,
        };
        let mut context = bytes_of(&assignment).to_vec();
        let program =
            self.object.progs_mut().find(|p| p.name() == "assign").ok_or_else(|| lacks("assign"))?;
        let input = ProgramInput { context_in: Some(&mut context), ..Default::default() };
        let done = program.test_run(input).map_err(|e| Error::kernel("assign a thread", e))?;
        match done.return_value as i32 {
            0 => Ok(true),
            error if error == -libc::ESRCH => Ok(false),
            error if error == -libc::ENOSPC => Err(Error::Refused {
                doing: format!("schedule thread {} by deadlines", thread.id),
                reason: format!("{MAX_THREADS} threads are already: use class = \"packets\" for fewer VMs"),
            }),
            error => Err(Error::Kernel {
                doing: format!("assign thread {}", thread.id),
                reason: std::io::Error::from_raw_os_error(-error).to_string(),
            }),
        }
    }

    /// What a VM has got.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn vm_stats(&self, vm: u32) -> Result<VmStats, Error> {
        let bytes = self.states.lookup(&vm.to_ne_bytes(), MapFlags::ANY);
        let state: types::vm_state =
            value_of(&bytes.map_err(|e| Error::kernel("read the map states", e))?.unwrap_or_default());
        Ok(VmStats {
            packets: state.packets,
            expired: state.expired,
            before_others: Duration::from_nanos(state.edf_time),
            by_weight: Duration::from_nanos(state.fair_time),
            exhausted: state.exhausted,
            turns: state.turns,
            overruns: state.overruns,
            late_timers: state.late_timers,
        })
    }

    /// The threads of all real-time VMs.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn threads(&self) -> Result<Vec<ThreadStats>, Error> {
        let used = self.slots()?.into_iter().filter(|slot| slot.pid != 0);
        let stats = |slot: types::thread| ThreadStats {
            id: slot.pid,
            vm: slot.vm,
            role: if slot.role == types::thread_role::VCPU.0 { Role::Vcpu } else { Role::VhostWorker },
            waits: slot.latencies.to_vec(),
        };
        Ok(used.map(stats).collect())
    }

    /// Why the kernel has returned to its own scheduler; `None` while this one schedules.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn ended(&self) -> Result<Option<Ended>, Error> {
        let bytes = map(&self.object, "ended")?.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let bytes = bytes.map_err(|e| Error::kernel("read the map ended", e))?;
        let info: types::exit_info = value_of(&bytes.unwrap_or_default());
        let text = |raw: &[i8]| -> String {
            let bytes: Vec<u8> = raw.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (reason, message) = (text(&info.reason), text(&info.message));
        Ok((info.kind != 0).then(|| Ended {
            why: [reason, message].into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join(": "),
            may_return: info.kind == EXIT_UNREG_KERN,
        }))
    }

    fn slots(&self) -> Result<Vec<types::thread>, Error> {
        let slot = |n: u32| {
            let bytes = self.threads.lookup(&n.to_ne_bytes(), MapFlags::ANY);
            Ok(value_of(&bytes.map_err(|e| Error::kernel("read the map threads", e))?.unwrap_or_default()))
        };
        (0..MAX_THREADS).map(slot).collect()
    }
}

/// The number of CPUs that this host may have, hot-plugged ones included.
fn cpus() -> Result<u32, Error> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(|e| Error::kernel("count the CPUs", e))?;
    let most = types::vcpu_limits::MAX_CPUS.0;
    u32::try_from(cpus).ok().filter(|cpus| *cpus <= most).ok_or_else(|| Error::Missing {
        what: format!("{most} CPUs or fewer"),
        consequence: "the vCPU scheduler keeps state for so many".into(),
    })
}

fn put(map: &MapHandle, name: &str, key: &[u8], value: &[u8]) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY).map_err(|e| Error::kernel(format!("write the map {name}"), e))
}

fn lacks(what: &str) -> Error {
    Error::Kernel { doing: format!("find {what}"), reason: "the object does not have it".into() }
}

#[cfg(test)]
mod budget_check;
#[cfg(test)]
mod tests {
    use super::may_hang;

    #[test]
    fn kernels_that_may_hang_are_told_from_others() {
        for release in ["7.1.3", "7.1.0-rc4+", "7.1-rc1", "7.1.12+deb13-amd64", "7.1"] {
            assert!(may_hang(release), "{release}");
        }
        for release in ["7.10.1", "7.3.4+deb13-amd64", "6.19.7", "17.1.3", "6.7.1", ""] {
            assert!(!may_hang(release), "{release}");
        }
    }
}
