//! Requests that the guest itself sent: how long they took, and how much of that was this host's.

use crate::text;
use crate::units::{count, duration, percent};
use maud::{Markup, html};
use teiji_model::report::Outgoing;

pub(super) fn outgoing(o: &Outgoing) -> Markup {
    let times = [("response time", &o.total), ("of that on this host", &o.host)];
    html! {
        h3 { "Requests that the guest itself sent" }
        @if let Some(headline) = text::outgoing::headline(o) { p { b { (headline) } } }
        p.soft {
            (count(o.requests.seen, "request")) ", " (o.requests.complete) " complete"
            @for (n, what) in o.requests.left_out() { ", " (n) " " (what) }
        }
        @for remark in text::outgoing::remarks(o) { p.soft { (remark) } }
        @if !o.stages.is_empty() {
            div.scroll { table {
                tr { @for head in ["stage", "mean", "p50", "p99", "max", "of time", "of fluctuation"] { th { (head) } } }
                @for (name, dist) in times {
                    @if let Some(d) = dist {
                        tr {
                            td { (name) } td { (duration(d.mean)) }
                            @for ns in [d.p50, d.p99, d.max] { td { (duration(ns as f64)) } }
                            td {} td {}
                        }
                    }
                }
                @for s in &o.stages {
                    tr {
                        td title=(s.stage.meaning()) { (s.stage.name()) } td { (duration(s.dist.mean)) }
                        @for ns in [s.dist.p50, s.dist.p99, s.dist.max] { td { (duration(ns as f64)) } }
                        td { (percent(s.time_share)) } td { (percent(s.fluctuation_share)) }
                    }
                }
            } }
        }
    }
}
