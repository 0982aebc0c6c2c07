//! Writing a recording.

use super::{
    CHANGE, END, EVENTS, Error, HEADER, MAGIC, MAX_EVENTS, MAX_FRAME, MAX_HEADER, OF_STREAM, SO_FAR, VERSION,
    check, checksum, preamble,
};
use crate::event::Event;
use crate::report::{Counters, Meta};
use crate::stream::{Change, StreamId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// The size of encoded events at which a frame is written, bytes.
const FLUSH: usize = 1 << 20;

/// Writes a recording. Without [`Writer::finish`] the file has no End frame and counts as cut off.
pub struct Writer<W: Write> {
    out: W,
    at: u64,
    /// The next frame of the host's events, and those of guests' streams.
    host: Batch,
    guests: BTreeMap<StreamId, Batch>,
}

/// Encoded events of one stream, and their number.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    count: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a recording with its header. `out` should be buffered.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] or [`Error::TooLarge`] if a reader would refuse `meta`.
    pub fn new(out: W, meta: &Meta) -> Result<Self, Error> {
        let host = Batch { bytes: Vec::with_capacity(FLUSH + 4096), count: 0 };
        let mut w = Writer { out, at: 0, host, guests: BTreeMap::new() };
        check::meta(meta).map_err(|what| Error::Malformed { at: 0, what })?;
        w.put(MAGIC)?;
        w.put(&preamble(VERSION, VERSION))?;
        let payload = w.encode(meta)?;
        w.frame(HEADER, &payload, MAX_HEADER)?;
        Ok(w)
    }

    /// How many bytes were written.
    #[cfg(test)]
    pub(super) fn written(&self) -> usize {
        self.at as usize
    }

    /// Adds an event; it is written with its frame.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] if a reader would refuse the stream or the CPU of a guest's event.
    pub fn push(&mut self, event: Event) -> Result<(), Error> {
        let at = self.at;
        let malformed = |what| Error::Malformed { at, what };
        let batch = if event.stream.is_host() {
            &mut self.host
        } else {
            check::stream(event.stream).map_err(malformed)?;
            check::guest_cpu(event.cpu).map_err(malformed)?;
            self.guests.entry(event.stream).or_default()
        };
        let bytes = std::mem::take(&mut batch.bytes);
        batch.bytes =
            postcard::to_extend(&event, bytes).map_err(|_| malformed("an event cannot be encoded"))?;
        batch.count += 1;
        if batch.count == MAX_EVENTS || batch.bytes.len() >= FLUSH { self.flush() } else { Ok(()) }
    }

    /// Adds a change, after the events so far.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] or [`Error::TooLarge`] if a reader would refuse it.
    pub fn change(&mut self, change: &Change) -> Result<(), Error> {
        check::change(change).map_err(|what| Error::Malformed { at: self.at, what })?;
        self.flush()?;
        let payload = self.encode(change)?;
        self.frame(CHANGE, &payload, MAX_HEADER)
    }

    /// Hands everything to the underlying writer, flushed, with the counters so far: what is in the file until here can be
    /// read by [`Reader::unfinished`](super::Reader::unfinished).
    ///
    /// # Errors
    /// As [`Writer::finish`].
    pub fn sync(&mut self, counters: &Counters) -> Result<(), Error> {
        check::counters(counters).map_err(|what| Error::Malformed { at: self.at, what })?;
        self.flush()?;
        let payload = self.encode(counters)?;
        self.frame(SO_FAR, &payload, MAX_HEADER)?;
        self.out.flush().map_err(|source| Error::Io { at: self.at, source })
    }

    /// Writes the remaining events and the End frame, and returns the underlying writer, flushed.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] if a reader would refuse `counters`.
    pub fn finish(mut self, counters: &Counters) -> Result<W, Error> {
        check::counters(counters).map_err(|what| Error::Malformed { at: self.at, what })?;
        self.flush()?;
        let payload = self.encode(counters)?;
        self.frame(END, &payload, MAX_HEADER)?;
        self.out.flush().map_err(|source| Error::Io { at: self.at, source })?;
        Ok(self.out)
    }

    /// Writes the events so far. Those of guests come first: whoever reads them waits for late events only as long as the
    /// host's go on.
    fn flush(&mut self) -> Result<(), Error> {
        for (stream, batch) in std::mem::take(&mut self.guests) {
            let mut payload = self.encode(&stream)?;
            payload.extend(self.encode(&batch.count)?);
            payload.extend(batch.bytes);
            self.frame(OF_STREAM, &payload, MAX_FRAME)?;
        }
        if self.host.count == 0 {
            return Ok(());
        }
        let mut payload = self.encode(&self.host.count)?;
        payload.extend_from_slice(&self.host.bytes);
        self.host.bytes.clear();
        self.host.count = 0;
        self.frame(EVENTS, &payload, MAX_FRAME)
    }

    fn encode<T: Serialize>(&self, value: &T) -> Result<Vec<u8>, Error> {
        postcard::to_stdvec(value)
            .map_err(|_| Error::Malformed { at: self.at, what: "a header cannot be encoded" })
    }

    fn frame(&mut self, kind: u8, payload: &[u8], max: u32) -> Result<(), Error> {
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        if len > max {
            return Err(Error::TooLarge { at: self.at, len, max });
        }
        self.put(&[kind])?;
        self.put(&len.to_le_bytes())?;
        self.put(&checksum(kind, len, payload).to_le_bytes())?;
        self.put(payload)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(|source| Error::Io { at: self.at, source })?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
