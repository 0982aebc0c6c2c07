//! What was found for one VM of one report.

use super::{chart, escape, percentiles};
use crate::text;
use crate::units::{count, ns, percent};
use std::fmt::Write;
use teiji_model::advice::Advice;
use teiji_model::report::{Blame, DirectionReport, Report, StageReport, VmReport};

/// One line about the origin of a report, and what the tracer lost.
pub(super) fn provenance(label: &str, report: &Report) -> String {
    let meta = &report.meta;
    let flow = if meta.watch.flow_text.is_empty() { "all packets" } else { &meta.watch.flow_text };
    let label = if label.is_empty() { String::new() } else { format!("<b>{}</b>: ", escape(label)) };
    let mut out = format!(
        "<p class=\"soft\">{label}{} for {} on {}, Linux {}, {}</p>\n",
        escape(flow),
        ns(report.counters.ended.saturating_sub(meta.started) as f64),
        escape(&meta.host),
        escape(&meta.kernel),
        count(report.counters.events, "event")
    );
    let lost = text::lost(report);
    if !lost.is_empty() {
        let _ = writeln!(out, "<p class=\"bad\">{}</p>", escape(&lost.join(" ")));
    }
    out
}

/// Everything about a VM.
pub(super) fn vm(label: &str, advice: &Advice, vm: &VmReport) -> String {
    let label = if label.is_empty() { String::new() } else { format!(": {}", escape(label)) };
    let mut out = format!("<h2>{}{label}</h2>\n<p class=\"soft\">pid {}</p>\n", escape(&vm.name), vm.pid);
    if vm.total.is_some() {
        let _ = writeln!(out, "<p class=\"verdict\">{}</p>", escape(&vm.verdict.headline));
        out += &details(vm);
    } else {
        for (i, paragraph) in advice.absence.iter().enumerate() {
            let class = if i == 0 { "verdict" } else { "" };
            let _ = writeln!(out, "<p class=\"{class}\">{}</p>", escape(paragraph));
        }
    }
    out += &tiles(vm);
    out += &reasons(vm);
    if let Some(total) = &vm.total {
        let stages = || vm.stages.iter().map(|s| s.stage);
        let time: Vec<_> = vm.stages.iter().map(|s| (s.stage, s.time_share)).collect();
        let fluctuation: Vec<_> = vm.stages.iter().map(|s| (s.stage, s.fluctuation_share)).collect();
        out += "<h3>Where the time goes, and what makes it fluctuate</h3>\n";
        out +=
            &chart::stacked(&[chart::shares("time", &time), chart::shares("fluctuation", &fluctuation)], 8.0);
        out += &chart::legend(stages());
        out += "<h3>Response time by percentile, logarithmic</h3>\n";
        out += &percentiles::chart(&[("response time", total)]);
        if !vm.slowest.is_empty() {
            out += "<h3>Slowest requests</h3>\n";
            out += &chart::waterfalls(&vm.slowest);
        }
        out += "<h3>Stages</h3>\n";
        out += &table(vm);
    }
    for (title, direction) in
        [("Packets toward the guest", &vm.inbound), ("Packets from the guest", &vm.outbound)]
    {
        out += &directions(title, direction);
    }
    out
}

/// The figures below the verdict's headline.
fn details(vm: &VmReport) -> String {
    let mut out = String::from("<dl>");
    let blamed = vm.blamed().map(|f| ("what it means".to_owned(), f.explanation.clone()));
    let doubts =
        vm.blamed().filter(|f| !f.doubts.is_empty()).map(|f| ("doubts".to_owned(), f.doubts.join("; ")));
    for (label, text) in text::details(vm).into_iter().chain(blamed).chain(doubts) {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(&label), escape(&text));
    }
    out + "</dl>\n"
}

