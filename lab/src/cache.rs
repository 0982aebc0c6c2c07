//! The folder of prepared files: `$TEIJI_CACHE`, else `$XDG_CACHE_HOME/teiji`, else `~/.cache/teiji`.
//!
//! ```text
//! <cache>/prepare.lock     held while a root file system is made
//! <cache>/lab.lock         held while a lab host runs: only one at a time, so that measurements are not disturbed
//! <cache>/lab-<key>/       one per recipe: root/ (file system), root.erofs (its image),
//!                          initramfs-<kernel>.cpio
//! <cache>/run/             sockets, console log and initial RAM disk of the running lab host
//! <cache>/run.before/      the same files of the previous lab host: its console log shows why it ended
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use crate::{
    error::{Doing, Error, Result},
    progress::ProgressStep,
};

/// The cache folder of this user; it is created if it does not exist.
///
/// # Errors
/// If no home folder is known or the folder cannot be created.
pub fn folder() -> Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = from("TEIJI_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|p| p.join("teiji")))
        .or_else(|| from("HOME").map(|p| p.join(".cache/teiji")))
        .ok_or_else(|| Error::Missing {
            what: "a cache folder".into(),
            therefore: "the lab's root file system has no place".into(),
            fix: "set TEIJI_CACHE or HOME".into(),
        })?;
    fs::create_dir_all(&folder).doing(|| format!("make the cache folder {}", folder.display()))?;
    folder.canonicalize().doing(|| format!("find {}", folder.display()))
}

/// A lock between processes; it is released when this is dropped, or when the process ends.
pub(crate) struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

impl Lock {
    /// Takes the lock `path` if it is free.
    pub(crate) fn take_if_free(path: &Path) -> Option<Lock> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).ok()?;
        try_lock(&file).unwrap_or(false).then_some(Lock(file))
    }

    /// Takes the lock `path`; waits for its holder without a limit, and reports who that is.
    pub(crate) fn take(path: &Path, what: &str) -> Result<Lock> {
        let doing = || format!("lock {}", path.display());
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).doing(doing)?;
        let mut waiting: Option<ProgressStep> = None;
        let mut reported_at = -30.0;
        while !try_lock(&file).doing(doing)? {
            let step = waiting.get_or_insert_with(|| ProgressStep::begin(&format!("waiting for {what}")));
            if step.seconds() - reported_at >= 30.0 {
                reported_at = step.seconds();
                let mut holder = String::new();
                file.rewind().and_then(|()| file.read_to_string(&mut holder)).doing(doing)?;
                // A command line may be a whole script.
                let holder: String = holder.split_whitespace().take(8).collect::<Vec<_>>().join(" ");
                step.say(&format!("{what} is in use by {holder}"));
            }
            thread::sleep(Duration::from_millis(200));
        }
        let me = std::env::args().collect::<Vec<_>>().join(" ");
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "process {} ({me})", std::process::id()))
            .doing(doing)?;
        Ok(Lock(file))
    }
}

fn try_lock(file: &File) -> nix::Result<bool> {
    use std::os::fd::AsRawFd;
    // SAFETY: flock only gets the descriptor, which `file` keeps open.
    match unsafe { libc::flock(file.as_fd().as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(true),
        _ => match nix::Error::last() {
            nix::Error::EWOULDBLOCK | nix::Error::EINTR => Ok(false),
            e => Err(e),
        },
    }
}

/// Free bytes for this user on the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> Result<u64> {
    let s = nix::sys::statvfs::statvfs(path).doing(|| format!("see how full {} is", path.display()))?;
    Ok(s.blocks_available() * s.fragment_size())
}
