//! Runs the windows of [`super::wall`] in the lab: an echo server in a guest, a client outside, and the tools in the lab
//! host as their users start them, with the reading of their events.

use super::points::ALL;
use super::rivals::{ATTACHED, TRACING, maps_events_command};
use super::scripts::{self, Target};
use super::wall::{self, Window};
use super::{Scope, Tool, Trace};
use crate::load;
use crate::tracing::{self, Lab};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::time::Duration;
use teiji_lab::{Child, Guest, GuestSpec};

/// In an emulated machine, programs start slowly.
const START: Duration = Duration::from_secs(180);
/// Requests per second, and in a window.
const RATE: f64 = 100.0;
const COUNT: u64 = 250;

/// Measured in each round: what traces, and whether it is held meanwhile.
pub const OWN: [(Trace, bool); 4] = [
    (Trace::of(Tool::Teiji, Scope::This), false),
    (Trace::of(Tool::Teiji, Scope::Asked), false),
    (Trace::of(Tool::Teiji, Scope::This), true),
    (Trace::OFF, false),
];
/// Measured less often.
pub const OTHERS: [(Trace, bool); 3] = [
    (Trace::of(Tool::Bpftrace, Scope::This), false),
    (Trace::of(Tool::TraceCmd, Scope::This), false),
    (Trace::of(Tool::PerfRecord, Scope::This), false),
];
/// In every how manieth round the others are measured.
const OTHERS_EVERY: u32 = 2;

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// The windows.
    pub windows: Vec<Window>,
    /// How many events a request has at each point, all threads and packets of the host included.
    pub mix: BTreeMap<String, f64>,
    /// Tools that did not work here, and why.
    pub not_measured: Vec<(Trace, String)>,
}

/// Measures this many rounds.
///
/// # Errors
/// If the guest does not start, or a tool does not trace.
pub fn run(lab: &Lab, rounds: u32) -> Result<Live> {
    let program = "-drive if=none,id=guest,format=raw,readonly=on,file=/mnt/bin/teiji-guest \
                   -device virtio-blk-pci,drive=guest,serial=guest";
    let qemu_args = program.split_whitespace().map(str::to_owned).collect();
    let guest = lab.host.guest(&GuestSpec { qemu_args, ..load::placed("vm1") })?;
    let install = "for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" != guest ] || cat /dev/${d##*/} >/run/teiji-guest; \
                   done; chmod +x /run/teiji-guest";
    guest.run_for(install, START)?.ok()?;
    let _server = load::echo_server(&lab.host, &guest)?;
    let reports = guest.spawn("exec /run/teiji-guest serve 2>&1")?;
    reports.wait_for("waiting for the host", START)?;
    lab.host
        .run(&format!(
            "(mountpoint -q {TRACING} || mount -t tracefs tracefs {TRACING}) &&
         (mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug)"
        ))?
        .ok()?;
    for line in scripts::kprobes(ALL.len()) {
        lab.host.run(&format!("echo '{line}' >> {TRACING}/kprobe_events"))?.ok()?;
    }
    let mix = mix(lab, &guest)?;
    let (mut windows, mut not_measured): (Vec<Window>, Vec<(Trace, String)>) = (Vec::new(), Vec::new());
    let mut off = window(lab, &guest)?;
    for round in 0..rounds {
        let mut traces = OWN.to_vec();
        if round % OTHERS_EVERY == 0 {
            let works = |o: &&(Trace, bool)| !not_measured.iter().any(|(trace, _)| *trace == o.0);
            traces.extend(OTHERS.iter().filter(works));
        }
        for (trace, held) in wall::order(&traces, round) {
            let running = match Running::start(lab, &guest, trace) {
                Ok(running) => running,
                // Of the other tools, it is a result that they do not work here.
                Err(e) if trace.tool != Tool::Teiji => {
                    crate::say(&format!("{}: {e:#}", trace.name()));
                    not_measured.push((trace, format!("{e:#}")));
                    continue;
                }
                Err(e) => return Err(e),
            };
            // Programs that have just started are still being read into memory.
            load::echo(&lab.host, &guest, RATE, COUNT / 10)?;
            if held {
                running.signal(lab, "STOP")?;
            }
            let figures = window(lab, &guest)?;
            if held {
                running.signal(lab, "CONT")?;
            }
            running.stop(lab, figures.received)?;
            let after = window(lab, &guest)?;
            let window = Window {
                trace,
                held,
                round,
                answered: figures.received,
                sent: figures.sent,
                p50_ns: figures.p50_ns as f64,
                off_ns: [off.p50_ns as f64, after.p50_ns as f64],
            };
            let how = if held { ", held" } else { "" };
            crate::say(&format!("round {round}, {}{how}: {:.3}", trace.name(), window.ratio()));
            windows.push(window);
            off = after;
        }
    }
    guest.kill()?;
    Ok(Live { windows, mix, not_measured })
}

