//! Measures the loads with and without a trace, on the machine that it runs on.
//!
//! ```text
//! each round:  for each trace:  attach ─► each load, a few windows ─► detach
//! ```
//! The events that the probes report are read between windows or after them, so the times do not include reading them.

use super::exits::Guest;
use super::packets::{Bridge, GUEST, PORT};
use super::points;
use super::rivals::Rival;
use super::scripts::Target;
use super::served::Server;
use super::switches::Pair;
use super::{GROWING, Load, Measured, Sample, Scope, TRACES, Tool, Total, Trace};
use anyhow::{Context, Result, bail};
use std::time::Duration;
use teiji_bpf::path_trace::{Setup, Tracer};
use teiji_guest::guest_trace::{self, Kernel, symbols::Symbols};
use teiji_model::flow::{End, Flow, Matching, Port, Watch};
use teiji_model::guest::{SECRET_WORDS, Secret};
use teiji_model::host::{DataPlane, Nic, Vcpu, Vm};

/// Size of the record buffer, bytes: enough for a window's events.
const BUFFER: usize = 32 << 20;
/// Number of operations in a window if the states of vCPUs are recorded, at most: 3 records for each wake-up and switch,
/// half of them of one vCPU, of which 1,024 are recorded in each span of 2^26 ns (STATES_AT_ONCE).
const STATES_COUNT: u32 = 300;
/// A span of states.
const SPAN: Duration = Duration::from_nanos(1 << 26);

/// What is measured, and how much of it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Amount {
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Number of windows of each load in a round
    #[arg(long, default_value_t = 3)]
    pub windows: u32,
    /// Packets, switches or exits in a window
    #[arg(long, default_value_t = 2000)]
    pub count: u32,
    /// Only this project's programs, no other tools
    #[arg(long)]
    pub own: bool,
    /// Also the cost by number of points
    #[arg(long)]
    pub growth: bool,
}

struct Loads {
    bridge: Bridge,
    pair: Pair,
    guest: Guest,
    server: Server,
}

impl Loads {
    fn run(&mut self, load: Load, count: u32) -> Result<f64> {
        match load {
            Load::PacketIn => self.bridge.pass(true, count),
            Load::PacketOut => self.bridge.pass(false, count),
            Load::Switch => self.pair.switch(count),
            Load::Exit => self.guest.exit(count),
            Load::Served => self.server.serve(count),
        }
    }

    /// A VM that consists of these loads.
    fn vm(&self) -> Vm {
        let threads = [self.guest.tid, self.pair.tids[0], self.pair.tids[1]];
        vm(std::process::id(), &threads, self.bridge.tap, GUEST)
    }
}

fn vm(pid: u32, threads: &[u32], tap: u32, mac: [u8; 6]) -> Vm {
    let vcpu =
        |(index, tid): (u16, &u32)| Vcpu { index, kvm_id: None, tid: *tid, cpus: String::new(), last_cpu: 0 };
    Vm {
        name: format!("pid:{pid}"),
        pid,
        vcpus: (0..).zip(threads).map(vcpu).collect(),
        workers: Vec::new(),
        nics: vec![Nic {
            tap: "cost-vm".into(),
            ifindex: tap,
            mac: Some(mac),
            bridge: Some("cost-br".into()),
            data_plane: DataPlane::VhostNet,
            queues: 1,
        }],
        memory: None,
        memory_nodes: Vec::new(),
        given: Vec::new(),
    }
}

/// What traces.
enum Running {
    Nothing,
    Teiji(Box<Tracer>),
    Guest(Box<guest_trace::Tracer>),
    Rival(Rival),
}

impl Running {
    fn start(trace: Trace, loads: &Loads, kernel: &Kernel) -> Result<Running> {
        match trace.tool {
            Tool::None => Ok(Running::Nothing),
            Tool::Teiji => Ok(Running::Teiji(Box::new(teiji(trace, loads)?))),
            Tool::Guest => {
                // As the host asks a guest that has been given no NIC.
                let watch = Watch { matching: Matching::None, ..watch(trace.scope) };
                let tracer = guest_trace::Tracer::start(kernel, &SECRET, &watch, None);
                Ok(Running::Guest(Box::new(tracer.context("the guest's probes could not be attached")?)))
            }
            _ => {
                let target = Target::of(trace.scope, std::process::id(), [10, 66, 0, 1]);
                Ok(Running::Rival(Rival::start(trace, &target)?))
            }
        }
    }

    /// Reads what was reported in a window, if that is possible now; returns how many events there were, or have been since
    /// the start.
    fn drain(&mut self) -> Result<Option<u64>> {
        match self {
            Running::Nothing => Ok(Some(0)),
            Running::Teiji(tracer) => Ok(Some(tracer.drain(&mut |_| {})? as u64)),
            Running::Guest(tracer) => {
                let mut events = 0;
                while tracer.drain(&mut |_| events += 1)? {}
                Ok(Some(events))
            }
            Running::Rival(rival) => rival.events(),
        }
    }

