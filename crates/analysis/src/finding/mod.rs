//! What makes requests slow: one file for each cause, and the table of them.
//!
//! ```text
//!  stages, states ─► rule: whose evidence is it ─► candidate: shares, places ─► rank ─► Finding: doubts, remedy
//! ```
//! A `Rule` says which parts of the path are its evidence, what they mean for people, and what shortens them. Every
//! part of a stage belongs to exactly one cause, so that the shares of the causes add up like those of the stages. A
//! part is the time of a stage, or the part of it that its thread spent in one state; the remainder of a split is a
//! part without a state. If the guest reports events, the stage `guest` has finer parts (`Row`), each of which belongs to exactly
//! one cause as well. Evidence in several stages may belong to one cause: a vhost worker waits for its CPU in
//! `tap_queue` and in `vhost_tx`.
//!
//! [`rank`](crate::verdict) sorts the causes. The findings are the cause that the verdict names, and every other cause
//! that has a part with at least [`SIGNIFICANT_SHARE`](teiji_model::finding::SIGNIFICANT_SHARE) of the time or of the fluctuation.
//!
//! # Confidence
//! Shares are measured, so a finding is certain except for what was not measured. Each of these is a doubt: fewer than
//! [`MIN_REQUESTS`] complete requests; more than a tenth of the requests in no figure; a part for which the state of the thread
//! is not known. No doubt means high confidence, one means medium, more mean low.

mod application;
mod driver_hand_over;
mod frames_wait_for_worker;
mod guest_halts;
mod guest_runs;
mod guest_time;
mod interrupt_delivery;
mod interrupt_not_taken;
mod interrupt_waits;
mod link_queue;
mod packet_waits_for_halted_vcpu;
mod packets_wait_for_worker;
mod reader_waits_in_guest;
mod receive_path;
mod ring_fill;
mod thread_per_request;
mod transmit_path;
mod unattributed;
mod vcpu_exits;
mod vcpu_polls;
mod vcpu_waits_for_cpu;
mod vcpu_wake_up;
mod worker_busy;
mod worker_waits_for_cpu;
mod worker_wake_up;

use crate::guest_cells::{GuestCell, Row};
use crate::threads::Thread;
use std::collections::BTreeMap;
use teiji_model::finding::{Cause, Confidence, Evidence, Finding, PolicyChange, Preemptor, Remedy};
use teiji_model::reason::Blame;
use teiji_model::report::{Dist, RequestCounts, StageReport};
use teiji_model::stage::{Actor, Stage, ThreadState as State};
use teiji_model::text::percent;

/// The number of requests below which fluctuation is not judged.
pub const MIN_REQUESTS: u64 = 20;
/// The share of requests in no figure above which there is a doubt: a tenth.
const LEFT_OUT: f64 = 0.1;
/// The greatest number of preempting threads that are named.
const MAX_PREEMPTORS: usize = 5;
/// The share below which a part is left out of the evidence if there is a larger part.
const MIN_EVIDENCE_SHARE: f64 = 0.01;

/// A cause: where it is seen, what it means, what shortens it.
pub(crate) struct Rule {
    pub(crate) cause: Cause,
    /// The cause in at most six words.
    pub(crate) title: &'static str,
    /// Who is to blame.
    pub(crate) blame: Blame,
    /// The parts of the path that are its evidence. A stage that no thread carries has no state.
    parts: &'static [(Stage, Option<State>)],
    /// The kinds of time in the guest that are its evidence, if the guest reports events: instead of the stage `guest`.
    inside: &'static [(Row, Option<State>)],
    /// For people.
    explanation: &'static str,
    remedy: fn(&RuleInput<'_>, &[Evidence]) -> Remedy,
}

/// Every cause, in the order of [`Cause::ALL`].
static RULES: [Rule; Cause::ALL.len()] = [
    vcpu_waits_for_cpu::RULE,
    vcpu_exits::RULE,
    vcpu_wake_up::RULE,
    vcpu_polls::RULE,
    interrupt_not_taken::RULE,
    interrupt_waits::RULE,
    guest_runs::RULE,
    guest_halts::RULE,
    guest_time::RULE,
    packet_waits_for_halted_vcpu::RULE,
    reader_waits_in_guest::RULE,
    application::RULE,
    thread_per_request::RULE,
    worker_waits_for_cpu::RULE,
    worker_wake_up::RULE,
    worker_busy::RULE,
    packets_wait_for_worker::RULE,
    frames_wait_for_worker::RULE,
    receive_path::RULE,
    ring_fill::RULE,
    interrupt_delivery::RULE,
    transmit_path::RULE,
    link_queue::RULE,
    driver_hand_over::RULE,
    unattributed::RULE,
];

// Texts that several causes use.
const HARDWARE_INTERRUPTS: &str =
    "see whether interrupts are delivered by hardware: enable_apicv of kvm_intel, avic of kvm_amd";
const PROFILE_GUEST: &str = "profile the service in the guest with perf record";
pub(crate) const BUSY_WORKER: &str = "the vhost worker has too much to do: give the VM's NIC more queues (queues=N of QEMU's netdev, \
                           ethtool -L in the guest) or fewer packets";
const UNSEEN_WORKER: &str = "what the vhost worker did was not seen: trace again, with a larger --buffer";
const HOST_STACK: &str =
    "look at the host's bridge, firewall rules and softirqs: nft list ruleset, /proc/net/softnet_stat";

pub(crate) fn realtime(threads: Actor) -> Remedy {
    let text = "vCPU threads and vhost workers before all ordinary threads (SCHED_FIFO). Costs: those on the same CPUs \
                wait while they run";
    Remedy::change(PolicyChange::Realtime { threads }, text, "")
}

/// The rule of a part of the path.
fn rule(stage: Stage, state: Option<State>) -> &'static Rule {
    // A stage that no thread carries is one part, even if its report has states.
    let part = (stage, state.filter(|_| stage.actor().is_some()));
    RULES.iter().find(|rule| rule.parts.contains(&part)).unwrap_or(&unattributed::RULE)
}

