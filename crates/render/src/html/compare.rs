//! Several reports side by side, VM by VM.

use super::{chart, escape, percentiles};
use crate::units::ns;
use std::fmt::Write;
use teiji_model::report::{Report, VmReport};
use teiji_model::stage::Stage;

/// Bars whose lengths differ by more than this factor are not drawn to the same scale.
const LONGEST: f64 = 8.0;

/// Charts and a table for every VM that has requests in at least two reports. The other reports are compared with the
/// first.
pub(super) fn all(reports: &[(&str, &Report)]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for vm in reports.iter().flat_map(|(_, r)| &r.vms) {
        if !names.contains(&vm.name.as_str()) {
            names.push(&vm.name);
        }
    }
    names.iter().map(|name| one(name, reports)).collect()
}

fn one(name: &str, reports: &[(&str, &Report)]) -> String {
    let find = |r: &'_ Report| r.vms.iter().position(|vm| vm.name == name && vm.total.is_some());
    let vms: Vec<(&str, &VmReport)> =
        reports.iter().filter_map(|(label, r)| Some((*label, &r.vms[find(r)?]))).collect();
    if vms.len() < 2 {
        return String::new();
    }
    let mut out = format!("<h2>{}: compared</h2>\n", escape(name));
    for (label, vm) in &vms {
        let _ = writeln!(out, "<p><b>{}</b>: {}</p>", escape(label), escape(&vm.verdict.headline));
    }
    out += "<h3>Response time by percentile, logarithmic</h3>\n";
    let totals: Vec<_> = vms.iter().filter_map(|(label, vm)| Some((*label, vm.total.as_ref()?))).collect();
    out += &percentiles::chart(&totals);
    out += &means(&vms);
    out + &table(&vms)
}

/// Bars as long as the mean response times; if the shortest would be invisible, all bars have the same length.
fn means(vms: &[(&str, &VmReport)]) -> String {
    let total = |vm: &VmReport| vm.total.as_ref().map_or(0.0, |t| t.mean);
    let most = vms.iter().map(|(_, vm)| total(vm)).fold(1.0, f64::max);
    let alike = vms.iter().any(|(_, vm)| total(vm) < most / LONGEST);
    let heading =
        if alike { "Mean time by stage; each bar is 100 % of its mean" } else { "Mean time by stage" };
    let row = |(label, vm): &(&str, &VmReport)| {
        let whole = if alike { vm.stages.iter().map(|s| s.dist.mean).sum::<f64>().max(1.0) } else { most };
        chart::Row {
            label: escape(&crate::terminal::shorten(label, 16)),
            parts: vm
                .stages
                .iter()
                .map(|s| (s.stage, s.dist.mean / whole, format!("{}: {}", s.stage.name(), ns(s.dist.mean))))
                .collect(),
            note: ns(total(vm)),
        }
    };
    let stages = vms.first().into_iter().flat_map(|(_, vm)| vm.stages.iter().map(|s| s.stage));
    let bars = chart::stacked(&vms.iter().map(row).collect::<Vec<_>>(), 90.0);
    format!("<h3>{heading}</h3>\n{bars}{}", chart::legend(stages))
}

fn table(vms: &[(&str, &VmReport)]) -> String {
    let mut out = String::from("<div class=\"scroll\"><table><tr><th></th>");
    for (i, (label, _)) in vms.iter().enumerate() {
        let change = if i > 0 { "<th>change</th>" } else { "" };
        let _ = write!(out, "<th>{}</th>{change}", escape(label));
    }
    out += "</tr>\n";
    let total = |f: fn(&teiji_model::report::Dist) -> f64| {
        vms.iter().map(move |(_, vm)| vm.total.as_ref().map(f)).collect::<Vec<_>>()
    };
    out += &row("response p50", &total(|d| d.p50 as f64));
    out += &row("response p99", &total(|d| d.p99 as f64));
    out += &row("response max", &total(|d| d.max as f64));
    out += &row("standard deviation", &total(|d| d.stddev));
    for stage in Stage::ALL {
        let p99 = |vm: &VmReport| vm.stages.iter().find(|s| s.stage == stage).map(|s| s.dist.p99 as f64);
        let values: Vec<Option<f64>> = vms.iter().map(|(_, vm)| p99(vm)).collect();
        if values.iter().flatten().any(|v| *v > 0.0) {
            out += &row(&format!("{} p99", stage.name()), &values);
        }
    }
    out + "</table></div>\n"
}

fn row(name: &str, values: &[Option<f64>]) -> String {
    let mut out = format!("<tr><td>{name}</td>");
    let first = values.first().copied().flatten();
    for (i, value) in values.iter().enumerate() {
        let _ = write!(out, "<td>{}</td>", value.map_or_else(|| "-".to_owned(), ns));
        if i > 0 {
            let (class, text) = change(first, *value);
            let _ = write!(out, "<td class=\"{class}\">{text}</td>");
        }
    }
    out + "</tr>\n"
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
