//! `agent`: runs the experiment `agent`; see README.md beside this file.

use anyhow::Result;
use clap::Parser;
use std::fmt::Write;
use std::process::ExitCode;
use teiji_experiments::agent::lab::Host;
use teiji_experiments::numbers;
use teiji_experiments::summary::{self, Summary};

/// Whether an agent keeps a policy while VMs and links come and go, and what it costs
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
}

/// The longest time until a start or a stop is reconciled, ms.
const WITHIN_MS: f64 = 2000.0;
/// What the agent may use at rest: of one CPU, and MB.
const CPU: f64 = 0.01;
const MEMORY_MB: f64 = 50.0;

/// The command of a kept run: a debug build uses more of a CPU.
const COMMAND: &str = if cfg!(debug_assertions) {
    "make experiment NAME=agent KEEP=1"
} else {
    "cargo run --release -p teiji-experiments --bin agent -- --keep"
};

fn main() -> ExitCode {
    summary::exit("agent", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let folder = summary::folder("agent")?;
    let (count, vms, seconds) = if args.form.short { (48, 40, 20.0) } else { (1000, 200, 660.0) };
    let host = Host::boot(&folder.join("lab"), vms)?;
    let mut summary = Summary::new("agent", host.lab.mode(), host.lab.host.kernel());
    let agent = host.agent()?;
    host.put_in_force()?;
    let churn = host.churn(count)?;
    let rest = host.rest(vms, 5, seconds, agent)?;
    let (code, status) = host.teiji("status --json")?;
    summary::write(&folder.join("status.json"), &status)?;
    host.end(agent)?;
    host.lab.host.power_off();

    let worst = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    for (what, times) in [("starts", &churn.starts_ms), ("stops", &churn.stops_ms)] {
        summary.claim(
            times.len() == count && worst(times) <= WITHIN_MS,
            &format!(
                "{} {what} of VMs and links reconciled, each within {WITHIN_MS:.0} ms: {:.0} ms",
                times.len(),
                worst(times)
            ),
        );
    }
    summary.claim(
        rest.agent.cpu <= CPU,
        &format!(
            "at rest with {} VMs of the policy and {} taps the agent uses {:.2} % of a CPU, at most 1 %",
            rest.vms,
            rest.taps,
            rest.agent.cpu * 100.0
        ),
    );
    summary.claim(
        rest.agent.peak_mb <= MEMORY_MB,
        &format!("its memory was never above {:.1} MB, at most 50 MB", rest.agent.peak_mb),
    );
    summary.claim(code == 0, "the status is in order in the end");
    summary.figure("starts_ms_worst", worst(&churn.starts_ms))?;
    summary.figure("starts_ms_median", numbers::median(&churn.starts_ms))?;
    summary.figure("stops_ms_worst", worst(&churn.stops_ms))?;
    summary.figure("stops_ms_median", numbers::median(&churn.stops_ms))?;
    summary.figure("count", count)?;
    summary.figure("rest", &rest)?;
    let mut report = String::from("# agent\n\n| | median, ms | longest, ms |\n| --- | --- | --- |\n");
    for (what, times) in [("starts", &churn.starts_ms), ("stops", &churn.stops_ms)] {
        let _ = writeln!(
            report,
            "| {} {what} | {:.0} | {:.0} |",
            times.len(),
            numbers::median(times),
            worst(times)
        );
    }
    let _ = writeln!(
        report,
        "\nAt rest, {} VMs of the policy and {} taps, {:.0} s: {:.2} % of a CPU, peak memory {:.1} MB.",
        rest.vms,
        rest.taps,
        rest.seconds,
        rest.agent.cpu * 100.0,
        rest.agent.peak_mb
    );
    for (name, cpu) in &rest.agent.threads {
        let _ = writeln!(report, "- of which thread `{name}`: {:.3} %", cpu * 100.0);
    }
    summary.conclude(&folder, &report, args.form.keep.then_some(COMMAND))
}
