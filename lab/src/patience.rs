//! How long something in the lab host has taken, as far as the lab host is to blame.
//!
//! A limit tells what hangs from what works. On a machine that is busy with other work the emulator waits for a CPU most
//! of the time and everything in the lab takes a multiple of its usual time without hanging. So the time that the
//! emulator's threads spent waiting for a CPU of this machine (the kernel's own account, `/proc/<pid>/task/*/schedstat`)
//! does not count. Threads wait at the same time, so the sum of their waits can be longer than the time itself; a
//! [`LEAST`] part of that counts in any case, so that every limit ends.

use std::{
    fs,
    time::{Duration, Instant},
};

/// One part in so many of the time on the wall counts whatever the emulator waited for.
const LEAST: u32 = 6;

/// The instant from which a limit counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pid: u32,
    begun: Instant,
    waited: Duration,
}

impl Patience {
    /// Begins now, for the emulator of this process id.
    pub(crate) fn begin(pid: u32) -> Patience {
        Patience { pid, begun: Instant::now(), waited: waited(pid) }
    }

    /// What has passed since, and counts.
    pub(crate) fn spent(&self) -> Duration {
        counts(self.begun.elapsed(), waited(self.pid).saturating_sub(self.waited))
    }

    /// Whether `limit` is over. It cannot be before that much time has passed.
    pub(crate) fn over(&self, limit: Duration) -> bool {
        self.begun.elapsed() >= limit && self.spent() >= limit
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
        let patience = Patience::begin(sleeps.id());
        std::thread::sleep(Duration::from_millis(200));
        let spent = patience.spent();
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        assert!(spent >= Duration::from_millis(150), "{spent:?}");
        assert!(!patience.over(Duration::from_secs(3600)));
    }
}
