//! Follows packets through a guest: the Rust half of `guest_trace.bpf.c`.
//!
//! ```text
//! Kernel::look ── which targets there are, and can be probed; where the kernel's data is ──► Kernel
//! Tracer::start ── open, leave out what the kernel lacks, set, load, attach ──► Tracer
//! Tracer::drain ── records of the ring buffer become events ──► the caller
//! ```
//! Dropping a [`Tracer`] detaches it; so does any end of the process.
mod convert;
mod hooks;
mod settings;
pub mod symbols;

/// Types shared with the C half, generated from the compiled object.
#[allow(missing_docs, unused, clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/guest_trace.skel.rs"));
}
use skeleton::types;

pub use hooks::{Hook, Kernel};

use crate::Error;
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, RingBuffer, RingBufferBuilder,
};
use libbpf_sys as sys;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use teiji_model::flow::Watch;
use teiji_model::guest::{Event, Secret};

/// The compiled programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest_trace.bpf.o"));

/// Most records that are taken from the kernel before they are handed on. Bounds the memory of a drain.
const BATCH: usize = 4096;

/// What the probes counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records that did not fit into the buffer, and runs of probes that the kernel skipped because the same probe was
    /// already running on that CPU.
    pub lost: u64,
    /// Packets that could not be identified.
    pub unidentified: u64,
}

/// Programs that run in the kernel.
pub struct Tracer {
    links: Vec<Link>,
    ring: RingBuffer<'static>,
    batch: Rc<RefCell<Vec<Event>>>,
    counters: MapHandle,
    object: Object,
}

fn open(object: &[u8]) -> Result<OpenObject, Error> {
    // What it has to say is in the errors. The verifier's words are too long for that.
    let debug = std::env::var_os("TEIJI_LOG").is_some_and(|level| level == "debug");
    libbpf_rs::set_print(debug.then_some((libbpf_rs::PrintLevel::Debug, |_, text| eprint!("{text}"))));
    ObjectBuilder::default()
        .name("guest_trace")
        .and_then(|b| b.open_memory(object))
        .map_err(|e| Error::kernel("open the guest's probes", &e))
}

fn map(object: &Object, name: &str) -> Result<MapHandle, Error> {
    let found = object.maps().find(|m| m.name() == name).ok_or_else(|| Error::Kernel {
        doing: format!("find the map {name}"),
        reason: "the object does not have it".into(),
    })?;
    MapHandle::try_from(&found).map_err(|e| Error::kernel(format!("open the map {name}"), &e))
}

impl Tracer {
    /// Loads and attaches the probes that this kernel can have. `own` is this machine's end of the connection of TCP by which
    /// it reports: each report would be reported otherwise.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::Kernel`] if the kernel refuses a program. Nothing stays attached then.
    pub fn start(
        kernel: &Kernel,
        secret: &Secret,
        watch: &Watch,
        own: Option<SocketAddr>,
    ) -> Result<Tracer, Error> {
        let mut object = open(kernel.object())?;
        for mut program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            program.set_autoload(kernel.should_load(&name, watch.matching));
        }
        settings::fill(&mut object, kernel.symbols(), secret, watch, own)?;
        let object = object.load().map_err(|e| Error::kernel("load the guest's probes", &e))?;

        let batch = Rc::new(RefCell::new(Vec::with_capacity(BATCH)));
        let records = map(&object, "records")?;
        let sink = Rc::clone(&batch);
        let mut ring = RingBufferBuilder::new();
        ring.add(&records, move |bytes: &[u8]| {
            sink.borrow_mut().extend(convert::event(bytes));
            0
        })
        .map_err(|e| Error::kernel("map the record buffer", &e))?;
        let ring = ring.build().map_err(|e| Error::kernel("map the record buffer", &e))?;
        let counters = map(&object, "counters")?;

        let mut links = Vec::new();
        for program in object.progs_mut().filter(|p| p.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            links.push(program.attach().map_err(|e| Error::kernel(format!("attach {name}"), &e))?);
        }
        Ok(Tracer { links, ring, batch, counters, object })
    }

    /// Takes at most 4,096 records out of the buffer and hands them on; returns whether there may be more.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the buffer cannot be read.
    pub fn drain(&mut self, each: &mut dyn FnMut(Event)) -> Result<bool, Error> {
        let taken = self.ring.consume_raw_n(BATCH);
        if taken < 0 {
            return Err(Error::Kernel {
                doing: "read the record buffer".into(),
                reason: std::io::Error::from_raw_os_error(-taken).to_string(),
            });
        }
        self.batch.borrow_mut().drain(..).for_each(each);
        Ok(taken as usize >= BATCH)
    }

    /// Detaches all programs; events that are in the buffer can still be drained.
    pub fn stop(&mut self) {
        self.links.clear();
    }

    /// The counters so far.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the counters cannot be read.
    pub fn counts(&self) -> Result<Counts, Error> {
        let read = |which: types::counter| -> Result<u64, Error> {
            let values = self
                .counters
                .lookup_percpu(&which.0.to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| Error::kernel("read the probes' counters", &e))?
                .unwrap_or_default();
            Ok(values
                .iter()
                .map(|v| v.get(..8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default())))
                .sum())
        };
        Ok(Counts {
            lost: read(types::counter::COUNT_LOST)?.saturating_add(self.missed()?),
            unidentified: read(types::counter::COUNT_UNIDENTIFIED)?,
        })
    }

    /// How often the kernel skipped a run of a program because it was already running on that CPU.
    fn missed(&self) -> Result<u64, Error> {
        let mut missed = 0u64;
        for program in self.object.progs().filter(|p| p.autoload()) {
            let mut info = sys::bpf_prog_info::default();
            let mut len = size_of_val(&info) as u32;
            // SAFETY: the descriptor is open while `program` lives; `info` is valid for writing `len` bytes; as it is all
            // zeros, the kernel writes to no other address.
            let done =
                unsafe { sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut len) };
            if done != 0 {
                return Err(Error::Kernel {
                    doing: format!("ask how many runs of {} were missed", program.name().to_string_lossy()),
                    reason: std::io::Error::last_os_error().to_string(),
                });
            }
            missed = missed.saturating_add(info.recursion_misses);
        }
        Ok(missed)
    }
}
