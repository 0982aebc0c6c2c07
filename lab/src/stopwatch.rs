//! How long something in the lab host has taken, without delays that are not caused by the lab host.
//!
//! A limit distinguishes something that hangs from something that works. On a machine that is busy with other work, the
//! emulator waits for a CPU most of the time, and everything in the lab takes several times as long as usual without
//! hanging. So the time that the emulator's threads spent waiting for a CPU of this machine
//! (`/proc/<pid>/task/*/schedstat`) does not count. Threads wait at the same time, so the sum of their waits can exceed
//! the elapsed time. Therefore at least one part in [`MIN_COUNTED`] of the elapsed time counts, so that every limit ends. All
//! of the time counts once the lab host's kernel has reported that one of its CPUs is [`STUCK`]: emulated CPUs that
//! wait for each other in a loop also keep this machine's CPUs busy.

use crate::machine::Emulator;
use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

/// At least one part in this many of the elapsed time counts.
const MIN_COUNTED: u32 = 6;
/// A CPU of the lab host that was stuck for this long will not recover. On a busy machine the kernel there reports 20 s
/// and somewhat more.
const STUCK: Duration = Duration::from_secs(60);

/// The start of a limit.
#[derive(Clone)]
pub(crate) struct Stopwatch {
    emulator: Arc<Emulator>,
    begun: Instant,
    waited: Duration,
    /// The length of the console log at the start: a CPU that was stuck before has recovered.
    console_length: usize,
}

impl Stopwatch {
    /// Starts now.
    pub(crate) fn begin(emulator: &Arc<Emulator>) -> Stopwatch {
        Stopwatch {
            emulator: emulator.clone(),
            begun: Instant::now(),
            waited: waited(emulator.pid()),
            console_length: emulator.console_length(),
        }
    }

    /// The elapsed time that counts.
    pub(crate) fn counted(&self) -> Duration {
        counts(self.begun.elapsed(), waited(self.emulator.pid()).saturating_sub(self.waited))
    }

    /// Whether `limit` is exceeded. It cannot be before that much time has elapsed.
    pub(crate) fn expired(&self, limit: Duration) -> bool {
        self.begun.elapsed() >= limit
            && (self.counted() >= limit || self.emulator.stuck(self.console_length, STUCK))
    }
}

fn counts(passed: Duration, waited: Duration) -> Duration {
    passed.saturating_sub(waited).max(passed / MIN_COUNTED)
}

/// How long all threads of a process together have waited for a CPU. Threads that have ended do not count; 0 if the
/// kernel does not measure it.
fn waited(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ns = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(ns.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_cpu_counts_little() {
        let s = Duration::from_secs;
        assert_eq!(counts(s(60), s(0)), s(60));
        assert_eq!(counts(s(60), s(20)), s(40));
        assert_eq!((counts(s(60), s(59)), counts(s(60), s(200))), (s(10), s(10)));
    }

    #[test]
    fn a_process_that_sleeps_has_no_excuse() {
        let mut sleeps = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // Until it sleeps, its waits for a CPU do not count.
        let stat = format!("/proc/{}/stat", sleeps.id());
        while !fs::read_to_string(&stat).unwrap().contains("(sleep) S") {
            std::thread::sleep(Duration::from_millis(1));
        }
        let folder = std::env::temp_dir().join(format!("teiji-lab-patience-{}", sleeps.id()));
        fs::create_dir(&folder).unwrap();
        let stopwatch = Stopwatch::begin(&Arc::new(Emulator::new(sleeps.id(), &folder)));
        std::thread::sleep(Duration::from_millis(200));
        let counted = stopwatch.counted();
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        assert!(counted >= Duration::from_millis(150), "{counted:?}");
        assert!(!stopwatch.expired(Duration::from_secs(3600)));
        fs::remove_dir(&folder).unwrap();
    }

    /// Emulated CPUs that wait for each other in a loop keep the machine's CPUs busy, and so wait for them, too.
    #[test]
    fn a_lab_host_that_is_stuck_has_no_excuse() {
        let folder = std::env::temp_dir().join(format!("teiji-lab-stuck-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let console = folder.join("console.log");
        let mut printed = String::new();
        let mut says = |line: &str| {
            printed += line;
            fs::write(&console, &printed).unwrap();
        };
        let begin = || Stopwatch::begin(&Arc::new(Emulator::new(std::process::id(), &folder)));
        let mut stopwatch = begin();
        stopwatch.begun = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
        let limit = Duration::from_secs(90);
        let stuck = |p: &Stopwatch| p.emulator.stuck(p.console_length, STUCK);
        says("[ 21.1] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [CPU 3/KVM:344]\n");
        assert!(!stuck(&stopwatch));
        says("[ 81.1] watchdog: BUG: soft lockup - CPU#1 stuck for 78s! [CPU 3/KVM:344]\n");
        assert!(stopwatch.expired(limit) && !stopwatch.expired(Duration::from_secs(200)));
        // The CPU has recovered when another limit starts.
        let stopwatch = begin();
        assert!(!stuck(&stopwatch));
        says("[ 581.1] watchdog: BUG: soft lockup - CPU#1 stuck for 78s! [CPU 3/KVM:344]\n");
        assert!(stuck(&stopwatch));
        fs::remove_dir_all(&folder).unwrap();
    }
}
