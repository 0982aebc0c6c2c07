//! Reading a recording.

use super::{
    CHANGE, END, EVENTS, EVENTS_SINCE, Error, FRAME_HEAD, GIVEN, HEADER, MAGIC, MATCHED, MAX_EVENTS,
    MAX_FRAME, MAX_HEADER, MAX_SAMPLE, MIGRATIONS, MIN_EVENT, OBSERVED, OF_STREAM, OLDEST, OPTIONAL,
    RATE_LIMITS, SAMPLE, SO_FAR, VERSION, check, checksum, preamble, v1,
};
use crate::event::Event;
use crate::report::{Counters, Meta};
use crate::stream::{Change, Item, StreamId};
use crate::usage::{ObservedVms, RateLimit, Sample};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};

/// Reads a recording, one event or change at a time; keeps one frame in memory.
pub struct Reader<R: Read> {
    input: R,
    /// Bytes read so far.
    at: u64,
    /// Where the current frame begins.
    frame_at: u64,
    version: u16,
    meta: Meta,
    payload: Vec<u8>,
    /// How many bytes of `payload` are decoded, and how many of its events are not.
    used: usize,
    left: u32,
    /// Whose events these are.
    stream: StreamId,
    /// The last sample, encoded.
    sample: Vec<u8>,
    /// Of the next sample.
    rate_limits: BTreeMap<u32, Vec<RateLimit>>,
    migrations: BTreeMap<u32, Vec<String>>,
    counters: Option<Counters>,
    /// Whether a recording without an End frame is read as far as it goes.
    tolerant: bool,
    cut: bool,
    /// The counters so far, and the time of the latest event.
    so_far: Counters,
    latest: u64,
    failed: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header. `input` should be buffered.
    ///
    /// # Errors
    /// Any of [`Error`].
    pub fn new(input: R) -> Result<Self, Error> {
        Reader::begin(input, false)
    }

    /// Reads the header of a recording that may still be being written, or may have been cut off: it is read up to its last complete
    /// frame, and the counters are the last ones that are in it.
    ///
    /// # Errors
    /// Any of [`Error`]; [`Error::Truncated`] only if not even the header is complete.
    pub fn unfinished(input: R) -> Result<Self, Error> {
        Reader::begin(input, true)
    }

    fn begin(input: R, tolerant: bool) -> Result<Self, Error> {
        let mut r = Reader {
            input,
            at: 0,
            frame_at: 0,
            version: VERSION,
            meta: Meta::default(),
            payload: Vec::new(),
            used: 0,
            left: 0,
            stream: StreamId::HOST,
            sample: Vec::new(),
            rate_limits: BTreeMap::new(),
            migrations: BTreeMap::new(),
            counters: None,
            tolerant,
            cut: false,
            so_far: Counters::default(),
            latest: 0,
            failed: false,
        };
        let mut magic = [0; MAGIC.len()];
        let got = r.fill(&mut magic)?;
        if magic[..got] != MAGIC[..got] || got == 0 {
            return Err(Error::NotARecording);
        }
        let mut version = [0; 2];
        if got < MAGIC.len() || r.fill(&mut version)? < version.len() {
            return Err(Error::Truncated { at: r.at });
        }
        let found = u16::from_le_bytes(version);
        if found < OLDEST {
            return Err(Error::Version { found });
        }
        if found >= 3 {
            r.preamble(found)?;
        }
        r.version = found.min(VERSION);
        if r.frame()? != HEADER {
            return Err(r.malformed("the first frame is not a Header"));
        }
        r.meta = r.decode_as::<Meta, v1::Meta>()?;
        check::meta(&r.meta).map_err(|what| r.malformed(what))?;
        Ok(r)
    }

    /// The rest of the preamble, which says what a reader has to know.
    fn preamble(&mut self, version: u16) -> Result<(), Error> {
        let mut rest = [0; 6];
        if self.fill(&mut rest)? < rest.len() {
            return Err(Error::Truncated { at: self.at });
        }
        let needed = u16::from_le_bytes([rest[0], rest[1]]);
        if preamble(version, needed)[2..] != rest {
            return Err(Error::Checksum { at: MAGIC.len() as u64 });
        }
        if needed > VERSION {
            return Err(Error::Version { found: needed });
        }
        Ok(())
    }

