//! A VM's requests, queues and bursts over the trace: see [`teiji_model::over_time`].

use crate::stats::Series;
use teiji_model::over_time::{Bursts, DepthBin, OverTime, RequestBin, SIZES};
use teiji_model::report::Burst;
use teiji_model::stage::{Actor, Split, Stage, ThreadState};

/// How many of the largest bursts are kept.
const LARGEST: usize = 16;

/// What the oldest packet of a burst waited for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waited {
    /// When it was put on the tap, ns.
    pub(crate) enqueued: u64,
    /// How long the worker needed to take it, ns, and what the worker did meanwhile, if that is known.
    pub(crate) worker: (u64, Option<Split>),
    /// The same of the vCPU, from the interrupt to the guest entry.
    pub(crate) vcpu: (u64, Option<Split>),
}

/// See the module.
#[derive(Clone)]
pub(crate) struct OverTimeStats {
    /// When the trace began, ns.
    started: u64,
    over_time: OverTime,
    signals: Series,
    arrivals: Series,
    sizes: [u64; SIZES],
    largest: Vec<Burst>,
}

impl OverTimeStats {
    pub(crate) fn new(started: u64) -> Self {
        OverTimeStats {
            started,
            over_time: OverTime::default(),
            signals: Series::default(),
            arrivals: Series::default(),
            sizes: [0; SIZES],
            largest: Vec::new(),
        }
    }

    /// A complete request that the host received at `start`, by stage.
    pub(crate) fn request(&mut self, start: u64, total: u64, stages: [u64; Stage::COUNT]) {
        self.over_time.requests.add(&RequestBin::of(start.saturating_sub(self.started), total, stages));
    }

    /// A packet is taken off a tap, with `depth` packets behind it.
    pub(crate) fn dequeue(&mut self, now: u64, depth: u64) {
        self.over_time.depth.add(&DepthBin::of(now.saturating_sub(self.started), depth));
    }

    /// A worker signals the guest, having taken so many packets since its last signal.
    pub(crate) fn signal(&mut self, packets: u64) {
        self.signals.record(packets);
    }

    /// The guest gets so many packets at once.
    pub(crate) fn arrival(&mut self, now: u64, packets: u64, oldest: &Waited) {
        self.arrivals.record(packets);
        self.sizes[Bursts::class(packets)] += 1;
        let waited = now.saturating_sub(oldest.enqueued);
        let rank = |packets, waited| (packets, waited);
        let full = self.largest.len() == LARGEST;
        let least = self.largest.last().map_or((0, 0), |last| rank(last.packets, last.waited));
        if packets < 2 || full && rank(packets, waited) <= least {
            return;
        }
        self.largest.truncate(LARGEST - 1);
        let (actor, (time, split)) = if oldest.vcpu.0 > oldest.worker.0 {
            (Actor::Vcpu, oldest.vcpu)
        } else {
            (Actor::Worker, oldest.worker)
        };
        let most = |split: Split| ThreadState::ALL.into_iter().rev().max_by_key(|state| split.get(*state));
        let state = split.filter(|split| split.total() > 0).and_then(most);
        let burst = Burst {
            at: now.saturating_sub(self.started),
            packets,
            waited,
            actor: (time > 0).then_some(actor),
            state: state.filter(|_| time > 0),
            in_state: state.zip(split).map_or(time, |(state, split)| split.get(state).min(time)),
        };
        let place = self.largest.partition_point(|b| rank(b.packets, b.waited) >= rank(packets, waited));
        self.largest.insert(place, burst);
    }

    /// See [`Series::pack`].
    pub(crate) fn pack(&mut self) {
        self.signals.pack();
        self.arrivals.pack();
    }

    /// What requests and queues did, and the bursts, if there was a signal.
    pub(crate) fn report(self) -> (OverTime, Option<Bursts>) {
        let bursts = self.signals.depth().map(|signals| Bursts {
            signals,
            arrivals: self.arrivals.depth().unwrap_or_default(),
            sizes: self.sizes,
            largest: self.largest,
        });
        (self.over_time, bursts)
    }
}
