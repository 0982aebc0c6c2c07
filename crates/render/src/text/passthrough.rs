//! NICs that were given to a VM: how their interrupts reached the guest, and the requests by them.

use super::{WIDTH, reasons, stages};
use crate::table::Table;
use crate::terminal::{Style, Tone, printable, shorten, wrap};
use crate::units::{count, percent};
use teiji_model::report::{Passthrough, PassthroughRequests};

/// What is not seen, and what helps; each a sentence.
pub(crate) fn remarks(p: &Passthrough) -> Vec<String> {
    let mut remarks = Vec::new();
    if p.interrupts == 0 {
        remarks.push(
            "no interrupt was seen: there was none, or hardware delivers them to the guest (posted interrupts), or the module \
             vfio_pci_core was loaded after the trace had begun"
                .to_owned(),
        );
    } else if p.not_accepted > 0 {
        remarks.push(format!("{} that no vCPU was seen to accept", count(p.not_accepted, "interrupt")));
    }
    match &p.requests {
        None => remarks.push(
            "the host does not see these packets, and the guest reported no echo request by these NICs: that needs `teiji trace \
             --guest --match echo`, a teiji-guest of this version in the guest, and such requests"
                .to_owned(),
        ),
        Some(r) => {
            remarks.push(
                "response: from the host's interrupt handler until the guest gives the answer to its driver; the time in the NIC \
                 and on the wire is not in it"
                    .to_owned(),
            );
            if r.without_interrupt > 0 {
                let total = r.without_interrupt_total.as_ref().map(stages::figures).unwrap_or_default();
                remarks.push(format!(
                    "{} without an interrupt that was certainly their own (other packets came first, or the driver was polling): \
                     when they came is not known, and they are not in these figures. From reception in the guest to the answer: {total}",
                    count(r.without_interrupt, "request")
                ));
            }
        }
    }
    remarks
}

/// Where most of the time goes, in at most 12 words; `None` if no request began with an interrupt.
pub(crate) fn headline(r: &PassthroughRequests) -> Option<String> {
    let most = r.stages.iter().max_by(|a, b| a.time_share.total_cmp(&b.time_share))?;
    let whose = if most.stage.guest_part().is_some() { "in the guest" } else { "on the host" };
    Some(format!("{} of the time is {}, {whose}", percent(most.time_share), most.stage.name()))
}

/// The NICs, their interrupts, and the requests by them.
pub(super) fn lines(p: &Passthrough, style: &Style) -> Vec<String> {
    let mut lines = vec![String::new()];
    let labelled = |label: &str, text: &str| -> Vec<String> {
        let each = wrap(text, WIDTH - 11).into_iter().enumerate();
        each.map(|(i, l)| format!("{:11}{l}", if i == 0 { label } else { "" })).collect()
    };
    let nics: Vec<String> = p
        .nics
        .iter()
        .map(|nic| format!("{} ({})", shorten(&printable(&nic.what()), 24), printable(&nic.address)))
        .collect();
    let nics = if nics.is_empty() { "none at the end of the trace".to_owned() } else { nics.join(", ") };
    lines.extend(labelled("NICs given", &nics));
    let mut interrupts = p.interrupts.to_string();
    if let Some(d) = &p.until_guest_entry {
        interrupts += &format!(", from the host's handler to the guest entry: {}", stages::figures(d));
    }
    lines.extend(labelled("interrupts", &interrupts));
    if let Some(r) = &p.requests {
        let mut text = format!("{} by these NICs, {} complete", r.counts.seen, r.counts.complete);
        for (n, what) in r.counts.left_out() {
            text += &format!(", {n} {what}");
        }
        lines.extend(labelled("requests", &text));
        lines.extend(reasons(&r.left_out));
        lines.extend(r.total.iter().map(|d| format!("{:11}{}", "response", stages::figures(d))));
        lines.extend(headline(r).map(|headline| format!("   {headline}")));
    }
    lines.extend(remarks(p).iter().flat_map(|text| wrap(text, WIDTH - 3)).map(|l| format!("   {l}")));
    if let Some(r) = p.requests.as_ref().filter(|r| !r.stages.is_empty()) {
        lines.push(String::new());
        lines.extend(table(r, style));
    }
    lines
}

fn table(r: &PassthroughRequests, style: &Style) -> Vec<String> {
    let mut table = Table::default();
    table.row(stages::head("stage", "of time", "of fluctuation"));
    for s in &r.stages {
        let shares = [s.time_share, s.fluctuation_share];
        table.row(stages::row(s.stage.name(), &s.dist, shares, Tone::Plain, style));
    }
    table.lines(style)
}
