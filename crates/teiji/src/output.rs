//! Where reports go.

use anyhow::{Context, Result};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use teiji_agent::output::{Output, Rights};

/// Writes what is to be written.
pub type Content<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

/// Where a report goes. Made before the work whose report it is, which gives up the rights that this takes, and which
/// nobody wants to lose to a misspelt folder.
#[derive(Debug)]
pub struct Report(Option<(PathBuf, Output)>);

impl Report {
    /// To `out`, or to standard output. A file appears whole or not at all ([`teiji_agent::output`]); what is not a regular
    /// file (`/dev/stdout`, a pipe) is written to as it is.
    ///
    /// # Errors
    /// If it cannot be written there.
    pub fn to(out: Option<&Path>, rights: Rights) -> Result<Report> {
        let open = |path: &Path| {
            let output = Output::create_or_open(path, rights).map_err(|e| hint(path, e));
            output.with_context(|| what(path)).map(|output| (path.to_owned(), output))
        };
        out.map(open).transpose().map(Report)
    }

    /// Writes what is to be written. If that fails, `fallback`, which is text that a person can read, goes to standard
    /// output: the work is not lost.
    ///
    /// # Errors
    /// If it cannot be written. See [`reader_left`] for standard output that nobody reads any more.
    pub fn write(self, content: &Content<'_>, fallback: impl FnOnce() -> String) -> Result<()> {
        let Some((path, output)) = self.0 else { return to_stdout(content) };
        let write = || -> io::Result<()> {
            let mut buffer = io::BufWriter::new(output.file());
            content(&mut buffer)?;
            buffer.flush()?;
            drop(buffer);
            output.keep()
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
/// As [`stdout`].
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    stdout(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// The same of what need not be text.
///
/// # Errors
/// As [`stdout`].
pub fn bytes(content: &[u8]) -> Result<()> {
    to_stdout(&|w| w.write_all(content))
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

/// Says what to do about the errors that people meet.
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
        Report::to(Some(path), Rights::Kept)?.write(content, String::new)
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        std::fs::write(&path, "old and longer").unwrap();
        let report = Report::to(Some(&path), Rights::Kept).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old and longer");
        report.write(&|w| w.write_all(b"new"), String::new).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn no_directory_is_said() {
        let error =
            Report::to(Some(&tempfile::tempdir().unwrap().path().join("no/such")), Rights::Kept).unwrap_err();
        assert!(format!("{error:#}").contains("there is no directory"), "{error:#}");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let error = file(Path::new("/dev/full"), &|w| w.write_all(b"x")).unwrap_err();
        assert!(format!("{error:#}").contains("No space left"), "{error:#}");
    }
}
