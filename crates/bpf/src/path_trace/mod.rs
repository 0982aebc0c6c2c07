//! Follows packets between a host's NIC and its guests: the Rust half of `path_trace.bpf.c`.
//!
//! ```text
//! Tracer::start ── open, leave out what the kernel lacks, set, load, fill maps, attach ──► Tracer
//! Tracer::drain ── records of the ring buffer become events ──► the caller
//! Tracer::stop  ── detach; what is in the buffer can still be drained
//! ```
//! Dropping a [`Tracer`] detaches it; so does any end of the process.
#[cfg(test)]
mod check;
mod convert;
mod drop_reasons;
mod settings;
mod targets;

/// Types shared with the C half, generated from the compiled object.
#[allow(missing_docs, unused, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/path_trace.skel.rs"));
}
use skeleton::types;

use crate::Error;
use crate::Verified;
use crate::hooks::{self, Hook, KernelTypes};
use crate::object::{self, bytes_of, map};
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, RingBuffer, RingBufferBuilder,
};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::OnceLock;
use teiji_model::event::{Event, EventKind};
use teiji_model::flow::{Key, Matching, Watch};
use teiji_model::guest::Secret;
use teiji_model::host::Vm;

/// The compiled programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/path_trace.bpf.o"));

/// The programs of [`OBJECT`] for kernels where a program cannot find out whether a thread is interrupted, as it cannot use their
/// variables ([`KernelTypes::can_use_variable`]).
static OBJECT_WITHOUT_PREEMPT_COUNT: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/path_trace_plain.bpf.o"));

/// The variable with the preemption count, which includes interrupts: the first one before Linux 6.2 and from 6.15 on, the other
/// one in between.
const PREEMPT_COUNT: [&str; 2] = ["__preempt_count", "pcpu_hot"];

/// Most records that are taken from the kernel before they are handed on. Bounds the memory of a drain.
const BATCH: usize = 4096;

/// Programs that are of use only if guests report events themselves. A run of them that is missed costs no more than that
/// one request is not divided by what its guest reports, or that it is not known who woke a thread.
const FOR_GUESTS: [&str; 3] = ["on_print_sent", "on_print_put", "on_sched_waking"];

/// Programs whose missed runs are not counted: each runs for every signal, round or frame of a vhost worker, so a worker that is
/// preempted within one may make many others miss a run. Of a signal, what was missed is seen at its end or when the worker takes
/// the next packet, and costs the packets of that signal only (see `signals.bpf.h`). Of a round (`on_handle_rx`), the depth of the
/// queue leaves out vhost's batch if it is the worker's first; of a frame, `vhost_tx` is not divided by what the worker did.
const MISSES_NOT_COUNTED: [&str; 8] = [
    "on_signal",
    "on_written",
    "on_signalled",
    "on_handle_rx",
    "on_tun_sendmsg",
    "on_tun_sent",
    "on_macvtap_sendmsg",
    "on_macvtap_sent",
];

/// Hooks without which no packet can be followed at all.
const NEEDED_TO_START: [&str; 2] = ["netif_receive_skb", "net_dev_start_xmit"];

/// What to trace.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Flow, direction, matching.
    pub watch: &'a Watch,
    /// The VMs that are there: their taps, MAC addresses and threads.
    pub vms: &'a [Vm],
    /// Whether guests may report events themselves.
    pub guests: bool,
    /// Size of the ring buffer in bytes; rounded up to a power of two of at least 64 KiB.
    pub buffer_bytes: usize,
}

/// An event, and the first bytes of its payload if the matching needs them.
pub struct EventWithPayload {
    /// The event. Its `matching` is empty if there is a payload: the caller parses the payload and fills it in.
    pub event: Event,
    /// First bytes of a UDP payload, empty unless SIP was requested.
    pub payload: Vec<u8>,
}

/// What the probes counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that did not fit into the buffer, by CPU.
    pub lost: Vec<u64>,
    /// Runs of probes that the kernel skipped because the same probe was already running on that CPU.
    pub missed: u64,
    /// Packets that could not be identified.
    pub unidentified: u64,
}

/// Programs that run in the kernel.
pub struct Tracer {
    links: Vec<Link>,
    ring: RingBuffer<'static>,
    batch: Rc<RefCell<Vec<EventWithPayload>>>,
    counters: MapHandle,
    hooks: Vec<Hook>,
    object: Object,
    drop_names: drop_reasons::Names,
    targets: targets::Targets,
}

/// The hooks of all programs, and whether this kernel has them.
///
/// # Errors
/// [`Error::NoBtf`].
pub fn hooks() -> Result<Vec<Hook>, Error> {
    let kernel = KernelTypes::load()?;
    let open = || open_object(OBJECT_WITHOUT_PREEMPT_COUNT);
    let mut hooks = kernel.hooks(&open()?);
    hooks::mark_forbidden(&mut hooks, open)?;
    Ok(hooks)
}

