//! Turns a stream of events into a report: joining, statistics, causes.
//!
//! ```text
//!  Event ─► sort ─► join ─► Joined ─► (waterfall, Perfetto)
//!                    │
//!                    ▼
//!               vm_stats ─► stats, finding, verdict ─► Report
//! ```
//!
//! | module | does |
//! | --- | --- |
//! | [`sort`] | puts the events of several CPUs into one order |
//! | `join` | joins events into packets, packets into requests, requests into calls |
//! | `vm_stats`, `stats` | statistics in bounded memory |
//! | [`finding`] | what makes requests slow: one file for each cause, and their table |
//! | [`verdict`] | ranks the causes and names the first; its documentation defines the rule |
//! | [`absence`] | why there is no complete request |
//! | [`sip`] | finds the fields of a SIP message by which requests are matched |
//! | `learnt_count` | how often a device reports a packet |
//! | `lost` | the times at which events were lost |
//! | `expiring` | bounded maps whose oldest entries expire |
//! | `hash` | a fast hash for tables whose keys come from guests' packets |
//!
//! There is no I/O and no clock: the time is that of the events. Memory is bounded for any length and content of the
//! trace; what is given up for lack of room is counted ([`Losses`]). Uncertain pairs are not joined: see the counts of
//! [`RequestCounts`](teiji_model::report::RequestCounts).
#![forbid(unsafe_code)]

pub mod absence;
mod expiring;
pub mod finding;
mod hash;
mod join;
mod learnt_count;
mod lost;
pub mod sip;
pub mod sort;
mod stats;
pub mod verdict;
mod vm_stats;

use hash::{Map, Seeded};
use sort::Sorter;
use teiji_model::event::{self, Event, EventKind, ThreadName};
use teiji_model::report::{Counters, DropLocation, Joined, Meta, Report, SCHEMA};

/// The greatest number of events that wait to be sorted. An event has 128 bytes: 34 MB, and up to 8 kB for each CPU, but
/// never more than 67 MB. Measured at a million events per second: 35 MB with 1024 CPUs, 45 MB with 128 CPUs whose
/// events come in no order.
const MAX_WAITING: usize = 1 << 18;
/// The greatest number of threads whose names are stored.
const MAX_NAMES: usize = 1 << 16;

/// The greatest number of drop reasons whose names are stored.
const MAX_DROP_NAMES: usize = 4096;

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
    /// How long a request may wait for its response, ns; `None` means 32 s for SIP (64 T1), otherwise 5 s.
    pub request_ttl: Option<u64>,
    /// How long after its last event a packet that was handed to a device counts as on its path, ns.
    pub quiet: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            reorder: 500_000_000,
            packet_ttl: 5_000_000_000,
            request_ttl: None,
            quiet: 10_000_000,
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
    names: Map<u32, ThreadName>,
    drop_names: Map<u32, [u8; 32]>,
}

impl Analyzer {
    /// An analyzer for the VMs of `meta`.
    pub fn new(meta: &Meta, options: Options) -> Self {
        Analyzer {
            meta: meta.clone(),
            sorter: Sorter::new(options.reorder, MAX_WAITING),
            joiner: join::Joiner::new(meta, &options),
            names: Map::with_hasher(Seeded::new(options.seed)),
            drop_names: Map::with_hasher(Seeded::new(options.seed)),
        }
    }

    /// Adds an event, and calls `joined` for every request that can now be completed: those of about
    /// [`Options::reorder`] earlier. The [`Joined`] is reused: clone it to keep it.
    pub fn push(&mut self, event: Event, joined: &mut dyn FnMut(&Joined)) {
        match event.kind {
            // Immediately, because requests of that time may be completed before this event would be its turn.
            EventKind::Lost(lost) => self.joiner.lost(lost.since, event.ts),
            EventKind::ThreadName(thread_name) => {
                if self.names.len() < MAX_NAMES || self.names.contains_key(&thread_name.tid) {
                    self.names.insert(thread_name.tid, thread_name);
                }
            }
            EventKind::DropName(d) => {
                if self.drop_names.len() < MAX_DROP_NAMES || self.drop_names.contains_key(&d.why) {
                    self.drop_names.insert(d.why, d.name);
                }
            }
            _ => {
                if let Err(released) = self.sorter.push(event) {
                    match event.kind {
                        // Nothing but the packets of that signal is in doubt.
                        EventKind::Interrupt(i) => self.joiner.late_interrupt(&i),
                        _ => self.joiner.lost(event.ts, released),
                    }
                }
            }
        }
        while let Some(event) = self.sorter.pop() {
            self.joiner.event(&event, joined);
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

    /// Ends the trace: completes the requests that can be completed, and makes the report. It repeats `counters`.
    pub fn finish(mut self, counters: Counters, joined: &mut dyn FnMut(&Joined)) -> Report {
        while let Some(event) = self.sorter.flush() {
            self.joiner.event(&event, joined);
        }
        self.joiner.finish(counters.ended, joined);
        let common = self.joiner.common;
        let names = Names {
            meta: &self.meta,
            threads: self.names,
            drop_sites: common.drop_sites,
            drop_reasons: self.drop_names,
        };
        let length = counters.ended.saturating_sub(self.meta.started);
        let (thread, location) = (|tid| names.thread(tid), |number| names.location(number));
        let vm_stats = common.vm_stats.into_iter().zip(&self.meta.vms);
        let vms = vm_stats.map(|(stats, vm)| stats.report(vm, length, &thread, &location)).collect();
        let (late, late_no_room) = (self.sorter.late(), self.sorter.late_no_room());
        Report { schema: SCHEMA, meta: self.meta, counters, late, late_no_room, vms }
    }
}

/// The names of what a report mentions by number.
struct Names<'a> {
    meta: &'a Meta,
    threads: Map<u32, ThreadName>,
    drop_sites: join::DropSites,
    drop_reasons: Map<u32, [u8; 32]>,
}

impl Names<'_> {
    /// A thread's name, empty if not known.
    fn thread(&self, tid: u32) -> String {
        self.threads.get(&tid).map(ThreadName::name).unwrap_or_default()
    }

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
