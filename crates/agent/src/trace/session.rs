//! What becomes of the events of a live trace: completed by what user space knows, recorded, and analysed.

use super::nic_irqs::NicIrqs;
use super::{Error, MAX_DROP_NAMES, Progress, TraceOutcome};
use crate::recorder::Recorder;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::time::Duration;
use teiji_analysis::interval::Interval;
use teiji_analysis::{Analyzer, sip};
use teiji_bpf::path_trace::EventWithPayload;
use teiji_host::{NicCounters, kernel};
use teiji_model::event::{DropName, Event, EventKind, Packet, Start, ThreadName, Waker, padded};
use teiji_model::report::{Counters, Joined};
use teiji_model::snapshot::Snapshot;
use teiji_model::stream::{Change, Changed, StreamId};

/// Consumes the events of a live trace.
pub(super) struct Session<'a> {
    pub(super) analyzer: Analyzer,
    /// What was completed since the last snapshot, if snapshots are made.
    pub(super) interval: Option<Interval>,
    pub(super) recorder: Option<Recorder>,
    pub(super) recording_failed: Option<Error>,
    pub(super) record_path: Option<PathBuf>,
    pub(super) sip_key: u64,
    pub(super) names: ThreadNames,
    pub(super) nic_irqs: NicIrqs,
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
            EventKind::DeviceInterrupt(i) if !self.nic_irqs.has(item.event.ts, i) => return,
            _ => {}
        }
        // The thread that it refers to by id.
        let named = match &item.event.kind {
            EventKind::Packet(Packet { preempted_by, .. }) => *preempted_by,
            EventKind::GuestEntry(e) => e.preempted_by,
            EventKind::Kick(k) => k.preempted_by,
            EventKind::VcpuState(s) => s.preempted_by,
            EventKind::Wait(w) => w.preempted_by,
            EventKind::Start(Start { waker: Waker::Thread(tid), .. }) => *tid,
            _ => 0,
        };
        self.events += u64::from(!matches!(item.event.kind, EventKind::Lost(_)));
        if named != 0
            && let Some(thread_name) = self.names.changed(named, item.event.ts, &thread_name)
        {
            self.push(Event {
                ts: item.event.ts,
                stream: StreamId::HOST,
                cpu: item.event.cpu,
                kind: EventKind::ThreadName(thread_name),
            });
        }
        self.push(item.event);
    }

    /// A look at the trace, which ends the interval since the last one.
    pub(super) fn snapshot(&mut self, counters: Counters) -> Snapshot {
        let taken = self.interval.as_mut().map(|interval| interval.take(counters.ended));
        let (interval, recent) = taken.unwrap_or_default();
        Snapshot { report: self.analyzer.snapshot(counters), interval, recent }
    }

    pub(super) fn progress(&self, elapsed: Duration, counters: &Counters) -> Progress {
        let lost = counters.lost_or_missed().saturating_add(self.analyzer.losses().late);
        Progress { elapsed, events: self.events, complete: self.complete, lost }
    }

    /// An event as it is.
    ///
    /// What the analysis does not use of a guest is not recorded, only counted: a replay then uses the same events, and a
    /// guest that floods does not fill the disk.
    pub(super) fn push(&mut self, event: Event) -> bool {
        let (complete, joined, interval) = (&mut self.complete, &mut self.joined, &mut self.interval);
        let used = self.analyzer.push(event, &mut |j| {
            *complete += 1;
            if let Some(interval) = interval {
                interval.add(j);
            }
            joined(j);
        });
        if used
            && let Some(recorder) = &mut self.recorder
            && let Err(source) = recorder.push(event)
        {
            self.give_up_recording(source);
        }
        used
    }

    /// A VM comes, changes or ends.
    pub(super) fn change(&mut self, change: Change) {
        if let Some(recorder) = &mut self.recorder
            && let Err(source) = recorder.change(&change)
        {
            self.give_up_recording(source);
        }
        match &change.what {
            Changed::Given { pid, nics } => {
                self.nic_irqs.set(change.ts, *pid, nics.iter().map(|nic| nic.address.clone()).collect());
            }
            Changed::Ended { pid } => self.nic_irqs.set(change.ts, *pid, Vec::new()),
            Changed::Vm(_) | Changed::Clock { .. } => {}
        }
        self.analyzer.change(change);
    }

    /// Adds the names of the drop reasons that occurred.
    fn name_drops(&mut self, ts: u64, name: &dyn Fn(u32) -> String) {
        for why in std::mem::take(&mut self.drop_reasons) {
            let name = padded(&name(why));
            self.push(Event {
                ts,
                stream: StreamId::HOST,
                cpu: 0,
                kind: EventKind::DropName(DropName { why, name }),
            });
        }
    }

    /// Adds what the kernel counts or knows itself, as a replay cannot ask it: what NICs have discarded since they were last
    /// asked, and the names of drop reasons. Returns the time until which the trace is now known.
    pub(super) fn take_stock(&mut self, nics: &mut NicCounters, name: &dyn Fn(u32) -> String) -> u64 {
        let ts = super::now();
        self.name_drops(ts, name);
        for loss in nics.losses() {
            self.push(Event { ts, stream: StreamId::HOST, cpu: 0, kind: EventKind::NicLoss(loss) });
        }
        ts
    }

    /// Hands what was recorded so far to the file, so that others can read it.
    pub(super) fn sync(&mut self, counters: &Counters) {
        if let Some(recorder) = &mut self.recorder
            && let Err(source) = recorder.sync(counters)
        {
            self.give_up_recording(source);
        }
    }

    /// Whether nobody sees anything of what comes, if all of it is to be in the recording.
    pub(super) fn is_in_vain(&self, only_recorded: bool) -> bool {
        only_recorded && self.recording_failed.is_some()
    }

    /// How many bytes are free in the file system of the recording, if it is nearly full.
    pub(super) fn nearly_full(&self) -> Option<u64> {
        self.recorder.as_ref()?.nearly_full()
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

/// Which names of threads were reported, and when they were looked up. A thread id may be used again, and a thread may change
/// its name: so it is looked up again.
#[derive(Debug, Default)]
pub(super) struct ThreadNames(HashMap<u32, (u64, Option<ThreadName>)>);

/// How long a name is taken to be right, ns.
const FRESH: u64 = 1_000_000_000;
/// Most names that are stored at once.
const MAX_NAMES: usize = 4096;

impl ThreadNames {
    /// The thread's name by `look_up`, if it has to be reported: at `now` it is not known to be the same as before.
    fn changed(
        &mut self,
        tid: u32,
        now: u64,
        look_up: &dyn Fn(u32) -> Option<ThreadName>,
    ) -> Option<ThreadName> {
        if self.0.get(&tid).is_some_and(|(at, _)| now < at.saturating_add(FRESH)) {
            return None;
        }
        if self.0.len() >= MAX_NAMES && !self.0.contains_key(&tid) {
            self.0.retain(|_, (at, _)| now < at.saturating_add(FRESH));
            if self.0.len() >= MAX_NAMES {
                return None;
            }
        }
        let name = look_up(tid);
        let (_, former) = self.0.insert(tid, (now, name)).unwrap_or_default();
        name.filter(|_| name != former)
    }
}

/// A thread's name, if it still has one.
fn thread_name(tid: u32) -> Option<ThreadName> {
    let name = kernel::thread_name(tid)?;
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(&name);
    Some(ThreadName { tid, comm })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &'static str) -> impl Fn(u32) -> Option<ThreadName> {
        move |tid| {
            let mut comm = [0; 16];
            comm[..name.len()].copy_from_slice(name.as_bytes());
            Some(ThreadName { tid, comm })
        }
    }

    #[test]
    fn a_thread_id_that_is_used_again_gets_its_new_name() {
        let mut names = ThreadNames::default();
        let name = |found: Option<ThreadName>| found.map(|n| n.name());
        assert_eq!(name(names.changed(5, 10, &named("first"))).as_deref(), Some("first"));
        assert_eq!(names.changed(5, 20, &named("second")), None, "not looked up again so soon");
        assert_eq!(names.changed(5, 10 + FRESH, &named("first")), None, "nothing new");
        assert_eq!(name(names.changed(5, 10 + 2 * FRESH, &named("second"))).as_deref(), Some("second"));
        assert_eq!(names.changed(5, 10 + 3 * FRESH, &|_| None), None, "it has ended");
    }

    #[test]
    fn names_are_looked_up_however_many_threads_have_come() {
        let mut names = ThreadNames::default();
        for round in 0..3 {
            for tid in 0..MAX_NAMES as u32 {
                let tid = round * MAX_NAMES as u32 + tid;
                assert!(names.changed(tid, u64::from(round) * 2 * FRESH, &named("x")).is_some());
            }
            assert_eq!(names.changed(u32::MAX, u64::from(round) * 2 * FRESH, &named("x")), None, "no room");
        }
        assert!(names.0.len() <= MAX_NAMES);
    }
}
