//! Load, noise and an independent yardstick, run in the lab host and in guests.

pub mod capture;
pub mod hog;
pub mod pcap;
pub mod udp_burst;
pub mod udp_echo;
pub mod udp_flows;
pub mod udp_load;

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}
