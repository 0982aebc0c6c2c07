//! Reads files below a prefix. A file that cannot be read is `None`: a process may vanish at any moment.
//!
//! A look at a host with a thousand taps reads thousands of files, and nearly all of its time is that of the system calls. So a
//! file costs four of them ([`Root::text`]: open, read, the read that finds the end, close), and what lies together is read
//! relative to its directory ([`Dir`]), whose path the kernel then walks once. What is read every second stays open ([`Kept`]), and
//! costs one.

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom, openat, readlinkat, seek, statat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory that stands for `/`, and a count of the reads below it.
#[derive(Clone, Debug)]
pub struct Root {
    dir: PathBuf,
    reads: Arc<AtomicU64>,
}

impl PartialEq for Root {
    fn eq(&self, other: &Self) -> bool {
        self.dir == other.dir
    }
}

impl Eq for Root {}

impl Default for Root {
    fn default() -> Self {
        Root::new("/")
    }
}

impl Root {
    /// A host whose `/proc`, `/sys` and `/dev` are below `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Root { dir: dir.into(), reads: Arc::default() }
    }

    /// Whether this is the machine that the program runs on, so that ids found here mean something to its kernel.
    pub fn is_real(&self) -> bool {
        self.dir == Path::new("/")
    }

    /// How many files, links and directories were read below this root or a clone of it: a measure of the cost of an
    /// observation that needs no clock.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// `path`, relative to `/`, on this host.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.dir.join(path)
    }

    /// A file as text; bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.bytes(path).map(into_text)
    }

    /// The content of a file; `None` if it cannot be read.
    pub(crate) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        self.read(path).ok()
    }

    /// The content of a file.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>, Errno> {
        content(CWD, &self.path(path))
    }

    /// A directory, opened; `None` if it cannot be.
    pub(crate) fn dir(&self, path: &str) -> Option<Dir> {
        let dir = open(CWD, &self.path(path), OFlags::DIRECTORY).ok()?;
        Some(Dir { dir, reads: Arc::clone(&self.reads) })
    }

    /// A file, opened, to be read again and again; `None` if it cannot be.
    pub(crate) fn keep(&self, path: &str) -> Option<Kept> {
        let file = open(CWD, &self.path(path), OFlags::empty()).ok()?;
        Some(Kept { file, reads: Arc::clone(&self.reads) })
    }

    /// The number in a file that has nothing else; hexadecimal with `0x`.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        let text = self.text(path)?;
        let text = text.trim();
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The target of a symbolic link, unresolved.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.path(path)).ok().map(|p| p.to_string_lossy().into_owned())
    }

    /// Whether such a file or directory exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Names in a directory; empty if it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        list(&self.path(path)).unwrap_or_default()
    }

    /// Names in a directory that are numbers, ascending; empty if it cannot be read.
    pub(crate) fn numbers(&self, path: &str) -> Vec<u32> {
        numbers(&self.names(path))
    }
}

/// A file of `/proc` or `/sys` that is open. The kernel makes its content anew for each read from its beginning. That of a thread
/// that has ended cannot be read, also if another one has its id now.
pub(crate) struct Kept {
    file: OwnedFd,
    reads: Arc<AtomicU64>,
}

impl Kept {
    /// Its content, which is less than a page; `None` if it cannot be read.
    pub(crate) fn bytes<'b>(&self, buffer: &'b mut [u8; USUAL]) -> Option<&'b [u8]> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let length = rustix::io::retry_on_intr(|| rustix::io::pread(&self.file, &mut buffer[..], 0)).ok()?;
        buffer.get(..length)
    }
}

/// A directory that is open. Paths are relative to it.
pub(crate) struct Dir {
    dir: OwnedFd,
    reads: Arc<AtomicU64>,
}

impl Dir {
    fn counted(&self) -> &OwnedFd {
        self.reads.fetch_add(1, Ordering::Relaxed);
        &self.dir
    }

    /// As [`Root::text`].
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().map(into_text)
    }

    /// As [`Root::read`].
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn read(&self, path: &str) -> Result<Vec<u8>, Errno> {
        content(self.counted(), Path::new(path))
    }

    /// As [`Root::link`].
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        let target = readlinkat(self.counted(), path, Vec::new()).ok()?;
        Some(into_text(target.into_bytes()))
    }

    /// As [`Root::exists`]. Needs no descriptor.
    pub(crate) fn exists(&self, path: &str) -> bool {
        statat(self.counted(), path, AtFlags::empty()).is_ok()
    }

    /// The names in it that are numbers, ascending; empty if it cannot be read. To be called once: the kernel goes on where
    /// it has stopped.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        numbers(&entries(&self.dir).unwrap_or_default())
    }

    /// The threads in this directory `task` of a process, as [`threads`] lists them; empty if it cannot be read.
    pub(crate) fn threads(&self) -> Vec<u32> {
        threads_in(&self.dir).unwrap_or_default()
    }
}

