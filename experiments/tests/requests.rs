//! Requests of other protocols, to real servers in a guest, in one boot of the lab: the trace is compared with what the
//! client counts and with captures. Needs root; takes minutes if the lab host is emulated.

#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use serde::Deserialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use teiji_experiments::load::{self, CALLER_CPU};
use teiji_experiments::path;
use teiji_experiments::path::accuracy::{self, Agreement, Case};
use teiji_experiments::path::outgoing::{self, Found};
use teiji_experiments::pcap::{self, Pairing};
use teiji_experiments::reporting::Undo;
use teiji_experiments::tracing::Lab;
use teiji_lab::harness::{self, Shared};
use teiji_lab::{Child, Guest};
use teiji_model::report::{LargePackets, OutgoingStage};

static LAB: Shared<Lab> = Shared::new("the lab", || {
    Lab::boot(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("requests")).unwrap()
});
static VM1: Shared<Guest<'static>> =
    Shared::new("the guest vm1", || LAB.host.guest(&load::placed("vm1")).unwrap());

fn main() -> ExitCode {
    let tests = teiji_lab::tests![
        questions_to_a_dns_server_are_followed,
        turns_on_connections_to_an_http_server_are_requests,
        datagrams_are_matched_by_bytes_that_identify_them,
        requests_that_are_lost_on_their_way_are_followed_from_their_first_copy_at_the_host,
        large_packets_are_counted_and_followed_whether_or_not_the_host_splits_them,
        what_the_guest_itself_asks_is_divided_into_the_hosts_time_and_the_rest,
    ];
    harness::run(&tests, || LAB.if_made(|lab| lab.host.end()))
}

/// In an emulated machine, programs are first read over a network file system.
const START: Duration = Duration::from_secs(120);

/// What the client counts.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Called {
    sent: u64,
    received: u64,
    #[serde(default)]
    twice: u64,
}

/// Runs a program of this folder in `peer`.
fn call(name: &str, program: &[u8], arguments: &str) -> Called {
    LAB.host.put(&format!("/tmp/{name}"), program).unwrap();
    let command = format!(
        "ip netns exec peer taskset -c {CALLER_CPU} python3 /tmp/{name} {} {} {arguments}",
        VM1.ip(),
        load::in_time().as_secs_f64()
    );
    let printed = LAB.host.run_for(&command, Duration::from_secs(300)).unwrap().ok().unwrap();
    serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e}: {printed}"))
}

/// Compares a trace with captures while a client asks: see [`path::comparable`].
fn compared(case: &Case, ask: impl Fn() -> Called) -> (Agreement, Called) {
    let make = || {
        let mut called = None;
        let agreement = accuracy::run_under(&LAB, &VM1, case, || {
            called = Some(ask());
            Ok(())
        });
        (agreement.unwrap(), called.unwrap())
    };
    path::comparable(make, |(agreement, _)| agreement.few_excused()).unwrap()
}

/// What the captures and the client say is what the trace says: each answered request is complete, with times between
/// those of the captures on both sides, and none is made up.
#[track_caller]
fn agrees(a: &Agreement, called: Called) {
    eprintln!("{called:?} {}", serde_json::to_string(a).unwrap());
    a.check(0.999, 0).unwrap();
    assert_eq!(a.requests as u64, called.sent, "by the capture");
    assert!(a.answered as u64 >= called.received && called.received > 0, "by the capture and the client");
    let [seen, complete, ..] = a.counts;
    assert!(seen <= called.sent && seen + a.excused >= called.sent, "{:?} of {called:?}", a.counts);
    assert_eq!(complete, a.joined.len() as u64, "{:?}", a.counts);
}

