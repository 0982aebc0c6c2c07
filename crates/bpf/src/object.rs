//! Maps and programs of loaded objects, and values as the kernel half lays them out.
use crate::Error;
use libbpf_rs::{MapCore, MapHandle, Object};
use std::os::fd::{AsFd, AsRawFd};

/// What the verifier said of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Its name.
    pub program: String,
    /// Instructions that the verifier walked through.
    pub instructions: u32,
}

/// A map of a loaded object, by name.
pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle, Error> {
    let found = object.maps().find(|m| m.name() == name).ok_or_else(|| Error::Kernel {
        doing: format!("find the map {name}"),
        reason: "the object does not have it".into(),
    })?;
    MapHandle::try_from(&found).map_err(|e| Error::kernel(format!("open the map {name}"), e))
}

/// How much work the programs of a loaded object were for the kernel's verifier; those that were not loaded are left
/// out. The kernel tells it of every open program in `/proc/self/fdinfo`, since Linux 5.16.
pub(crate) fn verified(object: &Object) -> Result<Vec<Verified>, Error> {
    let of = |fd: i32| -> Result<u32, String> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).map_err(|e| e.to_string())?;
        instructions(&info).ok_or_else(|| "it does not tell; Linux 5.16 and newer do".into())
    };
    object
        .progs()
        .filter(|p| p.autoload())
        .map(|p| {
            let program = p.name().to_string_lossy().into_owned();
            let instructions = of(p.as_fd().as_raw_fd()).map_err(|reason| Error::Kernel {
                doing: format!("ask the kernel how it verified {program}"),
                reason,
            })?;
            Ok(Verified { program, instructions })
        })
        .collect()
}

/// The instructions that the verifier walked, from the text of a program's fdinfo.
fn instructions(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|l| l.strip_prefix("verified_insns:"))?.trim().parse().ok()
}

/// The bytes of a plain value.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: `value` is a valid, initialised, generated `repr(C)` type whose padding the C side names
    // explicitly, so all of its bytes are initialised; the slice does not outlive it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value that these bytes are; zeros stand for bytes that are missing.
///
/// `T` has to be a generated `repr(C)` type of integers only, for which every pattern of bits is a value.
pub(crate) fn value_of<T: Copy + Default>(bytes: &[u8]) -> T {
    let mut value = T::default();
    let n = bytes.len().min(size_of::<T>());
    // SAFETY: `value` is valid for writing its size; any bits are a `T` (see above); `n` is within both.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut value).cast(), n) };
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instructions_are_found_in_fdinfo() {
        let text = "pos:\t0\nprog_type:\t26\nprog_id:\t7\nrecursion_misses:\t3\nverified_insns:\t1142\n";
        assert_eq!(instructions(text), Some(1142));
        assert_eq!(instructions("pos:\t0\nprog_type:\t26\n"), None);
        assert_eq!(instructions("verified_insns:\tmany\n"), None);
    }
}
