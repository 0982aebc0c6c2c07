//! Two threads on one CPU that wake each other through pipes: each turn is a wake-up and a context switch.

use anyhow::{Context, Result};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// The two threads. They end with this value.
pub struct Pair {
    begin: Sender<u32>,
    done: Receiver<std::io::Result<f64>>,
    /// Thread ids.
    pub tids: [u32; 2],
}

impl Pair {
    /// Starts the threads.
    ///
    /// # Errors
    /// If no pipe or thread can be created.
    pub fn new() -> Result<Pair> {
        let (near, far_write) = pipe()?;
        let (far, near_write) = pipe()?;
        let (begin, orders) = channel();
        let (report, done) = channel();
        let (known, tids) = channel();
        let other = known.clone();
        std::thread::Builder::new().name("cost-far".into()).spawn(move || {
            let _ = other.send(tid());
            let _ = echo(far, far_write);
        })?;
        let second = tids.recv().context("a thread ended")?;
        std::thread::Builder::new().name("cost-near".into()).spawn(move || {
            let _ = known.send(tid());
            lead(near, near_write, &orders, &report);
        })?;
        Ok(Pair { begin, done, tids: [tids.recv().context("a thread ended")?, second] })
    }

    /// Lets each thread take this many turns; returns ns per turn.
    ///
    /// # Errors
    /// If a thread has ended.
    pub fn switch(&self, turns: u32) -> Result<f64> {
        self.begin.send(turns).context("the threads are gone")?;
        Ok(self.done.recv().context("the threads are gone")??)
    }
}

/// This thread's id.
pub fn tid() -> u32 {
    nix::unistd::gettid().as_raw() as u32
}

fn echo(mut from: PipeReader, mut to: PipeWriter) -> std::io::Result<()> {
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte)?;
        to.write_all(&byte)?;
    }
}

fn lead(
    mut from: PipeReader,
    mut to: PipeWriter,
    orders: &Receiver<u32>,
    report: &Sender<std::io::Result<f64>>,
) {
    let mut turns = |count: u32| {
        let mut byte = [1];
        let begun = Instant::now();
        for _ in 0..count {
            to.write_all(&byte)?;
            from.read_exact(&mut byte)?;
        }
        Ok(begun.elapsed().as_nanos() as f64 / f64::from(count) / 2.0)
    };
    for count in orders {
        if report.send(turns(count)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_take_turns() {
        let pair = Pair::new().unwrap();
        assert_ne!(pair.tids[0], pair.tids[1]);
        assert!(pair.switch(100).unwrap() > 0.0);
    }
}
