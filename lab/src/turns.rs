//! Lets the CPUs of an emulator take turns on the real ones, instead of preempting each other: for measurements of short times.
//!
//! Emulated CPUs are threads, here more than there are real CPUs. In the ordinary class one that wakes up preempts another one,
//! which then stands still for a time, perhaps between two time stamps that are to be compared. Under `SCHED_RR` a thread goes on
//! until it sleeps, or for 100 ms.
//!
//! ```text
//!  ordinary ── take_turns: every thread ──► SCHED_RR ── drop: every thread ──► ordinary
//! ```
//!
//! Not for tests, of which several run at a time: an emulated CPU often waits in a loop for another one, as a kernel does after an
//! interrupt to all CPUs. Two loops of one emulator under `SCHED_RR` keep both real CPUs from another emulator: its CPUs were seen
//! to stand still for 5 to 30 s. For the same reason the thread that changes the classes goes before all of them meanwhile, and
//! not `SCHED_FIFO`: the loops of two would keep a third from running for ever.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
};

use crate::error::{Doing, Result};

/// Above this machine's ordinary threads, below its interrupt threads (50).
const PRIORITY: i32 = 10;

/// While this exists, the emulator's CPUs take turns. See [`crate::LabHost::take_turns`].
#[must_use = "dropping it ends the turns"]
pub struct Turns {
    tasks: PathBuf,
}

impl Turns {
    pub(crate) fn of(pid: u32) -> Result<Turns> {
        let turns = Turns { tasks: format!("/proc/{pid}/task").into() };
        let doing = || {
            "let the emulated CPUs take turns (root, and a control group with real-time runtime?)".to_owned()
        };
        turns.set(libc::SCHED_RR, PRIORITY).doing(doing)?;
        Ok(turns)
    }

    /// Gives every thread of the emulator a class.
    fn set(&self, class: i32, priority: i32) -> io::Result<()> {
        let tasks = &self.tasks;
        thread::scope(|scope| {
            // It ends with its class.
            let done = scope.spawn(|| {
                schedule(0, libc::SCHED_RR, PRIORITY + 1)?;
                // Threads that others have begun meanwhile are found by the second look.
                (0..2).try_for_each(|_| every(tasks, class, priority))
            });
            done.join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that changes classes has panicked")))
        })
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        // It fails only if the emulator has ended.
        let _ = self.set(libc::SCHED_OTHER, 0);
    }
}

fn every(tasks: &Path, class: i32, priority: i32) -> io::Result<()> {
    for entry in fs::read_dir(tasks)? {
        let name = entry?.file_name();
        let Some(tid) = name.to_str().and_then(|n| n.parse().ok()) else { continue };
        match schedule(tid, class, priority) {
            // A thread of the emulator's pool that has ended.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            done => done?,
        }
    }
    Ok(())
}

fn schedule(tid: libc::pid_t, class: i32, priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: `param` is complete and outlives the call.
    let r = unsafe { libc::sched_setscheduler(tid, class, &raw const param) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn class(pid: u32) -> i32 {
        // SAFETY: a plain system call.
        unsafe { libc::sched_getscheduler(pid as libc::pid_t) }
    }

    #[test]
    fn threads_take_turns_until_it_is_dropped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        match Turns::of(child.id()) {
            Ok(turns) => {
                assert_eq!(class(child.id()), libc::SCHED_RR);
                drop(turns);
            }
            // Without root, or in a control group without real-time runtime.
            Err(e) => assert!(e.to_string().contains("let the emulated CPUs take turns (root, "), "{e}"),
        }
        assert_eq!(class(child.id()), libc::SCHED_OTHER);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
