//! Turns a stream of events into a report: joining, statistics, causes.
//!
//! ```text
//!  Event ─► clock of its stream ─► sort ─► join ─► Joined ─► (waterfall, Perfetto)
//!  Change ──────────────────────────────────┘│
//!                                            ▼
//!                                       vm_stats ─► stats, finding, verdict ─► Report
//! ```
//!
//! | module | does |
//! | --- | --- |
//! | `streams` | puts the times of guests' events on the host's clock |
//! | [`sort`] | puts the events of several streams and CPUs into one order |
//! | `join` | joins events into packets, packets into requests, requests into calls |
//! | `vm_stats`, `inside_stats`, `call_stats`, `outgoing_stats`, `passthrough_stats`, `threads_stats`, `stats` | statistics in bounded memory |
//! | `left_out` | how many requests are in no figure, and why |
//! | `typical` | requests that a report shows by themselves beside the slowest |
//! | [`interval`] | what was completed since a trace was last looked at |
//! | `over_time` | requests, queues and bursts over the trace |
//! | [`guest_cells`] | the time in the guest in finer parts, for the causes |
//! | [`finding`] | what makes requests slow: one file for each cause, and their table |
//! | [`verdict`] | ranks the causes and names the first; its documentation defines the rule |
//! | [`diagnose`] | what is wrong with VMs by the kernel's own counters, without a trace |
//! | [`numa`] | which memory of VMs is remote from their threads |
//! | [`absence`] | why there is no complete request |
//! | [`sip`] | finds the fields of a SIP message by which requests are matched |
//! | `learnt_count` | how often a device reports a packet |
//! | `lost` | the times at which events were lost |
//! | `expiring` | bounded maps whose oldest entries expire |
//! | `heaviest` | the keys with the largest sums |
//! | [`threads`] | which thread an id means at a time |
//! | `hash` | a fast hash for tables whose keys come from guests' packets |
//!
//! There is no I/O and no clock: the time is that of the events. Memory is bounded for any length and content of the
//! trace; what is given up for lack of room is counted ([`Losses`]). Uncertain pairs are not joined: see the counts of
//! [`RequestCounts`](teiji_model::report::RequestCounts).
#![forbid(unsafe_code)]

pub mod absence;
mod call_stats;
pub mod diagnose;
mod expiring;
pub mod finding;
pub mod guest_cells;
mod hash;
mod heaviest;
mod inside_stats;
pub mod interval;
mod join;
mod learnt_count;
mod left_out;
mod lost;
pub mod numa;
mod outgoing_stats;
mod over_time;
mod passthrough_stats;
pub mod sip;
pub mod sort;
mod stats;
mod streams;
pub mod threads;
mod threads_stats;
mod typical;
pub mod verdict;
mod vm_stats;

use hash::{Map, Seeded};
use sort::{Refused, Sorter};
use std::collections::{BTreeMap, VecDeque};
use streams::Streams;
use teiji_model::event::{self, Event, EventKind, NicCounter};
use teiji_model::flow::Matching;
use teiji_model::host::Vm;
use teiji_model::report::{
    Counters, DropLocation, Joined, MAX_VMS, Meta, NicLosses, PassthroughRequest, Report, SCHEMA, VmReport,
};
use teiji_model::stream::{Change, Changed, Item};

/// The greatest number of events that wait to be sorted. An event has 128 bytes: 34 MB, and up to 8 kB for each CPU, but
/// never more than 67 MB. Measured at a million events per second: 35 MB with 1024 CPUs, 45 MB with 128 CPUs whose
/// events come in no order.
const MAX_WAITING: usize = 1 << 18;
/// The greatest number of changes that wait until the events before them are joined.
const MAX_CHANGES: usize = 4096;

/// The greatest number of drop reasons whose names are stored.
const MAX_DROP_NAMES: usize = 4096;
/// The greatest number of counters of NICs that are stored.
const MAX_NIC_LOSSES: usize = 4096;

/// How long a request waits for its response, ns, unless [`Options::request_ttl`] says otherwise; one that comes later belongs to no
/// request. 32 s for SIP (64 T1, RFC 3261), else 5 s.
pub fn request_ttl(matching: Matching) -> u64 {
    if matching == Matching::Sip { 32_000_000_000 } else { 5_000_000_000 }
}

