//! Why a report has no complete request, concluded from what was seen.

use teiji_model::flow::{Direction, Matching};
use teiji_model::report::{Reason, Report, VmReport};
use teiji_model::text::{count, printable};

/// What was seen, and why there may be no complete request, in paragraphs.
pub fn why(report: &Report, vm: &VmReport) -> Vec<String> {
    let watch = &report.meta.watch;
    let (inbound, outbound) = (packets(&vm.inbound), packets(&vm.outbound));
    let seen = format!(
        "No complete request was seen on its taps; {} toward the guest, {} from it, {} in all.",
        count(inbound, "packet"),
        count(outbound, "packet"),
        count(report.counters.events, "event")
    );
    let mut why = vec![seen];
    if watch.matching == Matching::None {
        why.push("Requests were not looked for (--match none): packets were followed one way.".into());
    } else if watch.direction != Direction::Both {
        why.push("Requests need --direction both: one direction never shows a response.".into());
    } else if let Some(most) = vm.left_out.iter().max_by_key(|l| l.count) {
        why.push(advice(most.reason, report, outbound));
    } else if vm.outgoing.is_some() {
        why.push(
            "The guest is a client here: no packet is a request to it. Its own requests are shown below."
                .into(),
        );
    } else if let Some(given) = vm.passthrough.as_ref().filter(|_| inbound == 0 && outbound == 0) {
        why.push(match &given.requests {
            Some(r) => format!(
                "Requests came by NICs that were given to the VM instead ({} complete): see below.",
                r.counts.complete
            ),
            None => "The VM was given NICs, whose packets the host does not see: see below.".into(),
        });
        let requests = given.requests.iter().filter(|r| r.counts.complete == 0);
        if let Some(most) = requests.flat_map(|r| &r.left_out).max_by_key(|l| l.count) {
            why.push(advice(most.reason, report, outbound));
        }
    } else if inbound > 0 {
        why.push(format!(
            "Packets passed, and none of them is a request for --match {}: choose another matching, or follow packets one way with --match none.",
            watch.matching
        ));
    } else if outbound > 0 {
        why.push("The guest only sends packets, and none of them is a request that is followed (those over TCP are not): requests to the guest would come in.".into());
    } else if watch.flow_text.is_empty() {
        why.push("No packet passed its taps: is there traffic?".into());
    } else {
        why.push(format!(
            "No packet that fits `{}` passed its taps: is there such traffic? `dst port` means a port of the guest: requests that the guest sends pass `port`. Without --flow every packet is followed.",
            printable(&watch.flow_text)
        ));
    }
    why.extend(taps(report, vm));
    why
}