fn numbers(names: &[String]) -> Vec<u32> {
    let mut numbers: Vec<u32> = names.iter().filter_map(|n| n.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

/// Most files of `/proc` and `/sys` have less than this, bytes.
pub(crate) const USUAL: usize = 4096;

fn open(at: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat(at, path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// A file's content. The kernel tells no size of its own files, for which `std::fs::read` therefore takes two more system
/// calls.
fn content(at: impl AsFd, path: &Path) -> Result<Vec<u8>, Errno> {
    let file = open(at, path, OFlags::empty())?;
    let mut content = Vec::new();
    loop {
        if content.len() == content.capacity() {
            content.reserve(USUAL);
        }
        match rustix::io::read(&file, spare_capacity(&mut content)) {
            Ok(0) => return Ok(content),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Names in a directory.
pub(crate) fn list(dir: &Path) -> std::io::Result<Vec<String>> {
    Ok(entries(&open(CWD, dir, OFlags::DIRECTORY)?)?)
}

/// How many times the threads of a process are listed.
const LISTINGS: usize = 8;

/// The ids of the threads in a directory `task` of a process, ascending, those that end meanwhile among them. No thread that
/// lives is left out, unless others end during each of [`LISTINGS`] listings, and it is left out of all of them.
///
/// # Errors
/// The kernel's.
pub(crate) fn threads(dir: &Path) -> std::io::Result<Vec<u32>> {
    Ok(threads_in(&open(CWD, dir, OFlags::DIRECTORY)?)?)
}

/// The kernel ends a listing at a thread that has just ended (`next_tid()`, fs/proc/base.c). It then goes on by an index in its
/// list (`first_tid()`), in which the threads after that one have moved down by one: the next one is left out. So threads are
/// listed until two listings in a row are the same, and those of all listings are taken.
fn threads_in(dir: &OwnedFd) -> Result<Vec<u32>, Errno> {
    let mut all: BTreeSet<u32> = BTreeSet::new();
    let mut before: Option<Vec<u32>> = None;
    for _ in 0..LISTINGS {
        seek(dir, SeekFrom::Start(0))?;
        let listed = numbers(&entries(dir)?);
        all.extend(&listed);
        if before.as_ref() == Some(&listed) {
            break;
        }
        before = Some(listed);
    }
    Ok(all.into_iter().collect())
}

/// Names in an open directory. The standard library would also ask for the kind of the file.
fn entries(dir: &OwnedFd) -> Result<Vec<String>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); 2 * USUAL];
    let mut all = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = all.next() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !matches!(name.as_str(), "." | "..") {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread::JoinHandle;

    #[test]
    fn a_file_is_read_completely_and_a_usual_one_into_one_buffer() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path());
        for length in [0, 1, USUAL - 1, USUAL, USUAL + 1, 5 * USUAL] {
            let wanted: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            fs::write(dir.path().join("file"), &wanted).unwrap();
            let read = root.bytes("file").unwrap();
            assert_eq!(read, wanted);
            assert!(length >= USUAL || read.capacity() < 2 * USUAL, "{length}: {}", read.capacity());
        }
    }

    /// A thread that lives until the sender is dropped, and its id.
    fn thread() -> (u32, mpsc::Sender<()>, JoinHandle<()>) {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            let _ = ended.recv();
        });
        (told.recv().unwrap(), end, thread)
    }

    /// After each thread that ends comes one that lives, which the kernel leaves out of a listing if the other one ends in the
    /// middle of it.
    #[test]
    fn threads_that_end_hide_no_others() {
        let tasks = Root::default().dir("proc/self/task").unwrap();
        for _ in 0..200 {
            let (ending, living): (Vec<_>, Vec<_>) = (0..8).map(|_| (thread(), thread())).unzip();
            for (_, end, thread) in ending {
                drop(end);
                for _ in 0..8 {
                    let listed = tasks.threads();
                    for (id, ..) in &living {
                        assert!(listed.contains(id), "{id} lives and is not in {listed:?}");
                    }
                }
                thread.join().unwrap();
            }
            for (_, end, thread) in living {
                drop(end);
                thread.join().unwrap();
            }
        }
    }
}
