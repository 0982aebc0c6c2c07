//! Guests with vCPUs whose numbers in KVM are not their indices, and with NICs with several queues.

use super::{LAB, guest};
use teiji_experiments::load;
use teiji_experiments::path::{accuracy, agrees, comparable, enough, excused, few, late, only};
use teiji_experiments::tracing::{Lab, Trace};
use teiji_lab::{Guest, GuestSpec};
use teiji_model::event::{EventKind, Point};
use teiji_model::report::{Blame, LeftOut, Outcome, Reason};

/// Requests for each vCPU.
const EACH: u64 = 60;

/// Makes one vCPU handle all interrupts of the guest's receive queues, from the next interrupt on.
fn receive_on(guest: &Guest<'_>, vcpu: u32) {
    let script = format!(
        "set -e; irqs=$(grep -E 'virtio[0-9]+-input' /proc/interrupts | cut -d: -f1); test -n \"$irqs\"; \
         for i in $irqs; do echo {vcpu} > /proc/irq/$i/smp_affinity_list; done"
    );
    guest.run(&script).unwrap().ok().unwrap();
}

/// Packets that each vCPU has received, as the guest counts them. Not its interrupts: one of them may bring many packets
/// if the vCPU comes late.
fn taken(guest: &Guest<'_>, vcpus: u32) -> Vec<u64> {
    let text = guest.run("cat /proc/net/softnet_stat").unwrap().ok().unwrap();
    let processed = |line: &str| u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let all: Vec<u64> = text.lines().map(processed).collect();
    assert_eq!(all.len(), vcpus as usize, "{text}");
    all
}

/// Sends requests with the receive interrupt on each vCPU in turn, and compares the trace with a capture: all answered
/// requests are complete, attributed to the vCPU that handled them, and have the times of the capture.
fn followed_on_each_vcpu(lab: &Lab, guest: &Guest<'_>, vcpus: u32) -> accuracy::Agreement {
    let make = || {
        let (mut took, mut moved, mut received) = (Vec::new(), Vec::new(), Vec::new());
        let agreement = accuracy::run_under(lab, guest, &accuracy::CASES[0], || {
            for vcpu in 0..vcpus {
                receive_on(guest, vcpu);
                // The guest moves an interrupt only when the next one arrives.
                let before = taken(guest, vcpus);
                let mut answered = 0;
                for _ in 0..10 {
                    if taken(guest, vcpus)[vcpu as usize] > before[vcpu as usize] {
                        break;
                    }
                    answered += load::echo(&lab.host, guest, 50.0, 5)?.received;
                }
                let then = taken(guest, vcpus);
                answered += load::echo(&lab.host, guest, 50.0, EACH)?.received;
                received.push(answered);
                let after = taken(guest, vcpus);
                let since = |then: &[u64]| after.iter().zip(then).map(|(a, b)| a - b).collect::<Vec<_>>();
                took.push(since(&before));
                moved.push(since(&then));
            }
            Ok(())
        })
        .unwrap();
        (agreement, took, moved, received)
    };
    let (agreement, took, moved, received) =
        comparable(make, |(agreement, ..)| agreement.few_excused()).unwrap();
    let on = |vcpu: u32| agreement.joined.iter().filter(|j| u32::from(j.request.vcpu) == vcpu).count();
    let shown: Vec<usize> = (0..vcpus).map(on).collect();
    eprintln!(
        "{}\nby vCPU: {shown:?}, packets by the guest's count: {took:?}",
        serde_json::to_string(&agreement).unwrap()
    );

    agreement.check(0.999, 0).unwrap();
    for (vcpu, (took, received)) in took.iter().zip(received).enumerate() {
        let all: u64 = took.iter().sum();
        let others = all - took[vcpu];
        enough(received, EACH).unwrap();
        // Until the interrupt was moved, which may take some requests, others took them.
        let after_that: u64 = moved[vcpu].iter().sum();
        assert!(
            2 * moved[vcpu][vcpu] > after_that,
            "vCPU {vcpu} did not take the packets: {:?}",
            moved[vcpu]
        );
        assert!(shown[vcpu] > 0, "vCPU {vcpu}: none shown, {took:?}");
        // The requests that skipped runs of probes cost may all be on one vCPU.
        let wanted = received.saturating_sub(others + agreement.excused);
        assert!(shown[vcpu] as u64 + 2 >= wanted, "vCPU {vcpu}: {} shown, {took:?}", shown[vcpu]);
    }
    assert_eq!(shown.iter().sum::<usize>(), agreement.joined.len());
    agreement
}

