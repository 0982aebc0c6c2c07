#![allow(clippy::unwrap_used, reason = "a test ends by them")]

use super::*;
use proptest::prelude::*;
use teiji_model::policy::Auto;

pub(super) const MS: u64 = 1_000_000;

/// 8 Mbit/s: a byte takes a microsecond.
pub(super) fn link() -> LinkSpec {
    LinkSpec {
        rate: 8_000_000,
        max_frame: 976,
        overhead: 24,
        ring_bytes: 0,
        timer_error: 0,
        slack: Auto::Auto,
    }
}

pub(super) fn channel(name: &str, deadline: u64, rate: u64, burst: u64) -> ChannelSpec {
    ChannelSpec { name: name.into(), deadline, rate, burst, max_packet: 100 }
}

/// Why it was refused.
pub(super) fn refused(decided: Result<Admission, Denied>) -> Refusal {
    match decided {
        Err(Denied::Refused(refusal)) => *refusal,
        other => panic!("{other:?}"),
    }
}

fn refusal(link: &LinkSpec, channels: &[ChannelSpec]) -> Refusal {
    refused(admit(link, channels))
}

#[test]
fn one_channel_waits_for_one_frame() {
    // 1,000 bytes of best effort and 500 of its own.
    let one = [channel("a", 10 * MS, 800_000, 500)];
    let admitted = admit(&link(), &one).unwrap();
    assert_eq!((admitted.slack, admitted.guarantees[0].delay), (1_500_000, 10 * MS));
    assert_eq!((admitted.reserved_rate, admitted.free_rate), (800_000, 7_200_000));
    assert_eq!(admitted.free_burst, Some(8_500));
    // Without the slack rule it leaves at once.
    let eager = LinkSpec { slack: Auto::Nanoseconds(10 * MS), ..link() };
    // Its own 500 bytes; what comes while they wait adds a tenth of that time: at most 1,500 / (1 - 0.1) µs.
    let bound = admit(&eager, &one).unwrap().guarantees[0].delay;
    assert_eq!(bound, 1_500_000);
    // The ring and the timer are added.
    let slow = LinkSpec { ring_bytes: 2_000, timer_error: 250_000, ..link() };
    assert_eq!(admit(&slow, &one).unwrap().slack, 3_750_000);
}

#[test]
fn a_deadline_that_just_fits() {
    let just = [channel("a", 1_500_000, 800_000, 500)];
    let admitted = admit(&link(), &just).unwrap();
    assert_eq!((admitted.slack, admitted.guarantees[0].delay), (1_500_000, 1_500_000));
    assert_eq!(admitted.free_burst, Some(0));
    let early = [channel("a", 1_499_999, 800_000, 500)];
    let refused = refusal(&link(), &early);
    assert_eq!((refused.misfit, refused.at, refused.excess), (Misfit::Deadline, 1_499_999, 1));
    assert!(refused.fixes.contains(&Fix::Deadline { channel: "a".into(), to: 1_500_000 }));
    assert!(refused.fixes.contains(&Fix::Burst { channel: "a".into(), to: 499 }));
    assert!(refused.fixes.contains(&Fix::LinkRate { to: 8_000_006 }));
    let text = refused.to_string();
    assert!(
        text.starts_with(
            "the deadlines cannot all be kept: within 1.50 ms the link would have to send 1 byte more"
        ),
        "{text}"
    );
    assert!(
        text.contains("a deadline of 1.5ms for channel `a`") && text.contains("a link of 8.001mbit"),
        "{text}"
    );
}

#[test]
fn a_channel_far_behind_waits_for_the_busy_period_only() {
    // a uses half of the link all the time; b's deadline is 100 ms away, but the bursts are sent within 4 ms.
    let link = LinkSpec { slack: Auto::Nanoseconds(1_000 * MS), ..link() };
    let set = [channel("a", 2 * MS, 4_000_000, 500), channel("b", 100 * MS, 8_000, 400)];
    let bounds = admit(&link, &set).unwrap().guarantees;
    // (1000 + 500 + 400 - the little that b may add) / (1 - 0.5) µs.
    assert!((3_800_000..3_810_000).contains(&bounds[1].delay), "{bounds:?}");
    assert!(bounds[0].delay <= 2 * MS);
}

