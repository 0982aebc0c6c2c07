//! A guest with a virtual function of an SR-IOV NIC (VFIO), in one boot of the lab. Needs root; takes minutes if the lab host is
//! emulated.
//!
//! ```text
//!  peer: caller ─ wire0 ═══════ igb, VF ─► interrupt ─► vCPU ─► guest: igbvf ─ stack ─ echo server
//!           capture                          teiji            capture, teiji-guest
//! ```
//! The capture at the wire's far end contains each request as teiji sees it; the one in the guest is contained in it. (Except, at its
//! beginning, a request of an interrupt that came for no packet: LIMITATIONS, Data planes.)

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use teiji_experiments::load::{self, Figures};
use teiji_experiments::numbers;
use teiji_experiments::path::{agrees, comparable, is_few, only};
use teiji_experiments::pcap::{self, Exchange, Pairing, Side};
use teiji_experiments::reporting::{self, START};
use teiji_experiments::tracing::{self, Lab, Trace, Traced};
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest, PF, Spec, WIRE};
use teiji_model::event::{Delivery, DeviceInterrupt, Event, EventKind, GuestEntry};
use teiji_model::guest;
use teiji_model::report::{Passthrough, PassthroughRequest, PassthroughStage, Reason};
use teiji_model::stream::{Change, Changed, Item};

const TRACE: &str = "--vm vm1 --flow 'udp port 7'";
const REQUESTS: u64 = 160;
/// Less than one in 100 ms: for so long after a poll that found several packets, or none of its own, it is not known which interrupt was whose.
const PER_S: f64 = 7.0;
/// So many with an interrupt of their own make a median.
const ENOUGH: u64 = 20;

static LAB: Shared<Lab> = Shared::new("the lab", || {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("passthrough");
    Lab::boot_as(&out, Spec { passthrough: true, ..Spec::default() }).unwrap()
});
/// A guest with two vCPUs, a virtual function, and an echo server.
static VM1: Shared<(Guest<'static>, Child)> = Shared::new("the guest vm1", || {
    let guest = reporting::guest_with_vf(&LAB, "vm1").unwrap();
    let server = load::echo_server(&LAB.host, &guest).unwrap();
    load::echo_by_vf(&LAB.host, &guest, 20.0, 20).unwrap();
    (guest, server)
});

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        vms_names_the_virtual_function,
        without_the_guests_program_the_interrupts_are_seen,
        interrupts_before_and_after_the_trace_are_left_out,
        requests_are_followed_from_the_interrupt_to_the_guests_driver,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

fn vm1() -> &'static Guest<'static> {
    &VM1.0
}

/// How often the virtual function has interrupted the lab host, as the kernel counts it.
fn interrupts() -> u64 {
    let lines = format!("grep 'vfio-msix.*{}' /proc/interrupts", vm1().vf().unwrap());
    let printed = LAB.host.run(&lines).unwrap().ok().unwrap();
    let count = |line: &str| -> u64 {
        line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()
    };
    printed.lines().map(count).sum()
}

fn given(traced: &Traced) -> &Passthrough {
    only(&traced.report).unwrap().passthrough.as_ref().unwrap()
}