/// Settings of an [`Analyzer`]. The defaults suit a live trace; use them with `..Options::default()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A secret for each run, so that guests cannot choose where their packets are stored in tables.
    pub seed: u64,
    /// How far events may be out of order, ns. The time of an event is taken before the event is handed over. In between
    /// a hypervisor below the host can stop the CPU, for some 100 ms if that is busy, and a preemptible kernel can preempt
    /// the thread, or hold it up (a quota). Of a signal that is suppressed the time is taken long before it is handed over:
    /// see [`teiji_model::event`].
    pub reorder: u64,
    /// How long a packet may be on its path, ns.
    pub packet_ttl: u64,
    /// How long a request may wait for its response, ns; `None` means [`request_ttl`].
    pub request_ttl: Option<u64>,
    /// How long after its last event a packet that was handed to a device counts as on its path, ns.
    pub quiet: u64,
    /// Whether the threads of each request are described in [`Joined`], not only of those in the report.
    pub timelines: bool,
    /// Whether complete requests by NICs that were given to VMs are kept for [`Analyzer::passthrough`].
    pub passthrough: bool,
    /// The report shows, for each VM, the first complete request that was received this long after the trace began, or
    /// later, ns.
    pub chosen: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            reorder: 500_000_000,
            packet_ttl: 5_000_000_000,
            request_ttl: None,
            quiet: 10_000_000,
            timelines: false,
            passthrough: false,
            chosen: None,
        }
    }
}

/// What the analysis had to leave out; all zero if the trace went well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Events that came after later events had been joined. A late signal costs its own packets; any other late event
    /// counts as a loss of that time.
    pub late: u64,
    /// Those of them that came within [`Options::reorder`], but after too many others had come: late for lack of room.
    pub late_no_room: u64,
    /// Packets, requests and calls given up early because too many were followed at once.
    pub evicted: u64,
    /// Splits by state that did not add up to their stage, and were dropped.
    pub splits_dropped: u64,
}

/// Joins events into requests and, at the end, makes a report.
///
/// Events have to be pushed in the order of their times within [`Options::reorder`].
#[derive(Clone)]
pub struct Analyzer {
    meta: Meta,
    sorter: Sorter,
    joiner: join::Joiner,
    streams: Streams,
    /// By time.
    changes: VecDeque<Change>,
    /// When each VM of `meta` came and ended, ns; `None`: before and after the trace.
    lifetimes: Vec<(Option<u64>, Option<u64>)>,
    /// VMs that came when there was no room for more.
    left_out: u64,
    drop_names: Map<u32, [u8; 32]>,
    /// Packets that NICs lost, by the NIC's index and its counter.
    nic_losses: BTreeMap<(u32, NicCounter), u64>,
}

impl Analyzer {
    /// An analyzer for the VMs of `meta`.
    pub fn new(meta: &Meta, options: Options) -> Self {
        Analyzer {
            meta: meta.clone(),
            sorter: Sorter::new(options.reorder, MAX_WAITING),
            joiner: join::Joiner::new(meta, &options),
            streams: Streams::default(),
            changes: VecDeque::new(),
            lifetimes: vec![(None, None); meta.vms.len()],
            left_out: 0,
            drop_names: Map::with_hasher(Seeded::new(options.seed)),
            nic_losses: BTreeMap::new(),
        }
    }

    /// Adds an event or a change, as [`Analyzer::push`] and [`Analyzer::change`] do. Returns whether it is used.
    pub fn take(&mut self, item: Item, joined: &mut dyn FnMut(&Joined)) -> bool {
        match item {
            Item::Event(event) => self.push(event, joined),
            Item::Change(change) => {
                self.change(change);
                true
            }
            Item::Observed(_) | Item::Sample(_) => false,
        }
    }

    /// Adds a change: it applies to the events from its time on, whenever they are pushed.
    pub fn change(&mut self, change: Change) {
        if let Changed::Clock { stream, vm, mapping } = change.what {
            // Its events are mapped as soon as they come.
            if self.streams.set(stream, vm, mapping) {
                self.joiner.guest_clock(stream, vm, change.ts, mapping.error);
            }
            return;
        }
        if self.changes.len() >= MAX_CHANGES
            && let Some(oldest) = self.changes.pop_front()
        {
            self.apply(oldest);
        }
        let at = self.changes.partition_point(|other| other.ts <= change.ts);
        self.changes.insert(at, change);
    }

    /// Adds an event. Calls `joined` for every request that can now be completed: those of about [`Options::reorder`] earlier.
    /// The [`Joined`] is reused: clone it to keep it.
    ///
    /// Returns false only if a guest's event is refused: it came too late, there was no room, or its clock is not known. A late
    /// event of the host counts as lost (a thread's name is used nevertheless), and returns true.
    pub fn push(&mut self, event: Event, joined: &mut dyn FnMut(&Joined)) -> bool {
        let used = event.stream.is_host() || self.push_of_guest(event);
        if event.stream.is_host() {
            self.push_of_host(event);
        }
        while let Some(event) = self.sorter.pop() {
            self.join(&event, joined);
        }
        used
    }

