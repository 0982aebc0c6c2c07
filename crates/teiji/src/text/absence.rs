//! Why a report has no request, as far as what was seen tells.

use crate::terminal::printable;
use crate::units::count;
use teiji_model::flow::{Direction, Matching};
use teiji_model::host::DataPlane;
use teiji_model::report::{Report, VmReport};

/// What was seen, and why there may be no complete request: paragraphs.
pub fn why(report: &Report, vm: &VmReport) -> Vec<String> {
    let watch = &report.meta.watch;
    let (inbound, outbound) = (packets(&vm.inbound), packets(&vm.outbound));
    let seen = format!(
        "No complete request was seen; {} toward the guest, {} from it, {} in all.",
        count(inbound, "packet"),
        count(outbound, "packet"),
        count(report.counters.events, "event")
    );
    let mut why = vec![seen];
    let r = &vm.requests;
    let dropped: u64 = vm.left_out.iter().filter(|l| l.dropped.is_some()).map(|l| l.count).sum();
    let lost = report.counters.gone() > 0;
    if watch.matching == Matching::None {
        why.push("Requests were not looked for (--match none): packets were followed one way.".into());
    } else if watch.direction != Direction::Both {
        why.push("Requests need --direction both: one direction never shows a response.".into());
    } else if r.incomplete > 0 && dropped == r.incomplete {
        why.push("The host dropped the requests or their responses: where and why is said above.".into());
    } else if r.incomplete > 0 && lost {
        why.push("Events were lost, so stages are missing: narrow --flow, or raise --buffer.".into());
    } else if r.incomplete > 0 {
        why.push("Requests were answered, but a point of the path was not seen: packets may take another way through this host (XDP, another bridge, hardware offload).".into());
    } else if r.ambiguous > 0 {
        why.push("Packets alike were on the path at once, so responses cannot be told apart.".into());
    } else if r.seen > 0 && outbound == 0 {
        why.push("Requests reached the guest and it sent nothing back: look for the service, or a firewall, in the guest.".into());
    } else if r.seen > 0 {
        why.push(format!(
            "Requests reached the guest, and no packet from it answers one by --match {}: if another protocol is spoken, choose another matching; if responses take longer than the trace did, trace longer with --for.",
            name(watch.matching)
        ));
    } else if inbound > 0 {
        why.push(format!(
            "Packets passed, and none of them is a request for --match {}: choose another matching, or follow packets one way with --match none.",
            name(watch.matching)
        ));
    } else if outbound > 0 {
        why.push("The guest only sends; requests to it are what is measured.".into());
    } else if watch.flow_text.is_empty() {
        why.push("No packet passed its taps: is there traffic?".into());
    } else {
        why.push(format!(
            "No packet that fits `{}` passed its taps: is there such traffic? Without --flow every packet is followed.",
            printable(&watch.flow_text)
        ));
    }
    why.extend(taps(report, vm));
    why
}

/// What its NICs have to do with it.
fn taps(report: &Report, vm: &VmReport) -> Option<String> {
    let vm = report.meta.vms.iter().find(|v| v.pid == vm.pid)?;
    let userspace: Vec<&str> =
        vm.nics.iter().filter(|n| n.data_plane == DataPlane::Userspace).map(|n| n.tap.as_str()).collect();
    if vm.nics.is_empty() {
        Some("The VM has no tap, so nothing can be followed to it.".into())
    } else if !userspace.is_empty() {
        let taps = printable(&userspace.join(", "));
        Some(format!(
            "The VMM serves {taps} itself; packets can only be followed through vhost-net (QEMU: vhost=on)."
        ))
    } else {
        None
    }
}

fn packets(leg: &teiji_model::report::Leg) -> u64 {
    leg.packets.saturating_add(leg.incomplete)
}

fn name(matching: Matching) -> &'static str {
    match matching {
        Matching::Echo => "echo",
        Matching::Sip => "sip",
        Matching::None => "none",
    }
}
