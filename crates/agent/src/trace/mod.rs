//! A trace from start to report.
//!
//! ```text
//!              attach            every 5–50 ms: drain → (match SIP) → record, analyse; now and then: snapshot
//!  run ──────► watching ──────────────────────────────────────────────────────────┐
//!                 │ stop flag, time over, every VM gone                           │
//!                 ▼                                                               │
//!              detach ──► last drain ──► recording complete, report ◄─────────────┘
//! replay ─► the same events from a file ─► the same report
//! ```
//! VMs that come, change or end meanwhile are followed: another process finds them ([`follower`]), as this one gives up its
//! privileges. A trace without any VM left waits some seconds for one, then ends.
//!
//! A snapshot is the report that the trace would end in now, and what was completed since the one before. Each second the
//! recording is handed to its file, so that [`replay_unfinished`] can read it before the trace ends.
//!
//! One thread owns everything. Memory is bounded: the ring buffer, the analyzer's windows and tables.
mod follower;
mod following;
mod guest_address;
mod guest_clock;
mod guests;
mod nic_irqs;
mod session;
mod vms;

pub use following::Following;
pub use guest_address::{AskGuests, TcpGuest, means};

use crate::output::{Output, Rights};
use crate::poll_interval::PollInterval;
use crate::recorder::Recorder;
use follower::Follower;
use guests::{Guests, News};
use nic_irqs::NicIrqs;
use nix::time::{ClockId, clock_gettime};
use session::{Session, ThreadNames};
use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use teiji_analysis::interval::Interval;
use teiji_analysis::{Analyzer, Options};
use teiji_bpf::path_trace::{Counts, EventWithPayload, Setup, Tracer};
use teiji_host::{NicCounters, Root, kernel, privilege};
use teiji_model::event::{Event, EventKind, Lost};
use teiji_model::flow::Watch;
use teiji_model::host::{DataPlane, Nic, Vm};
use teiji_model::recording::Reader;
use teiji_model::report::{Counters, Joined, Meta, Report};
use teiji_model::snapshot::Snapshot;
use teiji_model::stream::{Change, Changed, Item, StreamId};
use vms::{WatchedVms, come, end, next_found};

/// How often the last events of guests are looked for at the end.
const LAST_INTERVAL: Duration = Duration::from_millis(2);
/// How often the VMs are checked to be still there, and progress is reported.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How often a recording is handed to its file.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long a trace waits for a VM when none is left.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most of the kernel's drop reasons that are named in one trace.
const MAX_DROP_NAMES: usize = 4096;
/// Size of the record buffer unless the caller asks for another, bytes.
pub const DEFAULT_BUFFER: usize = 8 << 20;

/// What to trace, and how.
#[derive(Clone, Debug)]
pub struct TraceSpec {
    /// Flow, direction, matching.
    pub watch: Watch,
    /// The VMs.
    pub vms: Vec<Vm>,
    /// Which VMs that come later are followed; `None`: only those of `vms` are, as they are at the start.
    pub following: Option<Following>,
    /// Ask the guests to report their part of the path, in this way.
    pub guests: Option<AskGuests>,
    /// How long to trace; `None`: until the stop flag is set.
    pub duration: Option<Duration>,
    /// How often a snapshot is made; `None`: never.
    pub every: Option<Duration>,
    /// Where to write a recording, if anywhere.
    pub record: Option<PathBuf>,
    /// Nobody sees anything of the trace but its recording: it ends if that cannot be written.
    pub only_recorded: bool,
    /// Describe the threads of each request, not only of those that the report shows one by one.
    pub timelines: bool,
    /// Size of the kernel's record buffer, bytes; see [`DEFAULT_BUFFER`].
    pub buffer_bytes: usize,
    /// Give up all privileges of this process, for good, once the probes are attached; see [`teiji_host::privilege`].
    pub confine: bool,
}

/// How a trace is going.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since the probes were attached.
    pub elapsed: Duration,
    /// Events taken from the kernel.
    pub events: u64,
    /// Requests completed.
    pub complete: u64,
    /// Events lost, runs of probes missed, and events that came too late to be used.
    pub lost: u64,
}

/// The result of a trace.
#[derive(Debug)]
pub struct TraceOutcome {
    /// What was seen.
    pub report: Report,
    /// Why there is no recording although one was requested. The trace itself is not affected.
    pub recording_failed: Option<Error>,
}

