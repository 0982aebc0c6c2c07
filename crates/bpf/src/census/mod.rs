//! Counts what the threads of VMs do, and how long that takes: the Rust half of `census.bpf.c`.
//!
//! ```text
//! Probes::start ── leave out what the kernel lacks, load, attach ──► Probes
//!    │ follow: whose threads are counted
//!    └ read: what a thread has done so far
//! ```
//! Dropping [`Probes`] detaches them; so does any end of the process.

/// Types shared with the C half, generated from the compiled object.
#[allow(missing_docs, unused, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/census.skel.rs"));
}
use skeleton::types;

use crate::Error;
use crate::Verified;
use crate::hooks::{self, Hook, KernelTypes};
use crate::object::{self, bytes_of, map, value_of};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use teiji_model::census::{Activity, Census, Exit};
use teiji_model::host::Vm;

/// The compiled programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/census.bpf.o"));

/// Exit codes of AMD (`SVM_EXIT_*`, arch/x86/include/uapi/asm/svm.h).
const AMD: [(u32, Exit); 14] = [
    (0x060, Exit::Interrupt),
    (0x061, Exit::Interrupt),
    (0x064, Exit::Window),
    (0x072, Exit::Cpuid),
    (0x077, Exit::Pause),
    (0x078, Exit::Halt),
    (0x07b, Exit::Port),
    (0x07c, Exit::Msr),
    (0x081, Exit::Hypercall),
    (0x08b, Exit::Halt),
    // IDLE_HLT: HLT without a pending interrupt
    (0x0a6, Exit::Halt),
    (0x400, Exit::Memory),
    (0x401, Exit::Apic),
    (0x402, Exit::Apic),
];

/// Exit reasons of Intel (`EXIT_REASON_*`, arch/x86/include/uapi/asm/vmx.h).
const INTEL: [(u32, Exit); 18] = [
    (1, Exit::Interrupt),
    (7, Exit::Window),
    (10, Exit::Cpuid),
    (12, Exit::Halt),
    (18, Exit::Hypercall),
    (30, Exit::Port),
    (31, Exit::Msr),
    (32, Exit::Msr),
    (36, Exit::Halt),
    (40, Exit::Pause),
    (44, Exit::Apic),
    (45, Exit::Apic),
    (48, Exit::Memory),
    (49, Exit::Memory),
    // KVM lets the guest's timer end by it.
    (52, Exit::Interrupt),
    (56, Exit::Apic),
    (84, Exit::Msr),
    (85, Exit::Msr),
];

/// Probes that count.
pub struct Probes {
    threads: MapHandle,
    /// Threads that have an entry, and since when, ns.
    followed: BTreeMap<u32, u64>,
    hooks: Vec<Hook>,
    halts_are_seen: bool,
    object: Object,
    _links: Vec<Link>,
}

/// The hooks of the probes, and whether this kernel has them.
fn hooks() -> Result<Vec<Hook>, Error> {
    let mut hooks = KernelTypes::load()?.hooks(&open()?);
    hooks::mark_forbidden(&mut hooks, open)?;
    Ok(hooks)
}

fn open() -> Result<OpenObject, Error> {
    crate::silence_libbpf();
    let opened = ObjectBuilder::default().name("census").and_then(|builder| builder.open_memory(OBJECT));
    opened.map_err(|e| Error::kernel("open the probes that count", e))
}

/// Loads the programs whose targets the kernel has.
fn load(hooks: &[Hook]) -> Result<Object, Error> {
    let mut object = open()?;
    hooks::select(&mut object, hooks, &|_| true)?;
    let settings = types::census_settings { kinds_amd: kinds(&AMD), kinds_intel: kinds(&INTEL) };
    for mut map in object.maps_mut() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            let image = map.initial_value_mut().filter(|image| image.len() >= size_of_val(&settings));
            let image = image.ok_or_else(|| Error::Kernel {
                doing: "set the probes that count".into(),
                reason: "their settings have no place".into(),
            })?;
            image[..size_of_val(&settings)].copy_from_slice(bytes_of(&settings));
        }
    }
    object.load().map_err(|e| Error::kernel("load the probes that count", e))
}

/// The kind of each exit code.
fn kinds<const N: usize>(named: &[(u32, Exit)]) -> [u8; N] {
    let mut kinds = [Exit::Other as u8; N];
    for (code, exit) in named {
        if let Some(kind) = kinds.get_mut(*code as usize) {
            *kind = *exit as u8;
        }
    }
    kinds
}

impl Probes {
    /// Loads and attaches them; no thread is followed yet. Programs whose target the kernel lacks are left out: [`Probes::unseen`].
    ///
    /// # Errors
    /// [`Error::NoBtf`], [`Error::NotPermitted`], [`Error::Missing`] without KVM's tracepoints, [`Error::Kernel`] if the kernel refuses a
    /// program. Nothing stays attached then.
    pub fn start() -> Result<Probes, Error> {
        let hooks = hooks()?;
        if let Some(lacking) = hooks.iter().find(|hook| hook.kind == "tp_btf" && hook.found.is_none()) {
            return Err(Error::Missing {
                what: format!("the tracepoint {}", lacking.target),
                consequence: "what vCPUs do cannot be counted; is the kvm module loaded?".into(),
            });
        }
        let object = load(&hooks)?;
        let threads = map(&object, "threads")?;
        let mut links = Vec::new();
        for program in object.progs_mut().filter(|program| program.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            links.push(program.attach().map_err(|e| Error::kernel(format!("attach {name}"), e))?);
        }
        let halts_are_seen = hooks.iter().any(|hook| hook.program == "on_halt" && hook.found.is_some());
        Ok(Probes { threads, followed: BTreeMap::new(), hooks, halts_are_seen, object, _links: links })
    }

