//! The folder of prepared files: `$TEIJI_CACHE`, else `$XDG_CACHE_HOME/teiji`, else `~/.cache/teiji`.
//!
//! ```text
//! <cache>/prepare.lock                a root file system is being made
//! <cache>/probe.lock, probe/          it is being tried whether KVM works here
//! <cache>/kvm-works                   whether it does
//! <cache>/lab-<key>/                  one per recipe: root/ (file system), root.erofs (its image),
//!                                     initramfs-<kernel>.cpio
//! <cache>/lab.lock, lab.2.lock, …     a lab host runs in this slot: see [`Slot`]
//! <cache>/run/, run.2/, …             its sockets, console log and initial RAM disk
//! <cache>/run.before/, …              the same files of the slot's previous lab host: its console log shows why it ended
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
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

/// A lock between processes, on one or more files; it is released when this is dropped, or when the process ends.
pub(crate) struct Lock(Vec<File>);

impl Lock {
    /// Takes the lock `path` if it is free.
    pub(crate) fn take_if_free(path: &Path) -> Option<Lock> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).ok()?;
        try_lock(&file).unwrap_or(false).then(|| Lock(vec![file]))
    }

    /// Takes the lock `path`; waits for its holder without a limit, and reports who that is.
    pub(crate) fn take(path: &Path, what: &str) -> Result<Lock> {
        Ok(Lock::wait(&[path.to_owned()], what, Want::All)?.1)
    }

    /// Takes a folder of results as well, so that no two lab hosts write to one at a time. Waits for it, at most this long: a lab host that has
    /// ended gives it back once its logs are read.
    ///
    /// # Errors
    /// If another lab host has it, or it cannot be made.
    pub(crate) fn and_results(mut self, folder: &Path, patience: Duration) -> Result<Lock> {
        fs::create_dir_all(folder).doing(|| format!("make {}", folder.display()))?;
        let doing = || format!("lock the folder {}", folder.display());
        let opened = File::open(folder).doing(doing)?;
        let begun = Instant::now();
        let mut taken = try_lock(&opened).doing(doing)?;
        while !taken && begun.elapsed() < patience {
            thread::sleep(Duration::from_millis(100));
            taken = try_lock(&opened).doing(doing)?;
        }
        if !taken {
            return Err(Error::LabHost(format!(
                "cannot have {} for its results: another lab host writes there, and theirs would be mixed; run one at a time, or give it \
                 another folder",
                folder.display()
            )));
        }
        self.0.push(opened);
        Ok(self)
    }

    /// Takes the first of these locks that is free, or all at once when all are free; waits without a limit, and reports who
    /// holds them. Returns the index in `paths` of the first lock that it took.
    fn wait(paths: &[PathBuf], what: &str, want: Want) -> Result<(usize, Lock)> {
        let names = || paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" or ");
        let doing = || format!("lock {}", names());
        let mut waiting: Option<ProgressStep> = None;
        let mut reported_at = -30.0;
        let (first, mut files) = loop {
            // Opened anew each time: those that are closed here are not kept from others while it waits.
            let open = |path| {
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).doing(doing)
            };
            let (mut taken, mut holders) = (Vec::new(), Vec::new());
            for (i, path) in paths.iter().enumerate() {
                let mut file = open(path)?;
                if try_lock(&file).doing(doing)? {
                    taken.push((i, file));
                    if want == Want::Any {
                        break;
                    }
                } else {
                    let mut holder = String::new();
                    file.read_to_string(&mut holder).doing(doing)?;
                    // A command line may be a whole script.
                    holders.push(holder.split_whitespace().take(8).collect::<Vec<_>>().join(" "));
                }
            }
            let enough = match want {
                Want::Any => !taken.is_empty(),
                Want::All => taken.len() == paths.len(),
            };
            if enough {
                let (indices, files): (Vec<usize>, Vec<File>) = taken.into_iter().unzip();
                break (indices.first().copied().unwrap_or(0), files);
            }
            drop(taken);
            let step = waiting.get_or_insert_with(|| ProgressStep::begin(&format!("waiting for {what}")));
            if step.seconds() - reported_at >= 30.0 {
                reported_at = step.seconds();
                for holder in holders {
                    step.say(&format!("{what} is in use by {holder}"));
                }
            }
            thread::sleep(Duration::from_millis(200));
        };
        let me = std::env::args().collect::<Vec<_>>().join(" ");
        for file in &mut files {
            file.set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "process {} ({me})", std::process::id()))
                .doing(doing)?;
        }
        Ok((first, Lock(files)))
    }
}

/// How many of some locks are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    Any,
    All,
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

/// How many lab hosts can run at once at most.
const MAX_SLOTS: usize = 4;

