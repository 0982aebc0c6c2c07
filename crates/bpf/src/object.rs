//! Maps and programs of loaded objects, and conversion of values that are laid out by the kernel half.
use crate::Error;
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore, MapHandle, Object};
use std::os::fd::{AsFd, AsRawFd};

/// What the kernel says about the verification of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The name of its C function.
    pub program: String,
    /// How many instructions the verifier processed.
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

/// How many instructions the kernel's verifier processed for each program of a loaded object, without those that were
/// not loaded. Since Linux 5.16 `/proc/self/fdinfo` has this number for every open program.
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

/// The number of instructions that the verifier processed, from the text of a program's fdinfo.
fn instructions(fdinfo: &str) -> Option<u32> {
    fdinfo.lines().find_map(|l| l.strip_prefix("verified_insns:"))?.trim().parse().ok()
}

/// How often the kernel skipped a run of a loaded program because the same program was already running on that CPU, for
/// all programs of the object together but `except`. Linux counts this since 5.12; reading it needs no privilege.
pub(crate) fn missed(object: &Object, except: &[&str]) -> Result<u64, Error> {
    let mut missed = 0u64;
    for program in object.progs().filter(|p| p.autoload() && !except.iter().any(|name| p.name() == *name)) {
        let mut info = sys::bpf_prog_info::default();
        let mut len = size_of_val(&info) as u32;
        // SAFETY: the descriptor is open while `program` lives; `info` is valid for writing `len` bytes; as it is all
        // zeros, the kernel writes to no other address.
        let done = unsafe { sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut len) };
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

/// The bytes of a plain value.
pub(crate) fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: `value` is a valid, initialised, generated `repr(C)` type whose padding the C side names
    // explicitly, so all of its bytes are initialised; the slice does not outlive it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value that these bytes represent; missing bytes are taken as zeros.
///
/// `T` has to be a generated `repr(C)` type of integers only, for which every bit pattern is a value.
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
    use libbpf_rs::{Link, ObjectBuilder, ProgramInput};

    /// A program at a tracepoint that it triggers itself. Needs root, as loading programs does.
    #[test]
    fn runs_that_the_kernel_leaves_out_are_counted() {
        let bytes = include_bytes!(concat!(env!("OUT_DIR"), "/recurse.bpf.o"));
        let object =
            ObjectBuilder::default().name("recurse").unwrap().open_memory(bytes).unwrap().load().unwrap();
        let program = |name: &str| object.progs_mut().find(|p| p.name() == name).unwrap();
        let _link: Link = program("again").attach().unwrap();
        assert_eq!(missed(&object, &[]).unwrap(), 0);
        for runs in 1..=3 {
            program("begin").test_run(ProgramInput::default()).unwrap();
            let found = missed(&object, &[]).unwrap();
            assert!(found >= runs, "{runs} runs, {found} missed");
        }
    }

    #[test]
    fn the_instructions_are_found_in_fdinfo() {
        let text = "pos:\t0\nprog_type:\t26\nprog_id:\t7\nrecursion_misses:\t3\nverified_insns:\t1142\n";
        assert_eq!(instructions(text), Some(1142));
        assert_eq!(instructions("pos:\t0\nprog_type:\t26\n"), None);
        assert_eq!(instructions("verified_insns:\tmany\n"), None);
    }
}
