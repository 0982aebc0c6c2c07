//! Maps of one number that a process accesses by mapped memory, which needs no system call and no privilege.
use super::abi::{Abi, Access, Writer};
use super::pins::Pins;
use crate::Error;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// One page: no value of these maps is larger.
const PAGE: usize = 4096;

/// The number of a one-element array map.
pub(crate) struct Number(Mapping);

/// A [`Number`] for the process that writes it.
pub(crate) struct WritableNumber(Mapping);

/// A page of a map, mapped into this process.
struct Mapping(*mut libc::c_void);

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed by whole words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Number {
    /// The pinned number.
    pub(crate) fn open(pins: &Pins, abi: &Abi) -> Result<Number, Error> {
        Ok(Number(Mapping::of(&pins.current(abi.pin_name()), abi, Access::Read)?))
    }

    /// The page.
    #[cfg(test)]
    pub(crate) fn page(&self) -> *mut libc::c_void {
        self.0.0
    }

    pub(crate) fn get(&self) -> u64 {
        // SAFETY: the mapping is a page, aligned, readable, and there until `self` is dropped. Programs and processes write
        // it by whole words; a volatile read is not moved or repeated.
        unsafe { self.0.0.cast::<u64>().read_volatile() }
    }
}

impl WritableNumber {
    /// The number pinned at `path`.
    pub(crate) fn open(path: &Path, abi: &Abi) -> Result<WritableNumber, Error> {
        debug_assert_eq!(abi.writer, Writer::Agent, "{}", abi.name);
        Ok(WritableNumber(Mapping::of(path, abi, Access::Write)?))
    }

    pub(crate) fn set(&self, number: u64) {
        // SAFETY: the mapping is a page, aligned, writable, and there until `self` is dropped; the programs access it by
        // whole words.
        unsafe { AtomicU64::from_ptr(self.0.0.cast()) }.store(number, Ordering::Relaxed);
    }
}

impl Mapping {
    fn of(path: &Path, abi: &Abi, access: Access) -> Result<Mapping, Error> {
        // The kernel maps no descriptor that is for reading only (bpf_map_mmap asks for VM_SHARED, kernel/bpf/syscall.c). A page
        // that was mapped for reading cannot become writable, and the descriptor is closed here.
        let map = abi.open_at(path, Access::Write)?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address that the kernel chooses, of a file descriptor that is open.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_SHARED, map.as_fd().as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(Error::Kernel {
                doing: format!("map {}", path.display()),
                reason: std::io::Error::last_os_error().to_string(),
            });
        }
        Ok(Mapping(at))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping but `self`.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}