/// The filter decides that it is DNS. Questions that are sent again are no further requests, and what is no question is
/// none.
fn questions_to_a_dns_server_are_followed() {
    let case = Case { name: "dns", pairing: Pairing::Dns, arguments: "--flow 'udp dst port 53'", rate: 50.0 };
    let server = VM1
        .spawn(
            "exec dnsmasq --keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts --user=root \
             --pid-file=/run/dns.pid --address=/example.test/10.1.2.3",
        )
        .unwrap();
    VM1.run_for("until grep -q ':0035 ' /proc/net/udp; do sleep 0.2; done", START).unwrap().ok().unwrap();
    let program = include_bytes!("requests/dns.py");
    call("dns.py", program, "30 20");
    let (agreement, called) = compared(&case, || call("dns.py", program, &format!("300 {}", case.rate)));
    agrees(&agreement, called);
    assert!(agreement.repeated as u64 >= called.twice, "{agreement:?}");
    assert!(
        agreement.retransmitted <= agreement.repeated as u64
            && agreement.retransmitted + agreement.excused >= called.twice,
        "{agreement:?}"
    );
    drop(server);
}

static HTTP: Shared<Child> = Shared::new("the HTTP server in vm1", || {
    let run = "exec python3 /tmp/http_server.py 8080";
    let server = VM1.spawn(&format!("cat >/tmp/http_server.py <<'END'\n{HTTP_SERVER}END\n{run}")).unwrap();
    VM1.run_for("until grep -q ':1F90 ' /proc/net/tcp; do sleep 0.2; done", START).unwrap().ok().unwrap();
    call("http_client.py", HTTP_CLIENT, "20 20 all");
    server
});
const HTTP_SERVER: &str = include_str!("requests/http_server.py");
const HTTP_CLIENT: &[u8] = include_bytes!("requests/http_client.py");

/// Sends HTTP requests of a kind while the trace runs.
fn http(name: &'static str, count: u32, kind: &str) -> (Agreement, Called) {
    let _server = &*HTTP;
    let case = Case { name, pairing: Pairing::Http, arguments: "--flow 'tcp port 8080'", rate: 30.0 };
    let ask = || call("http_client.py", HTTP_CLIENT, &format!("{count} {} {kind}", case.rate));
    let (agreement, called) = compared(&case, ask);
    agrees(&agreement, called);
    (agreement, called)
}

/// The filter decides that it is TCP. Several connections that are kept open and some that are not; requests and answers of
/// several segments; requests that are sent again, because the client hears nothing for a while.
fn turns_on_connections_to_an_http_server_are_requests() {
    let (agreement, called) = http("http", 300, "all");
    assert!(called.twice > 0 && agreement.repeated as u64 >= called.twice, "{agreement:?}");
    assert!(agreement.retransmitted + agreement.excused >= agreement.repeated as u64, "{agreement:?}");
}

/// Runs a command in the lab host when it is dropped.
fn undo(command: String) -> Undo<impl FnMut() -> anyhow::Result<()>> {
    Undo(move || {
        LAB.host.run(&command)?.ok()?;
        Ok(())
    })
}

/// A request that the network loses is none of the host until it is sent again.
fn requests_that_are_lost_on_their_way_are_followed_from_their_first_copy_at_the_host() {
    LAB.host.run("ip netns exec peer tc qdisc add dev eth0 root netem loss 5%").unwrap().ok().unwrap();
    let _lossless = undo("ip netns exec peer tc qdisc del dev eth0 root".into());
    let lost = http("lossy", 200, "get");
    eprintln!("{lost:?}");
}

/// The segments of HTTP with payload to or from the guest in a capture of a case that was run: how many frames each fills.
fn frames(case: &str, place: &str, to_guest: bool) -> Vec<u64> {
    let capture = std::fs::read(LAB.out.join(format!("{case}-{place}.pcap"))).unwrap();
    let mut all = Vec::new();
    for p in pcap::packets(&capture).unwrap() {
        let (guest, port) = if to_guest { (p.to, &p.data[2..4]) } else { (p.from, &p.data[..2]) };
        if p.proto == 6 && guest == VM1.ip() && port == 8080u16.to_be_bytes() {
            let header = usize::from(p.data[12] >> 4) * 4;
            // An MTU of 1500 less the IP header.
            all.push((p.len - header).div_ceil(1480 - header) as u64);
        }
    }
    all.retain(|frames| *frames > 0);
    all.sort_unstable();
    all
}

