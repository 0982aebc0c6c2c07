//! Several reports side by side, VM by VM.

use super::frame::both;
use super::{chart, percentiles};
use crate::terminal::printable;
use crate::units::duration;
use maud::{Markup, html};
use teiji_model::report::{Report, VmReport};
use teiji_model::stage::Stage;

/// Bars whose lengths differ by more than this factor are not drawn to the same scale.
const LONGEST: f64 = 8.0;

/// Charts and a table for every VM that has requests in at least two reports. The other reports are compared with the
/// first.
pub(super) fn all(reports: &[(&str, &Report)]) -> Markup {
    let mut names: Vec<&str> = Vec::new();
    for vm in reports.iter().flat_map(|(_, r)| &r.vms) {
        if !names.contains(&vm.name.as_str()) {
            names.push(&vm.name);
        }
    }
    let find = |name: &str, r: &'_ Report| r.vms.iter().position(|vm| vm.name == name && vm.total.is_some());
    html! {
        @for name in names {
            @let vms: Vec<(&str, &VmReport)> =
                reports.iter().filter_map(|(label, r)| Some((*label, &r.vms[find(name, r)?]))).collect();
            @if vms.len() > 1 { (one(name, &vms)) }
        }
    }
}

fn one(name: &str, vms: &[(&str, &VmReport)]) -> Markup {
    let totals: Vec<_> = vms.iter().filter_map(|(label, vm)| Some((*label, vm.total.as_ref()?))).collect();
    html! {
        h2 { (name) ": compared" }
        @for (label, vm) in vms { p { b { (label) } ": " (vm.verdict.headline) } }
        h3 { "Response time by percentile, logarithmic" }
        (both(|frame| percentiles::chart(frame, &totals)))
        (means(vms))
        (table(vms))
    }
}

/// Bars as long as the mean response times; if the shortest would be invisible, all bars have the same length.
fn means(vms: &[(&str, &VmReport)]) -> Markup {
    let total = |vm: &VmReport| vm.total.as_ref().map_or(0.0, |t| t.mean);
    let most = vms.iter().map(|(_, vm)| total(vm)).fold(1.0, f64::max);
    let alike = vms.iter().any(|(_, vm)| total(vm) < most / LONGEST);
    let heading =
        if alike { "Mean time by stage; each bar is 100 % of its mean" } else { "Mean time by stage" };
    let row = |(label, vm): &(&str, &VmReport)| {
        let whole = if alike { vm.stages.iter().map(|s| s.dist.mean).sum::<f64>().max(1.0) } else { most };
        chart::Row {
            label: crate::terminal::shorten(&printable(label), 16),
            parts: vm
                .stages
                .iter()
                .map(|s| {
                    (s.stage, s.dist.mean / whole, format!("{}: {}", s.stage.name(), duration(s.dist.mean)))
                })
                .collect(),
            note: duration(total(vm)),
        }
    };
    let stages = vms.first().into_iter().flat_map(|(_, vm)| vm.stages.iter().map(|s| s.stage));
    html! {
        h3 { (heading) }
        (both(|frame| chart::stacked(frame, &vms.iter().map(row).collect::<Vec<_>>(), 76.0)))
        (chart::legend(stages))
    }
}

fn table(vms: &[(&str, &VmReport)]) -> Markup {
    let total = |f: fn(&teiji_model::report::Dist) -> f64| {
        vms.iter().map(move |(_, vm)| vm.total.as_ref().map(f)).collect::<Vec<_>>()
    };
    let mut rows = vec![
        ("response p50".to_owned(), total(|d| d.p50 as f64)),
        ("response p99".to_owned(), total(|d| d.p99 as f64)),
        ("response max".to_owned(), total(|d| d.max as f64)),
        ("standard deviation".to_owned(), total(|d| d.stddev)),
    ];
    for stage in Stage::ALL {
        let p99 = |vm: &VmReport| vm.stages.iter().find(|s| s.stage == stage).map(|s| s.dist.p99 as f64);
        let values: Vec<Option<f64>> = vms.iter().map(|(_, vm)| p99(vm)).collect();
        if values.iter().flatten().any(|v| *v > 0.0) {
            rows.push((format!("{} p99", stage.name()), values));
        }
    }
    html! {
        div.scroll {
            table {
                tr {
                    th {}
                    @for (i, (label, _)) in vms.iter().enumerate() {
                        th { (label) }
                        @if i > 0 { th { "change" } }
                    }
                }
                @for (name, values) in &rows { (row(name, values)) }
            }
        }
    }
}

fn row(name: &str, values: &[Option<f64>]) -> Markup {
    let first = values.first().copied().flatten();
    html! {
        tr {
            td { (name) }
            @for (i, value) in values.iter().enumerate() {
                td { (value.map_or_else(|| "-".to_owned(), duration)) }
                @if i > 0 {
                    @let (class, text) = change(first, *value);
                    td class=(class) { (text) }
                }
            }
        }
    }
}

/// The factor by which it is shorter or longer; a change of less than 5 % counts as the same.
fn change(before: Option<f64>, after: Option<f64>) -> (&'static str, String) {
    let (Some(before), Some(after)) = (before, after) else { return ("", "-".to_owned()) };
    if before <= 0.0 || after <= 0.0 {
        return ("", if before == after { "same" } else { "-" }.to_owned());
    }
    let ratio = before / after;
    match ratio {
        r if r >= 1.05 => ("better", format!("{} × shorter", factor(r))),
        r if r <= 1.0 / 1.05 => ("worse", format!("{} × longer", factor(1.0 / r))),
        _ => ("", "same".to_owned()),
    }
}

/// At most three digits, at most one of them after the point.
fn factor(ratio: f64) -> String {
    let decimals = usize::from(ratio < 99.95);
    format!("{ratio:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::change;

    #[test]
    fn changes_are_named_from_the_first() {
        assert_eq!(change(Some(40.0), Some(10.0)), ("better", "4.0 × shorter".into()));
        assert_eq!(change(Some(10.0), Some(25.0)), ("worse", "2.5 × longer".into()));
        assert_eq!(change(Some(100.0), Some(102.0)).1, "same");
        assert_eq!(change(Some(16.91), Some(2490.29)).1, "147 × longer");
        assert_eq!((change(None, Some(1.0)).1, change(Some(0.0), Some(0.0)).1), ("-".into(), "same".into()));
    }
}