/// Where a lab host runs. Up to `$TEIJI_LABS` of them run at once, each in one slot. Where that is not set, or 1, a lab host
/// takes all slots: nothing else of the lab runs beside it, and disturbs what it measures.
///
/// A process has one slot at a time: two that had one each and waited for another would wait for ever.
pub(crate) struct Slot {
    /// Held while it runs.
    pub(crate) lock: Lock,
    /// Its files, and those of the slot's previous lab host.
    pub(crate) folder: PathBuf,
    pub(crate) previous: PathBuf,
}

/// The name of a file or folder of slot `n`, from 1 on.
fn of_slot(n: usize, prefix: &str, suffix: &str) -> String {
    if n == 1 { format!("{prefix}{suffix}") } else { format!("{prefix}.{n}{suffix}") }
}

impl Slot {
    /// Takes a free slot, or all; waits until there is one.
    ///
    /// # Errors
    /// If `$TEIJI_LABS` is not a number from 1 to 4, or the files cannot be made.
    pub(crate) fn take(cache: &Path) -> Result<Slot> {
        let limit = match std::env::var("TEIJI_LABS") {
            Ok(text) => text.parse().ok().filter(|n| (1..=MAX_SLOTS).contains(n)),
            Err(_) => Some(1),
        };
        let limit = limit.ok_or_else(|| Error::Missing {
            what: format!("a number from 1 to {MAX_SLOTS} in TEIJI_LABS"),
            therefore: "how many lab hosts may run at once is not known".into(),
            fix: "set it to such a number, or unset it".into(),
        })?;
        Slot::take_of(cache, limit)
    }

    fn take_of(cache: &Path, limit: usize) -> Result<Slot> {
        let lock = |n| cache.join(of_slot(n, "lab", ".lock"));
        // One that wants all takes none until all are free, so that it keeps none from others while it waits.
        let (wanted, want) = if limit == 1 { (MAX_SLOTS, Want::All) } else { (limit, Want::Any) };
        let (i, lock) = Lock::wait(&(1..=wanted).map(lock).collect::<Vec<_>>(), "the lab host", want)?;
        let folder = |suffix| cache.join(of_slot(i + 1, "run", suffix));
        Ok(Slot { lock, folder: folder(""), previous: folder(".before") })
    }

    /// All locks if no lab host runs, else `None`. While they are held none starts.
    pub(crate) fn take_all_if_free(cache: &Path) -> Option<Lock> {
        let take = |n| Lock::take_if_free(&cache.join(of_slot(n, "lab", ".lock"))).map(|lock| lock.0);
        Some(Lock((1..=MAX_SLOTS).map(take).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect()))
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

    /// Whether a lab host has to wait for this slot to be given up, and where it then runs.
    fn after(cache: &Path, limit: usize, slot: Slot) -> (bool, PathBuf) {
        std::thread::scope(|scope| {
            let next = scope.spawn(|| Slot::take_of(cache, limit).unwrap());
            thread::sleep(Duration::from_millis(500));
            let waits = !next.is_finished();
            drop(slot);
            (waits, next.join().unwrap().folder)
        })
    }

    #[test]
    fn as_many_lab_hosts_run_as_the_limit_says_each_with_its_own_folders() {
        let cache = tempfile::tempdir().unwrap();
        let (cache, at) = (cache.path(), |name: &str| cache.path().join(name));
        assert!(Slot::take_all_if_free(cache).is_some());
        let first = Slot::take_of(cache, 2).unwrap();
        let second = Slot::take_of(cache, 2).unwrap();
        assert_eq!((&first.folder, &first.previous), (&at("run"), &at("run.before")));
        assert_eq!((&second.folder, &second.previous), (&at("run.2"), &at("run.2.before")));
        assert_eq!(after(cache, 2, second), (true, at("run.2")), "a third waits for one of them");
        assert!(Slot::take_all_if_free(cache).is_none(), "the first still runs");
        drop(first);
        assert!(Slot::take_all_if_free(cache).is_some());
    }

    #[test]
    fn two_lab_hosts_have_no_folder_of_results_in_common() {
        let cache = tempfile::tempdir().unwrap();
        let results = cache.path().join("results");
        let take = |patience| Slot::take_of(cache.path(), 2).unwrap().lock.and_results(&results, patience);
        let first = take(Duration::ZERO).unwrap();
        let refused = take(Duration::ZERO).err().unwrap().to_string();
        assert!(refused.contains("another lab host writes there"), "{refused}");
        // It has ended, but has not given it back yet.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(300));
                drop(first);
            });
            take(Duration::from_secs(60)).unwrap();
        });
    }

    #[test]
    fn one_that_measures_runs_alone() {
        let cache = tempfile::tempdir().unwrap();
        let cache = cache.path();
        let [first, second] = [Slot::take_of(cache, 2).unwrap(), Slot::take_of(cache, 2).unwrap()];
        drop(first);
        assert_eq!(after(cache, 1, second), (true, cache.join("run")), "beside another in the second slot");
        let alone = Slot::take_of(cache, 1).unwrap();
        assert!(after(cache, 2, alone).0, "another one beside it");
    }
}
