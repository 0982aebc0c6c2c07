//! A track for each thread of requests: what it did, from the timelines of all requests, and who woke whom.
//!
//! Requests overlap, so each has what a thread did at the same time as another: it is shown once.

use crate::text::threads::{thread, waker};
use std::collections::BTreeMap;
use teiji_model::report::Joined;
use teiji_model::stage::ThreadState;
use teiji_model::threads::{RequestThread, ThreadRole, ThreadStart, WokenBy};

/// What a thread did for a time.
#[derive(Debug)]
pub(super) struct State {
    pub from: u64,
    pub to: u64,
    pub state: ThreadState,
    /// Who woke the thread, if it began to wait for a CPU then.
    pub woken_by: Option<String>,
    /// Flows that begin, go on, and end here.
    pub flows: Vec<u64>,
    pub ends: Vec<u64>,
}

/// A thread's track.
#[derive(Debug)]
pub(super) struct Thread {
    pub name: String,
    pub slices: Vec<State>,
}

/// Threads of the host and of the guest have ids of their own; workers come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Worker(u32),
    Vcpu(u16),
    OfGuest(u32),
}

fn key(t: &RequestThread) -> Option<Key> {
    match t.vcpu {
        Some(vcpu) => Some(Key::Vcpu(vcpu)),
        None if t.roles.contains(&ThreadRole::Reader) => Some(Key::OfGuest(t.tid)),
        None => (t.tid != 0).then_some(Key::Worker(t.tid)),
    }
}

#[derive(Default)]
struct Collected<'a> {
    name: String,
    tid: u32,
    spans: Vec<(u64, u64, ThreadState)>,
    /// By when it got a CPU.
    starts: BTreeMap<u64, &'a ThreadStart>,
}

/// The threads of a VM's requests. `flow` is the last number that is used for a flow.
pub(super) fn of(requests: &[Joined], vm: usize, flow: &mut u64) -> Vec<Thread> {
    let mut all: BTreeMap<Key, Collected<'_>> = BTreeMap::new();
    let of_vm = requests.iter().filter(|j| j.vm == vm).filter_map(|j| j.request.threads.as_deref());
    for t in of_vm.flat_map(|threads| &threads.threads) {
        let Some(key) = key(t) else { continue };
        let collected = all.entry(key).or_default();
        if collected.name.is_empty() {
            collected.name = match t.vcpu {
                Some(vcpu) => format!("states of vCPU {vcpu}"),
                None => thread(t),
            };
        }
        collected.tid = if matches!(key, Key::OfGuest(_)) { 0 } else { t.tid };
        let known = t.spans.iter().filter_map(|s| Some((s.from, s.to, s.state?)));
        collected.spans.extend(known.filter(|(from, to, _)| from < to));
        collected.starts.extend(t.starts.iter().map(|s| (s.running, s)));
    }
    let mut tracks: Vec<Thread> = Vec::new();
    for collected in all.values_mut() {
        tracks.push(Thread { name: collected.name.clone(), slices: merged(&mut collected.spans) });
    }
    let tids: Vec<u32> = all.values().map(|c| c.tid).collect();
    for (index, collected) in all.values().enumerate() {
        for start in collected.starts.values() {
            let Some(woken) = start.woken else { continue };
            let (Some(wait), Some(run)) =
                (at(&tracks[index].slices, woken), at(&tracks[index].slices, start.running))
            else {
                continue;
            };
            *flow += 1;
            tracks[index].slices[wait].woken_by = Some(waker(&start.by));
            tracks[index].slices[wait].flows.push(*flow);
            if wait != run {
                tracks[index].slices[run].ends.push(*flow);
            }
            let by = match &start.by {
                // A guest's threads are woken by threads of the guest.
                WokenBy::Thread { tid, .. } if tids[index] != 0 => tids.iter().position(|t| t == tid),
                _ => None,
            };
            if let Some(by) = by
                && let Some(slice) = at(&tracks[by].slices, woken)
            {
                tracks[by].slices[slice].flows.push(*flow);
            }
        }
    }
    tracks
}

/// Slices that do not overlap, of spans that agree where they do.
fn merged(spans: &mut [(u64, u64, ThreadState)]) -> Vec<State> {
    spans.sort_unstable();
    let mut all: Vec<State> = Vec::new();
    for &mut (from, to, state) in spans {
        let at = all.last().map_or(0, |last| last.to);
        match all.last_mut() {
            Some(last) if from <= at && last.state == state => last.to = at.max(to),
            _ if to > at => {
                let (flows, ends) = (Vec::new(), Vec::new());
                all.push(State { from: from.max(at), to, state, woken_by: None, flows, ends });
            }
            _ => {}
        }
    }
    all
}

/// The slice at an instant: the later one, if one begins then.
fn at(slices: &[State], ts: u64) -> Option<usize> {
    let index = slices.partition_point(|s| s.from <= ts).checked_sub(1)?;
    (slices[index].to >= ts).then_some(index)
}
