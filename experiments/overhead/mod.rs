//! Experiment `overhead`: what the probes of a trace add to a packet, to a context switch, and to a vCPU's exit and
//! entry. See README.md beside this file.
//!
//! | module | does |
//! | --- | --- |
//! | [`packets`] | passes packets through two taps of a bridge |
//! | [`switches`] | two threads that wake each other |
//! | [`exits`] | a guest of a few instructions, which leaves guest mode in a loop |
//! | [`driver`] | times these loads with and without a trace |
//! | [`table`] | tables and CSV |

pub mod driver;
pub mod exits;
pub mod packets;
pub mod switches;
pub mod table;

use serde::{Deserialize, Serialize};

/// What is done over and over.
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
    /// All of them.
    pub const ALL: [Load; 4] = [Load::PacketIn, Load::PacketOut, Load::Switch, Load::Exit];

    /// What one of it is.
    pub fn name(self) -> &'static str {
        match self {
            Load::PacketIn => "packet to the guest",
            Load::PacketOut => "packet from the guest",
            Load::Switch => "wake-up and context switch",
            Load::Exit => "vCPU exit and entry",
        }
    }
}

/// Which trace runs meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trace {
    /// None.
    Off,
    /// Of another VM: what those pay who are not traced.
    Other,
    /// Of this VM, whose packets the filter turns down.
    Filtered,
    /// Of this VM and its packets.
    This,
}

impl Trace {
    /// All of them.
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
    /// What was done.
    pub load: Load,
    /// Under which trace.
    pub trace: Trace,
    /// In which round.
    pub round: u32,
    /// ns of virtual time for each.
    pub ns: f64,
    /// Events that the probes reported, for each.
    pub events: f64,
}
