//! What was found for one VM of one report.

use super::frame::both;
use super::{
    bursts, calls, chart, data, findings, outgoing, passthrough, percentiles, spread, threads, timeline,
};
use crate::text::{self, large_packets};
use crate::units::{count, duration, percent};
use maud::{Markup, html};
use teiji_model::advice::Advice;
use teiji_model::report::{
    DirectionReport, Dist, GuestStream, Inside, LeftOut, Report, StageReport, VmReport,
};

/// One line about the origin of a report, and what the tracer lost.
pub(super) fn provenance(label: &str, report: &Report) -> Markup {
    let meta = &report.meta;
    let flow = if meta.watch.flow_text.is_empty() { "all packets" } else { &meta.watch.flow_text };
    let took = duration(report.counters.ended.saturating_sub(meta.started) as f64);
    let (lost, discarded) = (text::lost(report), text::discarded(report));
    html! {
        p.soft {
            @if !label.is_empty() { b { (label) } ": " }
            (flow) " for " (took) " on " (meta.host) ", Linux " (meta.kernel) ", "
            (count(report.counters.events, "event"))
        }
        @if !lost.is_empty() { p.bad { (lost.join(" ")) } }
        @if !discarded.is_empty() { p.soft { (discarded.join(" ")) } }
    }
}

/// The report that a VM is in.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    /// Its label; may be empty.
    pub label: &'a str,
    /// The number of VMs on the page.
    pub vms: usize,
    /// What its vhost worker stands for, if it has none; see [`text::served`].
    pub served: &'a str,
    /// When the trace began, ns, and how long it was.
    pub started: u64,
    pub length: u64,
    /// The guests that reported.
    pub guests: &'a [GuestStream],
}

impl<'a> Of<'a> {
    /// What the guest of a VM reported.
    fn guest(&self, vm: &VmReport) -> Option<&'a GuestStream> {
        self.guests.iter().rfind(|guest| guest.pid == vm.pid)
    }
}

/// Everything about a VM.
pub(super) fn vm(of: Of<'_>, advice: &Advice, vm: &VmReport) -> Markup {
    let label = of.label;
    let directions = [("Packets toward the guest", &vm.inbound), ("Packets from the guest", &vm.outbound)];
    html! {
      section.vm {
        h2 { (vm.name) @if !label.is_empty() { ": " (label) } }
        p.soft { "pid " (vm.pid) @if !of.served.is_empty() { "; " (of.served) } }
        @if vm.total.is_some() {
            p.verdict { (vm.verdict.headline) }
            (details(vm))
        } @else {
            @for (i, paragraph) in advice.absence.iter().enumerate() {
                p class=(if i == 0 { "verdict" } else { "" }) { (paragraph) }
            }
        }
        (tiles(vm))
        @if !vm.over_time.requests.bins.is_empty() { (requests(of, vm)) }
        @if let Some(total) = &vm.total { (stages(vm, total)) }
        @if !vm.over_time.depth.bins.is_empty() { (depth(of, vm)) }
        @if let Some(bursts) = &vm.bursts { (bursts::bursts(bursts)) }
        @if let Some(inside) = &vm.inside { (self::inside(inside, of.guest(vm))) }
        @if let Some(all) = &vm.threads { (threads::threads(vm, all)) }
        @if let Some(groups) = vm.groups.as_ref().filter(|g| !g.messages.is_empty()) { (calls::calls(groups)) }
        @if !vm.left_out.is_empty() { (reasons("Requests that are in no figure", &vm.left_out)) }
        @if let Some(o) = &vm.outgoing {
            (outgoing::outgoing(o))
            @if !o.left_out.is_empty() { (reasons("Requests of the guest that are in no figure", &o.left_out)) }
        }
        @if let Some(p) = &vm.passthrough {
            (passthrough::passthrough(p))
            @if let Some(r) = p.requests.as_ref().filter(|r| !r.left_out.is_empty()) {
                (reasons("Requests by these NICs that are in no figure", &r.left_out))
            }
        }
        @for (title, direction) in directions {
            @if !direction.stages.is_empty() { (one_way(title, direction)) }
        }
        (data::vm(vm, of.vms, of.started, of.length))
      }
    }
}

