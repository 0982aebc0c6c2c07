//! `vcpu`: runs the experiment `vcpu`; see README.md beside this file.

use anyhow::{Context, Result};
use clap::Parser;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;
use teiji_experiments::numbers::median;
use teiji_experiments::programs::project;
use teiji_experiments::say;
use teiji_experiments::summary::{self, Summary};
use teiji_experiments::tracing::Lab;
use teiji_experiments::vcpu::{FULL, Load, SHORT, SITUATIONS, Scheduler, Setup, Situation, Window};
use teiji_lab::Spec;

/// Compare a guest's response time beside other work on its CPU, under different schedulers
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    form: summary::Form,
    /// Without scx_bpfland, which is built first if it is missing (6 minutes)
    #[arg(long)]
    without_bpfland: bool,
}

/// The crate and its version.
const BPFLAND: [&str; 2] = ["scx_bpfland", "1.1.4"];

fn main() -> ExitCode {
    summary::exit("vcpu", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool> {
    let begun = Instant::now();
    let extent = if args.form.short { SHORT } else { FULL };
    let folder = summary::folder("vcpu")?;
    let bpfland = if args.without_bpfland || args.form.short { None } else { Some(bpfland()?) };
    let lab = Lab::boot_as(&folder.join("lab"), Spec { mem_mb: 7168, ..Spec::default() })?;
    let mut summary = Summary::new("vcpu", lab.mode(), lab.host.kernel());
    let setup = Setup::boot(&lab, bpfland.as_deref())?;
    let mut windows = Vec::new();
    for situation in SITUATIONS {
        say(situation.text());
        windows.extend(setup.measure(situation, &extent)?);
        for scheduler in setup.schedulers() {
            let Some(of) = Of::all(&windows, situation, scheduler) else { continue };
            say(&format!("  {:12} {}", scheduler.text(), of.text()));
        }
    }
    let schedulers = setup.schedulers();
    drop(setup);
    lab.host.power_off();
    judge(&mut summary, &windows, !args.form.short);
    summary.figure("windows", &windows)?;
    summary.figure("seconds", begun.elapsed().as_secs())?;
    let report = markdown(&windows, &schedulers);
    summary.conclude(&folder, &report, args.form.keep.then_some("make experiment NAME=vcpu KEEP=1"))
}

/// The program scx_bpfland, built from its published source.
fn bpfland() -> Result<PathBuf> {
    let root = project().join("target/rivals");
    let program = root.join("bin").join(BPFLAND[0]);
    if program.is_file() {
        return Ok(program);
    }
    say("building scx_bpfland: about 6 minutes with 2 CPUs, once");
    let built = Command::new("cargo")
        .args(["install", "--locked", "--quiet", BPFLAND[0], "--version", BPFLAND[1], "--root"])
        .arg(&root)
        .env("BPF_CLANG", std::env::var("CLANG").unwrap_or_else(|_| "clang-22".into()))
        .status()
        .context("cannot run cargo")?;
    anyhow::ensure!(built.success(), "scx_bpfland could not be built; --without-bpfland leaves it out");
    Ok(program)
}

/// Medians of the windows of one scheduler in one situation.
struct Of {
    /// Median, 99th and 99.9th percentile of the response time, ms.
    ms: [f64; 3],
    /// Share of the requests that were answered.
    answered: f64,
    /// CPU time of the load, CPUs.
    load: f64,
    /// The least CPU time of a thread of it, divided by the mean of all.
    least: f64,
    /// The most.
    most: f64,
}

impl Of {
    fn all(windows: &[Window], situation: Situation, scheduler: Scheduler) -> Option<Of> {
        let of: Vec<&Window> =
            windows.iter().filter(|w| w.situation == situation && w.scheduler == scheduler).collect();
        let middle =
            |value: &dyn Fn(&Window) -> f64| median(&of.iter().map(|w| value(w)).collect::<Vec<_>>());
        let part = |w: &Window, pick: fn(f64, f64) -> f64| {
            let mean = w.load_cpus.iter().sum::<f64>() / w.load_cpus.len().max(1) as f64;
            w.load_cpus.iter().copied().reduce(pick).map_or(1.0, |value| value / mean)
        };
        (!of.is_empty()).then(|| Of {
            ms: [0, 1, 2].map(|n| middle(&|w| w.ms[n])),
            answered: middle(&|w| w.answered as f64 / w.sent.max(1) as f64),
            load: middle(&|w| w.load_cpus.iter().sum()),
            least: middle(&|w| part(w, f64::min)),
            most: middle(&|w| part(w, f64::max)),
        })
    }

    fn text(&self) -> String {
        let [p50, p99, p999] = self.ms;
        format!(
            "{p50:.1} / {p99:.1} / {p999:.1} ms, {:.1} % answered; load {:.2} CPUs, parts {:.2} to {:.2}",
            self.answered * 100.0,
            self.load,
            self.least,
            self.most
        )
    }
}

fn judge(summary: &mut Summary, windows: &[Window], full: bool) {
    let of = |situation, scheduler| Of::all(windows, situation, scheduler);
    let Some(alone) = of(SITUATIONS[0], Scheduler::Teiji) else { return };
    for situation in SITUATIONS.into_iter().skip(1) {
        let what = situation.text();
        let Some(ours) = of(situation, Scheduler::Teiji) else { continue };
        summary.claim(ours.answered >= 0.99, &format!("{what}: {:.1} % answered", ours.answered * 100.0));
        if !full {
            continue;
        }
        let mut at_most = |times: f64, of: &Of, whose: &str| {
            let (ms, most) = (ours.ms[2], times * of.ms[2]);
            summary.claim(
                ms <= most,
                &format!("{what}: 99.9 % within {ms:.1} ms, {times} times {whose} is {most:.1} ms"),
            );
        };
        at_most(2.0, &alone, "that without load");
        if let Some(fifo) = of(situation, Scheduler::Fifo).filter(|fifo| fifo.answered >= 0.99) {
            at_most(1.2, &fifo, "SCHED_FIFO's");
        }
        if let Some(bpfland) = of(situation, Scheduler::Bpfland).filter(|_| situation.load != Load::Loops) {
            at_most(0.1, &bpfland, "scx_bpfland's");
        }
        if let Some(default) = of(situation, Scheduler::Default) {
            summary.claim(
                ours.load >= 0.9 * default.load,
                &format!(
                    "{what}: the load has {:.3} CPUs, 0.9 of what it has by default is {:.3}",
                    ours.load,
                    0.9 * default.load
                ),
            );
        }
        if situation.load != Load::Sleepers {
            summary.claim(
                ours.least >= 0.95 && ours.most <= 1.05,
                &format!("{what}: parts of the load are {:.2} to {:.2} of their mean", ours.least, ours.most),
            );
        }
    }
}

fn markdown(windows: &[Window], schedulers: &[Scheduler]) -> String {
    let mut out = String::from(
        "Response time, ms: median / 99 % / 99.9 %, medians of the windows; requests answered; CPUs that the load had.\n\n| load |",
    );
    for scheduler in schedulers {
        let _ = write!(out, " {} |", scheduler.text());
    }
    let _ = writeln!(out, "\n| --- |{}", " --- |".repeat(schedulers.len()));
    for situation in SITUATIONS {
        let _ = write!(out, "| {} |", situation.text());
        for scheduler in schedulers {
            let cell = Of::all(windows, situation, *scheduler).map_or_else(String::new, |of| {
                let [p50, p99, p999] = of.ms;
                format!("{p50:.1} / {p99:.1} / {p999:.1}; {:.1} %; {:.2}", of.answered * 100.0, of.load)
            });
            let _ = write!(out, " {cell} |");
        }
        out.push('\n');
    }
    out
}