/// Tests whether the kernel accepts the programs whose targets it has, with settings that make the verifier process all
/// of their code; nothing is attached, nothing stays loaded. Returns how many instructions the verifier processed, with
/// the settings that make it process the most.
///
/// # Errors
/// [`Error::NoBtf`], [`Error::NotPermitted`], [`Error::Kernel`] if it refuses one.
pub fn try_load() -> Result<Vec<Verified>, Error> {
    let (hooks, kernel) = (hooks()?, KernelTypes::load()?);
    let mut most: Vec<Verified> = Vec::new();
    let key = Key::new(0, Key::MAX_LEN).map(Matching::Key);
    let others = [Matching::Sip, Matching::Dns, Matching::Tcp, Matching::Echo];
    for matching in others.into_iter().chain(key) {
        let watch = Watch { matching, ..Watch::default() };
        let mut object = open(&kernel)?;
        let setup = Setup { watch: &watch, vms: &[], guests: true, buffer_bytes: 0 };
        prepare(&mut object, &setup, &hooks, has_loads(&kernel))?;
        let object = object.load().map_err(|e| Error::kernel("load the packet probes", e))?;
        for program in object::verified(&object)? {
            match most.iter_mut().find(|other| other.program == program.program) {
                Some(other) => other.instructions = other.instructions.max(program.instructions),
                None => most.push(program),
            }
        }
    }
    Ok(most)
}

/// Leaves out the programs whose targets this kernel lacks, and writes the settings, constants to the verifier.
fn prepare(object: &mut OpenObject, setup: &Setup<'_>, hooks: &[Hook], loads: bool) -> Result<(), Error> {
    hooks::select(object, hooks, &|program| setup.guests || !FOR_GUESTS.contains(&program))?;
    let probed = |target: &str| hooks.iter().any(|h| h.target == target && h.found.is_some());
    let offers = settings::Offers { probed: &probed, loads };
    let bytes = setup.buffer_bytes.max(1 << 16).checked_next_power_of_two().unwrap_or(1 << 30);
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == "records" {
            let size = u32::try_from(bytes).unwrap_or(1 << 30);
            map.set_max_entries(size).map_err(|e| Error::kernel("size the record buffer", e))?;
        } else if name.ends_with(".rodata") {
            let image = map.initial_value_mut().ok_or_else(|| Error::Kernel {
                doing: "set the packet probes".into(),
                reason: "their settings have no place".into(),
            })?;
            settings::fill(image, setup, &offers)?;
        }
    }
    Ok(())
}

/// Whether the programs can read the preemption count. The first answer counts: a process runs on one kernel. Public for
/// `experiments/kernels/verify.rs`.
#[doc(hidden)]
pub fn has_preempt_count(kernel: &KernelTypes) -> Result<bool, Error> {
    static HAS_PREEMPT_COUNT: OnceLock<bool> = OnceLock::new();
    if let Some(has) = HAS_PREEMPT_COUNT.get() {
        return Ok(*has);
    }
    let mut has = false;
    for name in PREEMPT_COUNT {
        has |= kernel.can_use_variable(name)?;
    }
    Ok(*HAS_PREEMPT_COUNT.get_or_init(|| has))
}

/// A recording has some kinds of events in frames of their own: they are grouped, so that it has few. But no event is moved by more
/// than 2^27 ns (134 ms), however long teiji was held up and a batch grew: the analysis waits 500 ms for one that comes late.
fn group(batch: &mut [EventWithPayload]) {
    batch.sort_by_key(|e| {
        let frame = match e.event.kind {
            EventKind::VcpuState(_) => 1,
            EventKind::Start(_) => 2,
            EventKind::DeviceInterrupt(_) => 3,
            EventKind::Wait(_) => 4,
            _ => 0,
        };
        (e.event.ts >> 27, frame)
    });
}

/// Interrupts of devices that VMs were given, and which are no NICs: the kernel half does not tell them. By the host's number.
pub struct OtherIrqs(MapHandle);

impl OtherIrqs {
    /// This is one until an instant of `CLOCK_MONOTONIC`, ns. If there is no room for it, it is told.
    pub fn set(&self, irq: u32, until: u64) {
        let _ = self.0.update(&irq.to_ne_bytes(), &until.to_ne_bytes(), MapFlags::ANY);
    }
}

/// Whether programs can load from the kernel's memory, wherever that is: from Linux 6.2 on.
fn has_loads(kernel: &KernelTypes) -> bool {
    kernel.has_function("bpf_rdonly_cast")
}