/// Response times over the trace.
fn requests(of: Of<'_>, vm: &VmReport) -> Markup {
    let line = &vm.over_time.requests;
    html! {
        h3 { "Response time over the trace: the slowest request of each bar, by stage" }
        div.static { (timeline::requests(line, of.length)) }
        div.screen {
            label.soft { input type="checkbox"; " logarithmic: shortest, mean and longest" }
            div.live-requests {}
            p.soft.live-readout { "Point at the chart to read it; drag to enlarge, double-click to see all; click to see the request below." }
        }
        (chart::legend(vm.stages.iter().map(|s| s.stage)))
        p.soft { "Bars of " (timeline::note(line)) "; the line is the mean of all requests." }
    }
}

/// Packets that waited on the taps over the trace.
fn depth(of: Of<'_>, vm: &VmReport) -> Markup {
    html! {
        h3 { "Packets that waited on the tap over the trace: the most in each bar" }
        div.static { (timeline::depth(&vm.over_time.depth, of.length)) }
        div.screen { div.live-depth {} }
    }
}

/// Where the time of requests goes.
fn stages(vm: &VmReport, total: &Dist) -> Markup {
    let time: Vec<_> = vm.stages.iter().map(|s| (s.stage, s.time_share)).collect();
    let fluctuation: Vec<_> = vm.stages.iter().map(|s| (s.stage, s.fluctuation_share)).collect();
    html! {
        h3 { "Where the time goes, and what makes it fluctuate" }
        @let rows = [chart::shares("time", &time), chart::shares("fluctuation", &fluctuation)];
        (both(|frame| chart::stacked(frame, &rows, 8.0)))
        (chart::legend(vm.stages.iter().map(|s| s.stage)))
        @if !vm.findings.is_empty() { (findings::findings(vm)) }
        @if !vm.slowest.is_empty() {
            h3 { "Slowest requests" }
            (both(|frame| chart::waterfalls(frame, &vm.slowest)))
            div.screen {
                h3 { "One request, by stage: " span.live-title {} }
                label.soft { "request: " select.live-choose {} }
                div.bars.live-waterfall {}
            }
        }
        h3 { "Response time by percentile, logarithmic" }
        (both(|frame| percentiles::chart(frame, &[("response time", total)])))
        h3 { "Time of each stage, logarithmic: shortest, p50 to p99, longest" }
        (both(|frame| spread::chart(frame, total, &vm.stages)))
        h3 { "Stages" }
        (table(vm))
    }
}

/// How requests spend their time in the guest, by what the guest reported.
fn inside(inside: &Inside, guest: Option<&GuestStream>) -> Markup {
    html! {
        h3 { "In the guest" }
        p.soft { (text::inside::title(inside, guest)) }
        @if !inside.parts.is_empty() {
            div.scroll { table {
                tr {
                    th { "part" } th.n { "mean" } th.n { "p50" } th.n { "p99" } th.n { "max" }
                    th.n { "of guest time" } th.n { "of its fluctuation" } th.text.roomy { "from → to" }
                }
                @for part in &inside.parts {
                    tr {
                        td title=(part.part.meaning()) { (part.part.name()) }
                        td.n { (duration(part.dist.mean)) }
                        @for ns in [part.dist.p50, part.dist.p99, part.dist.max] {
                            td.n { (duration(ns as f64)) }
                        }
                        td.n { (percent(part.time_share)) }
                        td.n { (percent(part.fluctuation_share)) }
                        td.text.roomy { (part.part.meaning()) }
                    }
                }
            } }
        }
        @for remark in text::inside::remarks(inside) { p.soft { (remark.trim()) } }
    }
}

/// The figures below the verdict's headline.
fn details(vm: &VmReport) -> Markup {
    let blamed = vm.blamed().map(|f| ("what it means".to_owned(), f.explanation.clone()));
    let doubts =
        vm.blamed().filter(|f| !f.doubts.is_empty()).map(|f| ("doubts".to_owned(), f.doubts.join("; ")));
    html! {
        dl {
            @for (label, text) in text::details(vm).into_iter().chain(blamed).chain(doubts) {
                dt { (label) } dd { (text) }
            }
        }
    }
}

