//! The statistics of one VM's packets and requests: counts, distributions, shares, the slowest requests.

use crate::call_stats::CallStats;
use crate::finding::RuleInput;
use crate::guest_cells::GuestCells;
use crate::hash::Seeded;
use crate::heaviest::Heaviest;
use crate::inside_stats::InsideStats;
use crate::join::{Divided, Exclusion};
use crate::left_out::LeftOutCounts;
use crate::outgoing_stats::OutgoingStats;
use crate::over_time::OverTimeStats;
use crate::passthrough_stats::PassthroughStats;
use crate::stats::{Series, Shares};
use crate::threads::{Thread, Threads};
use crate::threads_stats::ThreadStats;
use crate::typical::{Chosen, Typical};
use crate::verdict;
use teiji_model::event::Packet;
use teiji_model::host::Vm;
use teiji_model::report::{
    Connections, DirectionReport, DropLocation, Joined, LargePackets, LeftOut, Outcome, PartReport, Request,
    RequestCounts, StageReport, VmReport,
};
use teiji_model::stage::{Stage, ThreadState};

/// How many of the slowest requests are kept.
const SLOWEST: usize = 10;
const STATES: usize = ThreadState::COUNT;
const CELLS: usize = Stage::COUNT * STATES;

/// The stages of packets towards the guest, and from it.
const INBOUND: [Stage; 5] = [Stage::SwitchIn, Stage::TapQueue, Stage::VhostRx, Stage::Irq, Stage::VcpuWake];
const OUTBOUND: [Stage; 4] = [Stage::VhostTx, Stage::SwitchOut, Stage::Qdisc, Stage::WireOut];

/// Packets in one direction.
#[derive(Clone, Default)]
pub(crate) struct DirectionStats {
    pub(crate) packets: u64,
    pub(crate) incomplete: u64,
    pub(crate) dropped: u64,
    large: LargePackets,
    /// In the order of the direction's stages.
    pub(crate) stages: [Series; 5],
}

impl DirectionStats {
    /// A packet is put on a tap, or was sent by a guest.
    pub(crate) fn on_tap(&mut self, p: &Packet) {
        let segments = u64::from(p.segments());
        if segments > 1 {
            self.large.packets += 1;
            self.large.segments = self.large.segments.saturating_add(segments);
            self.large.largest = self.large.largest.max(segments);
        }
    }

    fn report(&self, stages: &[Stage]) -> DirectionReport {
        let with_values = stages.iter().zip(&self.stages).filter(|(_, s)| s.count() > 0);
        DirectionReport {
            packets: self.packets,
            incomplete: self.incomplete,
            dropped: self.dropped,
            large: self.large,
            stages: with_values.map(|(stage, s)| (*stage, s.dist())).collect(),
        }
    }
}

/// Divides the `median` of a stage among its parts, in proportion to their times, each of which counts as `median` at most, so that a
/// few slow requests do not decide. What is left over belongs to requests of which the states of the thread are not known: these have
/// no parts.
fn divide_median(stage: &Series, median: u64, parts: &[Series]) -> Vec<u64> {
    let times: Vec<f64> = parts.iter().map(|part| part.capped_sum(median)).collect();
    // The parts of a request that took longer may count with more than the stage.
    let all = times.iter().sum::<f64>().max(stage.capped_sum(median)).max(1.0);
    times.iter().map(|time| (median as f64 * time / all) as u64).collect()
}

/// See the module.
#[derive(Clone)]
pub(crate) struct VmStats {
    pub(crate) requests: RequestCounts,
    pub(crate) connections: Connections,
    /// Why requests are not complete.
    left_out: LeftOutCounts,
    /// Requests that the guest itself sent.
    pub(crate) outgoing: OutgoingStats,
    /// The NICs that it was given.
    pub(crate) passthrough: PassthroughStats,
    pub(crate) inbound: DirectionStats,
    pub(crate) outbound: DirectionStats,
    pub(crate) depth: Series,
    pub(crate) calls: CallStats,
    total: Series,
    stages: [Series; Stage::COUNT],
    shares: Shares<{ Stage::COUNT }>,
    /// Shares by stage and state.
    cells: Shares<CELLS>,
    /// Durations by stage and state, for stages with a split.
    cell_series: Vec<Series>,
    slowest: Vec<Request>,
    pub(crate) over_time: OverTimeStats,
    pub(crate) inside: InsideStats,
    pub(crate) threads: ThreadStats,
    typical: Typical,
    chosen: Chosen,
    guest_cells: GuestCells,
    /// How long others waited while a thread had their CPU, ns, by stage and thread; and by stage alone.
    waits: Heaviest<(Stage, Thread)>,
    waited: [u64; Stage::COUNT],
}

