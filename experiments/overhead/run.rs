//! `overhead`: runs the experiment `overhead`; see README.md beside this file.

use anyhow::{Context, Result, bail};
use clap::Parser;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use teiji_experiments::overhead::costs::{self, Cost, added};
use teiji_experiments::overhead::live::{self, Live};
use teiji_experiments::overhead::wall::{self, Added, Decision};
use teiji_experiments::overhead::{Load, Measured, Scope, Tool, Trace, growth, table};
use teiji_experiments::programs;
use teiji_experiments::summary::{self, Summary};
use teiji_experiments::tracing::Lab;
use teiji_lab::{Mode, Spec};

/// In the lab's clock, which runs ahead while the lab waits for the machine.
const LIMIT: Duration = Duration::from_secs(864_000);

/// The most that a trace may add, ns of virtual time: a tenth above the measured values.
const BOUNDS: [(Load, Tool, Scope, f64); 20] = [
    // What is not traced.
    (Load::Switch, Tool::Teiji, Scope::Other, 700.0),
    (Load::Exit, Tool::Teiji, Scope::Other, 620.0),
    (Load::PacketIn, Tool::Teiji, Scope::Other, 2300.0),
    (Load::PacketOut, Tool::Teiji, Scope::Other, 2600.0),
    (Load::Switch, Tool::Teiji, Scope::OtherAsked, 700.0),
    (Load::Exit, Tool::Teiji, Scope::OtherAsked, 620.0),
    (Load::PacketIn, Tool::Teiji, Scope::OtherAsked, 3000.0),
    (Load::PacketOut, Tool::Teiji, Scope::OtherAsked, 3300.0),
    // What is traced.
    (Load::Switch, Tool::Teiji, Scope::This, 2000.0),
    (Load::Exit, Tool::Teiji, Scope::This, 1380.0),
    (Load::PacketIn, Tool::Teiji, Scope::This, 7400.0),
    (Load::PacketOut, Tool::Teiji, Scope::This, 8900.0),
    // The same with the records of the states of vCPUs, and the prints of packets.
    (Load::Switch, Tool::Teiji, Scope::Asked, 4450.0),
    (Load::Exit, Tool::Teiji, Scope::Asked, 1380.0),
    (Load::PacketIn, Tool::Teiji, Scope::Asked, 12_100.0),
    (Load::PacketOut, Tool::Teiji, Scope::Asked, 13_600.0),
    // In the guest.
    (Load::Switch, Tool::Guest, Scope::Filtered, 670.0),
    (Load::Served, Tool::Guest, Scope::Filtered, 9000.0),
    (Load::Switch, Tool::Guest, Scope::This, 670.0),
    (Load::Served, Tool::Guest, Scope::This, 19_100.0),
];

/// The most that a trace may multiply the median response time of a guest by.
const WALL_BOUNDS: [(Scope, f64); 2] = [(Scope::This, 1.02), (Scope::Asked, 1.05)];
/// What an event may cost at most, by what it costs trace-cmd.
const HALF: f64 = 0.5;
/// The tools whose cost of a request's events is computed.
const COMPARED: [Tool; 5] =
    [Tool::Teiji, Tool::Bpftrace, Tool::BpftraceMaps, Tool::TraceCmd, Tool::PerfRecord];
/// How far the control, which traces nothing, may be from 1.
const CONTROL: f64 = 0.01;

/// What the probes of a trace add to packets, context switches, exits and entries
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
    /// Number of rounds of the long form in virtual time; 0: none
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Number of rounds with a guest in wall time; 0: none
    #[arg(long, default_value_t = 12)]
    wall_rounds: u32,
}