#[test]
fn too_small_a_slack_is_refused_with_the_one_that_will_do() {
    let set = [channel("a", 10 * MS, 800_000, 500), channel("b", 20 * MS, 800_000, 500)];
    let small = LinkSpec { slack: Auto::Nanoseconds(1_999_999), ..link() };
    let refused = refusal(&small, &set);
    assert_eq!(refused.misfit, Misfit::Slack { least: 2_000_000 });
    assert_eq!((refused.excess, refused.offending.len()), (1, 2));
    assert_eq!(
        refused.to_string(),
        "with a slack of 1.999999ms best effort goes first for too long: 1 byte could not be sent in time; the \
         channels would fit with a slack of 2ms"
    );
    assert!(admit(&LinkSpec { slack: Auto::Nanoseconds(2 * MS), ..link() }, &set).is_ok());
}

#[test]
fn rates_above_the_link_s_are_refused() {
    let set = [channel("a", 10 * MS, 8_000_000, 500), channel("b", 20 * MS, 8_000, 500)];
    let refused = refusal(&link(), &set);
    assert_eq!((refused.misfit, refused.excess), (Misfit::Rate, 1_000));
    assert!(refused.fixes.contains(&Fix::LinkRate { to: 8_008_000 }), "{:?}", refused.fixes);
    assert!(refused.fixes.contains(&Fix::Rate { channel: "a".into(), to: 7_992_000 }));
}

#[test]
fn names_cannot_write_to_the_terminal() {
    let hostile = channel("\u{1b}[2J\n", 1_000, 8_000, 500);
    for set in [vec![hostile.clone()], vec![ChannelSpec { burst: 1, ..hostile }]] {
        let text = admit(&link(), &set).unwrap_err().to_string();
        assert!(!text.chars().any(char::is_control) && text.contains("[2J"), "{text:?}");
    }
}

#[test]
fn what_is_out_of_range_is_not_decided() {
    let good = channel("a", 10 * MS, 8_000, 500);
    let bad = [
        ChannelSpec { deadline: 0, ..good.clone() },
        ChannelSpec { rate: 0, ..good.clone() },
        ChannelSpec { burst: 123, ..good.clone() },
        ChannelSpec { max_packet: 977, ..good.clone() },
        ChannelSpec { deadline: u64::MAX, ..good.clone() },
        ChannelSpec { burst: u64::MAX, ..good.clone() },
    ];
    for c in bad {
        let denied = admit(&link(), std::slice::from_ref(&c)).unwrap_err();
        assert!(matches!(&denied, Denied::Malformed(m) if m.contains("`a`")), "{c:?}: {denied}");
    }
    assert!(matches!(admit(&LinkSpec { rate: 0, ..link() }, &[]), Err(Denied::Malformed(_))));
    let none = admit(&link(), &[]).unwrap();
    assert_eq!((none.slack, none.free_rate, none.free_burst), (0, 8_000_000, None));
}

#[test]
fn the_largest_values_do_not_overflow() {
    let link = LinkSpec {
        rate: types::FASTEST,
        max_frame: 1 << 30,
        overhead: 1 << 30,
        ring_bytes: 1 << 30,
        timer_error: types::LONGEST,
        slack: Auto::Auto,
    };
    let set: Vec<ChannelSpec> = (0..1 << 20)
        .map(|i| channel("x", if i == 0 { 1 } else { types::LONGEST }, types::FASTEST, 1 << 30))
        .collect();
    let set: Vec<ChannelSpec> = set.into_iter().map(|c| ChannelSpec { max_packet: 1, ..c }).collect();
    let small = LinkSpec { overhead: 24, ..link };
    assert_eq!(refusal(&small, &set).misfit, Misfit::Rate);
}

/// The condition in the form of the paper, with the slack rule, tried at every ns.
fn holds(link: &LinkSpec, slack: u64, set: &[ChannelSpec]) -> bool {
    let nano = |bytes: u64| i128::from(bytes) * 8_000_000_000;
    let usable = |c: &ChannelSpec| c.deadline.min(slack);
    let first = set.iter().map(usable).min().unwrap();
    let last = set.iter().map(usable).max().unwrap();
    let blocking = nano(u64::from(link.max_frame) + u64::from(link.overhead) + link.ring_bytes);
    set.iter().map(|c| c.rate).sum::<u64>() <= link.rate
        && (first..=last + 50).all(|t| {
            let demand: i128 = set
                .iter()
                .filter(|c| usable(c) <= t)
                .map(|c| nano(c.burst) + i128::from(c.rate) * i128::from(t - usable(c)))
                .sum();
            demand + blocking <= i128::from(link.rate) * (i128::from(t) - i128::from(link.timer_error))
        })
}