/// Why a trace or replay failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing to trace.
    #[error("no VM to trace: {0}")]
    NoVm(String),
    /// The probes could not be attached.
    #[error(transparent)]
    Probes(#[from] teiji_bpf::Error),
    /// The process that finds VMs could not be started.
    #[error(
        "VMs that come later could not be followed, so nothing was traced: the process that finds them did not start"
    )]
    Follower(#[source] std::io::Error),
    /// The recording could not be written.
    #[error("cannot write the recording {path}, so this trace cannot be replayed later")]
    Record {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: teiji_model::recording::Error,
    },
    /// The recording could not be read.
    #[error("cannot replay {path}")]
    Replay {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: teiji_model::recording::Error,
    },
    /// The recording is none of a trace.
    #[error("{path} has counters of VMs and no trace: `teiji diagnose --replay` shows it")]
    Counters {
        /// Which.
        path: PathBuf,
    },
    /// Privileges could not be given up.
    #[error(
        "privileges could not be given up, so nothing was traced: run teiji as root, with all capabilities of its user \
         namespace"
    )]
    Privilege(#[from] privilege::Error),
}

/// The host's `CLOCK_MONOTONIC`, ns: the clock of the events.
fn now() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| Duration::from(t).as_nanos().try_into().unwrap_or(u64::MAX))
}

pub(crate) fn meta(watch: Watch, vms: Vec<Vm>) -> Meta {
    Meta {
        teiji: env!("CARGO_PKG_VERSION").into(),
        host: kernel::name(),
        kernel: kernel::release(),
        started_unix: kernel::unix_time(),
        started: now(),
        watch,
        vms,
        devices: kernel::devices(),
    }
}

