//! Where programs and their maps are kept so that they outlive processes: folders of a BPF file system, one for each
//! object that is pinned as a whole, such as `edf`.
//!
//! ```text
//!  absent ──► edf-new: filled ──(rename)──► edf: in use ──(rename)──► edf-old: emptied ──► absent
//!                   │                         ▲
//!                   └──(exchanged by one rename; what was in use is emptied)
//! ```
//! Names change by one rename(2): whenever `edf` exists, it has all pins, or those that others have left of them. What a
//! killed process left in the other two folders is removed before new pins are made.
use crate::Error;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an agent waits for a process that writes: less than systemd's watchdog for the agent.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How long an agent waits for the end of the one before it: a killed process keeps its locks until the kernel has ended its
/// threads. To wait longer would not save the links, which fall back after this time without a heartbeat, and would delay the
/// message to whoever starts a second agent.
pub(crate) const HANDOVER: Duration = crate::qdisc_edf::HEARTBEAT_TIMEOUT;
/// How often it tries meanwhile.
const POLL: Duration = Duration::from_millis(20);

/// The pins of one object.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    folder: PathBuf,
    object: &'static str,
}

impl Pins {
    /// The pins of the object of this name below `folder`.
    pub(crate) fn new(folder: &Path, object: &'static str) -> Pins {
        Pins { folder: folder.to_owned(), object }
    }

    /// The folder of the pins in use.
    pub(crate) fn in_use(&self) -> PathBuf {
        self.folder.join(self.object)
    }

    // No dots in these two: the BPF file system reserves names with dots for the kernel.
    fn new_folder(&self) -> PathBuf {
        self.folder.join(format!("{}-new", self.object))
    }

    fn old_folder(&self) -> PathBuf {
        self.folder.join(format!("{}-old", self.object))
    }

    /// The folder itself.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a pin in use.
    pub(crate) fn current(&self, name: impl AsRef<Path>) -> PathBuf {
        self.in_use().join(name)
    }

    /// The path of a new pin.
    pub(crate) fn new_one(&self, name: impl AsRef<Path>) -> PathBuf {
        self.new_folder().join(name)
    }

    /// Whether there are any.
    pub(crate) fn are_there(&self) -> Result<bool, Error> {
        let path = self.in_use();
        path.try_exists().map_err(|e| self.failed("look into", &e))
    }

    /// Makes an empty folder for the first pins, with the writers' lock held from then on.
    pub(crate) fn prepare(&self) -> Result<Flock<File>, Error> {
        self.prepare_if(|| Ok(!self.are_there()?))
    }

