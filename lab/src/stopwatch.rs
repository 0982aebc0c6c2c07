//! How long something in the lab host has taken, without delays that are not caused by the lab host.
//!
//! A limit distinguishes something that hangs from something that works. On a machine that is busy with other work, the
//! emulator waits for a CPU most of the time, and everything in the lab takes several times as long as usual without
//! hanging. So the time that the emulator's threads spent waiting for a CPU of this machine
//! (`/proc/<pid>/task/*/schedstat`) does not count. Threads wait at the same time, so the sum of their waits can exceed
//! the elapsed time: four emulated CPUs that are busy on two CPUs of this machine wait for each other half of the time. So what
//! each emulated CPU has run on average counts in any case, and at least one part in [`MIN_COUNTED`] of the elapsed time, so
//! that every limit ends. All
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
    threads: Threads,
    /// The length of the console log at the start: a CPU that was stuck before has recovered.
    console_length: usize,
}

impl Stopwatch {
    /// Starts now.
    pub(crate) fn begin(emulator: &Arc<Emulator>) -> Stopwatch {
        Stopwatch {
            emulator: emulator.clone(),
            begun: Instant::now(),
            threads: Threads::of(emulator.pid()),
            console_length: emulator.console_length(),
        }
    }

    /// The elapsed time that counts.
    pub(crate) fn counted(&self) -> Duration {
        let now = Threads::of(self.emulator.pid());
        let ran = now.ran.saturating_sub(self.threads.ran) / now.cpus.max(1);
        counts(self.begun.elapsed(), now.waited.saturating_sub(self.threads.waited), ran)
    }

    /// Whether `limit` is exceeded. It cannot be before that much time has elapsed.
    pub(crate) fn expired(&self, limit: Duration) -> bool {
        self.begun.elapsed() >= limit
            && (self.counted() >= limit || self.emulator.stuck(self.console_length, STUCK))
    }
}

/// `ran`: how long each emulated CPU has run.
fn counts(passed: Duration, waited: Duration, ran: Duration) -> Duration {
    passed.saturating_sub(waited).max(ran).max(passed / MIN_COUNTED)
}

/// What the threads of an emulator did until now; threads that have ended do not count. 0 if the kernel does not measure it.
#[derive(Clone, Copy, Default)]
struct Threads {
    /// How long all of them together have waited for a CPU.
    waited: Duration,
    /// How long the emulated CPUs together have run.
    ran: Duration,
    /// How many emulated CPUs there are.
    cpus: u32,
}

impl Threads {
    fn of(pid: u32) -> Threads {
        let mut all = Threads::default();
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let mut ns =
                text.split_whitespace().map_while(|word| word.parse().ok().map(Duration::from_nanos));
            let (ran, waited) = (ns.next().unwrap_or_default(), ns.next().unwrap_or_default());
            all.waited = all.waited.saturating_add(waited);
            // As QEMU names them: `CPU 0/TCG`.
            if fs::read(task.path().join("comm")).is_ok_and(|name| name.starts_with(b"CPU ")) {
                all.ran = all.ran.saturating_add(ran);
                all.cpus += 1;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_cpu_counts_little() {
        let s = Duration::from_secs;
        let waits = |passed, waited| counts(passed, waited, s(0));
        assert_eq!(waits(s(60), s(0)), s(60));
        assert_eq!(waits(s(60), s(20)), s(40));
        assert_eq!((waits(s(60), s(59)), waits(s(60), s(200))), (s(10), s(10)));
        // They wait for each other: that is no excuse for the time in which they run.
        assert_eq!(counts(s(60), s(120), s(30)), s(30));
    }

    /// Two busy threads with the names of emulated CPUs, and one with another name.
    #[test]
    fn emulated_cpus_that_wait_for_each_other_are_told_from_others() {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let busy = |name: &str| {
            let stop = stop.clone();
            let run = move || while !stop.load(std::sync::atomic::Ordering::Relaxed) {};
            std::thread::Builder::new().name(name.into()).spawn(run).unwrap()
        };
        let begun = Instant::now();
        let before = Threads::of(std::process::id());
        let threads = [busy("CPU 0/TCG"), busy("CPU 1/TCG"), busy("main")];
        let ran = |now: &Threads| now.ran.saturating_sub(before.ran);
        let now = loop {
            let now = Threads::of(std::process::id());
            if ran(&now) >= Duration::from_millis(200) || begun.elapsed() > Duration::from_secs(60) {
                break now;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(now.cpus, before.cpus + 2);
        // Two threads cannot have run for longer than twice the time.
        assert!(ran(&now) >= Duration::from_millis(200) && ran(&now) <= 2 * begun.elapsed());
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