/// f(t) of `bound`, in steps of 1 ns.
fn leaves_by(link: &LinkSpec, slack: u64, set: &[ChannelSpec], t: u64) -> u64 {
    let nano = |bytes: u64| i128::from(bytes) * 8_000_000_000;
    let blocking = nano(u64::from(link.max_frame) + u64::from(link.overhead) + link.ring_bytes);
    (0..)
        .find(|f| {
            let work: i128 = set
                .iter()
                .filter(|c| c.deadline.min(slack) <= t)
                .map(|c| nano(c.burst) + i128::from(c.rate) * i128::from((t - c.deadline.min(slack)).min(*f)))
                .sum();
            work + blocking <= i128::from(link.rate) * (i128::from(*f) - i128::from(link.timer_error))
        })
        .unwrap()
}

/// Sets near the limit of a link of 8 Gbit/s (one byte per ns), small enough to be tried ns by ns.
fn some_set() -> impl Strategy<Value = (LinkSpec, Vec<ChannelSpec>)> {
    let link = (1..40_u32, 0..30_u64, 0..20_u64).prop_map(|(max_frame, ring_bytes, timer_error)| LinkSpec {
        rate: 8_000_000_000,
        max_frame,
        overhead: 2,
        ring_bytes,
        timer_error,
        slack: Auto::Auto,
    });
    let one = (1..600_u64, 1..4_000_000_000_u64, 3..80_u64).prop_map(|(deadline, rate, burst)| ChannelSpec {
        name: format!("d{deadline}"),
        deadline,
        rate,
        burst,
        max_packet: 1,
    });
    (link, proptest::collection::vec(one, 1..6))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn decides_as_the_condition_does((link, set) in some_set(), share in 0..130_u64) {
        let free = holds(&link, u64::MAX, &set);
        match admit(&link, &set) {
            Ok(admitted) => {
                prop_assert!(free && holds(&link, admitted.slack, &set));
                prop_assert!(!holds(&link, admitted.slack - 1, &set), "the smallest slack");
                let grow = |i: usize, by: u64, slack: u64| {
                    let mut set = set.clone();
                    set[i].burst += by;
                    holds(&link, slack, &set)
                };
                let spare = admitted.free_burst.unwrap();
                prop_assert!((0..set.len()).all(|i| grow(i, spare, u64::MAX)));
                prop_assert!((0..set.len()).any(|i| !grow(i, spare + 1, u64::MAX)));
                // With any slack: the decision, and each channel's bound.
                let slack = admitted.slack * share / 100;
                let chosen = LinkSpec { slack: Auto::Nanoseconds(slack), ..link.clone() };
                let admitted = admit(&chosen, &set);
                prop_assert_eq!(admitted.is_ok(), holds(&link, slack, &set));
                if let Some(spare) = admitted.as_ref().ok().and_then(|a| a.free_burst) {
                    prop_assert!((0..set.len()).all(|i| grow(i, spare, slack)));
                    prop_assert!((0..set.len()).any(|i| !grow(i, spare + 1, slack)));
                }
                for (c, g) in set.iter().zip(admitted.iter().flat_map(|a| &a.guarantees)) {
                    let usable = c.deadline.min(slack);
                    let late = (usable..=700).filter(|t| set.iter().any(|o| o.deadline.min(slack) == *t));
                    let delay = late.map(|t| (c.deadline + leaves_by(&link, slack, &set, t)).saturating_sub(t)).max().unwrap();
                    prop_assert_eq!(g.delay, delay);
                    prop_assert!(delay <= c.deadline);
                }
            }
            Err(Denied::Refused(refused)) => {
                prop_assert!(!free);
                prop_assert!(refused.excess > 0);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn each_remedy_does_and_a_step_less_does_not((link, set) in some_set(), slack in proptest::option::of(50..900_u64)) {
        let link = LinkSpec { slack: slack.map_or(Auto::Auto, Auto::Nanoseconds), ..link };
        let Err(Denied::Refused(refused)) = admit(&link, &set) else { return Ok(()) };
        for fix in &refused.fixes {
            for (less, does) in [(0, true), (1, false)] {
                let (mut link, mut set) = (link.clone(), set.clone());
                // Several channels may have the same name; the fix is for one of them.
                let mut any = false;
                for i in 0..set.len() {
                    let was = set[i].clone();
                    match fix {
                        Fix::Deadline { channel, to } if *channel == was.name => set[i].deadline = to - less,
                        Fix::Burst { channel, to } if *channel == was.name => set[i].burst = to + less,
                        Fix::Rate { channel, to } if *channel == was.name => set[i].rate = to + less,
                        Fix::LinkRate { to } => link.rate = to - less,
                        Fix::Slack { to } => link.slack = Auto::Nanoseconds(to - less),
                        _ => continue,
                    }
                    any |= admit(&link, &set).is_ok();
                    set[i] = was;
                }
                prop_assert_eq!(any, does, "{:?} less {}", fix, less);
            }
        }
    }
}
