//! Detects that a CPU of the lab host stands still: on each of them a thread, before all others, sleeps for 250 ms and measures how
//! long that took.
//!
//! An emulated CPU that gets no real CPU stands still while the others go on. That was seen for 5 to 30 s, with two emulators that
//! had nice values below 0 (Linux 6.18): so they have none now. A kernel reports it only after 20 s. Whatever is measured meanwhile
//! is not a result. So each CPU's witness writes to the kernel's log, which the lab reads: see [`crate::ends::standstills`].

use std::{
    fs::OpenOptions,
    io::Write,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::ends;

/// How long it sleeps.
const SLEEP: Duration = Duration::from_millis(250);
/// What takes this much longer is a standstill. A busy machine takes its CPUs from the emulator for tenths of a second.
const LONG: Duration = Duration::from_secs(2);
/// Above the threads of any test.
const PRIORITY: i32 = 98;

/// Starts a witness on each CPU that is there.
pub fn start() {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    for cpu in 0..cpus {
        let witness = thread::Builder::new().name("witness".into()).spawn(move || watch(cpu));
        if let Err(e) = witness {
            eprintln!("agent: nobody sees whether CPU {cpu} runs: {e}");
        }
    }
}

fn watch(cpu: usize) {
    let mut set = CpuSet::new();
    let param = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: `param` is complete and outlives the call.
    let above_others =
        || nix::Error::result(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) });
    let placed =
        set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).and_then(|()| above_others());
    if let Err(e) = placed {
        eprintln!("agent: nobody sees whether CPU {cpu} runs: {e}");
        return;
    }
    loop {
        let begun = Instant::now();
        thread::sleep(SLEEP);
        let stood = begun.elapsed().saturating_sub(SLEEP);
        if stood > LONG {
            // 3: KERN_ERR, which is printed on the console.
            let line = format!("<3>{}\n", ends::standstill(cpu, stood));
            let _ = OpenOptions::new()
                .write(true)
                .open("/dev/kmsg")
                .and_then(|mut log| log.write_all(line.as_bytes()));
        }
    }
}
