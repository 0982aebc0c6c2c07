//! Compares the arithmetic of packets that leave the queue (`sent.bpf.h`) with a link that is served packet by packet, and
//! with times made by hand. Needs root, as loading programs does.

use super::types;
use crate::object::{bytes_of, map, value_of};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramInput};
use proptest::prelude::*;
use teiji_model::qdisc::TIMER_ERROR;
use teiji_model::status::ChannelStats;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sent_check.bpf.o"));

/// Any time that a clock may have, ns.
const BEGIN: u64 = 1_000_000_000_000;
/// A full frame at 4 Mbit/s, ns.
const FULL: u64 = 3_072_000;

/// What `leave` is given: `struct leaving` of `sent_check.bpf.c`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Leaving {
    now: u64,
    arrival: u64,
    deadline: u64,
    tx: u64,
    credit: u64,
    paced: u64,
    next_free: u64,
    wire_free: u64,
}

/// A link and its only channel, in the kernel.
struct Link {
    object: Object,
    channels: MapHandle,
    next_free: u64,
    wire_free: u64,
}

/// A packet that leaves: `(now, arrival, time until its deadline, tx)`, ns.
type Packet = (u64, u64, u64, u64);

impl Link {
    fn new() -> Link {
        crate::silence_libbpf();
        let mut open = ObjectBuilder::default().name("sent_check").unwrap().open_memory(OBJECT).unwrap();
        for mut map in open.maps_mut() {
            // The others have types that kernels without BPF qdiscs lack.
            let used = map.name() == "channels";
            map.set_autocreate(used).unwrap();
        }
        let object = open.load().unwrap();
        let channels = map(&object, "channels").unwrap();
        Link { object, channels, next_free: 0, wire_free: 0 }
    }

    /// Lets a packet leave. Returns the channel's statistics since [`Link::forget`].
    fn leave(&mut self, (now, arrival, deadline, tx): Packet, paced: bool) -> ChannelStats {
        let (next_free, wire_free) = (self.next_free, self.wire_free);
        let deadline = arrival + deadline;
        let of = Leaving {
            now,
            arrival,
            deadline,
            tx,
            credit: TIMER_ERROR,
            paced: paced.into(),
            next_free,
            wire_free,
        };
        let mut context = bytes_of(&of).to_vec();
        let program = self.object.progs_mut().find(|p| p.name() == "leave").unwrap();
        let input = ProgramInput { context_in: Some(&mut context), ..ProgramInput::default() };
        assert_eq!(program.test_run(input).unwrap().return_value, 0);
        let now: Leaving = value_of(&context);
        (self.next_free, self.wire_free) = (now.next_free, now.wire_free);
        let state = self.channels.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        ChannelStats::from(&value_of::<types::channel_state>(&state).stats)
    }

    /// Begins anew.
    fn forget(&mut self) {
        (self.next_free, self.wire_free) = (0, 0);
        let nothing = types::channel_state::default();
        self.channels.update(&0u32.to_ne_bytes(), bytes_of(&nothing), MapFlags::ANY).unwrap();
    }
}

/// B, which waits for A on an idle link, leaves before A's last bit has been sent. Its own last bit comes after that.
#[test]
fn packets_back_to_back_count_to_their_last_bits() {
    let mut link = Link::new();
    link.forget();
    let alone = link.leave((BEGIN, BEGIN, FULL, FULL), true);
    assert_eq!((alone.delay_max, alone.misses), (FULL, 0));
    // The link was idle: the next packet leaves this much earlier.
    assert_eq!(link.next_free, BEGIN + FULL - TIMER_ERROR);
    let both = link.leave((link.next_free, BEGIN, 2 * FULL - 1, FULL), true);
    assert_eq!((both.delay_max, both.delay_sum, both.misses), (2 * FULL, 3 * FULL, 1));
    // Without a rate or a heartbeat nothing is known of the wire: a packet counts from when it leaves.
    let unpaced = link.leave((BEGIN + FULL, BEGIN, 2 * FULL, FULL), false);
    assert_eq!((unpaced.delay_sum, unpaced.misses), (5 * FULL, 1));
    assert_eq!((link.next_free, link.wire_free), (BEGIN + 2 * FULL, BEGIN + 2 * FULL));
}

/// A packet may leave on a CPU whose clock is behind that of the CPU it came on: its delay is then 0, not centuries.
#[test]
fn a_clock_that_is_behind_makes_no_delay() {
    let mut link = Link::new();
    link.forget();
    let stats = link.leave((BEGIN, BEGIN + 200, 1000, 100), true);
    assert_eq!((stats.packets, stats.delay_max, stats.delay_sum, stats.misses), (1, 0, 0, 0));
    assert_eq!((stats.delay[0], stats.delay.iter().sum::<u64>()), (1, 1));
    // The next packet counts as always, and its CPU's clock does not set back the link's.
    let stats = link.leave((BEGIN + 100 - TIMER_ERROR, BEGIN - TIMER_ERROR, FULL, FULL), true);
    assert_eq!((stats.delay_max, stats.misses), (FULL + TIMER_ERROR + 100, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A link that sends its packets in their order, and whose timer is late. Each delay ends when the wire, which sends one
    /// packet after the other, has sent the last bit. That is at most [`TIMER_ERROR`] later than on a link that never waits
    /// for a timer, which admission control allows for, and the device holds no more than that beside the packet just given.
    #[test]
    fn the_wire_is_never_ahead_and_hardly_behind(
        packets in prop::collection::vec((0..3 * FULL, 1..FULL, 0..=TIMER_ERROR, 0..4 * FULL), 1..60)
    ) {
        let mut link = Link::new();
        link.forget();
        let (mut arrival, mut sent, mut at_once, mut left) = (BEGIN, 0, 0, 0);
        let (mut delays, mut misses) = (Vec::new(), 0);
        for (gap, tx, late, deadline) in packets {
            arrival += gap / 2;
            let now = if arrival.max(left) < link.next_free { link.next_free + late } else { arrival.max(left) };
            left = now;
            sent = now.max(sent) + tx;
            at_once = arrival.max(at_once) + tx;
            delays.push(sent - arrival);
            misses += u64::from(sent > arrival + deadline);
            let stats = link.leave((now, arrival, deadline, tx), true);
            prop_assert_eq!(link.wire_free, sent);
            prop_assert_eq!(stats.delay_sum, delays.iter().sum::<u64>());
            prop_assert_eq!(Some(stats.delay_max), delays.iter().copied().max());
            prop_assert_eq!(stats.misses, misses);
            let ahead = link.next_free..=link.next_free + TIMER_ERROR;
            prop_assert!(ahead.contains(&sent), "{} is not in {:?}", sent, ahead);
            prop_assert!(sent <= at_once + TIMER_ERROR, "{} ns behind", sent - at_once);
            prop_assert!(sent - now <= tx + TIMER_ERROR, "{} ns in the device", sent - now);
        }
        let stats = link.leave((sent, sent, 0, 1), true);
        for (i, n) in stats.delay.iter().enumerate() {
            let of = delays.iter().chain([&1]).filter(|d| d.ilog2() as usize == i).count();
            prop_assert_eq!(*n, of as u64);
        }
    }
}
