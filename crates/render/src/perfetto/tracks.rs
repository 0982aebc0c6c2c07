//! Assigns stages to tracks, and slices to lanes in which they do not overlap.

use super::proto::{ProcessDescriptor, TrackDescriptor};
use crate::terminal::printable;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use teiji_model::host::Vm;
use teiji_model::report::{GuestPart, Joined};
use teiji_model::stage::{self, Stage};

/// A track below a VM. Tracks are shown in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Track {
    /// Whole requests.
    Requests,
    /// What carries stages; for vCPUs with the index of the vCPU.
    Stages(stage::Track, Option<u16>),
    /// The parts of the time in the guest, as the guest reports them.
    Guest,
}

/// More than there are tracks of [`Track`] below a VM: those of threads come after them.
pub(super) const MOST: usize = 1 << 20;

impl Track {
    fn of(stage: Stage, vcpu: u16) -> Self {
        let track = stage.about().track;
        Track::Stages(track, (track == stage::Track::Vcpu).then_some(vcpu))
    }

    pub(super) fn name(self) -> String {
        match self {
            Track::Requests => "requests".to_owned(),
            Track::Guest => "in the guest".to_owned(),
            Track::Stages(track, None) => track.name().to_owned(),
            Track::Stages(track, Some(vcpu)) => format!("{} {vcpu}", track.name()),
        }
    }
}

/// What a slice shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A whole request.
    Request,
    /// A stage, by its index in the request.
    Stage(usize),
    /// A part of the time in the guest.
    Part(GuestPart),
}

/// A stage of a request, a part of its time in the guest, or a whole request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    /// When it begins, ns.
    pub start: u64,
    /// When it ends, ns.
    pub end: u64,
    /// Index of the request.
    pub request: usize,
    /// What of the request.
    pub what: What,
    /// Whether it is the last slice of the request.
    pub last: bool,
}

/// The slices of a VM's requests by track, in lanes of slices that do not overlap. Stages of length 0 have no slice.
pub(super) fn lanes(requests: &[Joined], vm: usize) -> Vec<(Track, Vec<Vec<Slice>>)> {
    let mut tracks: BTreeMap<Track, Vec<Slice>> = BTreeMap::new();
    for (index, joined) in requests.iter().enumerate().filter(|(_, j)| j.vm == vm) {
        let request = &joined.request;
        let whole = Slice {
            start: request.start,
            end: request.start.saturating_add(request.total),
            request: index,
            what: What::Request,
            last: true,
        };
        tracks.entry(Track::Requests).or_default().push(whole);
        let last = request.stages.iter().rposition(|s| s.ns > 0);
        let mut start = request.start;
        for (i, time) in request.stages.iter().enumerate() {
            let end = start.saturating_add(time.ns);
            if time.ns > 0 {
                let slice = Slice { start, end, request: index, what: What::Stage(i), last: last == Some(i) };
                tracks.entry(Track::of(time.stage, request.vcpu)).or_default().push(slice);
            }
            start = end;
        }
        if let Some(inside) = &request.inside {
            // What `vcpu_wake` has of the time after the first guest entry belongs to the parts.
            let before = request.stages.iter().take(Stage::Guest as usize).map(|s| s.ns);
            let entered = before.fold(request.start, u64::saturating_add).saturating_sub(request.preempted);
            let mut start = entered;
            for (part, ns) in GuestPart::ALL.into_iter().zip(inside.parts) {
                let end = start.saturating_add(ns);
                if ns > 0 {
                    let slice = Slice { start, end, request: index, what: What::Part(part), last: false };
                    tracks.entry(Track::Guest).or_default().push(slice);
                }
                start = end;
            }
        }
    }
    tracks.into_iter().map(|(track, slices)| (track, spread(slices))).collect()
}

/// Each slice goes to the lane that has been free for the longest time, or to a new one.
fn spread(mut slices: Vec<Slice>) -> Vec<Vec<Slice>> {
    slices.sort_by_key(|s| (s.start, s.end));
    let mut lanes: Vec<Vec<Slice>> = Vec::new();
    let mut free: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    for slice in slices {
        let lane = match free.peek() {
            Some(Reverse((end, lane))) if *end <= slice.start => {
                let lane = *lane;
                free.pop();
                lane
            }
            _ => {
                lanes.push(Vec::new());
                lanes.len() - 1
            }
        };
        free.push(Reverse((slice.end, lane)));
        lanes[lane].push(slice);
    }
    lanes
}

/// The track of a VM.
pub(super) fn process(uuid: u64, vm: &Vm) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(uuid),
        process: Some(ProcessDescriptor {
            pid: i32::try_from(vm.pid).ok(),
            process_name: Some(format!("VM {}", printable(&vm.name))),
        }),
        child_ordering: Some(3), // EXPLICIT
        ..TrackDescriptor::default()
    }
}

/// A lane of a track.
pub(super) fn descriptor(uuid: u64, parent: u64, name: &str, rank: usize) -> TrackDescriptor {
    TrackDescriptor {
        uuid: Some(uuid),
        parent_uuid: Some(parent),
        name: Some(name.to_owned()),
        sibling_order_rank: i32::try_from(rank).ok(),
        ..TrackDescriptor::default()
    }
}
