//! Experiment `overhead`: what the probes of a trace add to a packet, to a context switch, and to a vCPU's exit and
//! entry. See README.md beside this file.
//!
//! | module | does |
//! | --- | --- |
//! | [`packets`] | passes packets through a bridge with two taps |
//! | [`switches`] | two threads that wake each other |
//! | [`exits`] | a guest of a few instructions, which leaves guest mode in a loop |
//! | [`driver`] | measures these loads with and without a trace |
//! | [`table`] | tables and CSV |

pub mod driver;
pub mod exits;
pub mod packets;
pub mod switches;
pub mod table;

use serde::{Deserialize, Serialize};

/// What is done repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// A packet from the uplink to the guest's tap.
    PacketIn,
    /// A packet from the guest's tap to the uplink.
    PacketOut,
    /// A thread wakes another and goes to sleep.
    Switch,
    /// A vCPU leaves guest mode and enters it again.
    Exit,
}

impl Load {
    /// All loads.
    pub const ALL: [Load; 4] = [Load::PacketIn, Load::PacketOut, Load::Switch, Load::Exit];

    /// Name of one such operation.
    pub fn name(self) -> &'static str {
        match self {
            Load::PacketIn => "packet to the guest",
            Load::PacketOut => "packet from the guest",
            Load::Switch => "wake-up and context switch",
            Load::Exit => "vCPU exit and entry",
        }
    }
}

/// Which trace is active during a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trace {
    /// No trace.
    Off,
    /// A trace of another VM: its cost for those who are not traced.
    Other,
    /// A trace of this VM whose filter rejects the packets.
    Filtered,
    /// A trace of this VM and its packets.
    This,
}

impl Trace {
    /// All traces.
    pub const ALL: [Trace; 4] = [Trace::Off, Trace::Other, Trace::Filtered, Trace::This];

    /// What is traced.
    pub fn name(self) -> &'static str {
        match self {
            Trace::Off => "nothing",
            Trace::Other => "another VM",
            Trace::Filtered => "this VM, other packets",
            Trace::This => "this VM and packet",
        }
    }
}

/// One window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The load.
    pub load: Load,
    /// The trace.
    pub trace: Trace,
    /// Number of the round.
    pub round: u32,
    /// ns of virtual time per operation.
    pub ns: f64,
    /// Events that the probes reported, per operation.
    pub events: f64,
}
