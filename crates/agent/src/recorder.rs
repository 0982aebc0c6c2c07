//! Writing a recording to disk so that a half-written one is never taken for a whole one.
use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use teiji_model::event::Event;
use teiji_model::recording::{Error, Writer};
use teiji_model::report::{Counters, Meta};

/// A recording being written, as `<name>.partial` until it is complete.
pub(crate) struct Recorder {
    writer: Writer<BufWriter<File>>,
    partial: PathBuf,
    path: PathBuf,
}

impl Recorder {
    /// Begins.
    pub(crate) fn create(path: &Path, meta: &Meta) -> Result<Self, Error> {
        let mut name: OsString = path.as_os_str().to_owned();
        name.push(".partial");
        let partial = PathBuf::from(name);
        let file = File::create(&partial).map_err(io)?;
        let writer = Writer::new(BufWriter::with_capacity(1 << 18, file), meta).inspect_err(|_| {
            let _ = std::fs::remove_file(&partial);
        })?;
        Ok(Recorder { writer, partial, path: path.to_owned() })
    }

    /// Adds an event.
    pub(crate) fn push(&mut self, event: Event) -> Result<(), Error> {
        self.writer.push(event)
    }

    /// Completes the recording and gives it its name.
    pub(crate) fn finish(self, counters: &Counters) -> Result<(), Error> {
        let Recorder { writer, partial, path } = self;
        let done = writer.finish(counters).and_then(|buffered| {
            let file = buffered.into_inner().map_err(|e| io(e.into_error()))?;
            file.sync_all().map_err(io)?;
            std::fs::rename(&partial, &path).map_err(io)
        });
        done.inspect_err(|_| {
            let _ = std::fs::remove_file(&partial);
        })
    }

    /// Gives up: removes what was written.
    pub(crate) fn abandon(self) {
        let _ = std::fs::remove_file(&self.partial);
    }
}

/// A failure of the file as a whole.
fn io(source: std::io::Error) -> Error {
    Error::Io { at: 0, source }
}
