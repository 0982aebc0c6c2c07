//! Guests whose NIC is not an ordinary tap with vhost-net: taps that the VMM serves, macvtaps, taps with NAPI.

use super::{LAB, guest};
use teiji_experiments::load;
use teiji_experiments::path::accuracy::{self, Agreement, CASES};
use teiji_experiments::path::{Extent, SHORT, agrees, excused, late, only, unseen};
use teiji_experiments::tracing::{Lab, Trace};
use teiji_lab::harness::Shared;
use teiji_lab::{Child, Guest, GuestSpec};
use teiji_model::event::{Event, EventKind, Point};
use teiji_model::report::Reason;

/// A guest whose tap is served by QEMU's own process.
static SERVED: Shared<(Guest<'static>, Child)> = Shared::new("the guest served without vhost", || {
    guest(&LAB, &GuestSpec { vhost: false, ..GuestSpec::named("served") })
});

/// A guest whose tap has NAPI, and whose buffers for received packets hold one frame of 1,500 bytes each.
static NAPI: Shared<(Guest<'static>, Child)> = Shared::new("the guest with NAPI on its tap", || {
    let off = ["mrg_rxbuf", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo", "guest_uso4", "guest_uso6"];
    let global = |name: &str| ["-global".to_owned(), format!("virtio-net-device.{name}=off")];
    let qemu_args = off.into_iter().flat_map(global).collect();
    guest(&LAB, &GuestSpec { napi: true, qemu_args, ..GuestSpec::named("napi") })
});

/// All answered requests, but for one in a hundred, are followed, with the times of the captures around them. Less than the share
/// `coalesced_most` of them have no kick of their own: of a doorbell that is not known no kick is seen at all.
fn followed(agreement: &Agreement, wanted: u64, macvtap: bool, coalesced_most: f64) {
    let coalesced = agreement.joined.iter().filter(|j| j.request.coalesced_kick).count();
    eprintln!(
        "{}\n{coalesced} without a kick of their own; {:?}",
        serde_json::to_string(agreement).unwrap(),
        agreement.left_out
    );
    let Agreement { answered, matched, .. } = *agreement;
    assert!(answered as u64 >= wanted * 9 / 10, "{answered} answered");
    // On macvtap the capture inside is in the guest, and sees the few packets that it handles while the worker is held up within
    // its signal (LIMITATIONS, Stages).
    agreement.check(0.99, if macvtap { matched / 100 } else { 0 }).unwrap();
    assert!(
        (coalesced as f64) < coalesced_most * matched as f64,
        "{coalesced} of {matched} without a kick: its doorbell is not known"
    );
}

pub fn taps_that_the_vmm_serves_are_followed() {
    for (case, requests) in [(&CASES[0], 700), (&CASES[1], 300)] {
        let agreement = accuracy::run(&LAB, &SERVED.0, case, &Extent { requests, ..SHORT }).unwrap();
        followed(&agreement, requests, false, 0.5);
    }
}

/// Interrupts of the guest's disk, as the guest counts them.
fn of_disk(guest: &Guest<'_>) -> u64 {
    let text = guest.run("grep -E 'virtio[0-9]+-req' /proc/interrupts").unwrap().ok().unwrap();
    text.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()
}

/// One thread of the VMM serves tap and disk: it sends the interrupts of both.
pub fn interrupts_of_a_disk_are_not_taken_for_those_of_the_tap() {
    let lab: &Lab = &LAB;
    let guest = &SERVED.0;
    let read = "while dd if=/dev/vda of=/dev/null bs=4k count=500 iflag=direct 2>/dev/null; do :; done";
    let before = of_disk(guest);
    let reader = guest.spawn(read).unwrap();
    let agreement = accuracy::run(lab, guest, &CASES[0], &Extent { requests: 500, ..SHORT }).unwrap();
    let disk = of_disk(guest) - before;
    guest.run(&format!("kill {}", reader.id().unwrap())).unwrap();
    eprintln!("{disk} interrupts of the disk");
    assert!(disk > 500, "{disk} interrupts of the disk");
    // While the thread that serves both has work, the guest does not kick: on a busy machine for more than half of the frames.
    followed(&agreement, 500, false, 0.9);
    drop(reader);
}

