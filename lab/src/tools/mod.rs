//! Load generators and an independent capture, which run in the lab host and in guests.

pub mod capture;
pub mod hog;
pub mod link_up;
pub mod pcap;
pub mod udp_burst;
pub mod udp_echo;
pub mod udp_flows;
pub mod udp_load;

use nix::time::ClockId;

/// The present time of that clock, ns.
fn ns_of(clock: ClockId) -> u64 {
    nix::time::clock_gettime(clock).map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    ns_of(ClockId::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME − CLOCK_MONOTONIC, ns, from the closest of several pairs of readings; before it, by how much that may be
/// wrong.
fn clock_difference() -> (i64, i64) {
    (0..50)
        .map(|_| {
            let before = now_ns() as i64;
            let real = ns_of(ClockId::CLOCK_REALTIME) as i64;
            let after = now_ns() as i64;
            ((after - before + 1) / 2, real - (before + after) / 2)
        })
        .min()
        .unwrap_or_default()
}

/// Locks all of this program into memory, including its libraries. In virtual mode, reading a page at its first use
/// takes long by the lab's clock, which runs ahead while the lab waits for this machine's disk.
pub(crate) fn stay_in_memory() {
    // SAFETY: no memory of this process is changed. Without the privilege the call has no effect.
    let _ = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
}
