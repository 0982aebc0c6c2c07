//! The messages of Perfetto's trace format that teiji writes, with their field numbers (`protos/perfetto/trace/` of
//! Perfetto's source).

use prost::Message;

/// A whole trace; it is written packet by packet.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// Its packets.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// One packet.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// When, ns of the clock below.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The clock of `timestamp`: [`CLOCK_MONOTONIC`].
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    /// The writer of the packet; not 0.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// 1 in the first packet of a sequence.
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// Readings of clocks that relate them to each other.
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    /// The beginning or end of a slice.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// A track.
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

/// `BUILTIN_CLOCK_REALTIME`.
pub const CLOCK_REALTIME: u32 = 1;
/// `BUILTIN_CLOCK_MONOTONIC`.
pub const CLOCK_MONOTONIC: u32 = 3;

/// Readings of several clocks at one instant.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    /// The readings.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    /// The clock that the trace is shown in.
    #[prost(uint32, optional, tag = "2")]
    pub primary_trace_clock: Option<u32>,
}

/// A reading.
#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    /// Which clock.
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// The reading, ns.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// A track of the trace.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Its number.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// The parent track.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// Its name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// For a track of a process.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// 3: children are in the order of their rank.
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// Its rank among its parent's children.
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// Its id.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Its name.
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
}

/// `TYPE_SLICE_BEGIN`.
pub const SLICE_BEGIN: i32 = 1;
/// `TYPE_SLICE_END`.
pub const SLICE_END: i32 = 2;

/// The beginning or end of a slice on a track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// [`SLICE_BEGIN`] or [`SLICE_END`].
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    /// The track.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// The slice's name.
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    /// Further values.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// The viewer connects slices of the same flow by arrows.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    /// Flows that end with this slice.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// Its name.
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
    /// A number.
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    /// Text.
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
}
