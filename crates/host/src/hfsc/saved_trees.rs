//! The channels of a device's trees, in a file: those of the present tree, and during a change those of the next one,
//! too.

use super::tree::Tree;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The notes of a device.
pub(super) struct SavedTrees {
    dir: PathBuf,
    path: PathBuf,
}

impl SavedTrees {
    pub fn new(dir: &Path, index: u32) -> Self {
        SavedTrees { dir: dir.to_owned(), path: dir.join(format!("hfsc-{index}.json")) }
    }

    /// Notes by handle; empty if there is no such file, or if this version did not write it.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self) -> Result<Vec<Tree>, String> {
        match std::fs::read(&self.path) {
            // A note that is missing cannot agree with the kernel.
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(self.failed("read", &e)),
        }
    }

    /// Replaces the former notes by these; they are on the disk when it returns.
    ///
    /// # Errors
    /// If the file cannot be written; the former one then still exists.
    pub fn write(&self, trees: &[Tree]) -> Result<(), String> {
        let text = serde_json::to_vec(trees).map_err(|e| e.to_string())?;
        let new = self.path.with_extension("new");
        let written = || {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.custom_flags(nix::libc::O_NOFOLLOW).open(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&new, &self.path)?;
            File::open(&self.dir)?.sync_all()
        };
        written().map_err(|e| self.failed("write", &e))
    }

    /// # Errors
    /// If it is still there.
    pub fn remove(&self) -> Result<(), String> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(self.failed("remove", &e)),
            _ => Ok(()),
        }
    }

    fn failed(&self, what: &str, e: &std::io::Error) -> String {
        format!("cannot {what} {}, which says what its channels are: {e}", self.path.display())
    }
}
