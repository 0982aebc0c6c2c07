//! The heartbeat: the time at which the agent last said that it runs. Programs whose work depends on an agent look at it
//! (`heartbeat.bpf.h`), so that the host behaves as without teiji when no agent runs.
//!
//! There is one version of this map for ever: an agent sends the heartbeat also for the programs of another release.
use super::abi::{Abi, Writer};
use super::number::{Number, WritableNumber};
use super::pins::Pins;
use crate::Error;
use libbpf_rs::MapType;
use std::path::Path;
use std::time::Duration;

/// The map. Agents of other releases open its pin, so it keeps the name that it had first.
pub(crate) const HEARTBEAT: Abi =
    Abi::new::<u32, u64>("heartbeat", MapType::Array, 1, Writer::Agent, ["u32", "u64"]).pinned_as("beat");

/// Reads the heartbeat.
pub(crate) struct HeartbeatAge(Number);

/// Sends the heartbeat. Only the owner of the pins has it.
pub struct Heartbeat(WritableNumber);

impl HeartbeatAge {
    /// That of the pins in use.
    pub(crate) fn open(pins: &Pins) -> Result<HeartbeatAge, Error> {
        Number::open(pins, &HEARTBEAT).map(HeartbeatAge)
    }

    /// How long ago the last heartbeat was; `None` if there was none.
    pub(crate) fn get(&self) -> Option<Duration> {
        let at = self.0.get();
        (at > 0).then(|| Duration::from_nanos(now().saturating_sub(at)))
    }
}

impl Heartbeat {
    /// Of the pin at `path`.
    pub(crate) fn open(path: &Path) -> Result<Heartbeat, Error> {
        WritableNumber::open(path, &HEARTBEAT).map(Heartbeat)
    }

    /// Sends it: to be called at least every [`crate::qdisc_edf::HEARTBEAT_INTERVAL_MAX`]. Needs no system call and no
    /// privilege.
    pub fn send(&self) {
        self.0.set(now());
    }
}

/// `CLOCK_MONOTONIC`, ns, which the programs compare with. It cannot fail.
fn now() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
}
