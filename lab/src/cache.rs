//! The folder of prepared files: `$TEIJI_CACHE`, else `$XDG_CACHE_HOME/teiji`, else `~/.cache/teiji`.
//!
//! ```text
//! <cache>/prepare.lock     held while a root file system is made
//! <cache>/lab.lock         held while a lab host runs: only one at a time, so that measurements are not disturbed;
//!                          $TEIJI_LABS says how many may run, each further one has lab.2.lock, run.2/, run.2.before/
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
        Ok(Lock::take_one(&[path.to_owned()], what)?.1)
    }

    /// Takes the first of these locks that is free; waits without a limit, and reports who holds one of them. Returns the
    /// number of the lock in `paths`.
    fn take_one(paths: &[PathBuf], what: &str) -> Result<(usize, Lock)> {
        let doing = || {
            format!("lock {}", paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" or "))
        };
        let open = |path| {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).doing(doing)
        };
        let mut files: Vec<File> = paths.iter().map(open).collect::<Result<_>>()?;
        let mut waiting: Option<ProgressStep> = None;
        let mut reported_at = -30.0;
        let taken = loop {
            let mut free = None;
            for (i, file) in files.iter().enumerate() {
                if try_lock(file).doing(doing)? {
                    free = Some(i);
                    break;
                }
            }
            if let Some(free) = free {
                break free;
            }
            let step = waiting.get_or_insert_with(|| ProgressStep::begin(&format!("waiting for {what}")));
            if step.seconds() - reported_at >= 30.0 {
                reported_at = step.seconds();
                let mut holder = String::new();
                for file in &mut files {
                    file.rewind().and_then(|()| file.read_to_string(&mut holder)).doing(doing)?;
                }
                // A command line may be a whole script.
                let holder: String = holder.split_whitespace().take(8).collect::<Vec<_>>().join(" ");
                step.say(&format!("{what} is in use by {holder}"));
            }
            thread::sleep(Duration::from_millis(200));
        };
        let mut file = files.swap_remove(taken);
        let me = std::env::args().collect::<Vec<_>>().join(" ");
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "process {} ({me})", std::process::id()))
            .doing(doing)?;
        Ok((taken, Lock(file)))
    }
}

/// The name of a file or folder of the `n`th place for a lab host; the first is 1.
fn of_place(n: usize, before: &str, after: &str) -> String {
    if n == 1 { format!("{before}{after}") } else { format!("{before}.{n}{after}") }
}

/// How many lab hosts can run at once at most.
const MOST_PLACES: usize = 4;

/// Where one lab host runs.
pub(crate) struct Place {
    /// Held while it runs.
    pub(crate) lock: Lock,
    /// Its files, and those of the lab host that was here before.
    pub(crate) folder: PathBuf,
    pub(crate) before: PathBuf,
}

impl Place {
    /// Takes a free place; waits until there is one. There are `$TEIJI_LABS` places, one if that is not set.
    pub(crate) fn take(cache: &Path) -> Result<Place> {
        let places = std::env::var("TEIJI_LABS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        Place::take_of(cache, places)
    }

    fn take_of(cache: &Path, places: usize) -> Result<Place> {
        let places = places.clamp(1, MOST_PLACES);
        let paths: Vec<PathBuf> = (1..=places).map(|n| cache.join(of_place(n, "lab", ".lock"))).collect();
        let (i, lock) = Lock::take_one(&paths, "the lab host")?;
        let folder = |after| cache.join(of_place(i + 1, "run", after));
        Ok(Place { lock, folder: folder(""), before: folder(".before") })
    }

    /// Whether no lab host runs, in any place: then all locks, which keep others from starting.
    pub(crate) fn take_all_if_free(cache: &Path) -> Option<Vec<Lock>> {
        (1..=MOST_PLACES).map(|n| Lock::take_if_free(&cache.join(of_place(n, "lab", ".lock")))).collect()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by them")]

    use super::*;

    #[test]
    fn as_many_lab_hosts_run_as_there_are_places_each_with_its_own_folders() {
        let cache = tempfile::tempdir().unwrap();
        let at = |name: &str| cache.path().join(name);
        assert!(Place::take_all_if_free(cache.path()).is_some());
        let first = Place::take_of(cache.path(), 2).unwrap();
        let second = Place::take_of(cache.path(), 2).unwrap();
        assert_eq!((&first.folder, &first.before), (&at("run"), &at("run.before")));
        assert_eq!((&second.folder, &second.before), (&at("run.2"), &at("run.2.before")));
        // A third waits until one of them has ended.
        let waits = std::thread::scope(|scope| {
            let third = scope.spawn(|| Place::take_of(cache.path(), 2).unwrap());
            thread::sleep(Duration::from_millis(500));
            let waits = !third.is_finished();
            drop(second);
            assert_eq!(third.join().unwrap().folder, at("run.2"));
            waits
        });
        assert!(waits, "a third lab host ran in one of two places");
        assert!(Place::take_all_if_free(cache.path()).is_none(), "the first still runs");
        drop(first);
        assert!(Place::take_all_if_free(cache.path()).is_some());
    }
}
