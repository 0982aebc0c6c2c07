//! NICs that were given to a VM: how their interrupts reached the guest, and the requests by them.

use crate::text;
use crate::units::{count, duration, percent};
use maud::{Markup, html};
use teiji_model::report::{Dist, Passthrough};

pub(super) fn passthrough(p: &Passthrough) -> Markup {
    let requests = p.requests.as_ref();
    let row = |name: &str, d: &Dist| {
        html! {
            tr {
                td { (name) } td { (duration(d.mean)) }
                @for ns in [d.p50, d.p99, d.max] { td { (duration(ns as f64)) } }
                td {} td {}
            }
        }
    };
    html! {
        h3 { "NICs that were given to the VM" }
        @if let Some(headline) = requests.and_then(text::passthrough::headline) { p { b { (headline) } } }
        p.soft {
            @if p.nics.is_empty() { "none at the end of the trace" }
            @for (i, nic) in p.nics.iter().enumerate() { @if i > 0 { ", " } (nic.what()) " (" (nic.address) ")" }
        }
        p.soft {
            (count(p.interrupts, "interrupt"))
            @if let Some(r) = requests {
                "; " (count(r.counts.seen, "request")) ", " (r.counts.complete) " complete"
                @for (n, what) in r.counts.left_out() { ", " (n) " " (what) }
            }
        }
        @for remark in text::passthrough::remarks(p) { p.soft { (remark) } }
        @if p.until_guest_entry.is_some() || requests.is_some_and(|r| r.total.is_some()) { div.scroll { table {
            tr { @for head in ["stage", "mean", "p50", "p99", "max", "of time", "of fluctuation"] { th { (head) } } }
            @if let Some(d) = &p.until_guest_entry { (row("all interrupts: host's handler to guest entry", d)) }
            @if let Some(r) = requests {
                @if let Some(d) = &r.total { (row("response: host's handler to guest's driver", d)) }
                @for s in &r.stages {
                    tr {
                        td { (s.stage.name()) } td { (duration(s.dist.mean)) }
                        @for ns in [s.dist.p50, s.dist.p99, s.dist.max] { td { (duration(ns as f64)) } }
                        td { (percent(s.time_share)) } td { (percent(s.fluctuation_share)) }
                    }
                }
            }
        } } }
    }
}