    /// An event of a guest cannot be trusted: if it is refused, only that guest's own view has a hole. A replay does not get a refused
    /// event, so it must leave nothing here: who pushes it also pushes an [`EventKind::Lost`], which is recorded.
    fn push_of_guest(&mut self, event: Event) -> bool {
        let on_hosts_clock = self.streams.on_hosts_clock(event);
        if let EventKind::Lost(lost) = event.kind {
            self.streams.lost(event.stream, lost.count);
            if let Some(Event { ts: until, kind: EventKind::Lost(lost), .. }) = on_hosts_clock {
                self.joiner.guest_lost(event.stream, lost.since, until);
            }
            return true;
        }
        let used = on_hosts_clock.is_some_and(|event| self.sorter.push(event).is_ok());
        if used {
            self.streams.count(event.stream);
        }
        used
    }

    fn push_of_host(&mut self, event: Event) {
        match event.kind {
            // Immediately, because requests of that time may be completed before this event would be its turn.
            EventKind::Lost(lost) => self.joiner.lost(lost.since, event.ts),
            EventKind::DropName(d) => {
                if self.drop_names.len() < MAX_DROP_NAMES || self.drop_names.contains_key(&d.why) {
                    self.drop_names.insert(d.why, d.name);
                }
            }
            EventKind::NicLoss(loss) => {
                let key = (loss.ifindex, loss.counter);
                if self.nic_losses.len() < MAX_NIC_LOSSES || self.nic_losses.contains_key(&key) {
                    let packets = self.nic_losses.entry(key).or_default();
                    *packets = packets.saturating_add(loss.packets);
                }
            }
            // What is missing of a vCPU's states, or of a thread's starts, shows by the next one.
            EventKind::VcpuState(_) | EventKind::Start(_) | EventKind::Wait(_)
                if self.sorter.is_late(event.ts) =>
            {
                self.joiner.late_reading(&event.kind);
            }
            // A name that comes late is no loss.
            EventKind::ThreadName(name) if self.sorter.is_late(event.ts) => self.joiner.name_thread(&name),
            _ => {
                if let Err(Refused::Late(released)) = self.sorter.push(event) {
                    match event.kind {
                        // Nothing but the packets of that signal is in doubt.
                        EventKind::Interrupt(i) => self.joiner.late_interrupt(&i),
                        _ => self.joiner.lost(event.ts, released),
                    }
                }
            }
        }
    }

    /// Joins the next event, after the changes up to its time.
    fn join(&mut self, event: &Event, joined: &mut dyn FnMut(&Joined)) {
        while self.changes.front().is_some_and(|change| change.ts <= event.ts) {
            if let Some(change) = self.changes.pop_front() {
                self.apply(change);
            }
        }
        if event.stream.is_host() {
            self.joiner.event(event, joined);
        } else {
            self.joiner.of_guest(event);
        }
    }

    /// The requests by NICs that were given to VMs that were completed since the last call, with [`Options::passthrough`]; of more
    /// than 65,536 the latest.
    pub fn passthrough(&mut self) -> Vec<PassthroughRequest> {
        self.joiner.passthrough.fetch()
    }

    fn apply(&mut self, change: Change) {
        let there = |this: &Self, pid| {
            let running = this.meta.vms.iter().zip(&this.lifetimes);
            running.into_iter().position(|(vm, (_, ended))| vm.pid == pid && ended.is_none())
        };
        match change.what {
            Changed::Vm(vm) => match there(self, vm.pid) {
                Some(index) => {
                    self.joiner.set_vm(index, &vm);
                    self.meta.vms[index] = *vm;
                }
                None if self.meta.vms.len() < MAX_VMS => {
                    self.joiner.add_vm(&vm);
                    self.meta.vms.push(*vm);
                    self.lifetimes.push((Some(change.ts), None));
                }
                None => self.left_out += 1,
            },
            Changed::Ended { pid } => {
                if let Some(index) = there(self, pid) {
                    let gone = Vm { nics: Vec::new(), ..self.meta.vms[index].clone() };
                    self.joiner.set_vm(index, &gone);
                    self.lifetimes[index].1 = Some(change.ts);
                    // Those that had ended before as well: their last requests may have come after their end.
                    for (index, _) in
                        self.lifetimes.iter().enumerate().filter(|(_, (_, ended))| ended.is_some())
                    {
                        self.joiner.pack(index);
                    }
                    self.joiner.forget_given(pid);
                    for stream in self.streams.of(pid) {
                        self.sorter.forget(stream);
                        self.joiner.forget_guest(stream);
                    }
                }
            }
            Changed::Given { pid, nics } => {
                if let Some(index) = there(self, pid) {
                    self.joiner.set_given(index, pid, &nics);
                }
            }
            Changed::Clock { .. } => {}
        }
    }

