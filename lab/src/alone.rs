//! One of the lab host's CPUs with a core of this machine to itself.
//!
//! An emulated machine has more CPUs than there are cores. Where two instants a few microseconds apart are compared,
//! the machine's scheduler must not put another of them between. Nor may it stop one of them while it reads the
//! clock, for which an emulator's CPUs wait for each other: so those that share a core take turns by time alone
//! (`SCHED_BATCH`: who wakes up does not preempt). The one that is alone goes before all else that the machine does
//! on its core (`SCHED_RR`).

use std::fs;

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::error::{Doing, Error, Result};

/// Lasts as long as this value.
#[derive(Debug)]
pub struct Alone {
    emulator: u32,
    everywhere: CpuSet,
}

/// Threads of the emulator, and the number of the CPU that each is, if it is one.
fn threads(emulator: u32) -> Vec<(Pid, Option<u32>)> {
    let tasks = fs::read_dir(format!("/proc/{emulator}/task")).into_iter().flatten().flatten();
    let of = |task: fs::DirEntry| {
        let tid = task.file_name().to_string_lossy().parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        // `CPU 2/TCG`, `CPU 2/KVM`
        let cpu = name.strip_prefix("CPU ").and_then(|n| n.split('/').next()?.parse().ok());
        Some((Pid::from_raw(tid), cpu))
    };
    tasks.filter_map(of).collect()
}

/// Gives a thread a scheduling class, with the least priority in it. It fails only for one that has ended.
fn schedule(tid: Pid, class: libc::c_int) {
    let parameters = libc::sched_param { sched_priority: i32::from(class == libc::SCHED_RR) };
    // SAFETY: `parameters` is whole and lives through the call.
    unsafe { libc::sched_setscheduler(tid.as_raw(), class, &raw const parameters) };
}

impl Alone {
    /// Gives CPU `cpu` of the lab host whose emulator this is the last core; the others share the rest.
    pub(crate) fn new(emulator: u32, cpu: u32) -> Result<Alone> {
        let everywhere =
            sched_getaffinity(Pid::from_raw(0)).doing(|| "ask for this machine's cores".into())?;
        let cores: Vec<usize> =
            (0..CpuSet::count()).filter(|n| everywhere.is_set(*n).unwrap_or(false)).collect();
        let Some((last, rest)) = cores.split_last().filter(|(_, rest)| !rest.is_empty()) else {
            return Err(Error::Host("cannot have a core to itself: this machine has only one".into()));
        };
        let (mut own, mut shared) = (CpuSet::new(), CpuSet::new());
        own.set(*last).doing(|| "choose a core".into())?;
        rest.iter().try_for_each(|n| shared.set(*n)).doing(|| "choose cores".into())?;
        let alone = Alone { emulator, everywhere };
        let threads = threads(emulator);
        if !threads.iter().any(|(_, n)| *n == Some(cpu)) {
            return Err(Error::Host(format!("has no CPU {cpu} whose thread can be told")));
        }
        for (tid, n) in threads {
            let (set, class) =
                if n == Some(cpu) { (&own, libc::SCHED_RR) } else { (&shared, libc::SCHED_BATCH) };
            sched_setaffinity(tid, set).doing(|| "place the emulator's threads".into())?;
            schedule(tid, class);
        }
        Ok(alone)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        for (tid, _) in threads(self.emulator) {
            // It fails only for a thread that has ended.
            let _ = sched_setaffinity(tid, &self.everywhere);
            schedule(tid, libc::SCHED_OTHER);
        }
    }
}
