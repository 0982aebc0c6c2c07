//! Where the programs and their maps are kept so that they outlive processes: a folder of a BPF file system.
//!
//! ```text
//!  absent ──► edf-new: filled ──(rename)──► edf: in use ──(rename)──► edf-old: emptied ──► absent
//! ```
//! Names change by one rename(2), so `edf` is complete whenever it exists. What a killed process left in the other two
//! folders, the next process removes.
use super::{KIND, SharedNumbers};
use crate::Error;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The folder of the pins unless the caller names another one.
pub const PINS: &str = "/sys/fs/bpf/teiji";

const CURRENT: &str = "edf";
// No dots: the BPF file system reserves names with dots for the kernel.
const NEW: &str = "edf-new";
const OLD: &str = "edf-old";

/// Name of the pinned link that keeps the kind registered; it is beside the maps.
pub(super) const REGISTERED: &str = "registered";

/// The folder.
#[derive(Clone, Debug)]
pub(super) struct Pins(PathBuf);

impl Pins {
    pub(super) fn new(folder: &Path) -> Pins {
        Pins(folder.to_owned())
    }

    /// The folder itself.
    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// The path of a pin in use.
    pub(super) fn current(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(CURRENT).join(name)
    }

    /// The path of a new pin.
    pub(super) fn new_one(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(NEW).join(name)
    }

    /// Whether there are any.
    pub(super) fn are_there(&self) -> Result<bool, Error> {
        let path = self.0.join(CURRENT);
        path.try_exists().map_err(|e| self.failed("look into", &e))
    }

