//! The Perfetto trace, decoded again.
#![allow(clippy::unwrap_used)]

mod common;

use prost::Message;
use std::collections::BTreeMap;
use teiji_model::report::Joined;
use teiji_render::perfetto::proto::{CLOCK_MONOTONIC, SLICE_BEGIN, SLICE_END, Trace, TrackEvent};
use teiji_render::perfetto::write;

fn decode(requests: &[Joined]) -> Trace {
    let mut bytes = Vec::new();
    write(&mut bytes, &common::meta(), requests).unwrap();
    Trace::decode(&bytes[..]).unwrap()
}

/// The events by track, in the order of the file.
fn events(trace: &Trace) -> BTreeMap<u64, Vec<(u64, TrackEvent)>> {
    let mut tracks: BTreeMap<u64, Vec<(u64, TrackEvent)>> = BTreeMap::new();
    for packet in &trace.packet {
        if let Some(event) = &packet.track_event {
            tracks
                .entry(event.track_uuid.unwrap())
                .or_default()
                .push((packet.timestamp.unwrap(), event.clone()));
        }
    }
    tracks
}

/// 40 requests that overlap considerably.
fn overlapping() -> Vec<Joined> {
    (0..40).map(|i| common::joined(i, 2_000_000_000 + i * 300_000, 100 + (i * 37 % 11) * 400)).collect()
}

