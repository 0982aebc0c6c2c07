//! How requests spend their time in the guest, by what the guest reported.

use super::stages::{bar_cells, head};
use super::{WIDTH, wrap};
use crate::table::{Cell, Table};
use crate::terminal::{Style, Tone};
use crate::units::{count, duration, percent};
use teiji_model::report::{GuestStream, Inside, InsidePart, InsideState, VmReport};
use teiji_model::stage::Actor;

/// The table of parts, and what is remarkable about threads and queues. `guest` is the guest's stream.
pub(super) fn lines(vm: &VmReport, guest: Option<&GuestStream>, style: &Style) -> Vec<String> {
    let Some(inside) = &vm.inside else { return Vec::new() };
    let mut lines = vec![String::new()];
    lines.extend(wrap(&title(inside, guest), WIDTH));
    if !inside.parts.is_empty() {
        let mut table = Table::default();
        table.row(head("part", "of guest time", "of its fluctuation"));
        for part in &inside.parts {
            let d = &part.dist;
            let mut row = vec![Cell::from(part.part.name()), Cell::right(duration(d.mean))];
            row.extend([d.p50, d.p99, d.max].map(|v| Cell::right(duration(v as f64))));
            row.extend(bar_cells(part.time_share, part.fluctuation_share, Tone::Plain, style));
            table.row(row);
        }
        lines.extend(table.lines(style));
    }
    lines.extend(remarks(inside).iter().flat_map(|remark| wrap(remark, WIDTH)));
    lines
}

/// What the guest reported, and how far it can be believed.
pub(crate) fn title(inside: &Inside, guest: Option<&GuestStream>) -> String {
    let mut text = format!("in the guest: {} measured", count(inside.divided, "request"));
    if inside.undivided > 0 {
        text += &format!(", {} with an event missing", inside.undivided);
    }
    if inside.violations > 0 {
        text += &format!(", {} with times out of order", inside.violations);
    }
    if inside.clock_unknown > 0 {
        text += &format!(", {} while the guest's clock was not exact enough", inside.clock_unknown);
    }
    if inside.contradictions > 0 {
        text += &format!("; vCPU state not known for {} of those measured", inside.contradictions);
    }
    if let Some(guest) = guest {
        text += &format!("; clock error at most {}", duration(guest.clock_error as f64));
        if guest.lost > 0 {
            text += &format!("; {} lost", count(guest.lost, "event"));
        }
    }
    text
}

/// What the vCPU concerned was doing in a part: the shares of the part's time, largest first; `None` if nothing is known.
fn states(part: &InsidePart) -> Option<String> {
    let share = |s: &InsideState| if part.dist.mean > 0.0 { s.mean / part.dist.mean } else { 0.0 };
    let mut all: Vec<&InsideState> = part.states.iter().filter(|s| share(s) >= 0.005).collect();
    all.iter().any(|s| s.state.is_some()).then(|| {
        all.sort_by(|a, b| share(b).total_cmp(&share(a)));
        let name = |s: &InsideState| s.state.map_or("not known", |state| state.name(Actor::Vcpu));
        let each = |s: &&InsideState| format!("{} {}", name(s), percent(share(s)));
        format!("  vCPU in {}: {}", part.part.name(), all.iter().map(each).collect::<Vec<_>>().join(", "))
    })
}

/// What the vCPUs did, and what is remarkable about threads and queues.
pub(crate) fn remarks(inside: &Inside) -> Vec<String> {
    let of = |n: u64| percent(n as f64 / inside.divided.max(1) as f64);
    let mut remarks: Vec<String> = inside.parts.iter().filter_map(states).collect();
    if let Some(wake_up) = &inside.wake_up {
        remarks.push(format!(
            "  {} found the reader asleep; from its wake-up to running: p50 {}  p99 {}  max {}",
            of(inside.asleep),
            duration(wake_up.p50 as f64),
            duration(wake_up.p99 as f64),
            duration(wake_up.max as f64)
        ));
    }
    if inside.moved > 0 {
        remarks.push(format!(
            "  {} of requests were read on another vCPU than the one that received them",
            of(inside.moved)
        ));
    }
    if inside.new_threads > 0 {
        remarks.push(format!(
            "  {} of requests were answered by a thread created for that request",
            of(inside.new_threads)
        ));
    }
    if let Some(backlog) = inside.backlog.filter(|backlog| backlog.max > 0) {
        remarks.push(format!(
            "  packets ahead in the socket's queue: p50 {}  p99 {}  max {}  mean {:.1}",
            backlog.p50, backlog.p99, backlog.max, backlog.mean
        ));
    }
    remarks
}
