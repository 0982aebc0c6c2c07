//! Reports, plans and hosts as text, at most [`WIDTH`] columns wide.

pub mod agent;
pub(crate) mod bursts;
mod calls;
pub mod diagnosis;
pub mod doctor;
pub mod guarantees;
pub(crate) mod inside;
pub mod links;
pub mod numa;
pub mod numa_bench;
pub(crate) mod outgoing;
pub(crate) mod passthrough;
pub mod plan;
pub mod policy;
mod stages;
pub mod status;
pub(crate) mod threads;
pub mod traces;
pub mod vms;
mod waterfall;

pub use waterfall::{cells, dominant};

use crate::terminal::{Style, Tone, columns, pad, printable, shorten, wrap};
use crate::units::{count, duration, percent};
use teiji_model::advice::Advice;
use teiji_model::host::DataPlane;
use teiji_model::report::{
    Connections, Finding, GuestStream, LargePackets, LeftOut, NicLosses, Preemptor, Report, RequestCounts,
    VmReport,
};

/// Columns of the widest line.
pub const WIDTH: usize = 100;

/// The width of labels beside a text, columns.
const LABEL: usize = 12;

/// A text beside its label.
fn labelled(label: &str, text: &str, style: &Style) -> Vec<String> {
    let label = |i| if i == 0 { label } else { "" };
    let lines = wrap(text, WIDTH - LABEL - 2).into_iter().enumerate();
    lines.map(|(i, text)| beside(label(i), &text, style)).collect()
}

/// A line beside its label, as it is.
fn beside(label: &str, line: &str, style: &Style) -> String {
    let blank = " ".repeat(LABEL.saturating_sub(columns(label)));
    format!("  {}{blank}{line}", style.paint(Tone::Faint, label))
}

/// A report as text; `advice` has an entry for each of its VMs, in their order.
pub fn report(report: &Report, advice: &[Advice], style: &Style) -> String {
    let mut lines = vec![heading(report)];
    lines.extend(lost(report).iter().map(|l| style.paint(Tone::Bad, l)));
    lines.extend(discarded(report));
    if report.vms.is_empty() {
        lines.push("no VM was traced".to_owned());
    }
    let none = Advice::default();
    for (i, vm) in report.vms.iter().enumerate() {
        lines.push(String::new());
        // A guest that connected again has several streams: its last one counts.
        let guest = report.guests.iter().rfind(|guest| guest.pid == vm.pid);
        lines.extend(section(vm, guest, advice.get(i).unwrap_or(&none), style));
        lines.extend(served(report, vm).iter().flat_map(|text| wrap(text, WIDTH)));
    }
    let mut out = String::new();
    for line in lines {
        out += style.ascii(&line).trim_end();
        out.push('\n');
    }
    out
}

/// What was traced, where and for how long.
fn heading(report: &Report) -> String {
    let meta = &report.meta;
    let flow = if meta.watch.flow_text.is_empty() { "all packets" } else { &meta.watch.flow_text };
    let seconds = duration(report.counters.ended.saturating_sub(meta.started) as f64);
    let text = format!(
        "{} · {seconds} on {}, Linux {}",
        printable(flow),
        printable(&meta.host),
        printable(&meta.kernel)
    );
    shorten(&text, WIDTH)
}

/// NIC counters that grew no more than is usual: see [`NicCounter::is_usual`](teiji_model::event::NicCounter::is_usual).
pub fn discarded(report: &Report) -> Vec<String> {
    let usual = report.nic_losses.iter().filter(|loss| is_usual(report, loss));
    usual.flat_map(|loss| nic_loss(loss, "discarded", ", as many as is usual")).collect()
}

fn is_usual(report: &Report, loss: &NicLosses) -> bool {
    let length = report.counters.ended.saturating_sub(report.meta.started);
    loss.counter.is_usual(loss.packets, length)
}

