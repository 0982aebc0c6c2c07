//! Whether the emulator goes before everything else of this machine.
//!
//! Emulated CPUs are threads of the emulator. Where there are more of them than real CPUs, the scheduler takes turns with
//! them, and one that is put aside while it holds a lock of the emulator (that of the clock, say) stops the others:
//! hundreds of microseconds in the middle of nothing. Under `SCHED_FIFO` a thread goes on until it has nothing to do. That
//! suits what waits most of the time; a busy loop in the lab host would keep a real CPU to itself.

use std::{fs, path::PathBuf};

use crate::error::{Doing, Result};

/// Above this machine's ordinary threads, below its interrupts' (50).
const PRIORITY: i32 = 10;

/// While it lives, the emulator's threads go before others. From [`crate::Host::prefer`].
#[must_use = "dropping it ends the preference"]
pub struct Preference {
    tasks: PathBuf,
}

impl Preference {
    pub(crate) fn of(pid: u32) -> Result<Preference> {
        let preference = Preference { tasks: format!("/proc/{pid}/task").into() };
        preference.set(libc::SCHED_FIFO, PRIORITY)?;
        Ok(preference)
    }

    fn set(&self, policy: i32, priority: i32) -> Result<()> {
        let doing = || "have the emulator go before other programs (is this root?)".to_owned();
        for entry in fs::read_dir(&self.tasks).doing(doing)? {
            let name = entry.doing(doing)?.file_name();
            let Some(tid) = name.to_str().and_then(|n| n.parse().ok()) else { continue };
            let param = libc::sched_param { sched_priority: priority };
            // SAFETY: `param` is complete and lives through the call.
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

impl Drop for Preference {
    fn drop(&mut self) {
        // It fails only if the emulator has ended.
        let _ = self.set(libc::SCHED_OTHER, 0);
    }
}
