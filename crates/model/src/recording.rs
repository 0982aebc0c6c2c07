//! The recording file format: what `teiji trace --record` writes and `teiji replay` reads.
//!
//! ```text
//! file    = "TEIJIREC" version:u16 reader:u16 crc:u32 frame*   integers little-endian; crc = CRC-32 of version and reader
//! frame   = type:u8 len:u32 crc:u32 payload[len]               crc = CRC-32 of type, len and payload
//!
//!            ┌──────────┐      ┌───────────────────────────┐      ┌───────┐
//!  start ───►│ 1 Header │─────►│ 2 Events, 128 So far,     │─────►│ 3 End │──► end of file
//!            └──────────┘  │   │ 129 Change, 130 Of stream,│  ▲   └───────┘
//!                          │   │ 131 States, 132 Starts,   │
//!                          │   │ 133 NIC losses, 134 Device│  │
//!                          │   │ interrupts, 135 Matched,  │  │
//!                          │   │ 136 Given, 137 Waits      │  │
//!                          │   └──┬─────────────────────▲──┘  │
//!                          │      └─────────────────────┘     │
//!                          └──────────────────────────────────┘
//! ```
//!
//! Header holds [`Meta`], Events up to [`MAX_EVENTS`] of [`Event`] of the host, Of stream a [`StreamId`] and as many of its
//! events, States as many of the host's [`VcpuState`]s (from version 4 on), Starts as many of its [`Start`]s (from version 5
//! on), NIC losses as many [`NicLoss`]es (from version 6 on), Device interrupts as many [`DeviceInterrupt`]s, Matched a [`StreamId`]
//! and as many of its [`Matched`], Given a [`Change`] of that kind, Waits as many of the host's [`Wait`]s (these four from version 7 on), Change any other [`Change`], End
//! and So far the [`Counters`]; each in postcard's encoding. Without the frames that an older reader skips, a recording tells
//! less, and nothing wrong: VMs that came later are not in it, guests are seen from the host only, and it is not known what vCPUs
//! did while requests were in a guest, nor who woke them, nor what NICs discarded, nor what came by NICs that were given to VMs.
//! One thing they tell less well: whoever is named for a wait may be who had the CPU in its last part only, as the parts before are in Waits.
//!
//! Versions 4 and 5 added ways of matching ([`Matching::since`](crate::flow::Matching)), and version 5 kinds of NICs. A recording
//! whose header has one of them asks its reader to know it, and one with a NIC that has no tap here (version 7) does, too; all others
//! are still read by readers of format version 3.
//!
//! A later version of the format says by `reader` which version a reader has to know at least. A reader skips frames that
//! it does not know if their type is [`OPTIONAL`] or higher; others are necessary to understand the recording. Versions 1
//! and 2 have no `reader`.
//!
//! A file without an End frame was cut off, or is still being written. [`Reader::new`] returns that as an error;
//! [`Reader::unfinished`] reads what there is. So far is written now and then, so that what is in the file until there can
//! be reported as if the trace had ended at that moment.
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

pub(crate) use check::flow as check_flow;
pub use check::vm_fits;
pub use read::{Reader, fuzz};
pub use write::Writer;

use crate::report::Meta;
#[cfg(doc)]
use crate::{
    event::DeviceInterrupt, event::Event, event::NicLoss, event::Start, event::VcpuState, event::Wait,
    guest::Matched, report::Counters, stream::Change, stream::StreamId,
};
#[cfg(doc)]
use std::io::{Read, Write};

/// The first eight bytes of a recording.
pub const MAGIC: &[u8; 8] = b"TEIJIREC";

/// The version that is written. Incremented when the format, or the shape of anything in it, changes.
pub const VERSION: u16 = 7;

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

/// The lowest kind of frame that a reader may skip if it does not know it.
pub const OPTIONAL: u8 = 128;

/// Kinds of frame.
const HEADER: u8 = 1;
const EVENTS: u8 = 2;
const END: u8 = 3;
const SO_FAR: u8 = OPTIONAL;
const CHANGE: u8 = OPTIONAL + 1;
const OF_STREAM: u8 = OPTIONAL + 2;
const STATES: u8 = OPTIONAL + 3;
const STARTS: u8 = OPTIONAL + 4;
const NIC_LOSSES: u8 = OPTIONAL + 5;
const DEVICE_INTERRUPTS: u8 = OPTIONAL + 6;
const MATCHED: u8 = OPTIONAL + 7;
const GIVEN: u8 = OPTIONAL + 8;
const WAITS: u8 = OPTIONAL + 9;
/// Frames of events of the host that a reader may skip, and the version of the format that added them.
const EVENTS_SINCE: [(u8, u16); 5] =
    [(STATES, 4), (STARTS, 5), (NIC_LOSSES, 6), (DEVICE_INTERRUPTS, 7), (WAITS, 7)];

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
        /// The file's version, or the one that a reader has to know.
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

/// The version that a reader has to know at least to read a recording of this: what is written has changed since version 3
/// only by what is not in others.
fn reader_of(meta: &Meta) -> u16 {
    let nics = || meta.vms.iter().flat_map(|vm| &vm.nics);
    let plane = if nics().all(|nic| nic.data_plane.since_version_1()) { 1 } else { 5 };
    let tap = if nics().all(|nic| nic.ifindex != 0) { 1 } else { 7 };
    meta.watch.matching.since().max(plane).max(tap).max(3)
}

/// Version, `reader` and their CRC-32, from version 3 on.
fn preamble(version: u16, reader: u16) -> [u8; 8] {
    let [v0, v1] = version.to_le_bytes();
    let [r0, r1] = reader.to_le_bytes();
    let [c0, c1, c2, c3] = crc32fast::hash(&[v0, v1, r0, r1]).to_le_bytes();
    [v0, v1, r0, r1, c0, c1, c2, c3]
}

/// CRC-32 of a frame.
fn checksum(kind: u8, len: u32, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[kind]);
    crc.update(&len.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}
