//! From the compiled programs to a registered qdisc kind whose parts are pinned.
use super::maps::{self, Map, Registry};
use super::pins::{self, Pins};
use super::{Edf, KIND, types};
use crate::Error;
use crate::hooks::KernelTypes;
use crate::object::{Verified, verified};
use libbpf_rs::{ErrorKind, Link, MapCore, Object, ObjectBuilder, OpenObject};
use std::path::Path;
use std::time::Duration;

/// The compiled programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/qdisc_edf.bpf.o"));

/// How long the kernel may take to release a kind that is no longer registered.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

impl Edf {
    /// Loads the programs, registers the qdisc kind and pins both in `folder`. No link has it yet.
    ///
    /// # Errors
    /// [`Error::NoBtf`]; [`Error::Missing`] if the kernel has no BPF qdiscs (they came with Linux 6.16);
    /// [`Error::NotPermitted`]; [`Error::Refused`] if `folder` is not in a BPF file system, or has pins already;
    /// [`Error::Kernel`] if the kernel refuses, for example since another process has registered the kind.
    pub fn load(folder: &Path) -> Result<(Edf, Vec<Verified>), Error> {
        supported()?;
        let pins = Pins::new(folder);
        let _lock = pins.prepare()?;
        let mut object = open()?.load().map_err(|e| Error::kernel("load the deadline qdisc", e))?;
        for name in maps::NAMES {
            let mut map = object.maps_mut().find(|m| m.name() == name).ok_or_else(|| lacks(name))?;
            map.pin(pins.new_one(maps::pin_of(name)))
                .map_err(|e| Error::kernel(format!("pin the map {name}"), e))?;
        }
        let mut registered = register(&mut object)?;
        registered
            .pin(pins.new_one(pins::REGISTERED))
            .map_err(|e| Error::kernel(format!("pin the qdisc {KIND}"), e))?;
        let registry = Registry(Map::open(&pins.new_one("registry"), "registry")?);
        registry.write(&types::registry { version: version(), ..Default::default() })?;
        pins.adopt()?;
        let verified = verified(&object)?;
        let edf = Edf::open(pins, registry)?;
        edf.send_heartbeat();
        Ok((edf, verified))
    }
}

/// Whether this kernel has BPF qdiscs.
///
/// # Errors
/// [`Error::NoBtf`]; [`Error::Missing`] with what it lacks.
pub fn supported() -> Result<(), Error> {
    if KernelTypes::load()?.has_struct_ops("Qdisc_ops") {
        return Ok(());
    }
    Err(Error::Missing {
        what: "BPF qdiscs".into(),
        consequence:
            "the qdisc teiji_edf cannot keep deadlines on this host; use Linux 6.16 or newer, built with \
                      CONFIG_NET_SCH_BPF=y"
                .into(),
    })
}

/// Identifies this version of the programs: FNV-1a of the compiled object.
pub(super) fn version() -> u64 {
    OBJECT.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

pub(super) fn open() -> Result<OpenObject, Error> {
    crate::silence_libbpf();
    ObjectBuilder::default()
        .name("qdisc_edf")
        .and_then(|b| b.open_memory(OBJECT))
        .map_err(|e| Error::kernel("open the deadline qdisc", e))
}

/// Registers the kind. The kernel may take a while to release one that was registered before.
fn register(object: &mut Object) -> Result<Link, Error> {
    let mut operations = object.maps_mut().find(|m| m.name() == "edf").ok_or_else(|| lacks("edf"))?;
    let begun = std::time::Instant::now();
    loop {
        match operations.attach_struct_ops() {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && begun.elapsed() < RELEASE_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                return Err(Error::Refused {
                    doing: format!("register the qdisc {KIND}"),
                    reason: "another process has registered it, with pins elsewhere; end that one".into(),
                });
            }
            done => return done.map_err(|e| Error::kernel(format!("register the qdisc {KIND}"), e)),
        }
    }
}

fn lacks(map: &str) -> Error {
    Error::Kernel { doing: format!("find the map {map}"), reason: "the object does not have it".into() }
}
