//! Guests whose NIC is not an ordinary tap with vhost-net: taps that the VMM serves, macvtaps, taps with NAPI.

use super::{LAB, guest};
use teiji_experiments::load::{self, Figures};
use teiji_experiments::path::accuracy::{self, Agreement, CASES, Case};
use teiji_experiments::path::{
    Extent, SHORT, agrees, comparable, enough, excused, few_excused, late, only, unseen,
};
use teiji_experiments::tracing::{Lab, Trace, Traced};
use teiji_lab::harness::Shared;
use teiji_lab::{Child, Guest, GuestSpec};
use teiji_model::event::{Event, EventKind, Point};
use teiji_model::report::Reason;
use teiji_model::stage::ThreadState;

/// A guest whose tap is served by QEMU's own process.
static SERVED: Shared<(Guest<'static>, Child)> = Shared::new("the guest served without vhost", || {
    guest(&LAB, &GuestSpec { vhost: false, ..GuestSpec::named("served") })
});

/// Compares a trace with captures: see [`comparable`].
fn compared(guest: &Guest<'_>, case: &Case, extent: &Extent) -> Agreement {
    comparable(|| accuracy::run(&LAB, guest, case, extent).unwrap(), Agreement::few_excused).unwrap()
}

/// All answered requests, but for one in a hundred, are followed, with the times of the captures around them. At most this share of
/// them, of 1, is divided at the tap differently from the capture there.
fn followed(agreement: &Agreement, wanted: u64, divided_wrongly: f64) {
    let coalesced = agreement.joined.iter().filter(|j| j.request.coalesced_kick).count();
    eprintln!(
        "{}\n{coalesced} without a kick of their own; {:?}",
        serde_json::to_string(agreement).unwrap(),
        agreement.left_out
    );
    let Agreement { answered, matched, .. } = *agreement;
    enough(answered as u64, wanted).unwrap();
    agreement.check(0.99, (divided_wrongly * matched as f64) as usize).unwrap();
}

pub fn taps_that_the_vmm_serves_are_followed() {
    for (case, requests) in [(&CASES[0], 700), (&CASES[1], 300)] {
        let agreement = compared(&SERVED.0, case, &Extent { requests, ..SHORT });
        followed(&agreement, requests, 0.0);
        kicked_for(case);
    }
}

/// Interrupts of the guest's disk, as the guest counts them.
fn of_disk(guest: &Guest<'_>) -> u64 {
    let text = guest.run("grep -E 'virtio[0-9]+-req' /proc/interrupts").unwrap().ok().unwrap();
    text.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()
}

/// What a recording shows of a guest's frames and kicks.
#[derive(Debug, Default)]
struct Kicked {
    /// Frames that were sent.
    frames: usize,
    /// Of these, those before the first kick: until the doorbell is known, no kick is seen.
    frames_before_first_kick: usize,
    /// Frames after the first kick that were sent by a thread that had slept since it sent the last one.
    slept: usize,
    /// How often the guest kicked.
    kicks: usize,
}

impl Kicked {
    /// The guest's doorbell is known soon, and no other one is taken for it.
    #[track_caller]
    fn of_its_doorbell(&self) {
        assert!(2 * self.frames_before_first_kick <= self.frames, "{self:?}: its doorbell is not known");
        // A frame is kicked for once.
        let most = 1.05 * self.frames as f64 + 5.0;
        assert!(self.kicks as f64 <= most, "{self:?}: another doorbell is taken for its");
    }
}

fn kicked(case: &Case) -> Kicked {
    let mut k = Kicked::default();
    let mut last = None;
    for event in late::events(&LAB.out.join(format!("{}.teiji", case.name))).unwrap() {
        match event.kind {
            EventKind::Kick(_) => k.kicks += 1,
            EventKind::Packet(p) if p.point == Point::TapSend => {
                k.frames += 1;
                k.frames_before_first_kick += usize::from(k.kicks == 0);
                let asleep = p.worker.map(|clock| clock.get(ThreadState::Asleep));
                let has_slept = last.zip(asleep).is_some_and(|(before, now)| now > before);
                k.slept += usize::from(k.kicks > 0 && has_slept);
                last = asleep;
            }
            _ => {}
        }
    }
    k
}

/// By the recording of a case that was run, the guest's doorbell is known soon, and no other one is taken for it. A thread that
/// is awake may take a frame before the guest's kick is seen, on a busy machine more than half of the frames. But for each frame
/// before which it slept the guest has kicked.
#[track_caller]
fn kicked_for(case: &Case) {
    let k = kicked(case);
    eprintln!("{}: {k:?}", case.name);
    k.of_its_doorbell();
    assert!(k.slept > 0 && k.kicks as f64 >= 0.95 * k.slept as f64, "{k:?}: its doorbell is not known");
}

/// One thread of the VMM serves tap and disk: it sends the interrupts of both.
pub fn interrupts_of_a_disk_are_not_taken_for_those_of_the_tap() {
    let lab: &Lab = &LAB;
    let guest = &SERVED.0;
    let read = "while dd if=/dev/vda of=/dev/null bs=4k count=500 iflag=direct 2>/dev/null; do :; done";
    let reader = guest.spawn(read).unwrap();
    let case = Case { name: "disk", ..CASES[0] };
    let make = || {
        let before = of_disk(guest);
        let agreement = accuracy::run(lab, guest, &case, &Extent { requests: 500, ..SHORT }).unwrap();
        (agreement, of_disk(guest) - before)
    };
    let (agreement, disk) = comparable(make, |(agreement, _)| agreement.few_excused()).unwrap();
    guest.run(&format!("kill {}", reader.id().unwrap())).unwrap();
    eprintln!("{disk} interrupts of the disk");
    assert!(disk > 500, "{disk} interrupts of the disk");
    followed(&agreement, 500, 0.0);
    // There are many more requests to the disk than frames.
    kicked_for(&case);
    drop(reader);
}

