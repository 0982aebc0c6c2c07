//! How a guest's clock relates to the host's, measured again and again, and by how much that may be wrong.
//!
//! ```text
//!  host   ── ping ──────────────────────────────── pong ──► t
//!            t1                                     t2
//!  guest            TSC before, clock, TSC after
//! ```
//! The guest read its clock between `t1` and `t2`: that alone bounds the error by half of the time in between. Where KVM
//! tells the offset of the guest's TSC to the host's, the two readings of the TSC say much more precisely when that was. The
//! precise time is used if it lies between `t1` and `t2`; otherwise the offset is not what it seems.
//!
//! Between two measurements the clocks are taken to keep their rate. Each measurement shows how far the former mapping has
//! drifted; that is added to the error of the new one. So the largest error of a trace covers a change of the rate that lasts
//! from one measurement to the next, not one that begins and is taken back within that second.
//!
//! Without the offset, a measurement is as good as its round trip, which varies, most of all over TCP. One that is much wider
//! than the one in use, and does not contradict it, is left out for some seconds: the ones around it count as two that follow
//! each other. A rate is taken from two measurements only if they are far enough apart for their errors.

use teiji_host::tsc::Reading;
use teiji_model::guest::Pong;
use teiji_model::stream::ClockMapping;

/// Measurements that are closer together say little about the rate, ns.
const BASELINE: u64 = 500_000_000;
/// What two measurements may be wrong by is less than this part of the time between them: 100 ppm.
const PRECISION: u64 = 10_000;
/// A measurement may be wider than the one in use by this factor.
const WIDER: u64 = 2;
/// For how long wider ones are left out, ns.
const HOLD: u64 = 5_000_000_000;
/// The rates of two clocks of one machine are taken to differ by less than this. The kernel slews a clock by 0.05 %, a time
/// server's client by up to 8 % (chrony's `maxslewrate`).
const MOST_DRIFT: u64 = ClockMapping::EQUAL / 10;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GuestClock {
    /// The offset of the guest's TSC, if it is known.
    offset: Option<i64>,
    /// The host's clocks when the trace began: with a later reading, how long a tick is.
    first: Option<Reading>,
    mapping: Option<ClockMapping>,
    /// The measurement that the mapping is of.
    used: Option<Measured>,
    /// The one that the rate is counted from.
    base: Option<Measured>,
}

/// The guest's clock and the host's at one instant, ns; by how much that may be wrong.
#[derive(Clone, Copy, Debug)]
struct Measured {
    own: u64,
    host: u64,
    width: u64,
}

impl GuestClock {
    pub(super) fn new(offset: Option<i64>, first: Reading) -> GuestClock {
        GuestClock { offset, first: Some(first), ..GuestClock::default() }
    }

    /// A guest has answered. `sent` and `got` are when, ns of the host's clock; `now` are the host's clocks now. `None`: the
    /// former mapping is better.
    pub(super) fn measure(
        &mut self,
        pong: &Pong,
        sent: u64,
        got: u64,
        now: &Reading,
    ) -> Option<ClockMapping> {
        let by_bracket = (sent / 2 + got / 2, got.saturating_sub(sent) / 2 + 1);
        let by_tsc = self.by_tsc(pong, now).filter(|(host, _)| (sent..=got).contains(host));
        let (host, width) = by_tsc.unwrap_or(by_bracket);
        let new = Measured { own: pong.clock, host, width };
        let off = self.mapping.map_or(0, |mapping| mapping.to_host(new.own).abs_diff(host));
        if let Some(used) = self.used
            && width > used.width.saturating_mul(WIDER)
            && off <= width
            && host.saturating_sub(used.host) < HOLD
        {
            return None;
        }
        let rate = match self.base.map(|base| (base, new.own.saturating_sub(base.own))) {
            Some((base, own)) if own >= BASELINE && base.width.saturating_add(width) <= own / PRECISION => {
                let host = host.saturating_sub(base.host);
                let rate = u64::try_from((u128::from(host) << 32) / u128::from(own)).unwrap_or(u64::MAX);
                self.base = Some(new);
                rate.clamp(ClockMapping::EQUAL - MOST_DRIFT, ClockMapping::EQUAL + MOST_DRIFT)
            }
            Some(_) => self.mapping.map_or(ClockMapping::EQUAL, |mapping| mapping.rate),
            None => {
                self.base = Some(new);
                ClockMapping::EQUAL
            }
        };
        let mapping = ClockMapping { own: new.own, host, rate, error: width.saturating_add(off) };
        (self.mapping, self.used) = (Some(mapping), Some(new));
        Some(mapping)
    }

