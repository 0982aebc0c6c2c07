//! From the compiled programs to a registered qdisc kind whose parts are pinned.
use super::{Edf, KIND, OBJECT as NAME, PinnedQdisc, maps, types};
use crate::Error;
use crate::common::heartbeat::{HEARTBEAT, Heartbeat};
use crate::common::pins::Pins;
use crate::hooks::KernelTypes;
use crate::object::{Verified, bytes_of, map, verified};
use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// The compiled programs.
pub(super) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/qdisc_edf.bpf.o"));

/// Name of the pinned link that keeps the kind registered; it is beside the maps.
pub(super) const REGISTERED: &str = "registered";

/// How long the kernel may take to release a kind that is no longer registered.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

impl Edf {
    /// Loads the programs, registers the qdisc kind and pins both in `folder`. No link has it yet.
    ///
    /// # Errors
    /// [`Error::NoBtf`]; [`Error::Missing`] if the kernel has no BPF qdiscs (they came with Linux 6.16);
    /// [`Error::NotPermitted`]; [`Error::NoBpfFileSystem`]; [`Error::Refused`] if `folder` has pins already;
    /// [`Error::Kernel`] if the kernel refuses, for example since another process has registered the kind.
    pub fn load(folder: &Path) -> Result<(Edf, Vec<Verified>), Error> {
        supported()?;
        let pins = Pins::new(folder, NAME);
        let _lock = pins.prepare()?;
        let mut object = open()?.load().map_err(|e| Error::kernel("load the deadline qdisc", e))?;
        for abi in maps::ALL {
            let name = abi.name;
            let mut map = object.maps_mut().find(|m| m.name() == name).ok_or_else(|| lacks(name))?;
            map.pin(pins.new_one(abi.pin_name()))
                .map_err(|e| Error::kernel(format!("pin the map {name}"), e))?;
        }
        let mut registered = register(&mut object)?;
        registered
            .pin(pins.new_one(REGISTERED))
            .map_err(|e| Error::kernel(format!("pin the qdisc {KIND}"), e))?;
        let registry = types::registry { programs: fingerprint(), ..Default::default() };
        map(&object, "registry")?
            .update(&0u32.to_ne_bytes(), bytes_of(&registry), MapFlags::ANY)
            .map_err(|e| Error::kernel("write the map registry", e))?;
        // Nobody else knows the new pins, so this process is the only one that sends their heartbeat.
        Heartbeat::open(&pins.new_one(HEARTBEAT.pin_name()))?.send();
        pins.adopt()?;
        let verified = verified(&object)?;
        match PinnedQdisc::open(folder)? {
            PinnedQdisc::Usable(edf) => Ok((*edf, verified)),
            PinnedQdisc::Absent | PinnedQdisc::OtherMaps(_) | PinnedQdisc::Damaged(..) => {
                Err(Error::Refused {
                    doing: format!("use the qdisc {KIND} that was just pinned"),
                    reason: "another process has removed or replaced it; end that one".into(),
                })
            }
        }
    }
}

/// Whether this kernel has BPF qdiscs. The kernel's types, megabytes of them, are read once only: they stay the same.
///
/// # Errors
/// [`Error::NoBtf`]; [`Error::Missing`] with what it lacks.
pub fn supported() -> Result<(), Error> {
    static THERE: OnceLock<bool> = OnceLock::new();
    let there = match THERE.get() {
        Some(there) => *there,
        None => {
            let found = KernelTypes::load()?.has_struct_ops("Qdisc_ops");
            *THERE.get_or_init(|| found)
        }
    };
    if there {
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

/// Identifies the programs of this build: FNV-1a of the compiled object.
pub(super) fn fingerprint() -> u64 {
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
