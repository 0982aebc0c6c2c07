//! `make demo`: real SIP calls to a VM, undisturbed and then with CPU hogs in the vCPU's way; what teiji says of both.
//!
//! ```text
//! boot ─► VM with sipp's server ─► warm up ─► trace undisturbed ─► trace with hogs ─► power off ─► report.html
//! ```
//! Leaves `target/demo/`: `report.html`, and the two recordings, which `teiji replay` reads without root.

use anyhow::{Context, Result, bail};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use teiji_experiments::load::{self, VCPU_CPU};
use teiji_experiments::path::only;
use teiji_experiments::tracing::{Lab, Trace, Traced};
use teiji_experiments::{programs, say};
use teiji_model::report::VmReport;
use teiji_model::stage::{Stage, ThreadState};

/// Shows where the time of SIP calls to a VM goes, undisturbed and with CPU hogs
#[derive(Parser)]
struct Args {
    /// Calls a second
    #[arg(long, default_value_t = 5.0)]
    rate: f64,
    /// Calls of each trace
    #[arg(long, default_value_t = 60)]
    calls: u64,
    /// Busy loops on the vCPU's CPU
    #[arg(long, default_value_t = 2)]
    hogs: u32,
}

/// The two situations: file name and what is written in the report.
const BEFORE: (&str, &str) = ("undisturbed", "undisturbed");
const AFTER: (&str, &str) = ("cpu-hogs", "CPU hogs");

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let begun = Instant::now();
    let folder = programs::project().join("target/demo");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let programs = programs::folder()?;
    let (before, after) = trace_both(&folder, args)?;
    let recordings = [recording(&before)?, recording(&after)?];
    for (file, (_, label)) in recordings.iter().zip([BEFORE, AFTER]) {
        println!("\n=== {label} ===\n");
        replay(&programs, &[file], &[])?;
    }
    let html = folder.join("report.html");
    let files: Vec<&Path> = recordings.iter().map(PathBuf::as_path).collect();
    let out = html.to_string_lossy().into_owned();
    let labels = ["--label", BEFORE.1, "--label", AFTER.1, "--format", "html", "--out", &out];
    replay(&programs, &files, &labels)?;
    println!("{}", table(only(&before.report)?, only(&after.report)?));
    println!("report:     {}", html.display());
    for file in &recordings {
        println!("recording:  {}  (`teiji replay` reads it without root)", file.display());
    }
    say(&format!("{} s in all; everything is powered off", begun.elapsed().as_secs()));
    Ok(())
}

/// Boots, traces twice, powers off.
fn trace_both(folder: &Path, args: &Args) -> Result<(Traced, Traced)> {
    let lab = Lab::boot(folder)?;
    let guest = lab.host.guest(&load::placed("sip1"))?;
    say("starting sipp's server in the VM, and calling it until its programs are in memory");
    let server = load::sip_server(&lab.host, &guest)?;
    let arguments = "--vm sip1 --flow 'udp port 5060' --match sip";
    let calls = format!("{} calls at {:.0}/s", args.calls, args.rate);

    say(&format!("{}: teiji trace {arguments}; {calls}", BEFORE.1));
    let trace = Trace::start(&lab, BEFORE.0, arguments, true)?;
    load::call(&lab.host, &guest, args.rate, args.calls)?;
    let before = trace.stop()?;

    say(&format!("{}: the same, with {} busy loops on the vCPU's CPU", AFTER.1, args.hogs));
    let trace = Trace::start(&lab, AFTER.0, arguments, true)?;
    let hogs = load::hogs(&lab.host, VCPU_CPU, args.hogs)?;
    load::call(&lab.host, &guest, args.rate, args.calls)?;
    drop(hogs);
    let after = trace.stop()?;

    drop(server);
    drop(guest);
    let Lab { host, .. } = lab;
    host.power_off();
    Ok((before, after))
}

fn recording(traced: &Traced) -> Result<PathBuf> {
    traced.recording.clone().with_context(|| format!("a recording is missing; teiji said: {}", traced.said))
}

/// Runs `teiji replay` on this machine.
fn replay(programs: &Path, files: &[impl AsRef<Path>], options: &[&str]) -> Result<()> {
    let mut command = Command::new(programs.join("teiji"));
    command.arg("replay").args(files.iter().map(AsRef::as_ref)).args(options);
    if !command.status().context("cannot run teiji")?.success() {
        bail!("teiji replay failed: see its message above");
    }
    Ok(())
}

/// Before and after, side by side.
fn table(before: &VmReport, after: &VmReport) -> String {
    let ms = |ns: f64| format!("{:.2} ms", ns / 1e6);
    let mut rows = vec![row("", BEFORE.1.into(), AFTER.1.into())];
    rows.push("-".repeat(64));
    let mut add = |name: &str, of: &dyn Fn(&VmReport) -> Option<f64>| {
        let show = |vm: &VmReport| of(vm).map_or("-".to_owned(), ms);
        rows.push(row(name, show(before), show(after)));
    };
    add("response time, median", &|vm| vm.total.map(|t| t.p50 as f64));
    add("response time, 99 %", &|vm| vm.total.map(|t| t.p99 as f64));
    add("call, median", &|vm| vm.groups.map(|g| g.total.p50 as f64));
    add("waiting for a CPU, mean", &|vm| Some(ready(vm)));
    let blamed = |vm: &VmReport| vm.verdict.stage.map_or("-".to_owned(), |s| s.name().to_owned());
    rows.push(row("blamed stage", blamed(before), blamed(after)));
    let share = |vm: &VmReport| format!("{:.0} %", vm.verdict.share * 100.0);
    rows.push(row("its cause's share", share(before), share(after)));
    format!(
        "\n{}\n\n{}: {}\n{}: {}\n",
        rows.join("\n"),
        BEFORE.1,
        before.verdict.sentence,
        AFTER.1,
        after.verdict.sentence
    )
}

fn row(name: &str, before: String, after: String) -> String {
    format!("{name:<26}{before:>18}{after:>20}")
}

/// Mean time a request waited for the vCPU to get a CPU, ns.
fn ready(vm: &VmReport) -> f64 {
    vm.stages
        .iter()
        .filter(|s| matches!(s.stage, Stage::VcpuWake | Stage::Guest))
        .flat_map(|s| &s.parts)
        .filter(|p| p.state == ThreadState::Ready)
        .map(|p| p.mean)
        .sum()
}
