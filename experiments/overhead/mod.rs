//! Experiment `overhead`: what the probes of a trace add to a packet, to a context switch, to a vCPU's exit and entry, and
//! to a request inside a guest; and what other tools add at the same points. See README.md beside this file.
//!
//! | module | does |
//! | --- | --- |
//! | [`packets`] | passes packets through a bridge with two taps |
//! | [`switches`] | two threads that wake each other |
//! | [`exits`] | a guest of a few instructions, which leaves guest mode in a loop |
//! | [`served`] | requests to a UDP server of this machine, which is the guest then |
//! | [`points`] | the points of a packet's path, for all tools |
//! | [`scripts`] | what bpftrace, trace-cmd and perf are told to do there |
//! | [`rivals`] | starts and ends these tools, and counts their events |
//! | [`driver`] | measures the loads with and without a trace |
//! | [`costs`] | what a trace adds, from the samples |
//! | [`table`] | tables and CSV |
//! | [`growth`] | the cost by number of points, as a picture |
//! | [`live`] | runs these windows in the lab |
//! | [`wall`] | windows in wall time with a real guest: ratios and their intervals |

pub mod costs;
pub mod driver;
pub mod exits;
pub mod growth;
pub mod live;
pub mod packets;
pub mod points;
pub mod rivals;
pub mod scripts;
pub mod served;
pub mod switches;
pub mod table;
pub mod wall;

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
    /// A UDP request comes in by a NIC, and a thread of this machine answers it.
    Served,
}

impl Load {
    /// All loads.
    pub const ALL: [Load; 5] = [Load::PacketIn, Load::PacketOut, Load::Switch, Load::Exit, Load::Served];

    /// Those of the host.
    pub const HOST: [Load; 4] = [Load::PacketIn, Load::PacketOut, Load::Switch, Load::Exit];

    /// How many operations one of a window's count is: both threads take a turn.
    pub fn operations(self) -> u32 {
        if self == Load::Switch { 2 } else { 1 }
    }

    /// Name of one such operation.
    pub fn name(self) -> &'static str {
        match self {
            Load::PacketIn => "packet to the guest",
            Load::PacketOut => "packet from the guest",
            Load::Switch => "wake-up and context switch",
            Load::Exit => "vCPU exit and entry",
            Load::Served => "request served in the guest",
        }
    }
}

/// What traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// Nothing.
    None,
    /// `teiji trace`: its probes.
    Teiji,
    /// `teiji-guest`: its probes.
    Guest,
    /// bpftrace, with a line of output for each event.
    Bpftrace,
    /// bpftrace, with times summed up in maps.
    BpftraceMaps,
    /// trace-cmd: ftrace's events and function tracer.
    TraceCmd,
    /// perf record.
    PerfRecord,
    /// perf trace.
    PerfTrace,
}

impl Tool {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Tool::None => "no trace",
            Tool::Teiji => "teiji",
            Tool::Guest => "teiji-guest",
            Tool::Bpftrace => "bpftrace, a line per event",
            Tool::BpftraceMaps => "bpftrace, times in maps",
            Tool::TraceCmd => "trace-cmd",
            Tool::PerfRecord => "perf record",
            Tool::PerfTrace => "perf trace",
        }
    }
}

/// Whose threads and packets are traced, compared with those of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Another VM's.
    Other,
    /// Another VM's, whose guest reports events itself.
    OtherAsked,
    /// This VM's, but a filter rejects the packets.
    Filtered,
    /// This VM's.
    This,
    /// This VM's, and its guest reports events itself: prints and states of vCPUs are recorded, too.
    Asked,
}

impl Scope {
    /// What is traced.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Other => "another VM",
            Scope::OtherAsked => "another VM and its guest",
            Scope::Filtered => "this VM, other packets",
            Scope::This => "this VM and packet",
            Scope::Asked => "this VM and packet, and its guest",
        }
    }
}

/// One way to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Trace {
    /// What traces.
    pub tool: Tool,
    /// Whose.
    pub scope: Scope,
    /// At how many of [`points::ALL`], the first ones.
    pub points: usize,
}

impl Trace {
    /// No trace.
    pub const OFF: Trace = Trace::of(Tool::None, Scope::This);

    /// At all points.
    pub const fn of(tool: Tool, scope: Scope) -> Trace {
        Trace { tool, scope, points: points::ALL.len() }
    }

    /// The same, at the first `points` points.
    pub const fn at(self, points: usize) -> Trace {
        Trace { points, ..self }
    }

    /// What traces, and what is traced.
    pub fn name(self) -> String {
        match self.tool {
            Tool::None => Tool::None.name().to_owned(),
            tool => format!("{}: {}", tool.name(), self.scope.name()),
        }
    }

    /// The loads that it is measured with.
    pub fn loads(self) -> &'static [Load] {
        match self.tool {
            Tool::None => &Load::ALL,
            Tool::Guest => &[Load::Switch, Load::Served],
            _ => &Load::HOST,
        }
    }
}

/// How it is traced in each round, in this order.
pub const TRACES: [Trace; 15] = [
    Trace::OFF,
    Trace::of(Tool::Teiji, Scope::Other),
    Trace::of(Tool::Teiji, Scope::OtherAsked),
    Trace::of(Tool::Bpftrace, Scope::Other),
    Trace::of(Tool::BpftraceMaps, Scope::Other),
    Trace::of(Tool::TraceCmd, Scope::Other),
    Trace::of(Tool::Teiji, Scope::Filtered),
    Trace::of(Tool::Teiji, Scope::This),
    Trace::of(Tool::Bpftrace, Scope::This),
    Trace::of(Tool::BpftraceMaps, Scope::This),
    Trace::of(Tool::TraceCmd, Scope::This),
    Trace::of(Tool::PerfRecord, Scope::This),
    Trace::of(Tool::Teiji, Scope::Asked),
    Trace::of(Tool::Guest, Scope::Filtered),
    Trace::of(Tool::Guest, Scope::This),
];

/// The tools whose cost is measured at growing numbers of points.
pub const GROWING: [Tool; 3] = [Tool::Teiji, Tool::Bpftrace, Tool::TraceCmd];

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
    /// Events that were reported, per operation; `None` if the tool tells only when it ends.
    pub events: Option<f64>,
}

/// What a tool reported from its start to its end.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Total {
    /// The trace.
    pub trace: Trace,
    /// Events.
    pub events: u64,
    /// Operations of the loads meanwhile.
    pub operations: u64,
}

/// What the driver measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The windows.
    pub samples: Vec<Sample>,
    /// For each rival's start.
    pub totals: Vec<Total>,
    /// Tools that did not work here, and why.
    pub not_measured: Vec<(Trace, String)>,
}