    /// Whether the recording ends before its End frame; known once [`Reader::next`] has returned `None`.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// How the recording was made.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The next event or change, `None` after the last one. Only then has the End frame been read, and the recording is known to
    /// be complete.
    ///
    /// # Errors
    /// Any of [`Error`]; nothing can be read after one.
    #[allow(clippy::should_implement_trait)] // an iterator of results would hide that `None` vouches for the End frame
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        if self.failed {
            return Err(self.malformed("reading continues after an error"));
        }
        let result = self.advance();
        self.failed = result.is_err();
        result
    }

    /// The counters of the tracer; `None` until [`Reader::next`] has returned `None`.
    pub fn counters(&self) -> Option<&Counters> {
        self.counters.as_ref()
    }

    fn advance(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if self.counters.is_some() {
                return Ok(None);
            }
            if self.left > 0 {
                return self.event().map(|event| Some(Item::Event(event)));
            }
            let kind = match self.frame() {
                Err(Error::Truncated { .. }) if self.tolerant => {
                    self.cut = true;
                    // Events may have been written after the last counters.
                    self.so_far.ended = self.so_far.ended.max(self.latest);
                    self.counters = Some(std::mem::take(&mut self.so_far));
                    return Ok(None);
                }
                kind => kind?,
            };
            match kind {
                EVENTS => self.begin_events(StreamId::HOST, 0)?,
                END => self.end()?,
                SO_FAR if self.version >= 3 => {
                    self.so_far = self.decode()?;
                    check::counters(&self.so_far).map_err(|what| self.malformed(what))?;
                }
                kind if kind == CHANGE && self.version >= 3 || kind == GIVEN && self.version >= 7 => {
                    let change: Change = self.decode()?;
                    check::change(&change).map_err(|what| self.malformed(what))?;
                    return Ok(Some(Item::Change(change)));
                }
                OBSERVED if self.version >= 8 => {
                    let observed: ObservedVms = self.decode()?;
                    check::observed(&observed).map_err(|what| self.malformed(what))?;
                    return Ok(Some(Item::Observed(observed)));
                }
                SAMPLE if self.version >= 8 => {
                    return self.sample().map(|sample| Some(Item::Sample(Box::new(sample))));
                }
                // Checked with their sample.
                RATE_LIMITS if self.version >= 9 => self.rate_limits = self.decode()?,
                MIGRATIONS if self.version >= 9 => self.migrations = self.decode()?,
                kind if kind == OF_STREAM && self.version >= 3 || kind == MATCHED && self.version >= 7 => {
                    let (stream, rest) = postcard::take_from_bytes::<StreamId>(&self.payload)
                        .map_err(|_| self.malformed("no stream"))?;
                    let begin = self.payload.len() - rest.len();
                    check::stream(stream).map_err(|what| self.malformed(what))?;
                    self.begin_events(stream, begin)?;
                }
                kind if EVENTS_SINCE
                    .iter()
                    .any(|&(events, since)| kind == events && self.version >= since) =>
                {
                    self.begin_events(StreamId::HOST, 0)?;
                }
                OPTIONAL.. if self.version >= 3 => {}
                HEADER => return Err(self.malformed("a second Header")),
                _ => return Err(self.malformed("unknown type of frame")),
            }
        }
    }

    /// Begins with the events of a frame, whose payload has their number at `at`.
    fn begin_events(&mut self, stream: StreamId, at: usize) -> Result<(), Error> {
        let (count, rest) = postcard::take_from_bytes::<u32>(&self.payload[at..])
            .map_err(|_| self.malformed("no count of events"))?;
        if count > MAX_EVENTS || rest.len() / MIN_EVENT < count as usize {
            return Err(self.malformed("it claims more events than it can hold"));
        }
        if count == 0 {
            return Err(self.malformed("no events"));
        }
        self.used = self.payload.len() - rest.len();
        self.left = count;
        self.stream = stream;
        Ok(())
    }

    fn event(&mut self) -> Result<Event, Error> {
        let bytes = &self.payload[self.used..];
        let (mut event, rest): (Event, _) = if self.version == 1 {
            postcard::take_from_bytes::<v1::Event>(bytes).map(|(event, rest)| (event.into(), rest))
        } else {
            postcard::take_from_bytes(bytes)
        }
        .map_err(|_| self.malformed("not an event"))?;
        self.used = self.payload.len() - rest.len();
        event.stream = self.stream;
        if event.stream.is_host() {
            self.latest = self.latest.max(event.ts);
        } else {
            check::guest_cpu(event.cpu).map_err(|what| self.malformed(what))?;
        }
        self.left -= 1;
        if self.left == 0 && self.used != self.payload.len() {
            return Err(self.malformed("bytes after the last event"));
        }
        Ok(event)
    }

    fn sample(&mut self) -> Result<Sample, Error> {
        let Some((len, block)) = self.payload.split_first_chunk() else {
            return Err(self.malformed("no length of a sample"));
        };
        let len = u32::from_le_bytes(*len);
        if len > MAX_SAMPLE {
            return Err(Error::TooLarge { at: self.frame_at, len, max: MAX_SAMPLE });
        }
        let plain = lz4_flex::block::decompress_with_dict(block, len as usize, &self.sample)
            .ok()
            .filter(|plain| plain.len() == len as usize)
            .ok_or_else(|| self.malformed("a sample cannot be decompressed"))?;
        let mut sample: Sample = self.decode_all(&plain)?;
        sample.rate_limits = std::mem::take(&mut self.rate_limits);
        sample.migrations = std::mem::take(&mut self.migrations);
        check::sample(&sample).map_err(|what| self.malformed(what))?;
        self.latest = self.latest.max(sample.at);
        self.sample = plain;
        Ok(sample)
    }

    fn end(&mut self) -> Result<(), Error> {
        let counters = self.decode_as::<Counters, v1::Counters>()?;
        check::counters(&counters).map_err(|what| self.malformed(what))?;
        let at = self.at;
        if self.fill(&mut [0])? != 0 {
            return Err(Error::Trailing { at });
        }
        self.counters = Some(counters);
        Ok(())
    }

    /// Reads a frame into `payload` and checks it; returns its type.
    fn frame(&mut self) -> Result<u8, Error> {
        self.frame_at = self.at;
        let mut head = [0; FRAME_HEAD];
        if self.fill(&mut head)? < FRAME_HEAD {
            return Err(Error::Truncated { at: self.at });
        }
        let [kind, l0, l1, l2, l3, c0, c1, c2, c3] = head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let max = if matches!(kind, EVENTS | OF_STREAM | SAMPLE) { MAX_FRAME } else { MAX_HEADER };
        if len > max {
            return Err(Error::TooLarge { at: self.frame_at, len, max });
        }
        self.payload.clear();
        let read = (&mut self.input).take(u64::from(len)).read_to_end(&mut self.payload);
        self.at += self.payload.len() as u64;
        read.map_err(|source| Error::Io { at: self.at, source })?;
        if self.payload.len() < len as usize {
            return Err(Error::Truncated { at: self.at });
        }
        if checksum(kind, len, &self.payload) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(Error::Checksum { at: self.frame_at });
        }
        Ok(kind)
    }

    /// Decodes the whole payload, which has the type `Old` in a recording of version 1.
    fn decode_as<T: DeserializeOwned, Old: DeserializeOwned + Into<T>>(&self) -> Result<T, Error> {
        if self.version == 1 { self.decode::<Old>().map(Into::into) } else { self.decode() }
    }

    /// Decodes the whole payload.
    fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        self.decode_all(&self.payload)
    }

    fn decode_all<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, Error> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok(_) => Err(self.malformed("bytes after its contents")),
            Err(_) => Err(self.malformed("its contents cannot be decoded")),
        }
    }

    fn malformed(&self, what: &'static str) -> Error {
        Error::Malformed { at: self.frame_at, what }
    }

    /// Fills `buf` until the input ends; returns how many bytes were read.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < buf.len() {
            match self.input.read(&mut buf[done..]) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    self.at += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { at: self.at, source }),
            }
        }
        Ok(done)
    }
}

/// Reads all of `data` as a recording, also as one that is unfinished: the entry point for fuzzing. Never panics.
///
/// # Errors
/// Any of [`Error`]; otherwise returns the number of events.
pub fn fuzz(data: &[u8]) -> Result<u64, Error> {
    if let Ok(mut reader) = Reader::unfinished(data) {
        while let Ok(Some(_)) = reader.next() {}
    }
    let mut reader = Reader::new(data)?;
    let mut events = 0;
    while let Some(item) = reader.next()? {
        events += u64::from(item.event().is_some());
    }
    Ok(events)
}