impl VmStats {
    /// For a trace that began at `started`; `chosen` is [`crate::Options::chosen`].
    pub(crate) fn new(hasher: Seeded, started: u64, chosen: Option<u64>) -> Self {
        VmStats {
            requests: RequestCounts::default(),
            connections: Connections::default(),
            left_out: LeftOutCounts::default(),
            outgoing: OutgoingStats::new(),
            passthrough: PassthroughStats::default(),
            inbound: DirectionStats::default(),
            outbound: DirectionStats::default(),
            depth: Series::default(),
            calls: CallStats::default(),
            total: Series::default(),
            stages: Default::default(),
            shares: Shares::new(),
            cells: Shares::new(),
            cell_series: (0..CELLS).map(|_| Series::default()).collect(),
            slowest: Vec::new(),
            over_time: OverTimeStats::new(started),
            inside: InsideStats::new(),
            threads: ThreadStats::new(hasher),
            typical: Typical::default(),
            chosen: Chosen::new(chosen.map(|after| started.saturating_add(after))),
            guest_cells: GuestCells::new(hasher),
            waits: Heaviest::new(hasher),
            waited: [0; Stage::COUNT],
        }
    }

    /// The VM has ended: see [`Series::pack`].
    pub(crate) fn pack(&mut self) {
        let VmStats { inbound, outbound, depth, total, stages, cell_series, .. } = self;
        let all = inbound.stages.iter_mut().chain(&mut outbound.stages).chain(stages).chain(cell_series);
        all.chain([depth, total]).for_each(Series::pack);
        self.calls.pack();
        self.outgoing.pack();
        self.passthrough.pack();
        self.over_time.pack();
        self.inside.pack();
        self.threads.pack();
    }

    /// Adds a request that is not complete.
    pub(crate) fn leave_out(&mut self, outcome: Outcome, exclusion: Exclusion) {
        self.left_out.add(outcome, exclusion, &mut self.requests);
    }

    /// Whether the report shows this request by itself, if no other takes its place.
    pub(crate) fn shows(&self, r: &Request) -> bool {
        self.is_slow(r) || self.typical.takes(r.total) || self.chosen.takes(r.start)
    }

    fn is_slow(&self, r: &Request) -> bool {
        self.slowest.len() < SLOWEST || self.slowest.last().is_some_and(|s| s.total < r.total)
    }

    /// Adds a complete request. The threads that preempted others are given by their numbers in `threads`.
    pub(crate) fn request(&mut self, joined: &Joined, divided: Option<&Divided>, threads: &Threads) {
        let r = &joined.request;
        self.guest_cells.add(r, divided, threads);
        let mut ns = [0; Stage::COUNT];
        let mut cells = [0; CELLS];
        for (i, s) in r.stages.iter().enumerate().take(Stage::COUNT) {
            ns[i] = s.ns;
            self.stages[i].record(s.ns);
            if let Some(split) = &s.split {
                let at = i * STATES..(i + 1) * STATES;
                for (series, ns) in self.cell_series[at.clone()].iter_mut().zip(split.0) {
                    series.record(ns);
                }
                cells[at].copy_from_slice(&split.0);
            }
        }
        self.total.record(r.total);
        self.over_time.request(r.start, r.total, ns);
        self.shares.record(&ns, r.total);
        self.cells.record(&cells, r.total);
        for (stage, number) in &joined.preempted_by {
            let waited = cells[*stage as usize * STATES + ThreadState::Ready as usize];
            self.waits.add((*stage, threads.thread(*number)), waited);
            let all = &mut self.waited[*stage as usize];
            *all = all.saturating_add(waited);
        }
        self.typical.add(r, &self.total);
        self.chosen.add(r);
        if self.is_slow(r) {
            self.slowest.truncate(SLOWEST - 1);
            let at = self.slowest.partition_point(|s| s.total >= r.total);
            self.slowest.insert(at, r.clone());
        }
    }

    fn stage_reports(&self) -> Vec<StageReport> {
        let part = |cell: usize, of_p50, state| PartReport {
            state,
            mean: self.cells.mean(cell),
            p50: self.cell_series[cell].median(),
            of_p50,
            time_share: self.cells.of_time(cell),
            fluctuation_share: self.cells.of_fluctuation(cell),
        };
        let stage = |(i, stage): (usize, Stage)| {
            let (at, dist) = (i * STATES, self.stages[i].dist());
            let of_p50 = divide_median(&self.stages[i], dist.p50, &self.cell_series[at..at + STATES]);
            let parts = ThreadState::ALL.into_iter().zip(of_p50).enumerate();
            let parts = parts.map(|(j, (state, of_p50))| part(at + j, of_p50, state));
            StageReport {
                stage,
                dist,
                time_share: self.shares.of_time(i),
                fluctuation_share: self.shares.of_fluctuation(i),
                parts: if stage.actor().is_some() { parts.collect() } else { Vec::new() },
            }
        };
        Stage::ALL.into_iter().enumerate().map(stage).collect()
    }

    /// The waits, each with the thread that had the CPU meanwhile: sorted, and complete for each stage.
    fn waits(&self) -> Vec<(Stage, Thread, u64)> {
        let mut waits: Vec<_> = self.waits.iter().map(|((stage, thread), ns)| (stage, thread, ns)).collect();
        for stage in Stage::ALL {
            let named =
                waits.iter().filter(|(of, ..)| *of == stage).fold(0u64, |a, (.., ns)| a.saturating_add(*ns));
            let rest = self.waited[stage as usize].saturating_sub(named);
            if rest > 0 {
                waits.push((stage, Thread::default(), rest));
            }
        }
        waits.sort_unstable();
        waits
    }

