//! Frames: bytes from messages, and messages from bytes that may be anything.

use super::{
    Answer, Challenge, Event, Hello, MAX_EVENTS, MAX_FRAME, Ping, Proof, ToGuest, ToHost, VERSION, check,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;

/// Bytes of a frame before its payload.
const HEAD: usize = 5;

/// The smallest number of bytes that an event takes.
const MIN_EVENT: usize = 4;

const ANSWER: u8 = 1;
const HELLO: u8 = 2;
const PING: u8 = 3;
const STOP: u8 = 4;
const WELCOME: u8 = 65;
const PONG: u8 = 66;
const EVENTS: u8 = 67;
const LOST: u8 = 68;
const REFUSED: u8 = 69;
const CHALLENGE: u8 = 70;
const PROOF: u8 = 71;

/// Why bytes are no messages, or a message cannot become bytes. The connection is of no use after it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Of a frame.
    #[error("a frame of {len} bytes, longer than the {most} that are allowed here")]
    TooLong {
        /// Claimed length of the payload.
        len: usize,
        /// The limit.
        most: usize,
    },
    /// The other side is of another version.
    #[error(
        "the other side speaks version {found} of the protocol, this one version {VERSION}: install the same teiji on both"
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// Of a type that this direction does not have.
    #[error("a frame of type {kind}, which is not known here")]
    Unknown {
        /// The type.
        kind: u8,
    },
    /// Contents.
    #[error("a frame of type {kind} with {what}")]
    Malformed {
        /// The frame's type.
        kind: u8,
        /// What is wrong.
        what: &'static str,
    },
}

/// A message of one of the two directions.
pub trait Message: Sized {
    /// The message in a frame.
    ///
    /// # Errors
    /// If its type is not one of this direction, or its payload is wrong.
    fn of(kind: u8, payload: &[u8]) -> Result<Self, Error>;

    /// The message as a frame.
    ///
    /// # Errors
    /// [`Error::TooLong`] and [`Error::Malformed`] if no decoder would take it.
    fn frame(&self) -> Result<Vec<u8>, Error>;
}

impl Message for ToGuest {
    fn of(kind: u8, payload: &[u8]) -> Result<Self, Error> {
        Ok(match kind {
            ANSWER => ToGuest::Answer(decode(kind, payload, |_: &Answer| Ok(()))?),
            HELLO => {
                same_version(kind, payload)?;
                ToGuest::Hello(Box::new(decode(kind, payload, check::hello)?))
            }
            PING => ToGuest::Ping(decode(kind, payload, |_: &Ping| Ok(()))?),
            STOP if payload.is_empty() => ToGuest::Stop,
            STOP => return Err(Error::Malformed { kind, what: "contents" }),
            _ => return Err(Error::Unknown { kind }),
        })
    }

    fn frame(&self) -> Result<Vec<u8>, Error> {
        match self {
            ToGuest::Answer(a) => encode(ANSWER, a, Ok(())),
            ToGuest::Hello(h) => encode::<Hello>(HELLO, h, check::hello(h)),
            ToGuest::Ping(p) => encode(PING, p, Ok(())),
            ToGuest::Stop => encode(STOP, &(), Ok(())),
        }
    }
}

impl Message for ToHost {
    fn of(kind: u8, payload: &[u8]) -> Result<Self, Error> {
        Ok(match kind {
            CHALLENGE => ToHost::Challenge(decode(kind, payload, |_: &Challenge| Ok(()))?),
            PROOF => ToHost::Proof(decode(kind, payload, |_: &Proof| Ok(()))?),
            WELCOME => {
                same_version(kind, payload)?;
                ToHost::Welcome(decode(kind, payload, check::welcome)?)
            }
            PONG => ToHost::Pong(decode(kind, payload, check::pong)?),
            EVENTS => ToHost::Events(events(kind, payload)?),
            LOST => ToHost::Lost(decode(kind, payload, check::lost)?),
            REFUSED => {
                same_version(kind, payload)?;
                ToHost::Refused(decode(kind, payload, check::refused)?)
            }
            _ => return Err(Error::Unknown { kind }),
        })
    }

    fn frame(&self) -> Result<Vec<u8>, Error> {
        match self {
            ToHost::Challenge(c) => encode(CHALLENGE, c, Ok(())),
            ToHost::Proof(p) => encode(PROOF, p, Ok(())),
            ToHost::Welcome(w) => encode(WELCOME, w, check::welcome(w)),
            ToHost::Pong(p) => encode(PONG, p, check::pong(p)),
            ToHost::Events(all) => {
                let right = match all.len() {
                    0 => Err("no events"),
                    1..=MAX_EVENTS => all.iter().try_for_each(check::event),
                    _ => Err("more than 512 events"),
                };
                encode(EVENTS, all, right)
            }
            ToHost::Lost(l) => encode(LOST, l, check::lost(l)),
            ToHost::Refused(r) => encode(REFUSED, r, check::refused(r)),
        }
    }
}