fn nic_loss(loss: &NicLosses, verb: &str, more: &str) -> Vec<String> {
    let text = format!(
        "{} {verb} {} ({}: {}){more}",
        printable(&loss.device),
        count(loss.packets, "packet"),
        loss.counter.name(),
        loss.counter.meaning()
    );
    wrap(&text, WIDTH)
}

/// What the tracer lost, if anything, and what NICs lost, more than is usual.
pub fn lost(report: &Report) -> Vec<String> {
    let counters = &report.counters;
    let by_cpu: Vec<String> = counters
        .lost
        .iter()
        .enumerate()
        .filter(|(_, n)| **n > 0)
        .map(|(cpu, n)| format!("CPU {cpu}: {n}"))
        .collect();
    let mut lines = Vec::new();
    if !by_cpu.is_empty() {
        let total = counters.lost.iter().fold(0u64, |a, &n| a.saturating_add(n));
        let text = format!(
            "lost {} of {} ({}); requests with a missing point are left out: trace less with --flow, or raise --buffer",
            count(total, "event"),
            total.saturating_add(counters.events),
            by_cpu.join(", ")
        );
        lines.extend(wrap(&text, WIDTH));
    }
    let remedy = "give vhost workers and vCPUs CPUs of their own, or trace fewer VMs";
    if counters.missed > 0 {
        let text = format!(
            "missed {} of probes, which the kernel skips while the same probe is running on that CPU; requests of \
             that time are left out: {remedy}",
            count(counters.missed, "run")
        );
        lines.extend(wrap(&text, WIDTH));
    }
    if report.skipped_signals > 0 {
        let text = format!(
            "the kernel skipped a probe in {} of vhost workers, because the same probe was running on that CPU; requests \
             whose packets they delivered are left out: {remedy}",
            count(report.skipped_signals, "signal")
        );
        lines.extend(wrap(&text, WIDTH));
    }
    let late = report.late_beyond_window();
    if late > 0 {
        let text = format!(
            "{} came too late to be used: between the time stamp and the hand-over, the CPU was stopped (by a hypervisor \
             below this host, or by firmware), or the thread was preempted (on a preemptible kernel, if threads share a \
             busy CPU); requests of that time are left out (of a late signal, those of its packets only): give vhost workers and vCPUs CPUs of their own, or look at \
             the hypervisor below",
            count(late, "event")
        );
        lines.extend(wrap(&text, WIDTH));
    }
    if report.late_no_room > 0 {
        let text = format!(
            "{} came too late to be used, as too many events waited to be sorted, and the oldest could not wait any \
             longer; requests of that time are left out: trace less with --flow",
            count(report.late_no_room, "event")
        );
        lines.extend(wrap(&text, WIDTH));
    }
    let nic_losses = report.nic_losses.iter().filter(|loss| !is_usual(report, loss));
    lines.extend(
        nic_losses.flat_map(|loss| nic_loss(loss, "lost", "; which requests they were of is not known")),
    );
    if report.not_followed > 0 {
        let text = format!(
            "{} came during the trace and {} not followed: there is room for 1,024 in one trace",
            count(report.not_followed, "VM"),
            if report.not_followed == 1 { "was" } else { "were" }
        );
        lines.extend(wrap(&text, WIDTH));
    }
    if counters.unidentified > 0 {
        let text = format!(
            "{} could not be identified (not IP, by XDP, or read by a VMM as they came)",
            count(counters.unidentified, "packet")
        );
        lines.push(text);
    }
    lines
}

/// What the vhost worker stands for, if the VM has taps without one.
pub fn served(report: &Report, vm: &VmReport) -> Option<String> {
    let traced = report.meta.vms.iter().find(|traced| traced.pid == vm.pid && traced.pid != 0)?;
    let by_vmm = traced.nics.iter().filter(|nic| nic.data_plane == DataPlane::Userspace);
    let taps: Vec<String> = by_vmm.map(|nic| printable(&nic.tap)).collect();
    (!taps.is_empty()).then(|| {
        format!(
            "served by the VMM (vhost=off): {}; \"vhost worker\" means the VMM's thread that reads the tap",
            taps.join(", ")
        )
    })
}