/// teiji's counts of large packets are those of the capture at the tap; these are returned.
#[track_caller]
fn large(a: &Agreement, case: &str, to_guest: bool) -> LargePackets {
    let mut all = frames(case, "inside", to_guest);
    all.retain(|frames| *frames > 1);
    let seen = LargePackets {
        packets: all.len() as u64,
        segments: all.iter().sum(),
        largest: all.iter().copied().max().unwrap_or(0),
    };
    let reported = a.large[usize::from(!to_guest)];
    eprintln!("{case}: {reported:?} of {seen:?}, {} excused", a.excused);
    path::agrees("large packets", reported.packets, seen.packets, a.excused).unwrap();
    path::agrees("segments", reported.segments, seen.segments, a.excused * seen.largest).unwrap();
    assert!(reported.largest == seen.largest || a.excused > 0 && reported.largest < seen.largest);
    seen
}

/// Answers of 20 to 60 kB begin with a packet that the guest leaves to others to split, requests of 20 kB with one that the
/// client leaves. Once they pass the host as they are. Once the tap and the link split them: requests and answers begin with a
/// large packet on one side of the host and with a segment on the other.
fn large_packets_are_counted_and_followed_whether_or_not_the_host_splits_them() {
    let (whole, called) = http("whole", 120, "large");
    for to_guest in [true, false] {
        let seen = large(&whole, "whole", to_guest);
        assert!(seen.packets >= if to_guest { called.sent / 3 } else { called.received }, "{seen:?}");
        assert_eq!(frames("whole", "inside", to_guest), frames("whole", "outside", to_guest));
    }

    let tap = VM1.taps().remove(0);
    let turn =
        |onto: &str| format!("ethtool -K uplink0 tso {onto} gso {onto} && ethtool -K {tap} tso {onto}");
    let on = undo(turn("on"));
    LAB.host.run(&turn("off")).unwrap().ok().unwrap();
    let (divided, called) = http("divided", 120, "large");
    drop(on);

    let sent = large(&divided, "divided", false);
    assert!(sent.packets >= called.received, "{sent:?}");
    let received = large(&divided, "divided", true);
    assert_eq!(received, LargePackets::default(), "the tap gets none");
    for to_guest in [true, false] {
        let [inside, outside] = ["inside", "outside"].map(|place| frames("divided", place, to_guest));
        let (large, small) = if to_guest { (outside, inside) } else { (inside, outside) };
        assert!(small.iter().all(|frames| *frames == 1), "{small:?}");
        assert_eq!(
            small.len() as u64,
            large.iter().sum::<u64>(),
            "as many segments as the capture's lengths say"
        );
        assert!(small.len() > large.len());
    }
}

/// A server that answers with the identifier of the request, in another order than it was asked in.
fn datagrams_are_matched_by_bytes_that_identify_them() {
    let arguments = "--flow 'udp dst port 9000' --match key:2:4";
    let case = Case { name: "key", pairing: Pairing::Key { offset: 2, len: 4 }, arguments, rate: 50.0 };
    let program = include_str!("requests/key_server.py");
    let run = "exec python3 /tmp/key_server.py 9000";
    let server = VM1.spawn(&format!("cat >/tmp/key_server.py <<'END'\n{program}END\n{run}")).unwrap();
    VM1.run_for("until grep -q ':2328 ' /proc/net/udp; do sleep 0.2; done", START).unwrap().ok().unwrap();
    let program = include_bytes!("requests/key_client.py");
    call("key_client.py", program, "30 20");
    let (agreement, called) =
        compared(&case, || call("key_client.py", program, &format!("300 {}", case.rate)));
    agrees(&agreement, called);
    drop(server);
}

/// Two readings of the kernel's clocks, on CPUs that have just been synchronised, may differ by this much, ns.
const CLOCKS_OFF: f64 = 1_000.0;

