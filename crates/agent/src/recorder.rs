//! Writes a recording to disk so that an unfinished one is never taken for a complete one.
use crate::output::Output;
use nix::sys::statvfs::fstatvfs;
use std::fs::File;
use std::io::BufWriter;
use teiji_model::event::Event;
use teiji_model::recording::{Error, Writer};
use teiji_model::report::{Counters, Meta};
use teiji_model::stream::Change;
use teiji_model::usage::{ObservedVms, Sample};

/// A file system with less than this part of it free, and less than so many bytes, is nearly full.
const RESERVED_PART: u64 = 20;
const RESERVED: u64 = 1 << 30;

/// How many bytes are free in the file system of a file or folder, if it is nearly full.
pub(crate) fn nearly_full(file: &File) -> Option<u64> {
    let found = fstatvfs(file).ok()?;
    let (free, all) = (found.blocks_available() as u64, found.blocks() as u64);
    let bytes = free.saturating_mul(found.fragment_size() as u64);
    (free < all / RESERVED_PART && bytes < RESERVED).then_some(bytes)
}

/// A recording being written.
pub(crate) struct Recorder {
    writer: Writer<BufWriter<File>>,
    output: Output,
}

impl Recorder {
    /// Writes the header; refuses a `meta` that a reader would refuse.
    pub(crate) fn begin(output: Output, meta: &Meta) -> Result<Self, Error> {
        let file = output.file().try_clone().map_err(io)?;
        let writer = Writer::new(BufWriter::with_capacity(1 << 18, file), meta)?;
        Ok(Recorder { writer, output })
    }

    /// The event is in the file after [`Recorder::finish`] at the latest.
    pub(crate) fn push(&mut self, event: Event) -> Result<(), Error> {
        self.writer.push(event)
    }

    /// Adds a change, after the events so far.
    pub(crate) fn change(&mut self, change: &Change) -> Result<(), Error> {
        self.writer.change(change)
    }

    /// Adds whose counters the following samples have.
    pub(crate) fn observed(&mut self, observed: &ObservedVms) -> Result<(), Error> {
        self.writer.observed(observed)
    }

    /// Adds counters.
    pub(crate) fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        self.writer.sample(sample)
    }

    /// Hands everything so far to the file: it can be read as unfinished until here.
    pub(crate) fn sync(&mut self, counters: &Counters) -> Result<(), Error> {
        self.writer.sync(counters)
    }

    /// How many bytes are free in the file system of the recording, if it is nearly full.
    pub(crate) fn nearly_full(&self) -> Option<u64> {
        nearly_full(self.output.file())
    }

    /// Completes the recording and gives it its name. If it is dropped instead, the file is removed.
    pub(crate) fn finish(self, counters: &Counters) -> Result<(), Error> {
        self.writer.finish(counters)?.into_inner().map_err(|e| io(e.into_error()))?;
        self.output.persist().map_err(io)
    }
}

/// A failure of the file as a whole.
fn io(source: std::io::Error) -> Error {
    Error::Io { at: 0, source }
}
