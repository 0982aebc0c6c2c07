//! What keeps a real-time thread that never sleeps from starving the other threads on its CPU.
//!
//! - Up to Linux 6.11 the throttling of real-time classes: `kernel.sched_rt_runtime_us` in each
//!   `kernel.sched_rt_period_us` (Documentation/scheduler/sched-rt-group.rst).
//! - From Linux 6.12 a deadline server for ordinary threads, whose time is in
//!   `/sys/kernel/debug/sched/fair_server/cpu<n>/runtime` (kernel/sched/debug.c), by default 50 ms of each second. It
//!   is on unless somebody has switched it off there. If debugfs cannot be read, the sysctl is used instead, on the
//!   assumption that whoever switches off the sysctl switches off both.

use crate::root::Root;
use teiji_model::cpus::CpuSet;

/// The first kernel with the deadline server.
const FAIR_SERVER: (u32, u32) = (6, 12);
const DIR: &str = "sys/kernel/debug/sched/fair_server";

/// What guards the CPUs in `cpus`, for people; `None` if not all of them are guarded.
pub(super) fn realtime(root: &Root, cpus: &CpuSet) -> Option<String> {
    if root.exists(DIR) {
        let guarded = |cpu| root.number(&format!("{DIR}/cpu{cpu}/runtime")).is_some_and(|ns| ns > 0);
        return cpus.iter().all(guarded).then(|| {
            "the fair server gives ordinary threads a part of each CPU's time (/sys/kernel/debug/sched/fair_server)"
                .to_owned()
        });
    }
    let number = |name: &str| root.text(&format!("proc/sys/kernel/{name}"))?.trim().parse::<i64>().ok();
    let runtime = number("sched_rt_runtime_us")?;
    let period = number("sched_rt_period_us").unwrap_or(1_000_000);
    if runtime < 0 || runtime >= period {
        return None;
    }
    Some(match root.kernel_version() >= FAIR_SERVER {
        true => {
            "the fair server gives ordinary threads a part of each CPU's time, if it is on as by default; \
                 debugfs, which would tell, cannot be read"
                .to_owned()
        }
        false => format!(
            "real-time threads get at most {runtime} of every {period} µs (kernel.sched_rt_runtime_us)"
        ),
    })
}