fn encode<T: Serialize>(kind: u8, value: &T, right: Result<(), &'static str>) -> Result<Vec<u8>, Error> {
    right.map_err(|what| Error::Malformed { kind, what })?;
    let mut frame = vec![0; HEAD];
    frame[4] = kind;
    let mut frame = postcard::to_extend(value, frame)
        .map_err(|_| Error::Malformed { kind, what: "contents that cannot be encoded" })?;
    let len = frame.len() - HEAD;
    if len > MAX_FRAME {
        return Err(Error::TooLong { len, most: MAX_FRAME });
    }
    // no more than MAX_FRAME
    frame[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(frame)
}

/// Decodes the whole payload.
fn decode<T: DeserializeOwned>(
    kind: u8,
    payload: &[u8],
    check: impl Fn(&T) -> Result<(), &'static str>,
) -> Result<T, Error> {
    match postcard::take_from_bytes(payload) {
        Ok((value, [])) => match check(&value) {
            Ok(()) => Ok(value),
            Err(what) => Err(Error::Malformed { kind, what }),
        },
        Ok(_) => Err(Error::Malformed { kind, what: "bytes after its contents" }),
        Err(_) => Err(Error::Malformed { kind, what: "contents that cannot be decoded" }),
    }
}

/// The version is the first number of the payload; what follows it is known of one version only.
fn same_version(kind: u8, payload: &[u8]) -> Result<(), Error> {
    match postcard::take_from_bytes::<u16>(payload) {
        Ok((VERSION, _)) => Ok(()),
        Ok((found, _)) => Err(Error::Version { found }),
        Err(_) => Err(Error::Malformed { kind, what: "no version" }),
    }
}

fn events(kind: u8, payload: &[u8]) -> Result<Vec<Event>, Error> {
    let malformed = |what| Error::Malformed { kind, what };
    let (count, mut rest) =
        postcard::take_from_bytes::<u32>(payload).map_err(|_| malformed("no count of events"))?;
    let count = count as usize;
    if count == 0 {
        return Err(malformed("no events"));
    }
    if count > MAX_EVENTS || count > rest.len() / MIN_EVENT {
        return Err(malformed("more events than it has room for"));
    }
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let (event, after) = postcard::take_from_bytes::<Event>(rest)
            .map_err(|_| malformed("something that is not an event"))?;
        check::event(&event).map_err(malformed)?;
        all.push(event);
        rest = after;
    }
    if !rest.is_empty() {
        return Err(malformed("bytes after the last event"));
    }
    Ok(all)
}

/// Takes bytes as they come and returns the messages that are complete.
///
/// Call [`Decoder::next`] until it returns `None` after each [`Decoder::feed`]: then no more is kept than one frame, and
/// what was fed last.
#[derive(Debug)]
pub struct Decoder<M> {
    bytes: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
    /// The longest payload that is taken.
    most: usize,
    failed: Option<Error>,
    message: PhantomData<M>,
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Decoder { bytes: Vec::new(), at: 0, most: MAX_FRAME, failed: None, message: PhantomData }
    }
}

impl<M: Message> Decoder<M> {
    /// Takes frames of no more than `most` bytes from now on, [`MAX_FRAME`] at most: little is kept for a peer that has not
    /// proved who it is.
    pub fn limit(&mut self, most: usize) {
        self.most = most.min(MAX_FRAME);
    }

    /// Takes bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.bytes.drain(..self.at);
            self.at = 0;
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The next message, `None` until more bytes come.
    ///
    /// # Errors
    /// Any of [`Error`]; the same one from then on.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<M>, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = self.take();
        if let Err(error) = &next {
            self.failed = Some(error.clone());
            self.bytes = Vec::new();
            self.at = 0;
        }
        next
    }

    fn take(&mut self) -> Result<Option<M>, Error> {
        let Some((&[a, b, c, d, kind], rest)) = self.bytes[self.at..].split_first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        if len > self.most {
            return Err(Error::TooLong { len, most: self.most });
        }
        let Some(payload) = rest.get(..len) else { return Ok(None) };
        let message = M::of(kind, payload)?;
        self.at += HEAD + len;
        Ok(Some(message))
    }
}

/// Reads all of `data` as what a host sends, and as what a guest sends: the entry point for fuzzing. Never panics. Returns
/// the number of messages of both.
pub fn fuzz(data: &[u8]) -> usize {
    fn all<M: Message>(data: &[u8]) -> usize {
        let mut decoder = Decoder::<M>::default();
        decoder.feed(data);
        let mut messages = 0;
        while let Ok(Some(_)) = decoder.next() {
            messages += 1;
        }
        messages
    }
    all::<ToGuest>(data) + all::<ToHost>(data)
}