/// What the guest's program counts is complete, and `outside` is what the captures saw.
#[track_caller]
fn outgoing_agrees(name: &str, found: &Found, called: Called) {
    eprintln!("{name}: {called:?} {found:?}");
    let (o, [within, at, around]) = (&found.outgoing, found.captured);
    let r = o.requests;
    assert_eq!(found.capture_dropped, 0, "{name}");
    // TCP sends again what is acknowledged late: no more often than the capture at the guest's tap shows, where segments that belong
    // to no request are seen, too.
    assert!(
        r.retransmitted <= found.sent_again_at_tap,
        "{name}: {r:?}, {} captured",
        found.sent_again_at_tap
    );
    // An answer whose request was not seen, or is waited for no longer, may look like a request.
    assert!(found.to_guest.seen <= found.excused + found.late, "{name}: {:?}", found.to_guest);
    assert!(called.received > 0 && found.excused * 4 <= called.received, "{name}: {} excused", found.excused);
    assert_eq!([within.count, at.count], [around.count; 2], "{name}: by the captures");
    // The guest may have lost an answer that reached it; ping counts answers that come late.
    assert!(
        called.received <= around.count + found.late,
        "{name}: {called:?} {around:?}, {} late",
        found.late
    );
    assert!(r.seen <= called.sent && r.seen + found.excused >= called.sent, "{name}: {r:?}");
    assert!(r.complete <= around.count + found.late, "{name}: {r:?} of {}", around.count);
    assert!((r.complete + found.excused) as f64 >= 0.999 * around.count as f64, "{name}: {:?}", o.left_out);
    if found.excused == 0 {
        // More than the caller counts if some came too late for it.
        assert!(r.complete + found.late >= called.received, "{name}: {:?}", o.left_out);
        assert_eq!(r.unanswered, called.sent - r.complete, "{name}: {:?}", o.left_out);
    }
    let dist = |stage: OutgoingStage| o.stages[stage as usize].dist;
    let d = dist(OutgoingStage::Outside);
    assert!(
        d.min as f64 + CLOCKS_OFF >= within.min && d.max as f64 <= around.max + CLOCKS_OFF,
        "{name}: {d:?}"
    );
    if r.complete == around.count {
        let between = within.mean <= d.mean + CLOCKS_OFF && d.mean <= around.mean + CLOCKS_OFF;
        assert!(between, "{name}: {} ns, not from {} to {}", d.mean, within.mean, around.mean);
        // The report's median is that of a histogram.
        let (least, most) = (within.median / 1.02, around.median * 1.02);
        let p50 = d.p50 as f64;
        assert!(least <= p50 + CLOCKS_OFF && p50 <= most + CLOCKS_OFF, "{name}: {p50} ns, {found:?}");
    }
    // A segment that a socket of this host has sent keeps its departure time in place of a time stamp (skb_clear_tstamp() of the
    // kernel), so a capture stamps it when it handles it, and not as it came. On a busy CPU that is later by milliseconds.
    if name != "tcp" && r.complete == around.count {
        // The capture there and teiji stamp a packet at neighbouring places in the kernel, with the capture's copy between them on the
        // way out: on a slow machine, too, they are off by little of what is between the captures on both sides.
        let off = off_histogram(d.p50, at.median);
        let apart = around.median - within.median;
        eprintln!("{name}: typically {off} ns off in {}, {apart} ns between the captures", at.median);
        assert!(
            off <= (apart / 4.0).max(10_000.0),
            "{name}: typically {off} ns off, {apart} between the captures"
        );
    }
    // The stages add up, and the host's part is the rest.
    let sum: f64 = o.stages.iter().map(|s| s.dist.mean).sum();
    let (total, host) = (o.total.unwrap(), o.host.unwrap());
    assert!((sum - total.mean).abs() < 1.0 && (host.mean + d.mean - total.mean).abs() < 1.0, "{name}: {o:?}");
    assert!(dist(OutgoingStage::Unattributed).mean <= 0.01 * total.mean, "{name}: {o:?}");
}

/// How far a value is from one of a report's histogram, which has two digits: it stands for those down to 1/128 below it.
fn off_histogram(reported: u64, value: f64) -> f64 {
    let highest = reported as f64;
    let lowest = highest * (1.0 - 1.0 / 128.0);
    (lowest - value).max(value - highest).max(0.0)
}