    /// Makes an empty folder for new pins if `allowed` says so, before and after the writers' lock is taken.
    pub(crate) fn prepare_if(&self, allowed: impl Fn() -> Result<bool, Error>) -> Result<Flock<File>, Error> {
        let refuse = |reason: String| Error::Refused { doing: format!("pin {}", self.object), reason };
        let at = self.folder.display();
        if !allowed()? {
            return Err(refuse(format!("{at} already has pins of it")));
        }
        let there = self.folder.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        if !statfs(there).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC) {
            return Err(Error::NoBpfFileSystem(self.folder.clone()));
        }
        let make = |path: &Path| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        make(&self.folder).map_err(|e| self.failed("make", &e))?;
        let lock = self.lock_within(PATIENCE)?;
        // Another process may have filled it meanwhile.
        if !allowed()? {
            return Err(refuse(format!("{at} already has pins of it")));
        }
        self.sweep().map_err(|e| self.failed("clear", &e))?;
        make(&self.new_folder()).map_err(|e| self.failed("make", &e))?;
        Ok(lock)
    }

    /// Puts the new pins into use, and removes those that were in use. If the process is killed, either the former or the new ones
    /// are in use, never some of each.
    pub(crate) fn adopt(&self) -> Result<(), Error> {
        let (new, in_use) = (self.new_folder(), self.in_use());
        match renameat2(AT_FDCWD, &new, AT_FDCWD, &in_use, RenameFlags::RENAME_EXCHANGE) {
            // What is left of them does no harm, and is removed before others are made.
            Ok(()) => drop(self.sweep()),
            Err(Errno::ENOENT) => {
                std::fs::rename(&new, &in_use).map_err(|e| self.failed("put new pins into", &e))?
            }
            Err(e) => return Err(self.failed("put new pins into", &e.into())),
        }
        Ok(())
    }

    /// Removes unfinished and retired pins; nothing that is in use.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        [self.new_folder(), self.old_folder()].iter().try_for_each(|path| {
            match std::fs::remove_dir_all(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            }
        })
    }

    /// Removes all pins, and the folder if nothing else is in it.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        let done = match std::fs::rename(self.in_use(), self.old_folder()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => self.sweep(),
        };
        done.map_err(|e| self.failed("remove pins from", &e))?;
        // Fails if the folder is not empty: then it has files of somebody else.
        let _ = std::fs::remove_dir(&self.folder);
        Ok(())
    }

    /// Waits until no other process writes; none does until the returned lock is dropped.
    pub(crate) fn lock(&self) -> Result<Flock<File>, Error> {
        loop {
            let dir = File::open(&self.folder).map_err(|e| self.failed("open", &e))?;
            let lock = Flock::lock(dir, FlockArg::LockExclusive);
            let lock = lock.map_err(|(_, e)| self.failed("lock", &e.into()))?;
            if self.counts(&lock)? {
                return Ok(lock);
            }
        }
    }

    /// Whether a lock is on the folder that has the name now: while it was waited for, the folder may have been removed or
    /// replaced, and another process may lock the new one.
    fn counts(&self, lock: &Flock<File>) -> Result<bool, Error> {
        let same = is_named(&self.folder, lock).map_err(|e| self.failed("look into", &e))?;
        Ok(same == Some(true))
    }

    /// [`Pins::lock`] for an agent, which must not wait for ever: a process may hang in the kernel while it writes.
    pub(crate) fn lock_within(&self, within: Duration) -> Result<Flock<File>, Error> {
        let begun = Instant::now();
        let open = || File::open(&self.folder).map_err(|e| self.failed("open", &e));
        let mut dir = open()?;
        loop {
            let identity =
                dir.metadata().map(|m| (m.dev(), m.ino())).map_err(|e| self.failed("look into", &e))?;
            match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
                Ok(lock) if self.counts(&lock)? => return Ok(lock),
                Ok(_) => {
                    dir = open()?;
                    continue;
                }
                Err((back, Errno::EWOULDBLOCK)) if begun.elapsed() < within => dir = back,
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(Error::Refused {
                        doing: format!("lock {}", self.folder.display()),
                        reason: format!(
                            "another process{} has held the lock for {within:?}, so channels cannot be changed: run the \
                             command again when it has ended; if it hangs, send it SIGTERM",
                            holder(identity)
                        ),
                    });
                }
                Err((_, e)) => return Err(self.failed("lock", &e.into())),
            }
            std::thread::sleep(POLL);
        }
    }

    /// Becomes the owner of the pins in use, until the file is closed: the only process that sends their heartbeat.
    ///
    /// The lock is on the folder of the pins in use itself, so that each set of pins has one owner even if it is
    /// renamed. Waits until then for an owner that is about to end: see [`HANDOVER`].
    pub(crate) fn own(&self, until: Instant) -> Result<Flock<File>, Error> {
        self.own_folder(&self.in_use(), until)
    }

    /// Becomes, as by [`Pins::own`], the owner of pins that are about to be put into use.
    pub(crate) fn own_new(&self) -> Result<Flock<File>, Error> {
        self.own_folder(&self.new_folder(), Instant::now())
    }

    fn own_folder(&self, folder: &Path, until: Instant) -> Result<Flock<File>, Error> {
        let mut dir = File::open(folder).map_err(|e| self.failed("open", &e))?;
        let identity =
            (dir.metadata()).map(|m| (m.dev(), m.ino())).map_err(|e| self.failed("look into", &e))?;
        loop {
            match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((back, Errno::EWOULDBLOCK)) if Instant::now() < until => dir = back,
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(Error::Refused {
                        doing: format!("become the agent for {}", self.folder.display()),
                        reason: format!(
                            "another teiji agent{} serves these pins, and only one may: stop it (systemctl stop, or SIGTERM), or \
                             start this one with another --pins",
                            holder(identity)
                        ),
                    });
                }
                Err((_, e)) => return Err(self.failed("lock", &e.into())),
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether this lock is that of the owner of the pins in use; `None` if there are none.
    pub(crate) fn are_of(&self, lock: &Flock<File>) -> io::Result<Option<bool>> {
        is_named(&self.in_use(), lock)
    }

    /// Whether a pin is in use.
    pub(crate) fn has(&self, name: &OsString) -> bool {
        self.current(name).symlink_metadata().is_ok()
    }

    /// Names of the pins in use.
    pub(crate) fn names(&self) -> Result<Vec<OsString>, Error> {
        let failed = |e| self.failed("look into", &e);
        let entries = std::fs::read_dir(self.in_use()).map_err(failed)?;
        entries.map(|entry| entry.map(|e| e.file_name()).map_err(failed)).collect()
    }

    pub(crate) fn failed(&self, what: &str, e: &io::Error) -> Error {
        match e.kind() {
            // For root another privilege would not help: a security module or the owner of the folder forbids it.
            io::ErrorKind::PermissionDenied if !nix::unistd::geteuid().is_root() => Error::NotPermitted,
            _ => Error::Kernel { doing: format!("{what} {}", self.folder.display()), reason: e.to_string() },
        }
    }
}

