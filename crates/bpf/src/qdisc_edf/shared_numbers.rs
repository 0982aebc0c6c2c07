//! Two numbers that programs and processes share by mapped memory: the time of the agent's heartbeat, and how many
//! links use the qdisc. Their layout is the same in every version of the programs, so that an agent can send the
//! heartbeat for the programs of another version.
use super::maps;
use super::pins::Pins;
use crate::Error;
use libbpf_rs::MapHandle;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One page: no value of these maps is larger.
const PAGE: usize = 4096;

/// A mapped number of a one-element array map.
struct SharedNumber(*mut libc::c_void);

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed by atomic operations only.
unsafe impl Send for SharedNumber {}
// SAFETY: as above.
unsafe impl Sync for SharedNumber {}

impl SharedNumber {
    fn open(pins: &Pins, name: &str) -> Result<SharedNumber, Error> {
        let path = pins.current(name);
        let map = MapHandle::from_pinned_path(&path)
            .map_err(|e| Error::kernel(format!("open {}", path.display()), e))?;
        // SAFETY: a new mapping at an address that the kernel chooses, of a file descriptor that is open.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(pins.failed("map a file of", &std::io::Error::last_os_error()));
        }
        Ok(SharedNumber(at))
    }

    fn number(&self) -> &AtomicU64 {
        // SAFETY: the mapping is a page, aligned, writable, and valid until `self` is dropped; the programs access it
        // by whole words.
        unsafe { AtomicU64::from_ptr(self.0.cast()) }
    }
}

impl Drop for SharedNumber {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping but `self`.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}

/// The numbers of the qdisc that is pinned in a folder, of any version.
pub struct SharedNumbers {
    heartbeat: SharedNumber,
    link_count: SharedNumber,
}

impl SharedNumbers {
    pub(super) fn open(pins: &Pins) -> Result<SharedNumbers, Error> {
        Ok(SharedNumbers {
            heartbeat: SharedNumber::open(pins, maps::HEARTBEAT_PIN)?,
            link_count: SharedNumber::open(pins, "users")?,
        })
    }

    /// Those of the qdisc pinned in `folder`; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], or [`Error::Kernel`].
    pub fn of(folder: &Path) -> Result<Option<SharedNumbers>, Error> {
        let pins = Pins::new(folder);
        pins.are_there()?.then(|| SharedNumbers::open(&pins)).transpose()
    }

    /// Sends the heartbeat. To be called at least every [`super::HEARTBEAT_INTERVAL_MAX`]. Needs no system call and no privilege.
    pub fn send_heartbeat(&self) {
        self.heartbeat.number().store(now(), Ordering::Relaxed);
    }

    /// How long ago the last heartbeat was; `None` if there was none.
    pub fn heartbeat_age(&self) -> Option<Duration> {
        let at = self.heartbeat.number().load(Ordering::Relaxed);
        (at > 0).then(|| Duration::from_nanos(now().saturating_sub(at)))
    }

    /// How many links have the qdisc, of all network namespaces.
    pub fn link_count(&self) -> u64 {
        self.link_count.number().load(Ordering::Relaxed)
    }
}

/// `CLOCK_MONOTONIC`, ns, which the programs compare with. It cannot fail.
fn now() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}
