//! The recording file format: what `teiji trace --record` writes and `teiji replay` reads.
//!
//! ```text
//! file    = "TEIJIREC" version:u16 frame*          integers little-endian
//! frame   = type:u8 len:u32 crc:u32 payload[len]   crc = CRC-32 of type, len and payload
//!
//!            ┌──────────┐      ┌──────────┐      ┌─────┐
//!  start ───►│ 1 Header │─────►│ 2 Events │─────►│ 3 End│──► end of file
//!            └──────────┘  │   └──┬────▲──┘  ▲   └─────┘
//!                          │      └────┘     │
//!                          └─────────────────┘
//! ```
//!
//! Header holds [`Meta`], Events up to [`MAX_EVENTS`] of [`Event`], End the [`Counters`]; each in postcard's encoding.
//! A file without an End frame was cut off, and reading it returns that error.
//!
//! Recordings may come from other machines and are not trusted: memory is never allocated by a claimed length beyond
//! [`MAX_FRAME`], every list and text is bounded, and no input makes a reader panic. This module opens no files:
//! callers pass a [`Read`] or [`Write`].

mod check;
mod read;
mod v1;
mod write;

#[cfg(test)]
mod tests;

pub use read::{Reader, fuzz};
pub use write::Writer;

#[cfg(doc)]
use crate::{event::Event, report::Counters, report::Meta};
#[cfg(doc)]
use std::io::{Read, Write};

/// The first eight bytes of a recording.
pub const MAGIC: &[u8; 8] = b"TEIJIREC";

/// The version that is written. Incremented when the format, or the shape of anything in it, changes.
pub const VERSION: u16 = 2;

/// The oldest version that is read.
pub const OLDEST: u16 = 1;

/// The longest payload of a frame, bytes.
pub const MAX_FRAME: u32 = 4 << 20;

/// The longest payload of a Header or End frame, bytes. It is small, because a few bytes of it can take much memory
/// when decoded.
pub const MAX_HEADER: u32 = 1 << 20;

/// The most events in a frame.
pub const MAX_EVENTS: u32 = 4096;

/// The smallest number of bytes that an event takes.
const MIN_EVENT: usize = 5;

/// Bytes of a frame before its payload.
const FRAME_HEAD: usize = 9;

/// Kinds of frame.
const HEADER: u8 = 1;
const EVENTS: u8 = 2;
const END: u8 = 3;

/// Why a recording cannot be read or written. Positions are offsets in the file, bytes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file does not begin with [`MAGIC`].
    #[error("not a teiji recording: it does not begin with TEIJIREC")]
    NotARecording,
    /// It has a version that this teiji does not read.
    #[error("the recording has format version {found}; this teiji reads versions {OLDEST} to {VERSION}: use {} teiji",
        if *found > VERSION { "a newer" } else { "an older" })]
    Version {
        /// The file's version.
        found: u16,
    },
    /// The file ends before its End frame.
    #[error("the recording ends at byte {at}, before its End frame: it was cut off")]
    Truncated {
        /// Where it ends.
        at: u64,
    },
    /// A frame does not match its checksum.
    #[error("the frame at byte {at} does not match its checksum")]
    Checksum {
        /// Where the frame begins.
        at: u64,
    },
    /// A frame claims a length beyond the limit.
    #[error("the frame at byte {at} claims {len} bytes; at most {max} are allowed")]
    TooLarge {
        /// Where the frame begins.
        at: u64,
        /// The claimed length, bytes.
        len: u32,
        /// The limit, bytes.
        max: u32,
    },
    /// The content of a frame is invalid.
    #[error("the frame at byte {at} is malformed: {what}")]
    Malformed {
        /// Where the frame begins.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The file continues after the End frame.
    #[error("there are bytes after the End frame, at byte {at}")]
    Trailing {
        /// Where they begin.
        at: u64,
    },
    /// The underlying reader or writer failed.
    #[error("input or output failed at byte {at} of the recording")]
    Io {
        /// The offset at that time.
        at: u64,
        /// Why.
        source: std::io::Error,
    },
}

/// CRC-32 of a frame.
fn checksum(kind: u8, len: u32, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    crc.update(&len.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}