/// Whether an open folder is the one that has this name; `None` if none has it.
fn is_named(path: &Path, folder: &File) -> io::Result<Option<bool>> {
    let ours = folder.metadata()?;
    match path.symlink_metadata() {
        Ok(found) => Ok(Some((found.dev(), found.ino()) == (ours.dev(), ours.ino()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_does_not_wait_for_ever_for_a_process_that_writes() {
        let dir = tempfile::tempdir().unwrap();
        let pins = Pins::new(dir.path(), "edf");
        let writer = pins.lock().unwrap();
        let why = pins.lock_within(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(why.contains("has held the lock for 50ms"), "{why}");
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            sender.send(()).unwrap();
            pins.lock_within(Duration::from_secs(60)).map(drop)
        });
        receiver.recv().unwrap();
        drop(writer);
        waiting.join().unwrap().unwrap();
    }

    /// An agent that is started as soon as the one before it was killed keeps its pins, and one that is started beside another
    /// says so.
    #[test]
    fn an_agent_waits_for_the_end_of_the_one_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let pins = Pins::new(dir.path(), "edf");
        std::fs::create_dir(pins.in_use()).unwrap();
        let former = pins.own(Instant::now()).unwrap();
        let until = Instant::now() + Duration::from_millis(300);
        let why = pins.own(until).unwrap_err().to_string();
        assert!(why.contains("serves these pins"), "{why}");
        assert!(Instant::now() >= until, "it has not waited");
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            sender.send(()).unwrap();
            pins.own(Instant::now() + Duration::from_secs(60)).map(drop)
        });
        receiver.recv().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        drop(former);
        waiting.join().unwrap().unwrap();
    }

    /// Two processes never both write: one that has waited for the lock of a folder that is gone locks the one that there is.
    #[test]
    fn the_lock_on_a_folder_that_was_replaced_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, away) = (dir.path().join("teiji"), dir.path().join("away"));
        for waiting in [|pins: Pins| pins.lock(), |pins: Pins| pins.lock_within(Duration::from_secs(60))] {
            std::fs::create_dir(&folder).unwrap();
            let pins = Pins::new(&folder, "edf");
            let former = pins.lock().unwrap();
            let waiter = {
                let pins = pins.clone();
                std::thread::spawn(move || waiting(pins).unwrap())
            };
            // The waiting thread has opened the former folder, or not yet: it must not matter.
            std::thread::sleep(Duration::from_millis(100));
            // At once, so that there is a folder whenever it is opened.
            std::fs::create_dir(&away).unwrap();
            renameat2(AT_FDCWD, &folder, AT_FDCWD, &away, RenameFlags::RENAME_EXCHANGE).unwrap();
            drop(former);
            let held = waiter.join().unwrap();
            assert_eq!(is_named(&folder, &held).unwrap(), Some(true));
            let other = pins.lock_within(Duration::ZERO);
            assert!(other.unwrap_err().to_string().contains("has held the lock"));
            drop(held);
            [&folder, &away].into_iter().for_each(|path| std::fs::remove_dir(path).unwrap());
        }
    }
}
