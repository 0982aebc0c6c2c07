//! How long something in the lab host has taken, as far as the lab host is to blame.
//!
//! A limit tells what hangs from what works. On a machine that is busy with other work the emulator waits for a CPU most
//! of the time and everything in the lab takes a multiple of its usual time without hanging. So the time that the
//! emulator's threads spent waiting for a CPU of this machine (the kernel's own account, `/proc/<pid>/task/*/schedstat`)
//! does not count. Threads wait at the same time, so the sum of their waits can be longer than the time itself; a
//! [`LEAST`] part of that counts in any case, so that every limit ends. And all of it counts once the lab host's own
//! kernel has said that a CPU of it is [`STUCK`]: emulated CPUs that wait for each other in a loop keep this machine's
//! busy too.

use crate::machine::Emulator;
use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

/// One part in so many of the time on the wall counts whatever the emulator waited for.
const LEAST: u32 = 6;
/// A CPU of the lab host that was stuck for so long will not come back. On a busy machine the kernel there tells of 20 s
/// and somewhat more.
const STUCK: Duration = Duration::from_secs(60);

/// The instant from which a limit counts.
#[derive(Clone)]
pub(crate) struct Patience {
    emulator: Arc<Emulator>,
    begun: Instant,
    waited: Duration,
    /// How much its console had said: a CPU that was stuck before came back.
    said: usize,
}

impl Patience {
    /// Begins now.
    pub(crate) fn begin(emulator: &Arc<Emulator>) -> Patience {
        Patience {
            emulator: emulator.clone(),
            begun: Instant::now(),
            waited: waited(emulator.pid()),
            said: emulator.said(),
        }
    }

    /// What has passed since, and counts.
    pub(crate) fn spent(&self) -> Duration {
        counts(self.begun.elapsed(), waited(self.emulator.pid()).saturating_sub(self.waited))
    }

    /// Whether `limit` is over. It cannot be before that much time has passed.
    pub(crate) fn over(&self, limit: Duration) -> bool {
        self.begun.elapsed() >= limit && (self.spent() >= limit || self.emulator.stuck(self.said, STUCK))
    }
}

fn counts(passed: Duration, waited: Duration) -> Duration {
    passed.saturating_sub(waited).max(passed / LEAST)
}

/// How long the threads of a process have waited for a CPU, all together. Nothing of those that have ended, and nothing
/// where the kernel keeps no such account.
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
        // What it waits for a CPU until it sleeps is an excuse.
        let stat = format!("/proc/{}/stat", sleeps.id());
        while !fs::read_to_string(&stat).unwrap().contains("(sleep) S") {
            std::thread::sleep(Duration::from_millis(1));
        }
        let folder = std::env::temp_dir().join(format!("teiji-lab-patience-{}", sleeps.id()));
        fs::create_dir(&folder).unwrap();
        let patience = Patience::begin(&Arc::new(Emulator::new(sleeps.id(), &folder)));
        std::thread::sleep(Duration::from_millis(200));
        let spent = patience.spent();
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        assert!(spent >= Duration::from_millis(150), "{spent:?}");
        assert!(!patience.over(Duration::from_secs(3600)));
        fs::remove_dir(&folder).unwrap();
    }

    /// Emulated CPUs that wait for each other in a loop keep the machine's busy, and so wait for them.
    #[test]
    fn a_lab_host_that_is_stuck_has_no_excuse() {
        let folder = std::env::temp_dir().join(format!("teiji-lab-stuck-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let console = folder.join("console.log");
        let mut said = String::new();
        let mut says = |line: &str| {
            said += line;
            fs::write(&console, &said).unwrap();
        };
        let begin = || Patience::begin(&Arc::new(Emulator::new(std::process::id(), &folder)));
        let mut patience = begin();
        patience.begun = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
        let limit = Duration::from_secs(90);
        let stuck = |p: &Patience| p.emulator.stuck(p.said, STUCK);
        says("[ 21.1] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [CPU 3/KVM:344]\n");
        assert!(!stuck(&patience));
        says("[ 81.1] watchdog: BUG: soft lockup - CPU#1 stuck for 78s! [CPU 3/KVM:344]\n");
        assert!(patience.over(limit) && !patience.over(Duration::from_secs(200)));
        // It came back, as something else begins.
        let patience = begin();
        assert!(!stuck(&patience));
        says("[ 581.1] watchdog: BUG: soft lockup - CPU#1 stuck for 78s! [CPU 3/KVM:344]\n");
        assert!(stuck(&patience));
        fs::remove_dir_all(&folder).unwrap();
    }
}