/// The programs as this kernel can load them.
fn open(kernel: &KernelTypes) -> Result<OpenObject, Error> {
    open_object(if has_preempt_count(kernel)? { OBJECT } else { OBJECT_WITHOUT_PREEMPT_COUNT })
}

fn open_object(object: &[u8]) -> Result<OpenObject, Error> {
    crate::silence_libbpf();
    ObjectBuilder::default()
        .name("path_trace")
        .and_then(|b| b.open_memory(object))
        .map_err(|e| Error::kernel("open the packet probes", e))
}

impl Tracer {
    /// Loads and attaches the probes.
    ///
    /// Programs whose target the kernel lacks are left out: [`Tracer::hooks`] says which.
    ///
    /// # Errors
    /// [`Error::NoBtf`], [`Error::NotPermitted`], [`Error::Missing`] if a hook is lacking without which
    /// nothing can be followed, [`Error::Kernel`] if the kernel refuses a program. Nothing stays attached
    /// then.
    pub fn start(setup: &Setup<'_>) -> Result<Tracer, Error> {
        Tracer::start_at(setup, &|_| true)
    }

    /// [`Tracer::start`], but only the programs at the hooks that `wanted` selects are attached: to measure what each adds.
    #[doc(hidden)]
    pub fn start_at(setup: &Setup<'_>, wanted: &dyn Fn(&Hook) -> bool) -> Result<Tracer, Error> {
        let kernel = KernelTypes::load()?;
        let mut object = open(&kernel)?;
        let mut hooks = kernel.hooks(&object);
        let drop_names = drop_reasons::Names::read(&kernel);
        hooks::mark_forbidden(&mut hooks, || open_object(OBJECT_WITHOUT_PREEMPT_COUNT))?;
        let loads = has_loads(&kernel);
        drop(kernel);
        if let Some(hook) =
            hooks.iter().find(|h| h.found.is_none() && NEEDED_TO_START.contains(&h.target.as_str()))
        {
            return Err(Error::Missing {
                what: format!("{} ({})", hook.target, hook.kind),
                consequence: "packets of virtual machines cannot be followed; is the tun module loaded?"
                    .into(),
            });
        }
        prepare(&mut object, setup, &hooks, loads)?;
        let object = object.load().map_err(|e| Error::kernel("load the packet probes", e))?;
        let targets = targets::Targets::prepare(&object, setup.vms)?;

        let batch = Rc::new(RefCell::new(Vec::with_capacity(BATCH)));
        let records = map(&object, "records")?;
        let sink = Rc::clone(&batch);
        let mut ring = RingBufferBuilder::new();
        ring.add(&records, move |bytes: &[u8]| {
            if let Some(item) = convert::item(bytes) {
                sink.borrow_mut().push(item);
            }
            0
        })
        .map_err(|e| Error::kernel("map the record buffer", e))?;
        let ring = ring.build().map_err(|e| Error::kernel("map the record buffer", e))?;
        let counters = map(&object, "counters")?;

        let mut links = Vec::new();
        for program in object.progs_mut() {
            if !program.autoload() {
                continue;
            }
            let name = program.name().to_string_lossy().into_owned();
            if !hooks.iter().any(|h| h.program == name && wanted(h)) {
                continue;
            }
            links.push(program.attach().map_err(|e| Error::kernel(format!("attach {name}"), e))?);
        }
        Ok(Tracer { links, ring, batch, counters, hooks, object, drop_names, targets })
    }

    /// Follows a VM as it is now: one that has come, or that has other taps or vCPUs than before. Needs no privileges.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there is no room for more: 4,096 taps, 1,024 VMs, 8,192 vCPUs.
    pub fn follow(&mut self, vm: &Vm) -> Result<(), Error> {
        self.targets.set(vm)
    }

    /// The guest of the VM with this process id reports events itself from now on: how it identifies its packets with its
    /// secret is reported ([`teiji_model::event::Print`]). `None`: no longer. Needs [`Setup::guests`].
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses.
    pub fn set_guest(&mut self, pid: u32, secret: Option<&Secret>) -> Result<(), Error> {
        self.targets.set_guest(pid, secret)
    }

    /// Follows no connection of TCP whose end at the guest is this one: a guest reports by it, and what teiji itself causes is
    /// no traffic of the VM. Ends stay. There is room for 64.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses.
    pub fn leave_out(&mut self, end: SocketAddr) -> Result<(), Error> {
        self.targets.leave_out(end)
    }

    /// What user space knows of interrupts of devices that VMs were given. Needs no privileges.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the map cannot be opened.
    pub fn other_irqs(&self) -> Result<OtherIrqs, Error> {
        Ok(OtherIrqs(map(&self.object, "other_irqs")?))
    }