pub fn macvtaps_are_followed() {
    let lab: &Lab = &LAB;
    let (guest, server) = guest(lab, &GuestSpec { macvtap: true, ..GuestSpec::named("macvtap") });
    let agreement = compared(&guest, &CASES[0], &SHORT);
    // The capture inside is in the guest, and sees the few packets that it handles while the worker is held up within its signal
    // (LIMITATIONS, Stages).
    followed(&agreement, SHORT.requests, 0.01);
    kicked_for(&CASES[0]);
    drop(server);
}

/// With IFF_NAPI the tun driver queues the guest's frames, and a softirq passes them on to the host's stack.
pub fn taps_with_napi_are_followed() {
    let lab: &Lab = &LAB;
    let (guest, server) = guest(lab, &GuestSpec { napi: true, ..GuestSpec::named("napi") });
    let flags =
        lab.host.run(&format!("cat /sys/class/net/{}/tun_flags", guest.taps()[0])).unwrap().ok().unwrap();
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap();
    assert_ne!(flags & 0x10, 0, "the tap has no NAPI: {flags:x}");
    let polls = "/sys/kernel/tracing/events/napi/napi_poll";
    let count = format!(
        "echo >/sys/kernel/tracing/trace; echo 'dev_name == \"{}\"' >{polls}/filter; echo 1 >{polls}/enable",
        guest.taps()[0]
    );
    let make = || {
        lab.host.run(&count).unwrap().ok().unwrap();
        let agreement = accuracy::run(lab, &guest, &CASES[0], &SHORT).unwrap();
        let polled = format!(
            "echo 0 >{polls}/enable; sed -n 's/.* napi_poll: .* work \\([0-9]*\\) budget .*/\\1/p' /sys/kernel/tracing/trace | \
             awk '{{ n += $1 }} END {{ print n + 0 }}'"
        );
        let polled: usize = lab.host.run(&polled).unwrap().text().trim().parse().unwrap();
        (agreement, polled)
    };
    let (agreement, polled) = comparable(make, |(agreement, _)| agreement.few_excused()).unwrap();
    followed(&agreement, SHORT.requests, 0.01);
    let k = kicked(&CASES[0]);
    eprintln!("{k:?}");
    k.of_its_doorbell();
    // No thread is known to have handed over a frame, so it is not known before which ones it slept. It was awake for few of them: up to
    // 27 % of the frames were counted without a kick of their own.
    assert!(4 * k.kicks >= k.frames, "{k:?}: its doorbell is not known");
    eprintln!("NAPI took {polled} frames of the tap");
    assert!(polled >= agreement.matched, "NAPI took {polled} frames of the tap");
    // Frames pass the stack in a softirq, so no thread is known to have handed them over.
    let recording = lab.out.join(format!("{}.teiji", CASES[0].name));
    let frame = |event: &Event| match event.kind {
        EventKind::Packet(p) if p.point == Point::TapSend => Some(p.worker.is_some()),
        _ => None,
    };
    let frames: Vec<bool> = late::events(&recording).unwrap().iter().filter_map(frame).collect();
    assert!(frames.len() >= agreement.matched && !frames.contains(&true), "{} frames", frames.len());
    drop(server);
}

/// The network lets larger frames through than the guest has buffers for. vhost takes them off the tap and discards them, which
/// no counter of the kernel shows.
pub fn what_vhost_discards_is_dropped_at_the_tap() {
    let lab: &Lab = &LAB;
    // Its buffers hold one frame of 1,500 bytes each.
    let off = ["mrg_rxbuf", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo", "guest_uso4", "guest_uso6"];
    let global = |name: &str| ["-global".to_owned(), format!("virtio-net-device.{name}=off")];
    let qemu_args = off.into_iter().flat_map(global).collect();
    let (guest, server) = guest(lab, &GuestSpec { qemu_args, ..GuestSpec::named("small") });
    let tap = &guest.taps()[0];
    let mtu = |bytes: u32| {
        let set = format!(
            "for d in {tap} uplink0 br0; do ip link set $d mtu {bytes}; done; ip -n peer link set eth0 mtu {bytes}"
        );
        lab.host.run(&set).unwrap().ok().unwrap();
    };
    mtu(9000);
    let make = || {
        let arguments = format!("--vm small {}", CASES[0].arguments);
        let trace = Trace::start(lab, "discards", &arguments, true).unwrap();
        let large = format!(
            "ip netns exec peer teiji-lab udp-load --to {}:{} --rate 10 --count 40 --size 4000 --linger 1 --json",
            guest.ip(),
            load::ECHO_PORT
        );
        let large = lab.host.spawn(&large).unwrap();
        let small = load::echo(&lab.host, &guest, 50.0, 250).unwrap();
        let large = load::figures(&large.wait().unwrap().ok().unwrap()).unwrap();
        (trace.stop().unwrap(), small, large)
    };
    let few = |(traced, small, large): &(Traced, Figures, Figures)| {
        few_excused(traced, small.sent + large.sent, small.answered())
    };
    let (traced, small, large) = comparable(make, few).unwrap();
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
    // A packet that was discarded is none whose signal was skipped, nor is it one that the guest did not answer.
    let not_answered = vm.left_out_for(Reason::NoAnswer);
    assert!(not_answered <= small.sent - small.received, "{small:?} {:?}", vm.left_out);
    drop(server);
}
