//! Measures the loads with and without a trace, on the machine that it runs on.
//!
//! ```text
//! each round:  for each trace (off, other, filtered, this):  attach ─► each load, a few windows ─► detach
//! ```
//! The events that the probes report are read between windows, so the times do not include reading them.

use super::exits::Guest;
use super::packets::{Bridge, GUEST, PORT};
use super::switches::Pair;
use super::{Load, Sample, Trace};
use anyhow::{Context, Result, bail};
use teiji_bpf::path_trace::{Setup, Tracer};
use teiji_model::flow::{End, Flow, Port, Watch};
use teiji_model::host::{DataPlane, Nic, Vcpu, Vm};

/// Size of the record buffer, bytes: enough for a window's events.
const BUFFER: usize = 32 << 20;

/// How much is measured.
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
}

struct Loads {
    bridge: Bridge,
    pair: Pair,
    guest: Guest,
}

impl Loads {
    fn run(&mut self, load: Load, count: u32) -> Result<f64> {
        match load {
            Load::PacketIn => self.bridge.pass(true, count),
            Load::PacketOut => self.bridge.pass(false, count),
            Load::Switch => self.pair.switch(count),
            Load::Exit => self.guest.exit(count),
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
    }
}

/// Measures the times.
///
/// # Errors
/// If a load cannot be set up, the probes cannot be loaded, or an event was lost.
pub fn run(amount: &Amount) -> Result<Vec<Sample>> {
    let mut loads = Loads { bridge: Bridge::new()?, pair: Pair::new()?, guest: Guest::new()? };
    let mut samples = Vec::new();
    for round in 0..amount.rounds {
        for trace in Trace::ALL {
            let mut tracer = start(trace, &loads)?;
            for load in Load::ALL {
                // The first packets, switches or exits take longer: they are not counted.
                loads.run(load, amount.count / 10 + 1)?;
                drain(&mut tracer)?;
                for _ in 0..amount.windows {
                    let ns = loads.run(load, amount.count)?;
                    let events = drain(&mut tracer)? as f64 / f64::from(amount.count);
                    samples.push(Sample { load, trace, round, ns, events });
                }
            }
            if let Some(tracer) = &tracer {
                let lost: u64 = tracer.counts()?.lost.iter().sum();
                if lost > 0 {
                    bail!(
                        "{lost} events did not fit into the buffer: the times mean nothing; do less in a window"
                    );
                }
            }
        }
    }
    Ok(samples)
}

fn start(trace: Trace, loads: &Loads) -> Result<Option<Tracer>> {
    let port = |port: u16| Port { end: End::Any, port };
    let (vm, port) = match trace {
        Trace::Off => return Ok(None),
        // No process or device has these numbers.
        Trace::Other => (vm(u32::MAX, &[], u32::MAX, [0x52, 0x54, 0, 0x67, 0, 1]), port(PORT)),
        Trace::Filtered => (loads.vm(), port(PORT + 1)),
        Trace::This => (loads.vm(), port(PORT)),
    };
    let watch = Watch { flow: Flow { ports: vec![port], ..Flow::default() }, ..Watch::default() };
    let vms = [vm];
    let setup = Setup { watch: &watch, vms: &vms, guests: false, buffer_bytes: BUFFER };
    Tracer::start(&setup).map(Some).context("the probes could not be attached")
}

fn drain(tracer: &mut Option<Tracer>) -> Result<usize> {
    Ok(tracer.as_mut().map_or(Ok(0), |t| t.drain(&mut |_| {}))?)
}