    /// Ends it; returns the number of all events, if it is a tool that counts them.
    fn finish(self) -> Result<Option<u64>> {
        let lost = match self {
            Running::Nothing => 0,
            Running::Teiji(tracer) => tracer.counts()?.lost.iter().sum(),
            Running::Guest(tracer) => tracer.counts()?.lost,
            Running::Rival(rival) => return rival.finish().map(Some),
        };
        if lost > 0 {
            bail!("{lost} events did not fit into the buffer: the times mean nothing; do less in a window");
        }
        Ok(None)
    }
}

/// Any secret.
const SECRET: Secret = Secret([[0x9e37_79b9_7f4a_7c15; SECRET_WORDS]; 2]);

fn watch(scope: Scope) -> Watch {
    let port = if scope == Scope::Filtered { PORT + 1 } else { PORT };
    Watch { flow: Flow { ports: vec![Port { end: End::Any, port }], ..Flow::default() }, ..Watch::default() }
}

fn teiji(trace: Trace, loads: &Loads) -> Result<Tracer> {
    let vm = match trace.scope {
        // No process or device has these numbers.
        Scope::Other | Scope::OtherAsked => vm(u32::MAX, &[], u32::MAX, [0x52, 0x54, 0, 0x67, 0, 1]),
        _ => loads.vm(),
    };
    let asked = matches!(trace.scope, Scope::OtherAsked | Scope::Asked);
    let chosen = &points::ALL[..trace.points];
    let vms = [vm];
    let setup = Setup { watch: &watch(trace.scope), vms: &vms, guests: asked, buffer_bytes: BUFFER };
    let mut tracer = Tracer::start_at(&setup, &|hook| chosen.iter().any(|p| p.name == hook.target))
        .context("the probes could not be attached")?;
    if asked {
        tracer.set_guest(vms[0].pid, Some(&SECRET))?;
    }
    Ok(tracer)
}

/// Measures the times.
///
/// # Errors
/// If a load cannot be set up, the probes cannot be loaded, or an event was lost.
pub fn run(amount: &Amount) -> Result<Measured> {
    let mut loads =
        Loads { bridge: Bridge::new()?, pair: Pair::new()?, guest: Guest::new()?, server: Server::new()? };
    let kernel = Kernel::look(&Symbols::read()).context("the guest's probes cannot be tried")?;
    let mut traces: Vec<Trace> = TRACES.to_vec();
    if amount.growth {
        let steps = points::STEPS.iter().filter(|n| **n < points::ALL.len());
        let at = |n: &usize| GROWING.map(|tool| Trace::of(tool, Scope::This).at(*n));
        traces.extend(steps.flat_map(at));
    }
    if amount.own {
        traces.retain(|t| matches!(t.tool, Tool::None | Tool::Teiji | Tool::Guest));
    }
    let mut measured = Measured::default();
    for round in 0..amount.rounds {
        for trace in &traces {
            eprintln!("round {round}: {}, {} points", trace.name(), trace.points);
            let mut running = match Running::start(*trace, &loads, &kernel) {
                Ok(running) => running,
                // Of the other tools, it is a result that they do not work here.
                Err(e) if !matches!(trace.tool, Tool::Teiji | Tool::Guest) => {
                    measured.not_measured.push((*trace, format!("{e:#}")));
                    continue;
                }
                Err(e) => return Err(e),
            };
            let operations = windows(*trace, &mut running, &mut loads, amount, round, &mut measured.samples)?;
            if let Some(events) = running.finish()? {
                measured.totals.push(Total { trace: *trace, events, operations });
            }
        }
    }
    Ok(measured)
}

/// Measures the windows of one trace; returns the number of operations.
fn windows(
    trace: Trace,
    running: &mut Running,
    loads: &mut Loads,
    amount: &Amount,
    round: u32,
    samples: &mut Vec<Sample>,
) -> Result<u64> {
    let mut operations = 0;
    let asked = trace.scope == Scope::Asked;
    for load in trace.loads() {
        let count = if asked { amount.count.min(STATES_COUNT) } else { amount.count };
        // The first packets, switches or exits take longer: they are not counted.
        let first = count / 10 + 1;
        loads.run(*load, first)?;
        operations += u64::from(first * load.operations());
        for _ in 0..amount.windows {
            let before = running.drain()?;
            if asked {
                std::thread::sleep(SPAN);
            }
            let ns = loads.run(*load, count)?;
            operations += u64::from(count * load.operations());
            // ftrace counts all events since its start, the others those since they were last read.
            let earlier = if matches!(running, Running::Rival(_)) { before } else { Some(0) };
            let events = running.drain()?.zip(earlier).map(|(all, earlier)| all - earlier);
            let events = events.map(|n| n as f64 / f64::from(count * load.operations()));
            samples.push(Sample { load: *load, trace, round, ns, events });
        }
    }
    Ok(operations)
}
