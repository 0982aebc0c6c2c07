//! Gives the emulator priority over everything else on this machine.
//!
//! Emulated CPUs are threads of the emulator. If there are more of them than real CPUs, they take turns. If the
//! scheduler preempts one of them while it holds a lock of the emulator (such as that of the clock), the others stop
//! for hundreds of microseconds. Under `SCHED_RR` a thread runs until it has nothing to do, or for 100 ms. That suits a
//! lab host that waits most of the time. Not `SCHED_FIFO`: two emulated CPUs that wait in a loop for a third, as a kernel
//! does after an interrupt to all CPUs, would occupy two real ones for ever (a lab host was seen to hang so).

use std::{fs, path::PathBuf};

use crate::error::{Doing, Result};

/// Above this machine's ordinary threads, below its interrupt threads (50).
const PRIORITY: i32 = 10;

/// While this exists, the emulator's threads have priority over others. See [`crate::LabHost::raise_priority`].
#[must_use = "dropping it ends the preference"]
pub struct RaisedPriority {
    tasks: PathBuf,
}

impl RaisedPriority {
    pub(crate) fn of(pid: u32) -> Result<RaisedPriority> {
        let preference = RaisedPriority { tasks: format!("/proc/{pid}/task").into() };
        preference.set(libc::SCHED_RR, PRIORITY)?;
        Ok(preference)
    }

    fn set(&self, policy: i32, priority: i32) -> Result<()> {
        let doing = || "have the emulator go before other programs (is this root?)".to_owned();
        for entry in fs::read_dir(&self.tasks).doing(doing)? {
            let name = entry.doing(doing)?.file_name();
            let Some(tid) = name.to_str().and_then(|n| n.parse().ok()) else { continue };
            let param = libc::sched_param { sched_priority: priority };
            // SAFETY: `param` is complete and outlives the call.
            let r = unsafe { libc::sched_setscheduler(tid, policy, &raw const param) };
            match nix::Error::result(r) {
                // A thread of the emulator's pool that has ended.
                Ok(_) | Err(nix::Error::ESRCH) => {}
                Err(e) => return Err(e).doing(doing),
            }
        }
        Ok(())
    }
}

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        // It fails only if the emulator has ended.
        let _ = self.set(libc::SCHED_OTHER, 0);
    }
}