fn section(vm: &VmReport, guest: Option<&GuestStream>, advice: &Advice, style: &Style) -> Vec<String> {
    let name = shorten(&printable(&vm.name), 40);
    let mut lines = vec![format!("{}  pid {}{}", style.paint(Tone::Strong, &name), vm.pid, lifetime(vm))];
    lines.push(requests(&vm.requests));
    lines.extend(reasons(&vm.left_out));
    lines.extend(calls::sent_again(&vm.requests.sent_again));
    lines.extend(vm.connections.iter().flat_map(connections));
    lines.extend(large(vm));
    match &vm.total {
        None => {
            lines.push(String::new());
            for paragraph in &advice.absence {
                lines.extend(wrap(paragraph, WIDTH));
            }
            lines.extend(stages::directions(vm, style));
        }
        Some(total) => {
            lines.push(format!(
                "response   p50 {}  p90 {}  p99 {}  p99.9 {}  max {}  mean {}",
                duration(total.p50 as f64),
                duration(total.p90 as f64),
                duration(total.p99 as f64),
                duration(total.p999 as f64),
                duration(total.max as f64),
                duration(total.mean)
            ));
            if let Some(groups) = &vm.groups {
                lines.extend(calls::lines(groups, style));
            }
            lines.push(String::new());
            lines.extend(verdict(vm, style));
            lines.push(String::new());
            lines.extend(what_would_help(&advice.help, style));
            lines.push(String::new());
            lines.extend(stages::table(vm, style));
            lines.extend(inside::lines(vm, guest, style));
            lines.extend(waterfall::lines(vm, style));
            lines.extend(threads::lines(vm, style));
        }
    }
    lines.extend(vm.outgoing.iter().flat_map(|o| outgoing::lines(o, style)));
    lines.extend(vm.passthrough.iter().flat_map(|p| passthrough::lines(p, style)));
    if let Some(depth) = &vm.depth {
        lines.push(String::new());
        lines.push(format!(
            "waiting behind each packet taken off the tap: p50 {}  p99 {}  max {}  mean {:.1}  ({})",
            depth.p50,
            depth.p99,
            depth.max,
            depth.mean,
            count(depth.count, "packet")
        ));
    }
    lines.extend(bursts::lines(vm.bursts.as_ref()));
    lines
}

/// When the VM came and ended, if that was during the trace.
fn lifetime(vm: &VmReport) -> String {
    let came = vm.came.map(|ns| format!("  came after {}", duration(ns as f64)));
    let ended = vm.ended.map(|ns| format!("  ended after {}", duration(ns as f64)));
    came.into_iter().chain(ended).collect()
}

fn requests(r: &RequestCounts) -> String {
    let mut text = format!("requests   {} seen, {} complete", r.seen, r.complete);
    for (n, what) in r.left_out() {
        text += &format!(", {n} {what}");
    }
    text
}

/// How many reasons are printed; JSON and HTML have all of them.
const MAX_REASONS: usize = 6;

/// Why requests are not complete, most frequent first.
fn reasons(left_out: &[LeftOut]) -> Vec<String> {
    let mut all: Vec<&LeftOut> = left_out.iter().collect();
    all.sort_by_key(|l| std::cmp::Reverse(l.count));
    let line = |l: &&LeftOut| {
        let text = format!("{} {}: {}", l.count, l.outcome.name(), printable(&l.explanation));
        wrap(&text, WIDTH - 11).into_iter().map(|l| format!("           {l}")).collect::<Vec<_>>()
    };
    let mut lines: Vec<String> = all.iter().take(MAX_REASONS).flat_map(line).collect();
    if all.len() > MAX_REASONS {
        let rest: u64 = all[MAX_REASONS..].iter().map(|l| l.count).sum();
        lines
            .push(format!("           {rest} for {} other reasons: --json has all", all.len() - MAX_REASONS));
    }
    lines
}