#[test]
fn slices_are_balanced_and_never_overlap_on_a_track() {
    let trace = decode(&overlapping());
    // Kept for people to open in the viewer.
    std::fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/requests.perfetto-trace"), trace.encode_to_vec())
        .unwrap();
    let tracks = events(&trace);
    assert!(tracks.len() > 6, "lanes for what overlaps");
    for events in tracks.values() {
        assert_eq!(events.len() % 2, 0);
        let mut at = 0;
        for pair in events.chunks(2) {
            let [(begin, b), (end, e)] = pair else { unreachable!() };
            assert_eq!((b.r#type, e.r#type), (Some(SLICE_BEGIN), Some(SLICE_END)));
            assert!(at <= *begin && begin < end, "{at} {begin} {end}");
            at = *end;
        }
    }
}

#[test]
fn a_requests_slices_lie_end_to_end_and_are_joined_by_a_flow() {
    let requests = overlapping();
    let trace = decode(&requests);
    let mut slices: BTreeMap<u64, Vec<(u64, u64, String)>> = BTreeMap::new();
    let mut ended = 0;
    for events in events(&trace).values() {
        for pair in events.chunks(2) {
            let [(begin, b), (end, _)] = pair else { unreachable!() };
            // Those with greater numbers are between threads.
            let of_requests = |flow: &&u64| **flow <= requests.len() as u64;
            ended += b.terminating_flow_ids.iter().filter(of_requests).count();
            for flow in b.flow_ids.iter().chain(&b.terminating_flow_ids).filter(of_requests) {
                slices.entry(*flow).or_default().push((*begin, *end, b.name.clone().unwrap()));
            }
        }
    }
    assert_eq!((slices.len(), ended), (requests.len(), requests.len()));
    for (flow, mut slices) in slices {
        slices.sort();
        let request = &requests[flow as usize - 1].request;
        let (first, last) = (slices.first().unwrap(), slices.last().unwrap());
        assert_eq!((first.0, last.1), (request.start, request.start + request.total));
        assert!(slices.windows(2).all(|w| w[0].1 == w[1].0), "{slices:?}");
        let names: Vec<&str> = slices.iter().map(|s| s.2.as_str()).collect();
        let wanted: Vec<&str> = request.stages.iter().filter(|s| s.ns > 0).map(|s| s.stage.name()).collect();
        assert_eq!(names, wanted);
    }
}

#[test]
fn tracks_belong_to_the_vm_and_are_described_before_use() {
    let trace = decode(&overlapping());
    let mut known: BTreeMap<u64, (Option<u64>, String)> = BTreeMap::new();
    for packet in &trace.packet {
        assert_eq!(packet.trusted_packet_sequence_id, Some(1));
        if let Some(t) = &packet.track_descriptor {
            let name = t.name.clone().or(t.process.as_ref().and_then(|p| p.process_name.clone()));
            assert!(known.insert(t.uuid.unwrap(), (t.parent_uuid, name.unwrap())).is_none());
        }
        if let Some(event) = &packet.track_event {
            let (parent, _) = &known[&event.track_uuid.unwrap()];
            assert_eq!(known[&parent.unwrap()].1, "VM sip1");
        }
    }
    let names: Vec<&str> = known.values().map(|t| t.1.as_str()).collect();
    let tracks = ["requests", "host receive path", "vhost worker", "vCPU 0", "vCPU 1", "host transmit path"];
    for wanted in tracks {
        assert!(names.contains(&wanted), "{wanted} in {names:?}");
    }
}

/// The slices of the track with this name: from when until when, and the event that begins them.
fn on_track(trace: &Trace, name: &str) -> Vec<(u64, u64, TrackEvent)> {
    let descriptors = trace.packet.iter().filter_map(|p| p.track_descriptor.as_ref());
    let uuids: Vec<u64> =
        descriptors.filter(|t| t.name.as_deref() == Some(name)).map(|t| t.uuid.unwrap()).collect();
    let all = events(trace);
    let of = |uuid: &u64| all[uuid].chunks(2).map(|p| (p[0].0, p[1].0, p[0].1.clone())).collect::<Vec<_>>();
    uuids.iter().flat_map(of).collect()
}

#[test]
fn the_parts_of_the_time_in_the_guest_have_a_track() {
    let joined = common::joined(1, 2_000_000_000, 300);
    let trace = decode(std::slice::from_ref(&joined));
    let parts = on_track(&trace, "in the guest");
    let entered = 2_000_000_000 + (12 + 300 + 9 + 3 + 140) * 1_000;
    let names: Vec<&str> = parts.iter().map(|(_, _, e)| e.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["guest_irq", "guest_stack", "socket_wait", "app", "guest_tx"]);
    assert_eq!(parts[0].0, entered);
    assert!(parts.windows(2).all(|w| w[0].1 == w[1].0), "{parts:?}");
    assert_eq!(parts[4].1, entered + 820_000);
    let noted: Vec<_> =
        parts[2].2.debug_annotations.iter().map(|a| (a.name.clone().unwrap(), a.uint_value)).collect();
    assert!(noted.contains(&("vCPU asleep (ns)".into(), Some(500_000))), "{noted:?}");
}

/// worker → vCPU of the interrupt → vCPU of the application → worker, each from the slice of the waker by the wait to the run.
#[test]
fn a_flow_leads_from_the_waker_by_the_wait_to_what_runs() {
    let joined = common::joined(1, 2_000_000_000, 300);
    let trace = decode(std::slice::from_ref(&joined));
    let tracks = ["vhost worker 4244", "states of vCPU 0", "states of vCPU 1", "guest: sipp 311"];
    let mut flows: BTreeMap<u64, Vec<(u64, &str, String)>> = BTreeMap::new();
    let mut slices = 0;
    for track in tracks {
        for (from, _, event) in on_track(&trace, track) {
            slices += 1;
            for flow in event.flow_ids.iter().chain(&event.terminating_flow_ids) {
                flows.entry(*flow).or_default().push((from, track, event.name.clone().unwrap()));
            }
        }
    }
    let known = joined.request.threads.as_ref().unwrap().threads.iter().flat_map(|t| &t.spans);
    assert_eq!(slices, known.filter(|s| s.state.is_some()).count());
    let mut found: Vec<Vec<(&str, String)>> = flows
        .into_values()
        .map(|mut slices| {
            slices.sort();
            slices.into_iter().map(|(_, track, name)| (track, name)).collect()
        })
        .collect();
    found.sort();
    let step = |track, name: &str| (track, name.to_owned());
    let (wait, run) = ("waiting for a CPU", "running");
    let [worker, takes, reads, reader] = tracks;
    let mut wanted = vec![
        // By an interrupt.
        vec![step(worker, wait), step(worker, run)],
        vec![step(worker, run), step(takes, wait), step(takes, run)],
        vec![step(takes, "in guest"), step(reads, wait), step(reads, "in guest")],
        vec![step(reads, "in guest"), step(worker, wait), step(worker, run)],
        // By a thread of the guest that is not followed; what it does then is not in this data.
        vec![step(reader, wait)],
    ];
    wanted.sort();
    assert_eq!(found, wanted);
    let first = &on_track(&trace, takes)[1].2;
    let by = first.debug_annotations.iter().find(|a| a.name.as_deref() == Some("woken by")).unwrap();
    assert_eq!(by.string_value.as_deref(), Some("vhost-4240 (4244)"));
}

#[test]
fn the_clock_is_monotonic() {
    let trace = decode(&[]);
    let snapshot = trace.packet[0].clock_snapshot.as_ref().unwrap();
    assert_eq!(snapshot.primary_trace_clock, Some(CLOCK_MONOTONIC));
    assert_eq!(snapshot.clocks[0].timestamp, Some(1_000_000_000));
    assert_eq!(trace.packet[0].sequence_flags, Some(1));
    let all = decode(&overlapping());
    assert!(
        all.packet.iter().all(|p| p.timestamp.is_none() || p.timestamp_clock_id == Some(CLOCK_MONOTONIC))
    );
}

#[test]
fn what_is_known_of_a_request_is_said() {
    let trace = decode(&[common::joined(7, 5, 900)]);
    let all: Vec<_> = trace
        .packet
        .iter()
        .filter_map(|p| p.track_event.as_ref())
        .flat_map(|e| &e.debug_annotations)
        .map(|a| (a.name.as_deref().unwrap(), a.uint_value, a.string_value.as_deref()))
        .collect();
    for wanted in [
        ("key", None, Some("0000000000000007")),
        ("depth", Some(1), None),
        ("vcpu state", None, Some("asleep")),
        ("waiting for a CPU (ns)", Some(900_000), None),
        ("preempted by thread", Some(812), None),
    ] {
        assert!(all.contains(&wanted), "{wanted:?} in {all:?}");
    }
}

#[test]
fn field_numbers_are_perfettos() {
    // packet = 1 (0x0a), timestamp = 8 (0x40), trusted_packet_sequence_id = 10 (0x50),
    // timestamp_clock_id = 58 (0xd0 0x03), track_event = 11 (0x5a), type = 9 (0x48).
    let event = TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(3), ..TrackEvent::default() };
    assert_eq!(event.encode_to_vec(), [0x48, 2, 0x58, 3]);
    let flow = TrackEvent { flow_ids: vec![1], ..TrackEvent::default() };
    assert_eq!(flow.encode_to_vec(), [0xf9, 0x02, 1, 0, 0, 0, 0, 0, 0, 0], "fixed64, not packed");
    let packet = teiji_render::perfetto::proto::TracePacket {
        timestamp: Some(1),
        timestamp_clock_id: Some(3),
        trusted_packet_sequence_id: Some(1),
        track_event: Some(event),
        ..Default::default()
    };
    let mut bytes = packet.encode_to_vec();
    bytes.sort_unstable();
    for tag in [0x40, 0x50, 0x5a, 0xd0] {
        assert!(bytes.binary_search(&tag).is_ok(), "{tag:#x}");
    }
}
