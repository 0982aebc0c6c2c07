//! d. Flood: 200,000 packets a second through bridge and tap of the local kernel, every event taken in or counted
//! as lost.
//!
//! The program `flood` (`generator.rs` beside this file) does it in a network namespace of its own; here it is run,
//! twice: a trickle first, which tells how many events a packet makes on this kernel, then the flood.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};

/// Packets a second that are asked for.
pub const RATE: f64 = 200_000.0;
/// Packets of the trickle, and its rate.
const TRICKLE: (u64, f64) = (1_000, 1_000.0);

/// What the program `flood` counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flood {
    /// The local kernel.
    pub kernel: String,
    /// Packets a second that were asked for.
    pub asked: f64,
    /// Packets a second that were sent.
    pub rate: f64,
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that came to the tap, by its own counters: those that were dropped there for lack of room too.
    pub on_tap: u64,
    /// Of these, packets that the tap dropped: each is an event more.
    #[serde(default)]
    pub dropped: u64,
    /// Packets that were read from the tap.
    pub drained: u64,
    /// Events that teiji took in.
    pub events: u64,
    /// Events that it says it lost.
    pub lost: u64,
    /// Its peak memory, kB, by the kernel's account of the ended process.
    pub peak_kb: u64,
    /// Events that a packet makes; 0 until it is known.
    #[serde(default)]
    pub points: u64,
}

impl Flood {
    /// Events taken in and lost for each packet on the tap.
    pub fn per_packet(&self) -> f64 {
        (self.events + self.lost).saturating_sub(self.dropped) as f64 / self.on_tap.max(1) as f64
    }

    /// Whether every event was taken in or counted as lost.
    pub fn exact(&self) -> bool {
        self.on_tap > 0 && self.events + self.lost == self.points * self.on_tap + self.dropped
    }
}

/// Sends `count` packets; both programs are in `programs`.
///
/// # Errors
/// If the flood cannot be run (it needs root), or a packet makes no whole number of events.
pub fn run(programs: &Path, count: u64) -> Result<Flood> {
    let trickle = once(programs, TRICKLE.0, TRICKLE.1)?;
    if trickle.lost != 0
        || trickle.on_tap != TRICKLE.0
        || trickle.dropped != 0
        || trickle.events % TRICKLE.0 != 0
        || trickle.events == 0
    {
        bail!("a trickle of {} packets does not make a whole number of events each: {trickle:?}", TRICKLE.0);
    }
    let mut flood = once(programs, count, RATE)?;
    flood.points = trickle.events / TRICKLE.0;
    Ok(flood)
}

fn once(programs: &Path, count: u64, rate: f64) -> Result<Flood> {
    let output = Command::new(programs.join("flood"))
        .args(["--rate", &rate.to_string(), "--count", &count.to_string()])
        .arg("--teiji")
        .arg(programs.join("teiji"))
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run the program flood")?;
    if !output.status.success() {
        bail!("the flood failed: see its message above");
    }
    serde_json::from_slice(&output.stdout).context("the flood did not print its figures")
}
