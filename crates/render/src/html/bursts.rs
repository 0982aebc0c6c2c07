//! Packets that reached the guest at once.

use crate::text;
use crate::units::{count, duration};
use maud::{Markup, html};
use teiji_model::over_time::Bursts;

/// How often packets came at once, and the largest bursts with their causes.
pub(super) fn bursts(bursts: &Bursts) -> Markup {
    let (a, s) = (&bursts.arrivals, &bursts.signals);
    let most = bursts.sizes.iter().copied().max().unwrap_or(0).max(1) as f64;
    let last = bursts.sizes.iter().rposition(|n| *n > 0);
    html! {
        h3 { "Bursts: packets that the guest got at once" }
        p.soft {
            "p50 " (a.p50) ", p99 " (a.p99) ", max " (a.max) ". The vhost worker took up to "
            (count(s.max, "packet")) " before a signal (p99 " (s.p99) ")."
        }
        @if let Some(last) = last {
            div.bars {
                @for (class, n) in bursts.sizes.iter().enumerate().take(last + 1) {
                    // Logarithmic: single packets are far more frequent than bursts.
                    @let share = (*n as f64 + 1.0).ln() / (most + 1.0).ln() * 100.0;
                    span { (sizes(class)) }
                    span.bar { i style={ "width:" (format!("{share:.1}")) "%" } {} }
                    span { (n) }
                }
            }
        }
        @if !bursts.largest.is_empty() {
            div.scroll {
                table {
                    tr { th { "packets" } th { "after" } th { "the oldest waited" } th.text { "cause" } }
                    @for burst in &bursts.largest {
                        tr {
                            td { (burst.packets) }
                            td { (duration(burst.at as f64)) }
                            td { (duration(burst.waited as f64)) }
                            td.text { (text::bursts::cause(burst)) }
                        }
                    }
                }
            }
        }
    }
}

fn sizes(class: usize) -> String {
    match Bursts::sizes_of(class) {
        (least, Some(most)) if least == most => format!("{least}"),
        (least, Some(most)) => format!("{least}–{most}"),
        (least, None) => format!("{least} or more"),
    }
}
