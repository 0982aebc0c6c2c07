//! What to blame for the response time.
//!
//! The rule, in order:
//!
//! 1. Without a complete request there is nothing to judge by.
//! 2. Fluctuation matters if there are at least [`FEW`] requests, the 99th percentile is at least
//!    [`MATTERS`] above the median, and at least [`SPREAD`] times the median. (The paper's quiet case has a
//!    worst request 3.8 times the mean, the one that it analyses 43 times the least.) Then the shares of the
//!    fluctuation are judged, else the shares of the typical request's time: medians, so that a few outliers
//!    do not make a cause.
//! 3. Every stage, or the part of it that its thread spent in one state, belongs to one cause. The same
//!    cause in several stages is one: a vhost worker that waits for its CPU does so in `tap_queue` and in
//!    `vhost_tx`. What a split leaves over belongs to its stage without a state. Causes are ranked by their
//!    greatest stage: two small waits do not outweigh a great one.
//! 4. A cause is the host's unless it is the guest's own running, the guest's halting while it works on
//!    the request, a part of `guest` of which nothing more is known, or `unattributed`.
//! 5. Of fluctuation, the greatest cause is blamed; the guest only if its share is above the host's
//!    greatest. If the greatest cause has less than [`LITTLE`], many small ones make the fluctuation, and
//!    the typical request's time is judged as if it were steady.
//! 6. Of steady time, the host's greatest cause is blamed if one of its stages has at least [`MUCH`], however
//!    much the guest has: it is what can be changed. Else nothing stands out, and the headline says where
//!    the time goes.
//! 7. When the guest is greatest, the details name the host's greatest cause as well.
//!
//! [`Verdict::headline`] says the cause and its share in at most 12 words; the figures are [`Verdict::details`].
//! [`Verdict::stage`] is the blamed cause's greatest stage, [`Verdict::share`] the whole cause's share.
//! [`Verdict::behind`] are the threads that ran while the blamed one waited, by the time waited.

use teiji_model::report::{Behind, Detail, Dist, Requests, StageReport, Verdict};
use teiji_model::stage::{Stage, ThreadState};
use teiji_model::text::duration;

/// Requests below which fluctuation is not judged.
pub const FEW: u64 = 20;
/// Least distance of the 99th percentile from the median that matters, ns.
pub const MATTERS: u64 = 100_000;
/// Least ratio of the 99th percentile to the median that matters.
pub const SPREAD: f64 = 4.0;
/// Share of the fluctuation below which a cause is not the cause of it: a third.
pub const LITTLE: f64 = 1.0 / 3.0;
/// Share of steady time from which a stage of a cause of the host's stands out: an eighth.
pub const MUCH: f64 = 0.125;

/// Threads named.
const MAX_BEHIND: usize = 5;

/// A cause, and its share in each stage.
struct Cause {
    what: &'static str,
    host: bool,
    state: Option<ThreadState>,
    share: f64,
    stages: Vec<(Stage, f64)>,
}

impl Cause {
    /// The share of its greatest stage.
    fn greatest(&self) -> f64 {
        self.stages.first().map_or(0.0, |(_, share)| *share)
    }
}

