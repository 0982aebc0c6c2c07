//! The recording file format: what `teiji trace --record` writes and `teiji replay` reads, and `teiji diagnose` with `--record` and
//! `--replay`.
//!
//! ```text
//! file    = "TEIJIREC" version:u16 reader:u16 crc:u32 frame*   integers little-endian; crc = CRC-32 of version and reader
//! frame   = type:u8 len:u32 crc:u32 payload[len]               crc = CRC-32 of type, len and payload
//!
//!            ┌──────────┐      ┌─────────────────┐      ┌───────┐
//!  start ───►│ 1 Header │─────►│ 2, and 128 to   │─────►│ 3 End │──► end of file
//!            └──────────┘  │   │ 141, any number │  ▲   └───────┘
//!                          │   │ in any order    │  │
//!                          │   └─────────────────┘  │
//!                          └────────────────────────┘
//! ```
//!
//! Types below [`OPTIONAL`] are necessary to understand a recording. A reader skips frames of other types that it does not know:
//! without them a recording tells less, and nothing wrong.
//!
//! | type | name | payload | since version | what a reader without it loses |
//! | --- | --- | --- | --- | --- |
//! | 1 | Header | [`Meta`] | 1 | everything |
//! | 2 | Events | [`Event`]s of the host that have no type of their own | 1 | everything |
//! | 3 | End | [`Counters`] | 1 | everything |
//! | 128 | So far | [`Counters`] at that time | 3 | the counters of a recording that has no End frame |
//! | 129 | Change | any [`Change`] but those of Given | 3 | VMs that came, changed or ended later; with them, what guests report |
//! | 130 | Of stream | a [`StreamId`], and events of that guest but for [`Matched`] | 3 | what guests report: they are seen from the host only |
//! | 131 | States | [`VcpuState`]s of the host | 4 | what vCPUs did while requests were in a guest |
//! | 132 | Starts | [`Start`]s of the host | 5 | who woke the threads |
//! | 133 | NIC losses | [`NicLoss`]es | 6 | what NICs discarded |
//! | 134 | Device interrupts | [`DeviceInterrupt`]s | 7 | interrupts of NICs that were given to VMs |
//! | 135 | Matched | a [`StreamId`], and that guest's [`Matched`] | 7 | requests by NICs that were given to VMs |
//! | 136 | Given | a [`Change`] of which NICs a VM was given | 7 | NICs that were given to VMs later |
//! | 137 | Waits | [`Wait`]s of the host | 7 | who had the CPU in the earlier parts of a wait: whoever is named had it in the last part |
//! | 138 | Observed | [`ObservedVms`] | 8 | what counters say |
//! | 139 | Sample | length:u32, and a [`Sample`] of that many bytes, as a block of LZ4 | 8 | what counters say |
//! | 140 | Rate limits | `rate_limits` of the next [`Sample`] | 9 | rate limits |
//! | 141 | Migrations | `migrations` of the next [`Sample`] | 9 | migrations and snapshots |
//!
//! Payloads are in postcard's encoding; those with events begin with their number, [`MAX_EVENTS`] at most (after the
//! [`StreamId`], if there is one). A Sample, which is mostly like the one before it, is compressed with the last 64 KiB of that one
//! (as it was before it was compressed) as its dictionary. Rate limits and Migrations come before the Sample that they belong to.
//!
//! Versions 4 and 5 added ways of matching ([`Matching::since`](crate::flow::Matching)), version 5 kinds of NICs, and version 7 NICs
//! without a tap here. A recording whose header has one of them asks its reader to know it; all others are still read by readers
//! of format version 3.
//!
//! A later version of the format says by `reader` which version a reader has to know at least. Versions 1 and 2 have no `reader`.
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
pub use check::{vm_can_be_observed, vm_fits};
pub use read::{Reader, fuzz};
pub use write::Writer;

use crate::report::Meta;
#[cfg(doc)]
use crate::{
    event::DeviceInterrupt, event::Event, event::NicLoss, event::Start, event::VcpuState, event::Wait,
    guest::Matched, report::Counters, stream::Change, stream::StreamId, usage::ObservedVms, usage::Sample,
};
#[cfg(doc)]
use std::io::{Read, Write};

/// The first eight bytes of a recording.
pub const MAGIC: &[u8; 8] = b"TEIJIREC";

/// The version that is written. Incremented when the format, or the shape of anything in it, changes.
pub const VERSION: u16 = 9;

/// The oldest version that is read.
pub const OLDEST: u16 = 1;

/// The longest payload of a frame of Events or Of stream, bytes.
pub const MAX_FRAME: u32 = 4 << 20;

/// The longest payload of a frame of any other type, bytes. It is small, because a few bytes of a header or of counters can take
/// much memory when decoded; [`MAX_EVENTS`] of the events that have a type of their own fit into it.
pub const MAX_HEADER: u32 = 1 << 20;

/// The longest sample before it is compressed, bytes: some 100,000 threads. Decoded, it may take 25 times as much.
pub const MAX_SAMPLE: u32 = 8 << 20;

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
const OBSERVED: u8 = OPTIONAL + 10;
const SAMPLE: u8 = OPTIONAL + 11;
const RATE_LIMITS: u8 = OPTIONAL + 12;
const MIGRATIONS: u8 = OPTIONAL + 13;
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

/// The oldest reader that can read this recording: 3, unless it uses a matching, a kind of NIC, or a NIC without a tap that later
/// versions added.
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