/// Traces until the time is over, `stop` is set, or every VM is gone and no other comes for some seconds.
///
/// `progress` is called about twice a second, `snapshot` as often as the spec says, `joined` for every request that is
/// completed.
///
/// # Errors
/// If nothing could be traced. A recording that fails does not end the trace, unless it is [`TraceSpec::only_recorded`]; see
/// [`TraceOutcome`].
pub fn run(
    spec: TraceSpec,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress),
    snapshot: &mut dyn FnMut(&Snapshot),
    joined: &mut dyn FnMut(&Joined),
) -> Result<TraceOutcome, Error> {
    let seen = |nic: &Nic| nic.ifindex != 0 || nic.data_plane == DataPlane::Passthrough;
    if !spec.vms.iter().flat_map(|v| &v.nics).any(seen) {
        return Err(Error::NoVm(
            "none of them has a tap in this network namespace, or a NIC that it was given (VFIO)".into(),
        ));
    }
    let unwritten = |source| Error::Record { path: spec.record.clone().unwrap_or_default(), source };
    // Before the probes are attached: the process that gives the file its name must not inherit them.
    let rights = if spec.confine { Rights::GivenUp } else { Rights::Kept };
    let output = spec.record.as_ref().map(|path| Output::create(path, rights)).transpose();
    let output = output.map_err(|source| unwritten(teiji_model::recording::Error::Io { at: 0, source }))?;
    let setup = Setup {
        watch: &spec.watch,
        vms: &spec.vms,
        guests: spec.guests.is_some(),
        buffer_bytes: spec.buffer_bytes,
    };
    let mut tracer = Tracer::start(&setup)?;
    // Before anybody connects.
    for tcp in spec.guests.iter().flat_map(|ask| &ask.tcp) {
        tracer.leave_out(tcp.address)?;
    }
    let meta = meta(spec.watch.clone(), spec.vms.clone());
    let recorder = output.map(|output| Recorder::begin(output, &meta)).transpose().map_err(unwritten)?;
    let mut alive = WatchedVms::of(&spec.vms);
    let follow = |following| Follower::start(following, &spec.vms).map_err(Error::Follower);
    let mut follower = spec.following.clone().map(follow).transpose()?;
    let mut guests = spec.guests.clone().map(|ask| Guests::new(&spec.watch, ask));
    for vm in spec.vms.iter().filter(|vm| vm.pid != 0) {
        if let Some(guests) = &mut guests {
            guests.add(vm, Root::default().guest_access(vm.pid));
        }
    }
    let mut nics = NicCounters::of_host();
    if nics.left_out() > 0 {
        tracing::warn!("there are too many NICs: what {} of them discard is not read", nics.left_out());
    }
    if spec.confine {
        privilege::become_nobody()?;
    }
    let begun = Instant::now();
    let seed = RandomState::new().hash_one(meta.started);
    let mut session = Session {
        analyzer: Analyzer::new(&meta, Options { seed, timelines: spec.timelines, ..Options::default() }),
        interval: spec.every.map(|_| Interval::new(meta.started)),
        recorder,
        recording_failed: None,
        record_path: spec.record.clone(),
        sip_key: seed,
        names: ThreadNames::default(),
        nic_irqs: NicIrqs::new(tracer.other_irqs()?),
        drop_reasons: BTreeSet::new(),
        events: 0,
        complete: 0,
        joined,
    };
    for vm in spec.vms.iter().filter(|vm| !vm.given.is_empty()) {
        let what = Changed::Given { pid: vm.pid, nics: vm.given.clone() };
        session.change(Change { ts: meta.started, what });
    }
    let mut counters = Counters::default();
    let (mut looked, mut synced, mut snapped) = (begun, begun, begun);
    let mut last_left = None;
    let mut counted_at = meta.started;
    let mut poll_interval = PollInterval::new(spec.buffer_bytes);
    loop {
        let done = stop.load(Ordering::Relaxed)
            || spec.duration.is_some_and(|d| begun.elapsed() >= d)
            || session.is_in_vain(spec.only_recorded);
        if done {
            if let Some(guests) = &mut guests {
                guests.ask_to_stop();
                // The host's probes are attached meanwhile, so that the guests' last packets have both sides.
                while guests.take_last(&mut |news| hear(news, &mut tracer, &mut session)) {
                    drain(&mut tracer, &mut counters, &mut counted_at, &mut |item| session.take(item))?;
                    std::thread::sleep(LAST_INTERVAL);
                }
            }
            session.nic_irqs.end(now());
            tracer.stop();
        }
        let taken = drain(&mut tracer, &mut counters, &mut counted_at, &mut |item| session.take(item))?;
        if let Some(guests) = &mut guests {
            guests.turn(&mut |news| hear(news, &mut tracer, &mut session));
        }
        if done {
            break;
        }
        while let Some(found) = next_found(&mut follower) {
            // So that a process whose id is used again has ended before the next one comes.
            alive.check(|pid| end(pid, &mut tracer, &mut session, &mut guests, &mut counters));
            come(found, &mut tracer, &mut session, &mut guests, &mut alive);
        }
        if looked.elapsed() >= CHECK_INTERVAL {
            looked = Instant::now();
            progress(&session.progress(begun.elapsed(), &counters));
            if spec.only_recorded
                && let Some(left) = session.nearly_full()
            {
                tracing::warn!(
                    "the file system of the recording is nearly full ({} MB are free): ending the trace",
                    left / 1_000_000
                );
                stop.store(true, Ordering::Relaxed);
                continue;
            }
            alive.check(|pid| end(pid, &mut tracer, &mut session, &mut guests, &mut counters));
            if !alive.any() {
                let patience = if follower.is_some() { PATIENCE } else { Duration::ZERO };
                if last_left.get_or_insert_with(Instant::now).elapsed() >= patience {
                    tracing::warn!("every traced VM has ended: ending the trace");
                    stop.store(true, Ordering::Relaxed);
                    continue;
                }
            } else {
                last_left = None;
            }
        }
        let due = spec.every.is_some_and(|every| snapped.elapsed() >= every);
        if due || session.recorder.is_some() && synced.elapsed() >= SYNC_INTERVAL {
            synced = Instant::now();
            counters.ended = session.take_stock(&mut nics, &|why| tracer.drop_name(why));
            counters.events = session.events;
            session.sync(&counters);
            if due {
                snapped = synced;
                snapshot(&session.snapshot(counters.clone()));
            }
        }
        std::thread::sleep(poll_interval.next(taken));
    }
    counters.ended = session.take_stock(&mut nics, &|why| tracer.drop_name(why));
    counters.events = session.events;
    Ok(session.finish(counters))
}

/// What guests have to tell. Returns whether it is used.
fn hear(news: News, tracer: &mut Tracer, session: &mut Session<'_>) -> bool {
    match news {
        News::Secret(pid, secret) => {
            if let Err(error) = tracer.set_guest(pid, secret.as_deref()) {
                tracing::warn!("what the guest of the VM with pid {pid} reports is not used: {error}");
            }
            true
        }
        News::Changed(what) => {
            session.change(Change { ts: now(), what });
            true
        }
        News::Event(event) => session.push(event),
    }
}

/// The source of events: the tracer, or a script in tests.
trait Source {
    /// Takes events out of the buffer; returns whether there may be more.
    fn fetch(&mut self) -> Result<bool, Error>;
    /// The counters of the probes so far.
    fn counts(&self) -> Result<Counts, Error>;
    /// Hands on the events that were taken out last; returns how many.
    fn take_events(&mut self, each: &mut dyn FnMut(&mut EventWithPayload)) -> usize;
}

