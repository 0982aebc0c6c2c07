//! Requests as a trace for the Perfetto viewer (ui.perfetto.dev).
//!
//! Each VM is a process. Below it are tracks for whole requests and for what carries their stages: the host's receive
//! path, the vhost worker, each vCPU, the host's transmit path. Requests overlap, but slices on one track must not, so
//! each of these has as many tracks (lanes) of the same name as it needs; the viewer shows them as one. A flow connects
//! the slices of a request. If the guest reports, there are the parts of its time in the guest, and a track for each thread
//! that took part in requests, with its states; flows lead from the thread that woke another one to the wait for a CPU and
//! to what ran then. Times are ns of `CLOCK_MONOTONIC`.

pub mod proto;
mod threads;
mod tracks;

use prost::Message;
use proto::{Clock, ClockSnapshot, DebugAnnotation, Trace, TracePacket, TrackEvent};
use std::io::{self, Write};
use teiji_model::report::{GuestPart, Joined, Meta, StageTime};
use teiji_model::stage::{Actor, ThreadState};
use tracks::{Slice, Track, What};

/// Writes the trace of `requests`.
///
/// # Errors
/// If `out` returns one.
pub fn write(out: &mut dyn Write, meta: &Meta, requests: &[Joined]) -> io::Result<()> {
    let mut out = Packets { out, first: true };
    out.put(TracePacket {
        timestamp: Some(meta.started),
        clock_snapshot: Some(ClockSnapshot {
            clocks: vec![
                clock(proto::CLOCK_MONOTONIC, meta.started),
                clock(proto::CLOCK_REALTIME, meta.started_unix.saturating_mul(1_000_000_000)),
            ],
            primary_trace_clock: Some(proto::CLOCK_MONOTONIC),
        }),
        ..TracePacket::default()
    })?;
    let mut uuid = 0;
    // Those of requests come first.
    let mut flow = requests.len() as u64;
    for (vm, described) in meta.vms.iter().enumerate() {
        let process = next(&mut uuid);
        out.track(tracks::process(process, described))?;
        for (rank, (track, lanes)) in tracks::lanes(requests, vm).into_iter().enumerate() {
            for lane in lanes {
                let lane_uuid = next(&mut uuid);
                out.track(tracks::descriptor(lane_uuid, process, &track.name(), rank))?;
                for slice in lane {
                    out.slice(lane_uuid, track, &slice, requests)?;
                }
            }
        }
        for (rank, thread) in threads::of(requests, vm, &mut flow).into_iter().enumerate() {
            let thread_uuid = next(&mut uuid);
            out.track(tracks::descriptor(thread_uuid, process, &thread.name, tracks::MOST + rank))?;
            for slice in &thread.slices {
                out.state(thread_uuid, slice)?;
            }
        }
    }
    Ok(())
}

fn next(uuid: &mut u64) -> u64 {
    *uuid += 1;
    *uuid
}

fn clock(id: u32, timestamp: u64) -> Clock {
    Clock { clock_id: Some(id), timestamp: Some(timestamp) }
}

/// Writes packets one by one, each as a field of [`Trace`].
struct Packets<'a> {
    out: &'a mut dyn Write,
    first: bool,
}