/// The cause that a stage's state belongs to: its description of at most six words, whether it is the host's, its
/// state.
fn cause(stage: Stage, state: Option<ThreadState>) -> (&'static str, bool, Option<ThreadState>) {
    use ThreadState::{Asleep, Guest, Poll, Ready, Run};
    let (what, host) = match (stage, state) {
        (Stage::VcpuWake | Stage::Guest, Some(Ready)) => ("vCPU waits for a CPU", true),
        (Stage::VcpuWake | Stage::Guest, Some(Run)) => ("host handles the vCPU's exits", true),
        (Stage::VcpuWake, Some(Asleep)) => ("wake-up of the halted vCPU", true),
        (Stage::VcpuWake, Some(Poll)) => ("halted vCPU polls for its wake-up", true),
        (Stage::VcpuWake, Some(Guest)) => ("vCPU runs before taking the interrupt", true),
        (Stage::VcpuWake, None) => ("interrupt waits for the vCPU", true),
        (Stage::Guest, Some(Guest)) => ("guest itself runs", false),
        (Stage::Guest, Some(Asleep | Poll)) => ("guest halts during the request", false),
        (Stage::Guest, None) => ("time in the guest", false),
        (Stage::TapQueue | Stage::VhostTx, Some(Ready)) => ("vhost worker waits for a CPU", true),
        (Stage::TapQueue | Stage::VhostTx, Some(Asleep)) => ("wake-up of the vhost worker", true),
        (Stage::TapQueue | Stage::VhostTx, Some(Run | Guest | Poll)) => ("vhost worker is busy", true),
        (Stage::TapQueue, None) => ("packets wait for the vhost worker", true),
        (Stage::VhostTx, None) => ("frames wait for the vhost worker", true),
        (Stage::SwitchIn, _) => ("host's network stack, inbound", true),
        (Stage::VhostRx, _) => ("vhost worker fills the guest's ring", true),
        (Stage::Irq, _) => ("delivery of the interrupt", true),
        (Stage::SwitchOut, _) => ("host's network stack, outbound", true),
        (Stage::Qdisc, _) => ("queue of the link", true),
        (Stage::WireOut, _) => ("hand-over to the link's driver", true),
        (Stage::Unattributed, _) => ("time that no stage explains", false),
    };
    (what, host, state)
}

/// All causes, the one with the greatest stage first, by their shares of the fluctuation or of a typical
/// request's time.
fn causes(stages: &[StageReport], fluctuation: bool) -> Vec<Cause> {
    let mut all: Vec<Cause> = Vec::new();
    let typical = |s: &StageReport| s.parts.iter().map(|p| p.p50).sum::<u64>().max(s.dist.p50) as f64;
    let sum = stages.iter().map(typical).sum::<f64>().max(1.0);
    let mut add = |stage: Stage, state: Option<ThreadState>, share: f64| {
        let (what, host, state) = cause(stage, state);
        match all.iter_mut().find(|c| c.what == what) {
            Some(c) => {
                c.share += share;
                c.stages.push((stage, share));
            }
            None => all.push(Cause { what, host, state, share, stages: vec![(stage, share)] }),
        }
    };
    for s in stages {
        let mut rest = if fluctuation { s.fluctuation_share } else { typical(s) / sum };
        for p in &s.parts {
            let share = if fluctuation { p.fluctuation_share } else { p.p50 as f64 / sum };
            rest -= share;
            add(s.stage, Some(p.state), share);
        }
        add(s.stage, None, rest);
    }
    for c in &mut all {
        c.stages.sort_by(|a, b| b.1.total_cmp(&a.1));
    }
    all.sort_by(|a, b| b.greatest().total_cmp(&a.greatest()));
    all
}

/// Whether the fluctuation matters.
fn fluctuates(d: &Dist) -> bool {
    d.count >= FEW && d.p99.saturating_sub(d.p50) >= MATTERS && d.p99 as f64 >= SPREAD * d.p50 as f64
}

/// Judges one VM. `waits` are the threads waited behind: stage, thread id and ns.
pub(crate) fn judge(
    requests: &Requests,
    total: Option<&Dist>,
    stages: &[StageReport],
    waits: &[(Stage, u32, u64)],
    name: &dyn Fn(u32) -> String,
) -> Verdict {
    let Some(total) = total.filter(|d| d.count > 0) else { return nothing(requests) };
    let varies = fluctuates(total);
    let of_fluctuation = causes(stages, true);
    let fluctuation = varies && of_fluctuation.first().is_some_and(|c| c.share >= LITTLE);
    let causes = if fluctuation { of_fluctuation } else { causes(stages, false) };
    let (Some(first), Some(host)) = (causes.first(), causes.iter().find(|c| c.host)) else {
        return nothing(requests);
    };
    let (blamed, stands_out) = if fluctuation {
        (first, true)
    } else if host.greatest() >= MUCH {
        (host, true)
    } else {
        (first, false)
    };
    let of = if fluctuation { "the fluctuation" } else { "a typical request's time" };
    let mut details = vec![response_time(total, fluctuation, varies)];
    let places_of_blamed = places(blamed);
    if !fluctuation || !places_of_blamed.is_empty() {
        details.push(detail("share", format!("{} of {of}{places_of_blamed}", percent(blamed.share))));
    }
    if !blamed.host && host.share >= 0.01 {
        let text = format!("{}, {}{}", host.what, percent(host.share), places(host));
        details.push(detail("greatest of the host's", text));
    } else if !first.host && !std::ptr::eq(first, blamed) {
        details.push(detail("besides", format!("{}, {} of {of}", first.what, percent(first.share))));
    }
    Verdict {
        headline: headline(blamed, stands_out, fluctuation),
        details,
        stage: blamed.stages.first().map(|(stage, _)| *stage),
        state: blamed.state,
        fluctuation,
        share: blamed.share.clamp(0.0, 1.0),
        behind: behind(blamed, waits, name),
    }
}