fn tiles(vm: &VmReport) -> Markup {
    let mut tiles: Vec<(String, &str)> = Vec::new();
    let mut add = |value: String, what| tiles.push((value, what));
    let r = &vm.requests;
    add(r.complete.to_string(), "complete requests");
    for (n, what) in r.left_out() {
        add(n.to_string(), what);
    }
    if let Some(d) = &vm.total {
        for (value, what) in [(d.p50, "p50"), (d.p99, "p99"), (d.max, "max")] {
            add(duration(value as f64), what);
        }
    }
    if let Some(g) = &vm.groups {
        add(g.complete.to_string(), "SIP calls");
        add(duration(g.total.p50 as f64), "p50 of a call");
        add(duration(g.outside.p50 as f64), "of that outside this host");
    }
    if let Some(c) = &vm.connections {
        add(c.seen.to_string(), "TCP connections");
        for (n, what) in [
            (c.client_not_known, "of them whose client is not known"),
            (c.interleaved, "whose sides spoke at the same time"),
            (c.of_several_segments, "requests of several segments"),
        ] {
            if n > 0 {
                add(n.to_string(), what);
            }
        }
    }
    if let Some(d) = &vm.depth {
        add(format!("{} / {}", d.p99, d.max), "waiting on the tap, p99 / max");
    }
    html! {
        div.tiles {
            @for (value, what) in &tiles {
                div.tile { b { (value) } span { (what) } }
            }
        }
    }
}

/// Why requests are not complete.
fn reasons(title: &str, left_out: &[LeftOut]) -> Markup {
    html! {
        h3 { (title) }
        div.scroll {
            table {
                tr { th { "why" } th { "outcome" } th { "to blame" } th { "requests" } }
                @for l in left_out {
                    tr {
                        td.text { (l.explanation) } td { (l.outcome.name()) } td { (findings::blame(l.blame)) } td { (l.count) }
                    }
                }
            }
        }
    }
}

fn table(vm: &VmReport) -> Markup {
    let heads = ["stage", "mean", "p50", "p99", "max", "of time", "of fluctuation"];
    html! {
        div.scroll {
            table {
                tr { @for head in heads { th { (head) } } }
                @for stage in &vm.stages {
                    @let d = &stage.dist;
                    @let blamed = vm.blamed_stage() == Some(stage.stage);
                    tr class=[blamed.then_some("blamed")] {
                        td title=(chart::meaning(stage.stage)) { (stage.stage.name()) }
                        td { (duration(d.mean)) }
                        td { (duration(d.p50 as f64)) }
                        td { (duration(d.p99 as f64)) }
                        td { (duration(d.max as f64)) }
                        td { (percent(stage.time_share)) }
                        td { (percent(stage.fluctuation_share)) }
                    }
                    (parts(stage))
                }
            }
        }
    }
}

fn parts(stage: &StageReport) -> Markup {
    html! {
        @if let Some(actor) = stage.stage.actor() {
            @for part in stage.parts.iter().filter(|p| p.mean > 0.0) {
                tr.part {
                    td { (part.state.name(actor)) }
                    td { (duration(part.mean)) }
                    td {} td {} td {}
                    td { (percent(part.time_share)) }
                    td { (percent(part.fluctuation_share)) }
                }
            }
        }
    }
}

fn one_way(title: &str, direction: &DirectionReport) -> Markup {
    html! {
        h3 { (title) }
        p.soft {
            (count(direction.packets, "packet")) " followed"
            @if direction.incomplete > 0 { ", " (direction.incomplete) " with a point missing" }
            @if let Some(large) = large_packets(&direction.large) { "; large ones on the tap: " (large) }
        }
        div.scroll {
            table {
                tr { @for head in ["stage", "mean", "p50", "p90", "p99", "max"] { th { (head) } } }
                @for (stage, d) in &direction.stages {
                    tr {
                        td title=(chart::meaning(*stage)) { (stage.name()) }
                        td { (duration(d.mean)) }
                        @for value in [d.p50, d.p90, d.p99, d.max] { td { (duration(value as f64)) } }
                    }
                }
            }
        }
    }
}