/// The numbers of the vCPUs in KVM are 0, 1, 2, 4, 5, 6.
pub fn two_sockets_of_three_cores_are_followed_on_each_vcpu() {
    let lab: &Lab = &LAB;
    let spec = GuestSpec { vcpus: 6, topology: "sockets=2,cores=3".into(), ..GuestSpec::named("sockets") };
    let (guest, server) = guest(lab, &spec);
    let vms = lab.host.run("/mnt/bin/teiji vms --json").unwrap().ok().unwrap();
    let vms: serde_json::Value = serde_json::from_str(&vms).unwrap();
    let shown = vms["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == "sockets").unwrap();
    let numbers: Vec<_> = shown["vcpus"].as_array().unwrap().iter().map(|v| v["kvm_id"].as_u64()).collect();
    assert_eq!(numbers, [0, 1, 2, 4, 5, 6].map(Some));
    followed_on_each_vcpu(lab, &guest, 6);
    drop(server);
}

/// Queues of a guest's NIC with kicks, and those with frames, from the events of a recording.
fn queues(recording: &std::path::Path) -> (Vec<u16>, Vec<u16>) {
    let (mut kicked, mut sent) = (Vec::new(), Vec::new());
    for event in late::events(recording).unwrap() {
        match event.kind {
            EventKind::Kick(kick) => kicked.push(kick.queue),
            EventKind::Packet(p) if p.point == Point::TapSend => {
                sent.push(p.queue.expect("a frame without a queue"))
            }
            _ => {}
        }
    }
    for list in [&mut kicked, &mut sent] {
        list.sort_unstable();
        list.dedup();
    }
    (kicked, sent)
}

pub fn five_vcpus_and_four_queues_are_followed_on_each() {
    let lab: &Lab = &LAB;
    let spec = GuestSpec { vcpus: 5, queues: 4, ..GuestSpec::named("queues") };
    let (guest, server) = guest(lab, &spec);
    guest.run("ethtool -L $(ls /sys/class/net | grep -v lo | head -n1) combined 4; true").unwrap();
    let shown = guest.run("grep -cE 'virtio[0-9]+-input' /proc/interrupts").unwrap().ok().unwrap();
    assert_eq!(shown.trim(), "4", "the guest has not four receive queues");
    followed_on_each_vcpu(lab, &guest, 5);

    // Two servers on different vCPUs answer through different queues at the same time, so that each one's kicks come
    // between the other's kick and frame. Each worker has its own CPU: if workers share one, they preempt each other
    // within a probe, and runs of the probe are skipped.
    let workers = guest.vhost_tids();
    assert_eq!(workers.len(), 4, "one for each queue");
    for (cpu, worker) in workers.iter().enumerate() {
        lab.host.run(&format!("taskset -pc {cpu} {worker}")).unwrap().ok().unwrap();
    }
    let second = guest.spawn("exec taskset -c 3 teiji-lab udp-echo --port 8").unwrap();
    second.wait_for("serving", std::time::Duration::from_secs(120)).unwrap();
    let make = || {
        let trace = Trace::start(lab, "queues", "--vm queues --flow 'udp port 7'", true).unwrap();
        let other = format!(
            "exec ip netns exec peer taskset -c {} teiji-lab udp-load --to {}:8 --rate 300 --count 1200 --json",
            load::CALLER_CPU,
            guest.ip()
        );
        let other = lab.host.spawn(&other).unwrap();
        let figures = load::echo(&lab.host, &guest, 50.0, 150).unwrap();
        other.wait().unwrap().ok().unwrap();
        (trace.stop().unwrap(), figures)
    };
    let (traced, figures) = comparable(make, few).unwrap();
    let counts = only(&traced.report).unwrap().requests;
    let gone = traced.report.lost_or_missed();
    eprintln!("{counts:?}, {gone} events lost or missed, {figures:?}");
    agrees("complete", counts.complete, figures.answered(), excused(&traced).unwrap()).unwrap();
    let left_out = &only(&traced.report).unwrap().left_out;
    let count = |wanted: fn(&LeftOut) -> bool| -> u64 {
        left_out.iter().filter(|l| l.outcome == Outcome::Incomplete && wanted(l)).map(|l| l.count).sum()
    };
    let by_loss = count(|l| l.reason == Reason::EventsLost);
    let stalled = count(|l| l.reason == Reason::ArrivalUnknown);
    let out_of_order = count(|l| l.reason == Reason::OutOfOrder);
    assert_eq!(
        count(|l| l.blame == Blame::Teiji),
        by_loss + stalled + out_of_order,
        "requests are incomplete for a reason that no event explains: {left_out:?}"
    );
    assert!(gone > 0 || by_loss == 0, "{gone} events lost or missed: {left_out:?}");
    let recording = traced.recording.unwrap();
    let (kicked, sent) = queues(&recording);
    eprintln!("queues kicked {kicked:?}, of frames {sent:?}");
    assert!(kicked.len() > 1, "only the queues {kicked:?} were kicked: this test needs more than one");
    assert!(sent.iter().all(|q| kicked.contains(q)), "frames of {sent:?}, kicks of {kicked:?}");
    drop((server, second));
}
