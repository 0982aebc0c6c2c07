//! Known reasons why requests are not complete: teiji's counts compared with those of the kernel that dropped the
//! packets, and of the guest that did not answer.

use super::{ECHO, LAB, traced, vm1};
use std::time::Duration;
use teiji_experiments::load::{self, Figures};
use teiji_experiments::path::{agrees, comparable, excused, few_excused, lost, only, unseen};
use teiji_experiments::tracing::{Trace, Traced, requests};
use teiji_lab::Guest;
use teiji_lab::harness::Shared;
use teiji_model::report::{Blame, LeftOut, Outcome, Reason, Report};

/// The guest, once the lab host has IPv6 switched off: only packets of the tests are to be dropped.
static QUIET_VM1: Shared<&'static Guest<'static>> = Shared::new("vm1, with IPv6 off on the lab host", || {
    LAB.host.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1").unwrap().ok().unwrap();
    vm1()
});

fn of(traced: &Traced, reason: Reason) -> Vec<LeftOut> {
    let vm = only(&traced.report).unwrap();
    vm.left_out.iter().filter(|l| l.reason == reason).cloned().collect()
}

fn sum(all: &[LeftOut]) -> u64 {
    all.iter().map(|l| l.count).sum()
}

/// Sends 300 requests through a filter at the guest's tap that drops every tenth matching packet. Returns the trace and
/// the filter's own count.
fn filtered(guest: &Guest<'_>, hook: &str, port: &str) -> (Traced, u64) {
    let tap = &guest.taps()[0];
    // Removes what a failed test may have left.
    LAB.host.run(&format!("tc qdisc delete dev {tap} clsact; ip link set {tap} txqueuelen 1000")).unwrap();
    let add = format!(
        "tc qdisc add dev {tap} clsact && tc filter add dev {tap} {hook} protocol ip flower ip_proto udp \
         {port} 7 action gact pass random determ drop 10"
    );
    let make = || {
        LAB.host.run(&add).unwrap().ok().unwrap();
        let trace = Trace::start(&LAB, &format!("filter-{hook}"), ECHO, true).unwrap();
        let figures = load::echo(&LAB.host, guest, 100.0, 300).unwrap();
        let traced = trace.stop().unwrap();
        let shown = LAB.host.run(&format!("tc -s -j filter show dev {tap} {hook}")).unwrap().ok().unwrap();
        LAB.host.run(&format!("tc qdisc delete dev {tap} clsact")).unwrap().ok().unwrap();
        (traced, figures, shown)
    };
    let few = |(traced, figures, _): &(Traced, Figures, String)| {
        few_excused(traced, figures.sent, figures.answered())
    };
    let (traced, figures, shown) = comparable(make, few).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let actions = shown.as_array().unwrap().iter().find_map(|f| f["options"]["actions"].as_array()).unwrap();
    let dropped = actions[0]["stats"]["drops"].as_u64().unwrap();
    eprintln!(
        "{hook}: {figures:?}, the filter dropped {dropped}, {:?}",
        only(&traced.report).unwrap().left_out
    );
    assert!(dropped > 0 && lost(&traced.report) == 0, "{shown}");
    let r = only(&traced.report).unwrap().requests;
    agrees("seen", r.seen, 300, unseen(&traced).unwrap()).unwrap();
    agrees("complete", r.complete, figures.answered(), excused(&traced).unwrap()).unwrap();
    (traced, dropped)
}

pub fn what_a_filter_drops_on_the_way_in_is_counted_with_its_place() {
    let guest = *QUIET_VM1;
    let (traced, dropped) = filtered(guest, "egress", "dst_port");
    let found = of(&traced, Reason::DroppedIn);
    assert_eq!(found.len(), 1, "{found:?}");
    agrees("dropped", sum(&found), dropped, excused(&traced).unwrap()).unwrap();
    let place = found[0].dropped.as_ref().unwrap();
    assert_eq!((place.why.as_str(), place.device.as_str()), ("TC_EGRESS", guest.taps()[0].as_str()));
    assert!(!place.location.is_empty(), "{place:?}");
    assert_eq!((found[0].outcome, found[0].blame), (Outcome::Incomplete, Blame::Host));
    // A replay cannot ask the kernel for names of places.
    let (_, replayed) = requests(traced.recording.as_deref().unwrap()).unwrap();
    // Through JSON like the live report, because that shortens the fractions.
    let replayed: Report = serde_json::from_str(&serde_json::to_string(&replayed).unwrap()).unwrap();
    assert_eq!(replayed, traced.report);
}

pub fn what_a_filter_drops_on_the_way_out_is_counted_with_its_place() {
    let guest = *QUIET_VM1;
    let (traced, dropped) = filtered(guest, "ingress", "src_port");
    let found = of(&traced, Reason::DroppedOut);
    assert_eq!(found.len(), 1, "{found:?}");
    agrees("dropped", sum(&found), dropped, excused(&traced).unwrap()).unwrap();
    assert_eq!(found[0].dropped.as_ref().unwrap().why, "TC_INGRESS");
}

