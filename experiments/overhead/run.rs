//! `overhead`: runs the experiment `overhead`; see README.md beside this file.

use anyhow::{Context, Result, bail};
use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use teiji_experiments::overhead::{Load, Sample, Trace, table};
use teiji_experiments::programs;
use teiji_experiments::summary::{self, Summary};
use teiji_experiments::tracing::Lab;
use teiji_lab::{Mode, Spec};

/// In the lab's clock, which runs ahead while the lab waits for the machine.
const LIMIT: Duration = Duration::from_secs(86_400);

/// The most that a trace may add, ns of virtual time: a tenth above the measured values.
const BOUNDS: [(Load, Trace, f64); 4] = [
    (Load::Switch, Trace::Other, 700.0),
    (Load::Exit, Trace::Other, 720.0),
    (Load::PacketIn, Trace::Other, 2750.0),
    (Load::PacketOut, Trace::Other, 3050.0),
];

/// What the probes of a trace add to packets, context switches, exits and entries
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
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
    let lab = Lab::boot_as(&folder.join("lab"), spec)?;
    // Copied into the lab host's memory: reading pages from outside takes real time.
    let set_up = "modprobe -a tun vhost_net kvm_amd && cp /mnt/bin/cost /tmp/";
    lab.host.run_for(set_up, LIMIT)?.ok().context("the probed modules could not be loaded")?;
    let amount = if args.form.short { "--rounds 1 --windows 3" } else { "--rounds 3 --windows 5" };
    let printed = lab.host.run_for(&format!("/tmp/cost --count 500 {amount}"), LIMIT)?.ok()?;
    let samples: Vec<Sample> =
        serde_json::from_str(&printed).with_context(|| format!("the driver printed {printed:?}"))?;
    let mut summary = Summary::new("overhead", "virtual", lab.host.kernel());
    lab.host.power_off();

    let costs = table::costs(&samples);
    for (load, trace, most) in BOUNDS {
        let added = table::added(&costs, load, trace);
        summary.claim(
            added <= most,
            &format!("{}, traced is {}: {added:.0} ns more, at most {most:.0} ns", load.name(), trace.name()),
        );
    }
    summary.figure("costs", &costs)?;
    summary.figure("seconds", begun.elapsed().as_secs())?;
    summary::write(&folder.join("windows.csv"), &table::csv(&samples))?;
    let command = args.form.keep.then_some("make experiment NAME=overhead KEEP=1");
    summary.conclude(&folder, &table::markdown(&costs), command)
}