/// The rule of a kind of time in the guest.
fn rule_inside(row: Row, state: Option<State>) -> &'static Rule {
    if row == Row::Undivided {
        return rule(Stage::Guest, state);
    }
    RULES.iter().find(|rule| rule.inside.contains(&(row, state))).unwrap_or(&unattributed::RULE)
}

/// The input of the rules: what a trace saw of one VM.
#[derive(Clone, Copy)]
pub struct RuleInput<'a> {
    /// The counts of its requests.
    pub requests: &'a RequestCounts,
    /// The response time.
    pub total: Option<&'a Dist>,
    /// The stages.
    pub stages: &'a [StageReport],
    /// The stage `guest` in finer parts, which add up to it; empty if the guest reports nothing.
    pub guest: &'a [GuestCell],
    /// As `waits`, for these parts.
    pub guest_waits: &'a [(Row, Thread, u64)],
    /// The length of the trace, ns.
    pub length: u64,
    /// Threads that had the CPU while another thread waited: stage, thread, time waited (ns).
    pub waits: &'a [(Stage, Thread, u64)],
    /// Returns the name of a thread, empty if not known.
    pub name: &'a dyn Fn(Thread) -> String,
}

impl RuleInput<'_> {
    /// The mean time from one request to the next, ns.
    fn gap(&self) -> Option<u64> {
        let seen = self.requests.seen.max(self.requests.complete);
        self.length.checked_div(seen).filter(|gap| *gap > 0)
    }
}

/// A cause and its share of what is judged.
pub(crate) struct Candidate {
    pub(crate) rule: &'static Rule,
    /// The share of all its evidence together.
    pub(crate) share: f64,
    /// Largest part first.
    pub(crate) evidence: Vec<Evidence>,
}

impl Candidate {
    /// The share of the largest part.
    pub(crate) fn largest_share(&self) -> f64 {
        self.evidence.first().map_or(0.0, |e| e.share)
    }

    pub(crate) fn is_of_host(&self) -> bool {
        self.rule.blame == Blame::Host
    }

    /// Whether it becomes a finding even if the verdict does not name it.
    pub(crate) fn is_significant(&self) -> bool {
        self.evidence.iter().any(Evidence::is_significant)
    }
}

/// All causes by their shares of the fluctuation or of the time of a typical request; the one with the largest part
/// first.
pub(crate) fn candidates(stages: &[StageReport], guest: &[GuestCell], fluctuation: bool) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = Vec::new();
    let sum = stages.iter().map(typical).sum::<f64>().max(1.0);
    // A report may come from a file: a share that is not a number counts as 0.
    let number = |share: f64| if share.is_finite() { share } else { 0.0 };
    let mut add = |mut e: Evidence, rule: &'static Rule| {
        e.share = number(e.share);
        match all.iter_mut().find(|c| c.rule.cause == rule.cause) {
            Some(c) => {
                c.share += e.share;
                // Two kinds of time may be one part of the path.
                let same = |o: &&mut Evidence| (o.stage, o.part, o.state) == (e.stage, e.part, e.state);
                match c.evidence.iter_mut().find(same).filter(|_| e.part.is_some()) {
                    Some(other) => {
                        other.share += e.share;
                        other.time_share += e.time_share;
                        other.fluctuation_share += e.fluctuation_share;
                        other.length = other.length.zip(e.length).map(|(a, b)| a.saturating_add(b));
                    }
                    None => c.evidence.push(e),
                }
            }
            None => all.push(Candidate { rule, share: e.share, evidence: vec![e] }),
        }
    };
    for s in stages {
        let mut rest = Evidence {
            stage: s.stage,
            part: None,
            state: None,
            share: if fluctuation { s.fluctuation_share } else { typical(s) / sum },
            time_share: s.time_share,
            fluctuation_share: s.fluctuation_share,
            length: Some(s.dist.mean.max(s.dist.p50 as f64) as u64),
        };
        // What of the stage is in its parts.
        let mut less = |part: Evidence, rule: &'static Rule| {
            rest.share -= number(part.share);
            rest.time_share -= part.time_share;
            rest.fluctuation_share -= part.fluctuation_share;
            rest.length = None;
            add(part, rule);
        };
        if s.stage == Stage::Guest && !guest.is_empty() {
            // The stage's typical time, divided as its mean is.
            let scale = typical(s) / guest.iter().map(|cell| cell.mean).sum::<f64>().max(1.0) / sum;
            for cell in guest {
                let part = Evidence {
                    stage: s.stage,
                    part: cell.row.part(),
                    state: cell.state,
                    share: if fluctuation { cell.fluctuation_share } else { cell.mean * scale },
                    time_share: cell.time_share,
                    fluctuation_share: cell.fluctuation_share,
                    length: Some(cell.mean as u64),
                };
                less(part, rule_inside(cell.row, cell.state));
            }
            continue;
        }
        for p in &s.parts {
            let part = Evidence {
                stage: s.stage,
                part: None,
                state: Some(p.state),
                share: if fluctuation { p.fluctuation_share } else { p.of_p50 as f64 / sum },
                time_share: p.time_share,
                fluctuation_share: p.fluctuation_share,
                length: Some(p.mean.max(p.p50 as f64) as u64),
            };
            less(part, rule(s.stage, Some(p.state)));
        }
        // What the parts leave over is time in which the state of the thread is not known.
        add(rest, rule(s.stage, None));
    }
    for c in &mut all {
        c.evidence.sort_by(|a, b| b.share.total_cmp(&a.share));
    }
    all.sort_by(|a, b| b.largest_share().total_cmp(&a.largest_share()));
    all
}