impl Source for Tracer {
    fn fetch(&mut self) -> Result<bool, Error> {
        Ok(Tracer::fetch(self)?)
    }

    fn counts(&self) -> Result<Counts, Error> {
        Ok(Tracer::counts(self)?)
    }

    fn take_events(&mut self, each: &mut dyn FnMut(&mut EventWithPayload)) -> usize {
        Tracer::take_events(self, each)
    }
}

/// Passes on all events that are in the buffer; returns how many. A loss is passed on before any event that is younger
/// than the beginning of the loss.
///
/// The analysis cannot take back what it has concluded from an event. So losses are counted after events have been
/// taken out of the buffer and before they are handed on: none of these events is younger than that count.
/// `counted_at` is the time of the last count.
fn drain(
    source: &mut impl Source,
    counters: &mut Counters,
    counted_at: &mut u64,
    each: &mut dyn FnMut(&mut EventWithPayload),
) -> Result<usize, Error> {
    let mut taken = 0;
    loop {
        let more = source.fetch()?;
        let at = now();
        let counts = source.counts()?;
        if let Some(lost) = add_counts(counters, counts, *counted_at) {
            let event = Event { ts: now(), stream: StreamId::HOST, cpu: 0, kind: EventKind::Lost(lost) };
            each(&mut EventWithPayload { event, payload: Vec::new() });
        }
        // An event that is lost while the counters are read may be in this count or in the next one.
        *counted_at = at;
        taken += source.take_events(each);
        if !more {
            return Ok(taken);
        }
    }
}

/// Stores the counters of the probes; returns what was lost since `since`. A run of a probe that the kernel skipped
/// counts as a lost event, as it is not known what it would have seen.
fn add_counts(counters: &mut Counters, counts: Counts, since: u64) -> Option<Lost> {
    let before = counters.lost_or_missed();
    counters.lost = counts.lost;
    counters.missed = counts.missed;
    counters.unidentified = counts.unidentified;
    let count = counters.lost_or_missed().saturating_sub(before);
    (count > 0).then_some(Lost { since, count })
}

/// The report of a recording that may end early.
#[derive(Debug)]
pub struct Replayed {
    /// The report; if the recording is not complete, as it would have been if the trace had ended there.
    pub report: Report,
    /// Whether the recording is complete.
    pub complete: bool,
}

/// What a replay shows of single requests, beside the slowest and a typical one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// As [`TraceSpec::timelines`].
    pub timelines: bool,
    /// The first request of each VM that was received this long after the trace began, or later.
    pub at: Option<Duration>,
}

/// Makes the report of a recording; needs no privileges.
///
/// # Errors
/// [`Error::Replay`] if the file cannot be read or is not a complete recording of a known version.
pub fn replay(path: &Path, shown: Shown, joined: &mut dyn FnMut(&Joined)) -> Result<Report, Error> {
    replay_as(path, false, shown, joined).map(|replayed| replayed.report)
}

/// Makes the report of a recording that may still be being written, or may have been cut off; needs no privileges.
///
/// # Errors
/// [`Error::Replay`] if the file cannot be read, or is no recording of a known version.
pub fn replay_unfinished(
    path: &Path,
    shown: Shown,
    joined: &mut dyn FnMut(&Joined),
) -> Result<Replayed, Error> {
    replay_as(path, true, shown, joined)
}