    /// Follows the VM with this process id no longer.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses.
    pub fn forget(&mut self, pid: u32) -> Result<(), Error> {
        self.targets.remove(pid)
    }

    /// What the programs are attached to, and what was left out.
    pub fn hooks(&self) -> &[Hook] {
        &self.hooks
    }

    /// How many instructions the kernel's verifier processed for each program, without those that were left out.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel does not report it (before Linux 5.16).
    pub fn verified(&self) -> Result<Vec<Verified>, Error> {
        object::verified(&self.object)
    }

    /// Takes at most 4,096 records out of the buffer, for [`Tracer::take_events`]; returns whether there may be more.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the buffer cannot be read.
    pub fn fetch(&mut self) -> Result<bool, Error> {
        let taken = self.ring.consume_raw_n(BATCH);
        if taken < 0 {
            return Err(Error::Kernel {
                doing: "read the record buffer".into(),
                reason: std::io::Error::from_raw_os_error(-taken).to_string(),
            });
        }
        Ok(taken as usize >= BATCH)
    }

    /// Hands on the events that were taken out, by kind within 134 ms; returns how many.
    pub fn take_events(&mut self, each: &mut dyn FnMut(&mut EventWithPayload)) -> usize {
        let mut batch = self.batch.borrow_mut();
        group(&mut batch);
        batch.iter_mut().for_each(each);
        let taken = batch.len();
        batch.clear();
        taken
    }

    /// Takes out and hands on all events; returns how many.
    ///
    /// # Errors
    /// As [`Tracer::fetch`].
    pub fn drain(&mut self, each: &mut dyn FnMut(&mut EventWithPayload)) -> Result<usize, Error> {
        let mut total = 0;
        loop {
            let more = self.fetch()?;
            total += self.take_events(each);
            if !more {
                return Ok(total);
            }
        }
    }

    /// Whether the kernel's function with this name is probed.
    pub fn is_probed(&self, target: &str) -> bool {
        self.hooks.iter().any(|hook| hook.target == target && hook.found.is_some())
    }

    /// The kernel's name for a reason to drop packets.
    pub fn drop_name(&self, why: u32) -> String {
        self.drop_names.name(why)
    }

    /// Detaches all programs; events that are in the buffer can still be drained.
    pub fn stop(&mut self) {
        // In the reverse order of attaching: packets are cut off first, so that none is joined with half a signal.
        while self.links.pop().is_some() {}
    }

    /// The counters so far.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the counters cannot be read.
    pub fn counts(&self) -> Result<Counts, Error> {
        let read = |which: types::counter| -> Result<Vec<u64>, Error> {
            let values = self
                .counters
                .lookup_percpu(&which.0.to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| Error::kernel("read the probes' counters", e))?
                .unwrap_or_default();
            Ok(values
                .iter()
                .map(|v| v.get(..8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default())))
                .collect())
        };
        Ok(Counts {
            lost: read(types::counter::COUNT_LOST)?,
            missed: object::missed(&self.object, &[&MISSES_NOT_COUNTED[..], &FOR_GUESTS].concat())?,
            unidentified: read(types::counter::COUNT_UNIDENTIFIED)?.iter().sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::event::{Delivery, DeviceInterrupt, Lost};

    /// After teiji was held up for two seconds.
    #[test]
    fn grouping_moves_no_event_by_more_than_the_analysis_waits() {
        let event = |ts, kind| EventWithPayload {
            event: Event { ts, stream: teiji_model::stream::StreamId::HOST, cpu: 0, kind },
            payload: Vec::new(),
        };
        let interrupt = DeviceInterrupt {
            began: 0,
            irq: 1,
            delivery: Delivery::Accepted,
            vm: 1,
            vcpu: 0,
            vector: 1,
            by_hardware: false,
        };
        let each = |i: u64| {
            let lost = Lost { count: 0, since: 0 };
            [
                event(i * 1_000_000, EventKind::DeviceInterrupt(interrupt)),
                event(i * 1_000_000 + 1, EventKind::Lost(lost)),
            ]
        };
        let mut batch: Vec<_> = (0..2000).flat_map(each).collect();
        group(&mut batch);
        let mut newest = 0;
        for e in &batch {
            assert!(newest < e.event.ts + (1 << 27), "{} after {newest}", e.event.ts);
            newest = newest.max(e.event.ts);
        }
        let is_interrupt = |e: &EventWithPayload| matches!(e.event.kind, EventKind::DeviceInterrupt(_));
        let frames = batch.chunk_by(|a, b| is_interrupt(a) == is_interrupt(b)).count();
        assert!((2..=32).contains(&frames), "{frames}");
    }
}