/// The guest sends requests while it is traced.
fn outgoing_asks(case: &Case, ask: impl Fn() -> Called) -> (Found, Called) {
    let make = || {
        let mut called = None;
        let found = outgoing::run(&LAB, &VM1, case, || {
            called = Some(ask());
            Ok(())
        });
        (found.unwrap(), called.unwrap())
    };
    let few = |(found, called): &(Found, Called)| {
        let (r, [.., around]) = (found.outgoing.requests, found.captured);
        assert_eq!(found.capture_dropped, 0, "{found:?}");
        assert!(r.seen <= called.sent && r.complete <= around.count + found.late, "{found:?}");
        Ok(path::is_few(found.excused, called.received))
    };
    path::comparable(make, few).unwrap()
}

/// The guest is the client, of an echo server and an HTTP server in the namespace outside, and of that namespace's kernel.
fn what_the_guest_itself_asks_is_divided_into_the_hosts_time_and_the_rest() {
    let server = LAB
        .host
        .spawn(&format!("exec ip netns exec peer taskset -c {CALLER_CPU} teiji-lab udp-echo --port 7"))
        .unwrap();
    server.wait_for("serving", START).unwrap();
    let ask = |count: u32| {
        let to = LAB.host.peer_ip();
        let in_time = load::in_time().as_secs_f64();
        let load = format!(
            "teiji-lab udp-load --to {to}:7 --rate 50 --count {count} --linger 20 --in-time {in_time} --json"
        );
        let figures = load::figures(&VM1.run_for(&load, START).unwrap().ok().unwrap()).unwrap();
        assert_eq!(figures.strange, 0, "{figures:?}");
        Called { sent: figures.sent, received: figures.received, twice: 0 }
    };
    let ping = |count: u32| {
        let load = format!("ping -q -W 20 -i 0.02 -c {count} {}", LAB.host.peer_ip());
        let printed = VM1.run_for(&load, START).unwrap().ok().unwrap();
        let counts = printed.lines().find(|l| l.contains("packets transmitted")).unwrap_or_default();
        let mut numbers = counts.split(' ').filter_map(|word| word.parse().ok());
        Called { sent: numbers.next().unwrap(), received: numbers.next().unwrap(), twice: 0 }
    };
    // Programs come into memory, and addresses are resolved.
    ask(20);
    ping(20);

    let udp = Case { name: "own-udp", ..accuracy::CASES[0] };
    let (found, called) = outgoing_asks(&udp, || ask(300));
    outgoing_agrees("udp", &found, called);

    let icmp = Case { name: "own-icmp", ..accuracy::CASES[1] };
    let (found, called) = outgoing_asks(&icmp, || ping(300));
    outgoing_agrees("icmp", &found, called);
    drop(server);

    LAB.host.put("/tmp/http_server.py", HTTP_SERVER.as_bytes()).unwrap();
    let server = format!("exec ip netns exec peer taskset -c {CALLER_CPU} python3 /tmp/http_server.py 8080");
    let server = LAB.host.spawn(&server).unwrap();
    // A local address in the state LISTEN: connections of an earlier test to another server may still be there.
    let listens = "until ip netns exec peer grep -qE '^ *[0-9]+: [0-9A-F]+:1F90 [0-9A-F:]+ 0A ' /proc/net/tcp; do sleep 0.2; done";
    LAB.host.run_for(listens, START).unwrap().ok().unwrap();
    let ask = |count: u32| -> Called {
        let client = std::str::from_utf8(HTTP_CLIENT).unwrap();
        let ask = format!(
            "cat >/tmp/http_client.py <<'END'\n{client}END\nexec python3 /tmp/http_client.py {} {} {count} 30 get",
            LAB.host.peer_ip(),
            load::in_time().as_secs_f64()
        );
        let printed = VM1.run_for(&ask, START).unwrap().ok().unwrap();
        serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e}: {printed}"))
    };
    ask(20);
    let tcp =
        Case { name: "own-tcp", pairing: Pairing::Http, arguments: "--flow 'tcp port 8080'", rate: 30.0 };
    let (found, called) = outgoing_asks(&tcp, || ask(200));
    outgoing_agrees("tcp", &found, called);
    drop(server);
}
