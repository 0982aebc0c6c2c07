//! From a stream of events to a report: joining, statistics, blame. No I/O, no clock.
#![forbid(unsafe_code)]

pub mod sip;

use teiji_model::event::Event;
use teiji_model::report::{Counters, Joined, Meta, Report};

/// Settings of an [`Analyzer`]. The defaults suit a live trace; take them with `..Options::default()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Per-run secret that keeps guests from choosing where their packets land in tables.
    pub seed: u64,
    /// How far events of different CPUs may be out of order, ns.
    pub reorder: u64,
    /// How long a packet may be on its way, ns.
    pub packet_ttl: u64,
    /// How long a request may be without its response, ns; `None`: 32 s for SIP (64 T1), else 5 s.
    pub request_ttl: Option<u64>,
    /// How long a packet must have been handed to a device with nothing more seen of it before it counts
    /// as gone, ns.
    pub quiet: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            reorder: 100_000_000,
            packet_ttl: 5_000_000_000,
            request_ttl: None,
            quiet: 10_000_000,
        }
    }
}

/// Turns events into requests and, at the end, into a report.
pub struct Analyzer {
    meta: Meta,
}

impl Analyzer {
    /// An analyzer for the VMs of `meta`.
    pub fn new(meta: &Meta, _options: Options) -> Self {
        Analyzer { meta: meta.clone() }
    }

    /// Takes an event; calls `joined` for every request that it completes.
    pub fn push(&mut self, _event: Event, _joined: &mut dyn FnMut(&Joined)) {}

    /// Ends the trace.
    pub fn finish(self, counters: Counters, _joined: &mut dyn FnMut(&Joined)) -> Report {
        Report { schema: teiji_model::report::SCHEMA, meta: self.meta, counters, vms: Vec::new() }
    }
}
