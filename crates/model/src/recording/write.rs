//! Writing a recording.

use super::{
    CHANGE, DEVICE_INTERRUPTS, END, EVENTS, Error, GIVEN, HEADER, MAGIC, MATCHED, MAX_EVENTS, MAX_FRAME,
    MAX_HEADER, MAX_SAMPLE, MIGRATIONS, NIC_LOSSES, OBSERVED, OF_STREAM, RATE_LIMITS, SAMPLE, SO_FAR, STARTS,
    STATES, VERSION, WAITS, check, checksum, preamble, reader_of,
};
use crate::event::{Event, EventKind};
use crate::guest;
use crate::report::{Counters, Meta};
use crate::stream::{Change, Changed, StreamId};
use crate::usage::{ObservedVms, Sample};
use serde::Serialize;
use std::io::Write;

/// The size of encoded events at which a frame is written, bytes.
const FLUSH: usize = 1 << 20;

/// Writes a recording. Without [`Writer::finish`] the file has no End frame and counts as cut off.
pub struct Writer<W: Write> {
    out: W,
    at: u64,
    /// The encoded events of the next frame, which are all of one stream, and their number; the kind of frame.
    stream: StreamId,
    kind: u8,
    buf: Vec<u8>,
    count: u32,
    /// The last sample, encoded.
    sample: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a recording with its header. `out` should be buffered.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] or [`Error::TooLarge`] if a reader would refuse `meta`.
    pub fn new(out: W, meta: &Meta) -> Result<Self, Error> {
        let buf = Vec::with_capacity(FLUSH + 4096);
        let mut w =
            Writer { out, at: 0, stream: StreamId::HOST, kind: EVENTS, buf, count: 0, sample: Vec::new() };
        check::meta(meta).map_err(|what| Error::Malformed { at: 0, what })?;
        w.put(MAGIC)?;
        w.put(&preamble(VERSION, reader_of(meta)))?;
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
        let malformed = |at, what| Error::Malformed { at, what };
        let kind = match event.kind {
            EventKind::Guest(guest::EventKind::Matched(_)) if !event.stream.is_host() => MATCHED,
            _ if !event.stream.is_host() => OF_STREAM,
            EventKind::VcpuState(_) => STATES,
            EventKind::Start(_) => STARTS,
            EventKind::NicLoss(_) => NIC_LOSSES,
            EventKind::DeviceInterrupt(_) => DEVICE_INTERRUPTS,
            EventKind::Wait(_) => WAITS,
            _ => EVENTS,
        };
        if (event.stream, kind) != (self.stream, self.kind) {
            // Events are read in the order in which they came: what is late then depends on that.
            self.flush()?;
            if !event.stream.is_host() {
                check::stream(event.stream).map_err(|what| malformed(self.at, what))?;
            }
            (self.stream, self.kind) = (event.stream, kind);
        }
        if !event.stream.is_host() {
            check::guest_cpu(event.cpu).map_err(|what| malformed(self.at, what))?;
        }
        let buf = std::mem::take(&mut self.buf);
        self.buf =
            postcard::to_extend(&event, buf).map_err(|_| malformed(self.at, "an event cannot be encoded"))?;
        self.count += 1;
        if self.count == MAX_EVENTS || self.buf.len() >= FLUSH { self.flush() } else { Ok(()) }
    }

    /// Adds a change, after the events so far.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Malformed`] or [`Error::TooLarge`] if a reader would refuse it.
    pub fn change(&mut self, change: &Change) -> Result<(), Error> {
        check::change(change).map_err(|what| Error::Malformed { at: self.at, what })?;
        self.flush()?;
        let payload = self.encode(change)?;
        let kind = if matches!(change.what, Changed::Given { .. }) { GIVEN } else { CHANGE };
        self.frame(kind, &payload, MAX_HEADER)
    }

    /// Adds whose counters the following samples have.
    ///
    /// # Errors
    /// As [`Writer::change`].
    pub fn observed(&mut self, observed: &ObservedVms) -> Result<(), Error> {
        check::observed(observed).map_err(|what| Error::Malformed { at: self.at, what })?;
        self.flush()?;
        let payload = self.encode(observed)?;
        self.frame(OBSERVED, &payload, MAX_HEADER)
    }

    /// Adds counters.
    ///
    /// # Errors
    /// As [`Writer::change`].
    pub fn sample(&mut self, sample: &Sample) -> Result<(), Error> {
        check::sample(sample).map_err(|what| Error::Malformed { at: self.at, what })?;
        self.flush()?;
        let plain = self.encode(sample)?;
        let len = u32::try_from(plain.len()).unwrap_or(u32::MAX);
        if len > MAX_SAMPLE {
            return Err(Error::TooLarge { at: self.at, len, max: MAX_SAMPLE });
        }
        if !sample.rate_limits.is_empty() {
            let payload = self.encode(&sample.rate_limits)?;
            self.frame(RATE_LIMITS, &payload, MAX_HEADER)?;
        }
        if !sample.migrations.is_empty() {
            let payload = self.encode(&sample.migrations)?;
            self.frame(MIGRATIONS, &payload, MAX_HEADER)?;
        }
        let mut payload = len.to_le_bytes().to_vec();
        payload.extend(lz4_flex::block::compress_with_dict(&plain, &self.sample));
        self.sample = plain;
        self.frame(SAMPLE, &payload, MAX_FRAME)
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

    fn flush(&mut self) -> Result<(), Error> {
        if self.count == 0 {
            return Ok(());
        }
        let of_host = self.stream.is_host();
        let mut payload = if of_host { Vec::new() } else { self.encode(&self.stream)? };
        payload.extend(self.encode(&self.count)?);
        payload.extend_from_slice(&self.buf);
        self.buf.clear();
        self.count = 0;
        self.frame(self.kind, &payload, MAX_FRAME)
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
