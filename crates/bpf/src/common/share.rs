//! Gives an object that is about to be loaded the pinned maps of another one, instead of maps of its own.
//!
//! ```text
//!  open ──► share: each named map is replaced by the pinned one ──► load
//! ```
//! Both objects define the map alike (a common header such as `heartbeat.bpf.h`). libbpf takes any map that it is given, so
//! the pin and the definition are compared with the map's version first.
use super::abi::{Abi, Access, Found};
use super::pins::Pins;
use crate::Error;
use libbpf_rs::OpenObject;
use std::os::fd::AsFd;

/// Lets the object use these maps of the pins in use.
///
/// # Errors
/// If the object has no such map or defines it differently; if none, or only another version of it, is pinned.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the qdisc is the only object of the product that is pinned")
)]
pub(crate) fn share(object: &mut OpenObject, pins: &Pins, maps: &[&Abi]) -> Result<(), Error> {
    for abi in maps {
        let failed = |reason: String| Error::Kernel {
            doing: format!("share the map {} that is pinned in {}", abi.name, pins.folder().display()),
            reason,
        };
        let mut own = object
            .maps_mut()
            .find(|map| map.name() == abi.name)
            .ok_or_else(|| failed("the object does not have it".into()))?;
        if !abi.is_of(own.map_type(), own.key_size(), own.value_size(), own.max_entries()) {
            return Err(failed("the object defines it differently".into()));
        }
        match abi.open(pins, Access::Write)? {
            Found::Map(map) => own.reuse_fd(map.as_fd()).map_err(|e| failed(format!("{e:#}")))?,
            Found::OtherVersion => {
                return Err(failed("what is pinned is of another version of teiji".into()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::heartbeat::{HEARTBEAT, Heartbeat};
    use crate::common::mounted::Mounted;
    use crate::common::number::Number;
    use libbpf_rs::{MapHandle, MapType, ObjectBuilder, ProgramInput};
    use std::path::Path;

    static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/share.bpf.o"));

    fn pin(path: &Path, value: u32) {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: libbpf_sys::BPF_F_MMAPABLE,
            ..Default::default()
        };
        MapHandle::create(MapType::Array, Some("heartbeat"), 4, value, 1, &options)
            .unwrap()
            .pin(path)
            .unwrap();
    }

    fn open() -> OpenObject {
        ObjectBuilder::default().name("share").unwrap().open_memory(OBJECT).unwrap()
    }

    /// One object's program sees what is written to the map that another one pinned.
    #[test]
    fn an_object_uses_the_map_that_another_one_pinned() {
        let mounted = Mounted::new();
        let pins = mounted.pins();
        let lock = pins.prepare().unwrap();
        pin(&pins.new_one("beat"), 8);
        pins.adopt().unwrap();
        drop(lock);

        let mut object = open();
        share(&mut object, &pins, &[&HEARTBEAT]).unwrap();
        let object = object.load().unwrap();
        let missing = || {
            let program = object.progs_mut().find(|p| p.name() == "missing").unwrap();
            program.test_run(ProgramInput::default()).unwrap().return_value
        };
        assert_eq!(missing(), 1);
        Heartbeat::open(&pins.current("beat")).unwrap().send();
        assert_eq!(missing(), 0);
    }

    #[test]
    fn a_pin_that_is_missing_or_different_is_not_shared() {
        let mounted = Mounted::new();
        let pins = mounted.pins();
        let lock = pins.prepare().unwrap();
        pins.adopt().unwrap();
        let why = || share(&mut open(), &pins, &[&HEARTBEAT]).unwrap_err().to_string();
        assert!(why().contains("beat is missing"), "{}", why());
        pin(&pins.current("beat_v2"), 8);
        assert!(why().contains("another version of teiji"), "{}", why());
        pin(&pins.current("beat"), 16);
        assert!(why().contains("values of 16 bytes, not"), "{}", why());
        drop(lock);
    }

    /// Who only reads a map cannot write it, whatever the process does: the kernel refuses.
    #[test]
    fn a_reader_cannot_write() {
        use libbpf_rs::{MapCore, MapFlags};
        let mounted = Mounted::new();
        let pins = mounted.pins();
        let lock = pins.prepare().unwrap();
        pin(&pins.new_one("beat"), 8);
        pins.adopt().unwrap();
        drop(lock);
        let zero = 0u32.to_ne_bytes();
        let map = |access| HEARTBEAT.open_at(&pins.current("beat"), access).unwrap();
        let reader = map(Access::Read);
        assert!(reader.update(&zero, &1u64.to_ne_bytes(), MapFlags::ANY).is_err());
        map(Access::Write).update(&zero, &7u64.to_ne_bytes(), MapFlags::ANY).unwrap();
        assert_eq!(reader.lookup(&zero, MapFlags::ANY).unwrap().unwrap(), 7u64.to_ne_bytes());

        // And not through memory that was mapped for reading.
        let number = Number::open(&pins, &HEARTBEAT).unwrap();
        assert_eq!(number.get(), 7);
        // SAFETY: the page is mapped, and stays so until `number` is dropped; the call is to fail.
        let made = unsafe { libc::mprotect(number.page(), 4096, libc::PROT_READ | libc::PROT_WRITE) };
        assert_ne!(made, 0);
    }
}