/// Counts the events of requests at each point, by the kernel's own counters.
fn mix(lab: &Lab, guest: &Guest<'_>) -> Result<BTreeMap<String, f64>> {
    let load = load::echo_command(guest, RATE, COUNT);
    let events = scripts::perf_events(ALL.len());
    let command = format!("perf stat -a -x, -e {events} -o /tmp/w.mix {load}");
    let figures = load::figures(&lab.host.run(&command)?.ok()?)?;
    let counts = lab.host.run("cat /tmp/w.mix")?.ok()?;
    let mut mix = BTreeMap::new();
    for point in ALL {
        let name = format!(":{}", point.name);
        let line = counts
            .lines()
            .map(|l| l.split(',').collect::<Vec<_>>())
            .find(|fields| fields.get(2).is_some_and(|event| event.ends_with(&name)));
        let count: f64 = line
            .and_then(|fields| fields[0].parse().ok())
            .with_context(|| format!("perf stat has not counted {}: {counts}", point.name))?;
        mix.insert(point.name.to_owned(), count / figures.received as f64);
    }
    Ok(mix)
}

fn window(lab: &Lab, guest: &Guest<'_>) -> Result<load::Figures> {
    load::echo(&lab.host, guest, RATE, COUNT)
}

enum Running<'l> {
    Nothing,
    Teiji(tracing::Trace<'l>),
    Other(Tool, Child),
}

impl<'l> Running<'l> {
    fn start(lab: &'l Lab, guest: &Guest<'_>, trace: Trace) -> Result<Running<'l>> {
        let target = Target { pid: guest.pid(), ip: guest.ip().octets(), port: load::ECHO_PORT };
        let points = trace.points;
        let (command, ready) = match trace.tool {
            Tool::None => return Ok(Running::Nothing),
            Tool::Teiji | Tool::Guest => {
                let asked = trace.scope == Scope::Asked;
                let more = if asked { "--guest" } else { "" };
                let arguments = format!("--vm vm1 {more} --flow 'udp port {}' --match echo", load::ECHO_PORT);
                let running = tracing::Trace::start(lab, "overhead", &arguments, false)?;
                if asked {
                    running.wait_for("reports its part of the path", START)?;
                }
                return Ok(Running::Teiji(running));
            }
            Tool::Bpftrace | Tool::BpftraceMaps => {
                lab.host.put("/tmp/w.bt", scripts::bpftrace(trace.tool, points, &target).as_bytes())?;
                (format!("{ATTACHED}=1 exec bpftrace -o /tmp/w.out /tmp/w.bt 2>&1"), Some(ATTACHED))
            }
            Tool::TraceCmd => {
                let arguments = scripts::trace_cmd(points, None).join(" ");
                let arguments = arguments.trim_start_matches("start -b 65536");
                (format!("cd /tmp; exec trace-cmd record -o w.out {arguments} 2>&1"), None)
            }
            Tool::PerfRecord | Tool::PerfTrace => {
                let events = scripts::perf_events(points);
                (format!("exec perf record -a -c 1 -e {events} -o /tmp/w.out 2>&1"), None)
            }
        };
        lab.host.run("rm -rf /tmp/w.out*")?.ok()?;
        let child = lab.host.spawn(&command)?;
        match ready {
            Some(text) => drop(child.wait_for(text, START).with_context(|| trace.name())?),
            None => {
                let ready = match trace.tool {
                    // It has written what happened on a CPU.
                    Tool::TraceCmd => "[ -s /tmp/w.out.cpu0 ]".to_owned(),
                    _ => maps_events_command(child.id()?),
                };
                let wait = format!("for i in $(seq 600); do ! {ready} || exit 0; sleep 0.1; done; exit 1");
                if lab.host.run(&wait)?.code != 0 {
                    child.kill()?;
                    bail!("it recorded nothing within a minute; it said: {}", child.wait()?.text());
                }
            }
        }
        Ok(Running::Other(trace.tool, child))
    }

    fn signal(&self, lab: &Lab, signal: &str) -> Result<()> {
        let id = match self {
            Running::Nothing => return Ok(()),
            Running::Teiji(trace) => trace.pid()?,
            Running::Other(_, child) => child.id()?,
        };
        lab.host.run(&format!("kill -{signal} {id}"))?.ok()?;
        Ok(())
    }

    /// Ends it; it must have seen the requests.
    fn stop(self, lab: &Lab, requests: u64) -> Result<()> {
        match self {
            Running::Nothing => Ok(()),
            Running::Teiji(trace) => {
                let traced = trace.stop()?;
                let vm = traced.report.vms.first().context("the report has no VM")?;
                if vm.requests.complete * 100 < requests * 95 {
                    bail!("of {requests} requests, {} are complete in the trace", vm.requests.complete);
                }
                Ok(())
            }
            Running::Other(tool, child) => {
                lab.host.run(&format!("kill -INT {}", child.id()?))?.ok()?;
                let said = child.wait()?.text();
                let size = lab.host.run("stat -c %s /tmp/w.out")?.ok()?;
                // A line or record is longer than 20 bytes, and a request has more than 20 events.
                if size.parse::<u64>().unwrap_or(0) < requests * 400 {
                    bail!("{} wrote {size} bytes; it said: {said}", tool.name());
                }
                Ok(())
            }
        }
    }
}