/// The time of a stage in a typical request, ns.
fn typical(s: &StageReport) -> f64 {
    s.dist.p50 as f64
}

/// The finding of a candidate.
pub(crate) fn finding(candidate: &Candidate, input: &RuleInput<'_>) -> Finding {
    let rule = candidate.rule;
    let small = |e: &Evidence| e.share.max(e.time_share).max(e.fluctuation_share) < MIN_EVIDENCE_SHARE;
    let some = candidate.evidence.iter().enumerate().filter(|(i, e)| *i == 0 || !small(e));
    let evidence: Vec<Evidence> = some.map(|(_, e)| *e).collect();
    let doubts = doubts(input, &evidence);
    Finding {
        cause: rule.cause,
        title: rule.title.to_owned(),
        blame: rule.blame,
        share: candidate.share.clamp(0.0, 1.0),
        preempted_by: preemptors(&evidence, input),
        confidence: Confidence::of(doubts.len()),
        doubts,
        explanation: rule.explanation.to_owned(),
        remedy: (rule.remedy)(input, &evidence),
        evidence,
    }
}

/// The doubts about a finding; see the module.
fn doubts(input: &RuleInput<'_>, evidence: &[Evidence]) -> Vec<String> {
    let RequestCounts { seen: all, complete, .. } = *input.requests;
    let mut doubts = Vec::new();
    if complete < MIN_REQUESTS {
        doubts.push(format!("only {complete} requests are complete"));
    }
    let left_out = all.saturating_sub(complete) as f64 / all.max(1) as f64;
    if left_out > LEFT_OUT {
        doubts.push(format!("{} of the requests are in no figure", percent(left_out)));
    }
    if let Some(e) = evidence.iter().find(|e| e.state.is_none() && e.stage.actor().is_some()) {
        doubts.push(format!("what the thread did in {} was not seen", e.place()));
    }
    doubts
}

/// The threads that preempted the threads of a cause, sorted by the time that these waited.
fn preemptors(evidence: &[Evidence], input: &RuleInput<'_>) -> Vec<Preemptor> {
    if !evidence.iter().all(|e| e.state == Some(State::Ready)) {
        return Vec::new();
    }
    let mut of_thread: BTreeMap<Thread, u64> = BTreeMap::new();
    for (stage, thread, ns) in input.waits {
        if evidence.iter().any(|e| e.stage == *stage && e.part.is_none()) {
            let sum = of_thread.entry(*thread).or_default();
            *sum = sum.saturating_add(*ns);
        }
    }
    for (row, thread, ns) in input.guest_waits {
        if evidence.iter().any(|e| e.part.is_some() && e.part == row.part()) {
            let sum = of_thread.entry(*thread).or_default();
            *sum = sum.saturating_add(*ns);
        }
    }
    let all = of_thread.values().fold(0u64, |a, ns| a.saturating_add(*ns)).max(1) as f64;
    let mut longest: Vec<(Thread, u64)> = of_thread.into_iter().collect();
    longest.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    // Nobody: the CPU was idle, or it is not known who had it.
    let named = longest.into_iter().filter(|(thread, _)| *thread != Thread::default()).take(MAX_PREEMPTORS);
    let preemptor = |(thread, ns): (Thread, u64)| Preemptor {
        tid: thread.tid,
        name: (input.name)(thread),
        share: ns as f64 / all,
    };
    named.map(preemptor).collect()
}

#[cfg(test)]
mod tests;
