//! Only one agent keeps a state directory: the one that has the lock on its file `agent.lock`. Another one, with other pins,
//! sends its heartbeat and tries again; it neither keeps the policy nor answers.
//!
//! The lock counts as long as its file has that name: if somebody removes the file or the directory, another agent can lock
//! a new one, so this one has to try again as well.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The lock of a state directory, once this agent has it.
pub(super) struct Claim {
    state: PathBuf,
    held: Mutex<Option<Flock<File>>>,
}

impl Claim {
    pub(super) fn on(state: &Path) -> Claim {
        Claim { state: state.to_owned(), held: Mutex::new(None) }
    }

    /// Whether this agent keeps the directory; tries to become the one that does.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub(super) fn is_ours(&self) -> io::Result<bool> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = held.as_ref()
            && !self.is_named(lock)?
        {
            tracing::warn!("{} was removed or replaced: the agent locks it again", self.file().display());
            *held = None;
        }
        if held.is_none() {
            *held = self.take()?;
        }
        Ok(held.is_some())
    }

    fn file(&self) -> PathBuf {
        file(&self.state)
    }

    /// Whether the locked file still has its name.
    fn is_named(&self, lock: &File) -> io::Result<bool> {
        let ours = lock.metadata()?;
        match self.file().symlink_metadata() {
            Ok(found) => Ok((found.dev(), found.ino()) == (ours.dev(), ours.ino())),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn take(&self) -> io::Result<Option<Flock<File>>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.state)?;
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags)
            .open(self.file())?;
        // `is_held` has it for an instant.
        let mut tries = 3;
        let mut file = file;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Some(lock)),
                Err((again, Errno::EWOULDBLOCK)) if tries > 0 => file = again,
                Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
                Err((_, e)) => return Err(e.into()),
            }
            tries -= 1;
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn file(state: &Path) -> PathBuf {
    state.join("agent.lock")
}

/// Whether an agent keeps this state directory.
///
/// # Errors
/// If the caller may not know.
pub(crate) fn is_held(state: &Path) -> io::Result<bool> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(file(state)) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(false);
        }
        Err(e) => return Err(e),
    };
    // An agent that starts at this moment tries again: see `take`.
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, e)) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let (one, other) = (Claim::on(&state), Claim::on(&state));
        assert!(!is_held(&state).unwrap());
        assert!(one.is_ours().unwrap() && one.is_ours().unwrap() && !other.is_ours().unwrap());
        assert!(is_held(&state).unwrap());
        drop(one);
        assert!(!is_held(&state).unwrap());
        assert!(other.is_ours().unwrap());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(Claim::on(&dir.path().join("file")).is_ours().is_err());
    }

    /// Two agents never both keep what is there now.
    #[test]
    fn the_lock_on_a_file_that_is_gone_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let (one, other) = (Claim::on(&state), Claim::on(&state));
        assert!(one.is_ours().unwrap());
        std::fs::remove_file(state.join("agent.lock")).unwrap();
        assert!(other.is_ours().unwrap() && !one.is_ours().unwrap());
        drop(other);
        assert!(one.is_ours().unwrap());
        std::fs::remove_dir_all(&state).unwrap();
        assert!(one.is_ours().unwrap() && state.join("agent.lock").exists());
    }
}
