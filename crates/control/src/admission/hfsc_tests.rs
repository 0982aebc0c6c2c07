//! Compares HFSC's test with that of earliest deadline first, and its bounds with a link that is simulated packet by
//! packet.
#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use super::tests::{MS, channel, link, refused};
use super::*;
use proptest::prelude::*;
use teiji_model::policy::Auto;
use teiji_model::qdisc::Curve;

fn refusal(link: &LinkSpec, channels: &[ChannelSpec]) -> Refusal {
    refused(hfsc::admit(link, channels))
}

#[test]
fn a_burst_is_reserved_within_what_the_frame_leaves_of_the_deadline() {
    // 1 ms for the frame, 9 ms for 4,500 bytes: 500,000 bytes per second.
    let set = [channel("a", 10 * MS, 800_000, 4500)];
    assert_eq!(hfsc::within(&link(), &set[0]), Some(9 * MS));
    let admitted = hfsc::admit(&link(), &set).unwrap();
    assert_eq!((admitted.slack, admitted.guarantees[0].delay), (0, 10 * MS));
    // 999,999 bytes per second are left for it: HFSC may use one more than it is configured with.
    assert_eq!(admitted.free_burst, Some(4499));
    assert!(hfsc::admit(&link(), &[channel("a", 10 * MS, 800_000, 8999)]).is_ok());
    let refused = refusal(&link(), &[channel("a", 10 * MS, 800_000, 9000)]);
    assert_eq!((refused.misfit, refused.excess), (Misfit::Curves, 1));
    // A fraction of a µs does not count.
    let odd = LinkSpec { timer_error: 1, ..link() };
    assert_eq!(hfsc::admit(&odd, &set).unwrap().guarantees[0].delay, 9_999_001);
}

#[test]
fn what_the_frame_takes_of_a_deadline_is_not_there() {
    let refused = refusal(&link(), &[channel("a", MS + 999, 800_000, 500)]);
    assert_eq!((refused.misfit, refused.at), (Misfit::Deadline, MS + 999));
    let text = refused.to_string();
    assert!(
        text.contains("the link would have to send 500 bytes more than it can (1 channel: `a`)"),
        "{text}"
    );
    assert!(text.contains("a deadline of ") && text.contains("a link of "), "{text}");
    let none = hfsc::admit(&link(), &[]).unwrap();
    assert_eq!((none.free_rate, none.free_burst), (8_000_000, None));
}

#[test]
fn a_refusal_names_the_excess_and_the_least_changes() {
    let set = [channel("a", 11 * MS, 800_000, 5000), channel("b\u{1b}", 6 * MS, 800_000, 4000)];
    let refused = refusal(&link(), &set);
    let text = refused.to_string();
    assert!(text.starts_with(
        "HFSC reserves each channel's burst within its deadline all the time, and that is 2.400016mbit more than the \
         link sends (2 channels: `b\\u{1b}`, `a`); the channels would fit with "
    ), "{text}");
    assert!(!text.chars().any(char::is_control));
    // 4,000 bytes at the 499,998 bytes per second that `a` leaves.
    let deadline = refused.fixes.iter().find_map(|r| match r {
        Fix::Deadline { to, .. } => Some(*to),
        _ => None,
    });
    assert_eq!(deadline, Some(9_001_000));
    let malformed = hfsc::admit(&link(), &[channel("a", 0, 8, 500)]).unwrap_err();
    assert!(matches!(malformed, Denied::Malformed(_)));
}

/// Sets near the limit of what a link of 8 to 800 Mbit/s can reserve.
fn some_set() -> impl Strategy<Value = (LinkSpec, Vec<ChannelSpec>)> {
    let link = (1_000_000..100_000_000_u64, 60..2000_u32, 0..3000_u64, 0..200_000_u64).prop_map(
        |(bytes, max_frame, ring_bytes, timer_error)| LinkSpec {
            rate: bytes * 8,
            max_frame,
            overhead: 24,
            ring_bytes,
            timer_error,
            slack: Auto::Auto,
        },
    );
    let one = (20_000..20 * MS, 1..80_000_u64, 84..8_000_u64);
    (link, proptest::collection::vec(one, 1..6)).prop_map(|(link, set)| {
        let numbered = set.into_iter().enumerate();
        let channel = |(i, (deadline, rate, burst))| channel(&format!("c{i}"), deadline, rate * 80, burst);
        let set = numbered.map(channel).map(|c| ChannelSpec { max_packet: 60, ..c }).collect();
        (link, set)
    })
}

/// A class of HFSC under the real-time criterion: its deadline curve is the minimum of those since each time that its
/// queue filled.
struct Class {
    curve: Curve,
    /// (ns, bytes served by then).
    starts: Vec<(u64, u64)>,
    served: u64,
    queue: std::collections::VecDeque<(u64, u64)>,
}

impl Class {
    /// When the deadline curve has served this many bytes, ns rounded up.
    fn by(&self, bytes: u64) -> u64 {
        let after = |(start, served): &(u64, u64)| {
            let left = u128::from(bytes.saturating_sub(*served));
            let first = u128::from(self.curve.m1) * u128::from(self.curve.d) / 1_000_000;
            let nano = 1_000_000_000;
            let takes = if left <= first {
                (left * nano).div_ceil(self.curve.m1.into())
            } else {
                u128::from(self.curve.d) * 1000 + ((left - first) * nano).div_ceil(self.curve.m2.into())
            };
            start + u64::try_from(takes).unwrap()
        };
        self.starts.iter().map(after).max().unwrap_or(0)
    }
}