fn replay_as(
    path: &Path,
    unfinished: bool,
    shown: Shown,
    joined: &mut dyn FnMut(&Joined),
) -> Result<Replayed, Error> {
    let fail = |source| Error::Replay { path: path.to_owned(), source };
    let file = File::open(path).map_err(|e| fail(teiji_model::recording::Error::Io { at: 0, source: e }))?;
    let input = BufReader::with_capacity(1 << 18, file);
    let mut reader = if unfinished { Reader::unfinished(input) } else { Reader::new(input) }.map_err(fail)?;
    let chosen = shown.at.map(|at| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
    let options = Options { timelines: shown.timelines, chosen, ..Options::default() };
    let mut analyzer = Analyzer::new(reader.meta(), options);
    while let Some(item) = reader.next().map_err(fail)? {
        if matches!(item, Item::Sample(_)) {
            return Err(Error::Counters { path: path.to_owned() });
        }
        analyzer.take(item, joined);
    }
    let counters = reader.counters().cloned().unwrap_or_default();
    Ok(Replayed { report: analyzer.finish(counters, joined), complete: !reader.is_cut() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::event::{Kick, ThreadName};
    use teiji_model::stage::Split;

    /// A buffer that is read late: batches of events, and what has been lost when each is read.
    struct Late(Vec<(Vec<u64>, u64)>, Vec<u64>, u64);

    impl Source for Late {
        fn fetch(&mut self) -> Result<bool, Error> {
            (self.1, self.2) = self.0.remove(0);
            Ok(!self.0.is_empty())
        }

        fn counts(&self) -> Result<Counts, Error> {
            Ok(Counts { lost: vec![self.2], ..Counts::default() })
        }

        fn take_events(&mut self, each: &mut dyn FnMut(&mut EventWithPayload)) -> usize {
            for &ts in &self.1 {
                let kind = EventKind::ThreadName(ThreadName { tid: 1, comm: [0; 16] });
                each(&mut EventWithPayload {
                    event: Event { ts, stream: StreamId::HOST, cpu: 0, kind },
                    payload: Vec::new(),
                });
            }
            self.1.len()
        }
    }

    #[test]
    fn a_loss_is_told_before_any_event_that_is_younger() {
        let mut late = Late(vec![(vec![10, 400], 0), (vec![500, 900], 3), (vec![950], 3)], Vec::new(), 0);
        let (mut counters, mut counted_at, mut passed_on) = (Counters::default(), 5, Vec::new());
        let taken = drain(&mut late, &mut counters, &mut counted_at, &mut |item| {
            passed_on.push(match item.event.kind {
                EventKind::Lost(lost) => (lost.count, lost.since <= item.event.ts),
                _ => (0, item.event.ts >= 500),
            });
        });
        assert_eq!((taken.unwrap(), counters.lost), (5, vec![3]));
        // Two events from before the count in which the loss is not yet, the loss, and the others.
        let event = |young| (0, young);
        assert_eq!(passed_on, [event(false), event(false), (3, true), event(true), event(true), event(true)]);
    }

    fn session<'a>(recorder: Option<Recorder>, joined: &'a mut dyn FnMut(&Joined)) -> Session<'a> {
        Session {
            analyzer: Analyzer::new(&Meta::default(), Options::default()),
            interval: None,
            recorder,
            recording_failed: None,
            record_path: None,
            sip_key: 0,
            names: ThreadNames::default(),
            nic_irqs: NicIrqs::default(),
            drop_reasons: BTreeSet::new(),
            events: 0,
            complete: 0,
            joined,
        }
    }

    #[test]
    fn a_trace_is_in_vain_if_its_only_output_cannot_be_written() {
        let ignored = &mut |_: &Joined| ();
        let output = Output::create_or_open(Path::new("/dev/full"), Rights::Kept).unwrap();
        let recorder = Recorder::begin(output, &Meta::default()).unwrap();
        let mut session = session(Some(recorder), ignored);
        assert!(!session.is_in_vain(true));
        session.sync(&Counters::default());
        assert!(session.is_in_vain(true) && !session.is_in_vain(false));
        assert!(session.finish(Counters::default()).recording_failed.is_some());
    }

    #[test]
    fn progress_tells_what_was_lost_missed_or_late() {
        let ignored = &mut |_: &Joined| ();
        let mut session = session(None, ignored);
        // The last two are older than the window before the newest.
        for ts in [1, 5, 10, 2, 3] {
            let kind = EventKind::Kick(Kick {
                ifindex: 5,
                queue: 0,
                vm: 1,
                vcpu: 0,
                clock: Split::default(),
                worker: None,
                preempted_by: 0,
            });
            let event = Event { ts: ts * 1_000_000_000, stream: StreamId::HOST, cpu: 0, kind };
            session.take(&mut EventWithPayload { event, payload: Vec::new() });
        }
        let counters = Counters { lost: vec![10, 0, 20], missed: 300, ..Counters::default() };
        let progress = session.progress(Duration::from_secs(1), &counters);
        assert_eq!((progress.events, progress.lost), (5, 332));
    }

    #[test]
    fn missed_runs_of_probes_are_losses() {
        let mut counters = Counters::default();
        let mut take = |lost: &[u64], missed| {
            let counts = Counts { lost: lost.to_vec(), missed, ..Counts::default() };
            add_counts(&mut counters, counts, 5)
        };
        assert_eq!(take(&[0, 0], 0), None);
        assert_eq!(take(&[0, 0], 2), Some(Lost { since: 5, count: 2 }));
        assert_eq!(take(&[0, 0], 2), None);
        assert_eq!(take(&[1, 3], 3), Some(Lost { since: 5, count: 5 }));
        assert_eq!((counters.missed, counters.lost_or_missed()), (3, 7));
    }
}
