//! What makes requests slow, by rank.

use crate::text;
use crate::units::percent;
use maud::{Markup, html};
use teiji_model::finding::{Confidence, Finding};
use teiji_model::report::{Blame, VmReport};

/// Who is responsible.
pub(super) fn blame(blame: Blame) -> &'static str {
    match blame {
        Blame::Host => "the host",
        Blame::Guest => "the guest",
        Blame::Outside => "outside this host",
        Blame::Teiji => "teiji",
        Blame::Nobody => "nobody",
    }
}

/// The findings, each with its evidence, what it means and what shortens it.
pub(super) fn findings(vm: &VmReport) -> Markup {
    let of = if vm.verdict.fluctuation { "of the fluctuation" } else { "of the time" };
    html! {
        h3 { "Findings" }
        @for finding in &vm.findings { (one(finding, of)) }
    }
}

fn one(finding: &Finding, of: &str) -> Markup {
    let confidence = match finding.confidence {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
    };
    let preempted_by = text::preemptors(finding);
    html! {
        div.finding {
            p {
                b { (percent(finding.share)) } " " (of) ": " (finding.title)
                span.soft { " (" (blame(finding.blame)) ", confidence " (confidence) ")" }
            }
            dl {
                dt { "evidence" }
                dd {
                    @for (i, e) in finding.evidence.iter().enumerate() {
                        @if i > 0 { ", " }
                        (e.place())
                        @if let (Some(state), Some(actor)) = (e.state, e.stage.actor()) { " " (state.name(actor)) }
                        " " (percent(e.share))
                    }
                }
                dt { "what it means" } dd { (finding.explanation) }
                @if !preempted_by.is_empty() { dt { "preempted by" } dd { (preempted_by) } }
                @if !finding.doubts.is_empty() { dt { "doubts" } dd { (finding.doubts.join("; ")) } }
                dt { "what helps" } dd {
                    @for line in &finding.remedy.lines {
                        code { "[" (line.section) "] " (line.key) " = " (line.value) } " "
                    }
                    (finding.remedy.text)
                }
            }
        }
    }
}