/// Sends the arrivals (class, ns, bytes; by time) while best effort is always waiting; returns the longest delay of
/// each class.
fn serve(link: &LinkSpec, curves: &[Curve], arrivals: &[(usize, u64, u64)]) -> Vec<u64> {
    let class = |curve: &Curve| Class { curve: *curve, starts: vec![], served: 0, queue: Default::default() };
    let mut classes: Vec<Class> = curves.iter().map(class).collect();
    let mut worst = vec![0; curves.len()];
    let takes = |bytes: u64| (bytes * 8_000_000_000).div_ceil(link.rate);
    let best_effort = u64::from(link.max_frame + link.overhead);
    let (mut now, mut next) = (0, 0);
    while next < arrivals.len() || classes.iter().any(|c| !c.queue.is_empty()) {
        while let Some((i, at, bytes)) = arrivals.get(next).filter(|a| a.1 <= now) {
            let class = &mut classes[*i];
            if class.queue.is_empty() {
                class.starts.push((*at, class.served));
            }
            class.queue.push_back((*at, *bytes));
            next += 1;
        }
        let waiting = classes.iter().enumerate().filter_map(|(i, c)| {
            let (_, bytes) = c.queue.front()?;
            (c.by(c.served) <= now).then(|| (c.by(c.served + bytes), i))
        });
        let Some((_, i)) = waiting.min() else {
            now += takes(best_effort);
            continue;
        };
        let (at, bytes) = classes[i].queue.pop_front().unwrap();
        classes[i].served += bytes;
        now += takes(bytes);
        worst[i] = worst[i].max(now - at);
    }
    worst
}

/// Packets of a channel within its token bucket: bursts as soon as possible, with packets of this size.
fn greedy(i: usize, c: &ChannelSpec, start: u64, packet: u64, pause: u64) -> Vec<(usize, u64, u64)> {
    let packet = packet.min(c.burst);
    let (mut now, mut tokens, mut sent) = (start, c.burst * 8_000_000_000, Vec::new());
    while sent.len() < 60 {
        if tokens >= packet * 8_000_000_000 {
            tokens -= packet * 8_000_000_000;
            sent.push((i, now, packet));
        } else {
            let wait = (packet * 8_000_000_000 - tokens).div_ceil(c.rate) + pause;
            now += wait;
            tokens = (tokens + wait * c.rate).min(c.burst * 8_000_000_000);
        }
    }
    sent
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn what_hfsc_bears_edf_bears((link, set) in some_set()) {
        if hfsc::admit(&link, &set).is_ok() {
            prop_assert!(admit(&link, &set).is_ok());
        }
    }

    #[test]
    fn no_packet_is_later_than_guaranteed(
        (link, set) in some_set(),
        how in proptest::collection::vec((0..5 * MS, 60..4000_u64, 0..2 * MS), 6)
    ) {
        let link = LinkSpec { ring_bytes: 0, ..link };
        let Ok(admitted) = hfsc::admit(&link, &set) else { return Ok(()) };
        let curves: Vec<Curve> = set.iter()
            .map(|c| super::curve::smallest(c.burst, hfsc::within(&link, c).unwrap(), c.rate).unwrap())
            .collect();
        let frame = u64::from(link.max_frame + link.overhead);
        let greedy = |(i, c)| {
            let (start, packet, pause): (u64, u64, u64) = how[i];
            greedy(i, c, start, packet.min(frame), pause)
        };
        let mut arrivals: Vec<_> = set.iter().enumerate().flat_map(greedy).collect();
        arrivals.sort_by_key(|a| a.1);
        let delays = serve(&link, &curves, &arrivals);
        for (delay, guarantee) in delays.iter().zip(&admitted.guarantees) {
            // One ns of each packet is rounded up.
            let bound = guarantee.delay - link.timer_error + arrivals.len() as u64;
            prop_assert!(*delay <= bound, "{}: {} > {}", guarantee.name, delay, bound);
        }
    }

    #[test]
    fn each_remedy_of_hfsc_does_and_a_step_less_does_not((link, set) in some_set()) {
        let Err(Denied::Refused(refused)) = hfsc::admit(&link, &set) else { return Ok(()) };
        prop_assert!(refused.excess > 0);
        for fix in &refused.fixes {
            for (less, does) in [(0, true), (1, false)] {
                let (mut link, mut set) = (link.clone(), set.clone());
                match fix {
                    Fix::Deadline { channel, to } => {
                        set.iter_mut().filter(|c| c.name == *channel).for_each(|c| c.deadline = to - less);
                    }
                    Fix::Burst { channel, to } => {
                        set.iter_mut().filter(|c| c.name == *channel).for_each(|c| c.burst = to + less);
                    }
                    Fix::Rate { channel, to } => {
                        set.iter_mut().filter(|c| c.name == *channel).for_each(|c| c.rate = to + less);
                    }
                    Fix::LinkRate { to } => link.rate = to - less,
                    Fix::Slack { .. } => prop_assert!(false, "HFSC has no slack"),
                }
                prop_assert_eq!(hfsc::admit(&link, &set).is_ok(), does, "{:?} less {}", fix, less);
            }
        }
    }
}