pub fn macvtaps_are_followed() {
    let lab: &Lab = &LAB;
    let (guest, server) = guest(lab, &GuestSpec { macvtap: true, ..GuestSpec::named("macvtap") });
    let agreement = accuracy::run(lab, &guest, &CASES[0], &SHORT).unwrap();
    followed(&agreement, SHORT.requests, true, 0.5);
    drop(server);
}

/// With IFF_NAPI the tun driver queues the guest's frames, and a softirq passes them on to the host's stack.
pub fn taps_with_napi_are_followed() {
    let lab: &Lab = &LAB;
    let guest = &NAPI.0;
    let flags =
        lab.host.run(&format!("cat /sys/class/net/{}/tun_flags", guest.taps()[0])).unwrap().ok().unwrap();
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap();
    assert_ne!(flags & 0x10, 0, "the tap has no NAPI: {flags:x}");
    let polls = "/sys/kernel/tracing/events/napi/napi_poll";
    let count = format!(
        "echo >/sys/kernel/tracing/trace; echo 'dev_name == \"{}\"' >{polls}/filter; echo 1 >{polls}/enable",
        guest.taps()[0]
    );
    lab.host.run(&count).unwrap().ok().unwrap();
    let agreement = accuracy::run(lab, guest, &CASES[0], &SHORT).unwrap();
    let polled = format!("echo 0 >{polls}/enable; grep -c napi_poll: /sys/kernel/tracing/trace");
    let polled: usize = lab.host.run(&polled).unwrap().text().trim().parse().unwrap();
    followed(&agreement, SHORT.requests, false, 0.5);
    assert!(polled >= agreement.matched / 2, "NAPI polled the tap {polled} times");
    // Frames pass the stack in a softirq, so no thread is known to have handed them over.
    let recording = lab.out.join(format!("{}.teiji", CASES[0].name));
    let frame = |event: &Event| match event.kind {
        EventKind::Packet(p) if p.point == Point::TapSend => Some(p.worker.is_some()),
        _ => None,
    };
    let frames: Vec<bool> = late::events(&recording).unwrap().iter().filter_map(frame).collect();
    assert!(frames.len() >= agreement.matched && !frames.contains(&true), "{} frames", frames.len());
}

/// The network lets larger frames through than the guest has buffers for. vhost takes them off the tap and discards them, which
/// no counter of the kernel shows.
pub fn what_vhost_discards_is_dropped_at_the_tap() {
    let (lab, guest): (&Lab, _) = (&LAB, &NAPI.0);
    let tap = &guest.taps()[0];
    let mtu = |bytes: u32| {
        let set = format!(
            "for d in {tap} uplink0 br0; do ip link set $d mtu {bytes}; done; ip -n peer link set eth0 mtu {bytes}"
        );
        lab.host.run(&set).unwrap().ok().unwrap();
    };
    mtu(9000);
    let trace = Trace::start(lab, "discards", &format!("--vm napi {}", CASES[0].arguments), true).unwrap();
    let large = format!(
        "ip netns exec peer teiji-lab udp-load --to {}:{} --rate 10 --count 40 --size 4000 --linger 1 --json",
        guest.ip(),
        load::ECHO_PORT
    );
    let large = lab.host.spawn(&large).unwrap();
    let small = load::echo(&lab.host, guest, 50.0, 250).unwrap();
    let large = load::figures(&large.wait().unwrap().ok().unwrap()).unwrap();
    let traced = trace.stop().unwrap();
    mtu(1500);
    let vm = only(&traced.report).unwrap();
    eprintln!("{small:?} {large:?} {:?} {:?}", vm.requests, vm.left_out);
    assert_eq!((large.sent, large.received), (40, 0));
    let excused = excused(&traced).unwrap();
    agrees("seen", vm.requests.seen, small.sent + large.sent, unseen(&traced).unwrap()).unwrap();
    agrees("complete", vm.requests.complete, small.answered(), excused).unwrap();
    agrees("dropped", vm.left_out_for(Reason::DroppedIn), large.sent, excused).unwrap();
    let dropped: Vec<_> = vm.left_out.iter().filter(|l| l.reason == Reason::DroppedIn).collect();
    assert!(
        dropped.iter().all(|l| l.explanation.contains("at tun_") && l.explanation.contains(tap)),
        "{dropped:?}"
    );
    // A packet that was discarded is none whose signal was skipped.
    assert_eq!(vm.left_out_for(Reason::NoAnswer), 0, "{:?}", vm.left_out);
}