/// Frames sent to the tap so far: all of them, and those that the tap and its qdisc dropped.
fn offered(tap: &str) -> (u64, u64) {
    let read = |command: String| -> serde_json::Value {
        serde_json::from_str(&LAB.host.run(&command).unwrap().ok().unwrap()).unwrap()
    };
    let link = read(format!("ip -s -j link show {tap}"));
    let qdisc = read(format!("tc -s -j qdisc show dev {tap}"));
    let queued = qdisc.as_array().unwrap().iter().filter_map(|q| q["drops"].as_u64()).sum::<u64>();
    let of_link = |what: &str| link[0]["stats64"]["tx"][what].as_u64().unwrap();
    let dropped = of_link("dropped") + queued;
    (of_link("packets") + dropped, dropped)
}

/// While the guest is stopped, its receive ring fills up, and then the ring of the tap.
pub fn what_does_not_fit_the_tap_is_counted_as_the_tap_counts_it() {
    let guest = *QUIET_VM1;
    let tap = &guest.taps()[0];
    LAB.host.run(&format!("ip link set {tap} txqueuelen 16")).unwrap().ok().unwrap();
    let make = || {
        let before = offered(tap);
        let trace = Trace::start(&LAB, "full-tap", ECHO, true).unwrap();
        LAB.host.run(&format!("kill -STOP {}", guest.pid())).unwrap().ok().unwrap();
        let sent = load::echo(&LAB.host, guest, 500.0, 1000);
        LAB.host.run(&format!("kill -CONT {}", guest.pid())).unwrap().ok().unwrap();
        let sent = sent.unwrap();
        // The guest now answers what it received. teiji counts the other requests as unanswered after one more second.
        std::thread::sleep(Duration::from_secs(3));
        let traced = trace.stop().unwrap();
        let after = offered(tap);
        (traced, sent, [after.0 - before.0, after.1 - before.1])
    };
    let few =
        |(traced, sent, _): &(Traced, Figures, [u64; 2])| few_excused(traced, sent.sent, sent.answered());
    let (traced, sent, [all, dropped]) = comparable(make, few).unwrap();
    LAB.host.run(&format!("ip link set {tap} txqueuelen 1000")).unwrap().ok().unwrap();
    let vm = only(&traced.report).unwrap();
    let missed = unseen(&traced).unwrap();
    eprintln!(
        "{sent:?}, {all} frames, dropped {dropped}, missed {missed}, {:?} {:?}",
        vm.requests, vm.left_out
    );
    assert!(dropped > 0 && lost(&traced.report) == 0);
    // Some of the dropped frames may belong to no request.
    let others = all.saturating_sub(sent.sent);
    assert!(others < 20, "{others} frames of {all} are not from this test: too many to compare");
    agrees("seen", vm.requests.seen, sent.sent, unseen(&traced).unwrap()).unwrap();
    agrees("dropped", sum(&of(&traced, Reason::DroppedIn)), dropped, others + excused(&traced).unwrap())
        .unwrap();
}

/// If nothing is dropped, only the guest can keep a request from being complete.
pub fn every_answered_request_is_complete() {
    let guest = *QUIET_VM1;
    for round in 0..2 {
        let (traced, figures, ()) =
            traced("answered", ECHO, |_| (load::echo(&LAB.host, guest, 100.0, 750).unwrap(), ()));
        let vm = only(&traced.report).unwrap();
        eprintln!("round {round}: {figures:?} {:?} {:?}", vm.requests, vm.left_out);
        assert!(figures.sent == 750 && figures.received > 0, "{figures:?}");
        agrees("seen", vm.requests.seen, figures.sent, unseen(&traced).unwrap()).unwrap();
        agrees("complete", vm.requests.complete, figures.answered(), excused(&traced).unwrap()).unwrap();
    }
}

pub fn what_the_guest_does_not_answer_is_the_guests() {
    let guest = *QUIET_VM1;
    let no_port = || -> u64 {
        let count = "awk '/^Udp:/ { if (n++) print $3 }' /proc/net/snmp";
        guest.run(count).unwrap().ok().unwrap().parse().unwrap()
    };
    let send =
        format!("ip netns exec peer teiji-lab udp-load --to {}:9 --rate 50 --count 60 --json", guest.ip());
    // A port that nobody listens on.
    let (traced, sent, refused) = traced("no-server", "--vm vm1 --flow 'udp port 9'", |_| {
        let before = no_port();
        let sent = load::figures(&LAB.host.run(&send).unwrap().ok().unwrap()).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        (sent, no_port() - before)
    });
    let found = of(&traced, Reason::NoAnswer);
    eprintln!("{sent:?}, the guest refused {refused}, {found:?}");
    // A sender that is notified of the refusal may send fewer requests than it was told to.
    assert!(refused > 0, "the guest refused nothing");
    assert_eq!(found.len(), 1, "{found:?}");
    agrees("refused", sum(&found), refused, excused(&traced).unwrap()).unwrap();
    agrees("seen", only(&traced.report).unwrap().requests.seen, refused, unseen(&traced).unwrap()).unwrap();
    assert_eq!((found[0].outcome, found[0].blame), (Outcome::Unanswered, Blame::Guest));
}
