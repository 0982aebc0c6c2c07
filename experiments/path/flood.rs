//! d. Flood: 200,000 packets per second through a bridge and a tap of the local kernel; every event is taken in or
//! counted as lost, but for runs of probes that the kernel skipped, by its own count.
//!
//! The program `flood` (`generator.rs` beside this file) sends them in a network namespace of its own. It is run twice:
//! first with a few packets, to find how many events a packet makes on this kernel, then with the flood.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Stdio};

/// Requested rate, packets per second.
pub const RATE: f64 = 200_000.0;
/// The first run: number of packets, and packets per second.
const TRICKLE: (u64, f64) = (1_000, 1_000.0);
/// How often the first run is tried: if this machine stops the tap's reader for half a second, the tap overflows; and the kernel may
/// skip the run of a probe.
const TRICKLES: u32 = 3;

/// Output of the program `flood`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flood {
    /// Release of the local kernel.
    pub kernel: String,
    /// Requested rate, packets per second.
    pub asked: f64,
    /// Actual rate, packets per second.
    pub rate: f64,
    /// Packets sent.
    pub sent: u64,
    /// Packets that reached the tap, by its counters, including those dropped because it was full.
    pub on_tap: u64,
    /// Of these, packets that the tap dropped: each makes one more event.
    #[serde(default)]
    pub dropped: u64,
    /// Packets read from the tap.
    pub drained: u64,
    /// Events that teiji took in.
    pub events: u64,
    /// Events that teiji counted as lost.
    pub lost: u64,
    /// Runs of probes that the kernel skipped; each of them may have been an event.
    #[serde(default)]
    pub missed: u64,
    /// teiji's peak memory, kB, from the kernel's accounting of the ended process.
    pub peak_kb: u64,
    /// Events per packet; 0 until it is known.
    #[serde(default)]
    pub points: u64,
}

impl Flood {
    /// Events taken in and lost, per packet on the tap.
    pub fn per_packet(&self) -> f64 {
        (self.events + self.lost).saturating_sub(self.dropped) as f64 / self.on_tap.max(1) as f64
    }

    /// Whether every event was taken in or counted as lost, but for at most as many as runs of probes were skipped.
    pub fn exact(&self) -> bool {
        let (counted, all) = (self.events + self.lost, self.points * self.on_tap + self.dropped);
        self.on_tap > 0 && counted <= all && all <= counted + self.missed
    }
}

/// Sends `count` packets. The programs `flood` and `teiji` are in `programs`.
///
/// # Errors
/// If the flood cannot be run (it needs root), or if a packet does not make a whole number of events.
pub fn run(programs: &Path, count: u64) -> Result<Flood> {
    let mut trickle = once(programs, TRICKLE.0, TRICKLE.1)?;
    for _ in 1..TRICKLES {
        // By the kernel's counters, so a fault of teiji's is no reason for another run.
        if (trickle.on_tap, trickle.dropped, trickle.missed) == (TRICKLE.0, 0, 0) {
            break;
        }
        trickle = once(programs, TRICKLE.0, TRICKLE.1)?;
    }
    if trickle.lost != 0
        || trickle.missed != 0
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
