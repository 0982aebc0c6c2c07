//! The destination of reports.

use anyhow::{Context, Result};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use teiji_agent::output::{Output, Rights};

/// Writes the content.
pub type Content<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

/// The destination of a report. It is made before the work begins, because the work gives up the privileges that this
/// needs, and should not be lost to a misspelt folder.
#[derive(Debug)]
pub struct Destination(Option<(PathBuf, Output)>);

impl Destination {
    /// Writes to `out`, or to standard output. A file appears only when it is complete ([`teiji_agent::output`]);
    /// anything that is not a regular file (`/dev/stdout`, a pipe) is written to directly.
    ///
    /// # Errors
    /// If the destination cannot be written.
    pub fn to(out: Option<&Path>, rights: Rights) -> Result<Destination> {
        let open = |path: &Path| {
            let output = Output::create_or_open(path, rights).map_err(|e| hint(path, e));
            output.with_context(|| what(path)).map(|output| (path.to_owned(), output))
        };
        out.map(open).transpose().map(Destination)
    }

    /// Writes the content. If that fails, `fallback`, a readable text, is written to standard output, so that the work
    /// is not lost.
    ///
    /// # Errors
    /// If the content cannot be written. [`reader_closed`] recognizes a standard output that nobody reads any more.
    pub fn write(self, content: &Content<'_>, fallback: impl FnOnce() -> String) -> Result<()> {
        let Some((path, output)) = self.0 else { return to_stdout(content) };
        let write = || -> io::Result<()> {
            let mut buffer = io::BufWriter::new(output.file());
            content(&mut buffer)?;
            buffer.flush()?;
            drop(buffer);
            output.persist()
        };
        let result = write().map_err(|e| hint(&path, e)).with_context(|| what(&path));
        if result.is_err() {
            let _ = stdout(&fallback());
        }
        result
    }
}

fn what(path: &Path) -> String {
    format!("cannot write the report to {}", path.display())
}

/// Writes to standard output.
///
/// # Errors
/// If it cannot be written.
pub fn stdout(text: &str) -> Result<()> {
    bytes(text.as_bytes())
}

/// Writes a value as JSON to standard output.
///
/// # Errors
/// Like [`stdout`].
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    stdout(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Writes bytes, which need not be text, to standard output.
///
/// # Errors
/// Like [`stdout`].
pub fn bytes(content: &[u8]) -> Result<()> {
    to_stdout(&|w| w.write_all(content))
}

fn to_stdout(content: &Content<'_>) -> Result<()> {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    content(&mut stdout).and_then(|()| stdout.flush()).context("cannot write to standard output")
}

/// Whether the error means that nobody reads the output any more, as with `teiji vms | head -1`.
pub fn reader_closed(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// Adds what to do about common errors.
fn hint(path: &Path, error: io::Error) -> anyhow::Error {
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
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

    fn file(path: &Path, content: &Content<'_>) -> Result<()> {
        Destination::to(Some(path), Rights::Kept)?.write(content, String::new)
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        std::fs::write(&path, "old and longer").unwrap();
        let destination = Destination::to(Some(&path), Rights::Kept).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old and longer");
        destination.write(&|w| w.write_all(b"new"), String::new).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn no_directory_is_said() {
        let error = Destination::to(Some(&tempfile::tempdir().unwrap().path().join("no/such")), Rights::Kept)
            .unwrap_err();
        assert!(format!("{error:#}").contains("there is no directory"), "{error:#}");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let error = file(Path::new("/dev/full"), &|w| w.write_all(b"x")).unwrap_err();
        assert!(format!("{error:#}").contains("No space left"), "{error:#}");
    }
}