fn tiles(vm: &VmReport) -> String {
    let mut tiles: Vec<(String, String)> = Vec::new();
    let mut add = |value: String, what: &str| tiles.push((value, what.to_owned()));
    let r = &vm.requests;
    add(r.complete.to_string(), "complete requests");
    for (n, what) in r.left_out() {
        add(n.to_string(), what);
    }
    if let Some(d) = &vm.total {
        for (value, what) in [(d.p50, "p50"), (d.p99, "p99"), (d.max, "max")] {
            add(ns(value as f64), what);
        }
    }
    if let Some(g) = &vm.groups {
        add(g.complete.to_string(), "SIP calls");
        add(ns(g.total.p50 as f64), "p50 of a call");
        add(ns(g.outside.p50 as f64), "of that outside this host");
    }
    if let Some(d) = &vm.depth {
        add(format!("{} / {}", d.p99, d.max), "waiting on the tap, p99 / max");
    }
    let tile = |(value, what)| format!("<div class=\"tile\"><b>{value}</b><span>{what}</span></div>");
    format!("<div class=\"tiles\">{}</div>\n", tiles.into_iter().map(tile).collect::<String>())
}

/// Why requests are not complete.
fn reasons(vm: &VmReport) -> String {
    if vm.left_out.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<h3>Requests that are in no figure</h3>\n<div class=\"scroll\"><table><tr><th>why</th><th>outcome</th>\
         <th>to blame</th><th>requests</th></tr>\n",
    );
    for l in &vm.left_out {
        let blame = match l.blame {
            Blame::Host => "the host",
            Blame::Guest => "the guest",
            Blame::Teiji => "teiji",
            Blame::Nobody => "nobody",
        };
        let (why, outcome) = (escape(&l.explanation), l.outcome.name());
        let _ =
            writeln!(out, "<tr><td>{why}</td><td>{outcome}</td><td>{blame}</td><td>{}</td></tr>", l.count);
    }
    out + "</table></div>\n"
}

fn table(vm: &VmReport) -> String {
    let mut out = String::from(
        "<div class=\"scroll\"><table><tr><th>stage</th><th>mean</th><th>p50</th><th>p99</th><th>max</th>\
         <th>of time</th><th>of fluctuation</th></tr>\n",
    );
    for stage in &vm.stages {
        let blamed = vm.blamed_stage() == Some(stage.stage);
        let d = &stage.dist;
        let _ = writeln!(
            out,
            "<tr{}><td title=\"{}\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            if blamed { " class=\"blamed\"" } else { "" },
            escape(&chart::meaning(stage.stage)),
            stage.stage.name(),
            ns(d.mean),
            ns(d.p50 as f64),
            ns(d.p99 as f64),
            ns(d.max as f64),
            percent(stage.time_share),
            percent(stage.fluctuation_share)
        );
        out += &parts(stage);
    }
    out + "</table></div>\n"
}

fn parts(stage: &StageReport) -> String {
    let mut out = String::new();
    let Some(actor) = stage.stage.actor() else { return out };
    for part in stage.parts.iter().filter(|p| p.mean > 0.0) {
        let _ = writeln!(
            out,
            "<tr class=\"part\"><td>{}</td><td>{}</td><td></td><td></td><td></td><td>{}</td><td>{}</td></tr>",
            part.state.name(actor),
            ns(part.mean),
            percent(part.time_share),
            percent(part.fluctuation_share)
        );
    }
    out
}

fn directions(title: &str, direction: &DirectionReport) -> String {
    if direction.stages.is_empty() {
        return String::new();
    }
    let mut out =
        format!("<h3>{title}</h3>\n<p class=\"soft\">{} followed", count(direction.packets, "packet"));
    if direction.incomplete > 0 {
        let _ = write!(out, ", {} with a point missing", direction.incomplete);
    }
    out += "</p>\n<div class=\"scroll\"><table><tr><th>stage</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th><th>max</th></tr>\n";
    for (stage, d) in &direction.stages {
        let _ = writeln!(
            out,
            "<tr><td title=\"{}\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&chart::meaning(*stage)),
            stage.name(),
            ns(d.mean),
            ns(d.p50 as f64),
            ns(d.p90 as f64),
            ns(d.p99 as f64),
            ns(d.max as f64)
        );
    }
    out + "</table></div>\n"
}