    /// Makes an empty folder for new pins, with the writers' lock held from then on.
    pub(super) fn prepare(&self) -> Result<Flock<File>, Error> {
        let refuse = |reason: String| Error::Refused { doing: format!("pin the qdisc {KIND}"), reason };
        let at = self.0.display();
        if self.are_there()? {
            return Err(refuse(format!("{at} already has a pinned qdisc")));
        }
        let there = self.0.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        if !statfs(there).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC) {
            return Err(refuse(format!(
                "{at} is in no BPF file system, so no channel can have a deadline; run `mount -t bpf bpf /sys/fs/bpf`"
            )));
        }
        let make = |path: &Path| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(&self.0).map_err(|e| self.failed("make", &e))?;
        let lock = self.lock()?;
        // Another process may have filled it meanwhile.
        if self.are_there()? {
            return Err(refuse(format!("{at} already has a pinned qdisc")));
        }
        self.sweep().map_err(|e| self.failed("clear", &e))?;
        make(&self.0.join(NEW)).map_err(|e| self.failed("make", &e))?;
        Ok(lock)
    }

    /// Puts the new pins into use.
    pub(super) fn adopt(&self) -> Result<(), Error> {
        std::fs::rename(self.0.join(NEW), self.0.join(CURRENT)).map_err(|e| self.failed("fill", &e))
    }

    /// Removes unfinished and retired pins; nothing that is in use.
    pub(super) fn sweep(&self) -> io::Result<()> {
        [NEW, OLD].iter().try_for_each(|name| match std::fs::remove_dir_all(self.0.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        })
    }

    /// Removes all pins, and the folder if nothing else is in it.
    pub(super) fn remove(&self) -> Result<(), Error> {
        let done = match std::fs::rename(self.0.join(CURRENT), self.0.join(OLD)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => self.sweep(),
        };
        done.map_err(|e| self.failed("remove pins from", &e))?;
        // Fails if the folder is not empty: then it has files of somebody else.
        let _ = std::fs::remove_dir(&self.0);
        Ok(())
    }

    /// Waits until no other process writes; none does until the returned lock is dropped.
    pub(super) fn lock(&self) -> Result<Flock<File>, Error> {
        let dir = File::open(&self.0).map_err(|e| self.failed("open", &e))?;
        Flock::lock(dir, FlockArg::LockExclusive).map_err(|(_, e)| self.failed("lock", &e.into()))
    }

    /// Becomes the owner of the pins in use, until the file is closed: the only process that sends their heartbeat.
    ///
    /// The lock is on the folder of the pins in use itself, so that each set of pins has one owner even if it is
    /// renamed.
    pub(super) fn own(&self) -> Result<Flock<File>, Error> {
        self.owned(CURRENT)
    }

    /// The same for pins that are about to be put into use.
    pub(super) fn own_new(&self) -> Result<Flock<File>, Error> {
        self.owned(NEW)
    }

    fn owned(&self, pins: &str) -> Result<Flock<File>, Error> {
        let folder = self.0.join(pins);
        let dir = File::open(&folder).map_err(|e| self.failed("open", &e))?;
        let identity =
            (dir.metadata()).map(|m| (m.dev(), m.ino())).map_err(|e| self.failed("look into", &e))?;
        Flock::lock(dir, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| match e {
            Errno::EWOULDBLOCK => Error::Refused {
                doing: format!("become the agent for {}", self.0.display()),
                reason: format!("another teiji agent is running{}; only one may run", holder(identity)),
            },
            e => self.failed("lock", &e.into()),
        })
    }

    /// Whether this lock is that of the owner of the pins in use; `None` if there are none.
    pub(super) fn are_of(&self, lock: &Flock<File>) -> io::Result<Option<bool>> {
        let ours = lock.metadata()?;
        match self.0.join(CURRENT).symlink_metadata() {
            Ok(found) => Ok(Some((found.dev(), found.ino()) == (ours.dev(), ours.ino()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether a pin is in use.
    pub(super) fn has(&self, name: &OsString) -> bool {
        self.current(name).symlink_metadata().is_ok()
    }

    /// Names of the pins in use.
    pub(super) fn names(&self) -> Result<Vec<OsString>, Error> {
        let failed = |e| self.failed("look into", &e);
        let entries = std::fs::read_dir(self.0.join(CURRENT)).map_err(failed)?;
        entries.map(|entry| entry.map(|e| e.file_name()).map_err(failed)).collect()
    }

    /// Takes pins out of use, to be replaced.
    pub(super) fn retire(&self) -> io::Result<()> {
        self.sweep()?;
        std::fs::rename(self.0.join(CURRENT), self.0.join(OLD))
    }

    pub(super) fn failed(&self, what: &str, e: &io::Error) -> Error {
        match e.kind() {
            // For root another privilege would not help: a security module or the owner of the folder forbids it.
            io::ErrorKind::PermissionDenied if !nix::unistd::geteuid().is_root() => Error::NotPermitted,
            _ => Error::Kernel { doing: format!("{what} {}", self.0.display()), reason: e.to_string() },
        }
    }
}

/// The process that has a lock (flock) on a file, for a message: empty if the kernel does not say.
fn holder((dev, ino): (u64, u64)) -> String {
    // Major and minor in hexadecimal, the inode in decimal.
    let file = format!("{:02x}:{:02x}:{ino}", major(dev), minor(dev));
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == file)?;
        let pid: u32 = words.get(at.checked_sub(1)?)?.parse().ok()?;
        words.contains(&"FLOCK").then(|| format!(" (pid {pid})"))
    };
    locks.lines().find_map(of).unwrap_or_default()
}

/// Removes the pins of any version, if no link has the qdisc. The kind is no longer registered then.
///
/// # Errors
/// [`Error::Refused`] if a link has it; [`Error::Kernel`] if the file system refuses.
pub fn unpin(folder: &Path) -> Result<(), Error> {
    let pins = Pins::new(folder);
    let Some(shared) = SharedNumbers::of(folder)? else { return Ok(()) };
    let _lock = pins.lock()?;
    if shared.link_count() > 0 {
        return Err(Error::Refused {
            doing: format!("remove the qdisc {KIND} from the kernel"),
            reason: "links have it; `teiji rollback` removes it from those".into(),
        });
    }
    pins.remove()
}