    /// Counts the vCPU threads and vhost workers of these VMs from `now` on, ns of `CLOCK_MONOTONIC`, and no others. One that was followed
    /// goes on.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there is no room: 16,384 threads.
    pub fn follow(&mut self, vms: &[Vm], now: u64) -> Result<(), Error> {
        let vcpus = vms.iter().flat_map(|vm| &vm.vcpus).map(|vcpu| vcpu.tid);
        let workers = vms.iter().flat_map(|vm| &vm.workers).map(|worker| worker.tid);
        let wanted: BTreeSet<u32> = vcpus.chain(workers).collect();
        self.followed.retain(|tid, _| {
            let stays = wanted.contains(tid);
            if !stays {
                // There may be none.
                let _ = self.threads.delete(&tid.to_ne_bytes());
            }
            stays
        });
        for tid in wanted {
            if let Entry::Vacant(place) = self.followed.entry(tid) {
                let fresh = types::census_thread::default();
                let done = self.threads.update(&tid.to_ne_bytes(), bytes_of(&fresh), MapFlags::ANY);
                done.map_err(|e| Error::kernel(format!("count what thread {tid} does"), e))?;
                place.insert(now);
            }
        }
        Ok(())
    }

    /// What a thread has done since it was followed; `None` if it is not followed. `now` reads `CLOCK_MONOTONIC`, ns.
    pub fn read(&self, tid: u32, now: impl Fn() -> u64) -> Option<Census> {
        let since = self.followed.get(&tid)?;
        let bytes = self.threads.lookup(&tid.to_ne_bytes(), MapFlags::ANY).ok()??;
        // After that: what goes on is taken to have gone on until now.
        let now = now();
        Some(Census {
            observed: now.saturating_sub(*since),
            ..census(&value_of(&bytes), now, self.halts_are_seen)
        })
    }

    /// What cannot be counted on this kernel, for people.
    pub fn unseen(&self) -> Vec<String> {
        let lacking = self.hooks.iter().filter(|hook| hook.found.is_none());
        let mut targets: Vec<&str> = lacking.map(|hook| hook.target.as_str()).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
            .iter()
            .map(|target| {
                format!("calls of {target}: this kernel has no such function, none that can be probed, or its module was not loaded at the start")
            })
            .collect()
    }

    /// How many instructions the kernel's verifier processed for each program.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not report it.
    pub fn verified(&self) -> Result<Vec<Verified>, Error> {
        object::verified(&self.object)
    }
}

/// What a thread has done, with what it does now.
fn census(thread: &types::census_thread, now: u64, halts_are_seen: bool) -> Census {
    let done = |done: types::done| Activity { count: done.times, ns: done.ns };
    let mut census = Census {
        observed: 0,
        guest: done(thread.guest),
        halted: done(thread.halted),
        woken_polling: done(thread.polled),
        exits: thread.exits.map(done),
        rx: done(thread.rx),
        tx: done(thread.tx),
    };
    let ago = now.saturating_sub(thread.since);
    match types::doing(thread.doing) {
        types::doing::DOING_GUEST => census.guest.ns += ago,
        types::doing::DOING_RX => census.rx.ns += ago,
        types::doing::DOING_TX => census.tx.ns += ago,
        doing @ (types::doing::DOING_EXIT | types::doing::DOING_HALT) => {
            // Since it left guest mode; of a halt that goes on, the time until then is of the exit.
            let halts = if doing == types::doing::DOING_HALT { ago } else { 0 };
            let away = now.saturating_sub(thread.left);
            census.halted.ns += halts;
            // Where it is not seen that a vCPU halts, all of it is told when it is woken.
            let told_later = !halts_are_seen && thread.exit == Exit::Halt as u32;
            if let Some(exit) = census.exits.get_mut(thread.exit as usize).filter(|_| !told_later) {
                exit.ns += away.saturating_sub(halts).saturating_sub(thread.halted_since_exit);
            }
        }
        _ => {}
    }
    census
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_counted_until_now() {
        let of = |doing: types::doing, since: u64| types::census_thread {
            since,
            doing: doing.0,
            exit: Exit::Halt as u32,
            left: 500,
            halted_since_exit: 30,
            ..types::census_thread::default()
        };
        let at_1000 = |doing, since| census(&of(doing, since), 1000, true);
        assert_eq!(at_1000(types::doing::DOING_GUEST, 700).guest, Activity { count: 0, ns: 300 });
        assert_eq!(at_1000(types::doing::DOING_GUEST, 1100).guest, Activity::default());
        assert_eq!(at_1000(types::doing::DOING_TX, 900).tx.ns, 100);
        // It left guest mode at 500, and was halted for 30 since then.
        assert_eq!(at_1000(types::doing::DOING_EXIT, 600).all_exits().ns, 470);
        // And is halted again since 800.
        let halted = at_1000(types::doing::DOING_HALT, 800);
        assert_eq!((halted.halted.ns, halted.exits[Exit::Halt as usize].ns), (200, 270));
        assert_eq!(at_1000(types::doing::DOING_UNKNOWN, 0), Census::default());
        assert_eq!(census(&of(types::doing::DOING_EXIT, 600), 1000, false), Census::default());
    }

    #[test]
    fn exit_codes_have_their_kinds() {
        let amd: [u8; 1088] = kinds(&AMD);
        assert_eq!(
            [0x78, 0x400, 0x10].map(|code| amd[code]),
            [Exit::Halt, Exit::Memory, Exit::Other].map(|e| e as u8)
        );
        let intel: [u8; 1088] = kinds(&INTEL);
        assert_eq!(
            [12, 49, 60].map(|code| intel[code]),
            [Exit::Halt, Exit::Memory, Exit::Other].map(|e| e as u8)
        );
    }
}