impl Packets<'_> {
    fn put(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(1);
        packet.timestamp_clock_id = packet.timestamp.map(|_| proto::CLOCK_MONOTONIC);
        packet.sequence_flags = self.first.then_some(1);
        self.first = false;
        self.out.write_all(&Trace { packet: vec![packet] }.encode_to_vec())
    }

    fn track(&mut self, descriptor: proto::TrackDescriptor) -> io::Result<()> {
        self.put(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    fn event(&mut self, timestamp: u64, event: TrackEvent) -> io::Result<()> {
        self.put(TracePacket {
            timestamp: Some(timestamp),
            track_event: Some(event),
            ..TracePacket::default()
        })
    }

    fn slice(&mut self, uuid: u64, track: Track, slice: &Slice, requests: &[Joined]) -> io::Result<()> {
        let joined = &requests[slice.request];
        let flow = vec![slice.request as u64 + 1];
        let (name, annotations) = match slice.what {
            What::Request => ("request", request_annotations(joined)),
            What::Stage(i) => stage_annotations(joined, &joined.request.stages[i]),
            What::Part(part) => part_annotations(joined, part),
        };
        let mut begin = TrackEvent {
            r#type: Some(proto::SLICE_BEGIN),
            track_uuid: Some(uuid),
            name: Some(name.to_owned()),
            debug_annotations: annotations,
            ..TrackEvent::default()
        };
        if !matches!(track, Track::Requests | Track::Guest) {
            *(if slice.last { &mut begin.terminating_flow_ids } else { &mut begin.flow_ids }) = flow;
        }
        self.between(slice.start, slice.end, begin)
    }

    /// What a thread did for a time.
    fn state(&mut self, uuid: u64, slice: &threads::State) -> io::Result<()> {
        let begin = TrackEvent {
            r#type: Some(proto::SLICE_BEGIN),
            track_uuid: Some(uuid),
            name: Some(crate::text::threads::state(Some(slice.state)).to_owned()),
            debug_annotations: slice.woken_by.iter().map(|by| text("woken by", by.clone())).collect(),
            flow_ids: slice.flows.clone(),
            terminating_flow_ids: slice.ends.clone(),
        };
        self.between(slice.from, slice.to, begin)
    }

    fn between(&mut self, start: u64, end: u64, begin: TrackEvent) -> io::Result<()> {
        let track_uuid = begin.track_uuid;
        self.event(start, begin)?;
        self.event(end, TrackEvent { r#type: Some(proto::SLICE_END), track_uuid, ..TrackEvent::default() })
    }
}

fn number(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), uint_value: Some(value), string_value: None }
}

fn text(name: &str, value: String) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), uint_value: None, string_value: Some(value) }
}

fn request_annotations(joined: &Joined) -> Vec<DebugAnnotation> {
    let request = &joined.request;
    let mut all = vec![
        text("key", format!("{:016x}", request.key)),
        number("depth", request.depth.into()),
        number("vcpu", request.vcpu.into()),
    ];
    if request.group != 0 {
        all.push(text("call", format!("{:016x}", request.group)));
    }
    if let Some(state) = request.vcpu_state {
        all.push(text("vcpu state", state.name(teiji_model::stage::Actor::Vcpu).to_owned()));
    }
    if request.coalesced_kick {
        all.push(text("kick", "none of its own".to_owned()));
    }
    all
}

fn stage_annotations<'a>(joined: &Joined, time: &'a StageTime) -> (&'a str, Vec<DebugAnnotation>) {
    let mut all = vec![text("key", format!("{:016x}", joined.request.key))];
    if time.stage == teiji_model::stage::Stage::TapQueue {
        all.push(number("depth", joined.request.depth.into()));
    }
    if let (Some(split), Some(actor)) = (time.split, time.stage.actor()) {
        let parts = ThreadState::ALL.iter().filter(|s| split.get(**s) > 0);
        all.extend(parts.map(|s| number(&format!("{} (ns)", s.name(actor)), split.get(*s))));
    }
    let preempted_by = joined.preempted_by.iter().filter(|(stage, tid)| *stage == time.stage && *tid != 0);
    all.extend(preempted_by.map(|(_, tid)| number("preempted by thread", (*tid).into())));
    (time.stage.name(), all)
}

fn part_annotations(joined: &Joined, part: GuestPart) -> (&'static str, Vec<DebugAnnotation>) {
    let mut all = vec![text("key", format!("{:016x}", joined.request.key))];
    if let Some(inside) = &joined.request.inside {
        if let Some(split) = inside.splits[part as usize] {
            let states = ThreadState::ALL.into_iter().filter(|s| split.get(*s) > 0);
            let name = |s: ThreadState| format!("vCPU {} (ns)", s.name(Actor::Vcpu));
            all.extend(states.map(|s| number(&name(s), split.get(s))));
        }
        match part {
            GuestPart::SocketWait => {
                all.push(number("packets before it", inside.backlog.into()));
                all.push(number("reader, thread of the guest", inside.reader.into()));
            }
            GuestPart::App => all.push(number("sender, thread of the guest", inside.sender.into())),
            _ => {}
        }
    }
    (part.name(), all)
}
