//! What is to blame for the response time.
//!
//! The rule, in order:
//!
//! 1. Without a complete request there is nothing to judge.
//! 2. Fluctuation matters if there are at least [`MIN_REQUESTS`] requests, the 99th percentile is at least [`MIN_SPREAD`] above the
//!    median, and at least [`MIN_SPREAD_RATIO`] times the median. (In paper P0, the worst request of the quiet case takes 3.8
//!    times the mean, and that of the case which it analyses 43 times the shortest.) If fluctuation matters, the shares
//!    of the fluctuation are judged, otherwise the shares of a typical request's time. These are medians of
//!    stages, each divided among the stage's parts, so that a few outliers do not decide.
//! 3. Every part of a stage belongs to one cause ([`finding`](crate::finding)). Causes are ranked by their largest
//!    part: two small waits do not outweigh a large one.
//! 4. A cause belongs to the host, with these exceptions: the guest runs, the guest halts during the request, a part of
//!    `guest` without a known state, and `unattributed`.
//! 5. For fluctuation, the largest cause is blamed; the guest only if its share is above the largest share of the host.
//!    If the largest cause has less than [`MIN_CAUSE_SHARE`], many small causes make the fluctuation, and the typical request's
//!    time is judged as if it were steady.
//! 6. For steady time, the largest cause of the host is blamed if one of its parts has at least [`SIGNIFICANT_SHARE`], even if the
//!    guest has more: it is what can be changed. Otherwise nothing stands out, and the headline says where most time is
//!    spent.
//! 7. If the largest cause belongs to the guest, the details also name the largest cause of the host.
//!
//! [`Verdict::headline`] has the cause and its share in at most 12 words; [`Verdict::details`] has the figures. The
//! blamed cause is the first of the findings; the others follow, sorted by their largest part.

use crate::finding::{Candidate, MIN_REQUESTS, RuleInput, candidates, finding};
use teiji_model::finding::{Evidence, Finding, SIGNIFICANT_SHARE};
use teiji_model::report::{Detail, Dist, RequestCounts, Verdict};
use teiji_model::text::{duration, percent};

/// The smallest distance of the 99th percentile from the median that matters, ns.
pub const MIN_SPREAD: u64 = 100_000;
/// The smallest ratio of the 99th percentile to the median that matters.
pub const MIN_SPREAD_RATIO: f64 = 4.0;
/// The share of the fluctuation below which no cause is blamed for it: a third.
pub const MIN_CAUSE_SHARE: f64 = 1.0 / 3.0;

/// Whether the fluctuation matters.
fn fluctuates(d: &Dist) -> bool {
    d.count >= MIN_REQUESTS
        && d.p99.saturating_sub(d.p50) >= MIN_SPREAD
        && d.p99 as f64 >= MIN_SPREAD_RATIO * d.p50 as f64
}

/// The verdict on one VM, and its ranked findings: the verdict names the first.
pub fn rank(input: &RuleInput<'_>) -> (Verdict, Vec<Finding>) {
    let Some(total) = input.total.filter(|d| d.count > 0) else {
        return (nothing(input.requests), Vec::new());
    };
    let varies = fluctuates(total);
    let of_fluctuation = candidates(input.stages, input.guest, true);
    let fluctuation = varies && of_fluctuation.first().is_some_and(|c| c.share >= MIN_CAUSE_SHARE);
    let all = if fluctuation { of_fluctuation } else { candidates(input.stages, input.guest, false) };
    let Some(first) = all.first() else { return (nothing(input.requests), Vec::new()) };
    let host = all.iter().find(|c| c.is_of_host());
    let (blamed, stands_out) = match host {
        _ if fluctuation => (first, true),
        Some(host) if host.largest_share() >= SIGNIFICANT_SHARE => (host, true),
        _ => (first, false),
    };
    let of = if fluctuation { "the fluctuation" } else { "a typical request's time" };
    let mut details = vec![response_time(total, fluctuation, varies)];
    let stages_of_blamed = stages_text(blamed);
    if !fluctuation || !stages_of_blamed.is_empty() {
        details.push(detail("share", format!("{} of {of}{stages_of_blamed}", percent(blamed.share))));
    }
    if !blamed.is_of_host() {
        if let Some(host) = host.filter(|host| host.share >= 0.01) {
            let text = format!("{}, {}{}", host.rule.title, percent(host.share), stages_text(host));
            details.push(detail("largest cause of the host", text));
        }
    } else if !first.is_of_host() {
        details.push(detail("also", format!("{}, {} of {of}", first.rule.title, percent(first.share))));
    }
    let verdict = Verdict { headline: headline(blamed, stands_out, fluctuation), details, fluctuation };
    let rest = all.iter().filter(|c| c.rule.cause != blamed.rule.cause && c.is_significant());
    (verdict, std::iter::once(blamed).chain(rest).map(|c| finding(c, input)).collect())
}

/// The cause in at most 12 words.
fn headline(blamed: &Candidate, stands_out: bool, fluctuation: bool) -> String {
    let (share, stage) = (percent(blamed.share), blamed.evidence.first().map_or("", |e| e.place()));
    let of = if fluctuation { "fluctuation" } else { "time" };
    match stands_out {
        true => format!("{} ({stage}): {share} of the {of}", blamed.rule.title),
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

fn nothing(requests: &RequestCounts) -> Verdict {
    let (why, details) = match requests.seen {
        0 => ("no request was seen".to_owned(), Vec::new()),
        n => {
            let RequestCounts { incomplete, ambiguous, unanswered, .. } = requests;
            let text = format!("{incomplete} incomplete, {ambiguous} ambiguous, {unanswered} unanswered");
            (format!("none of {n} requests is complete"), vec![detail("requests", text)])
        }
    };
    Verdict { headline: format!("nothing to judge by: {why}"), details, fluctuation: false }
}

/// The stages in which a cause is seen, if there are several: `: vcpu_wake 60 %, guest 11 %`.
fn stages_text(cause: &Candidate) -> String {
    let much: Vec<_> = cause.evidence.iter().filter(|e| e.share >= 0.01).collect();
    let each = |e: &&Evidence| format!("{} {}", e.place(), percent(e.share));
    match much.len() {
        0 | 1 => String::new(),
        _ => format!(": {}", much.iter().map(each).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests;
