//! How an operator does on a host what teiji does not do, as parts of sentences.
//!
//! Plans and suggestions say this, and control, which makes them, does not know the kernel's names (decision 10).

use crate::text::printable;

/// Keeps real-time threads that never sleep from starving the host (kernel/sched/rt.c).
pub const LIMIT_REAL_TIME: &str = "set kernel.sched_rt_runtime_us to 950000 (sysctl)";

/// Gives a host of systemd the hierarchy of control groups of version 2.
pub const MOUNT_CGROUP_2: &str = "boot with systemd.unified_cgroup_hierarchy=1";

/// Makes TCP of this host put one frame into each packet of the device.
pub fn one_frame_per_packet(device: &str) -> String {
    format!("`ip link set dev {} gso_max_segs 1`", printable(device))
}
