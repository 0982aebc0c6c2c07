//! Where reports go.

use anyhow::{Context, Result};
use std::io::{self, Write};
use std::path::Path;

/// Writes what is to be written.
pub type Content<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

/// Writes a report to `out`, or to standard output.
///
/// A file appears whole or not at all: it is written beside its place and renamed. If that fails,
/// `fallback`, which is text that a person can read, goes to standard output: the work is not lost.
///
/// # Errors
/// If it cannot be written. See [`reader_left`] for standard output that nobody reads any more.
pub fn write(out: Option<&Path>, content: &Content<'_>, fallback: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = out else { return to_stdout(content) };
    let result = file(path, content);
    if result.is_err() {
        let _ = stdout(&fallback());
    }
    result
}

/// Writes to standard output.
///
/// # Errors
/// If it cannot be written.
pub fn stdout(text: &str) -> Result<()> {
    to_stdout(&|w| w.write_all(text.as_bytes()))
}

fn to_stdout(content: &Content<'_>) -> Result<()> {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    content(&mut stdout).and_then(|()| stdout.flush()).context("cannot write to standard output")
}

/// Whether the error is that nobody reads the output any more, as with `teiji vms | head -1`.
pub fn reader_left(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// Writes a file beside its place and renames it. What is not a regular file (`/dev/stdout`, a pipe)
/// is written to as it is.
fn file(path: &Path, content: &Content<'_>) -> Result<()> {
    let what = || format!("cannot write the report to {}", path.display());
    if path.exists() && !path.is_file() {
        let write = || -> io::Result<()> {
            let mut file = io::BufWriter::new(std::fs::OpenOptions::new().write(true).open(path)?);
            content(&mut file)?;
            file.flush()
        };
        return write().map_err(|e| hint(path, e)).with_context(what);
    }
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o666); // the umask takes its part
        let mut temporary = tempfile::Builder::new().prefix(".teiji-").permissions(mode).tempfile_in(dir)?;
        let mut buffer = io::BufWriter::new(&mut temporary);
        content(&mut buffer)?;
        buffer.flush()?;
        drop(buffer);
        temporary.as_file().sync_all()?;
        temporary.persist(path)?;
        Ok(())
    };
    write().map_err(|e| hint(dir, e)).with_context(what)
}

/// Says what to do about the errors that people meet.
fn hint(dir: &Path, error: io::Error) -> anyhow::Error {
    let dir = dir.display();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            anyhow::Error::new(error).context(format!("{dir} is full; make room or choose another --out"))
        }
        io::ErrorKind::NotFound => anyhow::Error::new(error).context(format!("there is no directory {dir}")),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        std::fs::write(&path, "old and longer").unwrap();
        write(Some(&path), &|w| w.write_all(b"new"), String::new).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn no_directory_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let error = file(&dir.path().join("no/such"), &|_| Ok(())).unwrap_err();
        assert!(format!("{error:#}").contains("there is no directory"), "{error:#}");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let error = file(Path::new("/dev/full"), &|w| w.write_all(b"x")).unwrap_err();
        assert!(format!("{error:#}").contains("No space left"), "{error:#}");
    }
}
