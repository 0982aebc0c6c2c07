//! Load generators and an independent capture, which run in the lab host and in guests.

pub mod capture;
pub mod hog;
pub mod link_up;
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

/// Locks all of this program into memory, including its libraries. In virtual mode, reading a page at its first use
/// takes long by the lab's clock, which runs ahead while the lab waits for this machine's disk.
pub(crate) fn stay_in_memory() {
    // SAFETY: no memory of this process is changed. Without the privilege the call has no effect.
    let _ = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
}