fn main() -> ExitCode {
    summary::exit("overhead", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let begun = Instant::now();
    let folder = summary::folder("overhead")?;
    if !programs::folder()?.join("cost").is_file() {
        bail!("the driver `cost` was not built: run `cargo build -p teiji-experiments`");
    }
    let spec = Spec { mode: Mode::Virtual, cpus: 1, mem_mb: 3072, ..Spec::default() };
    let mut summary = Summary::new("overhead", "virtual", "");
    let (mut costs, mut report) = (Vec::new(), String::new());
    if args.rounds > 0 {
        let lab = Lab::boot_as(&folder.join("lab"), spec)?;
        summary.kernel = lab.host.kernel().to_owned();
        let measured = measure(&lab, args)?;
        if !args.form.short {
            let versions = "bpftrace --version; trace-cmd --version | grep -m1 version; perf --version";
            summary.rivals.insert("versions".into(), lab.host.run_for(versions, LIMIT)?.text().into());
        }
        lab.host.power_off();
        costs = costs::costs(&measured.samples);
        report = in_virtual_time(&mut summary, &folder, &measured, &costs, args.form.short)?;
    }
    if !args.form.short && args.wall_rounds > 0 {
        // What was measured before is not lost.
        match in_wall_time(&mut summary, &folder, &costs, args.wall_rounds) {
            Ok(tables) => report += &format!("\n{tables}"),
            Err(e) => summary.claim(false, &format!("with a guest, in wall time: {e:#}")),
        }
    }
    let (own, others): (Vec<Cost>, Vec<Cost>) =
        costs.into_iter().partition(|c| matches!(c.trace.tool, Tool::Teiji | Tool::Guest));
    summary.figure("costs", &own)?;
    summary.rivals.insert("costs".into(), serde_json::to_value(&others)?);
    summary.figure("seconds", begun.elapsed().as_secs())?;
    let command = format!(
        "cargo run -p teiji-experiments --bin overhead -- --keep --rounds {} --wall-rounds {}",
        args.rounds, args.wall_rounds
    );
    summary.conclude(&folder, &report, args.form.keep.then_some(command.as_str()))
}

/// Judges what was measured in virtual time; returns the tables.
fn in_virtual_time(
    summary: &mut Summary,
    folder: &Path,
    measured: &Measured,
    costs: &[Cost],
    short: bool,
) -> Result<String> {
    summary::write(&folder.join("windows.csv"), &table::csv(&measured.samples))?;
    let mut report = table::own(costs);
    bounded(summary, costs);
    if !short {
        report += &format!("\n{}\n{}", table::compared(costs), table::not_measured(measured));
        rivals(summary, costs);
        let steps = growth::steps(costs);
        growth::picture(&folder.join("growth.svg"), &steps)?;
        report += &format!("\n{}", growth::markdown(&steps));
        summary.figure("growth", &steps)?;
        summary.rivals.insert("not measured".into(), serde_json::to_value(&measured.not_measured)?);
        summary.rivals.insert("totals".into(), serde_json::to_value(&measured.totals)?);
    }
    Ok(report)
}

/// Runs the driver in the lab host.
fn measure(lab: &Lab, args: &Args) -> Result<Measured> {
    // Copied into the lab host's memory: reading pages from outside takes real time. The other tools need both file
    // systems.
    let set_up = "modprobe -a tun vhost_net kvm_amd && cp /mnt/bin/cost /tmp/ &&
        (mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing) &&
        (mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug)";
    lab.host.run_for(set_up, LIMIT)?.ok().context("the probed modules could not be loaded")?;
    let amount = match args.form.short {
        true => "--rounds 1 --windows 3 --own".to_owned(),
        false => format!("--rounds {} --windows 5 --growth", args.rounds),
    };
    let printed =
        lab.host.run_for(&format!("/tmp/cost --count 500 {amount} 2>/mnt/out/progress"), LIMIT)?.ok()?;
    serde_json::from_str(&printed).with_context(|| format!("the driver printed {printed:?}"))
}

/// Measures what is added to the median response time of a real guest, and judges it.
fn in_wall_time(summary: &mut Summary, folder: &Path, costs: &[Cost], rounds: u32) -> Result<String> {
    let lab = Lab::boot(&folder.join("lab"))?;
    summary.mode = format!("virtual; with a guest: {}", lab.mode());
    summary.kernel = lab.host.kernel().to_owned();
    let Live { windows, mix, not_measured } = live::run(&lab, rounds)?;
    lab.host.power_off();
    summary::write(&folder.join("wall.csv"), &wall::csv(&windows))?;
    let added = wall::added(&windows);
    for (scope, most) in WALL_BOUNDS {
        let trace = Trace::of(Tool::Teiji, scope);
        let Some(own) = added.iter().find(|a| a.trace == trace && !a.held) else { continue };
        let what = format!(
            "median response time, {}: {}, at most {:+.0} %",
            trace.name(),
            own.words(),
            (most - 1.0) * 100.0
        );
        match own.at_most(most) {
            Decision::Undecided => summary.undecided(&what),
            decision => summary.claim(decision == Decision::Holds, &what),
        }
    }
    if let Some(control) = added.iter().find(|a| a.trace == Trace::OFF) {
        summary.claim(
            control.low <= 1.0 + CONTROL && control.high >= 1.0 - CONTROL,
            &format!("median response time without a trace compared with itself: {}", control.words()),
        );
    }
    let (own, others): (Vec<Added>, Vec<Added>) =
        added.iter().copied().partition(|a| matches!(a.trace.tool, Tool::Teiji | Tool::None));
    summary.figure("response time", &own)?;
    summary.rivals.insert("response time".into(), serde_json::to_value(&others)?);
    summary.rivals.insert("not measured with a guest".into(), serde_json::to_value(&not_measured)?);
    let events = if costs.is_empty() { String::new() } else { of_a_request(summary, costs, &mix)? };
    Ok(format!("{events}\n{}", wall::markdown(&added)))
}

/// Judges the comparison with trace-cmd, by the events of a real request.
fn of_a_request(summary: &mut Summary, costs: &[Cost], mix: &BTreeMap<String, f64>) -> Result<String> {
    let of = |tool: Tool| costs::per_event_of(costs, mix, Trace::of(tool, Scope::This));
    let (own, other) = (of(Tool::Teiji), of(Tool::TraceCmd));
    summary.claim(
        own <= HALF * other,
        &format!("events of a request: {own:.0} ns for each, at most half of trace-cmd's {other:.0} ns"),
    );
    let ns: Vec<(Tool, f64)> = COMPARED.iter().map(|tool| (*tool, of(*tool))).collect();
    summary.figure("events of a request", mix)?;
    summary.rivals.insert("ns for each event of a request".into(), serde_json::to_value(&ns)?);
    Ok(table::of_a_request(mix, &ns))
}

/// Judges the bounds of what is added.
fn bounded(summary: &mut Summary, costs: &[Cost]) {
    let asked = Trace::of(Tool::Teiji, Scope::Asked);
    let states = costs::of(costs, Load::Switch, asked).and_then(|c| c.events).unwrap_or(0.0);
    summary.claim(
        states >= STATES,
        &format!("{}: {states:.1} states of vCPUs recorded, at least {STATES}", Load::Switch.name()),
    );
    for (load, tool, scope, most) in BOUNDS {
        let trace = Trace::of(tool, scope);
        let added = added(costs, load, trace);
        summary.claim(
            added <= most,
            &format!("{}, {}: {added:.0} ns more, at most {most:.0} ns", load.name(), trace.name()),
        );
    }
}

/// The states of vCPUs have to be recorded in full, or their bound says nothing: each wake-up and switch has three changes,
/// of which the first ones of a window are of states that were not known yet.
const STATES: f64 = 2.7;

/// Judges the comparison with the other tools.
fn rivals(summary: &mut Summary, costs: &[Cost]) {
    for other in [Tool::Bpftrace, Tool::BpftraceMaps] {
        for load in Load::HOST {
            let of = |tool: Tool| costs::per_event(costs, load, Trace::of(tool, Scope::This));
            let what = format!("{}, traced", load.name());
            no_more(summary, &what, of(Tool::Teiji), other, of(other));
        }
        let of = |tool: Tool| growth::request(costs, Trace::of(tool, Scope::Other));
        no_more(summary, "a small request of another VM, not traced", of(Tool::Teiji), other, of(other));
    }
}

fn no_more(summary: &mut Summary, what: &str, own: f64, tool: Tool, other: f64) {
    summary.claim(own <= other, &format!("{what}: {own:.0} ns, no more than {}, {other:.0} ns", tool.name()));
}