    /// The report for `vm`, after a trace of `length` ns. `name` returns a thread's name, `place` the place of a drop
    /// by its number.
    pub(crate) fn report(
        self,
        vm: &Vm,
        length: u64,
        name: &dyn Fn(Thread) -> String,
        location: &dyn Fn(u16) -> Option<DropLocation>,
    ) -> VmReport {
        let any = self.total.count() > 0;
        let total = any.then(|| self.total.dist());
        let stages = if any { self.stage_reports() } else { Vec::new() };
        let waits = self.waits();
        let (guest, guest_waits) = (self.guest_cells.report(), self.guest_cells.waits());
        let input = RuleInput {
            requests: &self.requests,
            total: total.as_ref(),
            stages: &stages,
            guest: &guest,
            guest_waits: &guest_waits,
            length,
            waits: &waits,
            name,
        };
        let (verdict, findings) = verdict::rank(&input);
        let (over_time, bursts) = self.over_time.report();
        VmReport {
            name: vm.name.clone(),
            pid: vm.pid,
            came: None,
            ended: None,
            requests: self.requests,
            left_out: self.left_out.report(LeftOut::new, location),
            total,
            stages,
            slowest: self.slowest,
            typical: self.typical.request,
            chosen: self.chosen.request,
            groups: self.calls.report(),
            connections: (self.connections.seen > 0).then_some(self.connections),
            outgoing: self.outgoing.report(location),
            passthrough: self.passthrough.report(location),
            inbound: self.inbound.report(&INBOUND),
            outbound: self.outbound.report(&OUTBOUND),
            depth: self.depth.depth(),
            over_time,
            bursts,
            inside: self.inside.report(),
            threads: self.threads.report(name),
            verdict,
            findings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::divide_median;
    use crate::stats::Series;
    use proptest::prelude::*;

    /// The median of a stage by its parts, from how many requests were of which kind. A kind has the time in each part; `None`: that
    /// it is not known, and the time of the stage.
    fn typical<const N: usize>(kinds: &[(u64, Result<[u64; N], u64>)]) -> (u64, Vec<u64>) {
        let (mut stage, mut parts) = (Series::default(), vec![Series::default(); N]);
        for (count, kind) in kinds {
            for _ in 0..*count {
                match kind {
                    Ok(split) => {
                        stage.record(split.iter().sum());
                        parts.iter_mut().zip(split).for_each(|(part, ns)| part.record(*ns));
                    }
                    Err(ns) => stage.record(*ns),
                }
            }
        }
        (stage.median(), divide_median(&stage, stage.median(), &parts))
    }

    fn percent(kinds: &[(u64, Result<[u64; 3], u64>)]) -> Vec<u64> {
        let (median, parts) = typical(kinds);
        parts.iter().map(|part| (part * 100 + median / 2) / median).collect()
    }

    #[test]
    fn a_thread_is_in_one_state_or_another_in_a_typical_request() {
        // Asleep, running, waiting. No state has a median above 0.
        assert_eq!(
            percent(&[(490, Ok([100_000, 0, 0])), (500, Ok([0, 100_000, 0])), (10, Ok([1, 1, 99_998]))]),
            [49, 50, 1]
        );
        assert_eq!(percent(&[(1000, Ok([60_000, 30_000, 10_000]))]), [60, 30, 10]);
    }

    #[test]
    fn a_few_slow_requests_do_not_decide_what_is_typical() {
        assert_eq!(
            percent(&[(496, Ok([100_000, 0, 0])), (496, Ok([0, 100_000, 0])), (8, Ok([0, 0, 50_000_000]))]),
            [50, 50, 1]
        );
    }

    #[test]
    fn time_whose_state_is_not_known_is_in_no_part() {
        assert_eq!(percent(&[(700, Err(100_000)), (300, Ok([100_000, 0, 0]))]), [30, 0, 0]);
        assert_eq!(percent(&[(700, Err(120_000)), (300, Ok([40_000, 20_000, 0]))]), [12, 6, 0]);
        // Those whose states are known are the slow ones.
        assert_eq!(percent(&[(990, Err(100_000)), (10, Ok([50_000_000, 0, 0]))]), [1, 0, 0]);
    }

    proptest! {
        #[test]
        fn the_parts_are_no_more_than_the_stage(
            splits in prop::collection::vec(prop::array::uniform3(0u64..10_000_000), 1..60),
            unknown in prop::collection::vec(0u64..10_000_000, 0..60),
        ) {
            let known = splits.into_iter().map(|split| (1, Ok(split)));
            let kinds: Vec<_> = known.chain(unknown.into_iter().map(|ns| (1, Err(ns)))).collect();
            let (median, parts) = typical(&kinds);
            prop_assert!(parts.iter().sum::<u64>() <= median);
        }
    }
}