    /// The host's time when the guest read its clock, and the error, ns, by the guest's TSC.
    fn by_tsc(&self, pong: &Pong, now: &Reading) -> Option<(u64, u64)> {
        let (offset, first) = (self.offset?, self.first?);
        let width = pong.tsc_after.checked_sub(pong.tsc_before)?;
        let guest = pong.tsc_before.wrapping_add(width / 2);
        let host = guest.wrapping_sub(offset as u64);
        // ns for a tick, in units of 2^-32.
        let (ticks, ns) = (now.tsc.checked_sub(first.tsc)?, now.ns.checked_sub(first.ns)?);
        let tick = (u128::from(ns) << 32).checked_div(u128::from(ticks))?;
        let ns_of = |ticks: u64| u64::try_from((u128::from(ticks) * tick) >> 32).unwrap_or(u64::MAX);
        let ago = now.tsc.checked_sub(host)?;
        // The length of a tick is as good as its two readings.
        let of_tick = u128::from(ago) * u128::from(first.error + now.error) / u128::from(ticks.max(1));
        let error = ns_of(width.div_ceil(2)) + ns_of(now.error) + ns_of(u64::try_from(of_tick).ok()?) + 2;
        Some((now.ns.checked_sub(ns_of(ago))?, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host whose TSC has 3 ticks for each ns, and a guest whose clock began later and is fast by some parts per million.
    struct Machine {
        ppm: u64,
    }

    impl Machine {
        fn host(ns: u64) -> Reading {
            Reading { tsc: 3 * ns + 1000, ns, error: 30 }
        }

        fn pong(&self, ns: u64, offset: i64) -> Pong {
            let tsc = Machine::host(ns).tsc.wrapping_add(offset as u64);
            let own = ns - 5_000_000_000;
            Pong {
                number: 0,
                tsc_before: tsc - 60,
                clock: own + own * self.ppm / 1_000_000,
                tsc_after: tsc + 60,
            }
        }
    }

    const S: u64 = 1_000_000_000;

    #[test]
    fn with_the_offset_the_error_is_that_of_the_readings() {
        for offset in [-40_000_000_000i64, 77, 0] {
            let machine = Machine { ppm: 0 };
            let mut clock = GuestClock::new(Some(offset), Machine::host(9 * S));
            for n in 10..20 {
                let at = n * S;
                // The answer waits for long, on one side.
                let got = at + 3_000_000;
                let mapping =
                    clock.measure(&machine.pong(at, offset), at - 100, got, &Machine::host(got)).unwrap();
                assert!(mapping.error < 60, "{mapping:?}");
                let own = machine.pong(at + S / 2, offset).clock;
                assert!(mapping.to_host(own).abs_diff(at + S / 2) <= mapping.error, "{mapping:?}");
            }
        }
    }

    #[test]
    fn without_or_with_a_wrong_offset_it_is_half_of_the_round_trip() {
        let machine = Machine { ppm: 0 };
        for offset in [None, Some(90_000_000_000)] {
            let mut clock = GuestClock::new(offset, Machine::host(9 * S));
            let at = 10 * S;
            let mapping =
                clock.measure(&machine.pong(at, 5), at - 400, at + 600, &Machine::host(at + 600)).unwrap();
            assert_eq!(mapping.error, 501);
            assert!(mapping.to_host(mapping.own).abs_diff(at) <= mapping.error);
        }
    }

    #[test]
    fn a_clock_that_runs_faster_is_followed_and_the_error_says_how_far_it_was_off() {
        let machine = Machine { ppm: 300 };
        let mut clock = GuestClock::new(Some(0), Machine::host(9 * S));
        let mut errors = Vec::new();
        for n in 10..20 {
            let at = n * S;
            let mapping = clock.measure(&machine.pong(at, 0), at - 100, at + 100, &Machine::host(at + 100));
            errors.push(mapping.unwrap().error);
        }
        // 300 ppm of the first second, then nothing but the readings.
        assert!(errors[1] > 290_000 && errors[3..].iter().all(|e| *e < 200), "{errors:?}");
    }

    /// A guest over TCP without the offset: what is measured at each second, by round trips of these lengths that wait on
    /// one side only. Returns the mappings that are used, and by how much each second is mapped wrongly.
    fn over_tcp(ppm: u64, round_trips: &[u64]) -> (Vec<Option<ClockMapping>>, Vec<u64>) {
        let machine = Machine { ppm };
        let mut clock = GuestClock::new(None, Machine::host(9 * S));
        let mut wrong = Vec::new();
        let mut used = Vec::new();
        for (at, round_trip) in (10..).map(|n| n * S).zip(round_trips) {
            let got = at + round_trip;
            used.push(clock.measure(&machine.pong(at, 0), at, got, &Machine::host(got)));
            let own = machine.pong(at + S / 2, 0).clock;
            wrong.push(clock.mapping.unwrap().to_host(own).abs_diff(at + S / 2));
        }
        (used, wrong)
    }

    #[test]
    fn long_round_trips_are_not_preferred() {
        let us = |us: u64| us * 1000;
        let (used, wrong) = over_tcp(0, &[us(100), us(9_000), us(150), us(20_000), us(20_000), us(90)]);
        let which: Vec<bool> = used.iter().map(Option::is_some).collect();
        assert_eq!(which, [true, false, true, false, false, true]);
        // Half of the round trips that count, and what the rate that follows from them is wrong by: not milliseconds.
        assert!(wrong.iter().all(|wrong| *wrong <= us(125)), "{wrong:?}");
        let errors: Vec<u64> = used.into_iter().flatten().map(|mapping| mapping.error).collect();
        assert!(errors.iter().all(|error| (us(45)..us(120)).contains(error)), "{errors:?}");
    }

    #[test]
    fn round_trips_that_stay_long_are_used_after_some_seconds() {
        let long: Vec<u64> = [100_000].into_iter().chain([9_000_000; 12]).collect();
        let (used, _) = over_tcp(0, &long);
        let which: Vec<usize> =
            used.iter().enumerate().filter(|(_, u)| u.is_some()).map(|(n, _)| n).collect();
        // The first of them after 5 s; those after it are as good as it.
        assert_eq!(which, [0, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert!(used[5].unwrap().error >= 4_500_000);
    }

    #[test]
    fn a_long_round_trip_that_contradicts_the_mapping_is_used() {
        let mut clock = GuestClock::new(None, Machine::host(9 * S));
        let measure = |clock: &mut GuestClock, own, at: u64, got: u64| {
            let pong = Pong { number: 0, tsc_before: 1, clock: own, tsc_after: 2 };
            clock.measure(&pong, at, got, &Machine::host(got))
        };
        measure(&mut clock, S, 10 * S, 10 * S + 1000).unwrap();
        // The guest was stopped for a second, without its clock.
        let mapping = measure(&mut clock, 2 * S, 12 * S, 12 * S + 9_000_000).unwrap();
        assert!(mapping.error >= S && mapping.host == 12 * S + 4_500_000, "{mapping:?}");
    }

    /// Round trips of up to 2 ms: one second of them would say a rate that is wrong by 1000 ppm.
    #[test]
    fn the_noise_of_round_trips_is_no_rate() {
        let noisy: Vec<u64> = (0..120).map(|n| 1_000_000 + n * 700_001 % 1_000_000).collect();
        for ppm in [0, 200] {
            let (used, wrong) = over_tcp(ppm, &noisy);
            let rates = used.iter().flatten().map(|mapping| mapping.rate.abs_diff(ClockMapping::EQUAL));
            let most = rates.max().unwrap() * 1_000_000 / ClockMapping::EQUAL;
            assert!(most <= ppm + 100, "{most} ppm of {ppm}");
            for (mapping, wrong) in used.iter().zip(&wrong).filter_map(|(m, w)| Some((m.as_ref()?, w))) {
                // Half a second later, with a rate that is wrong by no more than that.
                assert!(*wrong <= mapping.error + (ppm + 100) * 500, "{wrong} {mapping:?}");
            }
        }
    }

    #[test]
    fn no_answer_makes_it_panic() {
        let numbers = [0, 1, S, u64::MAX / 2, u64::MAX - 1, u64::MAX];
        let mut clock = GuestClock::new(Some(i64::MIN), Machine::host(9 * S));
        for a in numbers {
            for b in numbers {
                for c in numbers {
                    let pong = Pong { number: 0, tsc_before: a, clock: b, tsc_after: c };
                    let mapping = clock.measure(&pong, 10 * S, 11 * S, &Machine::host(11 * S));
                    assert!(mapping.is_none_or(|mapping| (10 * S..=11 * S).contains(&mapping.host)));
                }
            }
        }
    }
}
