//! Kernel files: read completely, written by a single `write(2)`.

use crate::root::{Dir, Root};
use nix::errno::Errno;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;

/// A file as text, without surrounding blanks.
pub(super) fn read(root: &Root, path: &str) -> Result<String, Errno> {
    root.read(path).map(|bytes| trimmed(&bytes)).map_err(of_rustix)
}

/// [`read`] of a file below an open directory.
pub(super) fn read_in(dir: &Dir, path: &str) -> Result<String, Errno> {
    dir.read(path).map(|bytes| trimmed(&bytes)).map_err(of_rustix)
}

fn trimmed(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

fn of_rustix(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// Writes a file that exists. The kernel gets the whole text at once or nothing.
pub(super) fn write(root: &Root, path: &str, text: &str) -> Result<(), Errno> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(root.path(path)).map_err(number)?;
    let written = loop {
        match file.write(text.as_bytes()) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other.map_err(number)?,
        }
    };
    if written == text.len() { Ok(()) } else { Err(Errno::EIO) }
}

/// Whether the kernel lets nobody write a file.
pub(super) fn is_read_only(root: &Root, path: &str) -> bool {
    fs::metadata(root.path(path)).is_ok_and(|data| data.permissions().mode() & 0o222 == 0)
}

/// The error number of an I/O error.
pub(super) fn number(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
