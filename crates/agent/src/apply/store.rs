//! The state directory: the file operations that the journal uses. The effect of each is on the disk when it returns.
//!
//! They are a trait, so that a test can end the "process" between any two of them, and fill the disk.

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use std::any::Any;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The lock: a process that changes settings holds it from before it reads them until it has finished.
pub const LOCK: &str = "lock";
/// The journal of the transaction under way.
pub const TRANSACTION: &str = "transaction";
/// What teiji holds.
pub const HELD: &str = "held.json";
/// What teiji holds once the transaction under way is committed.
pub const HELD_NEXT: &str = "held.json.next";
/// A confirmation, as teiji 0.1.0 left it for the process that waited. Only removed.
pub const CONFIRMED: &str = "confirmed";
/// The most that is read of a file, bytes: ten times the size for thousands of VMs with every setting.
const LARGEST: u64 = 64 << 20;
/// How often the lock is tried if its file is replaced meanwhile.
const TRIES: usize = 5;
/// A file being written, before it gets its name.
const NEW: &str = "new";

/// The file operations. Names are those above. Their effect is durable when they return `Ok`. If they return `Err`, or
/// do not return, it may have happened all the same; only that of [`Store::append`] may have happened in part.
pub trait Store {
    /// The whole content of a file; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a file by a new one, atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write(&self, name: &str, content: &[u8]) -> io::Result<()>;

    /// Cuts a file to its first `at` bytes and appends `line`.
    ///
    /// # Errors
    /// If it cannot be written; the file is then cut to `at` bytes if the disk allows it.
    fn append(&self, name: &str, at: u64, line: &[u8]) -> io::Result<()>;

    /// Gives a file the name of another, which it replaces.
    ///
    /// # Errors
    /// If that fails.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; fine if there is none. Needs no room on the disk.
    ///
    /// # Errors
    /// If it is still there.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Takes the lock until the value is dropped or the process ends; `None` if another has it.
    ///
    /// # Errors
    /// If the directory cannot be made or is not safe to use, or the lock file cannot be opened.
    fn lock(&self) -> io::Result<Option<Box<dyn Any>>>;

    /// Whether someone has the lock, and the process id if it is known.
    ///
    /// # Errors
    /// If the lock file cannot be opened.
    fn holder(&self) -> io::Result<Option<Option<u32>>>;

    /// The file's place, for messages.
    fn path(&self, name: &str) -> PathBuf;
}

/// What came of locking a file.
enum Tried {
    Held(Flock<File>),
    /// Another process has the lock.
    Taken,
    /// The file was removed or replaced after it was opened.
    Replaced,
}

/// A directory on a disk: 0700, its files 0600.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The directory at `path`, which need not be there yet.
    pub fn new(path: &Path) -> Self {
        Directory { path: path.to_owned() }
    }

    fn open(&self, name: &str, options: &mut OpenOptions) -> io::Result<File> {
        // Never waits for the other end of a pipe that somebody has put there.
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK;
        options.mode(0o600).custom_flags(flags).open(self.path(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Locks an open lock file. The lock counts only if the file still has its name: another process may lock the one that has
    /// it now.
    fn try_lock(&self, file: File) -> io::Result<Tried> {
        let held = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => held,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(Tried::Taken),
            Err((_, e)) => return Err(e.into()),
        };
        let ours = held.metadata()?;
        match self.path(LOCK).symlink_metadata() {
            Ok(now) if (now.dev(), now.ino()) == (ours.dev(), ours.ino()) => Ok(Tried::Held(held)),
            Ok(_) => Ok(Tried::Replaced),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Tried::Replaced),
            Err(e) => Err(e),
        }
    }

    /// Makes the directory. If another user could write to it, that user could make root change any setting.
    fn prepare(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let found = self.path.metadata()?;
        if found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
            let message = format!(
                "others may write to {}, so what it says cannot be trusted: chown it to the user that runs teiji \
                 and chmod it to 700",
                self.path.display()
            );
            return Err(io::Error::new(ErrorKind::PermissionDenied, message));
        }
        Ok(())
    }
}

impl Store for Directory {
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open(name, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "it is no regular file, so teiji did not write it",
            ));
        }
        let mut content = Vec::new();
        if file.take(LARGEST + 1).read_to_end(&mut content)? as u64 > LARGEST {
            let message = format!("it has more than {LARGEST} bytes, so teiji did not write it");
            return Err(io::Error::new(ErrorKind::FileTooLarge, message));
        }
        Ok(Some(content))
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        // Each file has one name for its unfinished form. That is enough: writers hold the lock.
        let new = format!("{name}.{NEW}");
        let written = self
            .open(&new, OpenOptions::new().write(true).create(true).truncate(true))
            .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
            .and_then(|()| self.rename(&new, name));
        written.inspect_err(|_| {
            let _ = std::fs::remove_file(self.path(&new));
        })
    }

    fn append(&self, name: &str, at: u64, line: &[u8]) -> io::Result<()> {
        let mut file = self.open(name, OpenOptions::new().write(true))?;
        file.set_len(at)?;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(line).and_then(|()| file.sync_data()).inspect_err(|_| {
            // Half a line does no harm, but a complete line must not stay after an error was returned for it.
            let _ = file.set_len(at).and_then(|()| file.sync_data());
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))?;
        self.sync()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path(name)) {
            Ok(()) => self.sync(),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Any>>> {
        for _ in 0..TRIES {
            self.prepare()?;
            let options = &mut OpenOptions::new();
            let file = self.open(LOCK, options.read(true).write(true).create(true).truncate(false))?;
            match self.try_lock(file)? {
                Tried::Held(held) => {
                    // For messages only. Always of the same length, so that it also works on a full disk once it exists.
                    let _ = held.write_all_at(format!("{:<10}\n", std::process::id()).as_bytes(), 0);
                    return Ok(Some(Box::new(held)));
                }
                Tried::Taken => return Ok(None),
                Tried::Replaced => {}
            }
        }
        // Somebody replaces it all the time: whoever needs the lock tries again for a while.
        Ok(None)
    }

    fn holder(&self) -> io::Result<Option<Option<u32>>> {
        let mut file = match self.open(LOCK, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut text = String::new();
        let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
        // Held for an instant only; others that want it try for longer than that.
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => Ok(None),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(Some(pid)),
            Err((_, e)) => Err(e.into()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes never both change settings: one that has opened a file that is gone by the time it is locked does not have
    /// the lock of the directory.
    #[test]
    fn the_lock_on_a_file_that_is_gone_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let state = Directory::new(&dir.path().join("state"));
        drop(state.lock().unwrap().unwrap());
        let open = || state.open(LOCK, OpenOptions::new().read(true).write(true)).unwrap();
        let (removed, replaced) = (open(), open());
        std::fs::remove_file(state.path(LOCK)).unwrap();
        assert!(matches!(state.try_lock(removed).unwrap(), Tried::Replaced));
        let held = state.lock().unwrap().unwrap();
        assert!(matches!(state.try_lock(replaced).unwrap(), Tried::Replaced));
        assert!(matches!(state.try_lock(open()).unwrap(), Tried::Taken));
        drop(held);
        assert!(matches!(state.try_lock(open()).unwrap(), Tried::Held(_)));
    }
}
