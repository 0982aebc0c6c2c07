//! `hog`: threads that keep one CPU busy.

use std::{
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::error::{Doing, Result};

/// A thread runs for the first time, and sleeps for the second, again and again.
pub type RunAndSleep = (Duration, Duration);

/// Keeps `cpu` busy with `threads` threads, for `length` or for ever; with `turns` each sleeps in between.
///
/// # Errors
/// If there is no such CPU.
pub fn run(cpu: usize, threads: usize, length: Option<Duration>, turns: Option<RunAndSleep>) -> Result<()> {
    let doing = || format!("use CPU {cpu} only");
    let mut set = CpuSet::new();
    set.set(cpu).doing(doing)?;
    // Threads inherit the affinity.
    sched_setaffinity(Pid::from_raw(0), &set).doing(doing)?;
    println!("{threads} threads keep CPU {cpu} busy");
    let end = length.map(|l| Instant::now() + l);
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            thread::spawn(move || {
                loop {
                    match turns {
                        Some((run, sleep)) => {
                            let until = Instant::now() + run;
                            while Instant::now() < until {}
                            thread::sleep(sleep);
                        }
                        None => (0..1_000_000u64).for_each(|i| _ = std::hint::black_box(i)),
                    }
                    if end.is_some_and(|e| Instant::now() >= e) {
                        break;
                    }
                }
            })
        })
        .collect();
    for w in workers {
        let _ = w.join();
    }
    Ok(())
}