fn vms_names_the_virtual_function() {
    let at = vm1().vf().unwrap();
    let number = "for v in /sys/bus/pci/devices/0000:01:00.0/virtfn*; do echo $(basename $(readlink $v)) ${v##*virtfn}; done";
    let numbers = LAB.host.run(number).unwrap().ok().unwrap();
    let number = numbers.lines().find_map(|line| line.strip_prefix(at)).unwrap().trim();
    let text = LAB.host.run("/mnt/bin/teiji vms").unwrap().ok().unwrap();
    eprintln!("{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(at)).collect();
    assert!(lines[0].contains(&format!("VF {number} of {PF}")), "{text}");
    assert!(lines[1].contains("packets are not seen (VFIO), interrupts at most"), "{text}");
    let json = LAB.host.run("/mnt/bin/teiji vms --json").unwrap().ok().unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let given = &json["vms"][0]["given"][0];
    assert_eq!((given["address"].as_str(), given["function"]["link"].as_str()), (Some(at), Some(PF)));
    assert_eq!(given["function"]["number"].to_string(), number);
}

/// A trace, and how many interrupts the kernel counted: during the load, and around the whole trace.
struct Counted {
    traced: Traced,
    during: u64,
    around: u64,
}

fn count() -> Counted {
    let first = interrupts();
    let trace = Trace::start(&LAB, "silent", TRACE, true).unwrap();
    let before = interrupts();
    let called = load::echo_by_vf(&LAB.host, vm1(), 50.0, 100).unwrap();
    let after = interrupts();
    // The last ones are still on their way.
    std::thread::sleep(Duration::from_secs(2));
    let traced = trace.stop().unwrap();
    let (during, around) = (after - before, interrupts() - first);
    eprintln!("{called:?}: {during} interrupts by the kernel, {around} around it, {:?}", given(&traced));
    assert!(called.received > 0);
    Counted { traced, during, around }
}

/// As many as the kernel counts, each with the vCPU that accepted it.
fn without_the_guests_program_the_interrupts_are_seen() {
    vm1();
    let few = |counted: &Counted| {
        let Counted { traced, during, around } = counted;
        let lost = traced.report.lost_or_missed();
        agrees("interrupts", given(traced).interrupts, *during..=*around, lost)?;
        Ok(is_few(lost, *during))
    };
    let Counted { traced, .. } = comparable(count, few).unwrap();
    let given = given(&traced);
    let lost = traced.report.lost_or_missed();
    assert!(given.not_accepted <= lost, "{given:?}");
    assert!(given.requests.is_none(), "{given:?}");
    let events = tracing::events(traced.recording.as_deref().unwrap()).unwrap();
    let (mut at_the_end, mut not_accepted) = (0, 0);
    for event in &events {
        let EventKind::DeviceInterrupt(i) = event.kind else { continue };
        assert!(i.began <= event.ts && i.vm == vm1().pid(), "{i:?}");
        not_accepted += u64::from(i.delivery != Delivery::Accepted);
        at_the_end += u64::from(event.ts + 2_000_000_000 > traced.report.counters.ended);
    }
    assert_eq!(not_accepted, given.not_accepted);
    // Each has a guest entry, also if the NIC interrupted several times before it.
    let delivery = given.until_guest_entry.unwrap();
    let delivered = delivery.count + lost + at_the_end;
    assert!(delivered >= given.interrupts && delivery.min > 0, "{delivery:?}");
    assert!(delivery.count <= given.interrupts, "{delivery:?}");
    let (_, replayed) = tracing::passthrough(traced.recording.as_deref().unwrap()).unwrap();
    assert!(tracing::printed(&replayed) == traced.report, "replay differs from the live report");
}

/// While the probes are attached and detached one after the other, who accepts an interrupt may not be seen.
fn interrupts_before_and_after_the_trace_are_left_out() {
    let ping = format!("exec ip netns exec peer ping -q -i 0.02 {}", vm1().vf_ip());
    let ping = LAB.host.spawn(&ping).unwrap();
    let trace = Trace::start(&LAB, "before", TRACE, true).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let traced = trace.stop().unwrap();
    ping.kill().unwrap();
    let given = given(&traced);
    assert!(given.interrupts > 0 && given.not_accepted <= traced.report.lost_or_missed(), "{given:?}");
    let events = tracing::events(traced.recording.as_deref().unwrap()).unwrap();
    let started = traced.report.meta.started;
    let early =
        events.iter().find(|event| matches!(event.kind, EventKind::DeviceInterrupt(_)) && event.ts < started);
    assert!(early.is_none(), "{early:?}");
}

/// What `teiji-lab capture` prints.
#[derive(Debug, Deserialize)]
struct Counts {
    dropped: u64,
    realtime_minus_monotonic_ns: i64,
}

/// A capture of the requests to the virtual function.
struct Capture {
    child: Child,
    within: Option<&'static Guest<'static>>,
    file: String,
}

impl Capture {
    fn start(place: &str, within: Option<&'static Guest<'static>>, interface: &str) -> Capture {
        let file = format!("/tmp/{place}.pcap");
        let capture = format!("teiji-lab capture --if {interface} --snap 1000 --out {file}");
        let child = match within {
            Some(guest) => guest.spawn(&format!("exec {capture}")),
            None => LAB.host.spawn(&format!("exec ip netns exec peer {capture}")),
        };
        let child = child.unwrap();
        child.wait_for("capturing", START).unwrap();
        Capture { child, within, file }
    }

    fn stop(self, side: Side) -> Result<(Vec<Exchange>, Counts)> {
        let id = self.child.id()?;
        let run = |command: &str| match self.within {
            Some(guest) => guest.run(command),
            None => LAB.host.run(command),
        };
        run(&format!("kill -INT {id}"))?.ok()?;
        let printed = self.child.wait()?.ok()?;
        let counts: Counts = serde_json::from_str(printed.lines().last().unwrap_or_default())?;
        ensure!(counts.dropped == 0, "the capture {} lacks packets: {counts:?}", self.file);
        let file = run(&format!("cat {}", self.file))?.stdout;
        let pairs = pcap::pair(&pcap::packets(&file)?, vm1().vf_ip(), Pairing::Udp, side);
        ensure!(pairs.repeated == 0, "{pairs:?}");
        Ok((pairs.exchanges, counts))
    }
}

/// A trace, and what was counted and captured meanwhile.
struct Compared {
    traced: Traced,
    called: Figures,
    all: Vec<PassthroughRequest>,
    /// On the clock of the trace.
    wire: Vec<Exchange>,
    guest: HashMap<u64, u64>,
}

fn compare() -> Compared {
    let _polling = load::polling(&LAB.host, 0).unwrap();
    let interface = format!("grep -lx {} /sys/class/net/*/address", vm1().vf_mac());
    let interface = vm1().run(&interface).unwrap().ok().unwrap();
    let interface = interface.split('/').nth(4).unwrap().to_owned();
    let captures = [Capture::start("wire", None, WIRE), Capture::start("vf", Some(vm1()), &interface)];
    let load = || {
        // Until the guest's clock has been measured, its reports are not used.
        std::thread::sleep(Duration::from_secs(3));
        load::echo_by_vf(&LAB.host, vm1(), PER_S, REQUESTS)
    };
    let (traced, called) = reporting::traced(&LAB, "vf", &format!("{TRACE} --guest"), load).unwrap();
    let [wire, guest] = captures;
    let (mut wire, counts) = wire.stop(Side::Downlink).unwrap();
    let (guest, _) = guest.stop(Side::Uplink).unwrap();
    for exchange in &mut wire {
        exchange.start = exchange.start.checked_add_signed(-counts.realtime_minus_monotonic_ns).unwrap();
    }
    let (all, replayed) = tracing::passthrough(traced.recording.as_deref().unwrap()).unwrap();
    assert!(tracing::printed(&replayed) == traced.report, "replay differs from the live report");
    Compared { traced, called, all, wire, guest: guest.into_iter().map(|e| (e.id, e.total)).collect() }
}

/// For so long after an interrupt that no vCPU was seen to accept others are in doubt, ns.
const IN_DOUBT: u64 = 100_000_000;

/// Of how many requests the guest entry with their interrupt cannot be certain, by what the host and the guest recorded: of the first
/// interrupt of a vCPU; if the clocks do not tell whether such an entry came before the guest's previous interrupt on that vCPU, or after
/// it; around an interrupt that no vCPU was seen to accept; if hardware delivered several at once.
fn in_doubt(recording: &Path) -> Result<u64> {
    let items = tracing::items(recording)?;
    let (mut interrupts, mut clocks) = (Vec::new(), Vec::new());
    for (n, item) in items.iter().enumerate() {
        match item {
            Item::Event(Event { ts, kind: EventKind::DeviceInterrupt(i), .. }) => interrupts.push((*ts, *i)),
            Item::Change(Change { what: Changed::Clock { mapping, .. }, .. }) => clocks.push((n, *mapping)),
            _ => {}
        }
    }
    let takes_any = |g: &GuestEntry| {
        let takes = |i: &DeviceInterrupt| i.vector == g.vector || i.by_hardware && g.vector == 0;
        interrupts.iter().any(|(_, i)| i.vcpu == g.vcpu && takes(i))
    };
    // In the lab the guest numbers its vCPUs as KVM does.
    let entry = |e: &Event| match &e.kind {
        EventKind::GuestEntry(g) if takes_any(g) => Some((g.vcpu, e.ts)),
        _ => None,
    };
    let entries: Vec<(u32, u64)> = items.iter().filter_map(Item::event).filter_map(entry).collect();
    let mut count = 0;
    for (n, item) in items.iter().enumerate() {
        let Item::Event(Event { cpu, kind: EventKind::Guest(guest::EventKind::Matched(m)), .. }) = item
        else {
            continue;
        };
        let measured = clocks.partition_point(|(at, _)| *at < n);
        let [.., (_, clock)] = clocks[..measured] else { continue };
        if m.sent || !m.own {
            continue;
        }
        // The greatest so far counts, and the clock may be measured again while the request is handled.
        let error = clocks.iter().take(measured + 1).map(|(_, clock)| clock.error).max().unwrap_or(0);
        let [previous, at] = [m.previous, m.interrupted].map(|own| clock.to_host(own));
        let between = |ts: u64| previous <= ts + error && ts <= at + error;
        let is_near =
            |(vcpu, entered): &(u32, u64)| *vcpu == u32::from(*cpu) && entered.abs_diff(previous) <= error;
        let by_hardware = interrupts.iter().filter(|(ts, i)| i.by_hardware && between(*ts)).count();
        let not_accepted = |(ts, i): &(u64, DeviceInterrupt)| {
            i.delivery == Delivery::Unknown && i.began <= at + error && previous <= ts + IN_DOUBT
        };
        let is_in_doubt = m.previous == 0
            || entries.iter().any(is_near)
            || interrupts.iter().any(not_accepted)
            || by_hardware > 1;
        count += u64::from(is_in_doubt);
    }
    Ok(count)
}

/// How many requests may be incomplete, as events, or reports of the guest, are missing by its and the host's own counts, or as their
/// interrupt cannot be certain by what these recorded ([`in_doubt`]); whether these are few. Nothing else may be left out.
fn excused(compared: &Compared) -> Result<(u64, bool)> {
    let Compared { traced, called, .. } = compared;
    let requests = given(traced).requests.as_ref().context("the guest reported no request")?;
    let [guest] = traced.report.guests[..] else { panic!("{:?}", traced.report.guests) };
    let count = |of: fn(Reason) -> bool| -> u64 {
        requests.left_out.iter().filter(|l| of(l.reason)).map(|l| l.count).sum()
    };
    let missing = traced.report.lost_or_missed() + guest.lost;
    let of_missing = count(|reason| matches!(reason, Reason::EventsLost | Reason::ReportMissing));
    let unknown = count(|reason| reason == Reason::InterruptUnknown);
    let in_doubt = in_doubt(traced.recording.as_deref().context("nothing was recorded")?)?;
    ensure!(
        unknown <= in_doubt + missing,
        "the interrupts of {unknown} requests are unknown, {in_doubt} are in doubt, {missing} events are missing"
    );
    let excused = if missing > 0 { of_missing } else { 0 } + unknown + guest.lost;
    agrees("seen", requests.counts.seen, called.received..=called.sent, guest.lost)?;
    agrees("complete", requests.counts.complete, called.answered(), excused + called.sent / 100)?;
    Ok((excused, is_few(excused, called.sent)))
}

fn requests_are_followed_from_the_interrupt_to_the_guests_driver() {
    vm1();
    let program = reporting::serve(vm1()).unwrap();
    let compared = comparable(compare, |compared| excused(compared).map(|(_, few)| few)).unwrap();
    program.kill().unwrap();
    let Compared { traced, called, all, wire, guest } = &compared;
    let given = given(traced);
    let requests = given.requests.as_ref().unwrap();
    eprintln!("{called:?} {requests:?} {:?}", traced.report.guests);
    let (excused, _) = excused(&compared).unwrap();
    // At least 99 % of those that were answered.
    let answered = called.received;
    assert!(
        requests.counts.complete + excused + answered / 100 >= answered,
        "{} of {answered} are complete, {excused} excused",
        requests.counts.complete
    );
    assert_eq!(all.len() as u64, requests.counts.complete);
    // Of each, the stages add up; without an interrupt of its own, three are not seen.
    let without_interrupt = all.iter().filter(|request| request.stages[0].is_none()).count() as u64;
    assert_eq!(without_interrupt, requests.without_interrupt);
    for request in all {
        assert_eq!(request.stages.iter().flatten().sum::<u64>(), request.total, "{request:?}");
        let unseen: Vec<usize> =
            (0..PassthroughStage::COUNT).filter(|i| request.stages[*i].is_none()).collect();
        assert!(unseen.is_empty() || unseen == [0, 1, 2], "{request:?}");
    }
    // Where the guest gets few of the machine's CPUs, it often polls still when the next one comes.
    assert!(
        requests.counts.complete >= without_interrupt + ENOUGH,
        "{without_interrupt} of {} without one",
        requests.counts.complete
    );
    // Each is within one exchange on the wire, another for each, and contains the one that the guest's own capture has. Of an interrupt
    // for which there was no packet yet, only what follows the reception in the guest is.
    let (mut used, mut shares, mut beyond) = (vec![false; wire.len()], Vec::new(), Vec::new());
    let mut early = 0;
    for request in all {
        let end = request.start + request.total;
        let received = request.start + request.stages[..3].iter().flatten().sum::<u64>();
        let contains = |e: &Exchange| e.start <= received && end <= e.start + e.total;
        let found = (0..wire.len()).rev().find(|i| !used[*i] && contains(&wire[*i]));
        let found = found.unwrap_or_else(|| panic!("no exchange on the wire contains {request:?}: {wire:?}"));
        used[found] = true;
        if wire[found].start > request.start {
            eprintln!("{} ns before its packet: {request:?}", wire[found].start - request.start);
            early += 1;
        } else if request.stages[0].is_some() {
            let inner = guest.get(&wire[found].id).copied().unwrap();
            assert!(inner <= request.total, "{inner} in the guest, {request:?}");
            shares.push(request.total as f64 / wire[found].total as f64);
            beyond.push((wire[found].total - request.total) as f64);
        }
    }
    // igbvf has the NIC interrupt it every 2 s, as if a packet had come. After a poll that may have left another one over, requests are
    // known.
    let meta = &traced.report.meta;
    let by_itself = (traced.report.counters.ended - meta.started) / 2_000_000_000 + 1;
    eprintln!(
        "{early} began before their packets came; {by_itself} interrupts by the driver, {without_interrupt} without one of their own"
    );
    assert!(early <= by_itself);
    let [share, beyond] = [shares, beyond].map(|of| numbers::median(&of));
    eprintln!("{share:.3} of the time on the wire is seen; {beyond:.0} ns are not");
    // The rest is that of two emulated NICs and of the caller's kernel.
    assert!(share > 0.3, "only {share} of the time on the wire is seen");
}
