//! Gives the emulator priority over everything else on this machine.
//!
//! Emulated CPUs are threads of the emulator. If there are more of them than real CPUs, they take turns. If the
//! scheduler preempts one of them while it holds a lock of the emulator (such as that of the clock), the others stop
//! for hundreds of microseconds.
//!
//! All of them stay in the ordinary scheduling class. An emulated CPU often waits in a loop for another one, as a kernel does
//! after an interrupt to all CPUs. In a real-time class it would do so for ever if the other is in the ordinary class: between the
//! changes of two threads, or of another emulator (under `SCHED_RR` emulated CPUs of both were seen to stand still for 5 to 30 s).

use std::{fs, io, path::PathBuf};

use crate::{
    confine::NICE,
    error::{Doing, Result},
};

/// The nice value of an emulator that is preferred.
const PREFERRED: i32 = -20;

/// While this exists, the emulator's threads have priority over others. See [`crate::LabHost::raise_priority`].
#[must_use = "dropping it ends the preference"]
pub struct RaisedPriority {
    process: PathBuf,
}

impl RaisedPriority {
    pub(crate) fn of(pid: u32) -> Result<RaisedPriority> {
        let preference = RaisedPriority { process: format!("/proc/{pid}").into() };
        preference.set(PREFERRED)?;
        Ok(preference)
    }

    /// Sets the nice value of the emulator's session, if the kernel shares CPU time between sessions first, and of its threads.
    fn set(&self, nice: i32) -> Result<()> {
        let doing = || "have the emulator go before other programs (is this root?)".to_owned();
        match fs::write(self.process.join("autogroup"), nice.to_string()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).doing(doing),
            _ => {}
        }
        for entry in fs::read_dir(self.process.join("task")).doing(doing)? {
            let name = entry.doing(doing)?.file_name();
            let Some(tid) = name.to_str().and_then(|n| n.parse().ok()) else { continue };
            // SAFETY: a plain system call.
            let r = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, nice) };
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
        let _ = self.set(NICE);
    }
}