    /// What had to be left out so far.
    pub fn losses(&self) -> Losses {
        Losses {
            late: self.sorter.late(),
            late_no_room: self.sorter.late_no_room(),
            evicted: self.joiner.common.evicted,
            splits_dropped: self.joiner.common.splits_dropped,
        }
    }

    /// The report as it would be if the trace ended now. Copies what is followed: tens of MB at most.
    pub fn snapshot(&self, counters: Counters) -> Report {
        self.clone().finish(counters, &mut |_| {})
    }

    /// Ends the trace: completes the requests that can be completed. [`Analyzer::finish`] does so, too.
    pub fn end(&mut self, counters: &Counters, joined: &mut dyn FnMut(&Joined)) {
        while let Some(event) = self.sorter.flush() {
            // A guest may claim any time.
            if event.stream.is_host() || event.ts <= counters.ended {
                self.join(&event, joined);
            }
        }
        while let Some(change) = self.changes.pop_front() {
            self.apply(change);
        }
        self.joiner.finish(counters.ended, joined);
    }

    /// Ends the trace: completes the requests that can be completed, and makes the report. It repeats `counters`.
    pub fn finish(mut self, counters: Counters, joined: &mut dyn FnMut(&Joined)) -> Report {
        self.end(&counters, joined);
        let common = self.joiner.common;
        let names = Names { meta: &self.meta, drop_sites: common.drop_sites, drop_reasons: self.drop_names };
        let length = counters.ended.saturating_sub(self.meta.started);
        let (thread, location) = (|thread| common.threads.name(thread), |number| names.location(number));
        let started = self.meta.started;
        let after = |ts: Option<u64>| ts.map(|ts| ts.saturating_sub(started));
        let mut vms = Vec::new();
        for ((stats, vm), (came, ended)) in
            common.vm_stats.into_iter().zip(&self.meta.vms).zip(&self.lifetimes)
        {
            let there = ended.unwrap_or(counters.ended).saturating_sub(came.unwrap_or(started)).min(length);
            let report = stats.report(vm, there, &thread, &location);
            vms.push(VmReport { came: after(*came), ended: after(*ended), ..report });
        }
        let (late, late_no_room) = (self.sorter.late(), self.sorter.late_no_room());
        let (not_followed, skipped_signals) = (self.left_out, common.skipped_signals);
        let guests = self.streams.report();
        let nic_losses = self.nic_losses.iter().map(|((index, counter), packets)| NicLosses {
            device: names.device(*index),
            counter: *counter,
            packets: *packets,
        });
        let nic_losses = nic_losses.collect();
        let meta = self.meta;
        Report {
            schema: SCHEMA,
            meta,
            counters,
            late,
            late_no_room,
            skipped_signals,
            not_followed,
            nic_losses,
            guests,
            vms,
        }
    }
}

/// The names of what a report mentions by number.
struct Names<'a> {
    meta: &'a Meta,
    drop_sites: join::DropSites,
    drop_reasons: Map<u32, [u8; 32]>,
}

impl Names<'_> {
    /// A device's name by its index; empty for index 0, which is no device.
    fn device(&self, index: u32) -> String {
        let nics = self.meta.vms.iter().flat_map(|v| &v.nics).map(|n| (n.ifindex, &n.tap));
        let mut all = self.meta.devices.iter().map(|(i, name)| (*i, name)).chain(nics);
        let found = all.find(|(i, _)| *i == index).map(|(_, name)| name.clone());
        found.unwrap_or_else(|| if index == 0 { String::new() } else { format!("device {index}") })
    }

    /// Where and why the kernel dropped a packet, by the number of the drop.
    fn location(&self, number: u16) -> Option<DropLocation> {
        let (location, why, index) = self.drop_sites.get(number)?;
        if number == join::OTHER_DROPS {
            return Some(DropLocation {
                why: "more kinds of drops than are told apart".into(),
                ..DropLocation::default()
            });
        }
        Some(DropLocation {
            location: event::name(location),
            why: self.drop_reasons.get(why).map_or_else(|| format!("reason {why}"), |n| event::name(n)),
            device: self.device(*index),
        })
    }
}