/// TCP connections, and what the requests on them are.
fn connections(c: &Connections) -> Vec<String> {
    let mut text = format!("{} seen", c.seen);
    if c.client_not_known > 0 {
        text += &format!(
            ", {} of them without requests: open before the trace began, and the filter does not say which \
             end is the server (use `dst port N`)",
            c.client_not_known
        );
    }
    if c.interleaved > 0 {
        text += &format!(", {} whose sides spoke at the same time", c.interleaved);
    }
    if c.of_several_segments > 0 {
        text += &format!(
            "; {} of several segments (all requests: {}): of requests that are sent without waiting the first is measured",
            count(c.of_several_segments, "request"),
            count(c.segments, "segment")
        );
    }
    let lines = wrap(&text, WIDTH - 11).into_iter().enumerate();
    lines.map(|(i, l)| format!("{:11}{l}", if i == 0 { "TCP" } else { "" })).collect()
}

/// Packets that stand for several segments, by direction.
fn large(vm: &VmReport) -> Vec<String> {
    let directions = [("toward the guest", &vm.inbound), ("from the guest", &vm.outbound)];
    let each =
        directions.iter().filter_map(|(title, d)| Some(format!("{title}: {}", large_packets(&d.large)?)));
    let text = each.collect::<Vec<_>>().join("; ");
    let lines = wrap(&text, WIDTH - 11).into_iter().filter(|l| !l.is_empty()).enumerate();
    lines.map(|(i, l)| format!("{:11}{l}", if i == 0 { "large" } else { "" })).collect()
}

/// How many large packets there are, and what they stand for; `None` if there are none.
pub(crate) fn large_packets(l: &LargePackets) -> Option<String> {
    (l.packets > 0).then(|| {
        format!(
            "{} for {} (GSO, GRO), the largest for {}",
            count(l.packets, "packet"),
            count(l.segments, "segment"),
            l.largest
        )
    })
}

/// The verdict's headline, with its figures below.
fn verdict(vm: &VmReport, style: &Style) -> Vec<String> {
    let mut lines: Vec<String> = wrap(&printable(&vm.verdict.headline), WIDTH - 4)
        .iter()
        .enumerate()
        .map(|(i, l)| style.paint(Tone::Strong, &format!("{} {l}", if i == 0 { "=>" } else { "  " })))
        .collect();
    let details = details(vm);
    let width = details.iter().map(|(label, _)| columns(label)).max().unwrap_or(0);
    for (label, text) in &details {
        for (i, line) in wrap(text, WIDTH.saturating_sub(width + 5)).iter().enumerate() {
            let label = if i == 0 { label.as_str() } else { "" };
            lines.push(format!("   {}  {line}", style.paint(Tone::Faint, &pad(label, width))));
        }
    }
    lines
}

/// Policy lines that would help, with comments.
fn what_would_help(help: &[String], style: &Style) -> Vec<String> {
    let mut lines = vec!["what would help (--suggest prints it as a policy)".to_owned()];
    lines.extend(help.iter().map(|line| {
        let tone = if line.starts_with('#') { Tone::Faint } else { Tone::Good };
        format!("   {}", style.paint(tone, line))
    }));
    lines
}

/// The figures below a verdict's headline, each with its label; the threads that preempted others come last.
pub fn details(vm: &VmReport) -> Vec<(String, String)> {
    let mut all: Vec<_> =
        vm.verdict.details.iter().map(|d| (printable(&d.label), printable(&d.text))).collect();
    let preempted_by = vm.blamed().map(preemptors).unwrap_or_default();
    if !preempted_by.is_empty() {
        all.push(("preempted by".to_owned(), preempted_by));
    }
    all
}

/// The threads that preempted that of a finding, the first five.
pub(crate) fn preemptors(finding: &Finding) -> String {
    let each = |p: &Preemptor| {
        let name = if p.name.is_empty() { "a thread" } else { &p.name };
        format!("{} (thread {}) {}", printable(name), p.tid, percent(p.share))
    };
    finding.preempted_by.iter().take(5).map(each).collect::<Vec<_>>().join(", ")
}
