//! What becomes of the events of a live trace: completed by what user space knows, recorded, and analysed.

use super::{Error, MAX_DROP_NAMES, MAX_THREAD_NAMES, Progress, TraceOutcome};
use crate::recorder::Recorder;
use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::time::Duration;
use teiji_analysis::{Analyzer, sip};
use teiji_bpf::path_trace::EventWithPayload;
use teiji_host::kernel;
use teiji_model::event::{DropName, Event, EventKind, Packet, ThreadName, padded};
use teiji_model::report::{Counters, Joined};

/// Consumes the events of a live trace.
pub(super) struct Session<'a> {
    pub(super) analyzer: Analyzer,
    pub(super) recorder: Option<Recorder>,
    pub(super) recording_failed: Option<Error>,
    pub(super) record_path: Option<PathBuf>,
    pub(super) sip_key: u64,
    pub(super) named: HashSet<u32>,
    /// Reasons for which the kernel has dropped packets.
    pub(super) drop_reasons: BTreeSet<u32>,
    pub(super) events: u64,
    pub(super) complete: u64,
    pub(super) joined: &'a mut dyn FnMut(&Joined),
}

impl Session<'_> {
    /// An event as it came from the kernel.
    pub(super) fn take(&mut self, item: &mut EventWithPayload) {
        match &mut item.event.kind {
            EventKind::Packet(packet) if !item.payload.is_empty() => {
                packet.matching = sip::parse(&item.payload, self.sip_key);
            }
            EventKind::Dropped(dropped) => {
                if !item.payload.is_empty() {
                    dropped.matching = sip::parse(&item.payload, self.sip_key);
                }
                if self.drop_reasons.len() < MAX_DROP_NAMES {
                    self.drop_reasons.insert(dropped.why);
                }
            }
            _ => {}
        }
        let preempted_by = match &item.event.kind {
            EventKind::Packet(Packet { preempted_by, .. }) => *preempted_by,
            EventKind::GuestEntry(e) => e.preempted_by,
            EventKind::Kick(k) => k.preempted_by,
            _ => 0,
        };
        self.events += u64::from(!matches!(item.event.kind, EventKind::Lost(_)));
        if preempted_by != 0
            && self.named.len() < MAX_THREAD_NAMES
            && self.named.insert(preempted_by)
            && let Some(thread_name) = thread_name(preempted_by)
        {
            self.push(Event {
                ts: item.event.ts,
                cpu: item.event.cpu,
                kind: EventKind::ThreadName(thread_name),
            });
        }
        self.push(item.event);
    }

    pub(super) fn progress(&self, elapsed: Duration, counters: &Counters) -> Progress {
        let lost = counters.lost_or_missed().saturating_add(self.analyzer.losses().late);
        Progress { elapsed, events: self.events, complete: self.complete, lost }
    }

    fn push(&mut self, event: Event) {
        if let Some(recorder) = &mut self.recorder
            && let Err(source) = recorder.push(event)
        {
            self.give_up_recording(source);
        }
        let (complete, joined) = (&mut self.complete, &mut self.joined);
        self.analyzer.push(event, &mut |j| {
            *complete += 1;
            joined(j);
        });
    }

    /// Adds the names of the drop reasons that occurred, as a replay cannot ask the kernel for them.
    pub(super) fn name_drops(&mut self, ts: u64, name: &dyn Fn(u32) -> String) {
        for why in std::mem::take(&mut self.drop_reasons) {
            let name = padded(&name(why));
            self.push(Event { ts, cpu: 0, kind: EventKind::DropName(DropName { why, name }) });
        }
    }

    /// Hands what was recorded so far to the file, so that others can read it.
    pub(super) fn sync(&mut self, counters: &Counters) {
        if let Some(recorder) = &mut self.recorder
            && let Err(source) = recorder.sync(counters)
        {
            self.give_up_recording(source);
        }
    }

    fn give_up_recording(&mut self, source: teiji_model::recording::Error) {
        self.recorder = None;
        let path = self.record_path.clone().unwrap_or_default();
        let error = Error::Record { path, source };
        tracing::warn!("{error}");
        self.recording_failed.get_or_insert(error);
    }

    pub(super) fn finish(mut self, counters: Counters) -> TraceOutcome {
        if let Some(recorder) = self.recorder.take()
            && let Err(source) = recorder.finish(&counters)
        {
            self.give_up_recording(source);
        }
        let report = self.analyzer.finish(counters, &mut *self.joined);
        TraceOutcome { report, recording_failed: self.recording_failed }
    }
}

/// A thread's name, if it still has one.
fn thread_name(tid: u32) -> Option<ThreadName> {
    let name = kernel::thread_name(tid)?;
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(&name);
    Some(ThreadName { tid, comm })
}
