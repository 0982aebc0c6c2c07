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

use teiji_host::tsc::Reading;
use teiji_model::guest::Pong;
use teiji_model::stream::ClockMapping;

/// Measurements that are closer together say little about the rate, ns.
const BASELINE: u64 = 500_000_000;
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
    /// The measurement that the rate is counted from.
    base: Option<(u64, u64)>,
}

impl GuestClock {
    pub(super) fn new(offset: Option<i64>, first: Reading) -> GuestClock {
        GuestClock { offset, first: Some(first), ..GuestClock::default() }
    }

    /// A guest has answered. `sent` and `got` are when, ns of the host's clock; `now` are the host's clocks now.
    pub(super) fn measure(&mut self, pong: &Pong, sent: u64, got: u64, now: &Reading) -> ClockMapping {
        let by_bracket = (sent / 2 + got / 2, got.saturating_sub(sent) / 2 + 1);
        let by_tsc = self.by_tsc(pong, now).filter(|(host, _)| (sent..=got).contains(host));
        let (host, width) = by_tsc.unwrap_or(by_bracket);
        let rate = match self.base {
            Some((own_then, host_then)) if pong.clock.saturating_sub(own_then) >= BASELINE => {
                let (own, host) = (pong.clock - own_then, host.saturating_sub(host_then));
                let rate = u64::try_from((u128::from(host) << 32) / u128::from(own)).unwrap_or(u64::MAX);
                self.base = Some((pong.clock, host.saturating_add(host_then)));
                rate.clamp(ClockMapping::EQUAL - MOST_DRIFT, ClockMapping::EQUAL + MOST_DRIFT)
            }
            Some(_) => self.mapping.map_or(ClockMapping::EQUAL, |mapping| mapping.rate),
            None => {
                self.base = Some((pong.clock, host));
                ClockMapping::EQUAL
            }
        };
        let off = self.mapping.map_or(0, |mapping| mapping.to_host(pong.clock).abs_diff(host));
        let mapping = ClockMapping { own: pong.clock, host, rate, error: width.saturating_add(off) };
        self.mapping = Some(mapping);
        mapping
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
                let mapping = clock.measure(
                    &machine.pong(at, offset),
                    at - 100,
                    at + 3_000_000,
                    &Machine::host(at + 3_000_000),
                );
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
            let mapping = clock.measure(&machine.pong(at, 5), at - 400, at + 600, &Machine::host(at + 600));
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
            errors.push(mapping.error);
        }
        // 300 ppm of the first second, then nothing but the readings.
        assert!(errors[1] > 290_000 && errors[3..].iter().all(|e| *e < 200), "{errors:?}");
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
                    assert!((10 * S..=11 * S).contains(&mapping.host));
                }
            }
        }
    }
}
