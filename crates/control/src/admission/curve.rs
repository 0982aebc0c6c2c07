//! A channel for HFSC: a service curve of two pieces (Stoica, Zhang, Ng: A Hierarchical Fair Service Curve Algorithm,
//! SIGCOMM 1997; tc-hfsc(7)).
//!
//! ```text
//! bytes │            ╱  m2: the channel's rate
//!       │         ╱
//! burst ┤- - - ╱·
//!       │    ╱  ·
//!       │  ╱ m1 ·
//!       └───────┴────── time
//!               d
//! ```
//! Packets within burst and rate leave within d. The curve is concave (m1 ≥ m2), as HFSC's test requires.
//!
//! The kernel divides by rates through a factor that it has rounded up (`m2ism()`, net/sched/sch_hfsc.c): above about
//! 100 Mbit/s it serves noticeably less than the configured rate. The rates of a curve here are those to configure so
//! that at least the wanted rate is served.

use teiji_model::qdisc::{Channel, Curve, RATE_STEP};

/// The highest rate that HFSC can be configured with, bit/s: 2³² − 1 bytes per second (`struct tc_service_curve`).
pub const HFSC_MAX_RATE: u64 = u32::MAX as u64 * 8;
/// Clock ticks per second, times 2¹⁴ (`PSCHED_TICKS_PER_SEC << ISM_SHIFT`): the dividend of the kernel's division by a
/// rate.
const SCALE: u64 = 15_625_000 << 14;

/// The smallest curve that serves `burst` bytes within `within` ns (rounded down to whole µs), and `rate` bit/s in the
/// long run; `None` if that is less than 1 µs, or more than the kernel can be configured with.
pub fn smallest(burst: u64, within: u64, rate: u64) -> Option<Curve> {
    let d = u32::try_from(within / 1000).ok().filter(|d| *d > 0)?;
    let m2 = rate_for_kernel(rate.div_ceil(RATE_STEP))?;
    let first = (u128::from(burst) * 1_000_000).div_ceil(u128::from(d));
    let m1 = rate_for_kernel(u64::try_from(first).ok()?)?.max(m2);
    Some(Curve { m1, d, m2 })
}

/// The curve of a channel, whose deadline is the time that HFSC has to keep; `None` as for [`smallest`].
pub fn of(channel: &Channel) -> Option<Curve> {
    smallest(channel.burst, channel.deadline, channel.rate)
}

/// How much of the link a curve may use, bit/s: a little more than its rate, because the kernel rounds its increments
/// up (`m2sm()`), by less than one byte per second.
pub fn reserves(curve: &Curve) -> u64 {
    (u64::from(curve.m1) + 1) * 8
}

/// The rate to configure so that at least `wanted` bytes per second are served.
fn rate_for_kernel(wanted: u64) -> Option<u32> {
    let factor = SCALE.checked_div(wanted.max(1)).filter(|f| *f > 0)?;
    u32::try_from(SCALE.div_ceil(factor)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `m2ism()` of the kernel.
    fn factor(m: u32) -> u64 {
        SCALE.div_ceil(u64::from(m))
    }

    #[test]
    fn a_curve_serves_what_is_asked_for() {
        for bytes in [1, 2, 1000, 125_000, 12_499_999, 125_000_000, 1_250_000_000, 4_000_000_000_u64] {
            let m = rate_for_kernel(bytes).unwrap();
            // A byte takes factor / 2¹⁴ ticks: not longer than at the wanted rate.
            assert!(factor(m) * bytes <= SCALE, "{bytes} {m}");
            assert!(u64::from(m) <= bytes + bytes / 50 + 1, "{bytes} {m}");
        }
        let curve = smallest(1000, 2_000_999, 8_000).unwrap();
        assert_eq!(curve, Curve { m1: 500_000, d: 2000, m2: 1000 });
        assert_eq!(reserves(&curve), 4_000_008);
        // A rate that serves the burst sooner than required.
        assert_eq!(
            smallest(100, 1_000_000, 8_000_000).unwrap(),
            Curve { m1: 1_000_000, d: 1000, m2: 1_000_000 }
        );
    }

    #[test]
    fn what_the_kernel_cannot_be_told_has_no_curve() {
        assert_eq!(smallest(1000, 999, 8), None);
        assert_eq!(smallest(1 << 30, 1000, 8), None);
        assert_eq!(smallest(1000, 1_000_000, HFSC_MAX_RATE + 8), None);
        assert_eq!(smallest(u64::MAX, u64::MAX, u64::MAX), None);
        assert!(smallest(1000, 1_000_000, 30_000_000_000).is_some());
    }
}
