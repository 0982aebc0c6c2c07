//! Reads files below a prefix. A file that cannot be read is `None`: a process may vanish at any moment.

use std::fs;
use std::io::Read;
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
        self.bytes(path).map(|b| String::from_utf8_lossy(&b).into_owned())
    }

    /// The content of a file; `None` if it cannot be read.
    pub(crate) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        read(&self.path(path)).ok()
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
        let mut numbers: Vec<u32> = self.names(path).iter().filter_map(|n| n.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// Most files of `/proc` and `/sys` have less than this.
const USUAL: usize = 4096;

/// A file's content. The kernel tells no size of its own files, for which `std::fs::read` therefore takes two more system
/// calls; a look at a host with a thousand taps reads five thousand of them.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let mut content = Vec::new();
    let mut buffer = [0; USUAL];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(content),
            Ok(n) => content.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Names in a directory.
pub(crate) fn list(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}
