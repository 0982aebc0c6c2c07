//! The version and the layout of a pinned map, and the check that a pin has them.
//!
//! ```text
//!            ┌─ no pin of this version, but one of another ──► Found::OtherVersion
//!  open ─────┼─ no pin of any version ──► an error
//!            ├─ another type, key, value or number of entries ──► an error: the pin is not teiji's, or damaged
//!            └─ as expected ──► Found::Map
//! ```
use super::pins::Pins;
use crate::Error;
use libbpf_rs::{MapCore, MapHandle, MapType};
use std::path::Path;

/// Who changes a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// The process that has the lock of the pins' folder ([`Pins::lock`]), while it has it.
    Settings,
    /// The agent that owns the pins ([`Pins::own`]).
    Agent,
    /// The BPF programs. The process that has the lock of the pins' folder sets entries to zero that no program uses.
    Programs,
}

/// What a process expects of a pinned map.
#[derive(Debug)]
pub(crate) struct Abi {
    /// Its name in the object.
    pub(crate) name: &'static str,
    /// Its pin's name in version 1. It differs from `name` where the map was renamed.
    pub(crate) pin: &'static str,
    /// From 1; increased when layout or meaning change.
    pub(crate) version: u32,
    pub(crate) writer: Writer,
    kind: MapType,
    /// Sizes, bytes.
    key: usize,
    value: usize,
    /// At most this many entries.
    entries: usize,
    /// Names of the types of keys and values in C.
    #[cfg_attr(not(test), expect(dead_code, reason = "only the test of layouts looks at the types"))]
    types: [&'static str; 2],
}

/// What is pinned by the name of a map.
pub(crate) enum Found {
    /// The map of the expected version.
    Map(MapHandle),
    /// Only one of another version of teiji.
    OtherVersion,
}

/// Whether a descriptor of a map permits to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Abi {
    /// Version 1 of a map with keys `K` and values `V`, pinned by its name.
    pub(crate) const fn new<K, V>(
        name: &'static str,
        kind: MapType,
        entries: usize,
        writer: Writer,
        types: [&'static str; 2],
    ) -> Abi {
        let (key, value) = (size_of::<K>(), size_of::<V>());
        Abi { name, pin: name, version: 1, writer, kind, key, value, entries, types }
    }

    /// This map with another name of its pin.
    pub(crate) const fn pinned_as(self, pin: &'static str) -> Abi {
        Abi { pin, ..self }
    }

    /// The name of its pin.
    pub(crate) fn pin_name(&self) -> String {
        versioned(self.pin, self.version)
    }

    /// Opens the map in the folder of the pins in use.
    ///
    /// # Errors
    /// See the module.
    pub(crate) fn open(&self, pins: &Pins, access: Access) -> Result<Found, Error> {
        let path = pins.current(self.pin_name());
        if path.try_exists().map_err(|e| pins.failed("look into", &e))? {
            return self.open_at(&path, access).map(Found::Map);
        }
        let names = pins.names()?;
        if names.iter().filter_map(|name| name.to_str()).any(|name| is_version_of(name, self.pin)) {
            return Ok(Found::OtherVersion);
        }
        Err(Error::Kernel {
            doing: format!("open the map {}", self.name),
            reason: format!(
                "{} is missing; an agent that ran when it was removed pins it again, and one that is started later says what to do",
                path.display()
            ),
        })
    }

    /// Opens the map that is pinned at `path`.
    pub(crate) fn open_at(&self, path: &Path, access: Access) -> Result<MapHandle, Error> {
        let flags = match access {
            Access::Read => libbpf_sys::BPF_F_RDONLY,
            Access::Write => 0,
        };
        let failed = |e| Error::kernel(format!("open {}", path.display()), e);
        let map = MapHandle::from_pinned_path_with_file_flags(path, flags).map_err(failed)?;
        self.check(&map, path)?;
        Ok(map)
    }

    /// Whether a map has this layout. Flags are not compared: they differ between releases without an effect on what the
    /// map has.
    pub(crate) fn is_of(&self, kind: MapType, key: u32, value: u32, entries: u32) -> bool {
        (kind, key as usize, value as usize, entries as usize)
            == (self.kind, self.key, self.value, self.entries)
    }

    fn check(&self, map: &impl MapCore, path: &Path) -> Result<(), Error> {
        let (kind, key, value) = (map.map_type(), map.key_size(), map.value_size());
        let entries = map.max_entries();
        if self.is_of(kind, key, value, entries) {
            return Ok(());
        }
        Err(Error::Kernel {
            doing: format!("use the map {}", self.name),
            reason: format!(
                "{} is {kind:?} of {entries} entries with keys of {key} and values of {value} bytes, not {:?} of {} with {} and \
                 {}, so it is not teiji's; remove that file, and an agent that runs pins its own again; one that is started later says \
                 what to do",
                path.display(),
                self.kind,
                self.entries,
                self.key,
                self.value
            ),
        })
    }
}

/// The name of a version's pin. No dots: the BPF file system reserves names with dots for the kernel.
fn versioned(pin: &str, version: u32) -> String {
    if version == 1 { pin.to_owned() } else { format!("{pin}_v{version}") }
}

/// Whether `name` is that of any version's pin.
fn is_version_of(name: &str, pin: &str) -> bool {
    name.strip_prefix(pin).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix("_v").is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n > 1))
    })
}

/// The layouts of maps by the types of the object that defines them, in a form that can be compared: a line for each map,
/// and below it the members of its key and value, with their offsets in bits.
#[cfg(test)]
pub(crate) fn layouts(object: &[u8], maps: &[Abi]) -> String {
    use libbpf_rs::btf::Btf;
    use std::fmt::Write;
    let btf = Btf::from_raw("object", object).unwrap().unwrap();
    let mut text = String::new();
    for abi in maps {
        let [key, value] = abi.types;
        writeln!(text, "{}: {:?}, {} entries, {key} -> {value}", abi.pin_name(), abi.kind, abi.entries)
            .unwrap();
        for name in abi.types {
            let found: Option<libbpf_rs::btf::types::Struct<'_>> = btf.type_by_name(name);
            assert!(found.is_some() || ["u32", "u64"].contains(&name), "{name}");
            found.into_iter().for_each(|s| members(&btf, &s, 1, &mut text));
        }
    }
    text
}

#[cfg(test)]
fn members(
    btf: &libbpf_rs::btf::Btf<'_>,
    of: &libbpf_rs::btf::types::Struct<'_>,
    depth: usize,
    text: &mut String,
) {
    use libbpf_rs::btf::BtfType;
    use libbpf_rs::btf::types::{Array, MemberAttr, Struct};
    use std::fmt::Write;
    for member in of.iter() {
        let at = match member.attr {
            MemberAttr::Normal { offset } | MemberAttr::BitField { offset, .. } => offset,
        };
        let mut of = btf.type_by_id::<BtfType<'_>>(member.ty).unwrap().skip_mods_and_typedefs();
        let mut repeated = String::new();
        while let Ok(array) = Array::try_from(of) {
            write!(repeated, "[{}]", array.capacity()).unwrap();
            of = array.contained_type().skip_mods_and_typedefs();
        }
        let show = |name: Option<&std::ffi::OsStr>| {
            name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
        };
        writeln!(text, "{}{at} {}{repeated}: {}", "  ".repeat(depth), show(member.name), show(of.name()))
            .unwrap();
        if let Ok(inner) = Struct::try_from(of) {
            members(btf, &inner, depth + 1, text);
        }
    }
}