/// The cause in at most 12 words.
fn headline(blamed: &Cause, stands_out: bool, fluctuation: bool) -> String {
    let (share, stage) = (percent(blamed.share), blamed.stages.first().map_or("", |(s, _)| s.name()));
    let of = if fluctuation { "fluctuation" } else { "time" };
    match stands_out {
        true => format!("{} ({stage}): {share} of the {of}", blamed.what),
        false => format!("nothing stands out; most time in {stage} ({share})"),
    }
}

fn response_time(total: &Dist, fluctuation: bool, varies: bool) -> Detail {
    let how = match (fluctuation, varies) {
        (true, _) => "fluctuates",
        (_, true) => "fluctuates by many causes",
        _ => "is steady",
    };
    let (p50, p99) = (duration(total.p50 as f64), duration(total.p99 as f64));
    detail("response time", format!("{how}: median {p50}, 99th percentile {p99}"))
}

fn detail(label: &str, text: String) -> Detail {
    Detail { label: label.to_owned(), text }
}

fn nothing(requests: &Requests) -> Verdict {
    let (why, details) = match requests.seen {
        0 => ("no request was seen".to_owned(), Vec::new()),
        n => {
            let Requests { incomplete, ambiguous, unanswered, .. } = requests;
            let text = format!("{incomplete} incomplete, {ambiguous} ambiguous, {unanswered} unanswered");
            (format!("none of {n} requests is complete"), vec![detail("requests", text)])
        }
    };
    Verdict {
        headline: format!("nothing to judge by: {why}"),
        details,
        stage: None,
        state: None,
        fluctuation: false,
        share: 0.0,
        behind: Vec::new(),
    }
}

/// The threads behind which a cause waited, by time.
fn behind(cause: &Cause, waits: &[(Stage, u32, u64)], name: &dyn Fn(u32) -> String) -> Vec<Behind> {
    if cause.state != Some(ThreadState::Ready) {
        return Vec::new();
    }
    let mut by_tid: Vec<(u32, u64)> = Vec::new();
    for (stage, tid, ns) in waits {
        if cause.stages.iter().any(|(s, _)| s == stage) {
            match by_tid.iter_mut().find(|(t, _)| t == tid) {
                Some((_, sum)) => *sum = sum.saturating_add(*ns),
                None => by_tid.push((*tid, *ns)),
            }
        }
    }
    by_tid.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let all = by_tid.iter().fold(0u64, |a, (_, ns)| a.saturating_add(*ns)).max(1) as f64;
    let named = by_tid.into_iter().take(MAX_BEHIND);
    named.map(|(tid, ns)| Behind { tid, name: name(tid), share: ns as f64 / all }).collect()
}

/// The stages in which a cause acts, if it is several: `: vcpu_wake 60 %, guest 11 %`.
fn places(cause: &Cause) -> String {
    let much: Vec<_> = cause.stages.iter().filter(|(_, share)| *share >= 0.01).collect();
    let each = |(s, share): &&(Stage, f64)| format!("{} {}", s.name(), percent(*share));
    match much.len() {
        0 | 1 => String::new(),
        _ => format!(": {}", much.iter().map(each).collect::<Vec<_>>().join(", ")),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests;