/// What the operator can do about the reason for which most requests were left out.
fn advice(reason: Reason, report: &Report, outbound: u64) -> String {
    let matching = report.meta.watch.matching;
    match reason {
        Reason::DroppedIn | Reason::DroppedOut => {
            "The host dropped the requests or their responses: see above where and why.".into()
        }
        Reason::NotTaken | Reason::NotEntered => {
            "The requests waited on the host for the guest: is the VM paused, or without CPU time?".into()
        }
        Reason::EventsLost => missing(report),
        Reason::NoAnswer if outbound == 0 => "Requests reached the guest and it sent nothing back: look for the service, or a firewall, in the guest.".into(),
        Reason::NoAnswer => format!(
            "Requests reached the guest, but --match {matching} finds no response to them: if the service uses another \
             protocol, choose another matching; if responses take longer than the trace did, trace longer with --for."
        ),
        Reason::Alike | Reason::SameKey | Reason::OtherCopy => {
            "Identical packets were on the path at once, so responses cannot be told apart.".into()
        }
        Reason::Interleaved => {
            "Clients and servers spoke at the same time (pipelining, TLS, notifications), and --match tcp sees sequence numbers only: \
             response times can be measured of clients that wait for each answer."
                .into()
        }
        Reason::SegmentMissing => "Segments were lost or overtaken on their way to this host: look at the network before it.".into(),
        Reason::Closed => "Connections ended before requests on them were answered: look at the service.".into(),
        Reason::LargePacket => {
            "Answers left the guest as large packets that the host splits, and only those of TCP are followed then: switch the \
             segmentation offload of UDP off in the guest (`ethtool -K DEVICE tx-udp-segmentation off`)."
                .into()
        }
        Reason::TraceEnded => "The trace ended before the requests did: trace longer with --for.".into(),
        Reason::ArrivalUnknown => {
            "vhost workers were stalled while they handed packets to guests, or the kernel skipped probes of them: give vhost workers \
             and vCPUs CPUs of their own, or trace fewer VMs."
                .into()
        }
        Reason::Evicted | Reason::TooManyTaps => "More packets were on the path at once than teiji follows: narrow --flow.".into(),
        Reason::OutOfOrder => {
            "Guests took packets before their interrupt was delivered, because they look into their ring once more after they have \
             enabled interrupts. Such requests cannot be timed: trace longer with --for; under less load fewer are affected."
                .into()
        }
        Reason::InterruptUnknown => {
            "The interrupts of NICs that were given to the VM may be posted by the IOMMU, or handled by the VMM; or the offsets of its \
             TSC cannot be read: see LIMITATIONS, data planes."
                .into()
        }
        Reason::ReportMissing => "The guest lost reports: narrow --flow.".into(),
        Reason::NotLearnt => "Only the first requests of a trace, or of a queue, were seen: trace longer with --for.".into(),
        Reason::NoInterrupt => {
            "No vCPU was seen to accept the interrupts of the NIC. teiji follows MSI-X only: if the NIC's lines in the guest's \
             /proc/interrupts say IO-APIC, enable MSI-X (QEMU: vectors=). With vhost=off, the thread that serves the tap may also \
             have lost its CPU: give it one with less to do."
                .into()
        }
        Reason::NotSignalled
        | Reason::NotForwarded
        | Reason::NotHandedOver
        | Reason::NotReceived
        | Reason::FewerReports => "A point of the path was not seen: packets may take another way through this host (XDP, another bridge, hardware offload).".into(),
    }
}

/// Each way in which events went missing, and what the operator can do about it.
fn missing(report: &Report) -> String {
    let counters = &report.counters;
    let ways = [
        (
            counters.lost.iter().any(|&n| n > 0),
            "Events were lost, so stages are missing: narrow --flow, or raise --buffer.",
        ),
        (
            counters.missed > 0,
            "The kernel skipped runs of probes, so stages are missing: give vhost workers and vCPUs CPUs of their own, or \
             trace fewer VMs.",
        ),
        (
            report.late_beyond_window() > 0,
            "Events came too late to be used, so stages are missing: see above what can stop them, and trace again, for \
             longer.",
        ),
        (
            report.late_no_room > 0,
            "More events waited to be sorted than there is room for, so stages are missing: narrow --flow.",
        ),
    ];
    let happened: Vec<&str> =
        ways.into_iter().filter(|(happened, _)| *happened).map(|(_, text)| text).collect();
    if happened.is_empty() {
        return "Events are missing, and it is not known why: trace again.".into();
    }
    happened.join(" ")
}

/// What the VM's NICs contribute.
fn taps(report: &Report, vm: &VmReport) -> Option<String> {
    let vm = report.meta.vms.iter().find(|v| v.pid == vm.pid)?;
    if vm.nics.is_empty() {
        return Some("The VM has no tap, so nothing can be followed to it.".into());
    }
    if vm.pid == 0 {
        return Some(
            "A tap by itself (--tap) shows the host's part of the path: trace its VM with --vm.".into(),
        );
    }
    let unseen =
        vm.nics.iter().filter_map(|nic| Some(format!("{}: {}.", printable(&nic.tap), nic.unseen()?)));
    let unseen: Vec<String> = unseen.collect();
    (!unseen.is_empty()).then(|| unseen.join(" "))
}

fn packets(direction: &teiji_model::report::DirectionReport) -> u64 {
    direction.packets.saturating_add(direction.incomplete)
}
